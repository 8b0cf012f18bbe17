//! What the holder of a subtree has staged becomes part of the namespace, at once for all
//! (docs/decisions/0063; Cudele section 3, "Volatile Apply").
//!
//! While the policy's state is in doubt, everybody waits who comes to its subtree. Meanwhile all shards
//! say whether their rows still fit; the decision is one record here; and all shards put their rows,
//! told again and again until each has answered. Then the next epoch begins.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use saker_types::wire::{
    ApplyMergeReq, CheckMergeReply, CheckMergeReq, Empty, InvalidateReq, MergeConflict, MergeReply,
    MergeReq, Merging, Op,
};
use saker_types::{Class, Errno, Error, NodeId, limits};

use super::policy::PolicyChange;
use crate::state::StateHandle;

/// How long a shard may look through its rows.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after a shard has said that it cannot put its rows.
const APPLY_PAUSE: Duration = Duration::from_secs(1);

/// Merges what is staged, if nothing conflicts.
pub(crate) async fn merge(h: &StateHandle, msg: &MergeReq) -> Result<Bytes, Error> {
    let MergeReq { policy, epoch, attempt, release, .. } = *msg;
    if let Some(next) = h.state().policies.merged(policy, epoch, attempt) {
        return Ok(reply(Vec::new(), next));
    }
    let change = PolicyChange::begin(h, policy)?;
    h.state().policies.check_holder(policy, epoch, msg.ctx.holder)?;
    let requests = check_requests(h, msg)?;
    change.invalidate(InvalidateReq::default()).await?;
    let conflicts = check(h, &requests).await?;
    if msg.dry_run || !conflicts.is_empty() {
        return Ok(reply(conflicts, epoch));
    }
    let merging = Merging { epoch, attempt, release, time_ns: h.hub.wall_ns() };
    let record = h.state().policies.with_merging(policy, merging)?;
    h.state().note_policy(record);
    let next = complete(h, policy, merging).await?;
    Ok(reply(Vec::new(), next))
}

fn reply(conflicts: Vec<MergeConflict>, epoch: u64) -> Bytes {
    MergeReply { conflicts, epoch }.encode_to_vec().into()
}

/// What each shard is asked. All are: who comes to a directory of the merge by a handle from before the
/// policy waits at any of them.
fn check_requests(h: &StateHandle, msg: &MergeReq) -> Result<Vec<CheckMergeReq>, Error> {
    let shards = h.state().map.shards.len();
    if msg.shards.iter().any(|of| of.shard as usize >= shards) {
        return Err(Error::new(Errno::EINVAL).with_text("the cluster has no such shard"));
    }
    if msg.dirs > limits::MERGE_DIRS_MAX as u64 {
        return Err(Error::new(Errno::E2BIG).with_text("the merge changes too many directories"));
    }
    let MergeReq { policy, epoch, attempt, dirs, dry_run, .. } = *msg;
    let rows_of = |no| -> u64 {
        msg.shards.iter().filter(|of| of.shard as usize == no).map(|of| of.rows).sum()
    };
    let request = |no| {
        let rows = rows_of(no);
        CheckMergeReq { policy, epoch, attempt, rows, dirs, dry_run }
    };
    Ok((0..shards).map(request).collect())
}

/// Asks all shards whether their rows fit. One that does not answer is not waited for: the subtree's
/// users are waiting, and nothing is decided yet.
async fn check(h: &StateHandle, requests: &[CheckMergeReq]) -> Result<Vec<MergeConflict>, Error> {
    let calls = requests.iter().enumerate().map(|(no, request)| {
        let to = NodeId::Shard(no as u16);
        h.hub.ask::<CheckMergeReply>(to, Op::CheckMerge, 0, request, CHECK_TIMEOUT)
    });
    let (mut conflicts, mut refused) = (Vec::new(), None::<Error>);
    for answer in join_all(calls).await {
        match answer {
            Ok(answer) => conflicts.extend(answer.conflicts),
            // What no repetition helps is told first.
            Err(error) if refused.as_ref().is_none_or(|refused| refused.is(Class::Retry)) => {
                refused = Some(error);
            }
            Err(_) => {}
        }
    }
    if let Some(error) = refused {
        return Err(error);
    }
    conflicts.truncate(limits::MERGE_CONFLICTS_MAX);
    Ok(conflicts)
}

/// All shards put their rows; then the next epoch begins, which is returned (0: nobody holds the subtree).
async fn complete(h: &StateHandle, policy: u64, merging: Merging) -> Result<u64, Error> {
    let Merging { epoch, attempt, time_ns, .. } = merging;
    let request = ApplyMergeReq { policy, epoch, attempt, time_ns };
    let shards = h.state().map.shards.len() as u16;
    join_all((0..shards).map(|no| apply_at(h, NodeId::Shard(no), &request))).await;
    let (record, next) = h.state().policies.with_merged(policy)?;
    h.state().note_policy(record);
    Ok(next)
}

/// Returns when the shard has put its rows, whatever happens to it.
async fn apply_at(h: &StateHandle, to: NodeId, request: &ApplyMergeReq) {
    loop {
        let answer = h.hub.ask_until::<Empty>(to, Op::ApplyMerge, 0, request, Bytes::new()).await;
        let Err(error) = answer else { return };
        tracing::error!("{to} cannot complete a merge under policy {:#x}: {error}", request.policy);
        h.hub.sleep(APPLY_PAUSE).await;
    }
}

/// After a start: what was decided is completed. Until then nobody is told these policies' states.
pub(crate) fn resume_merges(h: &StateHandle) {
    let merging: Vec<_> = h.state().policies.merging().collect();
    for (policy, merging) in merging {
        let resumed = h.clone();
        h.hub.spawn(async move {
            // It runs before any request does.
            let Ok(_change) = PolicyChange::begin(&resumed, policy) else { return };
            if let Err(error) = complete(&resumed, policy, merging).await {
                tracing::error!("a merge under policy {policy:#x}: {error}");
            }
        });
    }
}

#[cfg(test)]
mod tests;
