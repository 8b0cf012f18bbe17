//! Writing chunks, and making holes in them.

use std::cell::RefCell;
use std::io;

use saker_types::wire::{ChunkWriteReply, ChunkWriteReq};
use saker_types::{Class, Errno, Error, Result};

use super::extent::Extent;
use super::format::{self, REPLICAS_MAX, RecordHeader, RecordKind};
use super::index::{self, ChunkKey};
use super::log::{Draft, Purpose};
use super::state::SegmentStore;
use crate::backend::{check_write, invalid, io_error};
use crate::wait::{WaitPolicy, locked, would_wait};

/// A chunk of so many extents is written anew in the background; once more at each multiple.
const EXTENTS_MAX: usize = 256;
/// Chunks that wait for it; more are left to the next write of them.
const REWRITES_MAX: usize = 1024;

thread_local! {
    static SUMS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// An error of a write, for the caller.
fn write_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => would_wait(),
        _ => io_error("write", error),
    }
}

impl SegmentStore {
    /// As [`ChunkBackend::write`](crate::ChunkBackend::write). Who may not wait tries no holes.
    ///
    /// # Errors
    /// The same.
    pub fn write(
        &self,
        req: &ChunkWriteReq,
        payload: &[u8],
        wait: WaitPolicy,
    ) -> Result<ChunkWriteReply> {
        check_write(req, payload)?;
        if req.replicas.len() > REPLICAS_MAX {
            return Err(invalid("too many replicas"));
        }
        if wait == WaitPolicy::Never {
            // Before it is looked at in vain.
            let has_place = || self.log.has_place(payload.len(), req.replicas.len());
            if req.hole > 0 || self.log.is_slow() || !has_place() {
                return Err(would_wait());
            }
        }
        self.limit_dirty(wait)?;
        let seq = match req.hole {
            0 => self.write_data(req, payload, wait)?,
            _ => self.punch(req)?,
        };
        let written = |seq| ChunkWriteReply { epoch: self.epoch, seq };
        Ok(seq.map_or(ChunkWriteReply::default(), written))
    }

    /// Number of the record, if there was anything to write.
    fn write_data(
        &self,
        req: &ChunkWriteReq,
        payload: &[u8],
        wait: WaitPolicy,
    ) -> Result<Option<u64>> {
        let _writer = self.index.begin_write((req.id, req.index), req.truncate_gen, wait)?;
        let seq = SUMS.with_borrow_mut(|sums| {
            if format::block_sums(payload, sums) != req.crc {
                let error = Error::of_class(Class::Retry, Errno::EIO);
                return Err(error.with_text("the payload was damaged on its way"));
            }
            let data = (!payload.is_empty()).then_some(payload);
            data.map(|data| self.append_data(req, sums, data, wait)).transpose()
        })?;
        self.metrics.writes.inc();
        self.metrics.write_bytes.add(payload.len() as u64);
        Ok(seq)
    }

    /// Number of the record, if there was anything to clear.
    fn punch(&self, req: &ChunkWriteReq) -> Result<Option<u64>> {
        let _alone = self.index.begin_exclusive(req.id)?;
        index::check_gen(req.id, req.truncate_gen, self.index.truncate_gen(req.id)?)?;
        let key = (req.id, req.index);
        let (start, end) = (req.offset as u32, (req.offset + req.hole) as u32);
        // The record of the hole that is there already may have to be flushed.
        if self.log.is_durable()
            && self.index.lookup(key, start, end, WaitPolicy::May)?.0.is_empty()
        {
            return Ok(None);
        }
        let record = RecordHeader {
            kind: RecordKind::Hole,
            id: req.id,
            index: req.index,
            truncate_gen: req.truncate_gen,
            offset: start,
            version: req.hole,
            ..RecordHeader::EMPTY
        };
        let draft = Draft { record, replicas: &[], sums: &[], sum: 0, payload: &[] };
        let appended = self.log.append(&draft, Purpose::Control, WaitPolicy::May);
        let appended = appended.map_err(|e| io_error("hole", &e))?;
        self.index.punch(key, start, end)?;
        self.rounds.wake();
        Ok(Some(appended.seq))
    }

    fn append_data(
        &self,
        req: &ChunkWriteReq,
        sums: &[u32],
        payload: &[u8],
        wait: WaitPolicy,
    ) -> Result<u64> {
        let mut replicas = [0u16; REPLICAS_MAX];
        for (to, from) in replicas.iter_mut().zip(&req.replicas) {
            *to = u16::try_from(*from).map_err(|_| invalid("a store's number"))?;
        }
        let key = (req.id, req.index);
        let record = RecordHeader {
            kind: RecordKind::Write,
            id: req.id,
            index: req.index,
            truncate_gen: req.truncate_gen,
            offset: req.offset as u32,
            ..RecordHeader::EMPTY
        };
        let replicas = &replicas[..req.replicas.len()];
        let draft = Draft { record, replicas, sums, sum: req.crc, payload };
        let (seq, extents) = self.append_write(key, &draft, Purpose::Data, wait)?;
        if extents > 0 && extents.is_multiple_of(EXTENTS_MAX) {
            let mut rewrites = locked(&self.rewrites);
            if rewrites.len() < REWRITES_MAX {
                rewrites.insert(key);
            }
        }
        Ok(seq)
    }

    /// Appends file data and puts it into the index; returns the record's number, and how many
    /// extents the chunk has.
    pub(super) fn append_write(
        &self,
        key: ChunkKey,
        draft: &Draft<'_>,
        purpose: Purpose,
        wait: WaitPolicy,
    ) -> Result<(u64, usize)> {
        let appended = self.log.append(draft, purpose, wait).map_err(|e| {
            // If it is for want of space, compaction may find some.
            self.rounds.wake();
            write_error(&e)
        })?;
        let half = self.options.segment_bytes / 2;
        let end = appended.place.pos + appended.head + draft.payload.len() as u32;
        if appended.place.pos < half && end >= half {
            // Time to make the next segment.
            self.rounds.wake();
        }
        let len = draft.payload.len() as u32;
        let extent = Extent {
            off: draft.record.offset,
            len,
            segment: appended.place.segment,
            pos: appended.place.pos,
            head: appended.head,
            payload: len,
            skip: 0,
            seq: appended.seq,
            sum: Some(draft.sum),
        };
        let extents = self.index.insert(key, extent)?;
        Ok((appended.seq, extents))
    }
}
