//! Lines that others can cause, said once a second at most.

use std::time::Duration;

use crate::time::{self, Time};

/// Between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// Says which of many alike events are worth a line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Throttle {
    next: Time,
    suppressed: u64,
}

impl Throttle {
    /// An event has happened. If it may be told: how many were not since the last that was.
    pub fn tell(&mut self) -> Option<u64> {
        self.tell_at(time::now())
    }

    fn tell_at(&mut self, now: Time) -> Option<u64> {
        if now < self.next {
            self.suppressed += 1;
            return None;
        }
        self.next = now + EVERY;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_is_told_and_the_others_are_counted() {
        let mut throttle = Throttle::default();
        let at = |ms: u64| Time::from_ns(ms * 1_000_000);
        let told: Vec<_> = [5, 6, 999, 1_004, 1_005, 1_006, 9_000]
            .into_iter()
            .map(|ms| throttle.tell_at(at(ms)))
            .collect();
        assert_eq!(told, [Some(0), None, None, None, Some(3), None, Some(1)]);
    }
}
