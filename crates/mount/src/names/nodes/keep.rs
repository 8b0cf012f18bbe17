//! How long the kernel may keep the name of a directory without asking: while the mount has a lease on
//! it (decisions 20, 23, 28 and 29). A lease makes others wait who change the directory, so only names are worth
//! one that have been in use for a while, or below which this mount changes nothing; those it may have for longer.

use std::time::Duration;

use saker_runtime::time::Time;
use saker_types::limits::{NAME_KEEP, NAME_KEEP_MARGIN, NAME_KEEP_MAX};

use crate::options::Leases;

/// Times that the kernel asks for a name within `NAME_KEEP` if that is in use.
const OFTEN: u32 = 8;
/// So many times `NAME_KEEP` a name has been in use without a break before it is worth a lease: longer
/// than a change of the directory then has to wait.
const WARM: u32 = 5;
/// Nobody changes a directory who has not changed anything below it for so long.
const QUIET: Duration = Duration::from_secs(1);
/// Times that the kernel asks for a name within `QUIET` if that is in use, where nothing is changed.
const OFTEN_QUIET: u32 = 3;

/// One name's.
#[derive(Default)]
pub(super) struct Keep {
    /// The kernel may keep it until then.
    pub(super) until: Time,
    /// Times that it was asked for since.
    asked: u32,
    since: Time,
    /// Times that it was asked for since, in `QUIET` at most.
    asked_lately: u32,
    lately: Time,
    /// Periods of `NAME_KEEP` before that in which it was asked for often.
    busy: u32,
    /// When something below was last changed here.
    changed: Time,
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
            // While the kernel keeps a name it does not ask.
            if busy || !self.was_kept(now) {
                self.busy = if busy { self.busy.saturating_add(1) } else { 0 };
            }
            (self.asked, self.since) = (0, now);
        }
        self.asked = self.asked.saturating_add(1);
        if now.since(self.lately) > QUIET {
            (self.asked_lately, self.lately) = (0, now);
        }
        self.asked_lately = self.asked_lately.saturating_add(1);
    }

    /// Something below is changed. Whether that was to be noted: it was not a moment ago.
    pub(super) fn change(&mut self, now: Time) -> bool {
        let new = now.since(self.changed) >= NAME_KEEP;
        if new {
            self.changed = now;
        }
        new
    }

    /// It is worth a lease. `eager`: also if it was not in use for long, but is only read below.
    pub(super) fn is_hot(&self, now: Time, leases: Leases, eager: bool) -> bool {
        match leases {
            Leases::Hot => {
                let kept = self.was_kept_within(now, QUIET);
                let lately = self.asked_lately >= OFTEN_QUIET && now.since(self.lately) <= QUIET;
                self.is_in_use(now) || self.is_quiet(now, eager) && (kept || lately)
            }
            Leases::All => self.asked > 0,
            Leases::Off => false,
        }
    }

    /// For how long it should be kept.
    pub(super) fn wanted(&self, now: Time, eager: bool) -> Duration {
        if self.is_quiet(now, eager) { NAME_KEEP_MAX } else { NAME_KEEP }
    }

    /// Nothing is changed below.
    fn is_quiet(&self, now: Time, eager: bool) -> bool {
        eager && now.since(self.changed) >= QUIET
    }

    /// A lease should be asked for again.
    pub(super) fn ends_soon(&self, now: Time) -> bool {
        self.until <= now + NAME_KEEP / 2 && now.since(self.tried) >= NAME_KEEP / 4
    }

    /// For how long from now the kernel may keep it.
    pub(super) fn left(&self, now: Time) -> Duration {
        self.until.since(now)
    }

    /// It was in use for a while, and is.
    fn is_in_use(&self, now: Time) -> bool {
        self.busy >= WARM && (now.since(self.since) <= NAME_KEEP || self.was_kept(now))
    }

    /// A change of the directory has to wait, and would not if it were kept only for being in use, or not for
    /// so long.
    pub(super) fn is_contended(&self, now: Time) -> bool {
        let long = self.left(now) > NAME_KEEP;
        self.was_kept_within(now, NAME_KEEP_MARGIN) && (long || !self.is_in_use(now))
    }

    /// The kernel may keep the name, or could a moment ago.
    fn was_kept(&self, now: Time) -> bool {
        self.was_kept_within(now, NAME_KEEP)
    }

    /// The same, a while ago at most.
    fn was_kept_within(&self, now: Time, a_while: Duration) -> bool {
        self.until > Time::ZERO && self.until + a_while > now
    }

    /// The node has this name no more.
    pub(super) fn end(&mut self) {
        let (version, changed) = (self.version.wrapping_add(1), self.changed);
        *self = Keep { version, changed, ..Keep::default() };
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
        assert!(!keep.is_hot(now, Leases::Hot, false), "not long enough");
        let now = used(&mut keep, now, 5 * MS, NAME_KEEP * 3);
        assert!(keep.is_hot(now, Leases::Hot, false) && !keep.is_hot(now, Leases::Off, true));
        // While it is kept the kernel does not ask.
        keep.until = now + NAME_KEEP;
        let later = now + NAME_KEEP + NAME_KEEP / 2;
        keep.ask(later);
        assert!(keep.is_hot(later, Leases::Hot, false));
        // It was left alone for a while.
        let later = now + NAME_KEEP * 9;
        keep.ask(later);
        assert!(!keep.is_hot(later, Leases::Hot, false) && keep.is_hot(later, Leases::All, false));
        let mut seldom = Keep::default();
        let now = used(&mut seldom, start, 30 * MS, NAME_KEEP * 20);
        assert!(!seldom.is_hot(now, Leases::Hot, false));
    }

    #[test]
    fn a_name_below_which_nothing_is_changed_is_worth_a_lease_soon() {
        const MS: Duration = Duration::from_millis(1);
        let mut now = Time::from_ns(1 << 40);
        let mut keep = Keep::default();
        let hot = |keep: &Keep, now| keep.is_hot(now, Leases::Hot, true);
        now = used(&mut keep, now, 30 * MS, 30 * MS * (OFTEN_QUIET - 1));
        assert!(!hot(&keep, now), "not often");
        now = used(&mut keep, now, 30 * MS, 30 * MS);
        assert!(hot(&keep, now) && !keep.is_hot(now, Leases::Hot, false));
        assert_eq!(keep.wanted(now, true), NAME_KEEP_MAX);
        assert!(!keep.is_contended(now));
        // Kept, and renewed at once when the kernel comes back.
        keep.until = now + NAME_KEEP;
        now = keep.until + NAME_KEEP / 2;
        keep.ask(now);
        assert!(hot(&keep, now) && keep.is_contended(now));
        assert!(!keep.is_contended(keep.until + NAME_KEEP_MARGIN), "nobody has to wait");
        // Now something is made in it.
        assert!(keep.change(now) && !keep.change(now + MS) && !hot(&keep, now + MS));
        now = used(&mut keep, now, 30 * MS, QUIET - NAME_KEEP);
        assert!(!hot(&keep, now));
        now = used(&mut keep, now, 30 * MS, QUIET);
        assert!(hot(&keep, now), "that is long ago");
        now = used(&mut keep, now, NAME_KEEP * 4, NAME_KEEP * 40);
        assert!(!hot(&keep, now), "too seldom");
        keep.change(now);
        keep.end();
        now = used(&mut keep, now, MS, MS * OFTEN);
        assert!(!hot(&keep, now), "another name does not make it older");
    }

    #[test]
    fn a_name_is_kept_for_longer_where_nothing_is_changed() {
        const MS: Duration = Duration::from_millis(1);
        let mut keep = Keep::default();
        let start = Time::from_ns(1 << 40);
        let mut now = used(&mut keep, start, 5 * MS, NAME_KEEP * 7);
        assert_eq!(keep.wanted(now, true), NAME_KEEP_MAX);
        assert_eq!(keep.wanted(now, false), NAME_KEEP, "who changes it has waited");
        // While it is kept the kernel does not ask.
        keep.until = now + NAME_KEEP_MAX;
        now = keep.until + QUIET / 2;
        keep.ask(now);
        assert!(keep.is_hot(now, Leases::Hot, true), "asked for soon after");
        now = used(&mut keep, now, 5 * MS, NAME_KEEP * 7);
        // It is in use, but for less it would be kept less long.
        keep.until = now + NAME_KEEP_MAX;
        assert!(keep.is_in_use(now) && keep.is_contended(now));
        keep.until = now + NAME_KEEP;
        assert!(!keep.is_contended(now));
        keep.change(now);
        now = used(&mut keep, now, 5 * MS, QUIET / 2);
        assert_eq!(keep.wanted(now, true), NAME_KEEP, "changed lately");
        now = used(&mut keep, now, 5 * MS, QUIET);
        assert_eq!(keep.wanted(now, true), NAME_KEEP_MAX, "and not so lately");
    }

    #[test]
    fn what_was_kept_for_long_use_stays_kept_while_things_change() {
        const MS: Duration = Duration::from_millis(1);
        let mut keep = Keep::default();
        let mut now = used(&mut keep, Time::from_ns(1 << 40), 5 * MS, NAME_KEEP * 7);
        for _ in 0..10 {
            keep.change(now);
            assert!(keep.is_hot(now, Leases::Hot, true));
            keep.until = now + NAME_KEEP;
            now = keep.until + 5 * MS;
            keep.ask(now);
        }
        keep.change(now);
        now += NAME_KEEP * 3;
        keep.ask(now);
        assert!(!keep.is_hot(now, Leases::Hot, true), "left alone");
    }
}
