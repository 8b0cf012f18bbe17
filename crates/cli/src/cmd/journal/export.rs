//! `saker journal export`

use std::fs::File;
use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;

use bytes::Bytes;
use saker_engine::journal_format::JournalRecordKind;
use saker_types::id::hex;
use serde::{Deserialize, Serialize};

use super::Source;
use super::describe::{Described, describe};
use super::read::{Read, segments};
use crate::fail::{Context, Outcome};

/// Write all records of a journal as text that `saker journal import` reads.
///
/// The text has one JSON document a line: {"segment": ...} begins a file of the journal, and each
/// {"record": ...} is a record with its changes. Of a change, `bytes` counts; the other fields say
/// what it means. Records of a damaged journal are written as far as they are whole.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    journal: Source,
    /// Write to this file, which must not exist. Default: standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also records behind a torn flush, of which nobody was told that they had happened.
    #[arg(long)]
    unacknowledged: bool,
}

/// A line of the text.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    Segment(SegmentLine),
    Record(RecordLine),
}

/// Begins a segment.
#[derive(Clone, Serialize, Deserialize)]
pub struct SegmentLine {
    pub number: u64,
    /// 16 bytes, hexadecimal.
    pub cluster: String,
    pub shard: u32,
    pub first_lsn: u64,
}

/// A record.
#[derive(Serialize, Deserialize)]
pub struct RecordLine {
    pub lsn: u64,
    pub kind: String,
    /// Absent: `payload` has what is no list of changes.
    #[serde(default)]
    pub changes: Option<Vec<ChangeLine>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

/// A change of a record.
#[derive(Serialize, Deserialize)]
pub struct ChangeLine {
    /// Hexadecimal.
    pub bytes: String,
    #[serde(flatten, skip_deserializing)]
    pub described: Described,
}

/// The name of a record's kind.
pub fn kind_name(kind: JournalRecordKind) -> &'static str {
    match kind {
        JournalRecordKind::Changes => "changes",
        JournalRecordKind::Snapshot => "snapshot",
    }
}

pub fn run(args: &Args) -> Outcome<u8> {
    match &args.output {
        None => export(args, &mut BufWriter::new(stdout().lock()), "standard output"),
        Some(path) => {
            let file = File::create_new(path).about(path.display())?;
            export(args, &mut BufWriter::new(file), &path.display().to_string())
        }
    }
}

fn export(args: &Args, out: &mut impl Write, name: &str) -> Outcome<u8> {
    for segment in segments(&args.journal.from)? {
        // What is written of the segment comes before its records: so they wait.
        let mut records = Vec::new();
        let found = segment.read(|record| {
            if record.acknowledged || args.unacknowledged {
                records.push(record_line(&record));
            }
            Ok(())
        })?;
        let header = found.header.as_ref().ok();
        if let Err(error) = &found.header {
            crate::complain!("saker: {error}");
        }
        let line = SegmentLine {
            number: segment.number,
            cluster: hex(&header.map_or([0; 16], |header| header.uuid)),
            shard: header.map_or(0, |header| header.shard),
            first_lsn: found.first_lsn.unwrap_or(0),
        };
        write_line(out, &Line::Segment(line)).about(name)?;
        for record in records {
            write_line(out, &Line::Record(record)).about(name)?;
        }
    }
    out.flush().about(name)?;
    Ok(0)
}

fn write_line(out: &mut impl Write, line: &Line) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

fn record_line(record: &Read) -> RecordLine {
    let changes = record.changes.as_ref().map(|changes| {
        let line = |change: &Bytes| ChangeLine { bytes: hex(change), described: describe(change) };
        changes.iter().map(line).collect()
    });
    let payload = record.changes.is_none().then(|| hex(&record.payload));
    RecordLine { lsn: record.lsn, kind: kind_name(record.kind).to_owned(), changes, payload }
}
