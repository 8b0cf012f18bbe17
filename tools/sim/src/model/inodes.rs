//! Operations on attributes.

use saker_types::Errno;

use super::{Model, ModelIno, ModelTime, UNDEFINED, WalkStop, stop};
use crate::op::{NameBytes, NewTime, OpResult, PathFrom, User, Value};

impl Model {
    pub(super) fn chmod(&mut self, who: &User, at: &PathFrom, mode: u32) -> OpResult<ModelTime> {
        let ino = self.find(who, at, WalkStop::Follow)?;
        if !self.is_owner(who, ino) {
            return Err(Errno::EPERM);
        }
        let mut bits = mode & 0o7777;
        if who.uid != 0 && !Self::in_group(who, self.inode(ino).gid) {
            bits &= !0o2000;
        }
        let inode = self.inode_mut(ino);
        inode.mode = inode.mode & !0o7777 | bits;
        self.touch(ino, false);
        Ok(Value::Done)
    }

    pub(super) fn chown(
        &mut self,
        who: &User,
        at: &PathFrom,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> OpResult<ModelTime> {
        let ino = self.find(who, at, stop(follow))?;
        let inode = self.inode(ino);
        if who.uid != 0 {
            let mine = who.uid == inode.uid;
            let uid_ok = uid.is_none_or(|uid| mine && uid == inode.uid);
            let gid_ok =
                gid.is_none_or(|gid| mine && (gid == inode.gid || Self::in_group(who, gid)));
            if !uid_ok || !gid_ok {
                return Err(Errno::EPERM);
            }
        }
        if !inode.is_dir() {
            // Set-user-id goes; set-group-id where it is one, or the caller is not of the group.
            let foreign = who.uid != 0 && !Self::in_group(who, inode.gid);
            let drop_sgid = inode.mode & 0o010 != 0 || foreign;
            let inode = self.inode_mut(ino);
            inode.mode &= if drop_sgid { !0o6000 } else { !0o4000 };
        }
        let inode = self.inode_mut(ino);
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        self.touch(ino, false);
        Ok(Value::Done)
    }

    pub(super) fn utimes(
        &mut self,
        who: &User,
        at: &PathFrom,
        atime: NewTime,
        mtime: NewTime,
        follow: bool,
    ) -> OpResult<ModelTime> {
        if (atime, mtime) == (NewTime::Omit, NewTime::Omit) {
            return Ok(Value::Done);
        }
        let ino = self.find(who, at, stop(follow))?;
        if !self.is_owner(who, ino) {
            if (atime, mtime) != (NewTime::Now, NewTime::Now) {
                return Err(Errno::EPERM);
            }
            self.permit(who, ino, 2)?;
        }
        let now = ModelTime::Step(self.now);
        let inode = self.inode_mut(ino);
        let set = |time: &mut ModelTime, to: NewTime| match to {
            NewTime::Omit => {}
            NewTime::Now => *time = now,
            NewTime::Ns(ns) => *time = ModelTime::Set(ns),
        };
        set(&mut inode.atime, atime);
        set(&mut inode.mtime, mtime);
        self.touch(ino, false);
        Ok(Value::Done)
    }

    /// `user.` attributes are for files and directories only (xattr(7)).
    fn may_xattr(&self, who: &User, ino: ModelIno, write: bool) -> Result<(), Errno> {
        let inode = self.inode(ino);
        if !inode.is_regular() && !inode.is_dir() {
            return Err(if write { Errno::EPERM } else { Errno::ENODATA });
        }
        let sticky = inode.is_dir() && inode.mode & 0o1000 != 0;
        if write && sticky && !self.is_owner(who, ino) {
            return Err(Errno::EPERM);
        }
        self.permit(who, ino, if write { 2 } else { 4 })
    }

    pub(super) fn setxattr(
        &mut self,
        who: &User,
        at: &PathFrom,
        name: &NameBytes,
        value: &[u8],
        flags: u32,
    ) -> OpResult<ModelTime> {
        let ino = self.find(who, at, WalkStop::Follow)?;
        self.may_xattr(who, ino, true)?;
        let exists = self.inode(ino).xattrs.contains_key(name);
        if exists && flags & 1 != 0 {
            return Err(Errno::EEXIST);
        }
        if !exists && flags & 2 != 0 {
            return Err(Errno::ENODATA);
        }
        if self.inode(ino).xattrs.get(name).is_some_and(|old| old == value) {
            return Err(UNDEFINED); // ext4 skips it, and with it the change of ctime
        }
        self.inode_mut(ino).xattrs.insert(name.clone(), value.to_vec());
        self.touch(ino, false);
        Ok(Value::Done)
    }

    pub(super) fn getxattr(
        &self,
        who: &User,
        at: &PathFrom,
        name: &NameBytes,
    ) -> OpResult<ModelTime> {
        let ino = self.find(who, at, WalkStop::Follow)?;
        self.may_xattr(who, ino, false)?;
        let value = self.inode(ino).xattrs.get(name).ok_or(Errno::ENODATA)?;
        Ok(Value::Bytes(value.clone()))
    }

    pub(super) fn listxattr(&self, who: &User, at: &PathFrom) -> OpResult<ModelTime> {
        let ino = self.find(who, at, WalkStop::Follow)?;
        Ok(Value::Names(self.inode(ino).xattrs.keys().map(|n| (n.clone(), 0)).collect()))
    }

    pub(super) fn removexattr(
        &mut self,
        who: &User,
        at: &PathFrom,
        name: &NameBytes,
    ) -> OpResult<ModelTime> {
        let ino = self.find(who, at, WalkStop::Follow)?;
        self.may_xattr(who, ino, true)?;
        self.inode_mut(ino).xattrs.remove(name).ok_or(Errno::ENODATA)?;
        self.touch(ino, false);
        Ok(Value::Done)
    }
}
