//! Small files that the kernel has whole while they are open (`-o ro,pages=drop`, decision 32): OPEN brings the data, in
//! a file in memory that reads and maps go to (FUSE passthrough, from Linux 6.9 on). So no READ follows, and no page
//! of the mount's is filled.
//!
//! The kernel has an inode open in one way at a time (`fs/fuse/iomode.c`): by its page cache, or from one file in
//! memory, and fails what is answered otherwise. Which way it has what open is counted here. It has left a way before
//! it says RELEASE, so what is counted is never less than what there is.

mod memory;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use saker_types::{Attr, Errno, Error, Result};

use self::memory::{MemoryFile, MemoryFiles};
use crate::nodes::NodeId;
use crate::transport::Device;

/// Larger files go by pages, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// What the kernel has whole may grow to this while it has it, in bytes.
const GROWN_BYTES_MAX: u64 = 16 << 20;

/// What the kernel calls a file that it can read from.
pub(crate) type BackingId = i32;

/// How the kernel has a file open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By its page cache.
    Pages,
    /// From a file in memory.
    Whole(BackingId),
}

/// What the kernel has open which way.
pub(crate) struct Backings {
    memory: MemoryFiles,
    /// The kernel has agreed to read from files.
    agreed: AtomicBool,
    inodes: Mutex<FxHashMap<NodeId, Open>>,
}

/// One inode, as long as it is open.
#[derive(Default)]
struct Open {
    count: u32,
    /// `None`: by pages.
    whole: Option<Whole>,
}

/// What the kernel reads of an inode that it has whole.
struct Whole {
    file: MemoryFile,
    /// It is that data, or newer.
    data_version: u64,
}

impl Backings {
    /// For the connection of `device`.
    ///
    /// # Errors
    /// As fsopen(2): EPERM for who may not mount.
    pub(crate) fn new(device: Device) -> io::Result<Backings> {
        let (agreed, inodes) = (AtomicBool::new(false), Mutex::default());
        Ok(Backings { memory: MemoryFiles::new(device)?, agreed, inodes })
    }

    /// The kernel has agreed.
    pub(crate) fn agree(&self) {
        self.agreed.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<NodeId, Open>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An open that saw these attributes: which way, or `None` if that takes the data; then
    /// [`Backings::enter_with`] goes on.
    ///
    /// # Errors
    /// EBUSY if the kernel has it whole as it was, and it is too large now.
    pub(crate) fn enter(&self, attr: &Attr) -> Result<Option<Way>> {
        let mut inodes = self.lock();
        if let Some(open) = inodes.get_mut(&attr.id) {
            return match &open.whole {
                Some(whole) if whole.data_version >= attr.data_version => Ok(Some(open.more())),
                Some(_) if attr.size <= GROWN_BYTES_MAX => Ok(None),
                Some(_) => Err(Error::new(Errno::EBUSY).with_text("it has grown while it is open")),
                None => Ok(Some(open.more())),
            };
        }
        if attr.chunked && attr.size <= BYTES_MAX && self.agreed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        Ok(Some(inodes.entry(attr.id).or_default().more()))
    }

    /// The same with the data, as old as those or newer: whole, unless somebody else was faster or it cannot be.
    ///
    /// # Errors
    /// If the kernel has it whole as it was: why the data could not be read; EBUSY if there is no memory for it.
    pub(crate) fn enter_with(&self, attr: &Attr, data: Result<Bytes>) -> Result<Way> {
        let Attr { id: node, data_version, .. } = *attr;
        if let Some(open) = self.lock().get_mut(&node) {
            return open.more_with(data_version, data);
        }
        let mut whole = self.memory_file(&data).map(|file| Whole { file, data_version });
        let mut inodes = self.lock();
        let new = || Open { count: 0, whole: whole.take() };
        let way = inodes.entry(node).or_insert_with(new).more_with(data_version, data);
        drop(inodes);
        if let Some(unused) = whole {
            self.memory.put(unused.file);
        }
        way
    }

    /// `None`: it goes by pages, and who reads is told if it cannot be read.
    fn memory_file(&self, data: &Result<Bytes>) -> Option<MemoryFile> {
        match self.memory.file(data.as_ref().ok()?) {
            Ok(file) => return Some(file),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::warn!("pages=drop: {error}; pages are kept");
                self.agreed.store(false, Ordering::Relaxed);
            }
            Err(error) => tracing::debug!("pages=drop: {error}; pages are kept"),
        }
        None
    }

    /// The kernel has released one open of an inode, and has it open in no way if that was the last.
    pub(crate) fn leave(&self, node: NodeId) {
        let mut inodes = self.lock();
        let Some(open) = inodes.get_mut(&node) else { return };
        open.count -= 1;
        if open.count > 0 {
            return;
        }
        let ended = inodes.remove(&node);
        drop(inodes);
        if let Some(Open { whole: Some(whole), .. }) = ended {
            self.memory.put(whole.file);
        }
    }
}

impl Open {
    /// One more.
    fn more(&mut self) -> Way {
        self.count += 1;
        self.whole.as_ref().map_or(Way::Pages, |whole| Way::Whole(whole.file.id()))
    }

    /// The same; whoever has it whole sees this data from now on, if it is newer.
    fn more_with(&mut self, data_version: u64, data: Result<Bytes>) -> Result<Way> {
        if let Some(whole) = &mut self.whole
            && whole.data_version < data_version
        {
            let no_room = |error| Error::new(Errno::EBUSY).with_text(format!("memory: {error}"));
            whole.file.refill(&data?).map_err(no_room)?;
            whole.data_version = data_version;
        }
        Ok(self.more())
    }
}
