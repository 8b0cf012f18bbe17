//! Memory that processes of one machine share: a file in `/dev/shm` (shm_overview(7)).

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::geteuid;
use saker_types::wire::LocalMemory;

use super::check_name;

const DIR: &str = "/dev/shm";
/// So many times as much as is taken must have been free.
const FREE: u64 = 4;

/// Memory that others of this machine may see and change.
pub struct SharedMemory {
    start: NonNull<AtomicU64>,
    words: usize,
    made: Option<Made>,
}

/// What who made it has: the name is removed in the end.
struct Made {
    at: LocalMemory,
    /// Locked, so that others know that somebody answers for it.
    file: File,
}

// SAFETY: atomic words and nothing else, which no thread is bound to.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes a name for so many bytes, all zeros, for this user only. All of it takes memory at once: it
    /// would be too late to learn that there is none when it is written to.
    ///
    /// # Errors
    /// open(2)'s and fallocate(2)'s: also when the name is taken. `StorageFull` if it would take more than
    /// its part of what is free.
    pub fn create(name: &str, bytes: usize) -> io::Result<SharedMemory> {
        check_name(name)?;
        let disk = rustix::fs::statvfs(DIR)?;
        if (bytes as u64).saturating_mul(FREE) > disk.f_bavail.saturating_mul(disk.f_frsize) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file: File = rustix::fs::open(path_of(name), flags, Mode::RUSR | Mode::WUSR)?.into();
        let mut made = Made { at: LocalMemory { name: name.into(), dev: 0, ino: 0 }, file };
        let meta = made.file.metadata()?;
        (made.at.dev, made.at.ino) = (meta.dev(), meta.ino());
        rustix::fs::flock(&made.file, FlockOperation::NonBlockingLockExclusive)?;
        let allocate =
            || rustix::fs::fallocate(&made.file, FallocateFlags::empty(), 0, bytes as u64);
        retry_on_intr(allocate)?;
        Ok(SharedMemory { start: map(&made.file, bytes)?, words: bytes / 8, made: Some(made) })
    }

    /// The memory that another process of this user, or of root, has made. That of other users is refused: they
    /// could take it away while it is used here.
    ///
    /// # Errors
    /// open(2)'s; `NotFound` when something else has the name here; `PermissionDenied` when it is another
    /// user's.
    pub fn open(at: &LocalMemory) -> io::Result<SharedMemory> {
        check_name(&at.name)?;
        let file = open(&at.name)?;
        let meta = file.metadata()?;
        if (meta.dev(), meta.ino()) != (at.dev, at.ino) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it is not seen from here"));
        }
        if !meta.is_file() || ![0, geteuid().as_raw()].contains(&meta.uid()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // Its size does not change any more: what is mapped is there.
        let bytes = meta.len() as usize;
        Ok(SharedMemory { start: map(&file, bytes)?, words: bytes / 8, made: None })
    }

    /// Where others find it; `None` for who has not made it.
    pub fn whereabouts(&self) -> Option<&LocalMemory> {
        Some(&self.made.as_ref()?.at)
    }

    #[allow(missing_docs)]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped until it is dropped, aligned to pages; any bits are a number, and all who have it
        // mapped use atomic operations only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// Removes memory for which nobody answers any more, among all names that begin with `prefix`, and
    /// that with names which begin with `own` in any case; each is shown to `last` before. How many of
    /// its own were shown.
    ///
    /// # Errors
    /// What keeps it from showing all of its own.
    pub fn sweep(prefix: &str, own: &str, last: impl Fn(&SharedMemory)) -> io::Result<usize> {
        let (mut shown, mut result) = (0, Ok(()));
        for entry in std::fs::read_dir(DIR)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            let is_own = name.starts_with(own);
            if name.starts_with(prefix) {
                match abandon(&name, is_own, &last) {
                    Ok(bytes) => shown += usize::from(is_own && bytes > 0),
                    Err(error) if is_own => result = Err(error),
                    // What is another user's, or in use, stays.
                    Err(_) => {}
                }
            }
        }
        result.map(|()| shown)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = rustix::fs::unlink(path_of(&self.at.name));
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody can have a reference into it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.words * 8) };
    }
}

fn path_of(name: &str) -> String {
    format!("{DIR}/{name}")
}

fn open(name: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path_of(name), flags, Mode::empty())?.into())
}

/// Returns how many bytes it had.
fn abandon(name: &str, is_own: bool, last: impl Fn(&SharedMemory)) -> io::Result<usize> {
    let file = open(name)?;
    let meta = file.metadata()?;
    let bytes = meta.len() as usize;
    // Who is making one has not allocated it before it is locked.
    if !meta.is_file() || meta.uid() != geteuid().as_raw() || (bytes == 0 && !is_own) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    if !is_own {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    }
    if bytes > 0 {
        last(&SharedMemory { start: map(&file, bytes)?, words: bytes / 8, made: None });
    }
    rustix::fs::unlink(path_of(name))?;
    Ok(bytes)
}

fn map(file: &File, bytes: usize) -> io::Result<NonNull<AtomicU64>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping wherever the kernel likes.
    let start = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0)?
    };
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::Ordering;

    use super::*;

    fn name(what: &str) -> String {
        format!("saker-test-{what}-{}", std::process::id())
    }

    #[test]
    fn what_one_writes_the_other_reads() {
        let name = name("two");
        let made = SharedMemory::create(&name, 1 << 20).unwrap();
        assert!(SharedMemory::create(&name, 1 << 20).is_err(), "the name is taken");
        assert!(made.words().len() == 1 << 17);
        assert!(made.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        let at = made.whereabouts().unwrap().clone();
        let other = SharedMemory::open(&at).unwrap();
        made.words()[70_000].store(5, Ordering::Relaxed);
        assert_eq!(other.words()[70_000].load(Ordering::Relaxed), 5);
        let kind = |at: LocalMemory| SharedMemory::open(&at).err().unwrap().kind();
        assert_eq!(kind(LocalMemory { ino: at.ino + 1, ..at.clone() }), io::ErrorKind::NotFound);
        let outside = LocalMemory { name: "../null".into(), ..at.clone() };
        assert_eq!(kind(outside), io::ErrorKind::InvalidInput);
        drop(made);
        assert_eq!(kind(at), io::ErrorKind::NotFound);
        assert_eq!(other.words()[70_000].load(Ordering::Relaxed), 5, "it lasts while it is used");
        let huge = SharedMemory::create(&name, 1 << 50).err().unwrap();
        assert_eq!(huge.kind(), io::ErrorKind::StorageFull, "{huge}");
    }

    #[test]
    fn what_nobody_answers_for_is_removed() {
        let prefix = name("sweep");
        let names = ["dead", "alive", "own"].map(|what| format!("{prefix}-{what}"));
        let made = names.each_ref().map(|name| SharedMemory::create(name, 4096).unwrap());
        let [mut dead, alive, own] = made;
        // As by a kill: nobody removes the name.
        let at = dead.made.take().map(|made| {
            rustix::fs::flock(&made.file, FlockOperation::Unlock).unwrap();
            std::mem::forget(made);
        });
        assert!(at.is_some());
        let mark = |memory: &SharedMemory| memory.words()[0].store(9, Ordering::SeqCst);
        assert_eq!(SharedMemory::sweep(&prefix, &names[2], mark).unwrap(), 1);
        let there = names.each_ref().map(|name| std::path::Path::new(&path_of(name)).exists());
        assert_eq!(there, [false, true, false]);
        let first = |memory: &SharedMemory| memory.words()[0].load(Ordering::SeqCst);
        assert_eq!([&dead, &alive, &own].map(first), [9, 0, 9]);
        assert!(SharedMemory::open(alive.whereabouts().unwrap()).is_ok());
    }
}
