//! rmdir.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::wire::{Intent, PrepareReq, RemoveReq, Removed};
use saker_types::{Errno, Error};

use super::{ChangeStop, Keepers, invalidate, when_let_go};
use crate::state::StateHandle;

/// Removes an empty directory.
pub(crate) async fn rmdir(h: &StateHandle, msg: &RemoveReq) -> Result<Bytes, Error> {
    if msg.at.path.is_empty() {
        return Err(Errno::EBUSY.into());
    }
    when_let_go(h, &msg.ctx, async || rmdir_once(h, msg).await).await
}

async fn rmdir_once(h: &StateHandle, msg: &RemoveReq) -> Result<Bytes, ChangeStop> {
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.at.clone(),
        intent: Intent::RemoveDir.into(),
        ..PrepareReq::default()
    };
    let vote = txn.prepare(request).await?;
    failpoint!("rmdir.prepared");
    if let Err(stop) = invalidate(h, &[&vote.loc], vote.loc.id, Keepers::LetGo).await {
        txn.abort();
        return Err(stop);
    }
    failpoint!("rmdir.invalidated");
    let removed = Removed { inode: vote.loc.id };
    Ok(txn.commit(|_| Ok(removed.encode_to_vec().into()))?)
}
