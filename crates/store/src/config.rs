//! Settings of a store process.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Settings, as read from the role's TOML file.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Config {
    /// Number of this store.
    pub n: u16,
    /// Where identity, index and segments are.
    pub data_dir: PathBuf,
    /// Where requests are answered.
    pub listen: SocketAddr,
    /// Where metrics are answered; nowhere if unset.
    #[serde(default)]
    pub http: Option<SocketAddr>,
    /// Where the coordinator is: asked for the cluster map with each start.
    pub coordinator: SocketAddr,
    /// Bytes of disk that the segments may take; unset: what the disk has.
    #[serde(default)]
    pub capacity_bytes: Option<u64>,
    /// Threads that read requests and answer those that need not wait; others wait.
    #[serde(default = "threads_default")]
    pub threads: usize,
}

fn threads_default() -> usize {
    4
}
