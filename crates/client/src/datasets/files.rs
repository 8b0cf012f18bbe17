//! Files of the datasets' home, as the superuser's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use saker_types::wire::At;
use saker_types::{Errno, Error, Result};

use crate::{Caller, File, Fs, Lock, OpenFlags};

/// Bytes that are read or written at once.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// How long a lock is waited for before it is asked for again.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Owners of the lock in this process.
static LOCKS: AtomicU64 = AtomicU64::new(0);

const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    append: false,
    truncate: false,
    exclusive: false,
    execute: false,
};
const WRITE: OpenFlags = OpenFlags { write: true, truncate: true, ..READ };

/// Files of a file system.
pub(super) struct Files<'a> {
    pub(super) fs: &'a Fs,
}

/// `None` for what is not there.
fn there<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.errno() == Errno::ENOENT => Ok(None),
        Err(error) => Err(error),
    }
}

impl Files<'_> {
    /// Makes the directories of the home.
    pub(super) async fn make_home(&self) -> Result<()> {
        for names in [&[][..], &["names"], &["objects"]] {
            let place = super::at(names);
            for depth in 1..=place.path.len() {
                let dir = At::below(place.anchor.clone(), place.path[..depth].to_vec());
                match self.fs.mkdir(&Caller::root(), &dir, 0o700).await {
                    Err(error) if error.errno() != Errno::EEXIST => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Works alone: whoever freezes, removes or collects has the lock, which is on the file that is
    /// handed over. It can be lost, when the cluster does not hear of this client for some seconds.
    pub(super) async fn alone<T>(&self, work: impl AsyncFnOnce(&File) -> Result<T>) -> Result<T> {
        self.make_home().await?;
        let (flags, at) = (OpenFlags { write: true, ..READ }, super::at(&["lock"]));
        let (file, _) = self.fs.create(&Caller::root(), &at, 0o600, flags).await?;
        // Others of this client must wait, too.
        let owner = LOCKS.fetch_add(1, Ordering::Relaxed);
        let lock = Lock { exclusive: true, ..Lock::whole(owner, true) };
        while let Err(error) = file.set_lock(&lock, LOCK_WAIT).await {
            if error.errno() != Errno::EAGAIN {
                return Err(error);
            }
        }
        let done = work(&file).await;
        // A client that dies here loses it with its lease.
        file.unlock(&lock).await?;
        file.release().await;
        done
    }

    /// Names in a directory; none if it is not there.
    pub(super) async fn names(&self, dir: &At) -> Result<Vec<Bytes>> {
        let Some(dir) = there(self.fs.lookup(&Caller::root(), dir).await)? else {
            return Ok(Vec::new());
        };
        let mut listing = self.fs.readdir(&Caller::root(), &dir.loc, 0);
        let mut names = Vec::new();
        while let Some(item) = listing.next().await? {
            names.push(item.name);
        }
        Ok(names)
    }

    /// Bytes of a file.
    pub(super) async fn size(&self, at: &At) -> Result<Option<u64>> {
        let entry = there(self.fs.getattr(&Caller::root(), at).await)?;
        Ok(entry.map(|entry| entry.attr.size))
    }

    /// All of a file.
    pub(super) async fn read(&self, at: &At) -> Result<Option<Bytes>> {
        let opened = self.fs.open(&Caller::root(), at, READ).await;
        let Some((file, entry)) = there(opened)? else { return Ok(None) };
        let data = file.read(0, entry.attr.size as usize).await?;
        file.release().await;
        Ok(Some(data))
    }

    /// A part of a file.
    pub(super) async fn read_part(&self, at: &At, offset: u64, len: usize) -> Result<Bytes> {
        let (file, _) = self.fs.open(&Caller::root(), at, READ).await?;
        let data = file.read(offset, len).await;
        file.release().await;
        data
    }

    /// Writes a file that is there whole or not at all.
    pub(super) async fn write(
        &self,
        at: &At,
        mut next: impl AsyncFnMut() -> Result<Option<Bytes>>,
    ) -> Result<()> {
        let mut new = at.clone();
        let Some(name) = new.path.pop() else { return Err(Errno::EISDIR.into()) };
        new.path.push([&name[..], b".new"].concat().into());
        let (file, _) = self.fs.create(&Caller::root(), &new, 0o600, WRITE).await?;
        let mut offset = 0;
        while let Some(piece) = next().await? {
            file.write(offset, &piece).await?;
            offset += piece.len() as u64;
        }
        file.fsync().await?;
        file.release().await;
        self.fs.rename(&Caller::root(), &new, at, false, &[]).await?;
        Ok(())
    }

    /// Removes a file.
    pub(super) async fn remove(&self, at: &At) -> Result<()> {
        self.fs.unlink(&Caller::root(), at).await.map(drop)
    }
}

/// An error of a local file.
pub(super) fn local(path: &std::path::Path, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().map_or(Errno::EIO, |raw| Errno(raw as u16));
    Error::new(errno).with_text(format!("{}: {error}", path.display()))
}
