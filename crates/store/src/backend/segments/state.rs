//! What a store of segments is made of.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use saker_runtime::fs::Dir;
use saker_types::wire::StoreStats;
use saker_types::{Error, Result, Unflushed};

use super::epochs::Epochs;
use super::fetches::Fetches;
use super::index::{ChunkKey, Index};
use super::log::Log;
use super::metrics::Metrics;
use super::options::Options;
use super::pieces::{Corrupt, ReadError};
use super::rounds::Rounds;
use super::segment::Segments;
use crate::backend::io_error;
use crate::wait::locked;

/// Damaged places that are logged.
const DAMAGE_LOGGED_MAX: u64 = 100;

/// A store, open. Dropping it is as a kill: what was acknowledged is found again.
pub struct SegmentStore {
    pub(super) segments: Arc<Segments>,
    pub(super) log: Log,
    pub(super) index: Index,
    pub(super) options: Options,
    pub(super) metrics: Metrics,
    pub(super) rounds: Arc<Rounds>,
    /// Number of the epoch that lasts.
    pub(super) epoch: u64,
    pub(super) epochs: Mutex<Epochs>,
    /// The index holds what the start found.
    pub(super) is_start_saved: AtomicBool,
    /// Chunks of many extents.
    pub(super) rewrites: Mutex<BTreeSet<ChunkKey>>,
    /// What clients have fetched.
    pub(super) fetches: OnceLock<Fetches>,
    /// Damaged places that reads met, for the log: each failing read is counted, few are logged.
    pub(super) damage_logged: AtomicU64,
    /// Kept, because it holds the lock.
    pub(super) _dir: Arc<dyn Dir>,
}

impl SegmentStore {
    /// After a flush: true if some of `unflushed` is lost, since power failed before this, or the
    /// disk did.
    pub fn lost(&self, unflushed: &[Unflushed]) -> bool {
        let (next_seq, epochs) = (self.log.next_seq(), locked(&self.epochs));
        unflushed.iter().any(|writes| epochs.lost(writes, next_seq))
    }

    /// Makes everything that was acknowledged before durable.
    ///
    /// # Errors
    /// EIO: some of it may be lost if power fails.
    pub fn flush(&self) -> Result<()> {
        self.log.sync().map_err(|e| io_error("flush", &e))
    }

    /// Sequence number of the next record.
    pub fn next_seq(&self) -> u64 {
        self.log.next_seq()
    }

    /// Space and counts. What is free is what may be written before ENOSPC.
    ///
    /// # Errors
    /// statvfs's.
    pub fn stat(&self) -> Result<StoreStats> {
        let space = (self.options.space)().map_err(|e| io_error("statvfs", &e))?;
        Ok(StoreStats {
            capacity_bytes: self.options.capacity_bytes.min(space.capacity_bytes),
            free_bytes: self.log.room_bytes(&space),
            data_bytes: self.segments.live_bytes(),
            chunks: self.index.chunks(),
            segments: self.segments.count() as u64,
            disk: self.options.disk,
            disk_bytes: space.capacity_bytes,
            disk_free_bytes: space.free_bytes,
            unused_bytes: self.log.unused_bytes().min(space.unused_bytes),
            disk_unused_bytes: space.unused_bytes,
        })
    }

    /// Brings the gauges up to date.
    pub(super) fn update_gauges(&self) {
        self.metrics.chunks.set(self.index.chunks() as i64);
        self.metrics.data_bytes.set(self.segments.live_bytes() as i64);
        self.metrics.segments.set(self.segments.count() as i64);
    }

    /// Counts damage, and logs the first of it.
    pub(super) fn report(&self, error: ReadError) -> Error {
        if let ReadError::Corrupt(Corrupt(text)) = &error {
            self.metrics.corrupt_blocks.inc();
            let logged = self.damage_logged.fetch_add(1, Ordering::Relaxed);
            if logged < DAMAGE_LOGGED_MAX {
                tracing::error!("{}/{text}", self.segments.label());
            }
        }
        error.into()
    }
}
