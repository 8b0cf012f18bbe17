//! Whether writes into the page cache wait for the disk: the kernel makes them wait when it holds
//! more that is not written yet than it may.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use saker_runtime::time::{self, Time};

/// A write that takes longer than this has waited, for the disk rather than for a processor.
const SLOW_WRITE: Duration = Duration::from_millis(50);
/// For so long then others would wait, too.
const SLOW_FOR: Duration = Duration::from_millis(200);

/// How fast recent writes were.
#[derive(Default)]
pub(super) struct Pace {
    slow_until_ns: AtomicU64,
}

impl Pace {
    /// Would a write wait?
    pub fn is_slow(&self) -> bool {
        let until_ns = self.slow_until_ns.load(Ordering::Relaxed);
        until_ns > 0 && time::now().as_ns() < until_ns
    }

    /// A write that began then has ended.
    pub fn note(&self, begun: Time) {
        let now = time::now();
        if now - begun > SLOW_WRITE {
            self.slow_until_ns.store((now + SLOW_FOR).as_ns(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_write_makes_others_wait_for_a_while() {
        let pace = Pace::default();
        let ago = |time: Duration| Time::from_ns(time::now().as_ns() - time.as_nanos() as u64);
        assert!(!pace.is_slow());
        let before = time::now();
        pace.note(ago(2 * SLOW_WRITE));
        assert!(pace.slow_until_ns.load(Ordering::Relaxed) >= (before + SLOW_FOR).as_ns());
        pace.slow_until_ns.store(ago(SLOW_FOR).as_ns(), Ordering::Relaxed);
        assert!(!pace.is_slow(), "it is over");
    }
}
