//! Chunks in memory: the simplest backend, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::{
    ChunkInfo, ChunkListReply, ChunkListReq, ChunkReadReply, ChunkReadReq, ChunkSeekReply,
    ChunkSeekReq, ChunkTruncateReq, ChunkWriteReply, ChunkWriteReq, StoreStats,
};
use saker_types::{Class, Errno, Error, InodeId, Result, Unflushed};

use super::{ChunkBackend, LIST_MAX, check_write, range_of};
use crate::wait::{WaitPolicy, locked};

/// Truncate generation of an inode that was deleted.
const DELETED: u64 = u64::MAX;

/// What is in memory. Clones are the same.
#[derive(Clone, Default)]
pub struct MemoryBackend(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By inode and index: each byte that was written, up to the last.
    chunks: BTreeMap<(InodeId, u64), Vec<Option<u8>>>,
    /// Newest truncations.
    gens: BTreeMap<InodeId, u64>,
    writes: u64,
    is_full: bool,
    damaged: BTreeSet<InodeId>,
}

impl MemoryBackend {
    /// Takes no more data from now on, or does again.
    pub fn set_full(&self, is_full: bool) {
        locked(&self.0).is_full = is_full;
    }

    /// What was written of an inode is damaged.
    pub fn damage(&self, id: InodeId) {
        locked(&self.0).damaged.insert(id);
    }
}

impl State {
    fn check(&self, id: InodeId, truncate_gen: u64) -> Result<()> {
        let newest = self.gens.get(&id).copied().unwrap_or_default();
        let is_stale = newest == DELETED || truncate_gen < newest;
        if is_stale { Err(Errno::ESTALE.into()) } else { Ok(()) }
    }

    /// Drops the bytes of a chunk from `from` up to `to`.
    fn clear(&mut self, key: (InodeId, u64), from: u64, to: u64) {
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        let len = chunk.len();
        chunk[len.min(from as usize)..len.min(to as usize)].fill(None);
        let end = chunk.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        chunk.truncate(end);
        if end == 0 {
            self.chunks.remove(&key);
        }
    }

    fn read(&self, id: InodeId, index: u64, start: u32, end: u32) -> Result<(Vec<u8>, bool)> {
        let Some(chunk) = self.chunks.get(&(id, index)) else { return Ok((Vec::new(), false)) };
        let end = chunk.len().min(end as usize).max(start as usize);
        let bytes = chunk.get(start as usize..end).unwrap_or_default();
        if self.damaged.contains(&id) && !bytes.is_empty() {
            return Err(Error::new(Errno::EIO).with_text("damaged"));
        }
        let holes = bytes.iter().any(Option::is_none);
        Ok((bytes.iter().map(|byte| byte.unwrap_or_default()).collect(), holes))
    }
}

impl ChunkBackend for MemoryBackend {
    fn write(&self, req: &ChunkWriteReq, data: &[u8], _: WaitPolicy) -> Result<ChunkWriteReply> {
        check_write(req, data)?;
        let state = &mut *locked(&self.0);
        state.check(req.id, req.truncate_gen)?;
        if crc32c::crc32c(data) != req.crc && req.hole == 0 {
            return Err(Error::of_class(Class::Retry, Errno::EIO));
        }
        let key = (req.id, req.index);
        if req.hole > 0 {
            state.clear(key, req.offset, req.offset + req.hole);
        } else if !data.is_empty() {
            if state.is_full {
                return Err(Errno::ENOSPC.into());
            }
            let (from, to) = (req.offset as usize, req.offset as usize + data.len());
            let chunk = state.chunks.entry(key).or_default();
            chunk.resize(chunk.len().max(to), None);
            chunk[from..to].iter_mut().zip(data).for_each(|(to, from)| *to = Some(*from));
            state.damaged.remove(&req.id);
        }
        state.writes += 1;
        Ok(ChunkWriteReply { epoch: 1, seq: state.writes })
    }

    fn read(&self, req: &ChunkReadReq, _: WaitPolicy) -> Result<(Bytes, ChunkReadReply)> {
        let Some((start, end)) = range_of(req) else { return Ok(Default::default()) };
        let (data, holes) = locked(&self.0).read(req.id, req.index, start, end)?;
        let crc = crc32c::crc32c(&data);
        Ok((data.into(), ChunkReadReply { crc, holes, ..ChunkReadReply::default() }))
    }

    fn seek(&self, req: &ChunkSeekReq) -> Result<ChunkSeekReply> {
        let state = locked(&self.0);
        let first = (req.id, req.offset / CHUNK_BYTES);
        for (key, chunk) in state.chunks.range(first..=(req.id, u64::MAX)) {
            let base = key.1 * CHUNK_BYTES;
            let from = req.offset.saturating_sub(base).min(chunk.len() as u64) as usize;
            if let Some(skip) = chunk[from..].iter().position(Option::is_some) {
                let run = chunk[from + skip..].iter().take_while(|byte| byte.is_some()).count();
                let start = base + (from + skip) as u64;
                return Ok(ChunkSeekReply { start, end: start + run as u64 });
            }
        }
        Ok(ChunkSeekReply::default())
    }

    fn truncate(&self, req: &ChunkTruncateReq) -> Result<u64> {
        let state = &mut *locked(&self.0);
        let known = state.gens.entry(req.id).or_default();
        let newest = req.truncate_gen.max(*known);
        if newest > *known {
            *known = newest;
            let keys = state.chunks.range((req.id, 0)..=(req.id, u64::MAX));
            for key in keys.map(|(key, _)| *key).collect::<Vec<_>>() {
                let from = req.cut.saturating_sub(key.1 * CHUNK_BYTES).min(CHUNK_BYTES);
                state.clear(key, from, CHUNK_BYTES);
            }
        }
        Ok(newest)
    }

    fn delete(&self, ids: &[InodeId]) -> Result<()> {
        let state = &mut *locked(&self.0);
        state.chunks.retain(|(id, _), _| !ids.contains(id));
        ids.iter().for_each(|id| _ = state.gens.insert(*id, DELETED));
        Ok(())
    }

    fn list(&self, req: &ChunkListReq) -> Result<ChunkListReply> {
        let state = locked(&self.0);
        let limit = (req.limit as usize).clamp(1, LIST_MAX);
        let after = (req.after_id, req.after_index);
        let mut rest = state.chunks.iter().filter(|(key, _)| **key > after);
        let chunks = rest.by_ref().take(limit).map(|(&(id, index), chunk)| {
            let read = state.read(id, index, 0, CHUNK_BYTES as u32);
            let problem = read.err().filter(|_| req.verify).map_or(String::new(), |e| e.text);
            ChunkInfo { id, index, len: chunk.len() as u64, problem, aside_ns: 0 }
        });
        let chunks = chunks.collect();
        Ok(ChunkListReply { chunks, end: rest.next().is_none() })
    }

    fn stat(&self) -> Result<StoreStats> {
        let state = locked(&self.0);
        let bytes = state.chunks.values().flatten().flatten().count() as u64;
        let chunks = state.chunks.len() as u64;
        Ok(StoreStats { data_bytes: bytes, chunks, ..StoreStats::default() })
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn lost(&self, writes: &[Unflushed]) -> bool {
        let next = locked(&self.0).writes + 1;
        writes.iter().any(|of| of.epoch != 1 || of.first + of.more >= next)
    }
}

mod tests {
    use super::super::conformance::{self, BackendUnderTest};
    use super::*;

    impl BackendUnderTest for MemoryBackend {
        fn open(&self) -> Arc<dyn ChunkBackend> {
            Arc::new(self.clone())
        }

        fn set_full(&self, is_full: bool) {
            self.set_full(is_full);
        }

        fn damage(&self, id: InodeId, _: &[u8]) {
            self.damage(id);
        }
    }

    #[test]
    fn memory_conforms() {
        conformance::check(MemoryBackend::default);
    }
}
