//! The policy of a directory (Cudele section 3.3). Replicas hold its number, as they hold the mode.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Driver, Transaction};
use saker_types::change::What;
use saker_types::inode::Locator;
use saker_types::policy::{Policy, PolicyId, Refused};
use saker_types::wire::{
    Intent, InvalidateReq, PolicyPair, PolicyReply, PrepareReq, SetPolicyReply, SetPolicyReq,
};
use saker_types::{Errno, Error, InodeId};

use super::broadcast;
use crate::state::{CoordinatorState, StateHandle, key_of};

/// A change of policies' states: begun by one at a time, and over when this is dropped.
pub(super) struct PolicyChange<'a> {
    h: &'a StateHandle,
    policies: Vec<u64>,
}

impl PolicyChange<'_> {
    /// Begins to change these.
    ///
    /// # Errors
    /// "Try again": somebody else changes one of them.
    pub(super) fn begin<'a>(
        h: &'a StateHandle,
        policies: &[u64],
    ) -> Result<PolicyChange<'a>, Error> {
        let mut change = PolicyChange { h, policies: Vec::new() };
        for policy in policies {
            h.state().policies.begin_change(*policy)?;
            change.policies.push(*policy);
        }
        Ok(change)
    }

    /// Shards forget the states, and entries, and do not learn new ones before this is over.
    pub(super) async fn invalidate(&self, request: InvalidateReq) -> Result<(), Error> {
        self.policies.iter().for_each(|policy| self.h.state().policies.doubt(*policy));
        let request = InvalidateReq { policies: self.policies.clone(), ..request };
        broadcast(self.h, &request).await.map(drop)
    }
}

impl Drop for PolicyChange<'_> {
    fn drop(&mut self) {
        self.policies.iter().for_each(|policy| self.h.state().policies.end_change(*policy));
    }
}

/// Gives a directory a policy, or takes it away.
pub(crate) async fn set_policy(h: &StateHandle, msg: &SetPolicyReq) -> Result<Bytes, Error> {
    let new = match read(msg)? {
        Some(policy) => {
            let id = PolicyId::new(h.state().new_number()?.max(1), &policy).0;
            PolicyReply { policy: id, pairs: pairs_of(&policy), ..PolicyReply::default() }
        }
        None => PolicyReply::default(),
    };
    set_once(h, msg, new).await
}

/// The policy that is asked for; `None` if there is to be none.
fn read(msg: &SetPolicyReq) -> Result<Option<Policy>, Error> {
    if msg.pairs.is_empty() {
        return Ok(None);
    }
    let pairs = msg.pairs.iter().map(|pair| (pair.key.as_str(), pair.value.as_str()));
    let refused = |why: Refused| Error::new(Errno::EINVAL).with_text(why.to_string());
    Policy::from_pairs(pairs).map(Some).map_err(refused)
}

fn pairs_of(policy: &Policy) -> Vec<PolicyPair> {
    let pairs = policy.pairs().into_iter();
    pairs.map(|(key, value)| PolicyPair { key: key.to_owned(), value }).collect()
}

async fn set_once(h: &StateHandle, msg: &SetPolicyReq, new: PolicyReply) -> Result<Bytes, Error> {
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.at.clone(),
        intent: Intent::SetDir.into(),
        policy: Some(new.policy),
        ..PrepareReq::default()
    };
    let vote = txn.prepare(request).await?;
    let old = vote.policy;
    let changing: Vec<u64> = (old != 0).then_some(old).into_iter().collect();
    let change = PolicyChange::begin(h, &changing).map_err(|error| txn.refuse(error))?;
    may_remove(h, old).map_err(|error| txn.refuse(error))?;
    let keys = vec![key_of(&vote.loc)];
    change.invalidate(InvalidateReq { keys, ..InvalidateReq::default() }).await?;
    let root = vote.loc.clone().under(new.policy);
    txn.commit(|state| {
        let number = new.policy;
        if let Ok(mut record) = state.policies.get(old).cloned() {
            record.successor = Some(number);
            state.note_policy(record);
        }
        if number != 0 {
            state.note_policy(PolicyReply { root: Some(root), ..new });
        }
        forget(state, state.policies.outlived(vote.loc.id));
        Ok(SetPolicyReply { policy: number }.encode_to_vec().into())
    })
}

/// A directory is about to be removed, or replaced: it must not be the root of what somebody holds.
pub(super) fn may_remove(h: &StateHandle, policy: u64) -> Result<(), Error> {
    h.state().policies.check_not_held(policy)
}

/// May what has this policy of its own move there (rule 9)? What has one takes it along.
pub(super) fn may_move(own: u64, from: &Locator, to: &Locator) -> bool {
    own != 0 || PolicyId(from.policy).lets_move_to(PolicyId(to.policy))
}

/// A directory is removed: so are its policies. For the commit of its transaction.
pub(super) fn removed(state: &mut CoordinatorState, root: InodeId) {
    forget(state, state.policies.of_root(root));
}

fn forget(state: &mut CoordinatorState, policies: Vec<u64>) {
    for policy in policies {
        state.policies.forget(policy);
        state.log(What::PolicyEnd(policy));
    }
}

/// A directory is now there. For the commit of its transaction.
pub(super) fn has_moved(state: &mut CoordinatorState, root: &Locator) {
    for record in state.policies.moved(root) {
        state.note_policy(record);
    }
}
