//! rename of a directory: one row moves, whatever is below it. One at a time in the cluster, so
//! that the chain of directories above the target cannot change while it is checked for a cycle.

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::inode::{Inode, Locator};
use saker_types::wire::{Dentry, FetchReq, Intent, Op, PrepareReq, RenameReply, RenameReq, Vote};
use saker_types::{Access, Errno, Error, InodeId, NodeId, ROOT, access, error::SECOND_PATH};

use super::invalidate;
use crate::state::Handle;

const NOREPLACE: u32 = 1;
/// How long the owner of a directory above the target may take to confirm it.
const FETCH_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Moves a directory.
pub(crate) async fn rename(h: &Handle, msg: &RenameReq) -> Result<Bytes, Error> {
    if msg.flags & !NOREPLACE != 0 {
        return Err(Errno::EINVAL.into());
    }
    let Some(name) = msg.to.path.last() else { return Err(Errno::EINVAL.into()) };
    if msg.from.path.is_empty() {
        return Err(Errno::EBUSY.into());
    }
    let turn = h.state().rename_turn();
    if let Some(turn) = turn {
        // Canceled only when the coordinator stops.
        let _ = turn.await;
    }
    let result = rename_alone(h, msg, name).await;
    h.state().rename_done();
    result
}

async fn rename_alone(h: &Handle, msg: &RenameReq, name: &Bytes) -> Result<Bytes, Error> {
    check_chain(h, &msg.to_chain).await?;
    failpoint!("dir_rename.chain_checked");
    let parent = msg.to_chain.last().map_or(ROOT, |loc| loc.id);
    if msg.to.path.len() == 1 && msg.to.anchor.id != parent {
        return Err(stale());
    }
    let target = Locator { pid: parent, name: name.clone(), id: 0, home_slot: None };
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let take = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.from.clone(),
        intent: Intent::TakeDir.into(),
        moves_to: Some(target),
        ..PrepareReq::default()
    };
    let taken = txn.prepare(take).await?;
    failpoint!("dir_rename.taken");
    let row = taken.row.clone().unwrap_or_default();
    if let Err(e) = check_move(msg, &taken, &row, parent) {
        txn.abort();
        return Err(e);
    }
    let insert = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.to.clone(),
        intent: Intent::Insert.into(),
        row: Some(moved(row, h.hub.wall_ns())),
        no_replace: msg.flags & NOREPLACE != 0,
        ..PrepareReq::default()
    };
    let vote = txn.prepare(insert).await.map_err(second)?;
    failpoint!("dir_rename.inserted");
    let reply = RenameReply { loc: vote.loc.clone() };
    if vote.same {
        txn.abort();
        if msg.flags & NOREPLACE != 0 {
            return Err(Errno::EEXIST.into());
        }
        return Ok(reply.encode_to_vec().into());
    }
    if vote.loc.pid != parent {
        txn.abort();
        return Err(stale());
    }
    let replaced = vote.row.as_ref().map_or(0, |row| row.attr.id);
    if replaced != 0 && replaced == taken.loc.pid {
        // What moves is in it; locked, it would only make the emptiness undecided.
        txn.abort();
        return Err(Errno::ENOTEMPTY.into());
    }
    if let Err(e) = invalidate(h, &[&taken.loc, &vote.loc], replaced).await {
        txn.abort();
        return Err(e);
    }
    failpoint!("dir_rename.invalidated");
    txn.commit(|state| {
        if replaced != 0 {
            state.removed(replaced);
        }
        Ok(reply.encode_to_vec().into())
    })
}

/// The directories from the root to the new parent are still what the client saw.
async fn check_chain(h: &Handle, chain: &[Locator]) -> Result<(), Error> {
    let mut above: InodeId = ROOT;
    for loc in chain {
        if loc.pid != above || loc.home_slot.is_some() {
            return Err(stale());
        }
        above = loc.id;
    }
    let calls = chain.iter().map(|loc| {
        let owner = NodeId::Shard(h.state().map.shard_of_name(&loc.name));
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
    Ok(())
}

/// rename(2): not into itself; out of a parent only with write permission on the directory,
/// whose `..` changes.
fn check_move(msg: &RenameReq, taken: &Vote, row: &Inode, parent: InodeId) -> Result<(), Error> {
    let a = &row.attr;
    if msg.to_chain.iter().any(|loc| loc.id == a.id) {
        return Err(Errno::EINVAL.into());
    }
    if taken.loc.pid != parent {
        access::check(a.mode, a.uid, a.gid, &msg.ctx.cred, Access::W)?;
    }
    Ok(())
}

fn moved(mut row: Inode, now_ns: i64) -> Inode {
    row.attr.ctime_ns = now_ns.max(row.attr.ctime_ns);
    row
}

/// The client walked a path that somebody changed meanwhile: it must walk again.
fn stale() -> Error {
    Error::new(Errno::ESTALE).with_text("the path to the new parent has changed")
}

fn second(e: Error) -> Error {
    Error { component: e.component | SECOND_PATH, ..e }
}
