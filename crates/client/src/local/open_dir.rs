//! A store's directory, open.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use saker_runtime::fs::ForeignDir;
use saker_runtime::time::{self, Time};
use saker_types::wire::LocalDir;

/// A store's directory.
pub(super) struct OpenDir {
    pub(super) files: ForeignDir,
    /// When it was last used, in nanoseconds.
    used: AtomicU64,
}

impl OpenDir {
    /// Opens it, which may take as long as its file system does.
    ///
    /// # Errors
    /// [`ForeignDir::open`]'s.
    pub(super) fn open(at: &LocalDir) -> io::Result<OpenDir> {
        let files = ForeignDir::open(at)?;
        Ok(OpenDir { files, used: AtomicU64::new(time::now().as_ns()) })
    }

    /// It is used now.
    pub(super) fn touch(&self, now: Time) {
        self.used.store(now.as_ns(), Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> Time {
        Time::from_ns(self.used.load(Ordering::Relaxed))
    }
}
