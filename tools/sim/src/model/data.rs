//! Open files and their data.

use saker_types::Errno;

use super::{FILE_BYTES_MAX, Found, Model, ModelHandle, ModelIno, ModelTime, UNDEFINED, WalkStop};
use crate::op::{DIR_FDS, FDS, How, OpResult, PathFrom, User, Value, pattern};

/// Beyond this the model does not store data; the generator stays below it.
const DATA_BYTES_MAX: u64 = 64 << 20;

impl Model {
    /// open(2); `create` is the mode of a new file.
    pub(super) fn open(
        &mut self,
        who: &User,
        user: usize,
        at: &PathFrom,
        how: How,
        create: Option<u32>,
        fd: usize,
    ) -> OpResult<ModelTime> {
        let stop = if how.exclusive { WalkStop::NoFollow } else { WalkStop::Follow };
        let place = self.walk(who, at, stop)?;
        let ino = match (place.ino, create) {
            (None, None) => return Err(Errno::ENOENT),
            (None, Some(mode)) => {
                if self.inode(place.dir).nlink == 0 {
                    return Err(Errno::ENOENT);
                }
                self.permit(who, place.dir, 3)?;
                self.insert(who, &place, Self::create_mode(mode))?
            }
            (Some(ino), _) => {
                if create.is_some() {
                    self.may_recreate(who, place.dir, ino, how)?;
                }
                self.may_open(who, ino, how)?;
                if how.truncate {
                    self.resize(who, ino, 0);
                }
                ino
            }
        };
        self.replace_handle(fd, None);
        let handle =
            ModelHandle { ino, how, client: self.client, user, since: self.now, dirty: false };
        self.replace_handle(fd, Some(handle));
        Ok(Value::Done)
    }

    /// O_CREAT meets what is there.
    fn may_recreate(&self, who: &User, dir: ModelIno, ino: ModelIno, how: How) -> Found<()> {
        if how.exclusive {
            return Err(Errno::EEXIST);
        }
        let (dir, inode) = (self.inode(dir), self.inode(ino));
        if inode.is_dir() {
            return Err(Errno::EISDIR);
        }
        let protected = self.rules.protected_regular;
        let theirs = inode.uid != dir.uid && inode.uid != who.uid;
        let open_to_all = dir.mode & 0o002 != 0;
        let open_to_group = protected >= 2 && dir.mode & 0o020 != 0;
        let refused = protected >= 1
            && inode.is_regular()
            && dir.mode & 0o1000 != 0
            && theirs
            && (open_to_all || open_to_group);
        if refused { Err(Errno::EACCES) } else { Ok(()) }
    }

    fn may_open(&self, who: &User, ino: ModelIno, how: How) -> Found<()> {
        let inode = self.inode(ino);
        if inode.is_dir() {
            // A directory opened for reading is a listing: `Readdir` has its own operation.
            return Err(if how.write || how.truncate { Errno::EISDIR } else { UNDEFINED });
        }
        if !inode.is_regular() {
            return Err(UNDEFINED); // the kernel's business
        }
        let want = if how.read { 4 } else { 0 } | if how.write || how.truncate { 2 } else { 0 };
        self.permit(who, ino, want)
    }

    fn replace_handle(&mut self, fd: usize, handle: Option<ModelHandle>) {
        if let Some(new) = &handle {
            self.inode_mut(new.ino).opens += 1;
        }
        if let Some(old) = std::mem::replace(&mut self.handles[fd], handle) {
            self.inode_mut(old.ino).opens -= 1;
            self.reap(old.ino);
        }
    }

    /// O_PATH of a directory.
    pub(super) fn hold(&mut self, who: &User, at: &PathFrom, fd: usize) -> OpResult<ModelTime> {
        let ino = self.find(who, at, WalkStop::Follow)?;
        if !self.inode(ino).is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if let Some(old) = self.held[fd].replace(ino) {
            self.reap(old);
        }
        Ok(Value::Done)
    }

    pub(super) fn close(&mut self, fd: usize) -> OpResult<ModelTime> {
        self.handle(fd).ok_or(UNDEFINED)?;
        self.replace_handle(fd, None);
        Ok(Value::Done)
    }

    /// All that is open is closed, as when its client has died.
    pub fn close_all(&mut self) {
        for fd in 0..FDS {
            self.replace_handle(fd, None);
        }
        for fd in 0..DIR_FDS {
            if let Some(old) = self.held[fd].take() {
                self.reap(old);
            }
        }
    }

    pub(super) fn fsync(&mut self, fd: usize) -> OpResult<ModelTime> {
        self.handles[fd].as_mut().ok_or(UNDEFINED)?.dirty = false;
        Ok(Value::Done)
    }

    /// Forgets that handles are dirty: the system under test flushed them.
    pub fn flushed(&mut self, fd: usize) {
        if let Some(handle) = &mut self.handles[fd] {
            handle.dirty = false;
        }
    }

    pub(super) fn read(&self, fd: usize, offset: u64, len: usize) -> OpResult<ModelTime> {
        let handle = self.handle(fd).ok_or(UNDEFINED)?;
        if !handle.how.read {
            return Err(Errno::EBADF);
        }
        let inode = self.inode(handle.ino);
        let end = inode.size.min(offset.saturating_add(len as u64));
        if end > DATA_BYTES_MAX && offset < end {
            return Err(UNDEFINED);
        }
        let data = inode.data.get(offset as usize..end as usize).unwrap_or_default();
        Ok(Value::Bytes(data.to_vec()))
    }

    pub(super) fn write(
        &mut self,
        who: &User,
        fd: usize,
        offset: u64,
        len: usize,
        fill: u8,
    ) -> OpResult<ModelTime> {
        let handle = self.handle(fd).ok_or(UNDEFINED)?.clone();
        if !handle.how.write {
            return Err(Errno::EBADF);
        }
        if len == 0 {
            return Ok(Value::Done);
        }
        let place = if handle.how.append { self.inode(handle.ino).size } else { offset };
        let end = place + len as u64;
        if end > DATA_BYTES_MAX {
            return Err(UNDEFINED);
        }
        self.drop_privilege(who, handle.ino);
        let inode = self.inode_mut(handle.ino);
        if inode.size < end {
            inode.size = end;
            inode.data.resize(end as usize, 0);
        }
        // The pattern is that of the offset asked for: an append does not know its place.
        let bytes = pattern(fill, offset, len);
        inode.data[place as usize..end as usize].copy_from_slice(&bytes);
        self.changed_data(handle.ino);
        if let Some(handle) = &mut self.handles[fd] {
            handle.dirty = true;
        }
        Ok(Value::Done)
    }

    fn changed_data(&mut self, ino: ModelIno) {
        self.touch(ino, true);
        let (client, now) = (self.client, self.now);
        self.inode_mut(ino).writers.insert(client, now);
    }

    /// A change of data by somebody else than root takes set-user-id and set-group-id away.
    fn drop_privilege(&mut self, who: &User, ino: ModelIno) {
        let inode = self.inode(ino);
        if who.uid == 0 {
            return;
        }
        let drop_sgid = inode.mode & 0o010 != 0 || !Self::in_group(who, inode.gid);
        self.inode_mut(ino).mode &= if drop_sgid { !0o6000 } else { !0o4000 };
    }

    fn resize(&mut self, who: &User, ino: ModelIno, size: u64) {
        self.drop_privilege(who, ino);
        let inode = self.inode_mut(ino);
        inode.size = size;
        inode.data.resize(size.min(DATA_BYTES_MAX) as usize, 0);
        self.changed_data(ino);
    }

    pub(super) fn ftruncate(&mut self, who: &User, fd: usize, size: u64) -> OpResult<ModelTime> {
        let handle = self.handle(fd).ok_or(UNDEFINED)?.clone();
        if !handle.how.write {
            return Err(Errno::EINVAL);
        }
        if size > FILE_BYTES_MAX {
            return Err(if self.rules.ends_at_16_tib { Errno::EFBIG } else { UNDEFINED });
        }
        self.resize(who, handle.ino, size);
        Ok(Value::Done)
    }

    pub(super) fn truncate(&mut self, who: &User, at: &PathFrom, size: u64) -> OpResult<ModelTime> {
        let ino = self.find(who, at, WalkStop::Follow)?;
        if self.inode(ino).is_dir() {
            return Err(Errno::EISDIR);
        }
        if !self.inode(ino).is_regular() {
            return Err(Errno::EINVAL);
        }
        self.permit(who, ino, 2)?;
        if size > FILE_BYTES_MAX {
            return Err(if self.rules.ends_at_16_tib { Errno::EFBIG } else { UNDEFINED });
        }
        let same = self.inode(ino).size == size;
        if same && !self.rules.same_size_truncate_touches {
            return Err(UNDEFINED);
        }
        self.resize(who, ino, size);
        Ok(Value::Done)
    }
}
