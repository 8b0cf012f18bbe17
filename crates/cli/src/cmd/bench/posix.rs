//! A mounted file system, through system calls.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::retry_on_intr;

use super::target::{DirPath, Runner, Target};

/// A directory of any file system, through one or several of its mounts.
#[derive(Clone)]
pub struct Posix {
    bases: Arc<Vec<PathBuf>>,
    /// Which of them is used.
    chosen: usize,
    sync_dirs: bool,
}

impl Posix {
    /// Works in a directory that has these paths, at least one. With `sync_dirs` a directory is
    /// flushed after each of its changes.
    pub fn new(bases: Vec<PathBuf>, sync_dirs: bool) -> Posix {
        Posix { bases: Arc::new(bases), chosen: 0, sync_dirs }
    }

    fn base(&self) -> &Path {
        &self.bases[self.chosen]
    }

    /// Makes the change of a name durable, if that was asked for.
    fn changed(&self, place: &Path) -> io::Result<()> {
        match place.parent() {
            Some(dir) if self.sync_dirs => File::open(dir)?.sync_all(),
            _ => Ok(()),
        }
    }
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was written")
}

impl Runner for Posix {
    fn of_thread(&self, n: usize) -> Posix {
        Posix { chosen: n % self.bases.len(), ..self.clone() }
    }

    /// Nothing here ever waits for anything but a system call.
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) =
                future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                return output;
            }
        }
    }
}

impl Target for Posix {
    type Place = PathBuf;

    fn place(&self, dir: &DirPath, name: &str) -> PathBuf {
        let mut path = self.base().to_owned();
        path.extend(dir);
        path.push(name);
        path
    }

    async fn create(&self, place: &PathBuf) -> io::Result<()> {
        drop(File::create_new(place)?);
        self.changed(place)
    }

    async fn getattr(&self, place: &PathBuf) -> io::Result<()> {
        std::fs::symlink_metadata(place).map(drop)
    }

    async fn open(&self, place: &PathBuf) -> io::Result<()> {
        File::open(place).map(drop)
    }

    async fn unlink(&self, place: &PathBuf) -> io::Result<()> {
        std::fs::remove_file(place)?;
        self.changed(place)
    }

    async fn mkdir(&self, place: &PathBuf) -> io::Result<()> {
        std::fs::create_dir(place)?;
        self.changed(place)
    }

    async fn rmdir(&self, place: &PathBuf) -> io::Result<()> {
        std::fs::remove_dir(place)?;
        self.changed(place)
    }

    async fn write(&self, place: &PathBuf, content: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(place)?;
        file.write_all(content)
    }

    async fn overwrite(&self, place: &PathBuf, content: &[u8]) -> io::Result<()> {
        OpenOptions::new().write(true).truncate(true).open(place)?.write_all(content)
    }

    async fn read(&self, place: &PathBuf, len: usize) -> io::Result<Bytes> {
        let file = File::open(place)?;
        // Not zeroed before: that would be a good part of what reading costs.
        let mut content = Vec::with_capacity(len);
        while content.len() < len {
            if retry_on_intr(|| rustix::io::read(&file, spare_capacity(&mut content)))? == 0 {
                return Err(short());
            }
        }
        content.truncate(len);
        Ok(content.into())
    }

    fn make_base(&self) -> io::Result<()> {
        std::fs::create_dir(self.base())
    }

    fn remove_base(&self) -> io::Result<()> {
        std::fs::remove_dir_all(self.base())
    }
}

/// Type of the file system that holds a path, for the report.
pub fn fstype(path: &Path) -> String {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounts = crate::procfs::mounts().unwrap_or_default();
    let above = mounts.into_iter().rev().filter(|mount| real.starts_with(&mount.point));
    let innermost = above.max_by_key(|mount| mount.point.components().count());
    innermost.map_or_else(|| "unknown".to_owned(), |mount| mount.fstype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_at_the_mounts() {
        let all = Posix::new(vec!["/a".into(), "/b".into()], false);
        let place = |n| all.of_thread(n).place(&vec!["d".to_owned()], "f");
        assert_eq!([0, 1, 2].map(place), ["/a/d/f", "/b/d/f", "/a/d/f"].map(PathBuf::from));
        assert_eq!(all.base(), Path::new("/a"));
    }
}
