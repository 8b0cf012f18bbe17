//! Extended attributes: in the inode's row, so that they move with it in one record.

use bytes::{BufMut, Bytes, BytesMut};
use saker_types::inode::Xattr;
use saker_types::wire::{Empty, XattrReply, XattrReq};
use saker_types::{Access, Attr, Cred, Errno, Error, FileKind, Inode, access, limits};

use crate::request::{Rq, Step};
use crate::rows::Located;
use crate::shard::{Shard, encoded};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;

impl Shard {
    /// Value of one attribute.
    pub(crate) fn getxattr(&mut self, rq: &Rq, msg: &XattrReq) -> Step<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        check_read(&found.inode.attr, &msg.name, &msg.ctx.cred)?;
        let xattr = found.inode.xattrs.iter().find(|x| x.name == msg.name).ok_or(Errno::ENODATA)?;
        Ok(encoded(&XattrReply { value: xattr.value.clone() }))
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
        check_write(&found.inode.attr, &msg.name, &msg.ctx.cred)?;
        if msg.value.len() > limits::XATTR_VALUE_BYTES_MAX {
            return Err(Errno::E2BIG.into());
        }
        let mut inode = (*found.inode).clone();
        let there = inode.xattrs.iter().position(|x| x.name == msg.name);
        match there {
            Some(_) if msg.flags & CREATE != 0 => return Err(Errno::EEXIST.into()),
            None if msg.flags & REPLACE != 0 => return Err(Errno::ENODATA.into()),
            Some(i) => inode.xattrs[i].value = msg.value.clone(),
            None => {
                let (name, value) = (msg.name.clone(), msg.value.clone());
                inode.xattrs.push(Xattr { name, value });
                inode.xattrs.sort_by(|a, b| a.name.cmp(&b.name));
            }
        }
        let bytes: usize = inode.xattrs.iter().map(|x| x.name.len() + x.value.len()).sum();
        if bytes > limits::XATTRS_BYTES_MAX {
            return Err(Errno::ENOSPC.into());
        }
        self.store_xattrs(&found, inode)
    }

    /// Removes one.
    pub(crate) fn removexattr(&mut self, rq: &Rq, msg: &XattrReq) -> Step<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        check_write(&found.inode.attr, &msg.name, &msg.ctx.cred)?;
        let mut inode = (*found.inode).clone();
        let there = inode.xattrs.iter().position(|x| x.name == msg.name);
        inode.xattrs.remove(there.ok_or(Errno::ENODATA)?);
        self.store_xattrs(&found, inode)
    }

    fn store_xattrs(&mut self, found: &Located, mut inode: Inode) -> Step<Bytes> {
        inode.attr.ctime_ns = self.wall_ns().max(inode.attr.ctime_ns);
        self.store(&found.spot, inode);
        Ok(encoded(&Empty {}))
    }
}

enum Namespace {
    User,
    Trusted,
    Security,
}

/// The namespaces served (xattr(7)); ACLs (`system.`) are not yet.
fn namespace(name: &[u8]) -> Result<Namespace, Error> {
    if name.len() > limits::NAME_BYTES_MAX || name.contains(&0) {
        return Err(Errno::ERANGE.into());
    }
    for (prefix, namespace) in [
        (&b"user."[..], Namespace::User),
        (b"trusted.", Namespace::Trusted),
        (b"security.", Namespace::Security),
    ] {
        if name.len() > prefix.len() && name.starts_with(prefix) {
            return Ok(namespace);
        }
    }
    Err(Errno::EOPNOTSUPP.into())
}

fn check_read(a: &Attr, name: &[u8], cred: &Cred) -> Result<(), Error> {
    match namespace(name)? {
        Namespace::User => {
            if !matches!(a.kind(), FileKind::Regular | FileKind::Directory) {
                return Err(Errno::ENODATA.into());
            }
            access::check(a.mode, a.uid, a.gid, cred, Access::R)
        }
        Namespace::Trusted if cred.uid != 0 => Err(Errno::ENODATA.into()),
        _ => Ok(()),
    }
}

fn check_write(a: &Attr, name: &[u8], cred: &Cred) -> Result<(), Error> {
    match namespace(name)? {
        Namespace::User => {
            let plain = matches!(a.kind(), FileKind::Regular | FileKind::Directory);
            let sticky = a.is_dir() && a.mode & 0o1000 != 0 && cred.uid != 0 && cred.uid != a.uid;
            if !plain || sticky {
                return Err(Errno::EPERM.into());
            }
            access::check(a.mode, a.uid, a.gid, cred, Access::W)
        }
        _ if cred.uid != 0 => Err(Errno::EPERM.into()),
        _ => Ok(()),
    }
}
