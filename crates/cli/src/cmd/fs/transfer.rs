//! What `put` and `get` share: a pool of threads that copy files, so that many requests are under
//! way although local files block, and the count of what went wrong.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use saker_runtime::thread::{self, JoinHandle};

use crate::fail::{Context, Failure, Outcome};
use crate::progress::Progress;
use crate::session::CliSession;
use crate::signals;

/// Files copied at once.
const THREADS: usize = 32;
/// Files that wait for a thread.
const WAITING_MAX: usize = 256;
/// Bytes moved at once.
pub const PIECE: usize = 1 << 20;

/// A copy under way, seen from all its threads.
pub struct Copy {
    /// The client.
    pub session: CliSession,
    /// Keep permissions, times, extended attributes and hard links.
    pub preserve: bool,
    /// Tells the user.
    pub progress: Progress,
    files: AtomicU64,
    failures: AtomicU64,
}

impl Copy {
    /// A copy that has not begun.
    pub fn new(session: CliSession, preserve: bool) -> Arc<Copy> {
        let (files, failures) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Copy { session, preserve, progress: Progress::copying(), files, failures })
    }

    /// One file, link or directory is done, or not.
    pub fn note(&self, outcome: Outcome) {
        match outcome {
            Ok(()) => {
                let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
                self.progress.say(format!("{files} files"));
            }
            // After Ctrl-C each file under way fails: one message at the end is enough.
            Err(_) if signals::interrupted() => {}
            Err(failure) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                self.progress.error(&format!("saker: {failure}"));
            }
        }
    }

    /// What the command ends with.
    pub fn end(&self, what: impl std::fmt::Display) -> Outcome<u8> {
        self.progress.done();
        let files = self.files.load(Ordering::Relaxed);
        if signals::interrupted() {
            return Err(Failure::new(what, format!("interrupted after {files} files")));
        }
        match self.failures.load(Ordering::Relaxed) {
            0 => Ok(0),
            n => Err(Failure::new(what, format!("{n} of {} were not copied", files + n))),
        }
    }
}

/// Stops a copy between two pieces when the user wants it to.
pub fn check_interrupt(shown: &dyn std::fmt::Display) -> Outcome {
    if signals::interrupted() { Err(Failure::new(shown, "interrupted")) } else { Ok(()) }
}

/// Threads that work on jobs.
pub struct Pool<J> {
    jobs: SyncSender<J>,
    threads: Vec<JoinHandle<()>>,
}

impl<J: Send + 'static> Pool<J> {
    /// Starts the threads; each job goes to `work` on one of them.
    pub fn start(work: impl Fn(J) + Send + Sync + 'static) -> Outcome<Pool<J>> {
        let (jobs, taken) = sync_channel(WAITING_MAX);
        let (taken, work) = (Arc::new(Mutex::new(taken)), Arc::new(work));
        let start = |n: usize| {
            let (taken, work) = (Arc::clone(&taken), Arc::clone(&work));
            thread::spawn(&format!("copy-{n}"), move || {
                while let Some(job) = next(&taken) {
                    work(job);
                }
            })
        };
        let threads = (0..THREADS).map(start).collect::<std::io::Result<_>>().about("threads")?;
        Ok(Pool { jobs, threads })
    }

    /// Hands out a job; waits while too many do.
    pub fn send(&self, job: J) {
        // It fails only when all threads have panicked, which ends the process anyway.
        let _ = self.jobs.send(job);
    }

    /// Waits until all jobs are done.
    pub fn finish(self) {
        drop(self.jobs);
        for thread in self.threads {
            // A panic has been printed by its own thread.
            let _ = thread.join();
        }
    }
}

fn next<J>(jobs: &Mutex<Receiver<J>>) -> Option<J> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// A local path for messages.
pub fn shown(path: &std::path::Path) -> String {
    path.display().to_string()
}

/// The last component of a local path, also of `.` and `..`.
pub fn local_name(path: &std::path::Path) -> Outcome<std::ffi::OsString> {
    let full: PathBuf = std::fs::canonicalize(path).about(path.display())?;
    full.file_name().map(Into::into).ok_or_else(|| Failure::new(path.display(), "it has no name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_does_every_job_once() {
        let sum = Arc::new(AtomicU64::new(0));
        let total = Arc::clone(&sum);
        let pool = Pool::start(move |n: u64| {
            total.fetch_add(n, Ordering::Relaxed);
        })
        .unwrap();
        (0..1000).for_each(|n| pool.send(n));
        pool.finish();
        assert_eq!(sum.load(Ordering::Relaxed), 499_500);
    }
}
