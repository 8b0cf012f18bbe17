//! Making records durable, and what to do with a segment that cannot be.

use std::io;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use saker_runtime::fs::is_durable;

use super::Log;
use crate::backend::segments::segment::{Segment, name_of};
use crate::wait::{WaitPolicy, locked};

/// Flushes are numbered; a caller is served by the first that starts after it came.
#[derive(Default)]
pub(super) struct Flush {
    started: u64,
    finished: u64,
    running: bool,
    /// Number and error of the last flush that failed.
    failed: Option<(u64, String)>,
}

impl Log {
    pub(super) fn poison(&self, segment: &Segment, what: &str, error: &io::Error) {
        if segment.poison() {
            let (dir, name) = (self.segments.label(), segment.name());
            tracing::error!("{dir}/{name}: {what} failed: {error}; it is not written any more");
            locked(&self.poisoned).push(segment.no);
        }
    }

    /// Poisoned segments that must be emptied.
    pub fn poisoned(&self) -> Vec<u32> {
        locked(&self.poisoned).clone()
    }

    /// Nothing is on its way to this segment any more: not to its file, nor what is in that to the
    /// index.
    pub fn is_settled(&self, no: u32) -> bool {
        !self.state().inflight.values().any(|place| place.segment == no)
    }

    /// The data of a poisoned segment is safe elsewhere; the segment is gone.
    pub fn retire(&self, no: u32) {
        locked(&self.poisoned).retain(|n| *n != no);
        locked(&self.unsynced).remove(&no);
    }

    /// A segment of an earlier run whose records may not be durable.
    pub fn distrust(&self, segment: &Arc<Segment>) {
        segment.reserved.fetch_add(1, Ordering::AcqRel);
        segment.written.fetch_add(1, Ordering::AcqRel);
        locked(&self.unsynced).insert(segment.no, segment.clone());
    }

    /// A flush of a segment of an earlier run may have failed, which that did not live to see to: then
    /// the page cache has what the disk does not, and no later flush tells. The segment is given up
    /// then as if the flush had failed now.
    pub fn check_flushed(&self, segment: &Arc<Segment>) {
        let check = || {
            let (file, _) = self.segments.open(segment, WaitPolicy::May)?;
            file.sync()?;
            match is_durable(&*file)? {
                true => Ok(()),
                false => Err(io::Error::other("the disk lacks what was written")),
            }
        };
        if let Err(error) = check() {
            self.poison(segment, "flush", &error);
        }
    }

    /// Makes every record durable whose append returned before this call. Callers that come
    /// while a flush runs share the next one.
    ///
    /// # Errors
    /// The flush's; also while data of a segment that failed earlier is not safe elsewhere.
    pub fn sync(&self) -> io::Result<()> {
        let mut flush = locked(&self.flush);
        let mine = flush.started + 1;
        loop {
            if flush.finished >= mine {
                return match &flush.failed {
                    Some((number, text)) if *number >= mine => Err(io::Error::other(text.clone())),
                    _ => Ok(()),
                };
            }
            if flush.running {
                flush = self.flushed.wait(flush).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            flush.running = true;
            flush.started += 1;
            let number = flush.started;
            drop(flush);
            let result = self.flush_now();
            flush = locked(&self.flush);
            flush.running = false;
            flush.finished = number;
            if let Err(error) = &result {
                flush.failed = Some((number, error.to_string()));
            }
            self.flushed.notify_all();
        }
    }

    fn flush_now(&self) -> io::Result<()> {
        let low = self.state().low_water().next_seq_durable;
        self.flush_but(&[])?;
        self.durable_seq.fetch_max(low, Ordering::AcqRel);
        Ok(())
    }

    /// Flushes all segments, of which only these, whose data is elsewhere by now, may be poisoned.
    ///
    /// # Errors
    /// A flush's; while another segment is poisoned.
    pub fn flush_but(&self, rescued: &[u32]) -> io::Result<()> {
        // The kernel tells of what it could not write only once for each open file.
        let _alone = locked(&self.flushing);
        self.flush_healthy()?;
        if let Some(no) = locked(&self.poisoned).iter().find(|no| !rescued.contains(no)) {
            let name = name_of(*no);
            return Err(io::Error::other(format!("{name} failed; its data is being moved")));
        }
        Ok(())
    }

    /// Flushes all segments but the poisoned ones; the first failure, after which its segment is one
    /// of them.
    fn flush_healthy(&self) -> io::Result<()> {
        let segments: Vec<_> = locked(&self.unsynced).values().cloned().collect();
        let mut result = Ok(());
        for segment in segments {
            if segment.poisoned.load(Ordering::Acquire) {
                continue;
            }
            let sealed = segment.sealed.load(Ordering::Acquire) && segment.is_quiet();
            let written = segment.written.load(Ordering::Acquire);
            if written != segment.synced.load(Ordering::Acquire) {
                self.flushes.inc();
                let synced =
                    self.segments.open(&segment, WaitPolicy::May).and_then(|(file, _)| file.sync());
                if let Err(error) = synced {
                    if self.segments.get(segment.no).is_none() {
                        // Removed meanwhile: nothing refers to it any more.
                        continue;
                    }
                    self.poison(&segment, "flush", &error);
                    result = Err(error);
                    continue;
                }
                segment.synced.store(written, Ordering::Release);
            }
            if sealed {
                locked(&self.unsynced).remove(&segment.no);
            }
        }
        result
    }
}
