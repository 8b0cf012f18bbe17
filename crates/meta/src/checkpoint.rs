//! Checkpoints: changed rows go to the table, and the journal is trimmed. What lives only in
//! memory and journal (sessions, prepared transactions, decisions) is written again as the first
//! record of the next journal segment.

use std::io;
use std::time::Duration;

use prost::Message;
use saker_engine::{JournalError, SegmentNo, TableError, snapshot};
use saker_runtime::failpoint;
use saker_runtime::fs::is_full;
use saker_runtime::thread::Job;
use saker_types::change::What;

use crate::namespace::eager;
use crate::shard::Shard;

/// Journal bytes, in overlay limits, after which a checkpoint is due although few rows changed
/// (but those often): a restart must not read for long.
const JOURNAL_LIMITS: u64 = 4;
/// Overlay bytes, in limits, at which requests wait for the checkpoint under way: memory is
/// bounded.
const OVERLAY_LIMITS: u64 = 2;

/// Pause after a checkpoint for which the disk had no room.
const FULL_PAUSE: Duration = Duration::from_secs(1);

impl Shard {
    /// Begins a checkpoint when enough has changed, and ends one that is done. Called after the
    /// batch is sealed: everything in the tables in memory is in the journal.
    pub(crate) fn checkpoint(&mut self) -> io::Result<()> {
        self.journal.keep_up().map_err(io::Error::other)?;
        let limit = self.limits.overlay_bytes;
        let overlay = self.db.overlay_bytes() as u64;
        self.finish_checkpoint(overlay >= limit * OVERLAY_LIMITS)?;
        let journal = self.journal.segment_bytes() - self.checkpointing.snapshot_bytes;
        let due = overlay >= limit || journal >= limit * JOURNAL_LIMITS;
        if due
            && !self.checkpointing.is_running()
            && self.hub.now() >= self.checkpointing.not_before
        {
            self.begin_checkpoint()?;
        }
        Ok(())
    }

    /// The disk is full: the journal goes on for as long as it has room.
    fn put_off(&mut self, why: &dyn std::fmt::Display) {
        tracing::warn!("a checkpoint is put off: {why}");
        self.checkpointing.not_before = self.hub.now() + FULL_PAUSE;
    }

    fn begin_checkpoint(&mut self) -> io::Result<()> {
        let rows = (self.db.overlay_bytes() + self.db.frozen_bytes()) as u64;
        if !self.room.has_room_for(self.limits.segment_bytes + rows) {
            self.put_off(&"the disk is full");
            return Ok(());
        }
        let segment = match self.rotate() {
            Err(error) if error.is_full() => {
                self.put_off(&error);
                return Ok(());
            }
            rotated => rotated.map_err(io::Error::other)?,
        };
        self.checkpointing.snapshot_bytes = self.journal.segment_bytes();
        let checkpoint = self.db.checkpoint_begin(segment);
        let job = Job::start("checkpoint", move || checkpoint.run())?;
        self.checkpointing.running = Some((segment, job));
        failpoint!("checkpoint.begun");
        Ok(())
    }

    /// Begins a journal segment with what it must say again.
    fn rotate(&mut self) -> Result<SegmentNo, JournalError> {
        debug_assert_eq!(self.inode_count_change, 0, "the batch is sealed");
        let counts = [What::Inodes(self.inode_count), What::Map(self.map.encode_to_vec().into())];
        let ids = self.ids.snapshot();
        let Shard { journal, sessions, votes, ledger, .. } = self;
        let prepared = votes.all().cloned();
        let all = counts
            .into_iter()
            .chain(ids)
            .chain(sessions.snapshot().map(What::Result))
            .chain(prepared.map(|part| What::Prepared(Box::new(eager::journalled(part)))))
            .chain(ledger.decisions.values().cloned().map(What::Decision));
        journal.rotate_in_pieces(snapshot::pieces(all))
    }

    fn finish_checkpoint(&mut self, wait: bool) -> io::Result<()> {
        let done = |(_, job): &mut (u64, Job<_>)| wait || job.is_finished();
        let Some((segment, job)) = self.checkpointing.running.take_if(done) else {
            return Ok(());
        };
        let result = job.join().map_err(|_| io::Error::other("the checkpoint panicked"))?;
        match self.db.checkpoint_finish(result) {
            // The rows stay in memory and in the journal, and nothing that counts was written.
            Err(TableError::Io(error)) if is_full(&error) => {
                self.put_off(&error);
                return Ok(());
            }
            finished => finished.map_err(io::Error::other)?,
        }
        failpoint!("checkpoint.written");
        if let Err(e) = self.journal.trim(segment) {
            // A segment too many is read again at the next start; nothing is lost.
            tracing::warn!("cannot trim the journal: {e}");
        }
        Ok(())
    }
}
