//! `saker journal inspect`

use saker_engine::salvage::{Hole, Salvaged};
use saker_types::id::hex;
use serde::Serialize;

use super::Source;
use super::describe::{Described, describe};
use super::read::{Read, SegmentFile, segments};
use crate::fail::{Context, Outcome};

/// Say what a journal has, and what of it is damaged.
///
/// Also reads what a server would refuse. Says of each file what is whole, which ranges are no
/// records, and whether what was there was durable (lost) or part of a flush that was never over
/// (torn: nobody was told that it had happened).
///
/// Exit codes: 0 nothing is lost, 3 something that was durable is, 1 it cannot be read.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    journal: Source,
    /// Print each record with its changes, too.
    #[arg(long)]
    records: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Exit code: something that was durable is not there.
const LOST: u8 = 3;

#[derive(Serialize)]
struct Report {
    segments: Vec<SegmentReport>,
    records: u64,
    /// Ranges of files, or whole files, whose records were durable and are lost.
    lost: u64,
}

#[derive(Serialize)]
struct SegmentReport {
    file: String,
    segment: u64,
    cluster: Option<String>,
    shard: Option<u32>,
    first_lsn: Option<u64>,
    end_lsn: u64,
    records: u64,
    changes: u64,
    unacknowledged_records: u64,
    holes: Vec<HoleReport>,
    tail_bytes: u64,
    /// What is wrong with the file as a whole, or with its place in the journal.
    problems: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listed: Vec<RecordReport>,
}

#[derive(Serialize)]
struct HoleReport {
    offset: u64,
    bytes: u64,
    torn: bool,
}

#[derive(Serialize)]
struct RecordReport {
    offset: u64,
    lsn: u64,
    kind: &'static str,
    acknowledged: bool,
    changes: Vec<Described>,
}

pub fn run(args: &Args) -> Outcome<u8> {
    let mut report = Report { segments: Vec::new(), records: 0, lost: 0 };
    for segment in segments(&args.journal.from)? {
        let one = inspect(&segment, report.segments.last(), args.records)?;
        report.records += one.records;
        let lost = one.holes.iter().filter(|hole| !hole.torn).count() + one.problems.len();
        report.lost += lost as u64;
        report.segments.push(one);
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report).about("json")?),
        false => print(&report),
    }
    Ok(if report.lost == 0 { 0 } else { LOST })
}

fn inspect(
    segment: &SegmentFile,
    before: Option<&SegmentReport>,
    lists: bool,
) -> Outcome<SegmentReport> {
    let (mut changes, mut listed) = (0, Vec::new());
    let found = segment.read(|record| {
        changes += record.changes.as_ref().map_or(0, Vec::len) as u64;
        if lists {
            listed.push(record_report(&record));
        }
        Ok(())
    })?;
    let problems = problems(segment, before, &found);
    let header = found.header.as_ref().ok();
    let hole =
        |hole: &Hole| HoleReport { offset: hole.offset, bytes: hole.bytes, torn: hole.is_torn };
    Ok(SegmentReport {
        file: segment.name(),
        segment: segment.number,
        cluster: header.map(|header| hex(&header.uuid)),
        shard: header.map(|header| header.shard),
        first_lsn: found.first_lsn,
        end_lsn: found.end,
        records: found.records,
        changes,
        unacknowledged_records: found.unacknowledged,
        holes: found.holes.iter().map(hole).collect(),
        tail_bytes: found.tail_bytes,
        problems,
        listed,
    })
}

fn record_report(record: &Read) -> RecordReport {
    let changes = record.changes.as_deref().unwrap_or_default();
    RecordReport {
        offset: record.offset,
        lsn: record.lsn,
        kind: super::export::kind_name(record.kind),
        acknowledged: record.acknowledged,
        changes: changes.iter().map(describe).collect(),
    }
}

/// What is wrong besides holes.
fn problems(
    segment: &SegmentFile,
    before: Option<&SegmentReport>,
    found: &Salvaged,
) -> Vec<String> {
    let mut problems = Vec::new();
    match &found.header {
        Err(error) => problems.push(error.to_string()),
        Ok(header) if header.segment != segment.number => {
            problems.push(format!("it says that it is segment {}", header.segment));
        }
        Ok(header) => {
            let is_other = |before: &&SegmentReport| {
                before.cluster.as_ref().is_some_and(|cluster| *cluster != hex(&header.uuid))
                    || before.shard.is_some_and(|shard| shard != header.shard)
            };
            if before.is_some_and(|before| is_other(&before)) {
                problems.push("it belongs to another cluster or shard".to_owned());
            }
        }
    }
    if let Some(before) = before {
        if before.segment + 1 != segment.number {
            problems.push(format!(
                "segments {} to {} are missing",
                before.segment + 1,
                segment.number - 1
            ));
        } else if found.first_lsn.is_some_and(|first| first != before.end_lsn) {
            problems.push(format!("the end of {} is missing", before.file));
        }
    }
    problems
}

fn print(report: &Report) {
    for segment in &report.segments {
        let SegmentReport { file, records, changes, first_lsn, end_lsn, .. } = segment;
        let from = first_lsn.map_or("?".to_owned(), |lsn| lsn.to_string());
        println!("{file}  {records} records, {changes} changes, LSN {from} to {end_lsn}");
        for problem in &segment.problems {
            println!("  lost: {problem}");
        }
        for HoleReport { offset, bytes, torn } in &segment.holes {
            let what = if *torn { "torn" } else { "lost" };
            println!("  {what}: {bytes} bytes at byte {offset}");
        }
        if segment.unacknowledged_records > 0 {
            println!("  {} records behind a torn flush", segment.unacknowledged_records);
        }
        if segment.tail_bytes > 0 {
            println!("  {} bytes at the end are no record", segment.tail_bytes);
        }
        for record in &segment.listed {
            println!("  {} {} of {} changes", record.lsn, record.kind, record.changes.len());
            record.changes.iter().for_each(print_change);
        }
    }
    println!("{} records, {} places lost", report.records, report.lost);
}

fn print_change(change: &Described) {
    let mut line = format!("    {}", change.what);
    let fields = [
        change.table.map(str::to_owned),
        change.parent.zip(change.name.as_ref()).map(|(parent, name)| format!("{parent}/{name:?}")),
        change.inode.map(|inode| format!("inode {inode}")),
        change.kind.map(str::to_owned),
        change.size.map(|size| format!("{size} bytes")),
    ];
    for field in fields.into_iter().flatten() {
        line += "  ";
        line += &field;
    }
    println!("{line}");
}
