//! Extended attributes: in the inode's row, so that they move with it in one record.

use bytes::{BufMut, Bytes, BytesMut};
use saker_types::acl::{self};
use saker_types::time::later;
use saker_types::wire::{Empty, XattrReply, XattrReq};
use saker_types::{Errno, Inode, limits};

use super::rename::use_coordinator;
use crate::request::{Attempt, Rq};
use crate::rows::Located;
use crate::rules::xattrs::{apply_acl, check_read, check_room, check_write};
use crate::shard::{Shard, encoded};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;

impl Shard {
    /// Value of one attribute.
    pub(crate) fn getxattr(&mut self, rq: &Rq, msg: &XattrReq) -> Attempt<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        check_read(&found.inode, &msg.name, &msg.ctx.cred)?;
        let value = found.inode.xattr(&msg.name).ok_or(Errno::ENODATA)?.clone();
        Ok(encoded(&XattrReply { value }))
    }

    /// All names, each with a NUL; `trusted.` ones for the superuser only.
    pub(crate) fn listxattr(&mut self, rq: &Rq, msg: &XattrReq) -> Attempt<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        let mut value = BytesMut::new();
        for x in &found.inode.xattrs {
            if msg.ctx.cred.uid == 0 || !x.name.starts_with(b"trusted.") {
                value.put_slice(&x.name);
                value.put_u8(0);
            }
        }
        Ok(encoded(&XattrReply { value: value.freeze() }))
    }

    /// Sets one.
    pub(crate) fn setxattr(&mut self, rq: &Rq, msg: &XattrReq) -> Attempt<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        check_write(&found.inode, &msg.name, &msg.ctx.cred)?;
        if acl::is_acl(&msg.name) {
            return self.store_acl(msg, found);
        }
        if msg.value.len() > limits::XATTR_VALUE_BYTES_MAX {
            return Err(Errno::E2BIG.into());
        }
        match found.inode.xattr(&msg.name) {
            Some(_) if msg.flags & CREATE != 0 => return Err(Errno::EEXIST.into()),
            None if msg.flags & REPLACE != 0 => return Err(Errno::ENODATA.into()),
            _ => {}
        }
        self.may_grow()?;
        let mut inode = (*found.inode).clone();
        inode.set_xattr(&msg.name, Some(msg.value.clone()));
        check_room(&inode)?;
        self.store_xattrs(&found, inode)
    }

    /// Removes one.
    pub(crate) fn removexattr(&mut self, rq: &Rq, msg: &XattrReq) -> Attempt<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        check_write(&found.inode, &msg.name, &msg.ctx.cred)?;
        found.inode.xattr(&msg.name).ok_or(Errno::ENODATA)?;
        if acl::is_acl(&msg.name) {
            return self.store_acl(msg, found);
        }
        let mut inode = (*found.inode).clone();
        inode.set_xattr(&msg.name, None);
        self.store_xattrs(&found, inode)
    }

    /// An ACL; of a directory it is in the replicas, so that the coordinator changes it.
    fn store_acl(&mut self, msg: &XattrReq, found: Located) -> Attempt<Bytes> {
        if found.inode.attr.is_dir() {
            return Err(use_coordinator());
        }
        if !msg.value.is_empty() {
            self.may_grow()?;
        }
        let mut inode = (*found.inode).clone();
        apply_acl(&mut inode, &msg.name, &msg.value, &msg.ctx.cred)?;
        self.store_xattrs(&found, inode)
    }

    fn store_xattrs(&mut self, found: &Located, mut inode: Inode) -> Attempt<Bytes> {
        inode.attr.ctime_ns = later(inode.attr.ctime_ns, self.wall_ns());
        self.store(&found.spot, inode);
        Ok(encoded(&Empty {}))
    }
}

#[cfg(test)]
mod tests {
    use saker_types::Error;
    use saker_types::wire::Op;

    use super::*;
    use crate::testing::{Tester, at, errno, user};

    fn request(t: &mut Tester, name: &'static str, value: &'static str, flags: u32) -> XattrReq {
        let (name, value) = (name.into(), value.into());
        XattrReq { ctx: t.ctx(), at: at("f"), name, value, flags }
    }

    fn set(
        t: &mut Tester,
        name: &'static str,
        value: &'static str,
        flags: u32,
    ) -> Result<Empty, Error> {
        let request = request(t, name, value, flags);
        t.ask(Op::Setxattr, &request)
    }

    fn read(t: &mut Tester, op: Op, name: &'static str) -> Result<Bytes, Error> {
        let request = request(t, name, "", 0);
        t.ask::<XattrReply>(op, &request).map(|reply| reply.value)
    }

    #[test]
    fn attributes_are_set_read_listed_and_removed() {
        let mut t = Tester::new();
        t.create("f").unwrap();
        set(&mut t, "user.b", "2", 0).unwrap();
        set(&mut t, "user.a", "1", CREATE).unwrap();
        set(&mut t, "user.a", "one", REPLACE).unwrap();
        assert_eq!(read(&mut t, Op::Getxattr, "user.a").unwrap(), "one");
        let mut listed = read(&mut t, Op::Listxattr, "").unwrap().to_vec();
        assert_eq!(listed.pop(), Some(0));
        let mut names: Vec<&[u8]> = listed.split(|b| *b == 0).collect();
        names.sort_unstable();
        assert_eq!(names, [b"user.a", b"user.b"]);
        let remove = request(&mut t, "user.a", "", 0);
        t.ask::<Empty>(Op::Removexattr, &remove).unwrap();
        assert_eq!(errno(read(&mut t, Op::Getxattr, "user.a")), Errno::ENODATA);
        assert_eq!(t.row("f").unwrap().xattrs.len(), 1);
    }

    #[test]
    fn flags_bounds_and_permissions_are_kept() {
        let mut t = Tester::new();
        t.create("f").unwrap();
        set(&mut t, "trusted.t", "", 0).unwrap();
        set(&mut t, "user.a", "1", 0).unwrap();
        assert_eq!(errno(set(&mut t, "user.a", "2", CREATE)), Errno::EEXIST);
        assert_eq!(errno(set(&mut t, "user.b", "2", REPLACE)), Errno::ENODATA);
        let large = vec![0; limits::XATTR_VALUE_BYTES_MAX + 1].into();
        let large = XattrReq { value: large, ..request(&mut t, "user.c", "", 0) };
        assert_eq!(errno(t.ask::<Empty>(Op::Setxattr, &large)), Errno::E2BIG);
        t.cred = user(5);
        assert_eq!(errno(set(&mut t, "user.a", "2", 0)), Errno::EACCES);
        assert_eq!(read(&mut t, Op::Listxattr, "").unwrap(), "user.a\0");
        assert_eq!(t.row("f").unwrap().xattr(b"user.a").unwrap(), "1");
    }
}
