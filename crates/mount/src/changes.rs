//! How new an answer is, beside the changes that go through this mount.
//!
//! The kernel keeps the attributes that come with an open, but not those that came while it evicted
//! inodes: this one may have been among them, changed and forgotten after the server spoke. It asks
//! again before it reads then. The mount knows whether anything was changed at all: if not, what
//! the open said is still as good as it was.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use saker_runtime::time::{self, Time};

/// Counts where changes begin and end.
#[derive(Default)]
pub(crate) struct Changes(AtomicU64);

/// A change, from its begin until this is dropped.
pub(crate) struct ChangeGuard<'a>(&'a Changes);

/// When a server was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    changes: u64,
    time: Time,
}

impl Asked {
    /// How long ago.
    pub(crate) fn age(self) -> Duration {
        time::now() - self.time
    }
}

impl Changes {
    /// A change begins.
    pub(crate) fn begin(&self) -> ChangeGuard<'_> {
        self.step();
        ChangeGuard(self)
    }

    /// A server is about to be asked.
    pub(crate) fn ask(&self) -> Asked {
        Asked { changes: self.0.load(Ordering::SeqCst), time: time::now() }
    }

    /// For how long an answer counts that may be kept for so long; `None`: no more, or there was a
    /// change since, so that it never did.
    pub(crate) fn counts(&self, asked: Asked, keep: Duration) -> Option<Duration> {
        let unchanged = self.0.load(Ordering::SeqCst) == asked.changes;
        let left = keep.saturating_sub(time::now() - asked.time);
        (unchanged && !left.is_zero()).then_some(left)
    }

    fn step(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.step();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn an_answer_counts_until_a_change_begins_or_ends() {
        let changes = Changes::default();
        let before = changes.ask();
        assert!(changes.counts(before, LONG).is_some_and(|left| left <= LONG));
        let change = changes.begin();
        assert_eq!(changes.counts(before, LONG), None, "it has begun");
        let during = changes.ask();
        assert!(changes.counts(during, LONG).is_some(), "nothing of it was acknowledged");
        drop(change);
        assert_eq!(changes.counts(during, LONG), None, "the server may have spoken before");
        assert!(changes.counts(changes.ask(), LONG).is_some());
    }

    #[test]
    fn an_answer_does_not_count_for_ever() {
        let changes = Changes::default();
        let asked = changes.ask();
        assert_eq!(changes.counts(asked, Duration::ZERO), None);
        // Real time: what counts for a millisecond no longer does.
        time::sleep(Duration::from_millis(2));
        assert_eq!(changes.counts(asked, Duration::from_millis(1)), None);
    }
}
