//! Bytes on disk: the header of a segment file and the records behind it.
//!
//! A record starts at a multiple of [`RECORD_ALIGN_BYTES`], so that no sector is shared by two of
//! them, and is `fixed header, replica list, block checksums, payload`, little-endian. Its header
//! names its own segment and position and is sealed with the segment's salt, so that a record
//! copied into somebody's file data is never taken for one of ours.

use crc32c::{crc32c, crc32c_append, crc32c_combine};
use saker_types::id::hex;

mod sums;

pub use sums::{Sum, block_sums};

/// Bytes of payload under one checksum.
pub use saker_types::limits::BLOCK_BYTES;
/// Records start at multiples of this.
pub const RECORD_ALIGN_BYTES: u32 = 512;
/// The first record of a segment is here.
pub const SEGMENT_HEADER_BYTES: u32 = 512;
/// Longest payload of a record: a whole chunk.
pub const PAYLOAD_BYTES_MAX: usize = saker_types::limits::CHUNK_BYTES as usize;
/// Most replicas that a record lists.
pub const REPLICAS_MAX: usize = 64;
/// Part of a record's header that every record has.
pub const RECORD_FIXED_BYTES: usize = 80;
/// Longest header.
pub const HEAD_BYTES_MAX: usize =
    head_bytes(PAYLOAD_BYTES_MAX, REPLICAS_MAX).next_multiple_of(RECORD_ALIGN_BYTES as usize);

const SEGMENT_MAGIC: [u8; 8] = *b"SAKERSEG";
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"SKRR");
const SEGMENT_VERSION: u32 = 1;
/// Features that a program must know to read or write; none is defined yet.
const KNOWN_RO_COMPAT: u32 = 0;
const KNOWN_INCOMPAT: u32 = 0;

const _: () = assert!(PAYLOAD_BYTES_MAX.is_multiple_of(BLOCK_BYTES));

/// Why bytes on disk cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum FormatError {
    #[error("not a Saker segment")]
    NotASegment,
    #[error("written by a newer program (format {version}, features {ro_compat:#x}/{incompat:#x})")]
    Newer { version: u32, ro_compat: u32, incompat: u32 },
    #[error("the header is damaged")]
    Damaged,
    #[error("belongs to another cluster ({0})")]
    ForeignCluster(String),
    #[error("belongs to store {0}")]
    ForeignStore(u16),
    #[error("is segment {0}, under a wrong name")]
    ForeignSegment(u32),
    #[error("a record of unknown kind {0}: written by a newer program")]
    UnknownKind(u8),
}

/// Whose data this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Uuid of the cluster.
    pub cluster: [u8; 16],
    /// Number of the store in it.
    pub store: u16,
}

fn le_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn le_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le_u32(bytes, at)) | u64::from(le_u32(bytes, at + 4)) << 32
}

/// What a segment file starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    #[allow(missing_docs)]
    pub identity: StoreIdentity,
    /// The segment's number.
    pub segment: u32,
    /// Random; seals the records.
    pub salt: u32,
}

impl SegmentHeader {
    /// The first bytes of the file.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut out = [0; SEGMENT_HEADER_BYTES as usize];
        out[..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        // 12..16 compatible, 16..20 read-only compatible, 20..24 incompatible features: none.
        out[24..40].copy_from_slice(&self.identity.cluster);
        out[40..42].copy_from_slice(&self.identity.store.to_le_bytes());
        out[44..48].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        out[48..52].copy_from_slice(&self.segment.to_le_bytes());
        out[52..56].copy_from_slice(&self.salt.to_le_bytes());
        let sum = crc32c(&out[..56]);
        out[56..60].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a header and checks that it is what this store may use.
    ///
    /// # Errors
    /// [`FormatError`]: no segment, newer, damaged, or of somebody else.
    pub fn decode(bytes: &[u8], expect: &StoreIdentity, segment: u32) -> Result<Self, FormatError> {
        if bytes.len() < SEGMENT_HEADER_BYTES as usize || bytes[..8] != SEGMENT_MAGIC {
            return Err(FormatError::NotASegment);
        }
        // Before the checksum: a newer program may compute that over something else.
        let (version, ro_compat, incompat) =
            (le_u32(bytes, 8), le_u32(bytes, 16), le_u32(bytes, 20));
        if version > SEGMENT_VERSION
            || ro_compat & !KNOWN_RO_COMPAT != 0
            || incompat & !KNOWN_INCOMPAT != 0
        {
            return Err(FormatError::Newer { version, ro_compat, incompat });
        }
        if le_u32(bytes, 56) != crc32c(&bytes[..56]) || le_u32(bytes, 44) != BLOCK_BYTES as u32 {
            return Err(FormatError::Damaged);
        }
        let mut cluster = [0; 16];
        cluster.copy_from_slice(&bytes[24..40]);
        let identity = StoreIdentity { cluster, store: le_u16(bytes, 40) };
        if identity.cluster != expect.cluster {
            return Err(FormatError::ForeignCluster(hex(&cluster)));
        }
        if identity.store != expect.store {
            return Err(FormatError::ForeignStore(identity.store));
        }
        let header =
            SegmentHeader { identity, segment: le_u32(bytes, 48), salt: le_u32(bytes, 52) };
        if header.segment != segment {
            return Err(FormatError::ForeignSegment(header.segment));
        }
        Ok(header)
    }
}

/// What a record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Payload is file data at `offset` of chunk (`id`, `index`).
    Write = 1,
    /// File `id` is cut at `cut` bytes by truncate generation `truncate_gen`.
    Truncate = 2,
    /// Payload is a list of inode ids (u64) whose chunks are gone.
    Delete = 3,
    /// Bytes of chunk (`id`, `index`) from `offset` on are gone, `version` of them.
    Hole = 4,
}

/// The fixed part of a record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    #[allow(missing_docs)]
    pub kind: RecordKind,
    /// Place in the order of all records of the store.
    pub seq: u64,
    /// When this was written, all records below this sequence number were durable.
    pub durable_seq: u64,
    #[allow(missing_docs)]
    pub id: u64,
    /// Index of the chunk; of a truncation the cut, in bytes of the file.
    pub index: u64,
    /// Truncate generation.
    pub truncate_gen: u64,
    /// Sequence number under which the newest of these bytes first came; a copy made by
    /// compaction keeps it. Of a hole its length, in bytes.
    pub version: u64,
    /// Byte within the chunk.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u32,
}

impl RecordHeader {
    /// A record that does nothing yet: what a draft starts from.
    pub const EMPTY: RecordHeader = RecordHeader {
        kind: RecordKind::Write,
        seq: 0,
        durable_seq: 0,
        id: 0,
        index: 0,
        truncate_gen: 0,
        version: 0,
        offset: 0,
        len: 0,
    };
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    #[allow(missing_docs)]
    pub segment: u32,
    /// Byte within the segment.
    pub pos: u32,
}

/// Bytes before the payload.
pub const fn head_bytes(payload: usize, replicas: usize) -> usize {
    RECORD_FIXED_BYTES + (replicas * 2).next_multiple_of(4) + payload.div_ceil(BLOCK_BYTES) * 4
}

/// Writes a record into `out`, all but what [`seal`] fills in. One copy of the payload.
///
/// # Panics
/// If payload or replicas are over their bounds; the caller checks what came from outside.
pub fn encode(
    out: &mut Vec<u8>,
    record: &RecordHeader,
    replicas: &[u16],
    sums: &[u32],
    payload: &[u8],
) {
    assert!(payload.len() <= PAYLOAD_BYTES_MAX && replicas.len() <= REPLICAS_MAX);
    assert_eq!(payload.len().div_ceil(BLOCK_BYTES), sums.len());
    let head = head_bytes(payload.len(), replicas.len());
    out.clear();
    out.reserve(head + payload.len());
    out.resize(RECORD_FIXED_BYTES, 0);
    out[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
    out[8..12].copy_from_slice(&(head as u32).to_le_bytes());
    out[12] = record.kind as u8;
    out[13] = replicas.len() as u8;
    out[32..40].copy_from_slice(&record.id.to_le_bytes());
    out[40..48].copy_from_slice(&record.index.to_le_bytes());
    out[48..56].copy_from_slice(&record.truncate_gen.to_le_bytes());
    out[64..68].copy_from_slice(&record.offset.to_le_bytes());
    out[68..72].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    replicas.iter().for_each(|r| out.extend_from_slice(&r.to_le_bytes()));
    out.resize(RECORD_FIXED_BYTES + (replicas.len() * 2).next_multiple_of(4), 0);
    sums.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
    debug_assert_eq!(out.len(), head);
    out.extend_from_slice(payload);
}

/// What is known of a record only when it has its place.
#[derive(Clone, Copy, Debug)]
pub struct Seal {
    #[allow(missing_docs)]
    pub seq: u64,
    #[allow(missing_docs)]
    pub durable_seq: u64,
    #[allow(missing_docs)]
    pub version: u64,
    #[allow(missing_docs)]
    pub place: RecordLocation,
    /// Of the segment.
    pub salt: u32,
}

/// Completes what [`encode`] wrote.
pub fn seal(out: &mut [u8], seal: &Seal) {
    out[16..24].copy_from_slice(&seal.seq.to_le_bytes());
    out[24..32].copy_from_slice(&seal.durable_seq.to_le_bytes());
    out[56..64].copy_from_slice(&seal.version.to_le_bytes());
    out[72..76].copy_from_slice(&seal.place.segment.to_le_bytes());
    out[76..80].copy_from_slice(&seal.place.pos.to_le_bytes());
    let head = le_u32(out, 8) as usize;
    let sum = crc32c_append(seal.salt, &out[8..head]);
    out[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// Length of the header that starts with these bytes, if they can be one.
pub fn peek_head_bytes(bytes: &[u8]) -> Option<usize> {
    if bytes.len() < RECORD_FIXED_BYTES || le_u32(bytes, 0) != RECORD_MAGIC {
        return None;
    }
    let head = le_u32(bytes, 8) as usize;
    let (replicas, payload) = (usize::from(bytes[13]), le_u32(bytes, 68) as usize);
    (payload <= PAYLOAD_BYTES_MAX
        && replicas <= REPLICAS_MAX
        && head == head_bytes(payload, replicas))
    .then_some(head)
}

/// A whole, verified header.
pub struct Head<'a> {
    #[allow(missing_docs)]
    pub record: RecordHeader,
    /// Bytes before the payload.
    pub head_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Head<'a> {
    /// Reads the header of the record at `place`; `None` if there is none, or it is damaged.
    ///
    /// # Errors
    /// A sound header of a kind that only a newer program knows.
    pub fn decode(
        bytes: &'a [u8],
        place: RecordLocation,
        salt: u32,
    ) -> Result<Option<Head<'a>>, FormatError> {
        let Some(head) = peek_head_bytes(bytes) else { return Ok(None) };
        if bytes.len() < head
            || le_u32(bytes, 4) != crc32c_append(salt, &bytes[8..head])
            || le_u32(bytes, 72) != place.segment
            || le_u32(bytes, 76) != place.pos
        {
            return Ok(None);
        }
        let kind = match bytes[12] {
            1 => RecordKind::Write,
            2 => RecordKind::Truncate,
            3 => RecordKind::Delete,
            4 => RecordKind::Hole,
            other => return Err(FormatError::UnknownKind(other)),
        };
        let record = RecordHeader {
            kind,
            seq: le_u64(bytes, 16),
            durable_seq: le_u64(bytes, 24),
            id: le_u64(bytes, 32),
            index: le_u64(bytes, 40),
            truncate_gen: le_u64(bytes, 48),
            version: le_u64(bytes, 56),
            offset: le_u32(bytes, 64),
            len: le_u32(bytes, 68),
        };
        Ok(Some(Head { record, head_bytes: head, bytes: &bytes[..head] }))
    }

    /// Checksum of a block of the payload.
    pub fn sum(&self, block: usize) -> u32 {
        let sums = self.record.len as usize;
        let table = self.head_bytes - sums.div_ceil(BLOCK_BYTES) * 4;
        le_u32(self.bytes, table + block * 4)
    }

    /// Checksum of the whole payload.
    pub fn payload_sum(&self) -> u32 {
        let len = self.record.len as usize;
        let (whole, rest) = (len / BLOCK_BYTES, len % BLOCK_BYTES);
        let mut sum = Sum::default();
        (0..whole).for_each(|block| sum.push_block(self.sum(block)));
        match rest {
            0 => sum.get(),
            rest => crc32c_combine(sum.get(), self.sum(whole), rest),
        }
    }

    /// The stores that hold the chunk.
    pub fn replicas(&self) -> Vec<u16> {
        let count = usize::from(self.bytes[13]);
        (0..count).map(|i| le_u16(self.bytes, RECORD_FIXED_BYTES + i * 2)).collect()
    }
}

#[cfg(test)]
mod tests;
