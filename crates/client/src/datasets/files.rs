//! Files of the datasets' home, as the superuser's.

use bytes::Bytes;
use saker_types::wire::At;
use saker_types::{Errno, Error, Result};

use crate::{Caller, Fs, OpenFlags};

/// Bytes that are read or written at once.
pub(super) const PIECE_BYTES: usize = 4 << 20;

pub(super) const READ: OpenFlags = OpenFlags::READ;
const WRITE: OpenFlags = OpenFlags { write: true, truncate: true, ..READ };

/// Files of a file system.
#[derive(Clone, Copy)]
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
        next: impl AsyncFnMut() -> Result<Option<Bytes>>,
    ) -> Result<()> {
        let mut new = at.clone();
        let Some(name) = new.path.pop() else { return Err(Errno::EISDIR.into()) };
        // Two may write the same at once.
        let odd = format!(".{:016x}.new", saker_runtime::rand::u64());
        new.path.push([&name[..], odd.as_bytes()].concat().into());
        let written = self.write_new(&new, next).await;
        if let Err(error) = written {
            let _ = self.remove(&new).await;
            return Err(error);
        }
        self.fs.rename(&Caller::root(), &new, at, false, &[]).await?;
        Ok(())
    }

    async fn write_new(
        &self,
        at: &At,
        mut next: impl AsyncFnMut() -> Result<Option<Bytes>>,
    ) -> Result<()> {
        let (file, _) = self.fs.create(&Caller::root(), at, 0o600, WRITE).await?;
        let mut offset = 0;
        let mut written = Ok(());
        while written.is_ok() {
            written = match next().await {
                Ok(None) => break,
                Ok(Some(piece)) => {
                    let wrote = file.write(offset, &piece).await;
                    offset += piece.len() as u64;
                    wrote.map(drop)
                }
                Err(error) => Err(error),
            };
        }
        if written.is_ok() {
            written = file.fsync().await;
        }
        file.release().await;
        written
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
