//! Who holds a subtree. Shards forget what they know of it before it changes, as they forget a directory.

use bytes::Bytes;
use prost::Message;
use saker_types::policy::{self, PolicyId};
use saker_types::wire::{
    Empty, HoldReply, HoldReq, IdRange, InvalidateReq, ProvisionReq, ReleaseReq,
};
use saker_types::{Errno, Error, limits};

use super::policy::PolicyChange;
use crate::state::StateHandle;

/// A client begins to hold a subtree; if it does already, it goes on.
pub(crate) async fn hold(h: &StateHandle, msg: &HoldReq) -> Result<Bytes, Error> {
    let HoldReq { policy, holder, ref who, .. } = *msg;
    if holder == 0 || !PolicyId(policy).needs_hold() {
        return Err(Errno::EINVAL.into());
    }
    let change = PolicyChange::begin(h, policy)?;
    let force = msg.force && msg.ctx.cred.uid == 0;
    let now = h.state().lease_now();
    let record = h.state().policies.with_hold(policy, holder, who, now, force)?;
    if h.state().policies.get(policy)? != &record {
        change.invalidate(InvalidateReq::default()).await?;
        h.state().note_policy(record.clone());
    }
    let now = h.state().lease_now();
    h.state().policies.renew(holder, &[policy], now);
    let lease_ms = limits::HOLD_LEASE.as_millis() as u32;
    Ok(HoldReply { policy: record, lease_ms }.encode_to_vec().into())
}

/// A hold ends without a merge: by its holder, or, if that is taken for dead, by anybody.
pub(crate) async fn release(h: &StateHandle, msg: &ReleaseReq) -> Result<Bytes, Error> {
    let policy = msg.policy;
    let change = PolicyChange::begin(h, policy)?;
    may_release(h, msg)?;
    let record = h.state().policies.with_next_epoch(policy, true)?;
    change.invalidate(InvalidateReq::default()).await?;
    h.state().note_policy(record);
    Ok(Empty {}.encode_to_vec().into())
}

fn may_release(h: &StateHandle, msg: &ReleaseReq) -> Result<(), Error> {
    let (s, policy) = (h.state(), msg.policy);
    match s.policies.get(policy)?.hold {
        None => Err(Error::new(Errno::ESTALE).with_text("nobody holds the subtree")),
        Some(_) if msg.epoch != 0 => {
            let hold = s.policies.check_epoch(policy, msg.epoch)?;
            match hold.holder == msg.ctx.holder {
                true => Ok(()),
                false => {
                    Err(Error::new(Errno::EPERM).with_text("another client holds the subtree"))
                }
            }
        }
        Some(_) if s.policies.has_lapsed(policy, s.lease_now()) => Ok(()),
        Some(_) if msg.force && msg.ctx.cred.uid == 0 => Ok(()),
        Some(_) => s.policies.check_not_held(policy),
    }
}

/// A holder is given inode numbers.
pub(crate) fn provision(h: &StateHandle, msg: &ProvisionReq) -> Result<IdRange, Error> {
    let ProvisionReq { policy, holder, count } = *msg;
    if !(1..=policy::ALLOCATED_INODES_MAX).contains(&count) {
        return Err(Errno::EINVAL.into());
    }
    let mut s = h.state();
    // Refuses others before it spends anything.
    s.policies.with_ids(policy, holder, IdRange::default())?;
    let ids = s.new_ids(count)?;
    let record = s.policies.with_ids(policy, holder, ids)?;
    s.note_policy(record);
    Ok(ids)
}
