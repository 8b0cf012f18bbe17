//! What the bytes of a segment file mean. All numbers are little-endian.
//!
//! ```text
//! segment  = header (128 bytes) record* (zeros or stale bytes)*
//! header   = magic[8] version:u32 compatible:u32 read-only compatible:u32 incompatible:u32
//!            cluster uuid[16] shard:u32 reserved:u32 segment:u64 first lsn:u64 zeros crc:u32
//! record   = len:u32 crc:u32 lsn:u64 back:u32 kind:u8 payload[len]
//! ```
//!
//! A record's **LSN** is the position just past it in the whole log, headers of segments not
//! counted. So it says where the record lies, and bytes from a file's earlier life (segments are
//! recycled) or from a torn write never pass for a record elsewhere: LSNs do not repeat.
//!
//! `back` is the distance to the start of the flush the record was written by; of one that was
//! appended after others had been put into the page cache, to what was durable then. All before that
//! is durable before the record is written. So a hole in the log is a torn write if the records after
//! it start there or before, and corruption if one starts later.

use super::{JournalError, Lsn, SegmentNo};

/// First bytes of every segment.
pub const MAGIC: [u8; 8] = *b"SAKERWAL";
/// The format this code writes.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes before the first record.
pub const SEGMENT_HEADER_BYTES: usize = 128;
/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: usize = 21;
/// Upper bound of a payload.
pub const RECORD_BYTES_MAX: usize = 1 << 30;

const PREFIX: &str = "wal-";

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalRecordKind {
    /// Changes to apply on top of what came before.
    Changes = 1,
    /// What is not in the rows at the start of a segment; the first record of each but the first.
    Snapshot = 2,
}

impl JournalRecordKind {
    fn from_byte(byte: u8) -> Option<JournalRecordKind> {
        match byte {
            1 => Some(JournalRecordKind::Changes),
            2 => Some(JournalRecordKind::Snapshot),
            _ => None,
        }
    }
}

/// The file that holds a segment.
pub fn segment_name(segment: SegmentNo) -> String {
    format!("{PREFIX}{segment:016x}")
}

/// The segment a file holds, by its name.
pub fn segment_of_name(name: &str) -> Option<SegmentNo> {
    let digits = name.strip_prefix(PREFIX).filter(|digits| digits.len() == 16)?;
    let segment = SegmentNo::from_str_radix(digits, 16).ok()?;
    (segment_name(segment) == name).then_some(segment)
}

/// The writer of a segment, and where in the log it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSegmentHeader {
    /// The cluster.
    pub uuid: [u8; 16],
    /// The shard within its MNode.
    pub shard: u32,
    /// Counts from 0.
    pub segment: SegmentNo,
    /// Log position of the first record's first byte.
    pub first_lsn: Lsn,
}

impl JournalSegmentHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        // 12..24: the three feature words; this version has no features.
        out[24..40].copy_from_slice(&self.uuid);
        out[40..44].copy_from_slice(&self.shard.to_le_bytes());
        out[48..56].copy_from_slice(&self.segment.to_le_bytes());
        out[56..64].copy_from_slice(&self.first_lsn.to_le_bytes());
        let crc = crc32c::crc32c(&out[..SEGMENT_HEADER_BYTES - 4]);
        out[SEGMENT_HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header of the segment file `file` (a name for messages).
    ///
    /// # Errors
    /// `NotSaker`, `NewerFormat` or `Corrupt`.
    pub fn decode(data: &[u8], file: &str) -> Result<JournalSegmentHeader, JournalError> {
        let file = || file.to_owned();
        if data.len() < 8 || data[..8] != MAGIC {
            return Err(JournalError::NotSaker { file: file() });
        }
        let corrupt = |reason| JournalError::Corrupt { file: file(), offset: 0, reason };
        if data.len() < SEGMENT_HEADER_BYTES {
            return Err(corrupt("the header is cut short"));
        }
        // Before the checksum: a newer version may lay out the rest in another way.
        let version = u32_at(data, 8);
        let features = u64::from(u32_at(data, 16)) << 32 | u64::from(u32_at(data, 20));
        if version > FORMAT_VERSION || features != 0 {
            return Err(JournalError::NewerFormat { file: file(), version, features });
        }
        let crc_at = SEGMENT_HEADER_BYTES - 4;
        if crc32c::crc32c(&data[..crc_at]) != u32_at(data, crc_at) {
            return Err(corrupt("the header's checksum is wrong"));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&data[24..40]);
        Ok(JournalSegmentHeader {
            uuid,
            shard: u32_at(data, 40),
            segment: u64_at(data, 48),
            first_lsn: u64_at(data, 56),
        })
    }
}

/// A record as it lies in a segment.
#[derive(Clone, Copy, Debug)]
pub struct JournalRecord<'a> {
    /// Position just past it.
    pub lsn: Lsn,
    /// All before this position was durable when it was written.
    pub flush_start: Lsn,
    /// What it is.
    pub kind: JournalRecordKind,
    /// The user's bytes.
    pub payload: &'a [u8],
}

/// Appends a record to `out`, its payload written by `fill`; `start` is its log position and
/// `back` the distance to the start of its flush. Returns its LSN.
///
/// # Panics
/// If the payload is over [`RECORD_BYTES_MAX`].
pub fn encode_record(
    out: &mut Vec<u8>,
    start: Lsn,
    back: u32,
    kind: JournalRecordKind,
    fill: impl FnOnce(&mut Vec<u8>),
) -> Lsn {
    let header_at = out.len();
    out.resize(header_at + RECORD_HEADER_BYTES, 0);
    fill(out);
    let len = out.len() - header_at - RECORD_HEADER_BYTES;
    assert!(len <= RECORD_BYTES_MAX, "a journal record of {len} bytes");
    let lsn = start + (RECORD_HEADER_BYTES + len) as u64;
    let record = &mut out[header_at..];
    record[..4].copy_from_slice(&(len as u32).to_le_bytes());
    record[8..16].copy_from_slice(&lsn.to_le_bytes());
    record[16..20].copy_from_slice(&back.to_le_bytes());
    record[20] = kind as u8;
    let crc = record_crc(record);
    record[4..8].copy_from_slice(&crc.to_le_bytes());
    lsn
}

/// The record at the start of `data`, whose log position is `start`; `None` if there is none.
pub fn decode_record(data: &[u8], start: Lsn) -> Option<JournalRecord<'_>> {
    if data.len() < RECORD_HEADER_BYTES {
        return None;
    }
    let lsn = u64_at(data, 8);
    // The LSN first: almost nothing that is not a record passes it.
    let bytes = usize::try_from(lsn.wrapping_sub(start)).ok()?;
    let len = u32_at(data, 0) as usize;
    if len > RECORD_BYTES_MAX || bytes != RECORD_HEADER_BYTES + len || bytes > data.len() {
        return None;
    }
    let record = &data[..bytes];
    let flush_start = start.checked_sub(u64::from(u32_at(record, 16)))?;
    let kind = JournalRecordKind::from_byte(record[20])?;
    if record_crc(record) != u32_at(record, 4) {
        return None;
    }
    Some(JournalRecord { lsn, flush_start, kind, payload: &record[RECORD_HEADER_BYTES..] })
}

fn record_crc(record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..4]), &record[8..])
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from(u32_at(data, at)) | u64::from(u32_at(data, at + 4)) << 32
}
