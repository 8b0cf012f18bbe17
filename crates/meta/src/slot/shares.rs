//! A slot's share in the numbers of entries of directories. A shard's totals count the slots that
//! it owns by its map: so whoever adds the totals of shards that stand by one map counts each entry
//! once. What has come with a slot that another shard owns yet is kept beside them.
//!
//! Versions and times of totals tell what a shard has changed, and stay with it for ever (rule 21).

use std::ops::ControlFlow;

use prost::Message;
use saker_engine::Engine;
use saker_types::change::{parse_slot_key, slot_key, table};
use saker_types::placement::Slot;
use saker_types::wire::{Row, Totals};
use saker_types::{Class, Errno, Error, InodeId};

use super::{decoded, end_of};
use crate::shard::Shard;

impl Shard {
    /// One more entry of a directory has come with a slot.
    pub(super) fn add_to_share(
        &mut self,
        slot: Slot,
        dir: InodeId,
        is_dir: bool,
    ) -> Result<(), Error> {
        let key = slot_key(table::SHARE, slot, dir);
        let mut share = self.get_as::<Totals>(&key)?.unwrap_or_default();
        share.entries += 1;
        share.subdirs += u64::from(is_dir);
        self.put(key, share.encode_to_vec().into());
        Ok(())
    }

    /// By directory: the entries that have come with a slot which is not adopted yet.
    ///
    /// # Errors
    /// EIO.
    pub fn slot_shares(&self, slot: Slot) -> Result<Vec<(InodeId, Totals)>, Error> {
        let mut rows = Vec::new();
        let start = slot_key(table::SHARE, slot, 0);
        let scanned = self.engine.scan(&start, &end_of(table::SHARE, slot), |key, value| {
            let (key, value) = (key.to_vec().into(), value.to_vec().into());
            rows.push(Row { key, value });
            ControlFlow::Continue(())
        });
        scanned.map_err(|e| Error::new(Errno::EIO).with_text(e.to_string()))?;
        let share = |row: &Row| {
            let (_, dir) = parse_slot_key(&row.key).ok_or(Errno::EIO)?;
            Ok((dir, decoded::<Totals>(row)?))
        };
        rows.iter().map(share).collect()
    }

    /// This shard owns the slot from now on: its entries count. Belongs to the step that installs
    /// the map which says so.
    ///
    /// # Errors
    /// EBUSY if another shard owns it; EIO.
    pub fn adopt_slot(&mut self, slot: Slot) -> Result<(), Error> {
        if !self.owns_slot(slot) {
            return Err(Errno::EBUSY.into());
        }
        for (dir, share) in self.slot_shares(slot)? {
            self.shift_totals(dir, |totals| {
                totals.entries += share.entries;
                totals.subdirs += share.subdirs;
            })?;
            self.delete(slot_key(table::SHARE, slot, dir));
        }
        Ok(())
    }

    /// Another shard owns the slot from now on, and has told what it has of it
    /// ([`Shard::slot_shares`]): its entries do not count here any more. Belongs to the step that
    /// installs the map which says so.
    ///
    /// # Errors
    /// EBUSY if this shard owns it, or something in it is under way; EIO.
    pub fn give_up_slot(&mut self, slot: Slot, shares: &[(InodeId, Totals)]) -> Result<(), Error> {
        self.must_not_own(slot)?;
        self.must_rest(slot)?;
        for (dir, share) in shares {
            self.shift_totals(*dir, |totals| {
                totals.entries = totals.entries.saturating_sub(share.entries);
                totals.subdirs = totals.subdirs.saturating_sub(share.subdirs);
            })?;
        }
        Ok(())
    }

    pub(super) fn drop_shares(&mut self, slot: Slot) -> Result<(), Error> {
        for (dir, _) in self.slot_shares(slot)? {
            self.delete(slot_key(table::SHARE, slot, dir));
        }
        Ok(())
    }

    /// Refuses what is done with another shard's slot only.
    pub(super) fn must_not_own(&self, slot: Slot) -> Result<(), Error> {
        match self.owns_slot(slot) {
            true => Err(Error::of_class(Class::Final, Errno::EBUSY)
                .with_text(format!("slot {} is this shard's", slot.0))),
            false => Ok(()),
        }
    }
}
