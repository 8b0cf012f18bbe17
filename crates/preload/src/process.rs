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

macro_rules! exit_hook {
    ($name:ident) => {
        /// Ends the process without the handlers of exit(3). Not by the next function: children of
        /// vfork(2) call this, where that one cannot be looked for.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(dead_code, non_snake_case, reason = "the C library's; not exported in unit tests")]
        unsafe extern "C" fn $name(status: libc::c_int) -> ! {
            crate::outfds::at_exit(false);
            loop {
                // SAFETY: touches no memory, and does not return.
                unsafe { libc::syscall(libc::SYS_exit_group, status) };
            }
        }
    };
}

exit_hook!(_exit);
exit_hook!(_Exit);

hook! { quick_exit: (status: libc::c_int) -> (), |next| {
    crate::outfds::at_exit(false);
    next(status)
}}

// It runs no handlers of fork(2).
hook! { _Fork: () -> libc::pid_t, |next| {
    crate::before_fork();
    let child = next();
    if child == 0 {
        crate::after_fork();
    }
    child
}}
