//! When the records of ids that left their names may end (rule 16).

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use rustc_hash::FxHashMap;
use saker_runtime::time::Time;
use saker_types::{InodeId, limits};

const LEASE: Duration = Duration::from_nanos(limits::LEASE_NS);
/// Records ended in one step: with a step a millisecond more than can come, in slices that nobody
/// who waits for the step notices.
const BATCH: usize = 64;

/// When each gone record may end.
#[derive(Default)]
pub(crate) struct GoneLeases {
    leases: FxHashMap<InodeId, Lease>,
    /// When to look at each; one entry counts for each id ([`Lease::looked_at`]).
    queue: VecDeque<(Time, InodeId)>,
    /// Nobody has these open.
    at_once: BTreeSet<InodeId>,
}

struct Lease {
    until: Time,
    looked_at: Time,
}

impl GoneLeases {
    /// The id left its name just now, or the shard just started.
    pub(crate) fn start(&mut self, id: InodeId, now: Time) {
        let until = now + LEASE;
        let lease = self.leases.entry(id).or_insert_with(|| {
            self.queue.push_back((until, id));
            Lease { until, looked_at: until }
        });
        lease.until = until;
    }

    /// The id left its name, and nobody has it open.
    pub(crate) fn end(&mut self, id: InodeId, now: Time) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.until = now;
            self.at_once.insert(id);
        }
    }

    /// Somebody still has it open.
    pub(crate) fn renew(&mut self, id: InodeId, now: Time) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.until = now + LEASE;
        }
    }

    /// Is there a record of it?
    pub(crate) fn has(&self, id: InodeId) -> bool {
        self.leases.contains_key(&id)
    }

    fn is_over(&self, id: InodeId, now: Time) -> bool {
        self.leases.get(&id).is_some_and(|lease| lease.until <= now)
    }

    /// Ids whose time is over, at most a batch.
    pub(crate) fn expired(&mut self, now: Time) -> Vec<InodeId> {
        let mut out = Vec::new();
        while out.len() < BATCH && !self.at_once.is_empty() {
            // Somebody may have opened it since.
            out.extend(self.at_once.pop_first().filter(|id| self.is_over(*id, now)));
        }
        out.iter().for_each(|id| _ = self.leases.remove(id));
        while out.len() < BATCH && self.queue.front().is_some_and(|(at, _)| *at <= now) {
            let Some((at, id)) = self.queue.pop_front() else { break };
            let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.looked_at == at) else {
                continue;
            };
            if lease.until > now {
                lease.looked_at = lease.until;
                self.queue.push_back((lease.until, id));
            } else {
                self.leases.remove(&id);
                out.push(id);
            }
        }
        out
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Time> {
        let first = self.queue.front().map(|(at, _)| *at);
        if self.at_once.is_empty() { first } else { Some(Time::default()) }
    }

    /// Records kept.
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_lease_outlives_the_first() {
        let mut leases = GoneLeases::default();
        let start = Time::default();
        leases.start(1, start);
        leases.start(2, start);
        leases.renew(2, start + LEASE / 2);
        assert_eq!(leases.expired(start + LEASE / 2), vec![]);
        assert_eq!(leases.expired(start + LEASE), vec![1]);
        assert_eq!(leases.expired(start + LEASE * 3 / 2), vec![2]);
        assert_eq!(leases.len(), 0);
    }

    #[test]
    fn what_nobody_has_open_ends_before_others() {
        let mut leases = GoneLeases::default();
        let start = Time::default();
        leases.start(1, start);
        leases.start(2, start);
        leases.end(2, start);
        assert_eq!((leases.next(), leases.len()), (Some(start), 2));
        assert_eq!(leases.expired(start), vec![2]);
        assert_eq!((leases.next(), leases.len()), (Some(start + LEASE), 1));
        // Back at a name, and gone again.
        leases.end(1, start);
        assert_eq!(leases.expired(start), vec![1]);
        assert_eq!((leases.expired(start + LEASE), leases.len()), (vec![], 0));
        // However often what is said.
        leases.queue.clear();
        for _ in 0..9 {
            leases.start(3, start);
            leases.renew(3, start);
            leases.end(3, start);
        }
        assert_eq!((leases.at_once.len(), leases.queue.len()), (1, 1));
        // Somebody opens it in the last moment.
        leases.renew(3, start);
        assert_eq!((leases.expired(start), leases.len()), (vec![], 1));
        leases.renew(3, start + LEASE / 2);
        assert_eq!(leases.expired(start + LEASE), vec![]);
        assert_eq!(leases.expired(start + LEASE * 3 / 2), vec![3]);
        assert_eq!((leases.queue.len(), leases.len()), (0, 0));
    }
}
