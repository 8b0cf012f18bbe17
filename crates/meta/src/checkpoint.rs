//! The end of a step, when the engine does what it must. What lives in memory besides rows (sessions,
//! prepared transactions, decisions, counts) it may ask for, to say it again and drop old records.

use prost::Message;
use saker_engine::{Engine, EngineError};
use saker_types::change::What;

use crate::namespace::eager;
use crate::shard::Shard;

impl Shard {
    /// Called after the batch is sealed: all that was changed is in a record.
    pub(crate) fn end_step(&mut self) -> Result<(), EngineError> {
        debug_assert_eq!(self.inode_count_change, 0, "the batch is sealed");
        let now = self.hub.now();
        let Shard { engine, inode_count, map, ids, sessions, votes, ledger, .. } = self;
        engine.end_step(now, || {
            let counts = [What::Inodes(*inode_count), What::Map(map.encode_to_vec().into())];
            let prepared = votes.all().cloned();
            counts
                .into_iter()
                .chain(ids.snapshot())
                .chain(sessions.snapshot().map(What::Result))
                .chain(prepared.map(|part| What::Prepared(Box::new(eager::journalled(part)))))
                .chain(ledger.decisions.values().cloned().map(What::Decision))
        })
    }
}
