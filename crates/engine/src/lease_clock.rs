//! A clock that stands still while its node does.
//!
//! Leases of clients end by it. While a process is stopped, swapped out, waiting for its disk or
//! still starting, what its clients have sent lies unread: that they were not heard of then says
//! nothing about them.

use std::time::Duration;

use saker_runtime::time::Time;

/// A node that has leases makes a step at least this often.
const STEP_EVERY: Duration = Duration::from_secs(1);
/// So more time than this between two steps was not clock.
const STEP_MAX: Duration = Duration::from_secs(2);

/// Time in which a node has clock.
pub struct LeaseClock {
    time: Time,
    /// When the last step began.
    seen: Time,
}

impl LeaseClock {
    /// Begins at `now`, before the journal is read.
    pub fn new(now: Time) -> LeaseClock {
        LeaseClock { time: now, seen: now }
    }

    /// A step begins.
    pub fn step(&mut self, now: Time) {
        self.time += now.since(self.seen).min(STEP_MAX);
        self.seen = self.seen.max(now);
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.time
    }

    /// When to make a step, by the usual clock, if something ends at `at`.
    pub fn step_for(&self, at: Time) -> Time {
        self.seen + at.since(self.time).min(STEP_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_was_not_served_does_not_count() {
        let at = |ms: u64| Time::from_ns(ms * 1_000_000);
        let mut clock = LeaseClock::new(at(1_000));
        assert_eq!(clock.step_for(at(1_300)), at(1_300));
        assert_eq!(clock.step_for(at(9_000)), at(2_000));
        clock.step(at(2_000));
        assert_eq!(clock.now(), at(2_000));
        // Stopped for a minute.
        clock.step(at(62_000));
        assert_eq!(clock.now(), at(4_000));
        assert_eq!(clock.step_for(at(4_500)), at(62_500));
        assert_eq!(clock.step_for(at(3_000)), at(62_000), "it is over");
        clock.step(at(61_000));
        assert_eq!(clock.now(), at(4_000), "clocks do not go back");
    }
}
