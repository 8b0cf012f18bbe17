//! Reads from a file that is mapped into memory: no system call, and no kernel that looks for the page.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::guarded;
use crate::sim;

/// A file as it was when it was mapped.
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory that is only read, by copies that take whatever they find.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of a file, for reads here and there.
    ///
    /// # Errors
    /// mmap(2)'s, `InvalidInput` for an empty file; sigaction(2)'s; `Unsupported` where a page that cannot be
    /// read would end the process.
    pub(super) fn new(file: &File) -> io::Result<Mapping> {
        guarded::prepare()?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        // SAFETY: a new mapping wherever the kernel likes.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0)?
        };
        let start: NonNull<u8> = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: mapped above. Advice that is not taken is no harm.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::Random) };
        Ok(Mapping { start, bytes })
    }

    /// Copies what is at `offset`, up to the end of the file; returns how much that was. `None`: some of it
    /// cannot be read. May wait for the disk ([`page_waits`]).
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let offset = usize::try_from(offset).map_or(self.bytes, |offset| offset.min(self.bytes));
        let len = buf.len().min(self.bytes - offset);
        // SAFETY: so many bytes from `offset` on are mapped, and `buf` has room for them.
        let done = unsafe { guarded::copy(buf.as_mut_ptr(), self.start.as_ptr().add(offset), len) };
        done.then_some(len)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody ever has a reference into it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// What this thread has made the disk do so far (getrusage(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageWaits {
    /// Major page faults: what was touched, of mapped files and of the program, had to be read first.
    pub faults: u64,
    /// Reads, in blocks of 512 bytes: for these, and for others without waiting for them.
    pub blocks: u64,
}

/// That, where files are read by mappings: not while simulated, nor before a file is mapped.
pub fn page_waits() -> PageWaits {
    if sim::is_active() || !guarded::is_prepared() {
        return PageWaits::default();
    }
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: it has room for what is written, and its zeros are a value, too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    PageWaits { faults: usage.ru_majflt as u64, blocks: usage.ru_inblock as u64 }
}
