//! A file of a cluster, through the library. Maps are reads and writes here.

use std::io;

use saker_client::{Caller, Fallocate, File, Fs, OpenFlags, Seek, SetAttr};
use saker_types::wire::At;
use saker_types::{Errno, Error};

use super::FsxTarget;

/// `O_RDWR`.
const READ_WRITE: i32 = 2;
/// `O_RDWR | O_APPEND`.
const APPEND: i32 = 0o2002;

/// A file that is read and written through a client.
pub struct LibFsFile {
    fs: Fs,
    at: At,
    file: File,
    end: File,
}

fn told(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

impl LibFsFile {
    /// Makes or opens a file.
    ///
    /// # Errors
    /// The client's.
    pub fn create(fs: &Fs, at: &At) -> io::Result<LibFsFile> {
        let who = Caller::root();
        let open = |flags| async move {
            let flags = OpenFlags::from_linux(flags);
            fs.create(&who, at, 0o644, flags).await.map(|(file, _)| file).map_err(told)
        };
        let file = fs.block_on(open(READ_WRITE))?;
        let who = Caller::root();
        let end = fs.block_on(fs.open(&who, at, OpenFlags::from_linux(APPEND))).map_err(told)?.0;
        Ok(LibFsFile { fs: fs.clone(), at: at.clone(), file, end })
    }
}

impl FsxTarget for LibFsFile {
    fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let data = self.fs.block_on(self.file.read(at, len)).map_err(told)?;
        Ok(data.to_vec())
    }

    fn write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        self.fs.block_on(self.file.write(at, data)).map(|_| ()).map_err(told)
    }

    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.fs.block_on(self.end.write(0, data)).map(|_| ()).map_err(told)
    }

    fn map_read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        self.read(at, len)
    }

    fn map_write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        self.write(at, data)
    }

    fn truncate(&mut self, size: u64) -> io::Result<()> {
        let change = SetAttr { size: Some(size), by_handle: true, ..SetAttr::default() };
        let at = At::handle(self.file.locator());
        let who = Caller::root();
        let set = self.fs.setattr(&who, &at, &change);
        self.fs.block_on(set).map(|_| ()).map_err(told)
    }

    fn fallocate(&mut self, how: Fallocate, at: u64, len: u64) -> io::Result<()> {
        self.fs.block_on(self.file.fallocate(how, at, len)).map_err(told)
    }

    fn copy(&mut self, from: u64, to: u64, len: u64) -> io::Result<()> {
        let copied = self.fs.block_on(self.file.copy_to(from, &self.file, to, len));
        match copied.map_err(told)? {
            n if n == len => Ok(()),
            n => Err(io::Error::other(format!("{n} of {len} bytes were copied"))),
        }
    }

    fn seek(&mut self, want: Seek, at: u64) -> io::Result<Option<u64>> {
        match self.fs.block_on(self.file.seek(want, at)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.errno() == Errno::ENXIO && want == Seek::Data => Ok(None),
            Err(error) => Err(told(error)),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.fs.block_on(self.file.fsync()).map_err(told)
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.fs.block_on(self.file.flush()).map_err(told)?;
        self.fs.block_on(self.end.flush()).map_err(told)?;
        let new = LibFsFile::create(&self.fs, &self.at)?;
        let old = std::mem::replace(self, new);
        self.fs.block_on(old.file.release());
        self.fs.block_on(old.end.release());
        Ok(())
    }

    fn size(&mut self) -> io::Result<u64> {
        let at = At::handle(self.file.locator());
        let entry = self.fs.block_on(self.fs.getattr(&Caller::root(), &at)).map_err(told)?;
        Ok(entry.attr.size)
    }
}
