//! Gives memory that nobody uses back to the system.
//!
//! The allocator does that by itself (mimalloc, `purge_delay`): a second after memory was freed, within whatever call allocates
//! next, half a millisecond for each 4 MiB. So the first requests to a mount or a server waited until what its start had
//! needed, some 50 MiB, was given back. Here a thread does it, before the second is over.

use std::time::Duration;

use saker_runtime::{thread, time};

/// Less than mimalloc's `purge_delay`.
const PERIOD: Duration = Duration::from_millis(700);

/// Starts this for the process.
pub fn give_back() {
    let tidy = || {
        loop {
            time::sleep(PERIOD);
            // SAFETY: it may be called at any time, from any thread.
            unsafe { libmimalloc_sys::mi_collect(true) };
        }
    };
    if let Err(error) = thread::spawn("memory", tidy) {
        tracing::warn!("requests give memory back: {error}");
    }
}
