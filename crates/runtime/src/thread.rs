//! Threads, always with a name.

use std::io;
pub use std::thread::JoinHandle;

/// Starts a thread called `name` (the kernel shows its first 15 bytes) that runs `f`.
///
/// # Errors
/// The system's, when it has no room for another thread.
pub fn spawn<T, F>(name: &str, f: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    std::thread::Builder::new().name(name.to_owned()).spawn(f)
}

/// How many threads this machine runs at once; at least 1.
pub fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A computation on a thread of its own; in a simulation on the caller's, when it is joined.
pub enum Job<T> {
    /// It runs.
    Running(JoinHandle<T>),
    /// It will run.
    Due(Box<dyn FnOnce() -> T + Send>),
}

impl<T: Send + 'static> Job<T> {
    /// Starts `f` on a thread called `name`.
    ///
    /// # Errors
    /// As [`spawn`].
    pub fn start<F>(name: &str, f: F) -> io::Result<Job<T>>
    where
        F: FnOnce() -> T + Send + 'static,
    {
        if crate::sim::is_active() {
            return Ok(Job::Due(Box::new(f)));
        }
        spawn(name, f).map(Job::Running)
    }

    /// Would [`Job::join`] return at once?
    pub fn is_finished(&self) -> bool {
        match self {
            Job::Running(thread) => thread.is_finished(),
            Job::Due(_) => true,
        }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// The panic that ended the thread.
    pub fn join(self) -> std::thread::Result<T> {
        match self {
            Job::Running(thread) => thread.join(),
            Job::Due(f) => Ok(f()),
        }
    }
}
