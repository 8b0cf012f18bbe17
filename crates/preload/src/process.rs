//! Whether this process is the one that its memory belongs to.
//!
//! A child of vfork(2) runs in its parent's memory with descriptors of its own: what it does to
//! them must not be noted.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::next::hook;
use crate::sys;

static PID: AtomicI32 = AtomicI32::new(0);

/// This process has memory of its own from here on.
pub fn begin() {
    PID.store(sys::pid(), Ordering::Release);
}

/// Number of the process that the memory belongs to, without a system call.
pub fn noted() -> i32 {
    PID.load(Ordering::Acquire)
}

/// It is not a child of vfork(2).
pub fn owns_its_memory() -> bool {
    let known = PID.load(Ordering::Acquire);
    known == 0 || known == sys::pid()
}

// It runs no handlers of fork(2).
hook! { _Fork: () -> libc::pid_t, |next| {
    crate::before_fork();
    let child = next();
    if child == 0 {
        crate::after_fork();
    }
    child
}}
