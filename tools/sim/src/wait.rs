//! Waiting for what other processes do.

use std::time::{Duration, Instant};

/// Far longer than anything takes, on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// Waits until something is so.
///
/// # Panics
/// After [`PATIENCE`], with `what` was waited for in vain.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(LOOK);
    }
}
