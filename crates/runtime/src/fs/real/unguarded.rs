//! In place of `guarded` where the processor is another than the one its copy is written for: nothing is
//! mapped then.

use std::io;

/// # Errors
/// `Unsupported`, always.
pub(super) fn prepare() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// False.
pub(super) fn is_prepared() -> bool {
    false
}

/// False, and nothing is copied.
///
/// # Safety
/// None needed.
pub(super) unsafe fn copy(_to: *mut u8, _from: *const u8, _bytes: usize) -> bool {
    false
}
