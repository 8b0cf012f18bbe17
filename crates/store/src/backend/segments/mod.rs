//! Chunks in segment files, with a checksum for every block.
//!
//! ```text
//! write ──> log (one append, page cache) ──> index in memory ──> acknowledged
//! flush ──> one for all who wait
//! background: index ──checkpoint──> table;  segments with little live data ──compaction──> log
//! start: table + the log's records since its marker = the state at the crash
//! ```
//!
//! Invariants, each checked by a test: what was acknowledged survives the death of the process,
//! what was flushed the loss of power, and a flush never succeeds for what that took; the table is
//! never ahead of the log's durable part; a block whose checksum does not match is an error, never
//! data; a segment's file is removed only when neither the index nor the table refers to it.

use bytes::Bytes;
use saker_types::wire::{
    ChunkListReply, ChunkListReq, ChunkReadReply, ChunkReadReq, ChunkSeekReply, ChunkSeekReq,
    ChunkTruncateReq, ChunkWriteReply, ChunkWriteReq, StoreStats,
};
use saker_types::{InodeId, Result, Unflushed};

use super::ChunkBackend;
use crate::wait::WaitPolicy;

mod compact;
mod cut;
pub mod epochs;
pub mod extent;
mod fetches;
pub mod format;
pub mod index;
mod locate;
pub mod log;
mod maintain;
pub mod metrics;
mod open;
mod options;
mod pieces;
mod read;
mod recover;
mod rounds;
mod scan;
pub mod segment;
mod state;
mod write;

pub use options::{DELETED_MAX, Options};
pub use state::SegmentStore;

impl ChunkBackend for SegmentStore {
    fn write(&self, req: &ChunkWriteReq, data: &[u8], wait: WaitPolicy) -> Result<ChunkWriteReply> {
        self.write(req, data, wait)
    }

    fn read(&self, req: &ChunkReadReq, wait: WaitPolicy) -> Result<(Bytes, ChunkReadReply)> {
        self.read(req, wait)
    }

    fn locate(&self, req: &ChunkReadReq, wait: WaitPolicy) -> Result<Option<ChunkReadReply>> {
        self.locate(req, wait)
    }

    fn seek(&self, req: &ChunkSeekReq) -> Result<ChunkSeekReply> {
        self.seek(req)
    }

    fn truncate(&self, req: &ChunkTruncateReq) -> Result<u64> {
        self.truncate(req)
    }

    fn delete(&self, ids: &[InodeId]) -> Result<()> {
        self.delete(ids)
    }

    fn list(&self, req: &ChunkListReq) -> Result<ChunkListReply> {
        self.list(req)
    }

    fn stat(&self) -> Result<StoreStats> {
        self.stat()
    }

    fn flush(&self) -> Result<()> {
        self.flush()
    }

    fn lost(&self, writes: &[Unflushed]) -> bool {
        self.lost(writes)
    }
}

#[cfg(test)]
pub(crate) mod tests;
