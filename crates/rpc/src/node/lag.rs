//! Records whose flush may be delayed: how long, and what is held back when the disk does not keep up.

use std::time::Duration;

use saker_runtime::time::Time;
use saker_types::policy::explain::FLUSH_DELAY_MAX;

/// A loss of power takes so much of what was answered before it was durable, at most: the work of this
/// time. Nothing more is answered so while there is an older record that is not durable.
pub const LAG_MAX: Duration = FLUSH_DELAY_MAX;
/// A flush begins when a record has waited for so long: it has the rest of [`LAG_MAX`] to end.
const FLUSH_AFTER: Duration = Duration::from_millis(20);

const _: () = assert!(FLUSH_AFTER.as_nanos() * 2 < LAG_MAX.as_nanos(), "time for a flush");

/// Since when there are records that are not durable.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lag {
    since: Option<Time>,
    /// When the flush under way began: records that it is not for are younger.
    flushing_since: Option<Time>,
}

impl Lag {
    /// A step or a flush has ended, and the last record is or is not durable.
    pub fn look(&mut self, now: Time, is_durable: bool) {
        self.since = if is_durable { None } else { self.since.or(Some(now)) };
    }

    /// A flush of all records begins.
    pub fn flush_begins(&mut self, now: Time) {
        self.flushing_since = Some(now);
    }

    /// It has ended; the last record is or is not durable.
    pub fn flush_ends(&mut self, now: Time, is_durable: bool) {
        self.since = self.flushing_since.take();
        self.look(now, is_durable);
    }

    /// When a flush must begin, whoever waits for it.
    pub fn flush_due(&self) -> Option<Time> {
        self.since.map(|since| since + FLUSH_AFTER)
    }

    /// When the oldest record that is not durable is so old.
    pub fn due_after(&self, age: Duration) -> Option<Time> {
        self.since.map(|since| since + age)
    }

    /// Has the disk not kept up?
    pub fn is_over(&self, now: Time) -> bool {
        self.since.is_some_and(|since| since + LAG_MAX <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_the_oldest_record_that_is_not_durable() {
        let at = |ms: u64| Time::from_ns(ms * 1_000_000);
        let mut lag = Lag::default();
        lag.look(at(1), true);
        assert_eq!((lag.flush_due(), lag.is_over(at(1_000))), (None, false));
        lag.look(at(10), false);
        lag.look(at(20), false);
        assert_eq!(lag.flush_due(), Some(at(30)));
        assert!(!lag.is_over(at(59)) && lag.is_over(at(60)));
        // What came during the flush is younger than its begin.
        lag.flush_begins(at(30));
        lag.look(at(40), false);
        assert_eq!(lag.flush_due(), Some(at(30)));
        lag.flush_ends(at(45), false);
        assert_eq!(lag.flush_due(), Some(at(50)));
        lag.flush_begins(at(50));
        lag.flush_ends(at(51), true);
        assert_eq!(lag.flush_due(), None);
    }
}
