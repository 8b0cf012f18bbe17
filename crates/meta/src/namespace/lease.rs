//! Names of directories that mounts keep for a while without asking (decision 20). With its
//! acknowledgement of an invalidation a shard tells the coordinator how long somebody may keep one
//! of the names yet. If anybody may, the coordinator gives the change up, has new leases on them
//! barred, and makes the change again when those that there are are over.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::time::Time;
use saker_types::InodeId;
use saker_types::limits::{
    NAME_CONTENDED, NAME_KEEP, NAME_KEEP_MARGIN, NAME_KEEP_MAX, NAME_LEASE_MAX,
};
use saker_types::wire::EntryKey;

/// Names under lease at a time; more are not given. Mounts ask for names that they use all the time.
const NAMES_MAX: usize = 65_536;

/// How long none is given on names that are to change: until those that are there are over, and the
/// change has been made.
const BAR: Duration = NAME_LEASE_MAX.saturating_mul(2);

/// The leases of one shard, in memory: those that it may have given before it began are over soon.
pub struct NameLeases {
    /// Users choose names, so that nobody may know how they are hashed.
    names: HashMap<EntryKey, Lease>,
    /// What was given before may count until then.
    forgotten: Time,
    /// When those that are over are dropped.
    sweep: Time,
    /// Until then no name may be kept for longer than `NAME_KEEP`: somebody had to wait for one that was.
    short: Time,
}

struct Lease {
    until: Time,
    /// None is given until then.
    barred: Time,
}

impl NameLeases {
    /// Of a shard that begins to serve now.
    pub fn new(now: Time) -> NameLeases {
        let forgotten = now + NAME_LEASE_MAX;
        NameLeases { names: HashMap::new(), forgotten, sweep: now, short: Time::ZERO }
    }

    /// A mount wants to keep a name for `keep` after it asked, which was before now. For how long it may,
    /// if it may.
    pub fn give(
        &mut self,
        pid: InodeId,
        name: &Bytes,
        keep: Duration,
        now: Time,
    ) -> Option<Duration> {
        if keep > NAME_KEEP_MAX {
            return None;
        }
        let keep = if now < self.short { keep.min(NAME_KEEP) } else { keep };
        let key = EntryKey { pid, name: name.clone() };
        if now >= self.sweep {
            self.names.retain(|_, lease| lease.until.max(lease.barred) > now);
            self.sweep = now + NAME_LEASE_MAX;
        }
        if self.names.len() >= NAMES_MAX && !self.names.contains_key(&key) {
            return None;
        }
        let lease = self.lease(key);
        if now < lease.barred {
            return None;
        }
        lease.until = lease.until.max(now + keep + NAME_KEEP_MARGIN);
        Some(keep)
    }

    /// From now on and for a while nobody may keep these names anew: a change of them waits so long.
    pub fn bar(&mut self, names: &[EntryKey], waits: Duration, now: Time) {
        // A lease may have been renewed since the coordinator heard for how long.
        if waits.max(self.left(names, now)) > NAME_KEEP + NAME_KEEP_MARGIN {
            self.short = now + NAME_CONTENDED;
        }
        for key in names {
            self.lease(key.clone()).barred = now + BAR;
        }
    }

    /// The name's place in the table.
    fn lease(&mut self, key: EntryKey) -> &mut Lease {
        // A name of its own: this one is part of a whole frame.
        let own = EntryKey { name: Bytes::copy_from_slice(&key.name), ..key };
        let none = Lease { until: Time::ZERO, barred: Time::ZERO };
        self.names.entry(own).or_insert(none)
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

    const S: Time = Time::from_ns(2_000_000_000);

    fn key(name: &'static [u8]) -> EntryKey {
        EntryKey { pid: 1, name: Bytes::from_static(name) }
    }

    fn begun() -> NameLeases {
        NameLeases::new(Time::ZERO)
    }

    /// For as long as may be.
    fn give(leases: &mut NameLeases, key: EntryKey, now: Time) -> bool {
        leases.give(key.pid, &key.name, NAME_KEEP_MAX, now).is_some()
    }

    #[test]
    fn a_lease_counts_until_it_is_over() {
        let mut leases = begun();
        assert!(give(&mut leases, key(b"a"), S));
        let later = S + NAME_LEASE_MAX / 4;
        assert_eq!(leases.left(&[key(b"b"), key(b"a")], later), NAME_LEASE_MAX * 3 / 4);
        assert_eq!(leases.left(&[key(b"b")], later), Duration::ZERO);
        assert!(give(&mut leases, key(b"a"), later));
        assert_eq!(leases.left(&[key(b"a")], later), NAME_LEASE_MAX);
        assert_eq!(leases.left(&[key(b"a")], later + NAME_LEASE_MAX), Duration::ZERO);
    }

    #[test]
    fn a_lease_is_as_long_as_was_asked_for() {
        let mut leases = begun();
        let short = NAME_KEEP + NAME_KEEP_MARGIN;
        assert_eq!(leases.give(1, &key(b"a").name, NAME_KEEP, S), Some(NAME_KEEP));
        assert_eq!(leases.left(&[key(b"a")], S), short);
        // Another mount's does not end with it.
        assert!(give(&mut leases, key(b"b"), S));
        assert!(leases.give(1, &key(b"b").name, NAME_KEEP, S).is_some());
        assert_eq!(leases.left(&[key(b"b")], S + short), NAME_LEASE_MAX - short);
        let too_long = NAME_KEEP_MAX + Duration::from_millis(1);
        assert!(leases.give(1, &key(b"c").name, too_long, S).is_none());
    }

    #[test]
    fn what_was_given_before_a_restart_counts() {
        let leases = NameLeases::new(S);
        assert_eq!(leases.left(&[key(b"a")], S), NAME_LEASE_MAX);
        assert_eq!(leases.left(&[], S + NAME_LEASE_MAX), Duration::ZERO);
    }

    #[test]
    fn what_is_to_change_is_not_lent() {
        let mut leases = begun();
        assert!(give(&mut leases, key(b"a"), S));
        leases.bar(&[key(b"a"), key(b"b")], NAME_LEASE_MAX, S);
        assert_eq!(leases.left(&[key(b"a"), key(b"b")], S), NAME_LEASE_MAX);
        for (at, given) in [(S + NAME_LEASE_MAX, false), (S + BAR, true)] {
            for name in [b"a", b"b"] {
                assert_eq!(give(&mut leases, key(name), at), given);
            }
        }
    }

    #[test]
    fn who_has_waited_for_long_need_not_again_so_soon() {
        let given = |waits, later| {
            let mut leases = begun();
            leases.bar(&[key(b"a")], waits, S);
            leases.give(1, &key(b"b").name, NAME_KEEP_MAX, S + later)
        };
        let short = NAME_KEEP + NAME_KEEP_MARGIN;
        assert_eq!(given(short, Duration::ZERO), Some(NAME_KEEP_MAX));
        assert_eq!(given(short + NAME_KEEP, Duration::ZERO), Some(NAME_KEEP));
        let last = NAME_CONTENDED - Duration::from_nanos(1);
        assert_eq!(given(short + NAME_KEEP, last), Some(NAME_KEEP));
        assert_eq!(given(short + NAME_KEEP, NAME_CONTENDED), Some(NAME_KEEP_MAX));
        let mut leases = begun();
        leases.bar(&[key(b"a")], NAME_LEASE_MAX, S);
        leases.give(1, &key(b"b").name, NAME_KEEP_MAX, S);
        assert_eq!(leases.left(&[key(b"b")], S), short, "and nobody waits for more than was given");
        // It was renewed, for longer, after the coordinator had heard.
        let mut leases = begun();
        assert!(give(&mut leases, key(b"a"), S));
        leases.bar(&[key(b"a")], short, S);
        assert_eq!(leases.give(1, &key(b"b").name, NAME_KEEP_MAX, S), Some(NAME_KEEP));
    }

    #[test]
    fn there_is_room_for_so_many_and_leases_that_are_over_make_room() {
        let mut leases = begun();
        let key = |pid, i: usize| EntryKey { pid, name: Bytes::from(i.to_string()) };
        assert!((0..NAMES_MAX).all(|i| give(&mut leases, key(1, i), S)));
        assert!(!give(&mut leases, key(2, 0), S));
        assert!(give(&mut leases, key(1, 0), S), "it is there");
        // A bar finds room, and others that are over do not make it void.
        leases.bar(&[key(3, 0)], NAME_LEASE_MAX, S + NAME_LEASE_MAX / 2);
        assert!(give(&mut leases, key(2, 0), S + NAME_LEASE_MAX));
        assert!(!give(&mut leases, key(3, 0), S + NAME_LEASE_MAX));
    }
}
