//! Data that comes from elsewhere than from rows and stores: bytes in memory, a local file, a part
//! of a dataset. It does not change while it is open.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use saker_types::wire::Entry;
use saker_types::{Errno, Error, Result};

use crate::{OpenFlags, Seek};

/// Where the data of a file comes from.
pub(crate) trait DataSource: Send + Sync {
    /// The bytes from `offset` on, `len` of them. Only what lies before the end of the file is asked
    /// for.
    ///
    /// # Errors
    /// EIO where they cannot be had.
    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes>>;
}

/// Bytes in memory.
impl DataSource for Bytes {
    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes>> {
        let end = offset.saturating_add(len as u64);
        let found = match end <= self.len() as u64 {
            true => Ok(self.slice(offset as usize..end as usize)),
            false => Err(Errno::EIO.into()),
        };
        Box::pin(std::future::ready(found))
    }
}

/// One open(2) of a file whose data comes from a source.
pub(crate) struct Sourced {
    entry: Entry,
    flags: OpenFlags,
    source: Box<dyn DataSource>,
}

impl Sourced {
    /// Of a file of `entry.attr.size` bytes.
    ///
    /// # Errors
    /// EROFS to open it for writing.
    pub(crate) fn new(
        entry: Entry,
        flags: OpenFlags,
        source: impl DataSource + 'static,
    ) -> Result<Sourced> {
        if flags.write || flags.append || flags.truncate {
            return Err(Errno::EROFS.into());
        }
        Ok(Sourced { entry, flags, source: Box::new(source) })
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Reads up to `len` bytes at `offset`; less only at the end of the file.
    ///
    /// # Errors
    /// EBADF when it is not open for reading, EISDIR, those of the source.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        if !self.flags.read {
            return Err(Errno::EBADF.into());
        }
        if self.entry.attr.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        let left = self.entry.attr.size.saturating_sub(offset);
        let len = left.min(len as u64) as usize;
        if len == 0 {
            return Ok(Bytes::new());
        }
        let data = self.source.read(offset, len).await?;
        if data.len() != len {
            return Err(Error::new(Errno::EIO).with_text("a source gave another number of bytes"));
        }
        Ok(data)
    }

    /// lseek(2): all before the end is data.
    ///
    /// # Errors
    /// ENXIO when `offset` is not before the end.
    pub(crate) fn seek(&self, want: Seek, offset: u64) -> Result<u64> {
        let size = self.entry.attr.size;
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        Ok(match want {
            Seek::Data => offset,
            Seek::Hole => size,
        })
    }
}

#[cfg(test)]
mod tests;
