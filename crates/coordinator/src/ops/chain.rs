//! The directories above a name. Renames of directories go one at a time in the cluster, so that a
//! chain cannot change once it was found right, and no cycle can be made by two of them.

use futures_util::future::join_all;
use saker_types::inode::{Inode, Locator};
use saker_types::policy::PolicyId;
use saker_types::wire::{At, Dentry, FetchReq, Op, RenameReq, rename_flags};
use saker_types::{Access, Errno, Error, InodeId, NodeId, check_name};

use crate::state::StateHandle;

/// How long the owner of a directory above the target may take to confirm it.
const FETCH_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Waits for the turn to rename directories; [`crate::state::CoordinatorState::rename_done`] ends it.
pub(super) async fn turn(h: &StateHandle) {
    let turn = h.state().rename_turn();
    if let Some(turn) = turn {
        // Canceled only when the coordinator stops.
        let _ = turn.await;
    }
}

/// The parents of both names, if none of the directories above them can be what moves, or if they are
/// what the client saw ([`check`]).
pub(super) async fn parents(h: &StateHandle, msg: &RenameReq) -> Result<[InodeId; 2], Error> {
    let top = top_of(h, msg);
    // Two names in one directory, wherever that is: its place is nobody's business.
    if let [_] = &msg.from.path[..]
        && let [_] = &msg.to.path[..]
        && msg.from.anchor.id == msg.to.anchor.id
    {
        msg.to.path.iter().try_for_each(|name| check_name(name))?;
        return Ok([msg.from.anchor.id; 2]);
    }
    let from = match msg.flags {
        rename_flags::EXCHANGE => check(h, &msg.from_chain, &msg.from, top).await?,
        // It is found when the row is taken.
        _ => 0,
    };
    Ok([from, check(h, &msg.to_chain, &msg.to, top).await?])
}

/// The directory of the decoupled subtree that both names are in, if its holder asks. Nothing that is in such
/// a subtree leaves it: what moves in it is below that directory, so that what is above it does not matter.
fn top_of(h: &StateHandle, msg: &RenameReq) -> Option<InodeId> {
    let (policy, ctx) = (msg.to.anchor.policy, &msg.ctx);
    let is_within = PolicyId(policy).is_decoupled() && msg.from.anchor.policy == policy;
    let state = h.state();
    if !is_within || state.policies.check_holder(policy, ctx.hold, ctx.holder).is_err() {
        return None;
    }
    state.policies.get(policy).ok()?.root.as_ref().map(|loc| loc.id)
}

/// The directories from the root, or from `top`, to the parent of `at` are still what the client saw, and what
/// its names lead through: whoever resolves them while what moves is locked does not come to that. Gives
/// the parent.
async fn check(
    h: &StateHandle,
    chain: &[Locator],
    at: &At,
    top: Option<InodeId>,
) -> Result<InodeId, Error> {
    at.path.iter().try_for_each(|name| check_name(name))?;
    let root = h.state().root;
    // What is above the root of a private subtree is nobody's business here.
    let begin = chain.iter().position(|loc| loc.id == root).map(|at| at + 1);
    let chain = &chain[begin.unwrap_or(0)..];
    let mut above = match chain.first() {
        Some(first) if begin.is_none() && top == Some(first.id) => first.pid,
        _ => root,
    };
    for loc in chain {
        if loc.pid != above || loc.home_slot.is_some() {
            return Err(stale());
        }
        above = loc.id;
    }
    if !leads_along(root, at, chain) {
        return Err(stale());
    }
    let calls = chain.iter().map(|loc| {
        let owner = NodeId::Shard(h.state().map.owner(loc.pid, &loc.name));
        let (pid, name) = (loc.pid, loc.name.clone());
        async move {
            // Never waits for a prepared row: the turn is held (rule 11).
            let request = FetchReq { pid, name, nowait: true, anchor_id: 0 };
            h.hub.ask::<Dentry>(owner, Op::Fetch, 0, &request, FETCH_TIMEOUT).await
        }
    });
    for (loc, dentry) in chain.iter().zip(join_all(calls).await) {
        if dentry?.id != loc.id {
            return Err(stale());
        }
    }
    Ok(above)
}

/// Do the names of `at` above its last one lead along the end of the chain?
fn leads_along(root: InodeId, at: &At, chain: &[Locator]) -> bool {
    let start = match at.anchor.id {
        id if id == root => Some(0),
        id => chain.iter().position(|loc| loc.id == id).map(|found| found + 1),
    };
    let names = at.path.split_last().map_or(&[][..], |(_, names)| names);
    start.is_some_and(|start| chain[start..].iter().map(|loc| &loc.name).eq(names))
}

/// May what was found in directory `old` go to `new`, the end of `chain`? A directory not into itself,
/// and into another directory only with write permission on it: its `..` changes (rename(2)).
pub(super) fn check_move(
    msg: &RenameReq,
    row: &Inode,
    [old, new]: [InodeId; 2],
    chain: &[Locator],
) -> Result<(), Error> {
    let a = &row.attr;
    if !a.is_dir() {
        return Ok(());
    }
    if chain.iter().any(|loc| loc.id == a.id) {
        return Err(Errno::EINVAL.into());
    }
    if new != old {
        row.check(&msg.ctx.cred, Access::W)?;
    }
    Ok(())
}

/// The client walked a path that somebody changed meanwhile: it must walk again.
pub(super) fn stale() -> Error {
    Error::new(Errno::ESTALE).with_text("the path to the new parent has changed")
}
