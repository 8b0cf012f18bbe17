//! Locks on files (flock, fcntl): kept in a row by the file's id, so that they survive a crash
//! and no rename moves them; and the leases of the clients that hold them.

pub(crate) mod ranges;

use bytes::Bytes;
use prost::Message;
use saker_runtime::time::Time;
use saker_types::change::{slot_key, table};
use saker_types::placement::Slot;
use saker_types::wire::FileLocks;
use saker_types::{Error, InodeId};

use crate::request::Wait;
use crate::shard::Shard;

fn key_of(id: InodeId) -> Bytes {
    slot_key(table::LOCKS, Slot::of_locks(id), id)
}

impl Shard {
    /// The locks on a file.
    pub(crate) fn file_locks(&self, id: InodeId) -> Result<FileLocks, Error> {
        Ok(self.get_as(&key_of(id))?.unwrap_or_default())
    }

    /// Writes them back.
    pub(crate) fn put_file_locks(&mut self, id: InodeId, locks: &FileLocks) {
        let key = key_of(id);
        if locks.locks.is_empty() {
            self.delete(key);
        } else {
            self.put(key, locks.encode_to_vec().into());
        }
    }

    /// After a restart: whoever held a lock has a whole lease to be heard of.
    pub(crate) fn resume_locks(&mut self, id: InodeId, now: Time) -> Result<(), Error> {
        for lock in self.file_locks(id)?.locks {
            self.lock_leases.note(lock.holder, id, true, now);
        }
        Ok(())
    }

    /// Ends the locks of clients that were not heard of.
    pub(crate) fn expire_locks(&mut self) {
        for holder in self.lock_leases.expired(self.lease_clock.now()) {
            tracing::warn!("client {holder:#x} was not heard of: its file locks end");
            if let Err(e) = self.end_locks(holder) {
                tracing::error!("the file locks of client {holder:#x} cannot be ended: {e}");
            }
        }
    }

    /// A client's locks end.
    pub(crate) fn end_locks(&mut self, holder: u64) -> Result<(), Error> {
        for id in self.lock_leases.end(holder) {
            let mut locks = self.file_locks(id)?;
            locks.locks.retain(|lock| lock.holder != holder);
            self.put_file_locks(id, &locks);
            self.wake(&Wait::Lock(id));
        }
        Ok(())
    }
}
