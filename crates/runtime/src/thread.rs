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
