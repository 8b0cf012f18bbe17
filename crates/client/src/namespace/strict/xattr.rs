//! Extended attributes.

use bytes::Bytes;
use saker_types::wire::{At, Empty, Op, XattrReply, XattrReq};
use saker_types::{Errno, Result, limits};

use crate::Caller;
use crate::core::Core;
use crate::namespace::strict::check_place;
use crate::net::request::To;

/// Value of an extended attribute.
pub(super) async fn get(core: &Core, who: &Caller, at: &At, name: &[u8]) -> Result<Bytes> {
    let mut request = xattr_request(at, name)?;
    let reply: XattrReply = core.cluster.ask(who, Op::Getxattr, To::Owner, &mut request).await?;
    Ok(reply.value)
}

/// Sets one: flags 1 XATTR_CREATE, 2 XATTR_REPLACE.
pub(super) async fn set(
    core: &Core,
    who: &Caller,
    at: &At,
    name: &[u8],
    value: &[u8],
    flags: u32,
) -> Result<()> {
    if value.len() > limits::XATTR_VALUE_BYTES_MAX {
        return Err(Errno::E2BIG.into());
    }
    let mut request =
        XattrReq { value: Bytes::copy_from_slice(value), flags, ..xattr_request(at, name)? };
    let _: Empty = core.cluster.ask(who, Op::Setxattr, To::Owner, &mut request).await?;
    Ok(())
}

/// Names of all, each followed by a NUL.
pub(super) async fn list(core: &Core, who: &Caller, at: &At) -> Result<Bytes> {
    let mut request = xattr_request(at, b"")?;
    let reply: XattrReply = core.cluster.ask(who, Op::Listxattr, To::Owner, &mut request).await?;
    Ok(reply.value)
}

/// Removes one.
pub(super) async fn remove(core: &Core, who: &Caller, at: &At, name: &[u8]) -> Result<()> {
    let mut request = xattr_request(at, name)?;
    let _: Empty = core.cluster.ask(who, Op::Removexattr, To::Owner, &mut request).await?;
    Ok(())
}

fn xattr_request(at: &At, name: &[u8]) -> Result<XattrReq> {
    check_place(at)?;
    // XATTR_NAME_MAX is as long as a file's name.
    if name.len() > limits::NAME_BYTES_MAX {
        return Err(Errno::ERANGE.into());
    }
    Ok(XattrReq { at: at.clone(), name: Bytes::copy_from_slice(name), ..XattrReq::default() })
}
