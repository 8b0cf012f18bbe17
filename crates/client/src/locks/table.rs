//! The locks that this client holds, as far as it knows.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saker_runtime::rand;
use saker_runtime::time::Time;
use saker_types::{InodeId, ShardNo, limits};

/// A lock that this client has: file, flock(2) or not, owner.
pub(crate) type Holding = (InodeId, bool, u64);

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was asked for, as the request of this number; the answer is not here.
    Asked(u64),
    /// It was granted, as the grant of this number.
    Held(u64),
    /// It was held, and the shard is being told, by the request of this number, that some or all of it
    /// ends. A shard that knows of none has not lost it.
    Ending(u64),
    /// It should have ended, but the shard could not be told.
    Leaving,
}

/// The locks that this client holds.
#[derive(Default)]
pub(crate) struct Locks(Mutex<State>);

#[derive(Default)]
struct State {
    /// This client as shards know it; 0: it has not locked anything yet.
    holder: u64,
    held: BTreeMap<Holding, Standing>,
    /// Until when each shard keeps what is held there, at least, by [`saker_runtime::time::awake_or_not`].
    leases: BTreeMap<ShardNo, Time>,
    /// Requests and grants so far.
    numbers: u64,
    /// The thread that renews them runs.
    renewed: bool,
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn holder(&self) -> u64 {
        let mut state = self.lock();
        if state.holder == 0 {
            state.holder = rand::u64().max(1);
        }
        state.holder
    }

    /// A lock is about to be asked for: it may be granted and the answer lost. What stands now, and
    /// what stood before.
    pub(super) fn ask(&self, holding: Holding) -> (Standing, Option<Standing>) {
        let mut state = self.lock();
        state.numbers += 1;
        let asked = Standing::Asked(state.numbers);
        (asked, state.held.insert(holding, asked))
    }

    pub(super) fn granted(&self, holding: Holding) {
        let mut state = self.lock();
        state.numbers += 1;
        let standing = Standing::Held(state.numbers);
        state.held.insert(holding, standing);
    }

    /// It was not granted. Another thread of the same owner may have asked since, and got it.
    pub(super) fn refused(&self, holding: Holding, asked: Standing, before: Option<Standing>) {
        let mut state = self.lock();
        if state.held.get(&holding) == Some(&asked) {
            match before {
                Some(standing) => state.held.insert(holding, standing),
                None => state.held.remove(&holding),
            };
        }
    }

    /// Some or all of it is about to end. What stands now, and what stood before.
    pub(super) fn ending(&self, holding: Holding) -> Option<[Standing; 2]> {
        let mut state = self.lock();
        let number = state.numbers + 1;
        let standing = state.held.get_mut(&holding)?;
        let before = std::mem::replace(standing, Standing::Ending(number));
        state.numbers = number;
        Some([Standing::Ending(number), before])
    }

    /// The shard has answered that, or has not. Another thread of the same owner may have asked since.
    pub(super) fn ended(
        &self,
        holding: Holding,
        [ending, before]: [Standing; 2],
        holds: Option<bool>,
    ) {
        let mut state = self.lock();
        if state.held.get(&holding) != Some(&ending) {
            return;
        }
        state.numbers += 1;
        let standing = match holds {
            Some(false) => None,
            Some(true) => Some(Standing::Held(state.numbers)),
            None if before == Standing::Leaving => Some(before),
            // Whether it is held is not known any more.
            None => Some(Standing::Asked(state.numbers)),
        };
        match standing {
            Some(standing) => state.held.insert(holding, standing),
            None => state.held.remove(&holding),
        };
    }

    pub(super) fn leaves(&self, holding: Holding) {
        self.lock().held.insert(holding, Standing::Leaving);
    }

    pub(super) fn holds(&self, holding: &Holding) -> bool {
        self.lock().held.contains_key(holding)
    }

    /// Is a lock held on this file?
    pub(super) fn holds_any(&self, id: InodeId) -> bool {
        let state = self.lock();
        let mut of_file = state.held.range((id, false, 0)..=(id, true, u64::MAX));
        of_file.any(|(_, standing)| matches!(standing, Standing::Held(_) | Standing::Ending(_)))
    }

    /// The shard has answered what it was asked at `asked`: it keeps all that it knows for a lease.
    pub(super) fn heard(&self, shard: ShardNo, asked: Time) {
        let until = asked + Duration::from_nanos(limits::LOCK_LEASE_NS);
        let mut state = self.lock();
        let known = state.leases.entry(shard).or_insert(until);
        *known = until.max(*known);
    }

    /// As after a long silence.
    #[cfg(test)]
    pub(crate) fn forget_leases(&self) {
        self.lock().leases.clear();
    }

    /// Until when the shard keeps what is held there.
    pub(super) fn until(&self, shard: ShardNo) -> Time {
        self.lock().leases.get(&shard).copied().unwrap_or(Time::ZERO)
    }

    /// What shards must hold for us.
    pub(super) fn held(&self) -> Vec<(Holding, Standing)> {
        self.lock().held.iter().map(|(holding, standing)| (*holding, *standing)).collect()
    }

    /// Of `held`, those that were held before their shard was asked, and that it does not know (it knows
    /// of locks on `ids`), are lost; `lost` hears of each.
    pub(super) fn compare(
        &self,
        held: &[(Holding, Standing)],
        ids: &[InodeId],
        mut lost: impl FnMut(&Holding),
    ) {
        let mut state = self.lock();
        for (holding, standing) in held {
            let is_lost = matches!(standing, Standing::Held(_)) && !ids.contains(&holding.0);
            // It may have been ended since, and set again.
            if is_lost && state.held.get(holding) == Some(standing) {
                // Known to be lost before it is forgotten that it was held: who asks between gets no yes.
                lost(holding);
                state.held.remove(holding);
            }
        }
    }

    /// Starts what renews them, at the first one.
    pub(super) fn renew_from_now_on(
        &self,
        start: impl FnOnce() -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut state = self.lock();
        if !state.renewed {
            start()?;
            state.renewed = true;
        }
        Ok(())
    }

    /// All have ended. What is still on its way for this client as it was ends with its lease.
    pub(super) fn forget(&self) {
        let mut state = self.lock();
        state.held.clear();
        state.holder = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_forgets_nothing_that_another_thread_got_meanwhile() {
        let (locks, holding) = (Locks::default(), (1, false, 7));
        let (first, before) = locks.ask(holding);
        locks.ask(holding);
        locks.granted(holding);
        locks.refused(holding, first, before);
        assert!(locks.holds(&holding));
        let (again, before) = locks.ask(holding);
        locks.refused(holding, again, before);
        assert!(locks.holds(&holding), "as before");
        let other = (2, true, 7);
        assert_eq!(locks.ending(other), None, "nothing is held");
        let (asked, before) = locks.ask(other);
        locks.refused(other, asked, before);
        assert!(!locks.holds(&other));
    }

    #[test]
    fn what_ends_is_not_lost() {
        let (locks, holding) = (Locks::default(), (1, false, 7));
        let standing = || locks.lock().held.get(&holding).copied();
        for (holds, after) in [
            (Some(false), None),
            (Some(true), Some(Standing::Held(3))),
            // It may have ended, and is not missed.
            (None, Some(Standing::Asked(3))),
        ] {
            locks.lock().numbers = 0;
            locks.granted(holding);
            let ending = locks.ending(holding).unwrap();
            assert_eq!(standing(), Some(Standing::Ending(2)));
            assert!(locks.holds_any(1), "some of it may stay");
            locks.ended(holding, ending, holds);
            assert_eq!(standing(), after);
        }
        // Told late, by another thread of the same owner.
        locks.granted(holding);
        let ending = locks.ending(holding).unwrap();
        locks.granted(holding);
        let held = standing();
        locks.ended(holding, ending, Some(false));
        assert_eq!(standing(), held);
    }

    #[test]
    fn only_what_was_held_and_is_not_known_is_lost() {
        let (locks, lost) = (Locks::default(), std::cell::RefCell::new(Vec::new()));
        let compare = |held: &[(Holding, Standing)], ids: &[InodeId]| {
            locks.compare(held, ids, |holding| lost.borrow_mut().push(holding.0));
            lost.take()
        };
        let holdings = [1, 2, 3, 4].map(|id| (id, false, 7));
        holdings.iter().for_each(|holding| locks.granted(*holding));
        locks.ending(holdings[2]);
        let held = locks.held();
        // Meanwhile one is set again.
        locks.granted(holdings[3]);
        assert_eq!(compare(&held, &[1]), [2], "the others are known, end, or are newer");
        assert!(!locks.holds(&holdings[1]) && locks.holds(&holdings[3]));
        assert_eq!(compare(&locks.held(), &[]), [1, 4]);
    }

    #[test]
    fn a_shard_keeps_them_for_a_lease_from_when_it_was_asked() {
        let (locks, asked) = (Locks::default(), Time::from_ns(100));
        assert_eq!(locks.until(3), Time::ZERO);
        locks.heard(3, asked);
        locks.heard(3, Time::ZERO);
        assert_eq!(locks.until(3), asked + Duration::from_nanos(limits::LOCK_LEASE_NS));
        locks.forget_leases();
        assert_eq!(locks.until(3), Time::ZERO);
    }

    #[test]
    fn a_client_that_has_ended_all_is_another_one() {
        let locks = Locks::default();
        let holder = locks.holder();
        assert_eq!(locks.holder(), holder);
        locks.granted((1, false, 7));
        locks.forget();
        assert!(!locks.holds_any(1) && locks.holder() != holder);
        let fails = || Err(std::io::ErrorKind::OutOfMemory.into());
        assert!(locks.renew_from_now_on(fails).is_err());
        assert!(locks.renew_from_now_on(|| Ok(())).is_ok());
        assert!(locks.renew_from_now_on(fails).is_ok(), "once");
    }
}
