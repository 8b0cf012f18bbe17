//! Open files.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use saker_types::wire::{Entry, Op};
use saker_types::{Errno, Locator, Result};

use crate::core::Core;
use crate::data::open_inode::{LockOwner, OpenInode, lost_lock};
use crate::{Caller, OpenFlags};

/// An open file. Clones are the same open file; all open files of one inode in this client see
/// each other's writes.
#[derive(Clone)]
pub struct File(Arc<Handle>);

/// One open(2).
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) inode: Arc<OpenInode>,
    pub(crate) who: Caller,
    pub(crate) flags: OpenFlags,
    /// Failures of the inode's writes that this handle has reported, or that are older.
    failures_seen: AtomicU64,
    /// Owners of locks that were set through it, and the losses of the inode before.
    locked: Mutex<BTreeMap<LockOwner, u64>>,
}

impl Handle {
    /// Reports a failure of writing data out, once for each handle.
    pub(crate) fn take_failure(&self) -> Result<()> {
        self.inode.with(|s| {
            let (count, last) = s.failures();
            if self.failures_seen.swap(count, Ordering::Relaxed) == count {
                return Ok(());
            }
            last.map_or(Ok(()), |error| Err(error.clone()))
        })
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<LockOwner, u64>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lock is about to be set through it. False if it relies on one of this owner already.
    pub(crate) fn locks(&self, owner: LockOwner) -> bool {
        let losses = self.inode.with(|s| s.losses);
        let mut locked = self.locked();
        let is_new = !locked.contains_key(&owner);
        locked.entry(owner).or_insert(losses);
        is_new
    }

    /// It does not rely on this owner's locks any more.
    pub(crate) fn unlocks(&self, owner: LockOwner) {
        self.locked().remove(&owner);
    }

    /// Whoever uses this handle may have read and written under a lock: is that still there?
    ///
    /// # Errors
    /// EIO: it is lost, until the handle is closed. ETIMEDOUT: nobody says.
    pub(crate) async fn still_holds(&self) -> Result<()> {
        let relies = !self.locked().is_empty();
        if !relies {
            return Ok(());
        }
        self.core.lease(self.inode.id).await?;
        self.inode.with(|s| match self.locked().iter().any(|(owner, n)| s.has_lost(*owner, *n)) {
            true => Err(lost_lock()),
            false => Ok(()),
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.inodes.close(&self.inode);
    }
}

impl File {
    /// A handle of an inode of which [`Inodes::open`](crate::data::open_inode::Inodes::open) has
    /// counted one.
    pub(crate) fn new(
        core: Arc<Core>,
        inode: Arc<OpenInode>,
        who: &Caller,
        flags: OpenFlags,
    ) -> File {
        let failures_seen = AtomicU64::new(inode.with(|s| s.failures().0));
        let locked = Mutex::default();
        // What it asks for later is no lease.
        let who = Caller { lessee: None, ..who.clone() };
        File(Arc::new(Handle { core, inode, who, flags, failures_seen, locked }))
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.0
    }

    /// The client that it is open in.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Writes out what this client has written to the file, if anything is left to.
    pub(crate) async fn flush_if_dirty(&self) -> Result<()> {
        if self.0.inode.is_dirty() { self.flush().await } else { Ok(()) }
    }

    /// Are all locks there that were set through this?
    ///
    /// # Errors
    /// EIO when one was lost, until this is closed; ETIMEDOUT when the locks' shard does not answer.
    pub async fn still_holds_locks(&self) -> Result<()> {
        self.0.still_holds().await
    }

    /// From now on reads see what others have written out.
    pub(crate) async fn see_others(&self) -> Result<()> {
        self.0.core.refresh(&self.0.who, &self.0.inode).await?;
        // What was read ahead is older.
        self.0.inode.with(|s| s.epoch += 1);
        Ok(())
    }

    /// As last seen, with this client's own writes; without data.
    pub fn entry(&self) -> Entry {
        let (attr, loc) = self.0.inode.with(|s| (s.attr.clone(), s.loc.clone()));
        Entry { attr, loc, ..Entry::default() }
    }

    /// How often the file was found to be shorter than it was known to be: because others have cut it.
    pub fn cuts(&self) -> u64 {
        self.0.inode.with(|s| s.cuts)
    }

    /// Where it was last known to be. A file that is moved or removed stays reachable by what it
    /// was at its opening.
    pub fn locator(&self) -> Locator {
        self.0.inode.with(|s| s.loc.clone())
    }

    /// Reads up to `len` bytes at `offset`; less only at the end of the file.
    ///
    /// # Errors
    /// EBADF when it is not open for reading.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        if !self.0.flags.read {
            return Err(Errno::EBADF.into());
        }
        self.0.core.read(&self.0, offset, len).await
    }

    /// Writes all of `data`; returns where it went, which differs from `offset` only if the file
    /// was opened for appending. Data may be held back until [`File::flush`].
    ///
    /// # Errors
    /// EBADF when it is not open for writing; EFBIG; EIO after a lock that was set through this was lost; the
    /// failure of an earlier write.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<u64> {
        if !self.0.flags.write {
            return Err(Errno::EBADF.into());
        }
        self.0.still_holds().await?;
        self.0.core.write(&self.0, offset, data).await
    }

    /// Data is flushed to the stores' disks and the size is durable when it returns.
    ///
    /// # Errors
    /// Those of this and of earlier writes, once for each open file.
    pub async fn fsync(&self) -> Result<()> {
        self.0.still_holds().await?;
        self.0.core.flush(&self.0, Op::Fsync).await
    }

    /// What close(2) promises: data is accepted by the stores, the size durable at the owner.
    ///
    /// # Errors
    /// Those of this and of earlier writes, once for each open file.
    pub async fn flush(&self) -> Result<()> {
        self.0.core.flush(&self.0, Op::Close).await
    }

    /// The last use: writes out what is left and forgets the handle.
    pub async fn release(self) {
        if self.0.flags.write && self.0.inode.is_dirty() {
            // close(2) has reported what could be reported; a later failure is in the log.
            _ = self.flush().await;
        }
    }
}
