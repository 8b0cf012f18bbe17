//! Checkpoints: changed rows go to the table, and the journal is trimmed. What lives only in
//! memory and journal (sessions, prepared transactions, decisions) is written again as the first
//! record of the next journal segment.

use std::io;

use prost::Message;
use saker_engine::TableError;
use saker_runtime::failpoint;
use saker_runtime::thread::Job;
use saker_types::change::{Change, Record, What};

use crate::namespace::eager;
use crate::shard::Shard;

/// Journal bytes, in overlay limits, after which a checkpoint is due although few rows changed
/// (but those often): a restart must not read for long.
const JOURNAL_LIMITS: u64 = 4;
/// Overlay bytes, in limits, at which requests wait for the checkpoint under way: memory is
/// bounded.
const OVERLAY_LIMITS: u64 = 2;

/// The checkpoint under way, if any.
#[derive(Default)]
pub struct Checkpointing {
    running: Option<(u64, Job<Result<(), TableError>>)>,
    /// Bytes with which the current journal segment began: the next checkpoint would not save them.
    snapshot_bytes: u64,
}

impl Checkpointing {
    /// Is one under way?
    pub fn running(&self) -> bool {
        self.running.is_some()
    }
}

impl Shard {
    /// Begins a checkpoint when enough has changed, and ends one that is done. Called after the
    /// batch is sealed: everything in the tables in memory is in the journal.
    pub(crate) fn checkpoint(&mut self) -> io::Result<()> {
        let limit = self.limits.overlay_bytes;
        let overlay = self.db.overlay_bytes() as u64;
        self.finish_checkpoint(overlay >= limit * OVERLAY_LIMITS)?;
        let journal = self.journal.segment_bytes() - self.checkpointing.snapshot_bytes;
        let due = overlay >= limit || journal >= limit * JOURNAL_LIMITS;
        if due && !self.checkpointing.running() {
            self.begin_checkpoint()?;
        }
        Ok(())
    }

    fn begin_checkpoint(&mut self) -> io::Result<()> {
        let snapshot = self.snapshot().encode_to_vec();
        let segment = self.journal.rotate(&snapshot).map_err(io::Error::other)?;
        self.checkpointing.snapshot_bytes = self.journal.segment_bytes();
        let checkpoint = self.db.checkpoint_begin(segment);
        let job = Job::start("checkpoint", move || checkpoint.run())?;
        self.checkpointing.running = Some((segment, job));
        failpoint!("checkpoint.begun");
        Ok(())
    }

    fn finish_checkpoint(&mut self, wait: bool) -> io::Result<()> {
        let done = |(_, job): &mut (u64, Job<_>)| wait || job.is_finished();
        let Some((segment, job)) = self.checkpointing.running.take_if(done) else {
            return Ok(());
        };
        let result = job.join().map_err(|_| io::Error::other("the checkpoint panicked"))?;
        self.db.checkpoint_finish(result).map_err(io::Error::other)?;
        failpoint!("checkpoint.written");
        if let Err(e) = self.journal.trim(segment) {
            // A segment too many is read again at the next start; nothing is lost.
            tracing::warn!("cannot trim the journal: {e}");
        }
        Ok(())
    }

    /// What the journal must say again.
    fn snapshot(&self) -> Record {
        debug_assert_eq!(self.inode_count_change, 0, "the batch is sealed");
        let mut all = vec![
            What::IdsReserved(self.reserved_ids()),
            What::Inodes(self.inode_count),
            What::Map(self.map.encode_to_vec().into()),
        ];
        all.extend(self.sessions.snapshot().into_iter().map(What::Result));
        let prepared = self.prepared.values().flat_map(|p| p.parts.iter().cloned());
        all.extend(prepared.map(|part| What::Prepared(Box::new(eager::journalled(part)))));
        all.extend(self.ledger.decisions.values().cloned().map(What::Decision));
        Record { changes: all.into_iter().map(|what| Change { what: Some(what) }).collect() }
    }
}
