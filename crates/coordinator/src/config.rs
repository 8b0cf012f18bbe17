//! Settings of a coordinator.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

/// `saker serve coordinator --config FILE`.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// Number of the coordinator; 0.
    #[serde(default)]
    pub n: u32,
    /// Where its journal lives.
    pub data_dir: PathBuf,
    /// Address for peers and clients.
    pub listen: SocketAddr,
    /// Address of /metrics.
    pub http: SocketAddr,
    /// Uuid of the cluster, in hexadecimal digits, once it is known: without, an empty directory
    /// becomes a new cluster.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Members of the cluster: taken when it is made; later only their addresses are.
    pub cluster: Members,
}

/// Members of the cluster.
#[derive(Clone, Debug, Deserialize)]
pub struct Members {
    /// Name of the cluster.
    pub name: String,
    /// Shards, in order of their numbers.
    pub shards: Vec<ShardMember>,
    /// Stores, in order of their numbers.
    pub stores: Vec<SocketAddr>,
    /// Copies of each chunk.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Largest file kept in its inode row, in bytes.
    #[serde(default = "inline_max")]
    pub inline_max: u64,
}

/// A shard.
#[derive(Clone, Debug, Deserialize)]
pub struct ShardMember {
    /// MNode it belongs to.
    pub mnode: u32,
    /// Where it listens.
    pub addr: SocketAddr,
}

fn one() -> u32 {
    1
}

fn inline_max() -> u64 {
    saker_types::limits::INLINE_BYTES_MAX
}
