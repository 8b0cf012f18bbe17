//! Names of directories that mounts keep for a while without asking (decision 20). A change of such
//! a directory waits until nobody does: the shard tells the coordinator how long, with its
//! acknowledgement of the invalidation. After that it gives no lease, since whoever walks there
//! waits for the decision.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::time::Time;
use saker_types::InodeId;
use saker_types::limits::NAME_LEASE;
use saker_types::wire::EntryKey;

/// Names under lease at a time; more are not given. Mounts ask for names that they use all the time.
const NAMES_MAX: usize = 65_536;

/// How long none is given on names that are to change: until those that are there are over, and the
/// change has been made.
const BAR: Duration = NAME_LEASE.saturating_mul(4);

/// The leases of one shard, in memory: those that it may have given before it began are over soon.
pub struct NameLeases {
    /// Users choose names, so that nobody may know how they are hashed.
    names: HashMap<EntryKey, Lease>,
    /// What was given before may count until then.
    forgotten: Time,
    /// When those that are over are dropped.
    sweep: Time,
}

struct Lease {
    until: Time,
    /// `None`: several.
    holder: Option<u64>,
    /// None is given until then.
    barred: Time,
}

impl NameLeases {
    /// Of a shard that begins to serve now.
    pub fn new(now: Time) -> NameLeases {
        NameLeases { names: HashMap::new(), forgotten: now + NAME_LEASE, sweep: now }
    }

    /// `holder` may keep a name. False: it may not.
    pub fn give(&mut self, pid: InodeId, name: &Bytes, holder: u64, now: Time) -> bool {
        let key = EntryKey { pid, name: name.clone() };
        let Some(lease) = self.lease(key, now) else { return false };
        if now < lease.barred {
            return false;
        }
        let others = lease.until > now && lease.holder != Some(holder);
        (lease.until, lease.holder) = (now + NAME_LEASE, (!others).then_some(holder));
        true
    }

    /// From now on and for a while nobody may keep these names anew.
    pub fn bar(&mut self, names: &[EntryKey], now: Time) {
        for key in names {
            // Where there is no room for it there is none for a lease.
            if let Some(lease) = self.lease(key.clone(), now) {
                lease.barred = now + BAR;
            }
        }
    }

    /// The name's place in the table; `None`: there is none, and no room.
    fn lease(&mut self, key: EntryKey, now: Time) -> Option<&mut Lease> {
        if now >= self.sweep {
            self.names.retain(|_, lease| lease.until.max(lease.barred) > now);
            self.sweep = now + NAME_LEASE;
        }
        if self.names.len() >= NAMES_MAX && !self.names.contains_key(&key) {
            return None;
        }
        // A name of its own: this one is part of a whole frame.
        let own = EntryKey { name: Bytes::copy_from_slice(&key.name), ..key };
        let none = Lease { until: Time::ZERO, holder: None, barred: Time::ZERO };
        Some(self.names.entry(own).or_insert(none))
    }

    /// How long from now somebody but `except` (0: anybody) may keep one of the names.
    pub fn left(&self, names: &[EntryKey], except: u64, now: Time) -> Duration {
        let mine = |lease: &&Lease| except == 0 || lease.holder != Some(except);
        let given = names.iter().filter_map(|key| self.names.get(key)).filter(mine);
        given.map(|lease| lease.until).fold(self.forgotten, Time::max).since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Time = Time::from_ns(1_000_000_000);

    fn key(name: &'static [u8]) -> EntryKey {
        EntryKey { pid: 1, name: Bytes::from_static(name) }
    }

    fn begun() -> NameLeases {
        NameLeases::new(Time::ZERO)
    }

    #[test]
    fn a_lease_counts_for_others_until_it_is_over() {
        let mut leases = begun();
        assert!(leases.give(1, &key(b"a").name, 7, S));
        let later = S + NAME_LEASE / 4;
        assert_eq!(leases.left(&[key(b"b"), key(b"a")], 0, later), NAME_LEASE * 3 / 4);
        assert_eq!(leases.left(&[key(b"a")], 8, later), NAME_LEASE * 3 / 4);
        assert_eq!(leases.left(&[key(b"a")], 7, later), Duration::ZERO);
        assert_eq!(leases.left(&[key(b"b")], 0, later), Duration::ZERO);
        assert_eq!(leases.left(&[key(b"a")], 0, S + NAME_LEASE), Duration::ZERO);
    }

    #[test]
    fn of_two_holders_neither_is_alone() {
        let mut leases = begun();
        leases.give(1, &key(b"a").name, 7, S);
        leases.give(1, &key(b"a").name, 8, S + NAME_LEASE / 2);
        leases.give(1, &key(b"a").name, 8, S + NAME_LEASE / 2);
        for except in [0, 7, 8] {
            assert_eq!(leases.left(&[key(b"a")], except, S + NAME_LEASE), NAME_LEASE / 2);
        }
        let after = S + NAME_LEASE * 2;
        leases.give(1, &key(b"a").name, 8, after);
        assert_eq!(leases.left(&[key(b"a")], 8, after), Duration::ZERO, "7 has none any more");
    }

    #[test]
    fn what_was_given_before_a_restart_counts() {
        let leases = NameLeases::new(S);
        assert_eq!(leases.left(&[key(b"a")], 7, S), NAME_LEASE);
        assert_eq!(leases.left(&[], 0, S + NAME_LEASE), Duration::ZERO);
    }

    #[test]
    fn what_is_to_change_is_not_lent() {
        let mut leases = begun();
        assert!(leases.give(1, &key(b"a").name, 7, S));
        leases.bar(&[key(b"a"), key(b"b")], S);
        assert_eq!(leases.left(&[key(b"a"), key(b"b")], 0, S), NAME_LEASE);
        for (at, given) in [(S + NAME_LEASE, false), (S + BAR, true)] {
            for name in [b"a", b"b"] {
                assert_eq!(leases.give(1, &key(name).name, 7, at), given);
            }
        }
    }

    #[test]
    fn there_is_room_for_so_many_and_leases_that_are_over_make_room() {
        let mut leases = begun();
        let name = |i: usize| Bytes::from(i.to_string());
        assert!((0..NAMES_MAX).all(|i| leases.give(1, &name(i), 7, S)));
        assert!(!leases.give(2, &name(0), 7, S));
        assert!(leases.give(1, &name(0), 7, S), "it is there");
        assert!(leases.give(2, &name(0), 7, S + NAME_LEASE));
    }
}
