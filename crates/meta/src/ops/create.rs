//! create, mkdir, mknod, symlink: one row, and the parent's totals, in one batch of one shard.

use bytes::Bytes;
use saker_types::wire::{CreateReq, Entry, Op, OpenReq, StickyDir};
use saker_types::{Errno, Error, FileKind, Inode, Locator};

use super::{done, needs_name};
use crate::namespace::resolve::{Parent, Way};
use crate::request::{Rq, Step};
use crate::rows::{Located, Spot, new_attr};
use crate::rules::creation::{check_kind, inherit, inherit_acl};
use crate::rules::names::may_change;
use crate::shard::Shard;

impl Shard {
    /// Makes an entry; a regular file that is there is opened instead unless `exclusive`.
    pub(crate) fn create(&mut self, rq: &Rq, msg: &CreateReq) -> Step<Bytes> {
        if msg.at.path.is_empty() && rq.from.op == Op::Create {
            // The name is a hard link whose attributes are here: open what is there.
            let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
            return match (msg.exclusive, found.inode.attr.is_dir()) {
                (true, _) => Err(Errno::EEXIST.into()),
                (false, true) => Err(Errno::EISDIR.into()),
                (false, false) => self.open_found(rq, &open_of(msg), found),
            };
        }
        let name = needs_name(&msg.at)?;
        let kind = FileKind::of_mode(msg.mode).ok_or(Errno::EINVAL)?;
        check_kind(rq.from.op, kind, msg)?;
        let cred = &msg.ctx.cred;
        let parent = self.parent(rq, cred, &msg.at)?;
        let key = self.own_key(parent.dir.id, name)?;
        if let Some(there) = self.entry_free(&key)? {
            return self.create_on(rq, msg, Spot::Entry(key), there, parent.way);
        }
        may_change(&parent.dir, cred)?;
        if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) && cred.uid != 0 {
            return Err(Errno::EPERM.into());
        }
        self.not_frozen(parent.dir.id)?;
        self.may_grow()?;

        let inode = self.new_inode(msg, kind, &parent)?;
        let attr = inode.attr.clone();
        let loc = Locator { pid: key.pid, name: name.clone(), id: attr.id, home_slot: None };
        let searchable = parent.way.searchable;
        let mut entry = Entry { attr, loc, created: true, searchable, ..Entry::default() };
        if kind == FileKind::Directory {
            entry.attr.nlink = 2;
            if !self.limits.lazy_replication {
                return self.make_everywhere(&msg.ctx, key, inode, entry);
            }
        }
        self.insert_entry(&key, inode)?;
        if rq.from.op == Op::Create {
            self.note_opened(&entry.attr, msg.hold);
        }
        done(&entry)
    }

    /// The name is taken.
    fn create_on(
        &mut self,
        rq: &Rq,
        msg: &CreateReq,
        spot: Spot,
        there: std::rc::Rc<Inode>,
        way: Way,
    ) -> Step<Bytes> {
        if rq.from.op != Op::Create || msg.exclusive {
            return Err(Errno::EEXIST.into());
        }
        match there.attr.kind() {
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            FileKind::Symlink => {
                let last = msg.at.path.len() - 1;
                return Err(Error::symlink(last, there.inline.clone()).into());
            }
            _ => {}
        }
        let is_foreign = |dir: &StickyDir| ![dir.uid, msg.ctx.cred.uid].contains(&there.attr.uid);
        if msg.wary && there.home_slot.is_none() && way.sticky.as_ref().is_some_and(is_foreign) {
            return Err(Errno::ESTALE.into());
        }
        if there.home_slot.is_some() {
            // Finds the attributes, here or where the client must go.
            self.locate(rq, &msg.ctx.cred, &msg.at)?;
            return self.open(rq, &open_of(msg));
        }
        let found = Located { spot, inode: there, way };
        self.open_found(rq, &open_of(msg), found)
    }

    pub(super) fn new_inode(
        &mut self,
        msg: &CreateReq,
        kind: FileKind,
        parent: &Parent,
    ) -> Step<Inode> {
        let cred = &msg.ctx.cred;
        let (mode, gid) = inherit(msg.mode, kind, &parent.dir, cred)?;
        let id = self.new_id()?;
        let mut inode =
            Inode { attr: new_attr(id, mode, cred.uid, gid, self.wall_ns()), ..Inode::default() };
        if kind != FileKind::Symlink {
            inherit_acl(&mut inode, parent.dir.default_acl(), msg.umask);
        }
        match kind {
            FileKind::Symlink => {
                inode.attr.size = msg.target.len() as u64;
                inode.inline = msg.target.clone();
            }
            FileKind::Directory => inode.attr.size = 4096,
            FileKind::CharDevice | FileKind::BlockDevice => inode.attr.rdev = msg.rdev,
            _ => {}
        }
        Ok(inode)
    }
}

fn open_of(msg: &CreateReq) -> OpenReq {
    let CreateReq { access, truncate, hold, .. } = *msg;
    OpenReq { ctx: msg.ctx.clone(), at: msg.at.clone(), access, truncate, hold }
}
