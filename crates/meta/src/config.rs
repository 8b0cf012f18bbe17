//! Settings of an MNode.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

/// Rows of some million files, of about 100 bytes each.
const ROW_CACHE_BYTES: usize = 128 << 20;

/// `saker serve mnode --config FILE`.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// Number of the MNode.
    pub n: u32,
    /// Where journals and tables live.
    pub data_dir: PathBuf,
    /// Addresses of the workers, one each.
    pub listen: Vec<SocketAddr>,
    /// Address of /metrics.
    pub http: SocketAddr,
    /// The coordinator.
    pub coordinator: SocketAddr,
    /// Bytes of changed rows that a worker keeps in memory between checkpoints.
    #[serde(default = "overlay_bytes")]
    pub overlay_bytes: u64,
    /// Decoded inodes that a worker keeps.
    #[serde(default = "inodes")]
    pub inodes: usize,
    /// Bytes of blocks of rows that a worker keeps.
    #[serde(default = "row_cache_bytes")]
    pub row_cache_bytes: usize,
    /// Directories of other owners that a worker keeps.
    #[serde(default = "replica")]
    pub replica: usize,
    /// Requests that have arrived are run as one batch. For measurements: without it one by one.
    #[serde(default = "yes")]
    pub merge_requests: bool,
    /// A flush is for all that was changed before it began, and others go on meanwhile. For
    /// measurements: without it each batch waits for a flush of its own.
    #[serde(default = "yes")]
    pub group_commit: bool,
    /// Requests that begin with the same directories walk through them once. For measurements: without
    /// it each walks by itself.
    #[serde(default = "yes")]
    pub coalesce_prefixes: bool,
    /// A directory is made by its owner alone, and others fetch what they need. For measurements:
    /// without it each is made in a transaction of all shards.
    #[serde(default = "yes")]
    pub lazy_replication: bool,
}

fn yes() -> bool {
    true
}

fn overlay_bytes() -> u64 {
    crate::ShardLimits::default().overlay_bytes
}

fn inodes() -> usize {
    crate::ShardLimits::default().inodes
}

fn row_cache_bytes() -> usize {
    ROW_CACHE_BYTES
}

fn replica() -> usize {
    crate::ShardLimits::default().replica
}
