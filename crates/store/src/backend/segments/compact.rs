//! Compaction: live extents move on to the log's end, so that what they leave can go.
//!
//! A chunk's extents move while nobody else changes the inode, under new sequence numbers: what
//! was logged before is covered by the copy, what comes after covers it. So a crash at any point
//! leaves either the old or the new, and both are right.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use saker_types::limits::CHUNK_BYTES;
use saker_types::{Errno, Result};

use super::format::{self, HEAD_BYTES_MAX, PAYLOAD_BYTES_MAX, RecordHeader, RecordKind};
use super::index::{ChunkKey, SegmentExtent};
use super::log::{Draft, Purpose};
use super::pieces;
use super::scan::{Payloads, scan};
use super::segment::Segment;
use super::state::SegmentStore;
use crate::backend::io_error;
use crate::wait::{WaitPolicy, locked};

/// Full segments with less live data than this share of a segment are compacted.
const LIVE_PERCENT: u64 = 30;
/// The same when new data would soon find no room.
const LIVE_PERCENT_SHORT: u64 = 85;
/// Most segments compacted in one round, so that checkpoints are not late.
const SEGMENTS_PER_ROUND: usize = 4;
/// Most chunks written anew in one round.
const REWRITES_PER_ROUND: usize = 16;

impl SegmentStore {
    /// One round's share of compaction.
    pub(crate) fn compact_some(&self) -> Result<()> {
        for _ in 0..REWRITES_PER_ROUND {
            let Some(key) = locked(&self.rewrites).pop_first() else { break };
            self.rewrite(key)?;
        }
        for _ in 0..SEGMENTS_PER_ROUND {
            let Some(segment) = self.victim() else { return Ok(()) };
            match self.empty(&segment) {
                // It is removed by the checkpoint that knows the copies.
                Ok(()) => self.checkpoint()?,
                Err(error) if error.errno() == Errno::ENOSPC => return Err(error),
                // What cannot be read must not keep all others from being emptied.
                Err(error) => self.log_once(&error),
            }
        }
        self.rounds.wake();
        Ok(())
    }

    /// The segment that costs least to empty, if any is worth it.
    fn victim(&self) -> Option<Arc<Segment>> {
        let short = self.log.is_short_of_space();
        let percent = if short { LIVE_PERCENT_SHORT } else { LIVE_PERCENT };
        let bound = u64::from(self.options.segment_bytes) * percent / 100;
        let all = self.segments.all().into_iter().filter(|segment| {
            segment.is_sealed()
                && segment.is_quiet()
                && !segment.stuck.load(Ordering::Acquire)
                && !segment.poisoned.load(Ordering::Acquire)
                && (1..bound).contains(&segment.live_bytes())
        });
        all.min_by_key(|segment| segment.live_bytes())
    }

    /// Moves all live data out of a segment. What is damaged stays; the segment is left alone
    /// from then on.
    ///
    /// # Errors
    /// ENOSPC at once; of all else the first, when what can be moved is.
    fn empty(&self, segment: &Arc<Segment>) -> Result<()> {
        let keys =
            self.keys_in(segment).inspect_err(|_| segment.stuck.store(true, Ordering::Release))?;
        let mut result = Ok(());
        for key in keys {
            match self.move_extents(key, Some(segment.no)) {
                Err(error) if error.errno() == Errno::ENOSPC => return Err(error),
                moved => result = result.and(moved),
            }
        }
        if segment.live_bytes() > 0 {
            segment.stuck.store(true, Ordering::Release);
        }
        result
    }

    /// Moves what can still be read out of a segment whose write or flush failed.
    pub(crate) fn rescue(&self, no: u32) -> Result<()> {
        match self.segments.get(no) {
            Some(segment) if segment.live_bytes() > 0 => self.empty(&segment),
            _ => Ok(()),
        }
    }

    /// What could not be moved out of such a segment is lost: no flush may succeed for it.
    pub(crate) fn give_up(&self, no: u32) -> Result<()> {
        let Some(segment) = self.segments.get(no).filter(|s| s.live_bytes() > 0) else {
            return Ok(());
        };
        let keys = self.keys_in(&segment)?;
        let mut epochs = locked(&self.epochs);
        for key in keys {
            let (pieces, _) = self.index.lookup(key, 0, CHUNK_BYTES as u32, WaitPolicy::May)?;
            let left = pieces.into_iter().filter(|(of, _)| of.no == no);
            epochs.give_up(left.map(|(_, extent)| extent.seq));
        }
        self.index.save_epochs(&epochs);
        Ok(())
    }

    /// Chunks of which something was written into a segment.
    fn keys_in(&self, segment: &Arc<Segment>) -> Result<BTreeSet<ChunkKey>> {
        let (records, _) = scan(&self.segments, segment, 0, Payloads::Skip)
            .map_err(|e| io_error(&segment.name(), &e))?;
        let writes = records.iter().filter(|found| found.record.kind == RecordKind::Write);
        Ok(writes.map(|found| (found.record.id, found.record.index)).collect())
    }

    /// Writes a chunk of many extents anew, if that makes them fewer.
    fn rewrite(&self, key: ChunkKey) -> Result<()> {
        let (pieces, _) = self.index.lookup(key, 0, CHUNK_BYTES as u32, WaitPolicy::May)?;
        let count = pieces.len();
        if self.runs(pieces).len() * 2 <= count { self.move_extents(key, None) } else { Ok(()) }
    }

    /// Copies a chunk's extents (in one segment, or all) to the log's end.
    fn move_extents(&self, key: ChunkKey, from: Option<u32>) -> Result<()> {
        let wanted = || -> Result<Vec<SegmentExtent>> {
            let (mut pieces, _) = self.index.lookup(key, 0, CHUNK_BYTES as u32, WaitPolicy::May)?;
            pieces.retain(|(segment, _)| from.is_none_or(|no| segment.no == no));
            Ok(pieces)
        };
        // Most records of a segment worth emptying are dead: no need to keep writers away.
        if wanted()?.is_empty() {
            return Ok(());
        }
        let _alone = self.index.begin_exclusive(key.0)?;
        let truncate_gen = self.index.truncate_gen(key.0)?;
        for run in self.runs(wanted()?) {
            self.copy_run(key, truncate_gen, run)?;
        }
        Ok(())
    }

    /// Groups pieces that follow each other without a hole, each as long as a record may be.
    fn runs(&self, pieces: Vec<SegmentExtent>) -> Vec<Vec<SegmentExtent>> {
        let max = (self.log.record_bytes_max() as usize - HEAD_BYTES_MAX).min(PAYLOAD_BYTES_MAX);
        let mut runs: Vec<Vec<SegmentExtent>> = Vec::new();
        for piece in pieces {
            let fits = |run: &Vec<SegmentExtent>| {
                let (first, last) = (run.first()?, run.last()?);
                let len = piece.1.end() - first.1.off;
                (last.1.end() == piece.1.off && len as usize <= max).then_some(())
            };
            match runs.last_mut() {
                Some(run) if fits(run).is_some() => run.push(piece),
                _ => runs.push(vec![piece]),
            }
        }
        runs
    }

    fn copy_run(&self, key: ChunkKey, truncate_gen: u64, run: Vec<SegmentExtent>) -> Result<()> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let (start, end) = (first.1.off, last.1.end());
        let one_by_one = run.clone();
        let data = match pieces::read(&self.segments, key, run, start, end, WaitPolicy::May) {
            Ok(data) => data,
            Err(error) => {
                self.report(error);
                return self.copy_sound(key, truncate_gen, one_by_one);
            }
        };
        let mut sums = Vec::new();
        let sum = format::block_sums(&data.bytes, &mut sums);
        let record = RecordHeader {
            kind: RecordKind::Write,
            id: key.0,
            index: key.1,
            truncate_gen,
            version: data.version,
            offset: start,
            ..RecordHeader::EMPTY
        };
        let (replicas, payload) = (&data.replicas[..], &data.bytes[..]);
        let draft = Draft { record, replicas, sums: &sums, sum, payload };
        self.append_write(key, &draft, Purpose::Copy, WaitPolicy::May)?;
        self.metrics.compacted_bytes.add(data.bytes.len() as u64);
        Ok(())
    }

    /// A run with damage in it: its pieces that are sound move alone, the others stay.
    fn copy_sound(&self, key: ChunkKey, truncate_gen: u64, run: Vec<SegmentExtent>) -> Result<()> {
        if run.len() > 1 {
            for piece in run {
                self.copy_run(key, truncate_gen, vec![piece])?;
            }
        }
        Ok(())
    }
}
