//! Operations on names: making, removing, moving, linking, listing.

use saker_types::Errno;

use super::{
    Found, Model, ModelIno, ModelTime, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, UNDEFINED, WalkEnd,
    WalkStop,
};
use crate::op::{NameBytes, OpResult, PathFrom, RENAME_EXCHANGE, RENAME_NOREPLACE, User, Value};

const S_ISGID: u32 = 0o2000;

impl Model {
    pub(super) fn readdir(&self, who: &User, at: &PathFrom) -> OpResult<ModelTime> {
        let ino = self.find(who, at, WalkStop::Follow)?;
        if !self.inode(ino).is_dir() {
            return Err(Errno::ENOTDIR);
        }
        self.permit(who, ino, 4)?;
        let d_type = |child: &ModelIno| (self.inode(*child).mode >> 12) as u8;
        let entries = &self.inode(ino).entries;
        Ok(Value::Names(entries.iter().map(|(n, child)| (n.clone(), d_type(child))).collect()))
    }

    pub(super) fn readlink(&self, who: &User, at: &PathFrom) -> OpResult<ModelTime> {
        let ino = self.find(who, at, WalkStop::NoFollow)?;
        let inode = self.inode(ino);
        if !inode.is_symlink() {
            return Err(Errno::EINVAL);
        }
        Ok(Value::Bytes(inode.target.clone()))
    }

    pub(super) fn mkdir(&mut self, who: &User, at: &PathFrom, mode: u32) -> OpResult<ModelTime> {
        self.make(who, at, S_IFDIR | mode & 0o1777, b"")
    }

    pub(super) fn symlink(
        &mut self,
        who: &User,
        at: &PathFrom,
        target: &[u8],
    ) -> OpResult<ModelTime> {
        self.make(who, at, S_IFLNK | 0o777, target)
    }

    pub(super) fn mknod(&mut self, who: &User, at: &PathFrom, mode: u32) -> OpResult<ModelTime> {
        if mode & S_IFMT == S_IFDIR {
            return Err(Errno::EPERM);
        }
        self.make(who, at, mode, b"")
    }

    fn make(&mut self, who: &User, at: &PathFrom, mode: u32, target: &[u8]) -> OpResult<ModelTime> {
        let place = self.vacant(who, at)?;
        self.permit(who, place.dir, 3)?;
        let ino = self.insert(who, &place, mode)?;
        self.inode_mut(ino).target = target.to_vec();
        Ok(Value::Done)
    }

    /// Where a new entry goes.
    fn vacant(&self, who: &User, at: &PathFrom) -> Found<WalkEnd> {
        let place = self.walk(who, at, WalkStop::Parent)?;
        let Some(name) = &place.name else { return Err(Errno::EEXIST) };
        if self.lookup(place.dir, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        if self.inode(place.dir).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        Ok(place)
    }

    /// Adds an inode and its entry.
    pub(super) fn insert(&mut self, who: &User, place: &WalkEnd, mode: u32) -> Found<ModelIno> {
        let dir = self.inode(place.dir);
        let is_dir = mode & S_IFMT == S_IFDIR;
        let (mut mode, mut gid) = (mode, who.gid);
        if dir.mode & S_ISGID != 0 {
            // inode(7): the group comes from the directory.
            gid = dir.gid;
            if is_dir {
                mode |= S_ISGID;
            } else if mode & 0o2010 == 0o2010 && who.uid != 0 && !Self::in_group(who, gid) {
                mode &= !S_ISGID;
            }
        }
        let ino = self.add(mode, who, place.dir);
        self.inode_mut(ino).gid = gid;
        let name = place.name.clone().ok_or(UNDEFINED)?;
        self.touch(place.dir, true);
        let dir = self.inode_mut(place.dir);
        dir.entries.insert(name, ino);
        dir.nlink += u32::from(is_dir);
        Ok(ino)
    }

    /// Linux's `may_delete`.
    pub(super) fn may_delete(
        &self,
        who: &User,
        dir: ModelIno,
        victim: ModelIno,
        as_dir: bool,
    ) -> Found<()> {
        self.permit(who, dir, 3)?;
        self.check_sticky(who, dir, victim)?;
        match (as_dir, self.inode(victim).is_dir()) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    pub(super) fn check_sticky(&self, who: &User, dir: ModelIno, victim: ModelIno) -> Found<()> {
        let sticky = self.inode(dir).mode & 0o1000 != 0;
        let is_owner = self.is_owner(who, dir) || self.is_owner(who, victim);
        if sticky && !is_owner { Err(Errno::EPERM) } else { Ok(()) }
    }

    pub(super) fn may_create(&self, who: &User, dir: ModelIno) -> Found<()> {
        if self.inode(dir).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.permit(who, dir, 3)
    }

    pub(super) fn unlink(&mut self, who: &User, at: &PathFrom) -> OpResult<ModelTime> {
        let place = self.walk(who, at, WalkStop::Parent)?;
        let Some(name) = place.name else { return Err(Errno::EISDIR) };
        let ino = self.lookup(place.dir, &name)?.ok_or(Errno::ENOENT)?;
        self.may_delete(who, place.dir, ino, false)?;
        self.inode_mut(place.dir).entries.remove(&name);
        self.touch(place.dir, true);
        self.drop_link(ino);
        Ok(Value::Done)
    }

    fn drop_link(&mut self, ino: ModelIno) {
        self.touch(ino, false);
        let inode = self.inode_mut(ino);
        inode.nlink = if inode.is_dir() { 0 } else { inode.nlink - 1 };
        self.reap(ino);
    }

    pub(super) fn rmdir(&mut self, who: &User, at: &PathFrom) -> OpResult<ModelTime> {
        let place = self.walk(who, at, WalkStop::Parent)?;
        let Some(name) = place.name else {
            let dots = at.path.last().is_some_and(|last| last == b"..");
            return Err(if dots { Errno::ENOTEMPTY } else { Errno::EINVAL });
        };
        let ino = self.lookup(place.dir, &name)?.ok_or(Errno::ENOENT)?;
        self.may_delete(who, place.dir, ino, true)?;
        if !self.inode(ino).entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        let dir = self.inode_mut(place.dir);
        dir.entries.remove(&name);
        dir.nlink -= 1;
        self.touch(place.dir, true);
        self.drop_link(ino);
        Ok(Value::Done)
    }

    pub(super) fn link(
        &mut self,
        who: &User,
        from: &PathFrom,
        to: &PathFrom,
    ) -> OpResult<ModelTime> {
        let ino = self.find(who, from, WalkStop::NoFollow)?;
        let place = self.vacant(who, to)?;
        self.may_link(who, ino)?;
        self.may_create(who, place.dir)?;
        if self.inode(ino).is_dir() {
            return Err(Errno::EPERM);
        }
        let name = place.name.ok_or(UNDEFINED)?;
        self.inode_mut(place.dir).entries.insert(name, ino);
        self.touch(place.dir, true);
        self.touch(ino, false);
        let inode = self.inode_mut(ino);
        inode.nlink += 1;
        inode.linked = true;
        Ok(Value::Done)
    }

    /// `fs.protected_hardlinks`.
    pub(super) fn may_link(&self, who: &User, ino: ModelIno) -> Found<()> {
        let inode = self.inode(ino);
        let safe = inode.is_regular()
            && inode.mode & 0o4000 == 0
            && inode.mode & 0o2010 != 0o2010
            && self.permit(who, ino, 6).is_ok();
        if !self.rules.protected_hardlinks || safe || self.is_owner(who, ino) {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Is `dir` the directory `top`, or below it?
    pub(super) fn is_within(&self, mut dir: ModelIno, top: ModelIno) -> bool {
        loop {
            if dir == top {
                return true;
            }
            let parent = self.inode(dir).parent;
            if parent == dir || self.inode(dir).nlink == 0 {
                return false;
            }
            dir = parent;
        }
    }

    pub(super) fn rename(
        &mut self,
        who: &User,
        from: &PathFrom,
        to: &PathFrom,
        flags: u32,
    ) -> OpResult<ModelTime> {
        let (no_replace, exchange) = (flags & RENAME_NOREPLACE != 0, flags & RENAME_EXCHANGE != 0);
        if no_replace && exchange {
            return Err(Errno::EINVAL);
        }
        let old = self.walk(who, from, WalkStop::Parent)?;
        let new = self.walk(who, to, WalkStop::Parent)?;
        let old_name = old.name.ok_or(Errno::EBUSY)?;
        let dots = if no_replace { Errno::EEXIST } else { Errno::EBUSY };
        let new_name = new.name.ok_or(dots)?;
        let source = self.lookup(old.dir, &old_name)?.ok_or(Errno::ENOENT)?;
        let target = self.lookup(new.dir, &new_name)?;
        if no_replace && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if (exchange && target.is_none()) || self.inode(new.dir).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        if self.inode(source).is_dir() && self.is_within(new.dir, source) {
            return Err(Errno::EINVAL);
        }
        if target.is_some_and(|t| self.inode(t).is_dir() && self.is_within(old.dir, t)) {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if target == Some(source) {
            if !self.rules.kernel {
                let (old, new) = ((old.dir, source), (new.dir, target));
                self.may_rename(who, old, new, exchange).map_err(|_| UNDEFINED)?;
            }
            return Ok(Value::Done);
        }
        self.may_rename(who, (old.dir, source), (new.dir, target), exchange)?;
        self.do_rename((old.dir, old_name, source), (new.dir, new_name, target), exchange);
        Ok(Value::Done)
    }

    fn may_rename(
        &self,
        who: &User,
        (old_dir, source): (ModelIno, ModelIno),
        (new_dir, target): (ModelIno, Option<ModelIno>),
        exchange: bool,
    ) -> Found<()> {
        let source_is_dir = self.inode(source).is_dir();
        self.may_delete(who, old_dir, source, source_is_dir)?;
        let target_is_dir = target.is_some_and(|t| self.inode(t).is_dir());
        match target {
            None => self.may_create(who, new_dir)?,
            Some(t) if exchange => self.may_delete(who, new_dir, t, target_is_dir)?,
            Some(t) => self.may_delete(who, new_dir, t, source_is_dir)?,
        }
        if old_dir != new_dir {
            // A directory that gets another parent has its `..` rewritten.
            if source_is_dir {
                self.permit(who, source, 2)?;
            }
            if let (true, true, Some(t)) = (exchange, target_is_dir, target) {
                self.permit(who, t, 2)?;
            }
        }
        match target {
            Some(t) if !exchange && !self.inode(t).entries.is_empty() => Err(Errno::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    fn do_rename(
        &mut self,
        (old_dir, old_name, source): (ModelIno, NameBytes, ModelIno),
        (new_dir, new_name, target): (ModelIno, NameBytes, Option<ModelIno>),
        exchange: bool,
    ) {
        self.take_entry(old_dir, &old_name);
        if target.is_some() {
            self.take_entry(new_dir, &new_name);
        }
        self.put_entry(new_dir, new_name, source);
        match target {
            Some(target) if exchange => {
                self.put_entry(old_dir, old_name, target);
                self.touch_renamed(target);
            }
            Some(target) => self.drop_link(target),
            None => {}
        }
        self.touch_renamed(source);
        self.touch(old_dir, true);
        self.touch(new_dir, true);
    }

    fn touch_renamed(&mut self, ino: ModelIno) {
        self.touch(ino, false);
        let now = self.now;
        if self.inode(ino).linked && !self.rules.rename_touches_linked {
            self.inode_mut(ino).ctime = ModelTime::Maybe(now);
        }
    }

    fn take_entry(&mut self, dir: ModelIno, name: &[u8]) {
        let ino = self.inode_mut(dir).entries.remove(name);
        let is_dir = ino.is_some_and(|ino| self.inode(ino).is_dir());
        self.inode_mut(dir).nlink -= u32::from(is_dir);
    }

    fn put_entry(&mut self, dir: ModelIno, name: NameBytes, ino: ModelIno) {
        let is_dir = self.inode(ino).is_dir();
        if is_dir {
            self.inode_mut(ino).parent = dir;
        }
        let dir = self.inode_mut(dir);
        dir.entries.insert(name, ino);
        dir.nlink += u32::from(is_dir);
    }

    /// Regular files made by open start like this.
    pub(super) fn create_mode(mode: u32) -> u32 {
        S_IFREG | mode & 0o7777
    }
}
