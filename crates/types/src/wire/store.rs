//! Chunks.

use crate::InodeId;
use crate::inode::Unflushed;

/// Writes payload into a chunk at an offset, or makes a hole there.
///
/// A request that nobody waits for any more may still be executed, after later writes of the same
/// bytes. So a write that is sent again says so: the store lets earlier attempts that run end
/// first, and refuses those that come later.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkWriteReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub index: u64,
    /// Byte within the chunk.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// Refused with ESTALE if the store knows a newer truncation (rule 17).
    #[prost(uint64, tag = "4")]
    pub truncate_gen: u64,
    /// The chunk's stores, first choice first.
    #[prost(uint32, repeated, tag = "5")]
    pub replicas: Vec<u32>,
    /// Reply after it is flushed to disk.
    #[prost(bool, tag = "6")]
    pub sync: bool,
    /// CRC32C of the payload, checked before it is stored.
    #[prost(fixed32, tag = "7")]
    pub crc: u32,
    /// Who writes, drawn at random by the client; 0: the shard that owns the inode, whose writes
    /// are told from late ones by the truncate generation.
    #[prost(uint64, tag = "8")]
    pub writer: u64,
    /// Number of the write at the writer.
    #[prost(uint64, tag = "9")]
    pub seq: u64,
    /// How often it was sent before.
    #[prost(uint32, tag = "10")]
    pub attempt: u32,
    /// Bytes of a hole that is made instead; there is no payload then.
    #[prost(uint64, tag = "11")]
    pub hole: u64,
}

/// What a write is called when it is to be flushed ([`Unflushed`]).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ChunkWriteReply {
    /// The store's epoch; 0: there is nothing to flush.
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// Number in the store's log.
    #[prost(uint64, tag = "2")]
    pub seq: u64,
}

/// Flushes all that the store has accepted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkSyncReq {
    /// Writes that must not have been lost before.
    #[prost(message, repeated, tag = "1")]
    pub unflushed: Vec<Unflushed>,
}

/// Answer to a flush that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ChunkSyncReply {
    /// Some of those writes were lost, with the power of the store's machine or by its disk.
    #[prost(bool, tag = "1")]
    pub lost: bool,
}

/// Reads a range of a chunk.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ChunkReadReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub index: u64,
    /// Byte within the chunk.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    #[prost(uint64, tag = "4")]
    #[allow(missing_docs)]
    pub len: u64,
    /// The client's machine (`runtime::fs::machine`), not 0: if it is the store's, too, the reply may
    /// say where the data is, instead of the data.
    #[prost(fixed64, tag = "5")]
    pub machine: u64,
    /// The client can wait for that machine's disk itself: the store need not have the data in the page
    /// cache before it says where it is.
    #[prost(bool, tag = "6")]
    pub fetches: bool,
}

/// The payload holds the range up to the last byte written; the rest reads as zeros.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkReadReply {
    /// CRC32C of the payload, made from the blocks' own checksums' verified data.
    #[prost(fixed32, tag = "1")]
    pub crc: u32,
    /// Where the data is, one after another; there is no payload then.
    #[prost(message, repeated, tag = "2")]
    pub places: Vec<ChunkPlace>,
    /// The directory of the places.
    #[prost(message, optional, tag = "3")]
    pub dir: Option<LocalDir>,
    /// Some of the payload was never written, or cleared.
    #[prost(bool, tag = "4")]
    pub holes: bool,
}

/// A directory of the store's machine.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct LocalDir {
    /// Absolute, as the store's process sees it.
    #[prost(string, tag = "1")]
    pub path: String,
    /// `st_dev`.
    #[prost(uint64, tag = "2")]
    pub dev: u64,
    /// `st_ino`.
    #[prost(uint64, tag = "3")]
    pub ino: u64,
}

/// Data of a chunk in a file of the store's machine, of one record. What is there once is never
/// changed; the file may be removed at any time, when the data has moved or is wanted no more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkPlace {
    /// Its name.
    #[prost(string, tag = "1")]
    pub file: String,
    /// Where the first block begins.
    #[prost(uint64, tag = "2")]
    pub pos: u64,
    /// Bytes of all blocks: each has [`BLOCK_BYTES`](crate::limits::BLOCK_BYTES) but the last.
    #[prost(uint32, tag = "3")]
    pub bytes: u32,
    /// CRC32C of each; none if there is `sum`.
    #[prost(fixed32, repeated, tag = "4")]
    pub sums: Vec<u32>,
    /// Bytes of the first block before the data.
    #[prost(uint32, tag = "5")]
    pub skip: u32,
    /// Bytes of data.
    #[prost(uint32, tag = "6")]
    pub len: u32,
    /// CRC32C of all blocks, for clients that fetch.
    #[prost(fixed32, optional, tag = "7")]
    pub sum: Option<u32>,
    /// It is on the disk only, and to be fetched from there.
    #[prost(bool, tag = "8")]
    pub cold: bool,
}

/// Cuts a file at `cut` bytes and refuses writes of older generations from now on.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ChunkTruncateReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub truncate_gen: u64,
    /// Bytes of the whole file that remain.
    #[prost(uint64, tag = "3")]
    pub cut: u64,
}

/// A file is cut, unless the store knows a newer generation.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ChunkTruncateReply {
    /// The newest generation that the store knows now; `u64::MAX`: the inode was deleted.
    #[prost(uint64, tag = "1")]
    pub truncate_gen: u64,
}

/// Deletes all chunks of these inodes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkDeleteReq {
    #[prost(uint64, repeated, tag = "1")]
    #[allow(missing_docs)]
    pub ids: Vec<InodeId>,
}

/// Sets chunks aside that nobody seems to know, for a day at least before they are deleted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkQuarantineReq {
    /// Inodes whose chunks are set aside. Who reads or writes one has it taken back.
    #[prost(uint64, repeated, tag = "1")]
    pub aside: Vec<InodeId>,
    /// These are taken back.
    #[prost(uint64, repeated, tag = "2")]
    pub back: Vec<InodeId>,
    /// No shard knows these, still: deleted if they were set aside a day ago or earlier.
    #[prost(uint64, repeated, tag = "3")]
    pub delete: Vec<InodeId>,
}

/// Answer to quarantine.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkQuarantineReply {
    /// Those whose chunks are deleted.
    #[prost(uint64, repeated, tag = "1")]
    pub deleted: Vec<InodeId>,
}

/// State of a store.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StoreStats {
    /// Bytes of the disk that the store may use.
    #[prost(uint64, tag = "1")]
    pub capacity_bytes: u64,
    /// Bytes of them that may be written.
    #[prost(uint64, tag = "2")]
    pub free_bytes: u64,
    /// Bytes of live data.
    #[prost(uint64, tag = "3")]
    pub data_bytes: u64,
    #[prost(uint64, tag = "4")]
    #[allow(missing_docs)]
    pub chunks: u64,
    #[prost(uint64, tag = "5")]
    #[allow(missing_docs)]
    pub segments: u64,
    /// Number of its disk, the same for all stores that share it; 0: unknown.
    #[prost(uint64, tag = "6")]
    pub disk: u64,
    /// Bytes of the whole disk.
    #[prost(uint64, tag = "7")]
    pub disk_bytes: u64,
    /// Bytes free on the whole disk.
    #[prost(uint64, tag = "8")]
    pub disk_free_bytes: u64,
    /// Bytes of the capacity that nothing takes: also what is kept free.
    #[prost(uint64, tag = "9")]
    pub unused_bytes: u64,
    /// The same of the whole disk: also what its file system keeps for root.
    #[prost(uint64, tag = "10")]
    pub disk_unused_bytes: u64,
}

/// Lists chunks in order of (id, index), after the one given.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ChunkListReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub after_id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub after_index: u64,
    #[prost(uint32, tag = "3")]
    #[allow(missing_docs)]
    pub limit: u32,
    /// Read every block and check it.
    #[prost(bool, tag = "4")]
    pub verify: bool,
}

/// A chunk on a store.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkInfo {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub index: u64,
    /// End of the last byte written, within the chunk.
    #[prost(uint64, tag = "3")]
    pub len: u64,
    /// With `verify`: what is wrong; empty is good.
    #[prost(string, tag = "4")]
    pub problem: String,
    /// Since when its inode is set aside ([`ChunkQuarantineReq`]), ns since the epoch; 0: it is not.
    #[prost(sfixed64, tag = "5")]
    pub aside_ns: i64,
}

/// Answer to list.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkListReply {
    #[prost(message, repeated, tag = "1")]
    #[allow(missing_docs)]
    pub chunks: Vec<ChunkInfo>,
    #[prost(bool, tag = "2")]
    #[allow(missing_docs)]
    pub end: bool,
}

/// Asks where a file has data on a store.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ChunkSeekReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    /// Byte of the file from which on data is looked for.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// The first run of data at or behind the offset, of the chunks that this store has.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ChunkSeekReply {
    /// First byte of it in the file, at least the offset.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// First byte behind it, or of the next chunk; 0: there is no data.
    #[prost(uint64, tag = "2")]
    pub end: u64,
}
