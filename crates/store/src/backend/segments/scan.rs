//! Finding the records of a segment, whole or torn.

use std::io;
use std::sync::Arc;

use crc32c::crc32c;
use saker_runtime::fs::File;

use super::format::{
    BLOCK_BYTES, Head, RECORD_ALIGN_BYTES, RECORD_FIXED_BYTES, RecordHeader, RecordKind,
    RecordLocation, SEGMENT_HEADER_BYTES, peek_head_bytes,
};
use super::segment::{Segment, Segments};
use crate::wait::WaitPolicy;

/// The file is read in steps of this.
const WINDOW_BYTES: usize = 1 << 20;

/// A record with a sound header.
pub struct FoundRecord {
    #[allow(missing_docs)]
    pub place: RecordLocation,
    #[allow(missing_docs)]
    pub record: RecordHeader,
    #[allow(missing_docs)]
    pub head_bytes: u32,
    /// CRC32C of the payload, as the header has it.
    pub sum: u32,
    /// The payload is what its checksums say; true also where it was not looked at.
    pub sound: bool,
    /// Of a deletion.
    pub ids: Vec<u64>,
}

/// What to do with payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payloads {
    /// Check them all.
    Verify,
    /// Skip them.
    Skip,
}

struct Window {
    file: Arc<dyn File>,
    file_len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// The bytes at `pos`, fewer than `len` only at the file's end.
    fn get(&mut self, pos: u64, len: usize) -> io::Result<&[u8]> {
        let held = self.start + self.bytes.len() as u64;
        let want = (pos + len as u64).min(self.file_len);
        if pos < self.start || want > held {
            let end = (pos + len.max(WINDOW_BYTES) as u64).min(self.file_len);
            self.bytes.resize(end.saturating_sub(pos) as usize, 0);
            self.start = pos;
            let read = self.file.read_at(pos, &mut self.bytes)?;
            self.bytes.truncate(read);
        }
        let from = ((pos - self.start) as usize).min(self.bytes.len());
        let to = (from + len).min(self.bytes.len());
        Ok(&self.bytes[from..to])
    }
}

/// The records of a segment from a position on, and the end of the last. What is no record (a
/// write that the crash cut short, the rest that was allocated) is skipped.
///
/// # Errors
/// The file system's; `InvalidData` for a record that only a newer program knows.
pub fn scan(
    segments: &Segments,
    segment: &Arc<Segment>,
    from: u32,
    payloads: Payloads,
) -> io::Result<(Vec<FoundRecord>, u32)> {
    let (file, salt) = segments.open(segment, WaitPolicy::May)?;
    let file_len = file.len()?.min(u64::from(u32::MAX));
    let mut window = Window { file, file_len, start: 0, bytes: Vec::new() };
    let mut found = Vec::new();
    let start = u64::from(from.max(SEGMENT_HEADER_BYTES));
    let (mut pos, mut end) = (start, start);
    while pos + RECORD_FIXED_BYTES as u64 <= file_len {
        let place = RecordLocation { segment: segment.no, pos: pos as u32 };
        let Some(record) = record_at(&mut window, place, salt, payloads)? else {
            pos += u64::from(RECORD_ALIGN_BYTES);
            continue;
        };
        end = pos + u64::from(record.head_bytes) + u64::from(record.record.len);
        end = end.next_multiple_of(u64::from(RECORD_ALIGN_BYTES));
        pos = end;
        found.push(record);
    }
    Ok((found, end as u32))
}

fn record_at(
    window: &mut Window,
    place: RecordLocation,
    salt: u32,
    payloads: Payloads,
) -> io::Result<Option<FoundRecord>> {
    let pos = u64::from(place.pos);
    let Some(head_bytes) = peek_head_bytes(window.get(pos, RECORD_FIXED_BYTES)?) else {
        return Ok(None);
    };
    let bytes = window.get(pos, head_bytes)?.to_vec();
    let head = Head::decode(&bytes, place, salt)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let Some(head) = head else { return Ok(None) };
    let record = head.record;
    let (head_bytes, sum) = (head_bytes as u32, head.payload_sum());
    let mut found = FoundRecord { place, record, head_bytes, sum, sound: true, ids: Vec::new() };
    if payloads == Payloads::Verify || record.kind == RecordKind::Delete {
        let payload = window.get(pos + u64::from(head_bytes), record.len as usize)?;
        let mut blocks = payload.chunks(BLOCK_BYTES).enumerate();
        found.sound = payload.len() == record.len as usize
            && blocks.all(|(i, block)| crc32c(block) == head.sum(i));
        if record.kind == RecordKind::Delete {
            let ids = payload.as_chunks::<8>().0;
            found.ids = ids.iter().map(|id| u64::from_le_bytes(*id)).collect();
        }
    }
    Ok(Some(found))
}
