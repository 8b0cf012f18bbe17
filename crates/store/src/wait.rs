//! Who may wait, and what for.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use saker_types::{Class, Errno, Error, Result};

/// May a call wait: for a disk, or for another call?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// However long.
    May,
    /// It fails with EAGAIN instead, and has done nothing.
    Never,
}

/// Looks at a lock that another has, before that counts as waiting.
const LOOKS_MAX: usize = 64;

/// It would have to wait.
pub fn would_wait() -> Error {
    Error::of_class(Class::Retry, Errno::EAGAIN)
}

/// The same of a file.
pub fn would_block() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

/// Whether a call failed because it would have had to wait.
pub fn is_would_wait(error: &Error) -> bool {
    error.errno() == Errno::EAGAIN
}

/// Takes a lock, also one that a panicking thread held: what it guards is changed in single steps.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WaitPolicy {
    /// Takes a lock that is held for long when its holder waits for a disk.
    ///
    /// # Errors
    /// EAGAIN.
    pub fn lock<T>(self, mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
        if self == WaitPolicy::May {
            return Ok(locked(mutex));
        }
        for _ in 0..LOOKS_MAX {
            match mutex.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(error)) => return Ok(error.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        Err(would_wait())
    }
}
