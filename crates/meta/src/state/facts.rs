//! What a shard's records say besides rows.

use std::collections::BTreeMap;

use bytes::Bytes;
use saker_engine::sessions::Sessions;
use saker_rpc::node::ReplyTo;
use saker_types::change::{Decision, Prepared, What};
use saker_types::{NodeId, TxnId};

/// What a shard's records say besides rows.
#[derive(Default)]
pub struct Facts {
    /// Sessions and their results.
    pub sessions: Sessions<ReplyTo>,
    /// Votes without an outcome.
    pub prepared: BTreeMap<TxnId, Vec<Prepared>>,
    /// Decisions not acknowledged by all.
    pub decisions: BTreeMap<u64, Decision>,
    /// Ids below may have been given out.
    pub reserved_ids: u64,
    /// Of these, the coordinator knows of ids below.
    pub told_ids: u64,
    /// Inodes here.
    pub inode_count: i64,
    /// The newest map in a record.
    pub map: Option<Bytes>,
}

impl Facts {
    /// A record said this.
    pub(crate) fn apply(&mut self, fact: What) {
        match fact {
            What::Result(result) => self.sessions.restore(result),
            What::SessionOpen(session) => {
                self.sessions.open(session);
            }
            What::SessionClose(session) => self.sessions.close(session),
            What::Prepared(part) => {
                if let Some(driver) = NodeId::from_u32(part.driver) {
                    let txn = TxnId { driver, number: part.number };
                    self.prepared.entry(txn).or_default().push(*part);
                }
            }
            What::PreparedEnd(end) => {
                if let Some(driver) = NodeId::from_u32(end.driver) {
                    self.prepared.remove(&TxnId { driver, number: end.number });
                }
            }
            What::Decision(decision) => {
                self.decisions.insert(decision.number, decision);
            }
            What::DecisionEnd(number) => {
                self.decisions.remove(&number);
            }
            What::IdsReserved(ids) => self.reserved_ids = self.reserved_ids.max(ids),
            What::IdsTold(ids) => self.told_ids = self.told_ids.max(ids),
            What::Inodes(by) => self.inode_count += by,
            What::Map(map) => self.map = Some(map),
            // The engine's, and the coordinator's.
            What::Put(_) | What::Delete(_) | What::Joined(_) | What::Marked(_) => {}
            What::Policy(_) | What::PolicyEnd(_) => {}
        }
    }
}
