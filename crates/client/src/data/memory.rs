//! What all files of a client hold together, and how much that may be.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use saker_runtime::telemetry::Gauge;
use saker_runtime::time::Time;

/// Memory for one purpose.
pub(crate) struct MemoryBudget {
    held: Gauge,
    bytes_max: usize,
    /// When somebody looked for what can be given back, in nanoseconds.
    looked: AtomicU64,
}

impl MemoryBudget {
    /// `held` shows what is held of `bytes_max`.
    pub(crate) fn new(held: Gauge, bytes_max: usize) -> MemoryBudget {
        MemoryBudget { held, bytes_max, looked: AtomicU64::new(0) }
    }

    /// Bytes that may still be taken.
    pub(crate) fn left(&self) -> usize {
        self.bytes_max.saturating_sub(usize::try_from(self.held.get()).unwrap_or(0))
    }

    /// Shall the caller look for what can be given back? One of all, once in `every`.
    pub(crate) fn is_due(&self, now: Time, every: Duration) -> bool {
        let last = self.looked.load(Ordering::Relaxed);
        let (order, now_ns) = (Ordering::Relaxed, now.as_ns());
        now.since(Time::from_ns(last)) >= every
            && self.looked.compare_exchange(last, now_ns, order, order).is_ok()
    }

    /// Takes so many, also if they are more than there are.
    pub(crate) fn take(&self, bytes: u64) -> MemoryReservation {
        let mut share = MemoryReservation { held: self.held.clone(), bytes: 0 };
        share.set(bytes);
        share
    }
}

/// A part of it, given back when it is dropped.
pub(crate) struct MemoryReservation {
    held: Gauge,
    bytes: i64,
}

impl MemoryReservation {
    /// It is so many bytes now.
    pub(crate) fn set(&mut self, bytes: u64) {
        let bytes = bytes as i64;
        self.held.add(bytes - self.bytes);
        self.bytes = bytes;
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.set(0);
    }
}
