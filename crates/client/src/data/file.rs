//! Open files, whatever their data comes from.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use saker_types::wire::{Entry, Op};
use saker_types::{Errno, Locator, Result};

use crate::core::Core;
use crate::data::open_inode::{LockOwner, OpenInode, lost_lock};
use crate::data::source::{DataSource, Sourced};
use crate::{Caller, OpenFlags, Seek};

/// An open file. Clones are the same open file; all open files of one inode in this client see
/// each other's writes.
#[derive(Clone)]
pub struct File(Content);

/// What the data of an open file comes from.
#[derive(Clone)]
enum Content {
    /// Its row, or stores.
    Stores(Arc<Handle>),
    /// Something else, which cannot be written.
    Source(Arc<Sourced>),
}

/// One open(2) of a file whose data is in its row or on stores.
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
        let losses = self.inode.with(|s| s.losses());
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

impl Handle {
    /// Writes out what this client has written to the file, if anything is left to.
    pub(crate) async fn flush_if_dirty(&self) -> Result<()> {
        if self.inode.is_dirty() { self.core.flush(self, Op::Close).await } else { Ok(()) }
    }

    /// From now on reads see what others have written out.
    pub(crate) async fn see_others(&self) -> Result<()> {
        self.core.refresh(&self.who, &self.inode).await?;
        // What was read ahead is older.
        self.inode.with(|s| s.read_anew());
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.inodes.close(&self.inode);
    }
}

impl File {
    /// A handle of an inode of which [`OpenInodes::open`](crate::data::open_inode::OpenInodes::open) has
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
        let handle = Handle { core, inode, who, flags, failures_seen, locked };
        File(Content::Stores(Arc::new(handle)))
    }

    /// A file of `entry.attr.size` bytes whose data comes from `source`.
    ///
    /// # Errors
    /// EROFS to open it for writing.
    pub(crate) fn of_source(
        entry: Entry,
        flags: OpenFlags,
        source: impl DataSource + 'static,
    ) -> Result<File> {
        Ok(File(Content::Source(Arc::new(Sourced::new(entry, flags, source)?))))
    }

    /// The handle of a file whose data is in its row or on stores.
    pub(crate) fn on_stores(&self) -> Option<&Handle> {
        match &self.0 {
            Content::Stores(handle) => Some(handle),
            Content::Source(_) => None,
        }
    }

    /// Are all locks there that were set through this?
    ///
    /// # Errors
    /// EIO when one was lost, until this is closed; ETIMEDOUT when the locks' shard does not answer.
    pub async fn still_holds_locks(&self) -> Result<()> {
        match &self.0 {
            Content::Stores(handle) => handle.still_holds().await,
            Content::Source(_) => Ok(()),
        }
    }

    /// As last seen, with this client's own writes; without data.
    pub fn entry(&self) -> Entry {
        match &self.0 {
            Content::Stores(handle) => {
                let (attr, loc) = handle.inode.with(|s| (s.attr().clone(), s.loc().clone()));
                Entry { attr, loc, ..Entry::default() }
            }
            Content::Source(file) => file.entry().clone(),
        }
    }

    /// How often the file was found to be shorter than it was known to be: because others have cut it.
    pub fn cuts(&self) -> u64 {
        match &self.0 {
            Content::Stores(handle) => handle.inode.with(|s| s.cuts()),
            Content::Source(_) => 0,
        }
    }

    /// Where it was last known to be. A file that is moved or removed stays reachable by what it
    /// was at its opening.
    pub fn locator(&self) -> Locator {
        match &self.0 {
            Content::Stores(handle) => handle.inode.with(|s| s.loc().clone()),
            Content::Source(file) => file.entry().loc.clone(),
        }
    }

    /// Reads up to `len` bytes at `offset`; less only at the end of the file.
    ///
    /// # Errors
    /// EBADF when it is not open for reading.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        match &self.0 {
            Content::Stores(handle) if !handle.flags.read => Err(Errno::EBADF.into()),
            Content::Stores(handle) => handle.core.read(handle, offset, len).await,
            Content::Source(file) => file.read(offset, len).await,
        }
    }

    /// Writes all of `data`; returns where it went, which differs from `offset` only if the file
    /// was opened for appending. Data may be held back until [`File::flush`].
    ///
    /// # Errors
    /// EBADF when it is not open for writing; EFBIG; EIO after a lock that was set through this was lost; the
    /// failure of an earlier write.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<u64> {
        let handle = self.writable()?;
        handle.still_holds().await?;
        handle.core.write(handle, offset, data).await
    }

    /// The handle, if it is open for writing, as no file is whose data comes from elsewhere.
    ///
    /// # Errors
    /// EBADF.
    pub(crate) fn writable(&self) -> Result<&Handle> {
        let handle = self.on_stores().filter(|handle| handle.flags.write);
        handle.ok_or_else(|| Errno::EBADF.into())
    }

    /// Data is flushed to the stores' disks and the size is durable when it returns.
    ///
    /// # Errors
    /// Those of this and of earlier writes, once for each open file.
    pub async fn fsync(&self) -> Result<()> {
        let Content::Stores(handle) = &self.0 else { return Ok(()) };
        handle.still_holds().await?;
        handle.core.flush(handle, Op::Fsync).await
    }

    /// What close(2) promises: data is accepted by the stores, the size durable at the owner.
    ///
    /// # Errors
    /// Those of this and of earlier writes, once for each open file.
    pub async fn flush(&self) -> Result<()> {
        let Content::Stores(handle) = &self.0 else { return Ok(()) };
        handle.core.flush(handle, Op::Close).await
    }

    /// The last use: writes out what is left and forgets the handle.
    pub async fn release(self) {
        if let Content::Stores(handle) = &self.0
            && handle.flags.write
            && handle.inode.is_dirty()
        {
            // close(2) has reported what could be reported; a later failure is in the log.
            _ = self.flush().await;
        }
    }

    /// lseek(2) for data or a hole, in blocks of 4 KiB. What is behind the last data is a hole;
    /// data that is written but zero is data.
    ///
    /// # Errors
    /// ENXIO when `offset` is not before the end, or no data is behind it; EIO when stores that
    /// must be asked do not answer.
    pub async fn seek(&self, want: Seek, offset: u64) -> Result<u64> {
        match &self.0 {
            Content::Stores(handle) => handle.core.seek(handle, want, offset).await,
            Content::Source(file) => file.seek(want, offset),
        }
    }
}
