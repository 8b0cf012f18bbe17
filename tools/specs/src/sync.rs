//! The names by which `saker-rpc` and `saker-runtime` know what threads share, here with types
//! that let shuttle choose who runs next.

use std::io;
use std::sync::PoisonError;

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU8, Ordering};
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use shuttle::thread::{Thread, current, park};

/// Stands for the system's poll and its waker: events, and a counter that a wake makes stick.
#[derive(Default)]
pub(crate) struct PollWaker {
    ready: Mutex<Ready>,
    changed: Condvar,
}

#[derive(Default)]
struct Ready {
    woken: bool,
    events: Vec<usize>,
}

impl PollWaker {
    fn lock(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `mio::Waker::wake`.
    pub fn wake(&self) -> io::Result<()> {
        self.lock().woken = true;
        self.changed.notify_all();
        Ok(())
    }

    /// A socket has something to read.
    pub fn event(&self, token: usize) {
        self.lock().events.push(token);
        self.changed.notify_all();
    }

    /// Waits for events or a wake, without a deadline: a lost wake-up is a deadlock here.
    pub fn poll(&self, may_wait: bool) -> Vec<usize> {
        let mut ready = self.lock();
        while may_wait && !ready.woken && ready.events.is_empty() {
            ready = self.changed.wait(ready).unwrap_or_else(PoisonError::into_inner);
        }
        ready.woken = false;
        std::mem::take(&mut ready.events)
    }
}
