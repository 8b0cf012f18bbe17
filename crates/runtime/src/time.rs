//! Clocks: monotonic time for deadlines, wall time for what users see.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

const NS_PER_S: u64 = 1_000_000_000;

/// A point on the monotonic clock, in nanoseconds since an arbitrary start (the machine's boot).
/// Comparable only within one machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The clock's start: earlier than or equal to every other time.
    pub const ZERO: Time = Time(0);
    /// Later than every time that can be reached: "never".
    pub const MAX: Time = Time(u64::MAX);

    /// The time `ns` nanoseconds after the clock's start.
    pub const fn from_ns(ns: u64) -> Time {
        Time(ns)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates at [`Time::MAX`].
    fn add(self, by: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl Sub<Time> for Time {
    type Output = Duration;

    /// As [`Time::since`].
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / NS_PER_S, self.0 % NS_PER_S)
    }
}

/// The monotonic clock. Never goes back; stands still while the machine is suspended.
pub fn now() -> Time {
    if let Some(now) = crate::sim::now() {
        return now;
    }
    let at = clock_gettime(ClockId::Monotonic);
    Time(at.tv_sec as u64 * NS_PER_S + at.tv_nsec as u64)
}

/// The same clock as [`now`], but it goes on while the machine is suspended: for what others count, too.
pub fn awake_or_not() -> Time {
    if let Some(now) = crate::sim::now() {
        return now;
    }
    let at = clock_gettime(ClockId::Boottime);
    Time(at.tv_sec as u64 * NS_PER_S + at.tv_nsec as u64)
}

/// Wall time, in nanoseconds since 1970-01-01 UTC. May jump.
pub fn wall_ns() -> i64 {
    if let Some(wall_ns) = crate::sim::wall_ns() {
        return wall_ns;
    }
    // Through the C library, which libfaketime can stand in front of.
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// CPU time that the calling thread has used, for measurements.
pub fn thread_cpu() -> Duration {
    let at = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

/// CPU time that all threads of this process have used, for measurements.
pub fn process_cpu() -> Duration {
    let at = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

/// Blocks the calling thread.
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_forward_and_saturates() {
        let before = now();
        // Real time: the clock is what is tested.
        sleep(Duration::from_millis(2));
        let after = now();
        assert!(after - before >= Duration::from_millis(2));
        assert_eq!(before - after, Duration::ZERO);
        assert_eq!(after + Duration::MAX, Time::MAX);
        assert_eq!(Time::from_ns(5) + Duration::from_nanos(3), Time::from_ns(8));
    }

    #[test]
    fn wall_clock_is_this_century() {
        assert!(wall_ns() > 1_700_000_000 * NS_PER_S as i64);
    }
}
