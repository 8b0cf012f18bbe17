//! Eager replication: mkdir as a transaction of all shards, which remember the new directory at
//! once. What lazy replication is measured against (FalconFS §6.7, "no inv").

use bytes::Bytes;
use saker_rpc::txn;
use saker_types::change::Prepared;
use saker_types::wire::{At, Ctx, Entry, EntryKey, Intent, PrepareReq, Vote};
use saker_types::{Inode, Key, NodeId, TxnId};

use super::dir::ResolvedDir;
use super::resolve::dentry_of;
use crate::request::Attempt;
use crate::shard::{Shard, encoded};
use crate::txn::driver::{ShardTransaction, applied};
use crate::txn::participant::busy;

/// What the journal says of a prepared part: of a replica not what it is, for after a crash nobody
/// knows whether an invalidation has come since.
pub(crate) fn journalled(part: Prepared) -> Prepared {
    let is_replica = part.intent == Intent::Replica as i32;
    Prepared { row: part.row.filter(|_| !is_replica), ..part }
}

impl Shard {
    /// Makes a directory, whose name is free, together with the replicas of all other shards.
    pub(crate) fn make_everywhere(
        &mut self,
        ctx: &Ctx,
        key: Key,
        inode: Inode,
        reply: Entry,
    ) -> Attempt<Bytes> {
        let id = txn::begin(self)?;
        self.row_locks.lock_entry(&key, id);
        let request = PrepareReq {
            ctx: ctx.clone(),
            at: At::handle(reply.loc.clone()),
            intent: Intent::Replica.into(),
            row: Some(inode.clone()),
            ..PrepareReq::default()
        };
        let others = 0..self.map.shards.len() as u16;
        let others: Vec<_> = others.filter(|no| *no != self.no).map(NodeId::Shard).collect();
        Err(self.task(move |h| async move {
            let mut txn = ShardTransaction::new(h.rc(), id, Some(key.clone()));
            txn.prepare_at(&others, request).await?;
            txn.commit(|s| applied(s.insert_entry(&key, inode).map(|()| encoded(&reply))))
        }))
    }

    pub(crate) fn prepare_replica(&mut self, txn: TxnId, msg: &PrepareReq) -> Attempt<Vote> {
        let loc = &msg.at.anchor;
        if self.locked_by(&self.map.key(loc.pid, &loc.name)).is_some() {
            return Err(busy());
        }
        let part = Prepared {
            driver: txn.driver.to_u32(),
            number: txn.number,
            entry: Some(Shard::entry_key(loc.pid, &loc.name)),
            intent: Intent::Replica.into(),
            ..Prepared::default()
        };
        let part = Prepared { row: msg.row.clone(), ..part };
        self.vote_for(txn, journalled(part.clone()));
        self.restore_prepared(part);
        Ok(Vote { loc: loc.clone(), ..Vote::default() })
    }

    /// The directory is there. `row` is `None` where an invalidation came before the decision.
    pub(crate) fn replicate(&mut self, entry: &EntryKey, row: Option<&Inode>) {
        let dir = row.map(|row| ResolvedDir::of(&dentry_of(row)));
        // An ACL that cannot be read is an error where the directory is used.
        if let Some(Ok(Some(dir))) = dir {
            self.replica.insert(entry.pid, entry.name.clone(), dir);
        }
    }

    /// An entry becomes invalid: what is about to be remembered of it is not true any more.
    pub(crate) fn spoil_replicas(&mut self, entry: &EntryKey) {
        // Whoever has prepared it has locked it.
        let holder = self.locked_by(&self.map.key(entry.pid, &entry.name));
        if let Some(txn) = holder {
            self.votes.spoil_replica(txn, entry);
        }
    }
}
