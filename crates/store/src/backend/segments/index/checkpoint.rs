//! Writing what changed into the table, in commits of bounded size.
//!
//! The rows of a commit and what they count for are one write, of which a crash leaves all or
//! nothing. So the live bytes of each segment are exact after every crash, without reading the
//! whole table.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use saker_engine::table::Table;
use saker_types::{InodeId, Result};

use super::rows::{self, InodeRow, SAVED_KEY};
use super::{Index, NOTHING_VOID, RowKey, Saved, State, encoded, failed};
use crate::backend::segments::epochs::Epochs;
use crate::backend::segments::log::LogPosition;
use crate::wait::locked;

/// Most rows in one commit.
const COMMIT_ROWS_MAX: usize = 4096;
/// A commit of so many bytes takes no more rows.
const COMMIT_BYTES_MAX: usize = 4 << 20;

/// What one commit left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Some rows are not written yet; the marker has not moved.
    More,
    /// Everything that was dirty when the drain began is written; the marker has moved.
    Done,
}

#[derive(Default)]
struct Batch {
    rows: BTreeMap<Bytes, Option<Bytes>>,
    keys: Vec<RowKey>,
    /// Inodes whose void rows are gone with this batch.
    voids: Vec<InodeId>,
    bytes: usize,
    more: bool,
    /// By how many inodes it changes what is remembered of deletions.
    deleted: i64,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.rows.len() >= COMMIT_ROWS_MAX || self.bytes >= COMMIT_BYTES_MAX
    }
}

/// Reads what `table` holds.
///
/// # Errors
/// The table's, or what it holds makes no sense.
pub fn open_saved(table: &dyn Table) -> Result<Saved> {
    let row = table.get(SAVED_KEY).map_err(|e| failed("read", e))?;
    row.map_or(Ok(Saved::default()), |row| Saved::decode(&row))
}

impl Index {
    /// The next commit writes these.
    pub fn save_epochs(&self, epochs: &Epochs) {
        locked(&self.saved).epochs = epochs.clone();
    }

    /// Everything that is dirty now belongs to the checkpoint that [`Index::commit`] works on.
    ///
    /// # Errors
    /// The table's.
    pub fn begin_drain(&self) -> Result<()> {
        self.drain_deleted()?;
        for shard in &self.shards {
            let state = &mut *locked(&shard.state);
            state.draining.append(&mut state.dirty);
        }
        Ok(())
    }

    /// Writes a part of what is to be drained. `sync` must make the log durable; the last commit
    /// moves the marker to `marker`, which must have been taken before [`Index::begin_drain`].
    ///
    /// # Errors
    /// `sync`'s or the table's. It may be tried again: the table is as it was, or the next commit
    /// takes the place of the one that failed.
    pub fn commit(
        &self,
        marker: &LogPosition,
        sync: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Commit> {
        self.table.make_room();
        let mut saved = locked(&self.saved);
        let mut batch = Batch::default();
        let result = self.collect(&mut batch).and_then(|()| {
            if !batch.more {
                batch.deleted = self.deleted_rows(&mut batch.rows)?;
            }
            sync()?;
            self.write(&mut saved, &batch, marker)
        });
        if result.is_ok() && !batch.more {
            self.deleted_written();
        }
        self.release(&batch, result.is_ok());
        result.map(|()| if batch.more { Commit::More } else { Commit::Done })
    }

    fn collect(&self, batch: &mut Batch) -> Result<()> {
        for shard in &self.shards {
            let mut state = locked(&shard.state);
            while let Some(key) = state.draining.pop_first() {
                if batch.is_full() {
                    state.draining.insert(key);
                    batch.more = true;
                    return Ok(());
                }
                self.dirty.fetch_sub(1, Ordering::Relaxed);
                batch.keys.push(key);
                match key {
                    RowKey::Chunk(key) => collect_chunk(&mut state, key, batch),
                    RowKey::Inode(id) => self.collect_inode(&mut state, id, batch)?,
                }
            }
        }
        Ok(())
    }

    fn collect_inode(&self, state: &mut State, id: InodeId, batch: &mut Batch) -> Result<()> {
        let Some(inode) = state.inodes.get_mut(&id) else { return Ok(()) };
        (inode.dirty, inode.writing) = (false, true);
        let (void_from, truncate_gen) = (inode.void_from, inode.truncate_gen);
        if void_from != NOTHING_VOID {
            let start = rows::chunk_key((id, void_from));
            let end = rows::chunk_key((id, NOTHING_VOID));
            let (mut full, mut written_since) = (false, Vec::new());
            let chunks = &state.chunks;
            let scanned = self.table.scan(&start, &end, &mut |key, _| {
                full = batch.is_full();
                if full {
                    return ControlFlow::Break(());
                }
                // A key that makes no sense is none of this inode's, whatever it is.
                let Ok(chunk) = rows::decode_key(key) else { return ControlFlow::Continue(()) };
                match chunks.get(&chunk) {
                    None => _ = batch.rows.insert(Bytes::copy_from_slice(key), None),
                    Some(cached) if cached.dirty => written_since.push(chunk),
                    Some(_) => {}
                }
                ControlFlow::Continue(())
            });
            scanned.map_err(|e| failed("read", e))?;
            // The row of such a chunk is void as well, and nobody will know that when the marker
            // has moved past the truncation: what the chunk is now goes with this batch.
            for chunk in written_since {
                let key = RowKey::Chunk(chunk);
                _ = state.draining.remove(&key) || state.dirty.remove(&key);
                self.dirty.fetch_sub(1, Ordering::Relaxed);
                batch.keys.push(key);
                collect_chunk(state, chunk, batch);
            }
            if full {
                state.draining.insert(RowKey::Inode(id));
                self.dirty.fetch_add(1, Ordering::Relaxed);
                if let Some(inode) = state.inodes.get_mut(&id) {
                    inode.dirty = true;
                }
                batch.more = true;
            } else {
                batch.voids.push(id);
            }
        }
        let key = rows::inode_key(id);
        if truncate_gen > 0 {
            let row = InodeRow { truncate_gen };
            batch.rows.insert(key, Some(encoded(&row)));
        } else if self.table.get(&key).map_err(|e| failed("read", e))?.is_some() {
            batch.rows.insert(key, None);
        }
        Ok(())
    }

    /// Writes a batch.
    fn write(&self, saved: &mut Saved, batch: &Batch, marker: &LogPosition) -> Result<()> {
        let table = &*self.table;
        let mut next = saved.clone();
        for (key, row) in &batch.rows {
            if rows::decode_key(key).is_err() {
                continue;
            }
            if let Some(old) = table.get(key).map_err(|e| failed("read", e))? {
                next.count(&rows::decode_chunk(&old)?, -1);
            }
            if let Some(row) = row {
                next.count(&rows::decode_chunk(row)?, 1);
            }
        }
        if !batch.more {
            (next.segment, next.pos) = (marker.place.segment, marker.place.pos);
            (next.next_seq, next.durable_seq) = (marker.next_seq, marker.durable_seq);
            next.deleted = next.deleted.saturating_add_signed(batch.deleted);
        }
        next.segments.retain(|_, (live, _)| *live != 0);
        for segment in self.segments.all() {
            let end = segment.end.load(Ordering::Acquire);
            next.segments.entry(segment.no).or_default().1 = end;
        }
        let rows = batch.rows.iter().map(|(key, row)| (key.clone(), row.clone()));
        // Last by its key, as the engine's own are.
        let counts = (Bytes::from_static(SAVED_KEY), Some(next.encode()));
        table.write(&mut rows.chain([counts])).map_err(|e| failed("write", e))?;
        *saved = next;
        Ok(())
    }

    /// The rows of a batch are written, or must be written again.
    fn release(&self, batch: &Batch, written: bool) {
        for key in &batch.keys {
            let id = match key {
                RowKey::Chunk((id, _)) | RowKey::Inode(id) => *id,
            };
            let state = &mut *locked(&self.shard(id).state);
            let dirty = match key {
                RowKey::Chunk(key) => state.chunks.get_mut(key).map(|cached| {
                    cached.writing = false;
                    &mut cached.dirty
                }),
                RowKey::Inode(id) => state.inodes.get_mut(id).map(|inode| {
                    inode.writing = false;
                    if written && batch.voids.contains(id) {
                        inode.void_from = NOTHING_VOID;
                    }
                    &mut inode.dirty
                }),
            };
            if let Some(dirty) = dirty
                && !written
                && !*dirty
            {
                *dirty = true;
                state.draining.insert(*key);
                self.dirty.fetch_add(1, Ordering::Relaxed);
            }
            self.evict(state);
        }
    }

    /// Segments below the marker that no row of the table refers to; with the index in memory
    /// not referring to one either, its file may go.
    pub fn unreferenced(&self) -> Vec<u32> {
        let saved = locked(&self.saved);
        let all = self.segments.all();
        let unreferenced = all.iter().filter(|segment| {
            let live = saved.segments.get(&segment.no).map_or(0, |(live, _)| *live);
            segment.no < saved.segment && live == 0 && segment.live_bytes() == 0
        });
        unreferenced.map(|segment| segment.no).collect()
    }
}

fn collect_chunk(state: &mut State, key: super::ChunkKey, batch: &mut Batch) {
    if let Some(cached) = state.chunks.get_mut(&key) {
        (cached.dirty, cached.writing) = (false, true);
        let empty = cached.chunk.extents.is_empty();
        let row = (!empty).then(|| encoded(&cached.chunk));
        batch.bytes += row.as_ref().map_or(0, Bytes::len);
        batch.rows.insert(rows::chunk_key(key), row);
    }
}
