//! Listing chunks in order, from the table and from memory.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

use saker_types::limits::CHUNK_BYTES;
use saker_types::{InodeId, Result};

use super::{ChunkKey, Index, failed, rows};
use crate::wait::{WaitPolicy, locked};

impl Index {
    /// Up to `limit` chunks after `after` in order, each with its end, and whether that is all.
    /// Chunks that come or go meanwhile may be missed or not.
    ///
    /// # Errors
    /// The table's.
    pub fn list(&self, mut after: ChunkKey, limit: usize) -> Result<(Vec<(ChunkKey, u32)>, bool)> {
        let mut found = Vec::new();
        loop {
            let (keys, end) = self.candidates(after, limit)?;
            for key in keys {
                let mut state = locked(&self.shard(key.0).state);
                let chunk_end =
                    self.load(&mut state, key, WaitPolicy::May)?.map_or(0, |chunk| chunk.end());
                self.evict(&mut state);
                if chunk_end > 0 {
                    found.push((key, chunk_end));
                }
                after = key;
            }
            if end || !found.is_empty() {
                return Ok((found, end));
            }
        }
    }

    /// The first run of data of a file at or behind `offset`, in bytes of the file, within one
    /// chunk.
    ///
    /// # Errors
    /// The table's.
    pub fn seek(&self, id: InodeId, offset: u64) -> Result<Option<(u64, u64)>> {
        let mut key = (id, offset / CHUNK_BYTES);
        let mut from = (offset % CHUNK_BYTES) as u32;
        loop {
            let run = {
                let mut state = locked(&self.shard(id).state);
                let run =
                    self.load(&mut state, key, WaitPolicy::May)?.and_then(|chunk| chunk.run(from));
                self.evict(&mut state);
                run
            };
            let base = key.1 * CHUNK_BYTES;
            if let Some((start, end)) = run {
                return Ok(Some((base + u64::from(start), base + u64::from(end))));
            }
            match self.list(key, 1)?.0.first() {
                Some((next, _)) if next.0 == id => (key, from) = (*next, 0),
                _ => return Ok(None),
            }
        }
    }

    /// Keys in table or memory, some of them without a chunk any more.
    fn candidates(&self, after: ChunkKey, limit: usize) -> Result<(BTreeSet<ChunkKey>, bool)> {
        let mut keys = BTreeSet::new();
        let mut end = true;
        let start = rows::chunk_key(after);
        let mut result = Ok(());
        let scanned = self.table.scan(&start, rows::CHUNKS_END, &mut |key, _| {
            match rows::decode_key(key) {
                Ok(key) if key == after => return ControlFlow::Continue(()),
                Ok(_) if keys.len() >= limit => end = false,
                Ok(key) => {
                    keys.insert(key);
                }
                Err(error) => result = Err(error),
            }
            if end && result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        scanned.map_err(|e| failed("read", e))?;
        result?;
        for shard in &self.shards {
            let state = locked(&shard.state);
            let range = state.chunks.range((Bound::Excluded(after), Bound::Unbounded));
            let mut range = range.map(|(key, _)| *key);
            keys.extend(range.by_ref().take(limit));
            end &= range.next().is_none();
        }
        // Each source gave its first; behind the first `limit` of all, one may lack some.
        if keys.len() > limit {
            end = false;
            if let Some(first_over) = keys.iter().nth(limit).copied() {
                keys.split_off(&first_over);
            }
        }
        Ok((keys, end))
    }
}
