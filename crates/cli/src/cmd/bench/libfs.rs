//! A cluster, through LibFS.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use saker_client::{Caller, File, Fs, OpenFlags};
use saker_types::wire::At;
use saker_types::{Error, FileKind, Locator};

use super::target::{DirPath, Runner, Target};
use crate::session::CliSession;
use crate::tree::Removal;

/// A directory of a cluster.
#[derive(Clone)]
pub struct LibFs {
    fs: Fs,
    who: Arc<Caller>,
    base: Arc<String>,
}

const FILE: u32 = 0o100_644;
const DIRECTORY: u32 = 0o040_755;

impl LibFs {
    /// Works in a directory of this name in the root, which does not exist yet.
    pub fn new(session: CliSession, base: String) -> LibFs {
        LibFs { fs: session.fs, who: Arc::new(session.who), base: Arc::new(base) }
    }

    /// The same cluster, in another directory.
    pub fn based(&self, base: &str) -> LibFs {
        LibFs { base: Arc::new(base.to_owned()), ..self.clone() }
    }

    /// Its directory.
    pub fn base_place(&self) -> At {
        At::child(Locator::root(), self.base.as_bytes())
    }
}

fn io_error(error: Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.errno().0.into()).kind();
    io::Error::new(kind, error)
}

/// Writes the content of a file, and closes it.
async fn fill(file: File, content: &[u8]) -> io::Result<()> {
    let written = match file.write(0, content).await {
        Ok(_) => file.flush().await,
        Err(error) => Err(error),
    };
    file.release().await;
    written.map_err(io_error)
}

impl Runner for LibFs {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.fs.block_on(future)
    }
}

impl Target for LibFs {
    type Place = At;

    /// The whole path from the root: the server resolves it, as it does for an application.
    fn place(&self, dir: &DirPath, name: &str) -> At {
        let names = std::iter::once(self.base.as_str()).chain(dir.iter().map(String::as_str));
        let path = names.chain([name]).map(|name| Bytes::copy_from_slice(name.as_bytes()));
        At::below(Locator::root(), path.collect())
    }

    async fn create(&self, place: &At) -> io::Result<()> {
        let flags = OpenFlags { write: true, exclusive: true, ..OpenFlags::default() };
        let (file, _) = self.fs.create(&self.who, place, FILE, flags).await.map_err(io_error)?;
        file.release().await;
        Ok(())
    }

    async fn getattr(&self, place: &At) -> io::Result<()> {
        self.fs.getattr(&self.who, place).await.map(drop).map_err(io_error)
    }

    async fn open(&self, place: &At) -> io::Result<()> {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let (file, _) = self.fs.open(&self.who, place, flags).await.map_err(io_error)?;
        file.release().await;
        Ok(())
    }

    async fn unlink(&self, place: &At) -> io::Result<()> {
        self.fs.unlink(&self.who, place).await.map(drop).map_err(io_error)
    }

    async fn mkdir(&self, place: &At) -> io::Result<()> {
        self.fs.mkdir(&self.who, place, DIRECTORY).await.map(drop).map_err(io_error)
    }

    async fn rmdir(&self, place: &At) -> io::Result<()> {
        self.fs.rmdir(&self.who, place).await.map(drop).map_err(io_error)
    }

    async fn write(&self, place: &At, content: &[u8]) -> io::Result<()> {
        let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
        let (file, _) = self.fs.create(&self.who, place, FILE, flags).await.map_err(io_error)?;
        fill(file, content).await
    }

    async fn overwrite(&self, place: &At, content: &[u8]) -> io::Result<()> {
        let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
        let (file, _) = self.fs.open(&self.who, place, flags).await.map_err(io_error)?;
        fill(file, content).await
    }

    async fn read(&self, place: &At, len: usize) -> io::Result<Bytes> {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let (file, _) = self.fs.open(&self.who, place, flags).await.map_err(io_error)?;
        let content = file.read(0, len).await;
        file.release().await;
        let content = content.map_err(io_error)?;
        match content.len() == len {
            true => Ok(content),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn make_base(&self) -> io::Result<()> {
        let place = self.base_place();
        let made = self.fs.mkdir(&self.who, &place, DIRECTORY);
        self.fs.block_on(made).map(drop).map_err(io_error)
    }

    fn remove_base(&self) -> io::Result<()> {
        let place = self.base_place();
        let entry = self.fs.block_on(self.fs.lookup(&self.who, &place));
        let entry = entry.map_err(io_error)?;
        debug_assert_eq!(FileKind::of_mode(entry.attr.mode), Some(FileKind::Directory));
        let mut first = None;
        let removal = Removal::to_the_end(&self.fs, &self.who, |_, failure| {
            if let (Some((_, error)), None) = (failure, &first) {
                first = Some(error.clone());
            }
        });
        self.fs.block_on(removal.run(entry.loc, place, self.base.as_bytes().to_vec()));
        first.map_or(Ok(()), |error| Err(io_error(error)))
    }
}
