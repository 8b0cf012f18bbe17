//! Writing a journal anew.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use saker_engine::journal_format::{
    JournalRecordKind, JournalSegmentHeader, RECORD_BYTES_MAX, encode_record, segment_name,
};

use crate::fail::{Context, Failure, Outcome};

/// A journal in the making: a directory that was not there.
pub struct JournalWriter {
    dir: PathBuf,
    segment: Option<NewSegment>,
    /// Position in the log of what comes next.
    end: u64,
    pub records: u64,
}

struct NewSegment {
    header: JournalSegmentHeader,
    records: Vec<u8>,
    starts_with_snapshot: Option<bool>,
}

impl JournalWriter {
    /// Makes the directory.
    pub fn create(dir: &Path) -> Outcome<JournalWriter> {
        std::fs::create_dir(dir).about(dir.display())?;
        Ok(JournalWriter { dir: dir.to_owned(), segment: None, end: 0, records: 0 })
    }

    /// Begins a segment. Its first record's position is that of `header` for the first one, and else where
    /// the segment before ends: a journal has no holes.
    pub fn begin(&mut self, header: JournalSegmentHeader) -> Outcome {
        let before = self.segment.as_ref().map(|segment| segment.header.clone());
        self.end_segment()?;
        let header = match before {
            None => {
                self.end = header.first_lsn;
                header
            }
            Some(before) => {
                if before.segment + 1 != header.segment {
                    let what = self.dir.display();
                    let why = format!(
                        "segment {} cannot follow segment {}",
                        header.segment, before.segment
                    );
                    return Err(Failure::new(what, why));
                }
                let (uuid, shard) = (before.uuid, before.shard);
                JournalSegmentHeader { uuid, shard, first_lsn: self.end, ..header }
            }
        };
        self.segment = Some(NewSegment { header, records: Vec::new(), starts_with_snapshot: None });
        Ok(())
    }

    /// Adds a record to the segment.
    pub fn add(&mut self, kind: JournalRecordKind, payload: &[u8]) -> Outcome {
        let Some(segment) = &mut self.segment else {
            return Err(Failure::new(self.dir.display(), "a record before the first segment"));
        };
        if payload.len() > RECORD_BYTES_MAX {
            return Err(Failure::new(self.dir.display(), "a record is too large"));
        }
        let is_snapshot = kind == JournalRecordKind::Snapshot;
        segment.starts_with_snapshot.get_or_insert(is_snapshot);
        // Each is a flush of its own: nothing behind a record makes it look torn.
        let fill = |out: &mut Vec<u8>| out.extend_from_slice(payload);
        self.end = encode_record(&mut segment.records, self.end, 0, kind, fill);
        self.records += 1;
        Ok(())
    }

    /// Ends the journal. Says what keeps a server from using it.
    pub fn finish(mut self) -> Outcome<u64> {
        self.end_segment()?;
        let dir = File::open(&self.dir).about(self.dir.display())?;
        dir.sync_all().about(self.dir.display())?;
        Ok(self.records)
    }

    fn end_segment(&mut self) -> Outcome {
        let Some(NewSegment { header, records, starts_with_snapshot }) = self.segment.take() else {
            return Ok(());
        };
        let path = self.dir.join(segment_name(header.segment));
        if header.segment > 0 && starts_with_snapshot != Some(true) {
            let name = path.display();
            crate::complain!("saker: {name}: has no snapshot, so that no server will use it");
        }
        let mut file = File::create_new(&path).about(path.display())?;
        file.write_all(&header.encode()).about(path.display())?;
        file.write_all(&records).about(path.display())?;
        file.sync_all().about(path.display())
    }
}
