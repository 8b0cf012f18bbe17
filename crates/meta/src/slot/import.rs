//! Taking over what another shard has of a slot.

use saker_types::change::{
    Change, Gone, What, parse_entry_key, parse_slot_key, parse_staged_key, table,
};
use saker_types::placement::Slot;
use saker_types::wire::{Hold, Row};
use saker_types::{Errno, Error, Inode};

use super::decoded;
use crate::shard::Shard;

impl Shard {
    /// Puts a piece of a slot that another shard owns yet. The same piece twice does no harm.
    ///
    /// # Errors
    /// EBUSY if this shard owns the slot, EINVAL if it is not a piece of it; EIO.
    pub fn import_slot(&mut self, slot: Slot, changes: &[Change]) -> Result<(), Error> {
        self.must_not_own(slot)?;
        for change in changes {
            match &change.what {
                Some(What::Put(row)) if self.is_of(slot, &row.key) => self.import_row(slot, row)?,
                Some(What::Result(result)) if result.slot == Some(slot.into()) => {
                    self.sessions.restore(result.clone());
                    self.log_change(What::Result(result.clone()));
                }
                _ => return Err(Errno::EINVAL.into()),
            }
        }
        Ok(())
    }

    fn import_row(&mut self, slot: Slot, row: &Row) -> Result<(), Error> {
        let is_new = self.get(&row.key)?.is_none();
        let put = |s: &mut Shard| {
            s.inodes.remove(&row.key);
            s.put(row.key.clone(), row.value.clone());
        };
        if let Some(key) = parse_entry_key(&row.key) {
            let inode = decoded::<Inode>(row)?;
            // The root's own row is in no directory.
            if is_new && key.pid != 0 {
                self.add_to_share(slot, key.pid, inode.attr.is_dir())?;
            }
            if inode.home_slot.is_none() {
                self.count_inodes(is_new.into());
                // Clients that have it open opened it where it was.
                self.note_opened(&inode.attr, Hold::default());
            }
            put(self);
            return Ok(());
        }
        if let Some((policy, epoch, _)) = parse_staged_key(&row.key) {
            self.merges.stage((policy, epoch), 0);
            put(self);
            self.ask_policy(policy);
            return Ok(());
        }
        let (_, id) = parse_slot_key(&row.key).ok_or(Errno::EINVAL)?;
        match row.key[0] {
            table::ATTR => {
                self.count_inodes(is_new.into());
                self.note_opened(&decoded::<Inode>(row)?.attr, Hold::default());
                put(self);
            }
            table::GONE => {
                let gone = decoded::<Gone>(row)?;
                self.remember_gone(slot, id, &gone);
                if let Some(orphan) = &gone.orphan {
                    self.note_opened(&orphan.attr, Hold::default());
                }
                put(self);
            }
            table::LOCKS => {
                put(self);
                self.resume_locks(id, self.lease_clock.now())?;
            }
            _ => return Err(Errno::EINVAL.into()),
        }
        Ok(())
    }
}
