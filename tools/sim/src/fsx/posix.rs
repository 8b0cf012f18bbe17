//! A file of the running kernel.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use saker_client::{Fallocate, Seek};

use super::FsxTarget;
use crate::map::Map;

const PAGE_BYTES: u64 = 4096;

/// A file that is read and written by system calls.
pub struct PosixFile {
    path: PathBuf,
    file: File,
    /// The same file, opened for appending.
    end: File,
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl PosixFile {
    /// Makes or opens a file.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path) -> io::Result<PosixFile> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        let end = OpenOptions::new().append(true).open(path)?;
        Ok(PosixFile { path: path.to_owned(), file, end })
    }

    fn map(&self, at: u64, len: usize) -> io::Result<(Map, usize)> {
        let start = at & !(PAGE_BYTES - 1);
        let skip = (at - start) as usize;
        let whole = (skip + len).next_multiple_of(PAGE_BYTES as usize);
        Ok((Map::new(&self.file, start, whole, true)?, skip))
    }
}

impl FsxTarget for PosixFile {
    fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut out = vec![0; len];
        let mut got = 0;
        while got < len {
            match self.file.read_at(&mut out[got..], at + got as u64)? {
                0 => break,
                n => got += n,
            }
        }
        out.truncate(got);
        Ok(out)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, at)
    }

    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut self.end, data)
    }

    fn map_read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let size = self.size()?;
        let (map, skip) = self.map(at, len)?;
        let mut bytes = map.read();
        let start = at - skip as u64;
        let end = (size - start).min(bytes.len() as u64) as usize;
        if bytes[end..].iter().any(|byte| *byte != 0) {
            return Err(io::Error::other("the last page has bytes behind the file's end"));
        }
        bytes.truncate(skip + len);
        Ok(bytes.split_off(skip))
    }

    fn map_write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        let (map, skip) = self.map(at, data.len())?;
        map.write(skip, data)
    }

    fn truncate(&mut self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    fn fallocate(&mut self, how: Fallocate, at: u64, len: u64) -> io::Result<()> {
        let mode = match how {
            Fallocate::Grow => 0,
            Fallocate::Reserve => libc::FALLOC_FL_KEEP_SIZE,
            Fallocate::Punch => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Fallocate::Zero => libc::FALLOC_FL_ZERO_RANGE,
            Fallocate::ZeroKeepSize => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        };
        // SAFETY: a system call on an open file, without memory.
        done(unsafe { libc::fallocate(self.file.as_raw_fd(), mode, at as i64, len as i64) })
    }

    fn copy(&mut self, from: u64, to: u64, len: u64) -> io::Result<()> {
        let (mut from, mut to, mut left) = (from as i64, to as i64, len as usize);
        let fd = self.file.as_raw_fd();
        while left > 0 {
            // SAFETY: both offsets are this function's own and live through the call.
            let n = unsafe { libc::copy_file_range(fd, &mut from, fd, &mut to, left, 0) };
            match n {
                ..0 => return Err(io::Error::last_os_error()),
                0 => return Err(io::Error::other(format!("{left} bytes were not copied"))),
                n => left -= n as usize,
            }
        }
        Ok(())
    }

    fn seek(&mut self, want: Seek, at: u64) -> io::Result<Option<u64>> {
        let whence = match want {
            Seek::Data => libc::SEEK_DATA,
            Seek::Hole => libc::SEEK_HOLE,
        };
        // SAFETY: a system call on an open file, without memory.
        let found = unsafe { libc::lseek(self.file.as_raw_fd(), at as i64, whence) };
        if found >= 0 {
            return Ok(Some(found as u64));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENXIO) if want == Seek::Data => Ok(None),
            _ => Err(error),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn reopen(&mut self) -> io::Result<()> {
        // SAFETY: advice on an open file, without memory.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        *self = PosixFile::create(&self.path.clone())?;
        Ok(())
    }

    fn size(&mut self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}
