//! The files of a journal, read in order.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;
use saker_engine::journal_format::{JournalRecordKind, segment_name, segment_of_name};
use saker_engine::salvage::{Salvaged, salvage};

use crate::fail::{Context, Failure, Outcome};

/// A record's changes, each as it was written: also what this version does not know.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RawRecord {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub changes: Vec<Bytes>,
}

/// A record of a segment.
pub struct Read {
    /// Bytes from the start of the file.
    pub offset: u64,
    pub lsn: u64,
    pub kind: JournalRecordKind,
    /// False: the flush that wrote it was never over.
    pub acknowledged: bool,
    /// `None`: the payload is not what a record says, though its checksum is right.
    pub changes: Option<Vec<Bytes>>,
    pub payload: Bytes,
}

/// A segment file.
pub struct SegmentFile {
    /// Its number, by its name.
    pub number: u64,
    pub path: PathBuf,
}

/// The segments of the journal at a path, in order.
pub fn segments(at: &Path) -> Outcome<Vec<SegmentFile>> {
    if at.is_file() {
        let name = at.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = segment_of_name(name).unwrap_or(0);
        return Ok(vec![SegmentFile { number, path: at.to_owned() }]);
    }
    let dir = journal_dir(at)?;
    let mut found = in_dir(&dir)?;
    found.sort_by_key(|segment| segment.number);
    Ok(found)
}

/// Where the files are: in the directory itself, or below.
fn journal_dir(at: &Path) -> Outcome<PathBuf> {
    if !in_dir(at)?.is_empty() {
        return Ok(at.to_owned());
    }
    let below = at.join("journal");
    if below.is_dir() && !in_dir(&below)?.is_empty() {
        return Ok(below);
    }
    let mut workers: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(at).about(at.display())? {
        let entry = entry.about(at.display())?;
        if entry.path().join("journal").is_dir() {
            workers.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    workers.sort();
    let why = match workers.is_empty() {
        true => "there is no journal here".to_owned(),
        false => format!("there are several journals; choose one of {}", workers.join(", ")),
    };
    Err(Failure::new(at.display(), why))
}

fn in_dir(dir: &Path) -> Outcome<Vec<SegmentFile>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).about(dir.display())? {
        let entry = entry.about(dir.display())?;
        if let Some(number) = entry.file_name().to_str().and_then(segment_of_name) {
            found.push(SegmentFile { number, path: entry.path() });
        }
    }
    Ok(found)
}

impl SegmentFile {
    /// Reads it, and hands each record that is whole to `on_record`.
    pub fn read(&self, mut on_record: impl FnMut(Read) -> Outcome) -> Outcome<Salvaged> {
        let data = std::fs::read(&self.path).about(self.path.display())?;
        let mut outcome = Ok(());
        let found = salvage(&data, &self.path.to_string_lossy(), |offset, record, acknowledged| {
            if outcome.is_ok() {
                let payload = Bytes::copy_from_slice(record.payload);
                let raw = RawRecord::decode(payload.clone()).ok();
                let changes = raw.map(|raw| raw.changes);
                let (lsn, kind) = (record.lsn, record.kind);
                let read = Read { offset, lsn, kind, acknowledged, changes, payload };
                outcome = on_record(read);
            }
        });
        outcome.map(|()| found)
    }

    /// Its file name.
    pub fn name(&self) -> String {
        match self.path.file_name() {
            Some(name) => name.to_string_lossy().into_owned(),
            None => segment_name(self.number),
        }
    }
}
