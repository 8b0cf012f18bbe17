//! This shard's totals of each directory: a change-log compacted to its end. All changes of one
//! batch to a directory cost one row.

use bytes::Bytes;
use prost::Message;
use saker_types::change::{id_key, table};
use saker_types::wire::Totals;
use saker_types::{Error, InodeId, Stamp};

use super::tracker::Tracker;
use crate::request::{Attempt, Stop, Wait};
use crate::shard::Shard;

impl Shard {
    /// Totals of a directory, as of now.
    pub(crate) fn totals(&mut self, dir: InodeId) -> Result<Totals, Error> {
        match self.dirty_totals.get(&dir) {
            Some(totals) => Ok(*totals),
            None => Ok(self.get_as(&id_key(table::TOTALS, dir))?.unwrap_or_default()),
        }
    }

    /// Reads the totals of a directory into the batch. What changes several rows does so before
    /// the first, so that a row that cannot be read stops all of it.
    pub(crate) fn load_totals(&mut self, dir: InodeId) -> Result<(), Error> {
        let totals = self.totals(dir)?;
        self.dirty_totals.insert(dir, totals);
        Ok(())
    }

    /// An entry of the directory came, went or was replaced at this time.
    pub(crate) fn change_totals(
        &mut self,
        dir: InodeId,
        time_ns: Stamp,
        f: impl FnOnce(&mut Totals),
    ) -> Attempt<()> {
        let mut totals = self.totals(dir)?;
        totals.version += 1;
        totals.mtime_ns = totals.mtime_ns.max(time_ns);
        f(&mut totals);
        self.dirty_totals.insert(dir, totals);
        Ok(())
    }

    /// Entries of the directory came or went with their slot: nothing has changed in it.
    pub(crate) fn shift_totals(
        &mut self,
        dir: InodeId,
        f: impl FnOnce(&mut Totals),
    ) -> Result<(), Error> {
        let mut totals = self.totals(dir)?;
        f(&mut totals);
        self.dirty_totals.insert(dir, totals);
        Ok(())
    }

    /// The end of the batch: one row for each directory that changed.
    pub(crate) fn write_totals(&mut self) {
        while let Some((dir, totals)) = self.dirty_totals.pop_first() {
            let key = id_key(table::TOTALS, dir);
            match totals == Totals::default() {
                true => self.delete(key),
                false => self.put(key, Bytes::from(totals.encode_to_vec())),
            }
            self.tracker.note_change(dir);
        }
    }

    /// New changes to a frozen directory wait; commits do not ask.
    pub(crate) fn not_frozen(&mut self, dir: InodeId) -> Attempt<()> {
        if self.freezes.has(dir) { Err(Stop::Wait(Wait::Frozen(dir))) } else { Ok(()) }
    }

    /// Ends freezes whose time is over.
    pub(crate) fn thaw(&mut self) {
        for dir in self.freezes.take_over(self.hub.now()) {
            self.wake(&Wait::Frozen(dir));
        }
    }
}
