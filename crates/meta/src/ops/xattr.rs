//! Extended attributes: in the inode's row, so that they move with it in one record.

use bytes::{BufMut, Bytes, BytesMut};
use saker_types::acl::{self, Acl};
use saker_types::time::later;
use saker_types::wire::{Empty, XattrReply, XattrReq};
use saker_types::{Access, Cred, Errno, Error, FileKind, Inode, access, limits};

use super::rename::use_coordinator;
use crate::request::{Rq, Step};
use crate::rows::Located;
use crate::shard::{Shard, encoded};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;

impl Shard {
    /// Value of one attribute.
    pub(crate) fn getxattr(&mut self, rq: &Rq, msg: &XattrReq) -> Step<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        check_read(&found.inode, &msg.name, &msg.ctx.cred)?;
        let value = found.inode.xattr(&msg.name).ok_or(Errno::ENODATA)?.clone();
        Ok(encoded(&XattrReply { value }))
    }

    /// All names, each with a NUL; `trusted.` ones for the superuser only.
    pub(crate) fn listxattr(&mut self, rq: &Rq, msg: &XattrReq) -> Step<Bytes> {
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
    pub(crate) fn setxattr(&mut self, rq: &Rq, msg: &XattrReq) -> Step<Bytes> {
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
    pub(crate) fn removexattr(&mut self, rq: &Rq, msg: &XattrReq) -> Step<Bytes> {
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
    fn store_acl(&mut self, msg: &XattrReq, found: Located) -> Step<Bytes> {
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

    fn store_xattrs(&mut self, found: &Located, mut inode: Inode) -> Step<Bytes> {
        inode.attr.ctime_ns = later(inode.attr.ctime_ns, self.wall_ns());
        self.store(&found.spot, inode);
        Ok(encoded(&Empty {}))
    }
}

/// Sets an ACL, or, with an empty one, removes it. The list of an inode shows in its mode, and one
/// that says no more than the mode is not kept (Linux's `posix_acl_update_mode`).
pub(crate) fn apply_acl(
    inode: &mut Inode,
    name: &[u8],
    raw: &[u8],
    cred: &Cred,
) -> Result<(), Error> {
    check_write(inode, name, cred)?;
    let list = Acl::parse(raw)?;
    if let (acl::ACCESS, Some(list)) = (name, &list) {
        let a = &mut inode.attr;
        a.mode = (a.mode & !0o777) | list.mode();
        if a.mode & 0o2000 != 0 && cred.uid != 0 && !cred.in_group(a.gid)? {
            a.mode &= !0o2000;
        }
    }
    let kept = list.filter(|list| name == acl::DEFAULT || list.is_extended());
    inode.set_xattr(name, kept.map(|list| list.encode()));
    check_room(inode)
}

/// A listing of all names must be possible, too: each takes a NUL there.
fn check_room(inode: &Inode) -> Result<(), Error> {
    let bytes: usize = inode.xattrs.iter().map(|x| x.name.len() + 1 + x.value.len()).sum();
    if bytes > limits::XATTRS_BYTES_MAX { Err(Errno::ENOSPC.into()) } else { Ok(()) }
}

enum Namespace {
    User,
    Trusted,
    Security,
    Acl,
}

/// The namespaces served (xattr(7)).
fn namespace(name: &[u8]) -> Result<Namespace, Error> {
    if name.len() > limits::NAME_BYTES_MAX || name.contains(&0) {
        return Err(Errno::ERANGE.into());
    }
    if acl::is_acl(name) {
        return Ok(Namespace::Acl);
    }
    for (prefix, namespace) in [
        (&b"user."[..], Namespace::User),
        (b"trusted.", Namespace::Trusted),
        (b"security.", Namespace::Security),
    ] {
        match name.strip_prefix(prefix) {
            Some([]) => return Err(Errno::EINVAL.into()),
            Some(_) => return Ok(namespace),
            None => {}
        }
    }
    Err(Errno::EOPNOTSUPP.into())
}

fn check_read(inode: &Inode, name: &[u8], cred: &Cred) -> Result<(), Error> {
    match namespace(name)? {
        Namespace::User => {
            if !matches!(inode.attr.kind(), FileKind::Regular | FileKind::Directory) {
                return Err(Errno::ENODATA.into());
            }
            inode.check(cred, Access::R)
        }
        Namespace::Trusted if cred.uid != 0 => Err(Errno::ENODATA.into()),
        Namespace::Acl if inode.attr.kind() == FileKind::Symlink => Err(Errno::EOPNOTSUPP.into()),
        _ => Ok(()),
    }
}

fn check_write(inode: &Inode, name: &[u8], cred: &Cred) -> Result<(), Error> {
    let a = &inode.attr;
    match namespace(name)? {
        Namespace::User => {
            let plain = matches!(a.kind(), FileKind::Regular | FileKind::Directory);
            let sticky =
                a.is_dir() && a.mode & access::S_ISVTX != 0 && cred.uid != 0 && cred.uid != a.uid;
            if !plain || sticky {
                return Err(Errno::EPERM.into());
            }
            inode.check(cred, Access::W)
        }
        Namespace::Acl if a.kind() == FileKind::Symlink => Err(Errno::EOPNOTSUPP.into()),
        Namespace::Acl if name == acl::DEFAULT && !a.is_dir() => Err(Errno::EACCES.into()),
        Namespace::Acl => access::check_owner(a, cred),
        _ if cred.uid != 0 => Err(Errno::EPERM.into()),
        _ => Ok(()),
    }
}
