//! A merge is decided: the staged rows become part of the namespace, as if their files had been made,
//! changed and removed one by one. A piece is one batch, together with the end of its staged rows: so
//! it can be begun again at any time, and goes on.

use bytes::Bytes;
use saker_types::change::{parse_entry_key, parse_slot_key, table};
use saker_types::inode::Unflushed;
use saker_types::limits::NAME_BYTES_MAX;
use saker_types::placement::Slot;
use saker_types::time::later;
use saker_types::wire::{ApplyMergeReq, Empty, Hold, StagedValue};
use saker_types::{Attr, Error, Inode, InodeId, Key, Stamp};

use super::{PIECE_PAUSE, Staged};
use crate::request::{Attempt, Stop};
use crate::shard::{Shard, ShardHandle, encoded};

impl Shard {
    /// Puts what is staged.
    pub(crate) fn apply_merge(&mut self, msg: &ApplyMergeReq) -> Attempt<Bytes> {
        let (msg, held) = (*msg, (msg.policy, msg.epoch));
        if !self.merges.begin_work(held) {
            return Err(Error::retry("the merge is being applied").into());
        }
        Err(self.task(move |h| async move {
            let applied = apply(&h, &msg).await;
            let mut s = h.shard();
            s.merges.end_work(held);
            applied.map(|()| {
                s.merges.none_left(held);
                encoded(&Empty {})
            })
        }))
    }
}

async fn apply(h: &ShardHandle, msg: &ApplyMergeReq) -> Result<(), Error> {
    loop {
        let (mut after, mut left) = (Bytes::new(), 0);
        loop {
            let is_more = h.shard().apply_piece(msg, &mut after, &mut left)?;
            if !is_more {
                break;
            }
            h.hub.sleep(PIECE_PAUSE).await;
        }
        if left == 0 {
            break;
        }
        h.hub.sleep(PIECE_PAUSE).await;
    }
    // Only now the directories: who comes to one waits, also if this shard dies before.
    while h.shard().drop_staged((msg.policy, msg.epoch))? {
        h.hub.sleep(PIECE_PAUSE).await;
    }
    Ok(())
}

impl Shard {
    /// Puts some rows behind a key; whether there are more. `left` counts those that are in use.
    fn apply_piece(
        &mut self,
        msg: &ApplyMergeReq,
        after: &mut Bytes,
        left: &mut usize,
    ) -> Result<bool, Error> {
        let (piece, is_more) = self.staged_after((msg.policy, msg.epoch), after)?;
        for staged in piece {
            *after = staged.key.clone();
            if staged.value.dir.is_some() {
                continue;
            }
            // Of an earlier attempt nothing is to be put.
            let counts = staged.value.attempt == msg.attempt;
            match !counts || self.apply_row(msg.time_ns, &staged)? {
                true => self.delete(staged.key),
                false => *left += 1,
            }
        }
        Ok(is_more)
    }

    /// Puts one row. False: what is there is in use.
    fn apply_row(&mut self, time_ns: Stamp, staged: &Staged) -> Result<bool, Error> {
        if let Some((home, _)) = parse_slot_key(staged.of()) {
            if let Some(row) = &staged.value.row {
                self.apply_attributes(home, staged.of(), row)?;
            }
            return Ok(true);
        }
        let Some(key) = parse_entry_key(staged.of()) else {
            tracing::error!("what is staged for {:?} is no row", staged.of());
            return Ok(true);
        };
        if self.locked_by(&key).is_some() {
            return Ok(false);
        }
        let there = self.entry(&key)?;
        if there.as_ref().is_some_and(|there| self.not_busy(there.attr.id).is_err()) {
            return Ok(false);
        }
        // From here on nothing fails.
        self.load_totals(key.pid)?;
        // A new directory has the times that its row says.
        let time_ns = if staged.value.in_new_dir { 0 } else { time_ns };
        let done = match there {
            None => self.apply_new(&key, &staged.value, time_ns),
            Some(there) => self.apply_over(&key, &there, &staged.value, time_ns),
        };
        done.map(|()| true).map_err(failed)
    }

    /// Attributes of a new file with several names.
    fn apply_attributes(&mut self, home: Slot, raw: &[u8], row: &Inode) -> Result<(), Error> {
        debug_assert_eq!(raw.first(), Some(&table::ATTR));
        if self.get(raw)?.is_none() {
            self.count_inodes(1);
        }
        self.note_merged(&row.attr);
        self.put_attr_row(home, row.clone());
        Ok(())
    }

    fn apply_new(&mut self, key: &Key, staged: &StagedValue, time_ns: Stamp) -> Attempt<()> {
        let Some(row) = staged.row.clone() else { return Ok(()) };
        self.note_merged(&row.attr);
        self.insert_entry_at(key, row, time_ns)
    }

    /// Something is there: what the holder saw, unless a shard has started again since it was asked.
    fn apply_over(
        &mut self,
        key: &Key,
        there: &Inode,
        staged: &StagedValue,
        time_ns: Stamp,
    ) -> Attempt<()> {
        let is_file = !there.attr.is_dir() && there.home_slot.is_none();
        if there.attr.id != staged.expect {
            tracing::warn!("a merge finds inode {:#x} at {key:?}", there.attr.id);
        }
        match staged.row.clone() {
            Some(row) if is_file && row.attr.id == there.attr.id => {
                self.change_merged(key, there, row);
                Ok(())
            }
            Some(row) if is_file => {
                self.remove_merged(key, there, staged, time_ns)?;
                self.apply_new(key, &StagedValue { row: Some(row), ..staged.clone() }, time_ns)
            }
            Some(row) => {
                let aside = self.name_beside(key, row.attr.id)?;
                tracing::warn!("a merge puts inode {:#x} at {aside:?}", row.attr.id);
                self.note_merged(&row.attr);
                self.insert_entry_at(&aside, row, time_ns)
            }
            None if is_file && there.attr.id == staged.expect => {
                self.remove_merged(key, there, staged, time_ns)
            }
            // The holder has not seen it.
            None => Ok(()),
        }
    }

    /// The file goes, or goes elsewhere.
    fn remove_merged(
        &mut self,
        key: &Key,
        there: &Inode,
        staged: &StagedValue,
        time_ns: Stamp,
    ) -> Attempt<()> {
        self.remove_entry_at(key, there, time_ns)?;
        let (slot, id) = (self.map.slot_of(key.pid, &key.name), there.attr.id);
        match &staged.moves_to {
            Some(to) if id == staged.expect => self.put_moved(slot, id, to.clone()),
            _ => {
                // Whoever holds the subtree may have it open, and has a lease's time to say so.
                self.note_merged(&there.attr);
                self.put_orphan(slot, there.clone());
            }
        }
        Ok(())
    }

    /// The same file, as its holder left it. What others count of it does not go back.
    fn change_merged(&mut self, key: &Key, there: &Inode, mut row: Inode) {
        let (old, new) = (&there.attr, &mut row.attr);
        new.truncate_gen = new.truncate_gen.max(old.truncate_gen);
        new.data_version = new.data_version.max(old.data_version + 1);
        new.ctime_ns = later(old.ctime_ns, new.ctime_ns);
        row.append_end = row.append_end.max(there.append_end);
        there.unflushed.iter().for_each(|writes| Unflushed::add(&mut row.unflushed, *writes));
        if row.home_slot.is_some() {
            // It has got more names: its attributes are a row of their own.
            self.count_inodes(-1);
        }
        self.note_merged(&row.attr);
        self.update_entry(key, row);
    }

    /// The holder may have the file open, and others one that has moved.
    fn note_merged(&mut self, attr: &Attr) {
        if attr.chunked {
            self.note_opened(attr, Hold::default());
        }
    }

    /// A free name for what cannot be put at its own, in the same directory and owned here.
    fn name_beside(&mut self, key: &Key, id: InodeId) -> Attempt<Key> {
        let mut n = 0_u64;
        loop {
            let number = if n == 0 { String::new() } else { format!("-{n}") };
            let suffix = format!(".merged-{id}{number}");
            let kept = key.name.len().min(NAME_BYTES_MAX - suffix.len());
            let name = [&key.name[..kept], suffix.as_bytes()].concat();
            let (aside, slot) = self.map.place(key.pid, &name);
            let is_free = self.owns_slot(slot) && self.locked_by(&aside).is_none();
            if is_free && self.entry(&aside)?.is_none() {
                return Ok(aside);
            }
            n += 1;
        }
    }
}

fn failed(stop: Stop) -> Error {
    match stop {
        Stop::Fail(error) => error,
        Stop::Wait(_) | Stop::Task(_) => Error::retry("a row of the merge is in use"),
    }
}
