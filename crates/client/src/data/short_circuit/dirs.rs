//! The directories of stores, which a thread opens and closes: nobody who reads waits for that.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saker_runtime::thread;
use saker_runtime::time::{self, Time};
use saker_types::wire::LocalDir;

use super::foreign::ForeignDir;

/// Directories known at a time; data of others comes from their stores.
const DIRS_MAX: usize = 256;
/// A directory that was not used for so long is closed, so that its disk can be unmounted.
const IDLE: Duration = Duration::from_secs(5);

/// Those that are known.
#[derive(Default)]
pub(super) struct Dirs {
    known: Arc<Known>,
    /// To the thread that opens them; there is none before it is needed.
    wanted: Mutex<Option<Sender<LocalDir>>>,
}

#[derive(Default)]
struct Known(Mutex<HashMap<LocalDir, State>>);

enum State {
    Opening,
    Open(Arc<OpenDir>),
    /// With that, and when.
    Failed(io::ErrorKind, Time),
}

/// One that is open.
pub(super) struct OpenDir {
    pub(super) files: ForeignDir,
    /// When it was last used, in nanoseconds.
    used: AtomicU64,
}

impl OpenDir {
    /// Opens it, which may take as long as its file system does.
    fn open(at: &LocalDir) -> io::Result<OpenDir> {
        let files = ForeignDir::open(at)?;
        Ok(OpenDir { files, used: AtomicU64::new(time::now().as_ns()) })
    }

    fn touch(&self, now: Time) {
        self.used.store(now.as_ns(), Ordering::Relaxed);
    }

    fn used(&self) -> Time {
        Time::from_ns(self.used.load(Ordering::Relaxed))
    }
}

impl Dirs {
    /// A directory, unless it is yet to be opened.
    ///
    /// # Errors
    /// Those of opening it; `QuotaExceeded` when too many are known.
    pub(super) fn get(&self, wanted: &LocalDir) -> io::Result<Option<Arc<OpenDir>>> {
        let now = time::now();
        let mut dirs = self.known.lock();
        match dirs.get(wanted) {
            Some(State::Opening) => return Ok(None),
            Some(State::Open(open)) => {
                open.touch(now);
                return Ok(Some(open.clone()));
            }
            Some(State::Failed(kind, at)) if now - *at < IDLE => return Err((*kind).into()),
            None if dirs.len() >= DIRS_MAX => return Err(io::ErrorKind::QuotaExceeded.into()),
            _ => {}
        }
        dirs.insert(wanted.clone(), State::Opening);
        drop(dirs);
        self.open(wanted)?;
        Ok(None)
    }

    /// Lets the thread open it.
    fn open(&self, wanted: &LocalDir) -> io::Result<()> {
        let mut sender = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &mut *sender {
            Some(sender) => sender,
            none => {
                let (sender, wanted) = channel();
                let known = self.known.clone();
                thread::spawn("saker-local", move || known.serve(&wanted))?;
                none.insert(sender)
            }
        };
        // It ends after the last sender only.
        let _ = sender.send(wanted.clone());
        Ok(())
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<LocalDir, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens what is wanted and closes what is idle.
    fn serve(&self, wanted: &Receiver<LocalDir>) {
        loop {
            let none = self.lock().is_empty();
            let next = match none {
                true => wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => wanted.recv_timeout(IDLE),
            };
            match next {
                Ok(dir) => {
                    let state = match OpenDir::open(&dir) {
                        Ok(open) => State::Open(Arc::new(open)),
                        Err(error) => {
                            tracing::debug!("{} cannot be read here: {error}", dir.path);
                            State::Failed(error.kind(), time::now())
                        }
                    };
                    self.lock().insert(dir, state);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.close();
        }
    }

    /// Closes what is idle, while others read.
    fn close(&self) {
        let now = time::now();
        let is_idle = |state: &State| match state {
            State::Opening => false,
            State::Open(dir) => now - dir.used() >= IDLE,
            State::Failed(_, at) => now - *at >= IDLE,
        };
        let idle: Vec<_> = self.lock().extract_if(|_, state| is_idle(state)).collect();
        // It may take a while to close them.
        drop(idle);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::{Dir as _, RealDir};

    use super::super::tests::settle;
    use super::*;

    #[test]
    fn a_directory_that_is_not_here_is_not_tried_all_the_time() {
        let path = tempfile::tempdir().unwrap();
        let at = RealDir::open(path.path()).unwrap().whereabouts().unwrap();
        let dirs = Dirs::default();
        let other = LocalDir { ino: at.ino + 1, ..at };
        assert_eq!(settle(&dirs, &other).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(dirs.get(&other).is_err());
    }
}
