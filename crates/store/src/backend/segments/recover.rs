//! Opening: from what the table holds and the log's tail to the state at the crash.

use std::io;
use std::sync::Arc;

use saker_engine::table::Table;
use saker_runtime::fs::Dir;
use saker_types::Result;
use saker_types::limits::CHUNK_BYTES;

use super::epochs::Epochs;
use super::extent::Extent;
use super::format::{RecordKind, StoreIdentity};
use super::index::{Commit, DIRTY_ROWS_MAX, Index, Saved, open_saved};
use super::log::{Log, LogConfig, LogPosition};
use super::metrics::Metrics;
use super::options::Options;
use super::scan::{FoundRecord, Payloads, scan};
use super::segment::{Segment, Segments, name_of};
use crate::backend::io_error;

/// No record of an epoch has a number that one before it may have acknowledged, even if the start
/// is repeated after it has begun to rescue data.
const EPOCH_GAP: u64 = 1 << 24;

/// What an open store starts with.
pub struct RecoveredStore {
    #[allow(missing_docs)]
    pub segments: Arc<Segments>,
    #[allow(missing_docs)]
    pub log: Log,
    #[allow(missing_docs)]
    pub index: Index,
    #[allow(missing_docs)]
    pub epochs: Epochs,
    /// The index holds what the start found: else it must before anything is appended to the log.
    pub is_saved: bool,
}

struct Tail {
    segments: Vec<Arc<Segment>>,
    records: Vec<FoundRecord>,
    next_segment: u32,
    next_seq: u64,
}

/// Opens what is in `dir` and `table`. Reads the table's state and the tail of the log.
///
/// # Errors
/// EIO, in words.
pub fn recover(
    dir: Arc<dyn Dir>,
    table: Arc<dyn Table>,
    identity: StoreIdentity,
    options: &Options,
    metrics: &Metrics,
) -> Result<RecoveredStore> {
    let segments = Arc::new(Segments::new(dir, identity));
    let mut saved = open_saved(&*table)?;
    let fail = |e: io::Error| io_error(&segments.label(), &e);
    let files = segments.list_files().map_err(fail)?;
    adopt(&segments, &saved, &files)?;
    let is_same_boot = saved.epochs.lasts_since(options.cached_since);
    let mut tail = read_tail(&segments, &saved, &files)?;
    // Saved with the very next commit, whatever that is for.
    let there = tail.records.iter().filter(|found| found.sound).map(|found| found.record.seq);
    let another_epoch = saved.epochs.begin(options.cached_since, saved.durable_seq, there);
    let epochs = saved.epochs.clone();
    if another_epoch && epochs.current() > 1 {
        tail.next_seq += EPOCH_GAP;
    }
    let config = LogConfig {
        segment_bytes: options.segment_bytes,
        capacity_bytes: options.capacity_bytes,
        space: options.space.clone(),
    };
    let flushes = metrics.flushes.clone();
    let log = Log::new(segments.clone(), config, tail.next_segment, tail.next_seq, flushes);
    for segment in &tail.segments {
        log.distrust(segment);
        if is_same_boot {
            log.check_flushed(segment);
        }
    }
    let (cache_bytes, deleted_max) = (options.cache_bytes, options.deleted_max);
    let index = Index::new(table, segments.clone(), saved, cache_bytes, deleted_max);
    let was_cut_short = replay(&index, &log, &tail)?;
    let mut is_saved = true;
    if was_cut_short || another_epoch {
        // Before any record can say that the ones before it are durable: the next start must not
        // see those that were cut short, or it would take them for damaged.
        if let Err(error) = drain(&index, &log, &log.low_water(), &[]) {
            // What is here can be served, at least.
            tracing::warn!("{}: {error}; for now it can be read only", segments.label());
            is_saved = false;
        }
    }
    Ok(RecoveredStore { segments, log, index, epochs, is_saved })
}

/// Registers the segments that the table knows; removes files of which neither it nor the log's
/// tail knows anything.
fn adopt(segments: &Arc<Segments>, saved: &Saved, files: &[u32]) -> Result<()> {
    for (&no, &(live, end)) in &saved.segments {
        let exists = files.binary_search(&no).is_ok();
        if !exists && live == 0 {
            continue;
        }
        let segment = segments.adopt(no, live, end);
        if !exists {
            let (dir, name) = (segments.label(), segment.name());
            tracing::error!("{dir}/{name} is lost, and with it {live} bytes of file data");
            segment.stuck.store(true, std::sync::atomic::Ordering::Release);
        }
    }
    for &no in files {
        if segments.get(no).is_some() {
            continue;
        }
        if no < saved.segment {
            segments.remove(no).map_err(|e| io_error(&name_of(no), &e))?;
        } else {
            segments.adopt(no, 0, 0);
        }
    }
    Ok(())
}

fn read_tail(segments: &Arc<Segments>, saved: &Saved, files: &[u32]) -> Result<Tail> {
    let last = files.last().copied().max(saved.segments.keys().last().copied());
    let mut tail = Tail {
        segments: Vec::new(),
        records: Vec::new(),
        next_segment: last.map_or(0, |no| no + 1).max(saved.segment),
        next_seq: saved.next_seq.max(1),
    };
    for &no in files.iter().filter(|no| **no >= saved.segment) {
        let Some(segment) = segments.get(no) else { continue };
        let from = if no == saved.segment { saved.pos } else { 0 };
        let (mut records, end) = scan(segments, &segment, from, Payloads::Verify)
            .map_err(|e| io_error(&segment.name(), &e))?;
        if records.is_empty() && from == 0 && segment.live_bytes() == 0 {
            // Made in advance, never used.
            segments.remove(no).map_err(|e| io_error(&segment.name(), &e))?;
            continue;
        }
        segment.end.store(end, std::sync::atomic::Ordering::Release);
        tail.records.append(&mut records);
        tail.segments.push(segment);
    }
    let newest = tail.records.iter().map(|found| found.record.seq + 1).max();
    tail.next_seq = tail.next_seq.max(newest.unwrap_or(0));
    Ok(tail)
}

/// Leads the index through the tail. Unconditional, in order: see [`super::index`]. True if there
/// are records that were cut short, or are damaged.
fn replay(index: &Index, log: &Log, tail: &Tail) -> Result<bool> {
    let durable = tail.records.iter().map(|found| found.record.durable_seq).max().unwrap_or(0);
    let (mut torn, mut damaged) = (0, 0);
    for found in &tail.records {
        if !found.sound && found.record.seq >= durable {
            // Never flushed, so never promised to survive a loss of power.
            torn += 1;
            continue;
        }
        damaged += usize::from(!found.sound);
        replay_one(index, found)?;
        if index.dirty_rows() > DIRTY_ROWS_MAX {
            let next_seq = tail.next_seq;
            let next = LogPosition { place: found.place, next_seq, durable_seq: found.record.seq };
            drain(index, log, &next, &[])?;
        }
    }
    if torn + damaged > 0 {
        tracing::warn!("{torn} records were cut short by the crash, {damaged} are damaged");
    }
    Ok(torn + damaged > 0)
}

fn replay_one(index: &Index, found: &FoundRecord) -> Result<()> {
    let (record, place) = (&found.record, found.place);
    match record.kind {
        RecordKind::Write => {
            index.insert((record.id, record.index), extent_of(found))?;
        }
        RecordKind::Hole => {
            let end = record.offset.saturating_add(record.version.min(CHUNK_BYTES) as u32);
            index.punch((record.id, record.index), record.offset, end)?;
        }
        RecordKind::Truncate => index.truncate(record.id, record.truncate_gen, record.index)?,
        // Damaged: which inodes, nobody knows; they are found again as chunks without inode.
        RecordKind::Delete if !found.sound => {
            tracing::error!(
                "{} at byte {}: a deletion is damaged",
                name_of(place.segment),
                place.pos
            );
        }
        RecordKind::Delete => {
            found.ids.iter().try_for_each(|id| index.delete(*id))?;
            index.remember_deleted(record.seq, &found.ids);
        }
    }
    Ok(())
}

fn extent_of(found: &FoundRecord) -> Extent {
    let (place, len) = (found.place, found.record.len);
    Extent {
        off: found.record.offset,
        len,
        segment: place.segment,
        pos: place.pos,
        head: found.head_bytes,
        payload: len,
        skip: 0,
        seq: found.record.seq,
        sum: Some(found.sum),
    }
}

/// Writes everything dirty into the table; records before `marker` need no replay then. `rescued`:
/// poisoned segments whose data is elsewhere.
pub fn drain(index: &Index, log: &Log, marker: &LogPosition, rescued: &[u32]) -> Result<()> {
    index.begin_drain()?;
    let mut sync = || log.flush_but(rescued).map_err(|e| io_error("flush", &e));
    while index.commit(marker, &mut sync)? == Commit::More {}
    Ok(())
}
