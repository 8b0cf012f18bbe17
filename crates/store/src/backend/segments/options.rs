//! What a store of segments is opened with.

use saker_runtime::telemetry::Registry;

use super::log::SpaceFn;

/// A store remembers so many inodes whose chunks were deleted, and refuses late writes to them.
pub const DELETED_MAX: u64 = 1 << 20;

/// Bounds and surroundings of a store.
#[derive(Clone)]
pub struct Options {
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Bytes of disk that the segments may take.
    pub capacity_bytes: u64,
    /// Bytes of index kept in memory.
    pub cache_bytes: usize,
    /// Deleted inodes that are remembered ([`DELETED_MAX`]).
    pub deleted_max: u64,
    /// The disk's space.
    pub space: SpaceFn,
    /// Number of the disk, the same for all stores that share it; 0: unknown.
    pub disk: u64,
    /// Changes when what was written and not flushed may be gone
    /// ([`RealDir::cached_since`](saker_runtime::fs::RealDir::cached_since)).
    pub cached_since: u64,
    /// Where metrics are declared.
    pub registry: Registry,
}
