//! Listing what a shard has of a slot, and dropping it.

use saker_types::change::{Change, What, parse_slot_key, table};
use saker_types::placement::Slot;
use saker_types::wire::{FileLocks, Row};
use saker_types::{Class, Errno, Error, Inode};

use super::{Cursor, PIECE_BYTES, SlotPart, decoded};
use crate::request::Wait;
use crate::shard::Shard;

impl Shard {
    /// A piece of a slot's facts. The slot must not change between its pieces: it is frozen.
    ///
    /// # Errors
    /// EBUSY, to be tried again, while something in the slot is under way; EIO.
    pub fn export_slot(&mut self, slot: Slot, from: &Cursor) -> Result<SlotPart, Error> {
        self.must_rest(slot)?;
        match from {
            Cursor::Rows(after) => {
                let (rows, last) = self.rows_of_slot(slot, after)?;
                rows.iter().try_for_each(|row| self.must_not_be_busy(row))?;
                let changes = rows.into_iter().map(|row| Change { what: Some(What::Put(row)) });
                let next = last.map_or(Cursor::Results(0, 0), Cursor::Rows);
                Ok(SlotPart { changes: changes.collect(), next: Some(next) })
            }
            Cursor::Results(session, seq) => {
                let (mut changes, mut bytes) = (Vec::new(), 0);
                let after = (*session, *seq);
                let more = self.sessions.of_slot(slot).filter(|r| (r.session, r.seq) > after);
                for result in more {
                    bytes += result.body.len();
                    let at = Cursor::Results(result.session, result.seq);
                    changes.push(Change { what: Some(What::Result(result)) });
                    if bytes >= PIECE_BYTES {
                        return Ok(SlotPart { changes, next: Some(at) });
                    }
                }
                Ok(SlotPart { changes, next: None })
            }
        }
    }

    /// Refuses while the inode of a row is busy.
    fn must_not_be_busy(&self, row: &Row) -> Result<(), Error> {
        let id = match parse_slot_key(&row.key) {
            Some((_, id)) => id,
            None if row.key.first() == Some(&table::STAGED) => return Ok(()),
            None => decoded::<Inode>(row)?.attr.id,
        };
        match self.not_busy(id) {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::of_class(Class::Retry, Errno::EBUSY)
                .with_text(format!("inode {id:#x} is held"))),
        }
    }

    /// Drops a piece of what is here of a slot that another shard owns. Its entries count in no
    /// totals here: they were given up, or never adopted. Where to go on, if there is more.
    ///
    /// # Errors
    /// EBUSY if this shard owns the slot, or something in it is under way; EIO.
    pub fn drop_slot(&mut self, slot: Slot, from: &Cursor) -> Result<Option<Cursor>, Error> {
        self.must_not_own(slot)?;
        self.must_rest(slot)?;
        let Cursor::Rows(after) = from else {
            // A result that a replay brings back says what has happened; nobody asks here for it.
            self.sessions.drop_slot(slot);
            self.drop_shares(slot)?;
            return Ok(None);
        };
        let (rows, last) = self.rows_of_slot(slot, after)?;
        rows.iter().try_for_each(|row| self.drop_row(slot, row))?;
        Ok(Some(last.map_or(Cursor::Results(0, 0), Cursor::Rows)))
    }

    fn drop_row(&mut self, slot: Slot, row: &Row) -> Result<(), Error> {
        match (row.key[0], parse_slot_key(&row.key)) {
            (table::STAGED, _) => {}
            (table::ATTR, _) => self.count_inodes(-1),
            (table::GONE, Some((_, id))) => self.leases.remove(id, slot),
            (table::LOCKS, Some((_, id))) => {
                for lock in decoded::<FileLocks>(row)?.locks {
                    self.lock_leases.note(lock.holder, id, false, self.lease_clock.now());
                }
                self.wake(&Wait::Lock(id));
            }
            _ if decoded::<Inode>(row)?.home_slot.is_none() => self.count_inodes(-1),
            _ => {}
        }
        self.inodes.remove(&row.key);
        self.delete(row.key.clone());
        Ok(())
    }
}
