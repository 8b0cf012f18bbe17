//! Files with chunks that somebody may have open: clients open without leaving a mark, but whoever has
//! a file open has opened it here, has renewed it here, or it has come from another shard, within the
//! last [`LEASE_NS`]. Of what is not here nobody does, and its space need not wait when its last name
//! goes.

use std::time::Duration;

use rustc_hash::FxHashSet;
use saker_runtime::time::Time;
use saker_types::InodeId;
use saker_types::limits::LEASE_NS;

/// Most files noted in one period; with more, all count as opened in it.
const NOTED_MAX: usize = 1 << 18;
const PERIOD: Duration = Duration::from_nanos(LEASE_NS);

/// What was opened in this period and in the one before.
pub(crate) struct Opened {
    late: Noted,
    before: Noted,
    /// When this period ends.
    until: Time,
}

#[derive(Default)]
struct Noted {
    ids: FxHashSet<InodeId>,
    /// Others, too, which are not noted.
    more: bool,
}

impl Noted {
    fn has(&self, id: InodeId) -> bool {
        self.more || self.ids.contains(&id)
    }
}

impl Opened {
    /// A shard starts: what was opened before is not known.
    pub(crate) fn new(now: Time) -> Opened {
        let late = Noted { more: true, ..Noted::default() };
        Opened { late, before: Noted::default(), until: now + PERIOD }
    }

    /// Somebody has opened the file, or has had it open, or may have.
    pub(crate) fn note(&mut self, id: InodeId, now: Time) {
        self.go_on(now);
        if self.late.ids.len() < NOTED_MAX {
            self.late.ids.insert(id);
        } else {
            self.late.more = true;
        }
    }

    /// May somebody have it open?
    pub(crate) fn may_have(&mut self, id: InodeId, now: Time) -> bool {
        self.go_on(now);
        self.late.has(id) || self.before.has(id)
    }

    /// When to look again: what was noted is forgotten in time only if time goes on.
    pub(crate) fn next(&self) -> Option<Time> {
        let is_empty = |noted: &Noted| noted.ids.is_empty() && !noted.more;
        let idle = is_empty(&self.late) && is_empty(&self.before);
        (!idle).then_some(self.until)
    }

    /// Time goes on.
    pub(crate) fn go_on(&mut self, now: Time) {
        if now < self.until {
            return;
        }
        self.before = std::mem::take(&mut self.late);
        if now >= self.until + PERIOD {
            self.before = Noted::default();
        }
        self.until = now + PERIOD;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_within_a_lease_is_known() {
        let at = |periods: f64| Time::default() + PERIOD.mul_f64(periods);
        let mut opened = Opened::new(at(0.0));
        assert!(opened.may_have(1, at(0.9)) && opened.may_have(1, at(1.9)), "just started");
        assert!(!opened.may_have(1, at(3.9)));
        for step in 0..40 {
            let time = at(4.0 + f64::from(step) * 0.3);
            let id = u64::from(step as u32);
            opened.note(id, time);
            for ago in 0..=3 {
                assert!(opened.may_have(id.saturating_sub(ago), time), "{ago} of {step}");
            }
            assert!(step < 10 || !opened.may_have(id - 10, time));
        }
        assert!(opened.may_have(39, at(16.6)) && !opened.may_have(39, at(18.0)));
    }

    #[test]
    fn it_is_bounded() {
        let mut opened = Opened::new(Time::default());
        let now = Time::default() + PERIOD * 3;
        (0..NOTED_MAX as u64).for_each(|id| opened.note(id, now));
        assert!(!opened.may_have(u64::MAX, now));
        opened.note(u64::MAX - 1, now);
        assert!(opened.may_have(u64::MAX, now) && opened.late.ids.len() == NOTED_MAX);
    }
}
