//! Files that somebody may have open. Whoever has a file open has opened it here, has renewed it here, or
//! has come with it from another shard, within the last [`LEASE_NS`], and has not said since that it is
//! closed. Of what is not here nobody does, and its space need not wait when its last name goes.
//!
//! What a client says about an open and about its end may overtake each other, come late or twice:
//! opens have numbers, and the end is that of all below a number, of which none is under way any more.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use saker_runtime::time::Time;
use saker_types::InodeId;
use saker_types::limits::LEASE_NS;
use saker_types::wire::Hold;

/// Most holds noted in one period; with more, all files count as opened in it.
const NOTED_MAX: usize = 1 << 18;
/// Most clients that are told the shard which a file goes to.
const HOLDERS_MAX: usize = 64;
const PERIOD: Duration = Duration::from_nanos(LEASE_NS);

/// What was opened in this period and in the one before, and not closed since.
pub(crate) struct OpenFiles {
    late: Noted,
    before: Noted,
    /// When this period ends.
    until: Time,
    /// The shard has started in this period: who has opened something before is not known.
    just_started: bool,
    /// What the shard has made since: of that all is known.
    made_since: Range<InodeId>,
}

#[derive(Default)]
struct Noted {
    /// By file and client: the number of its last open.
    holds: BTreeMap<(InodeId, u64), u64>,
    /// Others, too, which are not noted.
    more: bool,
}

impl Noted {
    fn of(&self, id: InodeId) -> impl Iterator<Item = Hold> {
        let all = self.holds.range((id, 0)..=(id, u64::MAX));
        all.map(|((_, client), number)| Hold { client: *client, number: *number })
    }

    fn has(&self, id: InodeId) -> bool {
        self.of(id).next().is_some()
    }

    fn close(&mut self, id: InodeId, below: Hold) {
        let key = (id, below.client);
        if self.holds.get(&key).is_some_and(|number| *number < below.number) {
            self.holds.remove(&key);
        }
    }

    fn is_empty(&self) -> bool {
        self.holds.is_empty() && !self.more
    }
}

impl OpenFiles {
    /// A shard starts: what was opened before is not known. It will make inodes by these ids.
    pub(crate) fn new(now: Time, made_since: Range<InodeId>) -> OpenFiles {
        OpenFiles {
            late: Noted::default(),
            before: Noted::default(),
            until: now + PERIOD,
            just_started: true,
            made_since,
        }
    }

    /// May others have it open than those who are noted?
    fn may_have_others(&self, id: InodeId) -> bool {
        let unknown = self.just_started && !self.made_since.contains(&id);
        unknown || self.late.more || self.before.more
    }

    /// Somebody has opened the file, or has had it open, or may have.
    pub(crate) fn note(&mut self, id: InodeId, hold: Hold, now: Time) {
        self.go_on(now);
        let key = (id, hold.client);
        if self.late.holds.len() < NOTED_MAX || self.late.holds.contains_key(&key) {
            let number = self.late.holds.entry(key).or_default();
            *number = hold.number.max(*number);
        } else {
            self.late.more = true;
        }
    }

    /// A client has closed what it had opened by numbers below this one.
    pub(crate) fn close(&mut self, id: InodeId, below: Hold, now: Time) {
        self.go_on(now);
        // Nobody speaks for those who are not known.
        if below.client != 0 {
            self.late.close(id, below);
            self.before.close(id, below);
        }
    }

    /// May somebody have it open?
    pub(crate) fn may_have(&mut self, id: InodeId, now: Time) -> bool {
        self.go_on(now);
        self.may_have_others(id) || self.late.has(id) || self.before.has(id)
    }

    /// Who may have it open; `None` if that is not known, or if they are too many.
    pub(crate) fn holders(&mut self, id: InodeId, now: Time) -> Option<Vec<Hold>> {
        self.go_on(now);
        let mut by_client = BTreeMap::new();
        for hold in self.before.of(id).chain(self.late.of(id)) {
            let number = by_client.entry(hold.client).or_default();
            *number = hold.number.max(*number);
        }
        let is_known = !self.may_have_others(id) && by_client.len() <= HOLDERS_MAX;
        let holds = by_client.into_iter().map(|(client, number)| Hold { client, number });
        is_known.then(|| holds.collect())
    }

    /// When to look again: what was noted is forgotten in time only if time goes on.
    pub(crate) fn next(&self) -> Option<Time> {
        let idle = !self.just_started && self.late.is_empty() && self.before.is_empty();
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
        self.just_started = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_within_a_lease_is_known() {
        let at = |periods: f64| Time::default() + PERIOD.mul_f64(periods);
        let mut opened = OpenFiles::new(at(0.0), 100..200);
        assert!(opened.may_have(1, at(0.9)) && !opened.may_have(100, at(0.9)), "just started");
        assert!(!opened.may_have(1, at(1.1)));
        for step in 0..40 {
            let time = at(4.0 + f64::from(step) * 0.3);
            let id = u64::from(step as u32);
            opened.note(id, Hold::default(), time);
            for ago in 0..=3 {
                assert!(opened.may_have(id.saturating_sub(ago), time), "{ago} of {step}");
            }
            assert!(step < 10 || !opened.may_have(id - 10, time));
        }
        assert!(opened.may_have(39, at(16.6)) && !opened.may_have(39, at(18.0)));
    }

    #[test]
    fn what_was_closed_is_not_open() {
        let mut opened = OpenFiles::new(Time::default(), 0..0);
        let now = Time::default() + PERIOD * 3;
        let hold = |client, number| Hold { client, number };
        opened.note(1, hold(7, 3), now);
        opened.note(1, hold(8, 1), now);
        opened.note(1, hold(7, 2), now);
        opened.close(1, hold(7, 3), now);
        let holders = Some(vec![hold(7, 3), hold(8, 1)]);
        assert_eq!(opened.holders(1, now), holders, "a later open");
        // Noted in the period before, too.
        let now = now + PERIOD;
        opened.note(1, hold(7, 5), now);
        assert_eq!(opened.holders(1, now), Some(vec![hold(7, 5), hold(8, 1)]));
        opened.close(1, hold(7, 6), now);
        assert_eq!(opened.holders(1, now), Some(vec![hold(8, 1)]));
        opened.close(1, hold(8, 2), now);
        assert!(!opened.may_have(1, now));
        // An open that comes late.
        opened.note(1, hold(8, 1), now);
        assert!(opened.may_have(1, now) && !opened.may_have(2, now));
        opened.note(2, Hold::default(), now);
        opened.close(2, hold(0, 1), now);
        assert!(opened.may_have(2, now), "somebody");
    }

    #[test]
    fn it_is_bounded() {
        let mut opened = OpenFiles::new(Time::default(), 0..0);
        let now = Time::default() + PERIOD * 3;
        (0..NOTED_MAX as u64).for_each(|id| opened.note(id, Hold::default(), now));
        assert!(!opened.may_have(u64::MAX, now));
        opened.note(u64::MAX - 1, Hold::default(), now);
        assert!(opened.may_have(u64::MAX, now) && opened.late.holds.len() == NOTED_MAX);
        assert_eq!(opened.holders(u64::MAX, now), None);

        let now = now + PERIOD * 3;
        for client in 1..=HOLDERS_MAX as u64 {
            opened.note(1, Hold { client, number: 1 }, now);
            assert_eq!(opened.holders(1, now).map(|all| all.len() as u64), Some(client));
        }
        opened.note(1, Hold { client: 1 << 40, number: 1 }, now);
        assert_eq!(opened.holders(1, now), None);
    }
}
