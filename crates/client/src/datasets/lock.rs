//! Locks of the datasets' home.

use std::time::Duration;

use saker_types::{Errno, Result};

use super::files::{Files, READ};
use crate::{Caller, File, Lock, OpenFlags};

/// How long a lock is waited for before it is asked for again.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Which of the home's locks.
#[derive(Clone, Copy)]
pub(super) enum LockFile {
    /// Shared by those who store objects that no record names yet; exclusive for whoever collects.
    Objects,
    /// Exclusive for whoever changes records.
    Names,
}

impl LockFile {
    fn name(self) -> &'static str {
        match self {
            LockFile::Objects => "lock",
            LockFile::Names => "names.lock",
        }
    }
}

/// A lock that is held. It can be lost, when the cluster does not hear of this client for some
/// seconds. A client that dies loses it with its lease.
pub(super) struct Held {
    file: File,
    lock: Lock,
}

impl Held {
    /// # Errors
    /// EIO if it was lost; of the cluster.
    pub(super) async fn check(&self) -> Result<()> {
        self.file.still_holds_locks().await
    }

    /// Ends it after some work.
    ///
    /// # Errors
    /// The work's; else those of [`Held::end`].
    pub(super) async fn end_with<T>(self, done: Result<T>) -> Result<T> {
        let ended = self.end().await;
        let done = done?;
        ended.map(|()| done)
    }

    /// Ends it.
    ///
    /// # Errors
    /// EIO if it was lost; of the cluster.
    pub(super) async fn end(self) -> Result<()> {
        self.file.unlock(&self.lock).await?;
        self.file.release().await;
        Ok(())
    }
}

impl Files<'_> {
    /// Takes a lock. `waits` is called again and again while others have it, and ends that by an error.
    pub(super) async fn lock(
        &self,
        which: LockFile,
        exclusive: bool,
        mut waits: impl FnMut() -> Result<()>,
    ) -> Result<Held> {
        self.make_home().await?;
        let (flags, at) = (OpenFlags { write: true, ..READ }, super::at(&[which.name()]));
        let (file, _) = self.fs.create(&Caller::root(), &at, 0o600, flags).await?;
        let lock = Lock { exclusive, ..Lock::whole(saker_runtime::rand::u64(), true) };
        let mut wait = Duration::ZERO;
        while let Err(error) = file.set_lock(&lock, wait).await {
            let waited = if error.errno() == Errno::EAGAIN { waits() } else { Err(error) };
            if let Err(error) = waited {
                file.release().await;
                return Err(error);
            }
            wait = LOCK_WAIT;
        }
        Ok(Held { file, lock })
    }

    /// Changes records alone.
    pub(super) async fn change_names<T>(
        &self,
        work: impl AsyncFnOnce(&Held) -> Result<T>,
    ) -> Result<T> {
        // Nobody holds it for long.
        let held = self.lock(LockFile::Names, true, || Ok(())).await?;
        let done = work(&held).await;
        held.end_with(done).await
    }
}
