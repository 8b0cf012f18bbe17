//! rmdir.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::wire::{Empty, Intent, PrepareReq, RemoveReq};
use saker_types::{Errno, Error};

use super::{Keepers, invalidate};
use crate::state::Handle;

/// Removes an empty directory.
pub(crate) async fn rmdir(h: &Handle, msg: &RemoveReq) -> Result<Bytes, Error> {
    if msg.at.path.is_empty() {
        return Err(Errno::EBUSY.into());
    }
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
    let keepers = Keepers::AllBut(msg.at.lease.map_or(0, |lease| lease.holder));
    if let Err(e) = invalidate(h, &[&vote.loc], vote.loc.id, keepers).await {
        txn.abort();
        return Err(e);
    }
    failpoint!("rmdir.invalidated");
    txn.commit(|_| Ok(Empty {}.encode_to_vec().into()))
}
