//! create, mkdir, mknod, symlink: one row, and the parent's totals, in one batch of one shard.

use bytes::Bytes;
use saker_types::wire::{CreateReq, Entry, Op, OpenReq, StickyDir};
use saker_types::{Errno, Error, FileKind, Inode, Locator};

use super::{done, needs_name};
use crate::namespace::resolve::{Parent, PathInfo};
use crate::request::{Attempt, Rq};
use crate::rows::{Located, Spot, new_attr};
use crate::rules::creation::{check_kind, inherit, inherit_acl};
use crate::rules::names::may_change;
use crate::shard::Shard;

impl Shard {
    /// Makes an entry; a regular file that is there is opened instead unless `exclusive`.
    pub(crate) fn create(&mut self, rq: &Rq, msg: &CreateReq) -> Attempt<Bytes> {
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
        let loc = Locator::entry(key.pid, name.clone(), attr.id).under(parent.way.policy);
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
        way: PathInfo,
    ) -> Attempt<Bytes> {
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
    ) -> Attempt<Inode> {
        let cred = &msg.ctx.cred;
        let (mode, gid) = inherit(msg.mode, kind, &parent.dir, cred)?;
        let id = self.new_inode_id()?;
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

#[cfg(test)]
mod tests {
    use saker_types::ROOT;

    use super::*;
    use crate::testing::{Tester, at, errno, user};

    #[test]
    fn makes_a_row_and_counts_it() {
        let mut t = Tester::new();
        let made = t.create("f").unwrap();
        assert!(made.created && made.attr.nlink == 1 && made.attr.id != 0);
        assert_eq!(t.row("f").unwrap().attr, made.attr);
        let dir = t.mkdir("d").unwrap();
        assert_eq!((dir.attr.nlink, t.row("d").unwrap().attr.nlink), (2, 1));
        assert_eq!(t.counts(ROOT), (2, 1));
        let link = t.symlink("d/x", "l").unwrap();
        assert_eq!((link.attr.size, &t.row("l").unwrap().inline[..]), (3, &b"d/x"[..]));
    }

    #[test]
    fn what_is_there_is_opened_unless_it_must_be_new() {
        let mut t = Tester::new();
        let made = t.create("f").unwrap();
        assert_eq!(errno(t.create("f")), Errno::EEXIST);
        let request = t.create_req("f", FileKind::Regular);
        let opened: Entry = t.ask(Op::Create, &CreateReq { exclusive: false, ..request }).unwrap();
        assert_eq!((opened.created, opened.attr.id), (false, made.attr.id));
        t.mkdir("d").unwrap();
        let request = t.create_req("d", FileKind::Regular);
        let onto_dir = CreateReq { exclusive: false, ..request };
        assert_eq!(errno(t.ask::<Entry>(Op::Create, &onto_dir)), Errno::EISDIR);
        assert_eq!(t.counts(ROOT), (2, 1));
    }

    #[test]
    fn the_directory_must_be_there_and_let_the_caller_write() {
        let mut t = Tester::new();
        t.create("f").unwrap();
        let error = t.create("absent/x").unwrap_err();
        assert_eq!((error.errno(), error.component), (Errno::ENOENT, Some(0)));
        assert_eq!(errno(t.create("f/x")), Errno::ENOTDIR);
        t.cred = user(5);
        assert_eq!(errno(t.create("x")), Errno::EACCES);
        assert_eq!(t.row("x"), None);
    }

    #[test]
    fn a_set_group_id_directory_gives_its_group_and_devices_are_the_superusers() {
        let mut t = Tester::new();
        t.mkdir("d").unwrap();
        t.edit("d", |dir| dir.attr.mode |= 0o2777);
        t.cred = user(5);
        let (file, below) = (t.create("d/f").unwrap().attr, t.mkdir("d/e").unwrap().attr);
        assert_eq!((file.uid, file.gid, file.mode & 0o2000), (5, 0, 0));
        assert_eq!((below.gid, below.mode & 0o2000), (0, 0o2000));
        let device = t.create_req("d/dev", FileKind::CharDevice);
        assert_eq!(errno(t.ask::<Entry>(Op::Mknod, &device)), Errno::EPERM);
        let nameless = CreateReq { at: at(""), ..t.create_req("", FileKind::Directory) };
        assert_eq!(errno(t.ask::<Entry>(Op::Mkdir, &nameless)), Errno::EINVAL);
    }
}
