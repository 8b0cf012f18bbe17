//! Locks on files (flock, fcntl): kept in a row by the file's id, so that they survive a crash
//! and no rename moves them; and the leases of the clients that hold them.

pub(crate) mod ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use prost::Message;
use saker_runtime::time::Time;
use saker_types::change::{id_key, table};
use saker_types::wire::FileLocks;
use saker_types::{Error, InodeId, limits};

use crate::request::Wait;
use crate::shard::Shard;

const LEASE: Duration = Duration::from_nanos(limits::LOCK_LEASE_NS);

/// Who holds locks here, and until when unless it is heard of.
#[derive(Default)]
pub struct LockLeases(BTreeMap<u64, Lease>);

struct Lease {
    until: Time,
    ids: BTreeSet<InodeId>,
}

impl LockLeases {
    /// The client was heard of; the files it has locked here.
    pub fn renew(&mut self, holder: u64, now: Time) -> Vec<InodeId> {
        let Some(lease) = self.0.get_mut(&holder) else { return Vec::new() };
        lease.until = now + LEASE;
        lease.ids.iter().copied().collect()
    }

    /// The client holds a lock on this file, or none any more.
    pub fn note(&mut self, holder: u64, id: InodeId, holds: bool, now: Time) {
        if holds {
            let fresh = || Lease { until: now + LEASE, ids: BTreeSet::new() };
            let lease = self.0.entry(holder).or_insert_with(fresh);
            lease.until = now + LEASE;
            lease.ids.insert(id);
        } else if let Some(lease) = self.0.get_mut(&holder) {
            lease.ids.remove(&id);
            if lease.ids.is_empty() {
                self.0.remove(&holder);
            }
        }
    }

    /// Files of a client that holds none any more from now on.
    pub fn end(&mut self, holder: u64) -> BTreeSet<InodeId> {
        self.0.remove(&holder).map(|lease| lease.ids).unwrap_or_default()
    }

    fn expired(&self, now: Time) -> Vec<u64> {
        let late = self.0.iter().filter(|(_, lease)| lease.until <= now);
        late.map(|(holder, _)| *holder).collect()
    }

    /// When to look again.
    pub fn next(&self) -> Option<Time> {
        self.0.values().map(|lease| lease.until).min()
    }
}

impl Shard {
    /// The locks on a file.
    pub(crate) fn file_locks(&self, id: InodeId) -> Result<FileLocks, Error> {
        Ok(self.get_as(&id_key(table::LOCKS, id))?.unwrap_or_default())
    }

    /// Writes them back.
    pub(crate) fn put_file_locks(&mut self, id: InodeId, locks: &FileLocks) {
        let key = id_key(table::LOCKS, id);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_when_its_client_is_not_heard_of() {
        let mut leases = LockLeases::default();
        let start = Time::default();
        leases.note(1, 10, true, start);
        leases.note(2, 10, true, start);
        leases.note(2, 11, true, start);
        assert_eq!(leases.renew(2, start + LEASE / 2), vec![10, 11]);
        assert_eq!(leases.renew(3, start), vec![]);
        assert_eq!(leases.expired(start + LEASE), vec![1]);
        assert_eq!(leases.end(1), BTreeSet::from([10]));
        assert_eq!(leases.next(), Some(start + LEASE * 3 / 2));
        leases.note(2, 10, false, start + LEASE);
        leases.note(2, 11, false, start + LEASE);
        assert_eq!(leases.next(), None);
    }
}
