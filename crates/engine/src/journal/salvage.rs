//! Reading a segment file that may be damaged, for tools (Cudele section 4.3). Nothing is written.
//!
//! A start of the owner ends at the first place without a record, or refuses the journal. Here reading
//! goes on behind it: each record says where in the log it lies, and has a checksum, so that records
//! are found again wherever they are.

use super::format::{
    JournalRecord, JournalSegmentHeader, MAGIC, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES,
    decode_record,
};
use super::{JournalError, Lsn};

/// A range of a segment file that is no record, with records behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Where it begins, in bytes from the file's start.
    pub offset: u64,
    #[allow(missing_docs)]
    pub bytes: u64,
    /// The flush that wrote it was never over, so that nothing in it was acknowledged. Else what was
    /// here was durable once.
    pub is_torn: bool,
}

/// What a segment file has.
#[derive(Debug)]
pub struct Salvaged {
    /// Its header, or what is wrong with it.
    pub header: Result<JournalSegmentHeader, JournalError>,
    /// Position in the log of the first record's place; as records say it, if the header does not.
    pub first_lsn: Option<Lsn>,
    /// Records that are whole.
    pub records: u64,
    /// Of them, those behind a torn flush: they were never acknowledged.
    pub unacknowledged: u64,
    /// Position just past the last whole record.
    pub end: Lsn,
    #[allow(missing_docs)]
    pub holes: Vec<Hole>,
    /// Bytes behind the last record up to the last byte that is not zero: a torn flush, or what the
    /// file had before it was used for this segment.
    pub tail_bytes: u64,
}

/// Reads a segment file, whose name is `file` in messages. `on_record` is told the offset of each whole
/// record, and whether it was acknowledged.
pub fn salvage(
    data: &[u8],
    file: &str,
    mut on_record: impl FnMut(u64, &JournalRecord<'_>, bool),
) -> Salvaged {
    let header = JournalSegmentHeader::decode(data, file);
    let first_lsn = match &header {
        Ok(header) => Some(header.first_lsn),
        // Of another program, or a version that lays out records in another way.
        Err(JournalError::NewerFormat { .. }) => None,
        Err(_) if data.len() < MAGIC.len() => None,
        Err(_) => find_first_lsn(data),
    };
    let mut found = Salvaged {
        header,
        first_lsn,
        records: 0,
        unacknowledged: 0,
        end: first_lsn.unwrap_or(0),
        holes: Vec::new(),
        tail_bytes: 0,
    };
    let Some(first_lsn) = first_lsn else { return found };
    let position = |at: usize| first_lsn.wrapping_add((at - SEGMENT_HEADER_BYTES) as u64);
    let (mut end, mut at, mut is_torn_from) = (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES, None);
    while at < data.len() {
        let Some(record) = decode_record(&data[at..], position(at)) else {
            at += zeros(&data[at..]).max(1);
            continue;
        };
        if at > end {
            let hole = position(end);
            let is_torn = record.flush_start <= hole;
            if is_torn {
                is_torn_from = Some(hole);
            }
            let (offset, bytes) = (end as u64, (at - end) as u64);
            found.holes.push(Hole { offset, bytes, is_torn });
        }
        // Records of the same flush as a hole were acknowledged no more than what was in it.
        let acknowledged = is_torn_from.is_none_or(|hole| record.flush_start > hole);
        on_record(at as u64, &record, acknowledged);
        found.records += 1;
        found.unacknowledged += u64::from(!acknowledged);
        found.end = record.lsn;
        at += RECORD_HEADER_BYTES + record.payload.len();
        end = at;
    }
    let rest = data.get(end..).unwrap_or_default();
    found.tail_bytes = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    found
}

/// Zeros at the start of `data` that no record begins in: it begins with its length and checksum, and a
/// record's position is never 0.
fn zeros(data: &[u8]) -> usize {
    let zeros = data.iter().position(|byte| *byte != 0).unwrap_or(data.len());
    match zeros {
        zeros if zeros == data.len() => zeros,
        zeros => zeros.saturating_sub(RECORD_HEADER_BYTES),
    }
}

/// The position of the first record's place, as the first whole record says it.
fn find_first_lsn(data: &[u8]) -> Option<Lsn> {
    let mut at = SEGMENT_HEADER_BYTES;
    while at + RECORD_HEADER_BYTES <= data.len() {
        let rest = &data[at..];
        let len = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]) as u64;
        let mut lsn = [0; 8];
        lsn.copy_from_slice(&rest[8..16]);
        let start = u64::from_le_bytes(lsn).checked_sub(RECORD_HEADER_BYTES as u64 + len);
        let before = (at - SEGMENT_HEADER_BYTES) as u64;
        let first = start.and_then(|start| Some((start, start.checked_sub(before)?)));
        if let Some((start, first)) = first
            && decode_record(rest, start).is_some()
        {
            return Some(first);
        }
        at += zeros(rest).max(1);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::format::{JournalRecordKind, encode_record};

    const FIRST: Lsn = 5_000;

    /// A segment with flushes of these numbers of records, and where each record begins.
    fn segment(flushes: &[usize]) -> (Vec<u8>, Vec<usize>) {
        let header = JournalSegmentHeader { uuid: [7; 16], shard: 2, segment: 3, first_lsn: FIRST };
        let (mut data, mut starts) = (header.encode().to_vec(), Vec::new());
        for count in flushes {
            let flush = data.len();
            for n in 0..*count {
                let (at, back) = (data.len(), data.len() - flush);
                starts.push(at);
                let start = FIRST + (at - SEGMENT_HEADER_BYTES) as u64;
                encode_record(&mut data, start, back as u32, JournalRecordKind::Changes, |out| {
                    out.extend_from_slice(format!("record {n} of {count}").as_bytes());
                });
            }
        }
        data.resize(data.len() + 500, 0);
        (data, starts)
    }

    /// Which records are found, by where they begin, and which of them were acknowledged.
    fn read(data: &[u8]) -> (Salvaged, Vec<(usize, bool)>) {
        let mut all = Vec::new();
        let found =
            salvage(data, "wal", |at, _, acknowledged| all.push((at as usize, acknowledged)));
        (found, all)
    }

    #[test]
    fn a_sound_segment_is_read_whole() {
        let (data, starts) = segment(&[3, 1, 2]);
        let (found, all) = read(&data);
        assert_eq!(all, starts.iter().map(|at| (*at, true)).collect::<Vec<_>>());
        assert_eq!((found.records, found.tail_bytes), (6, 0));
        assert!(found.holes.is_empty() && found.header.is_ok());
        assert_eq!(found.end, FIRST + (data.len() - 500 - SEGMENT_HEADER_BYTES) as u64);
    }

    #[test]
    fn records_behind_damage_are_found() {
        let (mut data, starts) = segment(&[3, 1, 2]);
        data[starts[1] + 30] ^= 1;
        let (found, all) = read(&data);
        // The rest of its flush was acknowledged no more than it.
        let expected = [(0, true), (2, false), (3, true), (4, true), (5, true)];
        assert_eq!(all, expected.map(|(n, acknowledged)| (starts[n], acknowledged)));
        let bytes = (starts[2] - starts[1]) as u64;
        let offset = starts[1] as u64;
        assert_eq!(found.holes, [Hole { offset, bytes, is_torn: true }]);
        // A whole flush is gone, and a later one is there: it was durable.
        let (mut data, starts) = segment(&[3, 1, 2]);
        data[starts[3]..starts[4]].fill(0xAA);
        let (found, all) = read(&data);
        assert_eq!((all.len(), found.unacknowledged), (5, 0));
        assert!(!found.holes[0].is_torn);
    }

    #[test]
    fn a_torn_tail_is_no_hole() {
        let (mut data, starts) = segment(&[3, 1]);
        data.truncate(starts[3] + 10);
        let (found, all) = read(&data);
        assert_eq!((all.len(), found.tail_bytes), (3, 10));
        assert!(found.holes.is_empty());
    }

    #[test]
    fn records_say_where_they_are_if_the_header_does_not() {
        let (mut data, starts) = segment(&[2, 2]);
        data[100] ^= 1;
        let (found, all) = read(&data);
        assert!(found.header.is_err());
        assert_eq!((found.first_lsn, all.len()), (Some(FIRST), 4));
        data[starts[0] + 25] ^= 1;
        assert_eq!((read(&data).0.first_lsn, read(&data).1.len()), (Some(FIRST), 3));
        for garbage in [&b""[..], b"x", &[0; 4096], &[0xFF; 4096]] {
            let (found, all) = read(garbage);
            assert!(found.header.is_err() && all.is_empty() && found.first_lsn.is_none());
        }
    }
}
