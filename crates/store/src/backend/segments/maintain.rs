//! What goes on in the background: checkpoints, the next segment, compaction, removal.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use saker_runtime::thread;
use saker_runtime::time::now;
use saker_types::{Errno, Error, Result};

use super::index::DIRTY_ROWS_MAX;
use super::recover::drain;
use super::state::SegmentStore;
use crate::backend::io_error;
use crate::wait::{WaitPolicy, locked, would_wait};

/// So many, and whoever wants to make another one takes the checkpoint first.
const DIRTY_ROWS_LIMIT: usize = 4 * DIRTY_ROWS_MAX;
/// Bytes and records of log that a start may have to read.
const TAIL_BYTES_MAX: u64 = 256 << 20;
const TAIL_RECORDS_MAX: u64 = 64 << 10;
/// Changes are not kept from the table for longer.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(10);
/// Checkpoints that only free space keep this distance.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(200);

impl SegmentStore {
    /// Starts the thread that does the background work.
    ///
    /// # Errors
    /// The system's, when it has no room for a thread.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        // Weak, so that a store that nobody uses any more is closed.
        let weak: Weak<SegmentStore> = Arc::downgrade(self);
        let rounds = self.rounds.clone();
        let run = move || {
            while rounds.next_round() {
                let Some(store) = weak.upgrade() else { return };
                store.maintain();
            }
        };
        let started = thread::spawn("store-maintain", run)
            .map_err(|e| Error::new(Errno::EAGAIN).with_text(format!("thread: {e}")))?;
        *locked(&self.rounds.thread) = Some(started);
        Ok(())
    }

    /// Ends the background work, after the round that is under way.
    pub fn stop(&self) {
        self.rounds.end();
        if let Some(thread) = locked(&self.rounds.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("the maintenance thread panicked");
        }
    }

    /// One round of background work. Failures are logged and tried again in the next.
    pub fn maintain(&self) {
        self.log.prepare();
        let result = self.checkpoint_if_due().and_then(|()| self.compact_some());
        match result {
            Ok(()) => locked(&self.rounds.logged).clear(),
            Err(error) => self.log_once(&error),
        }
        self.update_gauges();
    }

    pub(crate) fn log_once(&self, error: &Error) {
        let text = error.to_string();
        let mut logged = locked(&self.rounds.logged);
        if *logged != text {
            tracing::error!("{}: background work failed: {text}", self.segments.label());
            *logged = text;
        }
    }

    fn checkpoint_if_due(&self) -> Result<()> {
        let (bytes, records) = self.log.since_low_water();
        let dirty = self.index.dirty_rows();
        let since = now().since(locked(&self.rounds.checkpoint).at);
        let due = bytes >= TAIL_BYTES_MAX
            || records >= TAIL_RECORDS_MAX
            || dirty >= DIRTY_ROWS_MAX
            || (dirty > 0 && since >= CHECKPOINT_EVERY)
            || (since >= CHECKPOINT_PAUSE && self.has_dead_segments())
            || !self.log.poisoned().is_empty()
            || !self.is_start_saved.load(Ordering::Acquire);
        if due { self.checkpoint() } else { Ok(()) }
    }

    fn has_dead_segments(&self) -> bool {
        self.segments.all().iter().any(|s| s.is_sealed() && s.live_bytes() == 0)
    }

    /// Before a record is appended: keeps the index in memory bounded, and what the start found in
    /// the table.
    pub(crate) fn limit_dirty(&self, wait: WaitPolicy) -> Result<()> {
        let over = || {
            let is_saved = self.is_start_saved.load(Ordering::Acquire);
            !is_saved || self.index.dirty_rows() >= DIRTY_ROWS_LIMIT
        };
        if wait == WaitPolicy::Never {
            return if over() || self.index.is_pressed() { Err(would_wait()) } else { Ok(()) };
        }
        if !over() && !self.index.take_pressed() {
            return Ok(());
        }
        let pressed = !over();
        let _turn = locked(&self.rounds.turn);
        // Whoever had the turn before has done it for all.
        if pressed || over() { self.checkpoint() } else { Ok(()) }
    }

    /// Brings the table up to date, so that a start has little to replay, and removes the
    /// segments that nothing refers to any more.
    ///
    /// # Errors
    /// The flush's and the table's; everything stays as it was then, in memory and in the log.
    pub fn checkpoint(&self) -> Result<()> {
        let mut last = locked(&self.rounds.checkpoint);
        let mut poisoned = self.log.poisoned();
        // What is on its way to one would be left there. It takes no more.
        poisoned.retain(|no| self.log.is_settled(*no));
        for no in &poisoned {
            self.rescue(*no)?;
            self.give_up(*no)?;
        }
        let marker = self.log.low_water();
        drain(&self.index, &self.log, &marker, &poisoned)?;
        self.is_start_saved.store(true, Ordering::Release);
        self.metrics.checkpoints.inc();
        // What was readable of them is elsewhere, and what they did is in the table.
        poisoned.iter().for_each(|no| self.log.retire(*no));
        self.trim();
        for no in self.index.unreferenced() {
            self.log.retire(no);
            self.segments.remove(no).map_err(|e| io_error("remove", &e))?;
        }
        last.at = now();
        Ok(())
    }

    /// Gives back what was allocated behind the last record of full segments.
    fn trim(&self) {
        for segment in self.segments.all() {
            let poisoned = segment.poisoned.load(Ordering::Acquire);
            if !segment.is_sealed() || poisoned || !segment.is_quiet() {
                continue;
            }
            if !segment.trimmed.swap(true, Ordering::AcqRel) && segment.live_bytes() > 0 {
                let end = u64::from(segment.end.load(Ordering::Acquire));
                let trimmed =
                    self.segments.open(&segment, WaitPolicy::May).and_then(|(file, _)| {
                        if file.len()? > end { file.truncate(end) } else { Ok(()) }
                    });
                if let Err(error) = trimmed {
                    tracing::warn!("{}: trim: {error}", segment.name());
                }
            }
        }
    }
}
