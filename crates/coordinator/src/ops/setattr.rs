//! chmod and chown of a directory.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::inode::Inode;
use saker_types::wire::{Entry, Intent, PrepareReq, SetattrReq, Vote};
use saker_types::{Error, acl};

use super::{Keepers, invalidate};
use crate::state::Handle;

/// Changes mode or owner of a directory. The answer's times and link count are the row's own.
pub(crate) async fn setattr(h: &Handle, msg: &SetattrReq) -> Result<Bytes, Error> {
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

/// Who must have stopped keeping the names before the change: nobody, if it leaves the directory
/// open to all.
fn keepers(vote: &Vote) -> Keepers {
    let open = |row: &Inode| row.attr.mode & 0o111 == 0o111 && row.xattr(acl::ACCESS).is_none();
    if vote.row.as_ref().is_some_and(open) { Keepers::None } else { Keepers::AllBut(0) }
}

/// Changes what replicas hold of a directory.
pub(super) async fn set_directory(
    h: &Handle,
    request: PrepareReq,
    answer: impl FnOnce(Vote) -> Bytes,
) -> Result<Bytes, Error> {
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let vote = txn.prepare(PrepareReq { intent: Intent::SetDir.into(), ..request }).await?;
    failpoint!("dir_setattr.prepared");
    invalidate(h, &[&vote.loc], 0, keepers(&vote)).await.map_err(|e| txn.refuse(e))?;
    failpoint!("dir_setattr.invalidated");
    txn.commit(|_| Ok(answer(vote)))
}
