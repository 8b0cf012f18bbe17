//! The rows of the index table.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use saker_engine::table::RESERVED;
use saker_types::{InodeId, Result};

use super::{ChunkKey, failed};
use crate::backend::segments::epochs::Epochs;
use crate::backend::segments::extent::Chunk;

/// First bytes of keys.
const CHUNK: u8 = b'c';
const INODE: u8 = b'i';
const DELETED: u8 = b'd';

/// Where [`Saved`] is kept.
pub const SAVED_KEY: &[u8] = &[RESERVED, b's'];

/// Sorts as (id, index).
pub fn chunk_key((id, index): ChunkKey) -> Bytes {
    let mut key = Vec::with_capacity(17);
    key.push(CHUNK);
    key.extend_from_slice(&id.to_be_bytes());
    key.extend_from_slice(&index.to_be_bytes());
    key.into()
}

/// Behind the keys of all chunks.
pub const CHUNKS_END: &[u8] = &[CHUNK + 1];

pub fn decode_key(key: &[u8]) -> Result<ChunkKey> {
    let fail = || failed("read", format!("a key of {} bytes", key.len()));
    let (first, rest) = key.split_first().ok_or_else(fail)?;
    let (id, index) = rest.split_first_chunk::<8>().ok_or_else(fail)?;
    let index: [u8; 8] = index.try_into().map_err(|_| fail())?;
    if *first != CHUNK {
        return Err(fail());
    }
    Ok((u64::from_be_bytes(*id), u64::from_be_bytes(index)))
}

pub fn decode_chunk(row: &[u8]) -> Result<Chunk> {
    let chunk = Chunk::decode(row).map_err(|e| failed("read", e))?;
    if !chunk.is_sound() {
        return Err(failed("read", "a chunk with impossible extents"));
    }
    Ok(chunk)
}

/// What the table knows of an inode.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct InodeRow {
    /// Newest truncation known, or [`super::DELETED`].
    #[prost(uint64, tag = "1")]
    pub truncate_gen: u64,
}

pub fn inode_key(id: InodeId) -> Bytes {
    let mut key = Vec::with_capacity(9);
    key.push(INODE);
    key.extend_from_slice(&id.to_be_bytes());
    key.into()
}

pub fn decode_inode(row: &[u8]) -> Result<u64> {
    Ok(InodeRow::decode(row).map_err(|e| failed("read", e))?.truncate_gen)
}

/// The inodes of one record of a deletion.
#[derive(Clone, PartialEq, prost::Message)]
struct DeletedRow {
    #[prost(uint64, repeated, tag = "1")]
    ids: Vec<InodeId>,
}

/// By the record's sequence number: the oldest come first.
pub fn deleted_key(seq: u64) -> Bytes {
    let mut key = Vec::with_capacity(9);
    key.push(DELETED);
    key.extend_from_slice(&seq.to_be_bytes());
    key.into()
}

pub fn encode_deleted(ids: &[InodeId]) -> Bytes {
    super::encoded(&DeletedRow { ids: ids.to_vec() })
}

pub fn decode_deleted(key: &[u8], row: &[u8]) -> Result<(u64, Vec<InodeId>)> {
    let seq = key.get(1..).and_then(|seq| seq.try_into().ok());
    let seq = seq.ok_or_else(|| failed("read", format!("a key of {} bytes", key.len())))?;
    let row = DeletedRow::decode(row).map_err(|e| failed("read", e))?;
    Ok((u64::from_be_bytes(seq), row.ids))
}

/// A segment as the table knows it.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct SavedSegment {
    #[prost(uint32, tag = "1")]
    pub no: u32,
    /// Bytes that the table's rows refer to.
    #[prost(int64, tag = "2")]
    pub live: i64,
    /// End of its last record.
    #[prost(uint32, tag = "3")]
    pub end: u32,
}

/// What the table holds, as one row of it.
#[derive(Clone, PartialEq, prost::Message)]
struct SavedRow {
    #[prost(uint32, tag = "2")]
    segment: u32,
    #[prost(uint32, tag = "3")]
    pos: u32,
    #[prost(uint64, tag = "4")]
    next_seq: u64,
    #[prost(uint64, tag = "5")]
    chunks: u64,
    #[prost(message, repeated, tag = "6")]
    segments: Vec<SavedSegment>,
    #[prost(uint64, tag = "7")]
    durable_seq: u64,
    #[prost(message, required, tag = "8")]
    epochs: Epochs,
    #[prost(uint64, tag = "9")]
    deleted: u64,
}

/// What the table holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// Where the replay of the log starts: segment, position, sequence number.
    pub segment: u32,
    #[allow(missing_docs)]
    pub pos: u32,
    #[allow(missing_docs)]
    pub next_seq: u64,
    /// Every record that was acknowledged with a lower number is durable.
    pub durable_seq: u64,
    #[allow(missing_docs)]
    pub epochs: Epochs,
    /// Rows of chunks.
    pub chunks: u64,
    /// Inodes whose deletion is remembered.
    pub deleted: u64,
    /// Live bytes and end of each segment.
    pub segments: BTreeMap<u32, (i64, u32)>,
}

impl Saved {
    /// As a row.
    pub fn encode(&self) -> Bytes {
        let segments = self.segments.iter();
        let row = SavedRow {
            segment: self.segment,
            pos: self.pos,
            next_seq: self.next_seq,
            chunks: self.chunks,
            segments: segments.map(|(&no, &(live, end))| SavedSegment { no, live, end }).collect(),
            durable_seq: self.durable_seq,
            epochs: self.epochs.clone(),
            deleted: self.deleted,
        };
        super::encoded(&row)
    }

    /// From a row.
    ///
    /// # Errors
    /// EIO, if it is none.
    pub fn decode(row: &[u8]) -> Result<Saved> {
        let row = SavedRow::decode(row).map_err(|e| failed("read", e))?;
        Ok(Saved {
            segment: row.segment,
            pos: row.pos,
            next_seq: row.next_seq,
            chunks: row.chunks,
            segments: row.segments.iter().map(|s| (s.no, (s.live, s.end))).collect(),
            durable_seq: row.durable_seq,
            epochs: row.epochs,
            deleted: row.deleted,
        })
    }

    /// Counts a row that comes (`sign` 1) or goes (-1).
    pub fn count(&mut self, chunk: &Chunk, sign: i64) {
        chunk.live(&mut |segment, bytes| {
            self.segments.entry(segment).or_default().0 += sign * bytes
        });
        self.chunks = self.chunks.saturating_add_signed(sign);
    }
}
