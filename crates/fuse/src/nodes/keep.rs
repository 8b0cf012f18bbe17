//! How long the kernel may keep the name of a directory without asking: while the mount has a lease on
//! it (decision 20). A lease makes others wait who change the directory, so only names are worth one
//! that have been in use for a while.

use std::time::Duration;

use saker_runtime::time::Time;
use saker_types::limits::NAME_KEEP;

use crate::options::Leases;

/// Times that the kernel asks for a name within `NAME_KEEP` if that is in use.
const OFTEN: u32 = 8;
/// So many times `NAME_KEEP` a name has been in use without a break before it is worth a lease: longer
/// than a change of the directory then has to wait.
const WARM: u32 = 5;

/// One name's.
#[derive(Default)]
pub(super) struct Keep {
    /// The kernel may keep it until then.
    pub(super) until: Time,
    /// Times that it was asked for since.
    asked: u32,
    since: Time,
    /// Periods of `NAME_KEEP` before that in which it was asked for often.
    busy: u32,
    /// When a lease on it was asked for.
    pub(super) tried: Time,
    /// Counts the names that the node has had: what was said of another one does not count.
    pub(super) version: u32,
}

impl Keep {
    /// The kernel asks for the name.
    pub(super) fn ask(&mut self, now: Time) {
        let passed = now.since(self.since);
        if passed > NAME_KEEP {
            let busy = self.asked >= OFTEN && passed < NAME_KEEP * 2;
            self.busy = if busy { self.busy.saturating_add(1) } else { 0 };
            (self.asked, self.since) = (0, now);
        }
        self.asked = self.asked.saturating_add(1);
    }

    /// It is worth a lease.
    pub(super) fn is_hot(&self, now: Time, leases: Leases) -> bool {
        match leases {
            Leases::Hot => {
                self.busy >= WARM && now.since(self.since) <= NAME_KEEP || self.was_kept(now)
            }
            Leases::All => self.asked > 0,
            Leases::Off => false,
        }
    }

    /// A lease should be asked for again.
    pub(super) fn ends_soon(&self, now: Time) -> bool {
        self.until <= now + NAME_KEEP / 2 && now.since(self.tried) >= NAME_KEEP / 4
    }

    /// For how long from now the kernel may keep it.
    pub(super) fn left(&self, now: Time) -> Duration {
        self.until.since(now)
    }

    /// The kernel may keep the name, or could a moment ago.
    fn was_kept(&self, now: Time) -> bool {
        self.until > Time::ZERO && self.until + NAME_KEEP > now
    }

    /// The node has this name no more.
    pub(super) fn end(&mut self) {
        *self = Keep { version: self.version.wrapping_add(1), ..Keep::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last time that a name is asked for, once each `every` for so long.
    fn used(keep: &mut Keep, from: Time, every: Duration, time: Duration) -> Time {
        let mut now = from;
        while now.since(from) < time {
            now += every;
            keep.ask(now);
        }
        now
    }

    #[test]
    fn a_name_is_worth_a_lease_when_it_was_in_use_for_a_while() {
        const MS: Duration = Duration::from_millis(1);
        let start = Time::from_ns(1 << 40);
        let mut keep = Keep::default();
        let now = used(&mut keep, start, 5 * MS, NAME_KEEP * 4);
        assert!(!keep.is_hot(now, Leases::Hot), "not long enough");
        let now = used(&mut keep, now, 5 * MS, NAME_KEEP * 3);
        assert!(keep.is_hot(now, Leases::Hot) && !keep.is_hot(now, Leases::Off));
        // While it is kept the kernel does not ask.
        keep.until = now + NAME_KEEP;
        let later = now + NAME_KEEP + NAME_KEEP / 2;
        keep.ask(later);
        assert!(keep.is_hot(later, Leases::Hot));
        // It was left alone for a while.
        let later = now + NAME_KEEP * 9;
        keep.ask(later);
        assert!(!keep.is_hot(later, Leases::Hot) && keep.is_hot(later, Leases::All));
        let mut seldom = Keep::default();
        let now = used(&mut seldom, start, 30 * MS, NAME_KEEP * 20);
        assert!(!seldom.is_hot(now, Leases::Hot));
    }
}
