//! Nameless files in memory that the kernel can read from.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::process::Resource;

use super::BackingId;
use crate::transport::Device;

/// What all such files of a mount may take, of the machine's memory.
const SIZE: &str = "5%";
/// Of the descriptors that this process may have, one in so many is for such files.
const DESCRIPTORS_PART: u64 = 4;
/// Files that wait to be used again, at most, and their bytes.
const SPARE_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 8 << 20;

/// The files of one mount.
pub(super) struct MemoryFiles {
    place: Arc<Place>,
    /// Files at a time.
    max: usize,
    /// To make a file takes longer than to fill it.
    spare: Mutex<Vec<MemoryFile>>,
}

/// Where they are: a file system in memory that nobody else sees, and the connection to the kernel. It keeps a
/// file in few pieces (from Linux 6.14 on; page by page nothing is gained).
struct Place {
    tmpfs: OwnedFd,
    device: Device,
}

/// One file, which the kernel knows by `id`.
pub(super) struct MemoryFile {
    place: Arc<Place>,
    file: OwnedFd,
    id: BackingId,
    /// Not less than what it has.
    len: usize,
}

impl MemoryFiles {
    /// For the connection of `device`.
    ///
    /// # Errors
    /// As fsopen(2) and fsmount(2).
    pub(super) fn new(device: Device) -> io::Result<MemoryFiles> {
        let tmpfs = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in [("size", SIZE), ("mode", "0700")] {
            rustix::mount::fsconfig_set_string(&tmpfs, key, value)?;
        }
        if let Err(error) = rustix::mount::fsconfig_set_string(&tmpfs, "huge", "within_size") {
            tracing::warn!("pages=drop: memory comes page by page, which gains nothing: {error}");
        }
        rustix::mount::fsconfig_create(&tmpfs)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NOATIME;
        let tmpfs = rustix::mount::fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        let descriptors = rustix::process::getrlimit(Resource::Nofile).current;
        let max = descriptors.map_or(usize::MAX, |all| (all / DESCRIPTORS_PART) as usize);
        Ok(MemoryFiles { place: Arc::new(Place { tmpfs, device }), max, spare: Mutex::default() })
    }

    fn spare(&self) -> MutexGuard<'_, Vec<MemoryFile>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file of these bytes.
    ///
    /// # Errors
    /// ENOSPC or EMFILE when there are too many; EPERM without CAP_SYS_ADMIN; as openat(2).
    pub(super) fn file(&self, data: &[u8]) -> io::Result<MemoryFile> {
        let mut file = match self.take() {
            Some(file) => file,
            None => self.make()?,
        };
        file.fill(data)?;
        Ok(file)
    }

    fn make(&self) -> io::Result<MemoryFile> {
        // Each has a reference, and so has this.
        if Arc::strong_count(&self.place) > self.max {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = rustix::fs::openat(&self.place.tmpfs, c".", flags, mode)?;
        let id = self.place.device.back(&file)?;
        Ok(MemoryFile { place: self.place.clone(), file, id, len: 0 })
    }

    /// An empty file that was used before.
    fn take(&self) -> Option<MemoryFile> {
        loop {
            let mut file = self.spare().pop()?;
            // Else somebody has mapped it (or has not quite closed it), and keeps what it holds.
            if file.is_unused() && file.clear().is_ok() {
                return Some(file);
            }
        }
    }

    /// No open of the mount's goes to it any more.
    pub(super) fn put(&self, file: MemoryFile) {
        let mut spare = self.spare();
        let bytes: usize = spare.iter().map(|file| file.len).sum();
        if spare.len() < SPARE_MAX && bytes + file.len <= SPARE_BYTES_MAX {
            spare.push(file);
        }
    }
}

impl MemoryFile {
    pub(super) fn id(&self) -> BackingId {
        self.id
    }

    /// Gives it this content, which those see who have it open.
    ///
    /// # Errors
    /// ENOSPC when there are too many.
    pub(super) fn refill(&mut self, data: &[u8]) -> io::Result<()> {
        // If there is no room, it stays as it was.
        rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, data.len() as u64)?;
        self.fill(data)
    }

    fn fill(&mut self, data: &[u8]) -> io::Result<()> {
        // At once, so that its memory is in one piece.
        let written = rustix::io::pwrite(&self.file, data, 0)?;
        self.len = self.len.max(written);
        if written < data.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if data.len() < self.len {
            rustix::fs::ftruncate(&self.file, data.len() as u64)?;
            self.len = data.len();
        }
        Ok(())
    }

    /// Nobody has it open, or mapped, but this process: the kernel gives a lease to write only then (fcntl(2)).
    /// Its pages may be in a pipe or a socket all the same (splice(2), sendfile(2)).
    fn is_unused(&self) -> bool {
        let lease = |kind: libc::c_int| {
            // SAFETY: a call without pointers, on an open descriptor.
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
        };
        lease(libc::F_WRLCK) && lease(libc::F_UNLCK)
    }

    /// Lets go of all its pages: those that are on their way somewhere stay as they are.
    fn clear(&mut self) -> io::Result<()> {
        rustix::fs::ftruncate(&self.file, 0)?;
        self.len = 0;
        Ok(())
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.place.device.unback(self.id);
    }
}
