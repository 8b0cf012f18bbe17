//! The cluster map and its members; what fsck asks.

use bytes::Bytes;

use crate::InodeId;

/// fsck reads the rows of a shard, in key order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScanReq {
    /// Rows after this key.
    #[prost(bytes = "bytes", tag = "1")]
    pub after: Bytes,
    #[prost(uint32, tag = "2")]
    #[allow(missing_docs)]
    pub limit: u32,
}

/// Rows of a shard: keys and values as in [`crate::change`], inline data and xattrs included.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScanReply {
    #[prost(message, repeated, tag = "1")]
    #[allow(missing_docs)]
    pub rows: Vec<Row>,
    #[prost(bool, tag = "2")]
    #[allow(missing_docs)]
    pub end: bool,
}

/// Key and value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Row {
    #[prost(bytes = "bytes", tag = "1")]
    #[allow(missing_docs)]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    #[allow(missing_docs)]
    pub value: Bytes,
}

/// Begins to look out for inodes on a shard, or says what was seen of them since.
///
/// A row moves while rows are scanned, from one shard to another or behind the scan. So a shard that
/// looks out for an inode notes each row, vote or hold of it that comes. Who asks all shards to look
/// out, then scans all their rows, and then asks again, has met every inode that was there when the
/// last shard began.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchReq {
    /// Drawn at random.
    #[prost(uint64, tag = "1")]
    pub watch: u64,
    /// Begins: what to look out for. Empty: it ends.
    #[prost(uint64, repeated, tag = "2")]
    pub ids: Vec<InodeId>,
}

/// Answer to watch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchReply {
    /// Those that are known here besides by their rows, or have come.
    #[prost(uint64, repeated, tag = "1")]
    pub known: Vec<InodeId>,
}

/// Asks the coordinator for the cluster map.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct MapReq {
    /// Answer when there is one newer than this.
    #[prost(uint64, tag = "1")]
    pub newer_than: u64,
}

/// A shard reserves ids, or a store begins to serve: its mark is raised. It is in the node's
/// directory, durably, before it is told.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct MarkReq {
    /// 2 a shard, 4 a store: a role's number in a hello.
    #[prost(uint32, tag = "1")]
    pub role: u32,
    /// Number of the shard or store.
    #[prost(uint32, tag = "2")]
    pub n: u32,
    /// The highest mark that the coordinator has acknowledged.
    #[prost(uint64, tag = "3")]
    pub told: u64,
    /// The mark before this one: ids below may have been given out.
    #[prost(uint64, tag = "4")]
    pub have: u64,
    /// The mark now; `have`: nothing is raised.
    #[prost(uint64, tag = "5")]
    pub want: u64,
    /// Drawn at random for this mark: a repetition is told from a copy.
    #[prost(fixed64, tag = "6")]
    pub token: u64,
}

/// Members that may not serve.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RefusedReply {
    /// In order of their roles and numbers.
    #[prost(message, repeated, tag = "1")]
    pub members: Vec<RefusedMember>,
}

/// A member that was refused when it asked last.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RefusedMember {
    /// 2 a shard, 4 a store.
    #[prost(uint32, tag = "1")]
    pub role: u32,
    /// Number of the shard or store.
    #[prost(uint32, tag = "2")]
    pub n: u32,
    /// In words.
    #[prost(string, tag = "3")]
    pub why: String,
}
