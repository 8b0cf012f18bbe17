//! chmod and chown of a directory.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::Error;
use saker_types::wire::{Entry, Intent, PrepareReq, SetattrReq};

use super::invalidate;
use crate::state::Handle;

/// Changes mode or owner of a directory. The answer's times and link count are the row's own.
pub(crate) async fn setattr(h: &Handle, msg: &SetattrReq) -> Result<Bytes, Error> {
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.at.clone(),
        intent: Intent::SetDir.into(),
        setattr: Some(Box::new(msg.clone())),
        ..PrepareReq::default()
    };
    let vote = txn.prepare(request).await?;
    failpoint!("dir_setattr.prepared");
    if let Err(e) = invalidate(h, &[&vote.loc], 0).await {
        txn.abort();
        return Err(e);
    }
    failpoint!("dir_setattr.invalidated");
    txn.commit(|_| {
        let mut attr = vote.row.unwrap_or_default().attr;
        attr.nlink = 2;
        Ok(Entry { attr, loc: vote.loc, ..Entry::default() }.encode_to_vec().into())
    })
}
