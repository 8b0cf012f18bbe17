//! Checkpoints: changed rows go to the table, and the journal is trimmed. What lives only in
//! memory and journal (sessions, prepared transactions, decisions) is written again as the first
//! record of the next journal segment.

use std::sync::{Arc, Mutex, PoisonError};

use prost::Message;
use saker_engine::TableError;
use saker_types::change::{Change, Record, What};

use crate::shard::Shard;

type Outcome = Arc<Mutex<Option<Result<(), TableError>>>>;

/// The checkpoint under way, if any.
#[derive(Default)]
pub struct Checkpointing {
    running: Option<(u64, Outcome)>,
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
    pub(crate) fn checkpoint(&mut self) -> std::io::Result<()> {
        self.finish_checkpoint()?;
        if !self.checkpointing.running()
            && self.db.overlay_bytes() as u64 >= self.limits.overlay_bytes
        {
            self.begin_checkpoint()?;
        }
        Ok(())
    }

    fn begin_checkpoint(&mut self) -> std::io::Result<()> {
        let snapshot = self.snapshot().encode_to_vec();
        let segment = self.journal.rotate(&snapshot).map_err(std::io::Error::other)?;
        let checkpoint = self.db.checkpoint_begin(segment);
        let outcome = Outcome::default();
        let slot = outcome.clone();
        saker_runtime::thread::spawn("checkpoint", move || {
            let result = checkpoint.run();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        })?;
        self.checkpointing.running = Some((segment, outcome));
        Ok(())
    }

    fn finish_checkpoint(&mut self) -> std::io::Result<()> {
        let Some((segment, outcome)) = &self.checkpointing.running else { return Ok(()) };
        let result = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(result) = result else { return Ok(()) };
        let segment = *segment;
        self.checkpointing.running = None;
        self.db.checkpoint_finish(result).map_err(std::io::Error::other)?;
        if let Err(e) = self.journal.trim(segment) {
            // A segment too many is read again at the next start; nothing is lost.
            tracing::warn!("cannot trim the journal: {e}");
        }
        Ok(())
    }

    /// What the journal must say again.
    fn snapshot(&self) -> Record {
        let mut all = vec![
            What::IdsReserved(self.reserved_ids()),
            What::Inodes(self.inode_count),
            What::Map(self.map.encode_to_vec().into()),
        ];
        all.extend(self.sessions.snapshot().into_iter().map(What::Result));
        let prepared = self.prepared.values().flat_map(|p| p.parts.iter().cloned());
        all.extend(prepared.map(What::Prepared));
        all.extend(self.ledger.decisions.values().cloned().map(What::Decision));
        Record { changes: all.into_iter().map(|what| Change { what: Some(what) }).collect() }
    }
}
