//! `saker journal erase`

use std::ops::RangeInclusive;
use std::path::PathBuf;

use bytes::Bytes;
use prost::Message;
use saker_engine::journal_format::JournalSegmentHeader;
use saker_types::InodeId;

use super::Source;
use super::describe::describe;
use super::read::{RawRecord, Read, segments};
use super::write::JournalWriter;
use crate::fail::{Failure, Outcome};

/// Copy a journal without some of its records or changes, and without what is damaged.
///
/// TO is made; it must not exist. The journal that is read stays as it is. Without --lsn and
/// --inode, all that is whole is copied: the copy of a damaged journal is sound, but lacks what is
/// lost. See first what that is by `saker journal inspect`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    journal: Source,
    /// Directory of the copy.
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Leave out the records with these LSNs: N, or N-M.
    #[arg(long, value_name = "RANGE", value_parser = range)]
    lsn: Vec<RangeInclusive<u64>>,
    /// Leave out changes of this inode's rows, and of names in it if it is a directory.
    #[arg(long, value_name = "N")]
    inode: Vec<InodeId>,
    /// Keep records behind a torn flush, of which nobody was told that they had happened.
    #[arg(long)]
    unacknowledged: bool,
}

fn range(text: &str) -> Result<RangeInclusive<u64>, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number"));
    match text.split_once('-') {
        None => number(text).map(|one| one..=one),
        Some((from, to)) => Ok(number(from)?..=number(to)?),
    }
}

pub fn run(args: &Args) -> Outcome<u8> {
    let all = segments(&args.journal.from)?;
    let mut journal = JournalWriter::create(&args.to)?;
    let (mut records, mut changes) = (0_u64, 0_u64);
    for segment in &all {
        let mut kept = Vec::new();
        let found = segment.read(|record| {
            if !record.acknowledged && !args.unacknowledged || args.leaves_out(&record) {
                records += 1;
                return Ok(());
            }
            let (payload, erased) = args.rest_of(&record);
            changes += erased;
            kept.push((record.kind, payload));
            Ok(())
        })?;
        let first_lsn = found.first_lsn.unwrap_or(0);
        let header = match found.header {
            Ok(header) => header,
            // The segments around it, if there are any, say whose it is.
            Err(_) if all.len() > 1 && found.records > 0 => {
                let segment = segment.number;
                JournalSegmentHeader { uuid: [0; 16], shard: 0, segment, first_lsn }
            }
            Err(error) => return Err(Failure::new("journal", error)),
        };
        journal.begin(header)?;
        for (kind, payload) in kept {
            journal.add(kind, &payload)?;
        }
    }
    let kept = journal.finish()?;
    println!("{kept} records; without {records} records and {changes} changes of others");
    Ok(0)
}

impl Args {
    fn leaves_out(&self, record: &Read) -> bool {
        self.lsn.iter().any(|range| range.contains(&record.lsn))
    }

    /// The payload without the changes that are left out, and how many these are.
    fn rest_of(&self, record: &Read) -> (Bytes, u64) {
        let Some(changes) = record.changes.as_ref().filter(|_| !self.inode.is_empty()) else {
            return (record.payload.clone(), 0);
        };
        let is_of = |change: &Bytes| {
            let described = describe(change);
            let ids = [described.inode, described.parent];
            ids.into_iter().flatten().any(|id| self.inode.contains(&id))
        };
        let rest: Vec<Bytes> = changes.iter().filter(|change| !is_of(change)).cloned().collect();
        let erased = (changes.len() - rest.len()) as u64;
        (RawRecord { changes: rest }.encode_to_vec().into(), erased)
    }
}
