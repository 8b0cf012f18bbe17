//! Reading chunks, finding their data, listing them.

use std::io;

use bytes::Bytes;
use saker_types::Result;
use saker_types::wire::{
    ChunkInfo, ChunkListReply, ChunkListReq, ChunkReadReply, ChunkReadReq, ChunkSeekReply,
    ChunkSeekReq,
};

use super::fetches::Fetches;
use super::index::{ChunkKey, SegmentExtent};
use super::locate::{Fetch, locate};
use super::pieces::{self, ReadError};
use super::state::SegmentStore;
use crate::backend::{LIST_MAX, range_of};
use crate::wait::WaitPolicy;

/// A read looks its data up so many times more if it is moved meanwhile.
const LOOKUPS_MAX: u32 = 10;

impl SegmentStore {
    /// Where a file has data, of the chunks that are here.
    ///
    /// # Errors
    /// The index's.
    pub fn seek(&self, req: &ChunkSeekReq) -> Result<ChunkSeekReply> {
        let run = self.index.seek(req.id, req.offset)?;
        Ok(run.map_or(ChunkSeekReply::default(), |(start, end)| ChunkSeekReply { start, end }))
    }

    /// Reads a range of a chunk up to the last byte written; holes are zeros. Returns the data
    /// and what is to be said of it.
    ///
    /// # Errors
    /// EIO, naming file and offset, if any block that the range touches is damaged. EAGAIN.
    pub fn read(&self, req: &ChunkReadReq, wait: WaitPolicy) -> Result<(Bytes, ChunkReadReply)> {
        let Some((start, end)) = range_of(req) else { return Ok(Default::default()) };
        let data = self.read_range((req.id, req.index), start, end, wait)?;
        self.metrics.reads.inc();
        self.metrics.read_bytes.add(data.bytes.len() as u64);
        let (crc, holes) = (data.sum, data.holes);
        Ok((data.bytes, ChunkReadReply { crc, holes, ..ChunkReadReply::default() }))
    }

    /// Where the data is that [`SegmentStore::read`] would return; `None` where others cannot read
    /// it, or better do not.
    ///
    /// # Errors
    /// As [`SegmentStore::read`], but for damage of the data itself: who reads it there must check
    /// it.
    pub fn locate(&self, req: &ChunkReadReq, wait: WaitPolicy) -> Result<Option<ChunkReadReply>> {
        let Some((start, end)) = range_of(req) else { return Ok(None) };
        let key = (req.id, req.index);
        let fetch = match req.fetches {
            false => Fetch::Here,
            // The client that fetched it forgot it, or others want it, too: it is worth its memory here.
            true if self.fetches().has(key, start) => Fetch::Both,
            true => Fetch::There,
        };
        let places = self.with_pieces(key, start, end, wait, |pieces, end| {
            locate(&self.segments, key, pieces, start, end, fetch, wait)
        })?;
        if fetch == Fetch::There {
            self.fetches().add(key, start);
        }
        if places.is_empty() {
            return Ok(None);
        }
        let bytes = places.iter().map(|place| u64::from(place.len)).sum();
        self.metrics.reads.inc();
        self.metrics.read_bytes.add(bytes);
        self.metrics.located_bytes.add(bytes);
        let dir = self.segments.local_dir().cloned();
        Ok(Some(ChunkReadReply { places, dir, ..ChunkReadReply::default() }))
    }

    fn fetches(&self) -> &Fetches {
        self.fetches.get_or_init(Fetches::default)
    }

    fn read_range(
        &self,
        key: ChunkKey,
        start: u32,
        end: u32,
        wait: WaitPolicy,
    ) -> Result<pieces::Data> {
        self.with_pieces(key, start, end, wait, |pieces, end| {
            pieces::read(&self.segments, key, pieces, start, end, wait)
        })
    }

    /// Calls `f` with the pieces of a range and where its data ends; again when they have moved.
    fn with_pieces<T>(
        &self,
        key: ChunkKey,
        start: u32,
        end: u32,
        wait: WaitPolicy,
        f: impl Fn(Vec<SegmentExtent>, u32) -> std::result::Result<T, ReadError>,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            let (pieces, chunk_end) = self.index.lookup(key, start, end, wait)?;
            match f(pieces, end.min(chunk_end).max(start)) {
                // The data moved or was dropped, and its segment removed, since it was looked up.
                Err(ReadError::Io(error, _))
                    if error.kind() == io::ErrorKind::NotFound && tries < LOOKUPS_MAX =>
                {
                    tries += 1;
                }
                result => return result.map_err(|e| self.report(e)),
            }
        }
    }

    /// Lists chunks in order; with `verify` reads each and says what is wrong with it.
    ///
    /// # Errors
    /// The index's.
    pub fn list(&self, req: &ChunkListReq) -> Result<ChunkListReply> {
        let limit = (req.limit as usize).clamp(1, LIST_MAX);
        let (found, end) = self.index.list((req.after_id, req.after_index), limit)?;
        let mut chunks = Vec::with_capacity(found.len());
        for ((id, index), len) in found {
            let mut problem = String::new();
            if req.verify
                && let Err(error) = self.read_range((id, index), 0, len, WaitPolicy::May)
            {
                problem = error.text;
            }
            chunks.push(ChunkInfo { id, index, len: u64::from(len), problem, aside_ns: 0 });
        }
        Ok(ChunkListReply { chunks, end })
    }
}
