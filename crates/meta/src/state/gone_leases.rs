//! When the records of ids that left their names may end (rule 16).

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use rustc_hash::FxHashMap;
use saker_runtime::time::Time;
use saker_types::placement::Slot;
use saker_types::{InodeId, limits};

const LEASE: Duration = Duration::from_nanos(limits::LEASE_NS);
/// Records ended in one step: with a step a millisecond more than can come, in slices that nobody
/// who waits for the step notices.
const BATCH: usize = 64;

/// When each gone record may end, and of which slots an inode has any. All of an inode end together.
#[derive(Default)]
pub(crate) struct GoneLeases {
    leases: FxHashMap<InodeId, Lease>,
    /// When to look at each; one entry counts for each id ([`Lease::looked_at`]).
    queue: VecDeque<(Time, InodeId)>,
    /// Nobody has these open.
    at_once: BTreeSet<InodeId>,
    /// Of directories that moved: they end by no lease. Nobody renews that of a working directory.
    kept: BTreeSet<(InodeId, Slot)>,
}

struct Lease {
    until: Time,
    looked_at: Time,
    /// Slot of the first record, and of the others that few inodes have.
    slot: Slot,
    others: Box<[Slot]>,
}

impl Lease {
    fn slots(&self) -> impl Iterator<Item = Slot> {
        std::iter::once(self.slot).chain(self.others.iter().copied())
    }
}

impl GoneLeases {
    /// The id left its name in this slot just now, or the shard just started.
    pub(crate) fn start(&mut self, id: InodeId, slot: Slot, now: Time) {
        let until = now + LEASE;
        let lease = self.leases.entry(id).or_insert_with(|| {
            self.queue.push_back((until, id));
            Lease { until, looked_at: until, slot, others: Box::default() }
        });
        lease.until = until;
        if lease.slots().all(|known| known != slot) {
            lease.others = lease.others.iter().copied().chain([slot]).collect();
        }
    }

    /// Of a directory that left its name in this slot: kept until [`GoneLeases::forget`].
    pub(crate) fn keep(&mut self, id: InodeId, slot: Slot) {
        self.kept.insert((id, slot));
    }

    /// The slots that have such a record of a directory.
    pub(crate) fn kept(&self, id: InodeId) -> Vec<Slot> {
        let all = (id, Slot(0))..=(id, Slot(u16::MAX));
        self.kept.range(all).map(|(_, slot)| *slot).collect()
    }

    /// The directory was removed, and these records with it.
    pub(crate) fn forget(&mut self, id: InodeId) {
        for slot in self.kept(id) {
            self.kept.remove(&(id, slot));
        }
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

    /// The slot has gone, and its record of the inode with it.
    pub(crate) fn remove(&mut self, id: InodeId, slot: Slot) {
        self.kept.remove(&(id, slot));
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let rest: Vec<Slot> = lease.slots().filter(|known| *known != slot).collect();
        match rest.split_first() {
            None => _ = self.leases.remove(&id),
            Some((first, others)) => (lease.slot, lease.others) = (*first, others.into()),
        }
    }

    /// The slots that have a record of it.
    pub(crate) fn slots(&self, id: InodeId) -> Vec<Slot> {
        self.leases.get(&id).map_or_else(Vec::new, |lease| lease.slots().collect())
    }

    fn is_over(&self, id: InodeId, now: Time) -> bool {
        self.leases.get(&id).is_some_and(|lease| lease.until <= now)
    }

    /// Records whose time is over, a batch and the rest of an inode's at most.
    pub(crate) fn expired(&mut self, now: Time) -> Vec<(Slot, InodeId)> {
        let mut out = Vec::new();
        while out.len() < BATCH
            && let Some(id) = self.at_once.pop_first()
        {
            // Somebody may have opened it since.
            if self.is_over(id, now) {
                self.take(id, &mut out);
            }
        }
        while out.len() < BATCH && self.queue.front().is_some_and(|(at, _)| *at <= now) {
            let Some((at, id)) = self.queue.pop_front() else { break };
            let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.looked_at == at) else {
                continue;
            };
            if lease.until > now {
                lease.looked_at = lease.until;
                self.queue.push_back((lease.until, id));
            } else {
                self.take(id, &mut out);
            }
        }
        out
    }

    fn take(&mut self, id: InodeId, out: &mut Vec<(Slot, InodeId)>) {
        if let Some(lease) = self.leases.remove(&id) {
            out.extend(lease.slots().map(|slot| (slot, id)));
        }
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Time> {
        let first = self.queue.front().map(|(at, _)| *at);
        if self.at_once.is_empty() { first } else { Some(Time::default()) }
    }

    /// Inodes with records that end some time.
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Slot = Slot(4);

    #[test]
    fn a_renewed_lease_outlives_the_first() {
        let mut leases = GoneLeases::default();
        let start = Time::default();
        leases.start(1, S, start);
        leases.start(2, S, start);
        leases.renew(2, start + LEASE / 2);
        assert_eq!(leases.expired(start + LEASE / 2), vec![]);
        assert_eq!(leases.expired(start + LEASE), vec![(S, 1)]);
        assert_eq!(leases.expired(start + LEASE * 3 / 2), vec![(S, 2)]);
        assert_eq!(leases.len(), 0);
    }

    #[test]
    fn what_nobody_has_open_ends_before_others() {
        let mut leases = GoneLeases::default();
        let start = Time::default();
        leases.start(1, S, start);
        leases.start(2, S, start);
        leases.end(2, start);
        assert_eq!((leases.next(), leases.len()), (Some(start), 2));
        assert_eq!(leases.expired(start), vec![(S, 2)]);
        assert_eq!((leases.next(), leases.len()), (Some(start + LEASE), 1));
        // Back at a name, and gone again.
        leases.end(1, start);
        assert_eq!(leases.expired(start), vec![(S, 1)]);
        assert_eq!((leases.expired(start + LEASE), leases.len()), (vec![], 0));
        // However often what is said.
        leases.queue.clear();
        for _ in 0..9 {
            leases.start(3, S, start);
            leases.renew(3, start);
            leases.end(3, start);
        }
        assert_eq!((leases.at_once.len(), leases.queue.len()), (1, 1));
        // Somebody opens it in the last moment.
        leases.renew(3, start);
        assert_eq!((leases.expired(start), leases.len()), (vec![], 1));
        leases.renew(3, start + LEASE / 2);
        assert_eq!(leases.expired(start + LEASE), vec![]);
        assert_eq!(leases.expired(start + LEASE * 3 / 2), vec![(S, 3)]);
        assert_eq!((leases.queue.len(), leases.len()), (0, 0));
    }

    #[test]
    fn records_of_an_inode_end_together_and_those_of_directories_by_no_lease() {
        let mut leases = GoneLeases::default();
        let start = Time::default();
        let t = Slot(9);
        leases.start(1, S, start);
        leases.start(1, t, start + LEASE / 2);
        leases.start(1, S, start + LEASE / 2);
        assert_eq!((leases.slots(1), leases.slots(2), leases.len()), (vec![S, t], vec![], 1));
        leases.start(4, S, start);
        leases.start(4, t, start);
        leases.remove(4, S);
        assert_eq!(leases.slots(4), [t]);
        leases.remove(4, t);
        assert_eq!((leases.slots(4), leases.len()), (vec![], 1));
        leases.keep(2, t);
        leases.keep(2, S);
        leases.keep(3, S);
        assert_eq!(leases.expired(start + LEASE), vec![]);
        assert_eq!(leases.expired(start + LEASE * 2), vec![(S, 1), (t, 1)]);
        assert_eq!((leases.kept(2), leases.kept(3)), (vec![S, t], vec![S]));
        leases.forget(2);
        assert_eq!((leases.kept(2), leases.kept(3)), (vec![], vec![S]));
    }
}
