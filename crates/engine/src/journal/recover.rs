//! Reading a log back: which segments, which records, and where the torn tail starts.

use std::io;

use saker_runtime::fs::{Dir, File, is_cached_as, read_all, read_all_durable};

use super::format::{
    JournalSegmentHeader, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, decode_record, segment_name,
    segment_of_name,
};
use super::{
    JournalConfig, JournalError, JournalRecordKind, Lsn, ReplayError, SPARE_NAME, SegmentNo,
    io_error,
};

/// Read past at once where nothing was written.
const ZEROS: [u8; 256] = [0; 256];

/// Called with each record: its LSN, kind and payload.
pub type OnRecord<'a> = dyn FnMut(Lsn, JournalRecordKind, &[u8]) -> Result<(), ReplayError> + 'a;

/// The cluster whose journal is in `dir`; `None` if there is none.
///
/// # Errors
/// `Io`, and what is wrong with the header.
pub fn cluster_of(dir: &dyn Dir) -> Result<Option<[u8; 16]>, JournalError> {
    let names = dir.list().map_err(|e| io_error(dir.label(), "list", e))?;
    let Some(last) = names.iter().filter_map(|n| segment_of_name(n)).max() else {
        return Ok(None);
    };
    let name = segment_name(last);
    let mut header = [0; SEGMENT_HEADER_BYTES];
    let read = dir.open(&name).and_then(|file| file.read_at(0, &mut header));
    read.map_err(|e| io_error(name.clone(), "read", e))?;
    JournalSegmentHeader::decode(&header, &name).map(|header| Some(header.uuid))
}

/// Which segments hold what is to be replayed. Others than those are left over; one that is missing
/// is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFrom {
    /// This one and those after it: a table has the effects of the ones before.
    Segment(SegmentNo),
    /// All there ever were: no table has anything of them.
    Start,
    /// The last ones that follow one another: a snapshot in each has all that came before.
    Oldest,
}

/// Which segments a directory holds.
pub struct Inventory {
    /// Those to replay, ascending and without a hole; empty for a new log.
    pub replay: Vec<SegmentNo>,
    /// Names of files that nothing needs any more.
    pub garbage: Vec<String>,
}

/// Sorts the files of `dir` into those to replay and those a crash left over.
pub fn take_stock(dir: &dyn Dir, replay_from: ReplayFrom) -> Result<Inventory, JournalError> {
    let names = dir.list().map_err(|e| io_error(dir.label(), "list", e))?;
    let mut segments: Vec<SegmentNo> = names.iter().filter_map(|n| segment_of_name(n)).collect();
    segments.sort_unstable();
    let first = match replay_from {
        ReplayFrom::Segment(first) => Some(first),
        ReplayFrom::Start => (!segments.is_empty()).then_some(0),
        ReplayFrom::Oldest => None,
    };
    let start = match (first, segments.last()) {
        (Some(start), Some(&last)) => {
            let missing = (start..=last.max(start)).find(|s| segments.binary_search(s).is_err());
            if let Some(segment) = missing {
                return Err(JournalError::MissingSegment { dir: dir.label(), segment });
            }
            start
        }
        (Some(segment), None) => {
            return Err(JournalError::MissingSegment { dir: dir.label(), segment });
        }
        // Trimming removes a prefix, of which a crash may bring any part back.
        (None, Some(&last)) => {
            let mut start = last;
            while start > 0 && segments.binary_search(&(start - 1)).is_ok() {
                start -= 1;
            }
            start
        }
        (None, None) => 0,
    };
    let stale = segments.iter().filter(|&&segment| segment < start);
    let mut garbage: Vec<String> = stale.map(|&segment| segment_name(segment)).collect();
    if names.iter().any(|name| name == SPARE_NAME) {
        garbage.push(SPARE_NAME.to_owned());
    }
    segments.retain(|&segment| segment >= start);
    Ok(Inventory { replay: segments, garbage })
}

/// What a segment held.
pub struct JournalSegment {
    /// Its file, for messages.
    path: String,
    /// Position of its first record.
    pub first_lsn: Lsn,
    /// Position just past its last whole record.
    pub end: Lsn,
    /// Whether records of a flush that was torn, or failed, lie after the end: they must be erased
    /// before the place is written again, or they could come back.
    pub torn: bool,
}

impl JournalSegment {
    /// Bytes of the file up to its end.
    pub fn file_bytes(&self) -> u64 {
        SEGMENT_HEADER_BYTES as u64 + self.end - self.first_lsn
    }
}

/// Replays one segment. `before` is the one before it; `last` says that nothing follows it, so
/// that its tail may be torn.
pub fn replay_segment(
    dir: &dyn Dir,
    config: &JournalConfig,
    segment: SegmentNo,
    before: Option<&JournalSegment>,
    last: bool,
    on_record: &mut OnRecord<'_>,
) -> Result<JournalSegment, JournalError> {
    let name = segment_name(segment);
    let path = format!("{}/{name}", dir.label());
    let read = || dir.open(&name).and_then(|file| read_segment(&*file, last));
    let (data, has_more) = read().map_err(|e| io_error(path.clone(), "read", e))?;
    let header = JournalSegmentHeader::decode(&data, &path)?;
    let misplaced = |of| Err(JournalError::Misplaced { file: path.clone(), of });
    if header.uuid != config.uuid {
        return misplaced("cluster");
    }
    if header.shard != config.shard {
        return misplaced("shard");
    }
    if header.segment != segment {
        return misplaced("place in the log");
    }
    if let Some(before) = before.filter(|before| before.end != header.first_lsn) {
        // All of it was durable before this segment got its name.
        return Err(JournalError::Corrupt {
            file: before.path.clone(),
            offset: before.file_bytes(),
            reason: "no valid record, yet a later segment follows",
        });
    }
    let mut log = Log { data: &data, first_lsn: header.first_lsn, at: SEGMENT_HEADER_BYTES };
    if segment > 0 && !log.begins_with_a_snapshot() {
        // It was durable before this segment got its name.
        let reason = "no snapshot where each segment but the first begins with one";
        return Err(JournalError::Corrupt { file: path, offset: log.at as u64, reason });
    }
    log.replay(&path, on_record)?;
    let torn = if last { log.is_torn(&path)? || has_more } else { false };
    Ok(JournalSegment { path, first_lsn: header.first_lsn, end: log.position(log.at), torn })
}

/// The content of a segment; and whether the page cache has what the disk does not. Of the last one,
/// to which a flush may have failed, what the disk has counts.
fn read_segment(file: &dyn File, last: bool) -> io::Result<(Vec<u8>, bool)> {
    if !last {
        return Ok((read_all(file)?, false));
    }
    // What a process that was killed has written, and not flushed.
    file.sync()?;
    let data = read_all_durable(file)?;
    let has_more = !is_cached_as(file, &data)?;
    Ok((data, has_more))
}

struct Log<'a> {
    data: &'a [u8],
    first_lsn: Lsn,
    at: usize,
}

impl Log<'_> {
    fn position(&self, at: usize) -> Lsn {
        self.first_lsn + (at - SEGMENT_HEADER_BYTES) as u64
    }

    fn begins_with_a_snapshot(&self) -> bool {
        let first = decode_record(&self.data[self.at..], self.first_lsn);
        first.is_some_and(|record| record.kind == JournalRecordKind::Snapshot)
    }

    /// Hands out records until there is none.
    fn replay(&mut self, path: &str, on_record: &mut OnRecord<'_>) -> Result<(), JournalError> {
        while let Some(record) = decode_record(&self.data[self.at..], self.position(self.at)) {
            let offset = self.at as u64;
            on_record(record.lsn, record.kind, record.payload)
                .map_err(|source| JournalError::Replay { file: path.to_owned(), offset, source })?;
            self.at += (record.lsn - self.position(self.at)) as usize;
        }
        Ok(())
    }

    /// Looks for records past the first place without one.
    fn is_torn(&self, path: &str) -> Result<bool, JournalError> {
        let hole = self.position(self.at);
        let mut torn = false;
        let mut next = self.at + 1;
        while next < self.data.len() {
            let at = next;
            // Most of what follows is zeros, and no record has the LSN 0.
            if self.data[at..].starts_with(&ZEROS) {
                next = at + ZEROS.len() - RECORD_HEADER_BYTES;
                continue;
            }
            next = at + 1;
            let Some(record) = decode_record(&self.data[at..], self.position(at)) else {
                continue;
            };
            if record.flush_start > hole {
                return Err(JournalError::Corrupt {
                    file: path.to_owned(),
                    offset: self.at as u64,
                    reason: "no valid record, yet a later flush follows",
                });
            }
            torn = true;
        }
        Ok(torn)
    }
}
