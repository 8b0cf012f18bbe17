//! The index: which extents make up which chunk, and which truncations are known.
//!
//! Rows live in a table that only checkpoints write; what changed since, and what was asked for
//! recently, is in memory, in shards by inode. The table is never ahead of the log's durable part,
//! and always as far as its marker says, for each row at least: replaying the log from the
//! marker leads every row to the same state from wherever between the two it is.
//!
//! Per inode: writes share it; truncation, deletion and compaction have it alone
//! ([`WriteGuard`], [`ExclusiveGuard`]). Reads never wait for either.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bytes::Bytes;
use prost::Message;
use saker_engine::table::Table;
use saker_types::limits::CHUNK_BYTES;
use saker_types::{Errno, Error, InodeId, Result};

use super::extent::{Chunk, Extent};
use super::segment::{Segment, Segments};
use crate::wait::{WaitPolicy, locked};

mod checkpoint;
mod deleted;
mod evict;
mod guards;
mod list;
mod load;
mod rows;

pub use checkpoint::{Commit, open_saved};
pub use deleted::DELETED;
pub use guards::{ExclusiveGuard, WriteGuard, check_gen};
pub use rows::Saved;

/// Inode and index of a chunk.
pub type ChunkKey = (InodeId, u64);

/// Parts of the index in memory that are locked apart.
const SHARDS: usize = 64;
/// What an entry costs besides its extents, estimated.
const CHUNK_OVERHEAD_BYTES: usize = 160;
const EXTENT_BYTES: usize = size_of::<Extent>();
/// Rows that differ from the table's before a checkpoint writes them.
pub const DIRTY_ROWS_MAX: usize = 16 << 10;
/// "No row of the table is void."
const NOTHING_VOID: u64 = u64::MAX;

/// The index of a store.
pub struct Index {
    table: Arc<dyn Table>,
    segments: Arc<Segments>,
    shards: Vec<IndexStripe>,
    /// What the table holds. Who changes the table, or must not see it change, has this lock;
    /// it is taken before a shard's.
    saved: Mutex<Saved>,
    deleted: Mutex<deleted::Deleted>,
    /// So many deletions are remembered, and a few more until the next checkpoint.
    deleted_max: u64,
    /// Rows that differ from the table's.
    dirty: AtomicUsize,
    chunks: AtomicI64,
    shard_bytes_max: usize,
    /// Some shard has far more in memory than it may, for want of a checkpoint.
    pressed: AtomicBool,
}

#[derive(Default)]
struct IndexStripe {
    state: Mutex<State>,
    /// An inode got free.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<ChunkKey, Cached>,
    inodes: BTreeMap<InodeId, Inode>,
    /// What a running checkpoint still has to write, and what changed since it began.
    draining: BTreeSet<RowKey>,
    dirty: BTreeSet<RowKey>,
    /// Memory of `chunks` and `inodes`, estimated.
    bytes: usize,
    /// Where the search for entries to evict goes on.
    hand: ChunkKey,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RowKey {
    Chunk(ChunkKey),
    Inode(InodeId),
}

#[derive(Default)]
struct Cached {
    chunk: Chunk,
    dirty: bool,
    /// A checkpoint is writing it.
    writing: bool,
    /// Asked for since the hand came by.
    used: bool,
}

/// What is known of an inode besides its chunks.
struct Inode {
    /// Newest truncation known, or [`DELETED`].
    truncate_gen: u64,
    /// Rows of chunks from this index on are void, unless memory has the chunk.
    void_from: u64,
    writers: u32,
    exclusive: bool,
    dirty: bool,
    writing: bool,
}

impl Inode {
    fn is_evictable(&self) -> bool {
        !self.dirty
            && !self.writing
            && !self.exclusive
            && self.writers == 0
            && self.void_from == NOTHING_VOID
    }
}

/// An extent of a read, and the segment that holds it.
pub type SegmentExtent = (Arc<Segment>, Extent);

fn failed(what: &str, error: impl std::fmt::Display) -> Error {
    Error::new(Errno::EIO).with_text(format!("index: {what}: {error}"))
}

impl Index {
    /// The index in `table`, whose state was `saved`; `cache_bytes` bounds what is in memory and
    /// in the table, too, `deleted_max` the deletions that are remembered.
    pub fn new(
        table: Arc<dyn Table>,
        segments: Arc<Segments>,
        saved: Saved,
        cache_bytes: usize,
        deleted_max: u64,
    ) -> Index {
        Index {
            table,
            segments,
            shards: (0..SHARDS).map(|_| IndexStripe::default()).collect(),
            chunks: AtomicI64::new(saved.chunks as i64),
            saved: Mutex::new(saved),
            deleted: Mutex::default(),
            deleted_max,
            dirty: AtomicUsize::new(0),
            shard_bytes_max: cache_bytes / SHARDS,
            pressed: AtomicBool::new(false),
        }
    }

    fn shard(&self, id: InodeId) -> &IndexStripe {
        let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 32) as usize % SHARDS]
    }

    /// Chunks that hold data.
    pub fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed).max(0) as u64
    }

    /// Rows that the next checkpoint has to write.
    pub fn dirty_rows(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Adds an extent to a chunk.
    ///
    /// # Errors
    /// The table's.
    pub fn insert(&self, key: ChunkKey, extent: Extent) -> Result<usize> {
        let mut state = locked(&self.shard(key.0).state);
        self.change(&mut state, key, |chunk, live| {
            chunk.insert(extent, live);
            (true, chunk.extents.len())
        })
    }

    /// Drops bytes of a chunk, up to `end` (exclusive).
    ///
    /// # Errors
    /// The table's.
    pub fn punch(&self, key: ChunkKey, start: u32, end: u32) -> Result<()> {
        let mut state = locked(&self.shard(key.0).state);
        self.change(&mut state, key, |chunk, live| (chunk.punch(start, end, live), ()))
    }

    /// Drops what is behind `cut` bytes of a file, at generation `truncate_gen`. Unconditional:
    /// whether it is newer is the caller's to know.
    ///
    /// # Errors
    /// The table's.
    pub fn truncate(&self, id: InodeId, truncate_gen: u64, cut: u64) -> Result<()> {
        let (boundary, keep) = (cut / CHUNK_BYTES, cut % CHUNK_BYTES);
        let dead_from = if keep == 0 { boundary } else { boundary + 1 };
        // Held until the rows that got void are counted.
        let saved = locked(&self.saved);
        let mut state = locked(&self.shard(id).state);
        if keep > 0 {
            self.change(&mut state, (id, boundary), |chunk, live| {
                (chunk.truncate(keep as u32, live), ())
            })?;
        }
        let inode = self.inode(&mut state, id, WaitPolicy::May)?;
        inode.truncate_gen = inode.truncate_gen.max(truncate_gen);
        self.drop_from(saved, state, id, dead_from)
    }

    /// Forgets all chunks of an inode, and takes no more.
    ///
    /// # Errors
    /// The table's.
    pub fn delete(&self, id: InodeId) -> Result<()> {
        let saved = locked(&self.saved);
        let mut state = locked(&self.shard(id).state);
        self.inode(&mut state, id, WaitPolicy::May)?.truncate_gen = DELETED;
        self.drop_from(saved, state, id, 0)
    }

    /// Drops the chunks of an inode from index `dead_from` on.
    fn drop_from(
        &self,
        _saved: MutexGuard<'_, Saved>,
        mut state: MutexGuard<'_, State>,
        id: InodeId,
        dead_from: u64,
    ) -> Result<()> {
        let range = (id, dead_from)..=(id, u64::MAX);
        let known: BTreeSet<u64> = state.chunks.range(range).map(|(key, _)| key.1).collect();
        for index in &known {
            self.forget(&mut state, (id, *index));
        }
        let inode = self.inode(&mut state, id, WaitPolicy::May)?;
        let void_before = inode.void_from;
        inode.void_from = void_before.min(dead_from);
        self.mark_inode(&mut state, id);
        drop(state);
        self.scan_chunks(id, dead_from, void_before, &mut |index, chunk| {
            if !known.contains(&index) {
                chunk.live(&mut |segment, bytes| self.segments.adjust(segment, -bytes));
                self.chunks.fetch_sub(1, Ordering::Relaxed);
            }
        })
    }

    /// Takes a chunk out of memory and out of the counts.
    fn forget(&self, state: &mut State, key: ChunkKey) {
        if let Some(cached) = state.chunks.remove(&key) {
            state.bytes -= bytes_of(&cached.chunk);
            cached.chunk.live(&mut |segment, bytes| self.segments.adjust(segment, -bytes));
            if !cached.chunk.extents.is_empty() {
                self.chunks.fetch_sub(1, Ordering::Relaxed);
            }
            if cached.dirty {
                state.dirty.remove(&RowKey::Chunk(key));
                state.draining.remove(&RowKey::Chunk(key));
                self.dirty.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Newest truncation known of an inode; 0 for none, [`DELETED`] if it is gone.
    ///
    /// # Errors
    /// The table's.
    pub fn truncate_gen(&self, id: InodeId) -> Result<u64> {
        let mut state = locked(&self.shard(id).state);
        Ok(self.inode(&mut state, id, WaitPolicy::May)?.truncate_gen)
    }

    /// The extents between two bytes of a chunk with their segments, and the chunk's end.
    ///
    /// # Errors
    /// The table's; EIO when a segment is lost; EAGAIN.
    pub fn lookup(
        &self,
        key: ChunkKey,
        start: u32,
        end: u32,
        wait: WaitPolicy,
    ) -> Result<(Vec<SegmentExtent>, u32)> {
        let mut state = wait.lock(&self.shard(key.0).state)?;
        let Some(chunk) = self.load(&mut state, key, wait)? else { return Ok((Vec::new(), 0)) };
        let mut pieces: Vec<SegmentExtent> = Vec::new();
        for extent in chunk.range(start, end) {
            // Under the lock: while the index refers to it, a segment is not removed.
            let segment = match pieces.last() {
                Some((segment, _)) if segment.no == extent.segment => segment.clone(),
                _ => self.segments.get(extent.segment).ok_or_else(|| {
                    let name = super::segment::name_of(extent.segment);
                    failed("lost", name)
                })?,
            };
            pieces.push((segment, extent));
        }
        let chunk_end = chunk.end();
        self.evict(&mut state);
        Ok((pieces, chunk_end))
    }

    /// Changes a chunk by `f`, which says whether it did.
    fn change<T>(
        &self,
        state: &mut State,
        key: ChunkKey,
        f: impl FnOnce(&mut Chunk, &mut dyn FnMut(u32, i64)) -> (bool, T),
    ) -> Result<T> {
        if self.load(state, key, WaitPolicy::May)?.is_none() {
            state.bytes += bytes_of(&Chunk::default());
            state.chunks.insert(key, Cached::default());
        }
        let Some(cached) = state.chunks.get_mut(&key) else {
            return Err(failed("change", "the chunk is gone"));
        };
        let (bytes, was_empty) = (bytes_of(&cached.chunk), cached.chunk.extents.is_empty());
        let (changed, result) =
            f(&mut cached.chunk, &mut |segment, delta| self.segments.adjust(segment, delta));
        state.bytes = state.bytes - bytes + bytes_of(&cached.chunk);
        let counted = i64::from(was_empty) - i64::from(cached.chunk.extents.is_empty());
        self.chunks.fetch_add(counted, Ordering::Relaxed);
        let empty = cached.chunk.extents.is_empty();
        if changed && !cached.dirty {
            cached.dirty = true;
            state.dirty.insert(RowKey::Chunk(key));
            self.dirty.fetch_add(1, Ordering::Relaxed);
        } else if !changed && empty && !cached.dirty && !cached.writing {
            // It would hide a void row from the checkpoint that removes those.
            state.bytes -= bytes_of(&cached.chunk);
            state.chunks.remove(&key);
        }
        self.evict(state);
        Ok(result)
    }

    fn mark_inode(&self, state: &mut State, id: InodeId) {
        if let Some(inode) = state.inodes.get_mut(&id)
            && !inode.dirty
        {
            inode.dirty = true;
            state.dirty.insert(RowKey::Inode(id));
            self.dirty.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn bytes_of(chunk: &Chunk) -> usize {
    CHUNK_OVERHEAD_BYTES + chunk.extents.capacity() * EXTENT_BYTES
}

fn encoded(message: &impl Message) -> Bytes {
    Bytes::from(message.encode_to_vec())
}
