//! chmod and chown of a directory.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::Error;
use saker_types::wire::{Entry, Intent, PrepareReq, SetattrReq, Vote};

use super::{ChangeStop, Keepers, invalidate, when_let_go};
use crate::state::StateHandle;

/// Changes mode or owner of a directory. The answer's times and link count are the row's own.
pub(crate) async fn setattr(h: &StateHandle, msg: &SetattrReq) -> Result<Bytes, Error> {
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.at.clone(),
        setattr: Some(Box::new(msg.clone())),
        ..PrepareReq::default()
    };
    let answer = |vote: Vote| {
        let mut attr = vote.row.unwrap_or_default().attr;
        attr.nlink = 2;
        Entry { attr, loc: vote.loc, ..Entry::default() }.encode_to_vec().into()
    };
    set_directory(h, request, answer).await
}

/// Changes what replicas hold of a directory.
pub(super) async fn set_directory(
    h: &StateHandle,
    request: PrepareReq,
    answer: impl Fn(Vote) -> Bytes,
) -> Result<Bytes, Error> {
    let request = PrepareReq { intent: Intent::SetDir.into(), ..request };
    when_let_go(h, &request.ctx, async || set_once(h, request.clone(), &answer).await).await
}

async fn set_once(
    h: &StateHandle,
    request: PrepareReq,
    answer: impl Fn(Vote) -> Bytes,
) -> Result<Bytes, ChangeStop> {
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let vote = txn.prepare(request).await?;
    failpoint!("dir_setattr.prepared");
    let keepers = if vote.closes { Keepers::LetGo } else { Keepers::Stay };
    if let Err(stop) = invalidate(h, &[&vote.loc], 0, keepers).await {
        txn.abort();
        return Err(stop);
    }
    failpoint!("dir_setattr.invalidated");
    Ok(txn.commit(|_| Ok(answer(vote)))?)
}
