//! The rows of a shard: recent changes in memory, the rest in a [`Table`].
//!
//! The table is written only by checkpoints, so it is never ahead of the durable journal: a crash
//! between a journal write and its sync cannot leave an effect of what was lost. And a row that
//! changes a thousand times between two checkpoints is written once.
//!
//! How [`crate::embedded`] takes a checkpoint, when [`Db::overlay_bytes`] passes its limit:
//!
//! 1. `journal.flush()`: everything in the overlay is durable in the journal.
//! 2. `segment = journal.rotate(snapshot)`, `checkpoint = db.checkpoint_begin(segment)`.
//! 3. On another thread (in simulation inline): `result = checkpoint.run()`; the owner goes on.
//! 4. `db.checkpoint_finish(result)`, `journal.trim(segment)`.
//!
//! At start: `db = Db::open(table)`, `Journal::open(dir, config, db.replay_from(), ..)`. Rows and marker
//! are written as one, so the table is as the records before that segment left it.

mod overlay;

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use overlay::{Discarded, Merged, Overlay};

use crate::journal::ReplayFrom;
use crate::table::{KEY_BYTES_MAX, RESERVED, Reads, RowWrite, Table, TableError, hash_of};

type Result<T> = std::result::Result<T, TableError>;

/// Where the number of the journal segment to replay from is kept: 8 bytes, little-endian.
const MARKER_KEY: &[u8] = b"\xffmarker";

/// The rows of a shard; see the module.
pub struct Db {
    table: Arc<dyn Table>,
    overlay: Overlay,
    /// What the running checkpoint writes, or a failed one was to write.
    frozen: Option<Arc<Overlay>>,
    /// Rows of the last checkpoint, to be freed bit by bit.
    discarded: Discarded,
    /// The marker of the running checkpoint.
    running: Option<u64>,
    marker: Option<u64>,
}

impl Db {
    /// Opens the rows in `table`, with nothing in the overlay.
    ///
    /// # Errors
    /// The table's.
    pub fn open(table: Arc<dyn Table>) -> Result<Db> {
        let marker = match table.get(MARKER_KEY)? {
            None => None,
            Some(value) => {
                let bytes = value[..].try_into().map_err(std::io::Error::other)?;
                Some(u64::from_le_bytes(bytes))
            }
        };
        Ok(Db {
            table,
            overlay: Overlay::default(),
            frozen: None,
            discarded: Discarded::default(),
            running: None,
            marker,
        })
    }

    /// The journal segment where replay starts, as of the last checkpoint that finished.
    #[cfg(test)]
    pub fn marker(&self) -> Option<u64> {
        self.marker
    }

    /// What that means for [`Journal::open`](crate::journal::Journal::open): before the first
    /// checkpoint nothing is trimmed.
    pub fn replay_from(&self) -> ReplayFrom {
        self.marker.map_or(ReplayFrom::Start, ReplayFrom::Segment)
    }

    /// The value of a row.
    ///
    /// # Errors
    /// The table's.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let hash = hash_of(key);
        if let Some(value) = self.overlay.get(key, hash) {
            return Ok(value);
        }
        if let Some(value) = self.frozen.as_ref().and_then(|frozen| frozen.get(key, hash)) {
            return Ok(value);
        }
        self.table.get(key)
    }

    /// How looks at rows of the table were served.
    pub fn reads(&self) -> Reads {
        self.table.reads()
    }

    /// This row will be read soon: if it is on the disk only, it is fetched meanwhile.
    pub fn prefetch(&self, key: &[u8]) {
        self.table.prefetch(key);
    }

    /// Sets a row.
    ///
    /// # Panics
    /// If the key is empty, over [`KEY_BYTES_MAX`] or starts with 0xff (the engine's own keys).
    pub fn put(&mut self, key: &[u8], value: &Bytes) {
        self.change(key, Some(value));
    }

    /// Removes a row, whether it is there or not.
    ///
    /// # Panics
    /// As [`Db::put`].
    pub fn delete(&mut self, key: &[u8]) {
        self.change(key, None);
    }

    fn change(&mut self, key: &[u8], value: Option<&Bytes>) {
        let first = key.first().copied().unwrap_or(RESERVED);
        assert!(first != RESERVED && key.len() <= KEY_BYTES_MAX, "the key {key:?}");
        self.overlay.insert(key, value);
        self.discarded.free_some();
    }

    /// Calls `f` with the rows from `start` (inclusive) to `end` (exclusive) in order of keys,
    /// until it breaks. Holds one row at a time.
    ///
    /// # Errors
    /// The table's.
    pub fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let end = end.min(&[RESERVED]);
        if start >= end {
            return Ok(());
        }
        let mut changes = Merged {
            newer: self.overlay.range(start, end),
            older: self.frozen.as_ref().map(|frozen| frozen.range(start, end)),
        };
        let mut next = changes.next();
        let mut flow = ControlFlow::Continue(());
        self.table.scan(start, end, &mut |key, value| {
            while let Some((changed, change)) = next.filter(|(changed, _)| &changed[..] <= key) {
                next = changes.next();
                flow = change.as_ref().map_or(flow, |value| f(changed, value));
                if flow.is_break() || &changed[..] == key {
                    return flow;
                }
            }
            flow = f(key, value);
            flow
        })?;
        while let Some((key, change)) = next.filter(|_| flow.is_continue()) {
            next = changes.next();
            flow = change.as_ref().map_or(flow, |value| f(key, value));
        }
        Ok(())
    }

    /// Memory of the changes since the last [`Db::checkpoint_begin`], in bytes (an estimate).
    pub fn overlay_bytes(&self) -> usize {
        self.overlay.bytes()
    }

    /// Memory of the changes that the running checkpoint writes, in bytes (an estimate).
    pub fn frozen_bytes(&self) -> usize {
        self.frozen.as_ref().map_or(0, |frozen| frozen.bytes())
    }

    /// Whether a checkpoint was begun and not finished.
    pub fn checkpointing(&self) -> bool {
        self.running.is_some()
    }

    /// Freezes the overlay for a checkpoint, after which replay starts at the journal segment
    /// `marker`. Every change made so far must be durable in the journal, before that segment.
    ///
    /// # Panics
    /// If a checkpoint is running.
    pub fn checkpoint_begin(&mut self, marker: u64) -> Checkpoint {
        assert!(self.running.is_none(), "a checkpoint is running");
        let next = Overlay::like(&self.overlay);
        let mut overlay = std::mem::replace(&mut self.overlay, next);
        if let Some(failed) = self.frozen.take() {
            // The failed checkpoint's thread is gone; should it not be, a copy is as good.
            let newer = std::mem::replace(&mut overlay, Arc::unwrap_or_clone(failed));
            overlay.update(&newer);
        }
        let frozen = Arc::new(overlay);
        self.frozen = Some(frozen.clone());
        self.running = Some(marker);
        Checkpoint { table: self.table.clone(), frozen, marker }
    }

    /// Takes the result of [`Checkpoint::run`]. On success the rows are the table's from here on.
    /// After a failure they stay in memory, replay starts where it did before, and the next
    /// checkpoint takes them along.
    ///
    /// # Errors
    /// The one in `result`.
    pub fn checkpoint_finish(&mut self, result: Result<()>) -> Result<()> {
        let marker = self.running.take();
        result?;
        self.marker = marker.or(self.marker);
        if let Some(overlay) = self.frozen.take().and_then(Arc::into_inner) {
            self.discarded = Discarded::new(overlay);
        }
        Ok(())
    }
}

/// A checkpoint to be taken; see [`Db::checkpoint_begin`].
#[must_use]
pub struct Checkpoint {
    table: Arc<dyn Table>,
    frozen: Arc<Overlay>,
    marker: u64,
}

impl Checkpoint {
    /// Writes the frozen rows and the marker into the table. Takes seconds.
    ///
    /// # Errors
    /// The table's.
    pub fn run(self) -> Result<()> {
        let marker = Bytes::copy_from_slice(&self.marker.to_le_bytes());
        // Last by its key: the engine's own are greater than all others.
        let marker: RowWrite = (Bytes::from_static(MARKER_KEY), Some(marker));
        let rows = self.frozen.iter().map(|(key, value)| (key.clone(), value.clone()));
        self.table.write(&mut rows.chain([marker]))
    }
}

#[cfg(test)]
mod tests;
