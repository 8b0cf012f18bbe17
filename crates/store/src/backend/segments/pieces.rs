//! Reading extents: every block that is touched is checked before a byte of it is given out.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use crc32c::crc32c;
use saker_runtime::fs::File;
use saker_types::{Errno, Error};

use super::extent::Extent;
use super::format::{BLOCK_BYTES, Head, RecordLocation, Sum};
use super::index::{ChunkKey, SegmentExtent};
use super::segment::{Segment, Segments};
use crate::wait::{WaitPolicy, would_block, would_wait};

/// A record's header is read together with its data if it is at most this far before it, and two
/// records together if there is at most this between them.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// A read that may not wait tries no more than this without looking whether it is there.
const TRIED_BYTES_MAX: u64 = 64 << 10;
/// Most bytes of one read.
const SPAN_BYTES_MAX: u64 = 8 << 20;

/// Data of a range of a chunk, and what compaction must know of it.
pub struct Data {
    #[allow(missing_docs)]
    pub bytes: Bytes,
    /// CRC32C of the bytes.
    pub sum: u32,
    /// Some of them are in no record.
    pub holes: bool,
    /// The newest of the records' versions.
    pub version: u64,
    /// The newest record's list.
    pub replicas: Vec<u16>,
}

/// Data on disk is not what was written.
#[derive(Debug)]
pub struct Corrupt(pub String);

/// Why a range cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// A checksum does not match.
    Corrupt(Corrupt),
    /// The file system says no.
    Io(io::Error, String),
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Error {
        Error::new(Errno::EIO).with_text(match error {
            ReadError::Corrupt(Corrupt(text)) => text,
            ReadError::Io(error, _) if error.kind() == io::ErrorKind::WouldBlock => {
                return would_wait();
            }
            ReadError::Io(error, name) => format!("{name}: {error}"),
        })
    }
}

/// What a piece needs of its segment's file.
pub(super) struct Want {
    pub segment: Arc<Segment>,
    pub extent: Extent,
    /// Blocks of the record's payload.
    pub first_block: u32,
    pub end_block: u32,
    /// Bytes of the file: from the header, if it is close, else from the first block.
    pub start: u64,
    pub end: u64,
    pub with_head: bool,
}

impl Want {
    pub fn new((segment, extent): SegmentExtent) -> Want {
        let block = BLOCK_BYTES as u32;
        let first_block = extent.skip / block;
        let end_block = (extent.skip + extent.len).div_ceil(block);
        let data = u64::from(extent.pos) + u64::from(extent.head);
        let first = u64::from(first_block * block);
        let with_head = first <= GAP_BYTES_MAX;
        let start = if with_head { u64::from(extent.pos) } else { data + first };
        let end = data + u64::from((end_block * block).min(extent.payload));
        Want { segment, extent, first_block, end_block, start, end, with_head }
    }

    fn corrupt(&self, key: ChunkKey, what: &str, pos: u64) -> ReadError {
        let ((id, index), name) = (key, self.segment.name());
        ReadError::Corrupt(Corrupt(format!(
            "{name} at byte {pos}: {what} of chunk {index} of inode {id} is damaged \
             (bytes {}..{} of the chunk)",
            self.extent.off,
            self.extent.end()
        )))
    }
}

/// Collects the bytes of a range in order.
struct Assembly {
    start: u32,
    bytes: Vec<u8>,
    sum: Sum,
    version: u64,
    replicas: Vec<u16>,
    newest: u64,
}

/// Reads the bytes from `start` to `end` of a chunk; what no piece covers is zeros.
///
/// # Errors
/// [`ReadError`]; none of the data is returned then.
pub fn read(
    segments: &Segments,
    key: ChunkKey,
    pieces: Vec<SegmentExtent>,
    start: u32,
    end: u32,
    wait: WaitPolicy,
) -> std::result::Result<Data, ReadError> {
    let wants: Vec<Want> = pieces.into_iter().map(Want::new).collect();
    if let [want] = &wants[..]
        && want.extent.off == start
        && want.extent.end() == end
    {
        return read_one(segments, key, want, wait);
    }
    let mut into = Assembly {
        start,
        bytes: Vec::with_capacity((end - start) as usize),
        sum: Sum::default(),
        version: 0,
        replicas: Vec::new(),
        newest: 0,
    };
    let mut from = 0;
    while from < wants.len() {
        let to = from + span(&wants[from..]);
        read_span(segments, key, &wants[from..to], &mut into, wait)?;
        from = to;
    }
    into.zeros_to(end);
    let holes = wants.iter().map(|want| want.extent.len).sum::<u32>() < end - start;
    let Assembly { bytes, sum, version, replicas, .. } = into;
    Ok(Data { bytes: bytes.into(), sum: sum.get(), holes, version, replicas })
}

pub(super) fn read_now(
    file: &dyn File,
    offset: u64,
    buf: &mut [u8],
    wait: WaitPolicy,
) -> io::Result<usize> {
    match wait {
        WaitPolicy::May => file.read_at(offset, buf),
        WaitPolicy::Never => file.read_cached(offset, buf)?.ok_or_else(would_block),
    }
}

/// How many of the first wants are read together.
fn span(wants: &[Want]) -> usize {
    let first = &wants[0];
    let together = wants.windows(2).take_while(|pair| {
        let (before, next) = (&pair[0], &pair[1]);
        next.segment.no == first.segment.no
            && next.start >= before.end
            && next.start - before.end <= GAP_BYTES_MAX
            && next.end - first.start <= SPAN_BYTES_MAX
    });
    1 + together.count()
}

fn read_file(
    segments: &Segments,
    segment: &Arc<Segment>,
    start: u64,
    end: u64,
    wait: WaitPolicy,
) -> std::result::Result<(Vec<u8>, u32), ReadError> {
    let read = segments.open(segment, wait).and_then(|(file, salt)| {
        let len = end - start;
        // A read that is tried begins to fetch what it does not find: not one after the other
        // while nobody waits for them.
        let looks = wait == WaitPolicy::Never && (len > TRIED_BYTES_MAX || segments.missed());
        if looks && file.is_cached(start, len) == Some(false) {
            segments.set_missed(true);
            return Err(would_block());
        }
        let mut buffer = vec![0; len as usize];
        let read = read_now(&*file, start, &mut buffer, wait);
        if wait == WaitPolicy::Never {
            segments.set_missed(read.is_err());
        }
        if read? < buffer.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((buffer, salt))
    });
    read.map_err(|error| ReadError::Io(error, segment.name()))
}

/// The header of a want's record, in `buffer` (which starts at byte `at` of the file) or from the
/// file.
pub(super) fn read_head(
    segments: &Segments,
    key: ChunkKey,
    want: &Want,
    (buffer, at, salt): (&[u8], u64, u32),
    wait: WaitPolicy,
    check: impl FnOnce(&Head<'_>) -> std::result::Result<(), ReadError>,
) -> std::result::Result<(), ReadError> {
    let Extent { segment, pos, head, .. } = want.extent;
    let separate;
    let bytes = if want.with_head {
        let from = (u64::from(pos) - at) as usize;
        &buffer[from..from + head as usize]
    } else {
        let start = u64::from(pos);
        separate = read_file(segments, &want.segment, start, start + u64::from(head), wait)?.0;
        &separate[..]
    };
    let sound = Head::decode(bytes, RecordLocation { segment, pos }, salt).ok().flatten();
    let sound = sound.filter(|head| {
        (head.record.id, head.record.index) == key
            && head.record.len == want.extent.payload
            && head.record.seq == want.extent.seq
            && head.head_bytes == want.extent.head as usize
    });
    match sound {
        Some(head) => check(&head),
        None => Err(want.corrupt(key, "the record header", u64::from(pos))),
    }
}

/// Calls `f` with the wanted part of each block and, if that is a whole block, its checksum.
fn check_blocks<'a>(
    key: ChunkKey,
    want: &Want,
    head: &Head<'_>,
    buffer: &'a [u8],
    at: u64,
    mut f: impl FnMut(&'a [u8], Option<u32>),
) -> std::result::Result<(), ReadError> {
    let Extent { pos, head: head_bytes, payload, skip, len, .. } = want.extent;
    let data = u64::from(pos) + u64::from(head_bytes);
    for block in want.first_block..want.end_block {
        let start = block as usize * BLOCK_BYTES;
        let end = (start + BLOCK_BYTES).min(payload as usize);
        let from = (data + start as u64 - at) as usize;
        let bytes = &buffer[from..from + (end - start)];
        let sum = head.sum(block as usize);
        if crc32c(bytes) != sum {
            return Err(want.corrupt(key, "a block", data + start as u64));
        }
        let wanted_from = (skip as usize).max(start) - start;
        let wanted_to = ((skip + len) as usize).min(end) - start;
        let whole = wanted_from == 0 && wanted_to == BLOCK_BYTES;
        f(&bytes[wanted_from..wanted_to], whole.then_some(sum));
    }
    Ok(())
}

/// A range that is one piece of one record needs no copy.
fn read_one(
    segments: &Segments,
    key: ChunkKey,
    want: &Want,
    wait: WaitPolicy,
) -> std::result::Result<Data, ReadError> {
    let (buffer, salt) = read_file(segments, &want.segment, want.start, want.end, wait)?;
    let (bytes, replicas) = (Bytes::new(), Vec::new());
    let mut data = Data { bytes, sum: 0, holes: false, version: 0, replicas };
    let mut sum = Sum::default();
    read_head(segments, key, want, (&buffer, want.start, salt), wait, |head| {
        (data.version, data.replicas) = (head.record.version, head.replicas());
        check_blocks(key, want, head, &buffer, want.start, |bytes, block| match block {
            Some(block) => sum.push_block(block),
            None => sum.push(bytes),
        })
    })?;
    let extent = &want.extent;
    let from = u64::from(extent.pos) + u64::from(extent.head) + u64::from(extent.skip) - want.start;
    let from = from as usize;
    data.bytes = Bytes::from(buffer).slice(from..from + extent.len as usize);
    data.sum = sum.get();
    Ok(data)
}

fn read_span(
    segments: &Segments,
    key: ChunkKey,
    wants: &[Want],
    into: &mut Assembly,
    wait: WaitPolicy,
) -> std::result::Result<(), ReadError> {
    let (Some(first), Some(last)) = (wants.first(), wants.last()) else { return Ok(()) };
    let at = first.start;
    let (buffer, salt) = read_file(segments, &first.segment, at, last.end, wait)?;
    for want in wants {
        into.zeros_to(want.extent.off);
        read_head(segments, key, want, (&buffer, at, salt), wait, |head| {
            if want.extent.seq > into.newest {
                into.newest = want.extent.seq;
                into.replicas = head.replicas();
            }
            into.version = into.version.max(head.record.version);
            check_blocks(key, want, head, &buffer, at, |bytes, block| {
                into.bytes.extend_from_slice(bytes);
                match block {
                    Some(block) => into.sum.push_block(block),
                    None => into.sum.push(bytes),
                }
            })
        })?;
    }
    Ok(())
}

impl Assembly {
    /// Fills with zeros up to a byte of the chunk.
    fn zeros_to(&mut self, to: u32) {
        let (from, to) = (self.bytes.len(), (to - self.start) as usize);
        self.bytes.resize(to, 0);
        for block in self.bytes[from..].chunks(BLOCK_BYTES) {
            self.sum.push(block);
        }
    }
}
