//! SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR.

use bytes::Bytes;
use saker_fuse::abi::{GetxattrIn, GetxattrOut, SetxattrIn};
use saker_fuse::{Reply, Request};
use saker_types::{Errno, Error, Result, acl};

use crate::caller::WithCaller as _;
use crate::names::nodes::FuseNodeId;
use crate::service::MountService;

/// Does the mount serve attributes of this name? Asking for the others costs no request:
/// programs and the kernel ask for them all the time.
fn served(name: &[u8]) -> Result<()> {
    match name {
        // Writing would have to clear it (see HANDLE_KILLPRIV_V2 in `init`).
        b"security.capability" => Err(Error::new(Errno::EOPNOTSUPP)),
        _ => Ok(()),
    }
}

impl MountService {
    pub(crate) async fn setxattr(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: SetxattrIn = body.fixed()?;
        let name = body.name()?;
        let value = body.bytes(input.size as usize)?;
        served(&name)?;
        let at = self.at(request.header.nodeid).await?;
        let who = request.caller();
        let contended = self.is_contended(request.header.nodeid, &name);
        self.fs.setxattr(&who, &at, &name, value, input.flags).await?;
        self.nodes.changed_itself(contended);
        Ok(Reply::done())
    }

    pub(crate) async fn getxattr(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: GetxattrIn = body.fixed()?;
        let name = body.name()?;
        served(&name)?;
        let at = self.at(request.header.nodeid).await?;
        let value = self.fs.getxattr(&request.caller(), &at, &name).await?;
        sized(value, input.size)
    }

    pub(crate) async fn listxattr(&self, request: &Request) -> Result<Reply> {
        let input: GetxattrIn = request.body().fixed()?;
        let at = self.at(request.header.nodeid).await?;
        let names = self.fs.listxattr(&request.caller(), &at).await?;
        sized(names, input.size)
    }

    pub(crate) async fn removexattr(&self, request: &Request) -> Result<Reply> {
        let name = request.body().name()?;
        served(&name)?;
        let at = self.at(request.header.nodeid).await?;
        let contended = self.is_contended(request.header.nodeid, &name);
        self.fs.removexattr(&request.caller(), &at, &name).await?;
        self.nodes.changed_itself(contended);
        Ok(Reply::done())
    }

    /// See [`crate::names::nodes::Nodes::is_contended`]: nobody waits for other attributes than the list of users who may
    /// walk there.
    fn is_contended(&self, node: FuseNodeId, name: &[u8]) -> bool {
        name == acl::ACCESS && self.nodes.is_contended(node)
    }
}

/// A value, or with room for nothing only its size.
fn sized(value: Bytes, room: u32) -> Result<Reply> {
    match room as usize {
        0 => Ok(Reply::of(&GetxattrOut { size: value.len() as u32, padding: 0 })),
        room if value.len() > room => Err(Error::new(Errno::ERANGE)),
        _ => Ok(Reply::data(value)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn room_for_a_value() {
        let value = Bytes::from_static(b"12345");
        assert_eq!(sized(value.clone(), 0).unwrap().head, [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sized(value.clone(), 4).unwrap_err().errno(), Errno::ERANGE);
        assert_eq!(sized(value.clone(), 5).unwrap().data, value);
    }

    #[test]
    fn names_that_the_mount_does_not_serve() {
        assert!(served(b"system.posix_acl_access").is_ok());
        assert!(served(b"security.capability").is_err());
        assert!(served(b"user.x").is_ok());
    }
}
