//! `saker journal import`

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::PathBuf;

use bytes::Bytes;
use prost::Message;
use saker_engine::journal_format::{JournalRecordKind, JournalSegmentHeader};

use super::export::{Line, RecordLine, SegmentLine, kind_name};
use super::read::RawRecord;
use super::write::JournalWriter;
use crate::fail::{Context, Outcome};

/// Make a journal of what `saker journal export` has written.
///
/// DIR is made; it must not exist. Lines may have been removed, also changes of records: what remains
/// is written as a sound journal, with positions (LSNs) of its own.
#[derive(clap::Args)]
pub struct Args {
    /// The text; - for standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Directory of the new journal.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub fn run(args: &Args) -> Outcome<u8> {
    let name = args.file.display();
    let text: Box<dyn BufRead> = match args.file.as_os_str() == "-" {
        true => Box::new(stdin().lock()),
        false => Box::new(BufReader::new(File::open(&args.file).about(&name)?)),
    };
    let mut journal = JournalWriter::create(&args.dir)?;
    for (number, line) in text.lines().enumerate() {
        let line = line.about(&name)?;
        if line.trim().is_empty() {
            continue;
        }
        let at = format!("{name}:{}", number + 1);
        match serde_json::from_str(&line).about(&at)? {
            Line::Segment(segment) => journal.begin(header(&segment).about(&at)?)?,
            Line::Record(record) => {
                let (kind, payload) = read_record(&record).about(&at)?;
                journal.add(kind, &payload)?;
            }
        }
    }
    let records = journal.finish()?;
    println!("{records} records");
    Ok(0)
}

fn header(line: &SegmentLine) -> Result<JournalSegmentHeader, &'static str> {
    let uuid = bytes_of(&line.cluster)?;
    let uuid = uuid[..].try_into().map_err(|_| "cluster: not 16 bytes")?;
    let SegmentLine { number, shard, first_lsn, .. } = *line;
    Ok(JournalSegmentHeader { uuid, shard, segment: number, first_lsn })
}

fn read_record(line: &RecordLine) -> Result<(JournalRecordKind, Vec<u8>), &'static str> {
    let kinds = [JournalRecordKind::Changes, JournalRecordKind::Snapshot];
    let kind = kinds.into_iter().find(|kind| kind_name(*kind) == line.kind);
    let kind = kind.ok_or("kind: neither changes nor snapshot")?;
    let payload = match (&line.changes, &line.payload) {
        (Some(changes), None) => {
            let changes = changes.iter().map(|change| bytes_of(&change.bytes).map(Bytes::from));
            RawRecord { changes: changes.collect::<Result<_, _>>()? }.encode_to_vec()
        }
        (None, Some(payload)) => bytes_of(payload)?,
        _ => return Err("a record has either changes or a payload"),
    };
    Ok((kind, payload))
}

/// Bytes from hexadecimal digits.
fn bytes_of(digits: &str) -> Result<Vec<u8>, &'static str> {
    const WRONG: &str = "bytes: not an even number of hexadecimal digits";
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return Err(WRONG) };
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let byte = |[high, low]: &[u8; 2]| Some(value(*high)? << 4 | value(*low)?);
    pairs.iter().map(byte).collect::<Option<_>>().ok_or(WRONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_bytes() {
        assert_eq!(bytes_of("00ffA1"), Ok(vec![0, 0xFF, 0xA1]));
        assert!(bytes_of("0").is_err() && bytes_of("0x").is_err() && bytes_of("é").is_err());
    }
}
