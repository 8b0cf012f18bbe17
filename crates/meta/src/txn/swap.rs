//! The participant's part in an exchange: a row comes in the place of the one that is there, which
//! goes where the other was.

use saker_types::change::Prepared;
use saker_types::wire::{Intent, PrepareReq, Vote};
use saker_types::{Errno, Error, Key, NodeId, TxnId};

use super::participant::{busy, entry_locator, no_wait, shown};
use crate::ops::rename::use_coordinator;
use crate::request::{Attempt, Rq};
use crate::rules::names::may_remove;
use crate::shard::Shard;

impl Shard {
    /// Half of an exchange.
    pub(super) fn prepare_swap(&mut self, rq: &Rq, txn: TxnId, msg: &PrepareReq) -> Attempt<Vote> {
        let Some(name) = msg.at.path.last() else { return self.complete_swap(txn, msg) };
        let cred = &msg.ctx.cred;
        let parent = no_wait(self.parent(rq, cred, &msg.at))?;
        let key = self.own_key(parent.dir.id, name)?;
        if self.locked_by(&key).is_some_and(|holder| holder != txn) {
            return Err(busy());
        }
        let Some(there) = self.entry(&key)? else {
            return Err(Error::at(Errno::ENOENT, msg.at.path.len() - 1).into());
        };
        let loc = entry_locator(&key, there.attr.id).under(parent.way.policy_of(&there));
        let is_same = msg.row.as_ref().is_some_and(|row| row.attr.id == there.attr.id);
        if is_same || self.locked_by(&key).is_some() {
            return Ok(Vote { loc, row: Some(shown(&there)), same: true, ..Vote::default() });
        }
        no_wait(self.not_busy(there.attr.id))?;
        let owner = self.owner_of(&there)?;
        let only_owner = may_remove(&parent.dir, owner, cred)?;
        if there.attr.is_dir() && txn.driver != NodeId::Coordinator {
            return Err(use_coordinator());
        }
        no_wait(self.not_frozen(parent.dir.id))?;
        self.vote_for(txn, swap(txn, &key, msg));
        Ok(Vote { loc, row: Some((*there).clone()), only_owner, ..Vote::default() })
    }

    /// The other row of an exchange is known by now: the entry is locked already.
    fn complete_swap(&mut self, txn: TxnId, msg: &PrepareReq) -> Attempt<Vote> {
        let anchor = &msg.at.anchor;
        let key = self.own_key(anchor.pid, &anchor.name)?;
        if self.locked_by(&key) != Some(txn) {
            return Err(Error::retry("the exchange was given up").into());
        }
        self.vote_for(txn, swap(txn, &key, msg));
        Ok(Vote { loc: anchor.clone(), ..Vote::default() })
    }
}

fn swap(txn: TxnId, key: &Key, msg: &PrepareReq) -> Prepared {
    Prepared {
        driver: txn.driver.to_u32(),
        number: txn.number,
        entry: Some(Shard::entry_key(key.pid, &key.name)),
        intent: Intent::Swap.into(),
        row: msg.row.clone(),
        moves_to: msg.moves_to.clone(),
        ..Prepared::default()
    }
}
