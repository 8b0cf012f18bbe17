//! rename of a directory: one row moves, whatever is below it.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::inode::Locator;
use saker_types::wire::{Intent, PrepareReq, RenameReply, RenameReq, rename_flags};
use saker_types::{Errno, Error};

use super::{ChangeStop, Keepers, chain, exchange, invalidate, moved, still_wanted, when_let_go};
use crate::state::StateHandle;

/// Moves a directory, or exchanges what may be one.
pub(crate) async fn rename(h: &StateHandle, msg: &RenameReq) -> Result<Bytes, Error> {
    let Some(name) = msg.to.path.last() else { return Err(Errno::EINVAL.into()) };
    if msg.from.path.is_empty() {
        return Err(Errno::EBUSY.into());
    }
    let change = async || {
        chain::turn(h).await;
        let result = match (still_wanted(h, &msg.ctx), msg.flags) {
            (Err(error), _) => Err(error.into()),
            (_, 0 | rename_flags::NOREPLACE) => rename_alone(h, msg, name).await,
            (_, rename_flags::EXCHANGE) => exchange::exchange_alone(h, msg).await,
            _ => Err(Errno::EINVAL.into()),
        };
        h.state().rename_done();
        result
    };
    when_let_go(h, &msg.ctx, change).await
}

async fn rename_alone(h: &StateHandle, msg: &RenameReq, name: &Bytes) -> Result<Bytes, ChangeStop> {
    let [_, parent] = chain::parents(h, msg).await?;
    failpoint!("dir_rename.chain_checked");
    let no_replace = msg.flags & rename_flags::NOREPLACE != 0;
    let target = Locator::entry(parent, name.clone(), 0);
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
    chain::check_move(msg, &row, [taken.loc.pid, parent], &msg.to_chain)
        .map_err(|e| txn.refuse(e))?;
    let insert = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.to.clone(),
        intent: Intent::Insert.into(),
        row: Some(moved(row, h.hub.wall_ns())),
        no_replace,
        ..PrepareReq::default()
    };
    let vote = txn.prepare(insert).await.map_err(Error::about_second)?;
    failpoint!("dir_rename.inserted");
    let mut reply = RenameReply { loc: vote.loc.clone(), ..RenameReply::default() };
    if vote.same {
        txn.abort();
        if no_replace {
            return Err(Errno::EEXIST.into());
        }
        return Ok(reply.encode_to_vec().into());
    }
    if vote.loc.pid != parent {
        return Err(txn.refuse(chain::stale()).into());
    }
    let replaced = vote.row.as_ref().map_or(0, |row| row.attr.id);
    if replaced != 0 && replaced == taken.loc.pid {
        // What moves is in it; locked, it would only make the emptiness undecided.
        return Err(txn.refuse(Errno::ENOTEMPTY.into()).into());
    }
    reply.replaced = replaced;
    if let Err(stop) = invalidate(h, &[&taken.loc, &vote.loc], replaced, Keepers::LetGo).await {
        txn.abort();
        return Err(stop);
    }
    failpoint!("dir_rename.invalidated");
    Ok(txn.commit(|_| Ok(reply.encode_to_vec().into()))?)
}
