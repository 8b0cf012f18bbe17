//! Names of directories that mounts keep for a while without asking (decision 20). With its
//! acknowledgement of an invalidation a shard tells the coordinator how long somebody may keep one
//! of the names yet. If anybody may, the coordinator gives the change up, has new leases on them
//! barred, and makes the change again when those that there are are over.

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
    /// None is given until then.
    barred: Time,
}

impl NameLeases {
    /// Of a shard that begins to serve now.
    pub fn new(now: Time) -> NameLeases {
        NameLeases { names: HashMap::new(), forgotten: now + NAME_LEASE, sweep: now }
    }

    /// Mounts may keep a name. False: they may not.
    pub fn give(&mut self, pid: InodeId, name: &Bytes, now: Time) -> bool {
        let key = EntryKey { pid, name: name.clone() };
        let Some(lease) = self.lease(key, now) else { return false };
        if now < lease.barred {
            return false;
        }
        lease.until = now + NAME_LEASE;
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
        let none = Lease { until: Time::ZERO, barred: Time::ZERO };
        Some(self.names.entry(own).or_insert(none))
    }

    /// How long from now somebody may keep one of the names.
    pub fn left(&self, names: &[EntryKey], now: Time) -> Duration {
        let given = names.iter().filter_map(|key| self.names.get(key));
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
    fn a_lease_counts_until_it_is_over() {
        let mut leases = begun();
        assert!(leases.give(1, &key(b"a").name, S));
        let later = S + NAME_LEASE / 4;
        assert_eq!(leases.left(&[key(b"b"), key(b"a")], later), NAME_LEASE * 3 / 4);
        assert_eq!(leases.left(&[key(b"b")], later), Duration::ZERO);
        assert!(leases.give(1, &key(b"a").name, later));
        assert_eq!(leases.left(&[key(b"a")], later), NAME_LEASE);
        assert_eq!(leases.left(&[key(b"a")], later + NAME_LEASE), Duration::ZERO);
    }

    #[test]
    fn what_was_given_before_a_restart_counts() {
        let leases = NameLeases::new(S);
        assert_eq!(leases.left(&[key(b"a")], S), NAME_LEASE);
        assert_eq!(leases.left(&[], S + NAME_LEASE), Duration::ZERO);
    }

    #[test]
    fn what_is_to_change_is_not_lent() {
        let mut leases = begun();
        assert!(leases.give(1, &key(b"a").name, S));
        leases.bar(&[key(b"a"), key(b"b")], S);
        assert_eq!(leases.left(&[key(b"a"), key(b"b")], S), NAME_LEASE);
        for (at, given) in [(S + NAME_LEASE, false), (S + BAR, true)] {
            for name in [b"a", b"b"] {
                assert_eq!(leases.give(1, &key(name).name, at), given);
            }
        }
    }

    #[test]
    fn there_is_room_for_so_many_and_leases_that_are_over_make_room() {
        let mut leases = begun();
        let name = |i: usize| Bytes::from(i.to_string());
        assert!((0..NAMES_MAX).all(|i| leases.give(1, &name(i), S)));
        assert!(!leases.give(2, &name(0), S));
        assert!(leases.give(1, &name(0), S), "it is there");
        assert!(leases.give(2, &name(0), S + NAME_LEASE));
    }
}
