//! Files of another process of this machine, read without ever waiting.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags};
use saker_types::wire::LocalDir;

use super::ring::DirectFile;

/// `f_type` of FUSE file systems (statfs(2)).
const FUSE: u64 = 0x6573_5546;

/// Another process's directory.
pub(super) struct ForeignDir {
    dir: OwnedFd,
    /// `st_dev`.
    disk: u64,
}

/// A file of one, to be read.
pub(super) struct ForeignFile {
    file: File,
    disk: u64,
}

impl ForeignDir {
    /// Opens a directory of this machine, if it is seen from here: the very same one. This may take as
    /// long as the file systems on the way do.
    ///
    /// # Errors
    /// open(2)'s; `NotFound` when its path leads to another directory here; `Unsupported` on FUSE, whose
    /// process could be the caller, who waits for nobody.
    pub(super) fn open(at: &LocalDir) -> io::Result<ForeignDir> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&at.path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&dir)?;
        if (stat.st_dev, stat.st_ino) != (at.dev, at.ino) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it is not seen from here"));
        }
        if rustix::fs::fstatfs(&dir)?.f_type as u64 == FUSE {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(ForeignDir { dir, disk: at.dev })
    }

    /// Opens a file, unless its name has to be fetched from a disk.
    ///
    /// # Errors
    /// openat2(2)'s; `InvalidInput` for what is no name.
    pub(super) fn file(&self, name: &str) -> io::Result<Option<ForeignFile>> {
        let is_name =
            !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
        if !is_name {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("file name {name:?}")));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let how = within | ResolveFlags::CACHED;
        match rustix::fs::openat2(&self.dir, name, flags, Mode::empty(), how) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            opened => Ok(Some(ForeignFile { file: opened?.into(), disk: self.disk })),
        }
    }
}

impl ForeignFile {
    /// Reads a range, if none of it has to be fetched from a disk.
    ///
    /// # Errors
    /// preadv2(2)'s, `Unsupported` where the file system does not say whether it would wait;
    /// `UnexpectedEof` if the file ends before.
    pub(super) fn read_cached(&self, offset: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
        let mut data = vec![0; len];
        let mut read = 0;
        while read < len {
            let rest = &mut [IoSliceMut::new(&mut data[read..])];
            let at = offset + read as u64;
            match rustix::io::preadv2(&self.file, rest, at, ReadWriteFlags::NOWAIT) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => read += more,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(data))
    }

    /// The file for reads past the page cache.
    ///
    /// # Errors
    /// `InvalidInput` where its file system cannot do that.
    pub(super) fn direct(self) -> io::Result<DirectFile> {
        DirectFile::new(self.file, self.disk)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::{Dir, MemDir, RealDir};

    use super::*;

    #[test]
    fn only_the_very_directory_is_opened() {
        let path = tempfile::tempdir().unwrap();
        let dir = RealDir::open(path.path()).unwrap();
        let at = dir.whereabouts().unwrap();
        assert!(ForeignDir::open(&at).is_ok());
        let refused = |at: LocalDir| ForeignDir::open(&at).err().unwrap().kind();
        let other = tempfile::tempdir().unwrap();
        assert_eq!(
            refused(LocalDir { path: other.path().to_str().unwrap().into(), ..at.clone() }),
            io::ErrorKind::NotFound
        );
        assert_eq!(
            refused(LocalDir { path: "/nowhere".into(), ..at.clone() }),
            io::ErrorKind::NotFound
        );
        dir.create("file").unwrap();
        assert_eq!(
            refused(LocalDir { path: format!("{}/file", at.path), ..at }),
            io::ErrorKind::NotADirectory
        );
        assert!(MemDir::new().whereabouts().is_none());
    }

    #[test]
    fn files_are_read_and_nothing_else() {
        let path = tempfile::tempdir().unwrap();
        let dir = RealDir::open(path.path()).unwrap();
        let foreign = ForeignDir::open(&dir.whereabouts().unwrap()).unwrap();
        dir.create("file").unwrap().write_at(0, b"0123456789").unwrap();
        let read = |name, len| match foreign.file(name)? {
            Some(file) => file.read_cached(2, len),
            None => Ok(None),
        };
        // The kernel may say of any read that it would wait, but not each time.
        assert_eq!((0..100).find_map(|_| read("file", 5).unwrap()).unwrap(), b"23456");
        let kind = |name| (0..100).find_map(|_| read(name, 9).err()).unwrap().kind();
        assert_eq!(kind("file"), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind("../file"), io::ErrorKind::InvalidInput);
        std::os::unix::fs::symlink("file", path.path().join("link")).unwrap();
        assert!((0..100).any(|_| read("link", 1).is_err()));
        // The name is remembered to be absent, or would have to be looked for.
        assert!(!matches!(read("none", 1), Ok(Some(_))));
        dir.remove("file").unwrap();
        assert!(!matches!(read("file", 1), Ok(Some(_))));
    }
}
