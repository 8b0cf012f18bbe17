//! Data of files in frozen datasets.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use saker_dataset::table::Ino;
use saker_dataset::{BLOCK_BYTES, Codec, FileData};
use saker_types::{Errno, Error, Result};

use super::loaded::LoadedDataset;
use crate::data::source::DataSource;
use crate::{File, Fs};

/// An open file.
pub(super) struct FrozenFile {
    dataset: Arc<LoadedDataset>,
    part: Arc<File>,
    data: FileData,
    /// The block that was read last, if blocks are compressed.
    last: Mutex<Option<(u64, Bytes)>>,
}

impl FrozenFile {
    pub(super) async fn open(
        fs: &Fs,
        dataset: &Arc<LoadedDataset>,
        ino: Ino,
    ) -> Result<FrozenFile> {
        let unknown = || Error::new(Errno::EIO).with_text("compressed in a way that is not known");
        let data = dataset.table.inode(ino).data().ok_or_else(unknown)?;
        let part = dataset.part(fs, data.partition).await?;
        Ok(FrozenFile { dataset: dataset.clone(), part, data, last: Mutex::default() })
    }

    /// Bytes of the partition.
    async fn stored(&self, offset: u64, len: u64) -> Result<Bytes> {
        let bytes = self.part.read(offset, len as usize).await?;
        if bytes.len() as u64 == len {
            return Ok(bytes);
        }
        let text = format!("a partition of {} is cut short", self.dataset.record.name);
        Err(Error::new(Errno::EIO).with_text(text))
    }

    async fn block(&self, n: u64) -> Result<Bytes> {
        let known = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((last, block)) = known
            && last == n
        {
            return Ok(block);
        }
        let table = &self.dataset.table;
        let wrong = |what: String| Error::new(Errno::EIO).with_text(what);
        let range = table.stored_block(&self.data, n);
        let range = range.ok_or_else(|| wrong(format!("block {n} is missing")))?;
        if range.end - range.start > BLOCK_BYTES {
            return Err(wrong(format!("block {n} is too long")));
        }
        let stored = self.stored(self.data.offset + range.start, range.end - range.start).await?;
        let block = table.expand(&self.data, n, (&stored[..]).into());
        let block = Bytes::from(block.map_err(|e| wrong(e.to_string()))?);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((n, block.clone()));
        Ok(block)
    }

    async fn blocks(&self, offset: u64, len: usize) -> Result<Bytes> {
        let (mut pos, end) = (offset, offset + len as u64);
        let mut all = BytesMut::new();
        while pos < end {
            let block = self.block(pos / BLOCK_BYTES).await?;
            let from = (pos % BLOCK_BYTES) as usize;
            let until = block.len().min(from + (end - pos) as usize);
            let Some(piece) = block.get(from..until).filter(|piece| !piece.is_empty()) else {
                return Err(Errno::EIO.into());
            };
            if piece.len() == len {
                return Ok(block.slice(from..until));
            }
            all.extend_from_slice(piece);
            pos += piece.len() as u64;
        }
        Ok(all.freeze())
    }
}

impl DataSource for FrozenFile {
    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            match self.data.codec {
                // Stores compare what they read with checksums of their own.
                Codec::None => self.stored(self.data.offset + offset, len as u64).await,
                _ => self.blocks(offset, len).await,
            }
        })
    }
}
