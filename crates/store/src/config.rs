//! Settings of a store.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

/// `saker serve store --config FILE`.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// Number of the store.
    pub n: u16,
    /// Where segments and index live.
    pub data_dir: PathBuf,
    /// Address for peers and clients.
    pub listen: SocketAddr,
    /// Address of /metrics.
    pub http: SocketAddr,
    /// The coordinator.
    pub coordinator: SocketAddr,
    /// Bytes of disk that the segments may take; by default all of the file system.
    #[serde(default = "unbounded")]
    pub capacity_bytes: u64,
    /// Threads that serve.
    #[serde(default = "threads")]
    pub threads: usize,
}

fn unbounded() -> u64 {
    u64::MAX
}

fn threads() -> usize {
    2
}
