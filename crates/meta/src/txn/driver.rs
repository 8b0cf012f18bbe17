//! A shard as the driver of renames and links of files.

use std::sync::Arc;

use bytes::Bytes;
use saker_rpc::hub::Hub;
use saker_rpc::txn::{Driver, Ledger};
use saker_types::change::What;
use saker_types::{ClusterMap, Error, Key, NodeId, TxnId};

use crate::request::{Attempt, Stop, Wait};
use crate::shard::Shard;

/// A transaction that a shard drives.
pub(crate) type ShardTransaction = saker_rpc::txn::Transaction<Shard>;

impl Driver for Shard {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn node(&self) -> NodeId {
        NodeId::Shard(self.no)
    }

    fn map(&self) -> &Arc<ClusterMap> {
        &self.map
    }

    fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    fn log(&mut self, what: What) {
        self.log_change(what);
    }

    fn new_number(&mut self) -> Result<u64, Error> {
        self.new_id()
    }

    fn released(&mut self, txn: TxnId, own: Option<&Key>) {
        if let Some(key) = own {
            self.row_locks.unlock_entry(key);
        }
        self.wake(&Wait::Txn(txn));
    }
}

/// What a commit's own changes end in.
pub(crate) fn applied(step: Attempt<Bytes>) -> Result<Bytes, Error> {
    step.map_err(|stop| match stop {
        Stop::Fail(e) => e,
        Stop::Wait(_) | Stop::Task(_) => Error::retry("the transaction could not be applied"),
    })
}
