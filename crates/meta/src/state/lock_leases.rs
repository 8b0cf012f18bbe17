//! Leases of the clients that hold locks on files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use saker_runtime::time::Time;
use saker_types::{InodeId, limits};

const LEASE: Duration = Duration::from_nanos(limits::LOCK_LEASE_NS);

/// Who holds locks here, and until when unless it is heard of.
#[derive(Default)]
pub(crate) struct LockLeases(BTreeMap<u64, Lease>);

struct Lease {
    until: Time,
    ids: BTreeSet<InodeId>,
}

impl LockLeases {
    /// The client was heard of; the files it has locked here.
    pub(crate) fn renew(&mut self, holder: u64, now: Time) -> Vec<InodeId> {
        let Some(lease) = self.0.get_mut(&holder) else { return Vec::new() };
        lease.until = now + LEASE;
        lease.ids.iter().copied().collect()
    }

    /// The client holds a lock on this file, or none any more.
    pub(crate) fn note(&mut self, holder: u64, id: InodeId, holds: bool, now: Time) {
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
    pub(crate) fn end(&mut self, holder: u64) -> BTreeSet<InodeId> {
        self.0.remove(&holder).map(|lease| lease.ids).unwrap_or_default()
    }

    pub(crate) fn expired(&self, now: Time) -> Vec<u64> {
        let late = self.0.iter().filter(|(_, lease)| lease.until <= now);
        late.map(|(holder, _)| *holder).collect()
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Time> {
        self.0.values().map(|lease| lease.until).min()
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
