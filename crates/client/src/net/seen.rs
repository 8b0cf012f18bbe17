//! The newest time of a change that this client has seen.
//!
//! Servers' clocks differ. What a client changes after it has seen a change is later than that, whichever servers
//! have made the two (docs/decisions/0048): so it says with each request what it has seen.

use std::sync::atomic::{AtomicU64, Ordering};

use prost::Message;
use saker_runtime::time;
use saker_types::Stamp;
use saker_types::limits::CLOCK_SKEW_NS_MAX;
use saker_types::time::stamp_of_unix_ns;
use saker_types::wire::{
    AppendReply, CloseReply, Empty, Entry, HoldReply, LoadReply, LockReply, MergeReply,
    ReaddirReply, Removed, RenameReply, SetLockReply, SetPolicyReply, XattrReply,
};

/// What this client takes the time for.
pub(crate) fn now() -> Stamp {
    stamp_of_unix_ns(time::wall_ns())
}

/// A [`Stamp`].
#[derive(Default)]
pub(crate) struct Seen(AtomicU64);

impl Seen {
    /// A change of this time was seen. One that is far ahead says nothing of servers' clocks as they are.
    pub(crate) fn see(&self, changed_ns: Stamp) {
        if changed_ns <= now().saturating_add(CLOCK_SKEW_NS_MAX) {
            self.0.fetch_max(changed_ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn newest_ns(&self) -> Stamp {
        self.0.load(Ordering::Relaxed)
    }
}

/// A reply.
pub(crate) trait Tells: Message + Default {
    /// The newest time of a change that it tells of: a ctime, which no user can set. 0: none.
    fn changed_ns(&self) -> Stamp {
        0
    }
}

impl Tells for Entry {
    fn changed_ns(&self) -> Stamp {
        self.attr.ctime_ns
    }
}

impl Tells for CloseReply {
    fn changed_ns(&self) -> Stamp {
        self.entry.changed_ns()
    }
}

impl Tells for AppendReply {
    fn changed_ns(&self) -> Stamp {
        self.entry.changed_ns()
    }
}

impl Tells for ReaddirReply {
    fn changed_ns(&self) -> Stamp {
        self.entries.iter().map(|entry| entry.attr.ctime_ns).max().unwrap_or(0)
    }
}

impl Tells for Empty {}
impl Tells for HoldReply {}
impl Tells for LoadReply {}
impl Tells for MergeReply {}
impl Tells for SetPolicyReply {}
impl Tells for LockReply {}
impl Tells for SetLockReply {}
impl Tells for Removed {}
impl Tells for RenameReply {}
impl Tells for XattrReply {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_ahead_is_not_taken_for_the_time() {
        let (seen, now) = (Seen::default(), now());
        seen.see(now);
        seen.see(now - 5);
        assert_eq!(seen.newest_ns(), now);
        seen.see(now + CLOCK_SKEW_NS_MAX / 2);
        assert_eq!(seen.newest_ns(), now + CLOCK_SKEW_NS_MAX / 2);
        seen.see(now + 2 * CLOCK_SKEW_NS_MAX);
        assert_eq!(seen.newest_ns(), now + CLOCK_SKEW_NS_MAX / 2);
    }
}
