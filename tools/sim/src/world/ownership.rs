//! Who serves a slot (protocols.md, rule 24): of each name, the intervals in which different shards
//! serve it, reads too, never overlap.
//!
//! [`Ownership`] is told when a shard takes a slot by a version of the map and gives it up, and what
//! was served by whom. A slot that nobody has moved is served by whom the first map says. Today none
//! is moved.

use std::collections::BTreeMap;
use std::sync::Arc;

use saker_runtime::time::Time;
use saker_types::placement::Slot;
use saker_types::{ClusterMap, ShardNo};

/// A shard serves a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    shard: ShardNo,
    /// Of the map that gives it the slot.
    version: u64,
    from: Time,
    /// `None`: it still does.
    until: Option<Time>,
}

/// Of all slots.
pub struct Ownership {
    first: Arc<ClusterMap>,
    /// Of slots that were moved, in the order in which they were taken.
    moved: BTreeMap<Slot, Vec<Interval>>,
}

impl Ownership {
    /// As the cluster's first map has it.
    pub fn new(first: Arc<ClusterMap>) -> Ownership {
        Ownership { first, moved: BTreeMap::new() }
    }

    fn first(&self, slot: Slot) -> Interval {
        let shard = self.first.shard_of_slot(slot);
        Interval { shard, version: self.first.version, from: Time::ZERO, until: None }
    }

    /// A shard begins to serve a slot, which this version of the map gives it.
    ///
    /// # Errors
    /// If another one may still serve it, or has it by a version that is not older.
    pub fn takes(
        &mut self,
        shard: ShardNo,
        slot: Slot,
        version: u64,
        now: Time,
    ) -> Result<(), String> {
        let first = self.first(slot);
        let known = self.moved.entry(slot).or_insert_with(|| vec![first]);
        if let Some(last) = known.last() {
            if last.until.is_none() {
                return Err(format!(
                    "shard {shard} takes slot {} by map {version}: {last:?}",
                    slot.0
                ));
            }
            if last.version >= version {
                return Err(format!("shard {shard} takes slot {} by an old map: {last:?}", slot.0));
            }
        }
        known.push(Interval { shard, version, from: now, until: None });
        Ok(())
    }

    /// A shard serves a slot no more, whatever happens to it.
    ///
    /// # Errors
    /// If it did not serve it.
    pub fn gives_up(&mut self, shard: ShardNo, slot: Slot, now: Time) -> Result<(), String> {
        let first = self.first(slot);
        let known = self.moved.entry(slot).or_insert_with(|| vec![first]);
        match known.last_mut().filter(|last| last.shard == shard && last.until.is_none()) {
            Some(last) => last.until = Some(now),
            None => return Err(format!("shard {shard} gives up slot {}, not its own", slot.0)),
        }
        Ok(())
    }

    /// A shard has executed a request about a name of a slot: a read, or a change.
    ///
    /// # Errors
    /// If it does not serve the slot then.
    pub fn serves(&self, shard: ShardNo, slot: Slot, now: Time) -> Result<(), String> {
        let first = [self.first(slot)];
        let known = self.moved.get(&slot).map_or(&first[..], Vec::as_slice);
        let covers = |interval: &&Interval| {
            interval.from <= now && interval.until.is_none_or(|until| now < until)
        };
        match known.iter().find(covers) {
            Some(interval) if interval.shard == shard => Ok(()),
            other => Err(format!("shard {shard} serves slot {} at {now:?}: {other:?}", slot.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::roles;

    fn at(n: u64) -> Time {
        Time::from_ns(n)
    }

    /// Slot 0 is shard 0's, slot 1 is shard 1's.
    fn ownership() -> Ownership {
        Ownership::new(Arc::new(roles::first_map(&roles::members(2, 1, 1, 4096))))
    }

    #[test]
    fn a_slot_that_moves_is_served_by_one_shard_at_a_time() {
        let mut o = ownership();
        o.serves(0, Slot(0), at(10)).unwrap();
        o.gives_up(0, Slot(0), at(20)).unwrap();
        o.takes(1, Slot(0), 2, at(30)).unwrap();
        o.serves(1, Slot(0), at(30)).unwrap();
        // What is told late counts for when it was.
        o.serves(0, Slot(0), at(19)).unwrap();
        // And back.
        o.gives_up(1, Slot(0), at(40)).unwrap();
        o.takes(0, Slot(0), 3, at(40)).unwrap();
        o.serves(0, Slot(0), at(41)).unwrap();
        o.serves(1, Slot(1), at(41)).unwrap();
    }

    #[test]
    fn who_has_given_up_serves_no_more_reads() {
        let mut o = ownership();
        o.gives_up(0, Slot(0), at(20)).unwrap();
        assert!(o.serves(0, Slot(0), at(20)).is_err(), "nobody does");
        o.takes(1, Slot(0), 2, at(30)).unwrap();
        assert!(o.serves(0, Slot(0), at(31)).is_err(), "a read from a shard that does not know");
        assert!(o.serves(1, Slot(0), at(29)).is_err(), "before it has the slot");
    }

    #[test]
    fn a_slot_is_not_taken_from_whom_may_serve_it() {
        let mut o = ownership();
        assert!(o.takes(1, Slot(0), 2, at(5)).is_err(), "still the other's");
        assert!(o.gives_up(1, Slot(0), at(5)).is_err());
        o.gives_up(0, Slot(0), at(6)).unwrap();
        assert!(o.takes(1, Slot(0), 1, at(7)).is_err(), "by the map that gives it to the other");
        o.takes(1, Slot(0), 2, at(7)).unwrap();
        assert!(o.takes(0, Slot(0), 3, at(8)).is_err());
    }

    #[test]
    fn a_shard_serves_its_own_slots() {
        let o = ownership();
        assert!(o.serves(1, Slot(0), at(1)).is_err());
        assert!(o.serves(2, Slot(1), at(1)).is_err(), "one that came later and owns nothing");
    }
}
