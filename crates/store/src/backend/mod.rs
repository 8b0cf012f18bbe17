//! Where a store keeps chunks. [`segments`] does on a disk; an object store, erasure-coded pieces
//! on other stores or plain files would be further backends.
//!
//! A backend knows chunks and truncate generations. Retries, what is set aside, and who waits for
//! what are [`crate::service`]'s: one call of the backend for each request. All backends keep to
//! the rules that `conformance` checks:
//!
//! - What a call has done survives the death of the process when it returns, and the loss of power
//!   after the next [`ChunkBackend::flush`].
//! - What is read is what was written: damage is an error, never data.
//! - A write of an older generation than a truncation is refused, and none is taken for an inode
//!   that was deleted.
//! - Without room (ENOSPC) data is refused; truncations and deletions go on, and make room.
//! - Calls come from several threads. What overlaps and runs together has no order.

use std::io;

use bytes::Bytes;
use saker_types::limits::{CHUNK_BYTES, FILE_BYTES_MAX};
use saker_types::wire::{
    ChunkListReply, ChunkListReq, ChunkReadReply, ChunkReadReq, ChunkSeekReply, ChunkSeekReq,
    ChunkTruncateReq, ChunkWriteReply, ChunkWriteReq, StoreStats,
};
use saker_types::{Errno, Error, InodeId, Result, Unflushed};

use crate::wait::WaitPolicy;

#[cfg(test)]
pub mod conformance;
#[cfg(test)]
pub mod memory;
pub mod segments;

/// Most chunks in one list.
pub(crate) const LIST_MAX: usize = 1024;
/// Chunks in a file of the largest size.
const INDEX_END: u64 = FILE_BYTES_MAX / CHUNK_BYTES;

/// Keeps chunks of inodes.
pub trait ChunkBackend: Send + Sync + 'static {
    /// Writes data into a chunk, or makes a hole there. Returns what [`ChunkBackend::lost`] knows
    /// it by. Whether the write is to be flushed (`sync`), and which attempt it is, is not its
    /// business.
    ///
    /// # Errors
    /// ESTALE below a known truncation (rule 17) and for a deleted inode, ENOSPC, EINVAL for
    /// impossible ranges, EIO. With class Retry: the data is not what the request's checksum says;
    /// nothing was done. EAGAIN.
    fn write(&self, req: &ChunkWriteReq, data: &[u8], wait: WaitPolicy) -> Result<ChunkWriteReply>;

    /// Reads a range of a chunk up to the last byte written; holes are zeros. Returns the data and
    /// what is to be said of it.
    ///
    /// # Errors
    /// EIO, naming the place, if any of it is damaged. EAGAIN.
    fn read(&self, req: &ChunkReadReq, wait: WaitPolicy) -> Result<(Bytes, ChunkReadReply)>;

    /// Where a process of this machine finds the data that [`ChunkBackend::read`] would return;
    /// `None` where it does not, or better not.
    ///
    /// # Errors
    /// As [`ChunkBackend::read`], but for damage of the data itself: who reads it there checks it.
    fn locate(&self, _req: &ChunkReadReq, _wait: WaitPolicy) -> Result<Option<ChunkReadReply>> {
        Ok(None)
    }

    /// Where a file has data, of the chunks that are here.
    ///
    /// # Errors
    /// EIO.
    fn seek(&self, req: &ChunkSeekReq) -> Result<ChunkSeekReply>;

    /// Cuts a file, and refuses writes of older generations from now on. Of an equal or older
    /// generation: no effect. Tells the newest generation known then; `u64::MAX`: the inode was deleted.
    ///
    /// # Errors
    /// EIO and ENOSPC; the outcome is unknown then, and a repetition is safe.
    fn truncate(&self, req: &ChunkTruncateReq) -> Result<u64>;

    /// Deletes all chunks of inodes, and refuses late writes to them.
    ///
    /// # Errors
    /// EIO and ENOSPC; some may be deleted then, and a repetition is safe.
    fn delete(&self, ids: &[InodeId]) -> Result<()>;

    /// Lists chunks in order; with `verify` reads each and says what is wrong with it.
    ///
    /// # Errors
    /// EIO.
    fn list(&self, req: &ChunkListReq) -> Result<ChunkListReply>;

    /// Space and counts. What is free is what may be written before ENOSPC.
    ///
    /// # Errors
    /// EIO.
    fn stat(&self) -> Result<StoreStats>;

    /// Makes everything durable that was done before this call.
    ///
    /// # Errors
    /// EIO: some of it may be lost if power fails.
    fn flush(&self) -> Result<()>;

    /// After a flush: true if some of these writes is lost, since power failed before it, or the
    /// disk did.
    fn lost(&self, writes: &[Unflushed]) -> bool;
}

/// An error of a file, for the caller.
pub(crate) fn io_error(what: &str, error: &io::Error) -> Error {
    let errno = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Errno::ENOSPC,
        io::ErrorKind::InvalidInput => Errno::EINVAL,
        _ => Errno::EIO,
    };
    Error::new(errno).with_text(format!("{what}: {error}"))
}

pub(crate) fn invalid(text: impl Into<String>) -> Error {
    Error::new(Errno::EINVAL).with_text(text)
}

/// Refuses what is no write of a chunk.
pub(crate) fn check_write(req: &ChunkWriteReq, data: &[u8]) -> Result<()> {
    if req.hole > 0 && !data.is_empty() {
        return Err(invalid("a hole with a payload"));
    }
    let end = req.offset.saturating_add(req.hole.max(data.len() as u64));
    if end > CHUNK_BYTES || req.index >= INDEX_END {
        return Err(invalid(format!("a write up to byte {end} of chunk {}", req.index)));
    }
    Ok(())
}

/// Start and end of what a read wants of a chunk; `None` for nothing.
pub(crate) fn range_of(req: &ChunkReadReq) -> Option<(u32, u32)> {
    let end = req.offset.saturating_add(req.len).min(CHUNK_BYTES);
    (req.offset < end).then_some((req.offset as u32, end as u32))
}
