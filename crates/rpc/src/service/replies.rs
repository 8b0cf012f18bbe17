//! Replies on their way from the threads that made them to the shell that sends them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

use crate::frame::Frame;
use crate::node::ConnId;

/// Replies that other threads have made for one shell.
pub(super) struct ReplyBox {
    ready: Mutex<Vec<Ready>>,
    /// The shell has been woken, and has not looked since.
    woken: AtomicBool,
    waker: Arc<Waker>,
}

/// A reply that may leave.
pub(super) struct Ready {
    pub conn: ConnId,
    /// What the request has counted for.
    pub bytes: usize,
    pub reply: Frame,
}

impl ReplyBox {
    pub fn new(waker: Arc<Waker>) -> Arc<ReplyBox> {
        Arc::new(ReplyBox { ready: Mutex::default(), woken: AtomicBool::new(false), waker })
    }

    pub fn put(&self, conn: ConnId, bytes: usize, reply: Frame) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push(Ready { conn, bytes, reply });
        drop(ready);
        self.wake();
    }

    /// Lets the shell look.
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!("a poll could not be woken: {error}");
        }
    }

    /// For the shell: is there something, perhaps?
    pub fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// For the shell: takes what there is.
    pub fn take(&self) -> Vec<Ready> {
        // First: what comes from here on wakes the shell once more.
        self.woken.store(false, Ordering::Release);
        std::mem::take(&mut *self.ready.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
