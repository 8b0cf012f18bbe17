//! Maps of files (mmap(2)).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A shared map of a file, unmapped when dropped.
pub struct Map {
    start: *mut libc::c_void,
    len: usize,
}

impl Map {
    /// Of the pages from `at` (a page's first byte) on, to be read, or written, too.
    pub fn new(file: &File, at: u64, len: usize, writable: bool) -> io::Result<Map> {
        let write = if writable { libc::PROT_WRITE } else { 0 };
        let (access, shared) = (libc::PROT_READ | write, libc::MAP_SHARED);
        // SAFETY: a new map at a place of the kernel's choosing; it touches no other memory.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, access, shared, file.as_raw_fd(), at as i64)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Map { start, len })
    }

    /// All that it shows now.
    pub fn read(&self) -> Vec<u8> {
        let mut out = vec![0; self.len];
        // SAFETY: the map has `len` bytes, is mapped for reading as long as self lives, and the
        // copy is another allocation; the file, which nobody cuts meanwhile, covers all its pages.
        unsafe { std::ptr::copy_nonoverlapping(self.start.cast(), out.as_mut_ptr(), self.len) };
        out
    }

    /// Writes through it, and flushes it.
    ///
    /// # Errors
    /// As msync(2).
    pub fn write(&self, at: usize, data: &[u8]) -> io::Result<()> {
        assert!(at + data.len() <= self.len);
        // SAFETY: as in `read`; `at` and the length lie within the map, mapped for writing.
        unsafe {
            let to = self.start.cast::<u8>().add(at);
            std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
        }
        // SAFETY: the range is that of the map.
        match unsafe { libc::msync(self.start, self.len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is that of the map, and nothing borrows from it.
        unsafe { libc::munmap(self.start, self.len) };
    }
}
