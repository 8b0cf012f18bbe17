//! ACLs of a directory: replicas hold them, as they hold its mode.

use bytes::Bytes;
use prost::Message;
use saker_types::Error;
use saker_types::inode::Xattr;
use saker_types::wire::{Empty, PrepareReq, XattrReq};

use super::setattr::set_directory;
use crate::state::StateHandle;

/// Sets an ACL of a directory, or, with an empty value, removes it.
pub(crate) async fn setxattr(
    h: &StateHandle,
    msg: &XattrReq,
    value: Bytes,
) -> Result<Bytes, Error> {
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.at.clone(),
        acl: Some(Xattr { name: msg.name.clone(), value }),
        ..PrepareReq::default()
    };
    set_directory(h, request, |_| Empty {}.encode_to_vec().into()).await
}
