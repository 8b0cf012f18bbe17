//! All errors that are true of an operation. A kernel reports the first in its own order; a
//! library whose two names live on two servers may report any.

use saker_types::Errno;

use super::{Found, Model, WalkStop};
use crate::op::{FsOp, PathFrom, RENAME_EXCHANGE, RENAME_NOREPLACE, User};

impl Model {
    /// Errors that are true of an operation with two names, before it is applied. Those of one
    /// name have a defined order, but for a name that is too long, which whoever sees it first says, and for
    /// rmdir(2) of something else.
    pub fn true_errors(&self, who: &User, op: &FsOp) -> Vec<Errno> {
        let mut errors = Vec::new();
        let names = op.paths().into_iter().flat_map(|at| &at.path);
        if names.into_iter().any(|name| name.len() > 255) {
            errors.push(Errno::ENAMETOOLONG);
        }
        let mut note = |found: Found<()>| errors.extend(found.err());
        match op {
            FsOp::Rename { from, to, flags } => {
                self.rename_errors(who, from, to, *flags, &mut note)
            }
            FsOp::Link { from, to } => self.link_errors(who, from, to, &mut note),
            // The kernel looks at the kind, then asks the file system, which sees to permissions.
            FsOp::Unlink { at } | FsOp::Rmdir { at } if self.rules.kernel => {
                let as_dir = matches!(op, FsOp::Rmdir { .. });
                self.removal_errors(who, at, as_dir, &mut note);
            }
            // Of an inode with several names, the shard of one of them may know what it is, but not whose.
            FsOp::Rmdir { at } => {
                let place = self.walk(who, at, WalkStop::NoFollow);
                let ino = place.ok().and_then(|place| place.ino);
                if ino.is_some_and(|ino| !self.inode(ino).is_dir()) {
                    note(Err(Errno::ENOTDIR));
                }
            }
            _ => {}
        }
        errors
    }

    fn rename_errors(
        &self,
        who: &User,
        from: &PathFrom,
        to: &PathFrom,
        flags: u32,
        note: &mut impl FnMut(Found<()>),
    ) {
        if flags == RENAME_NOREPLACE | RENAME_EXCHANGE {
            note(Err(Errno::EINVAL));
        }
        let (old, new) =
            (self.walk(who, from, WalkStop::NoFollow), self.walk(who, to, WalkStop::NoFollow));
        note(old.as_ref().map(|_| ()).map_err(|e| *e));
        note(new.as_ref().map(|_| ()).map_err(|e| *e));
        let source = old.as_ref().ok().and_then(|place| place.ino);
        let target = new.as_ref().ok().and_then(|place| place.ino);
        if old.is_ok() && source.is_none() {
            note(Err(Errno::ENOENT));
        }
        if let (Ok(old), Some(source)) = (&old, source) {
            note(self.may_delete(who, old.dir, source, self.inode(source).is_dir()));
            note(self.check_sticky(who, old.dir, source));
        }
        let root = User { uid: 0, gid: 0, groups: vec![] };
        // The kernel sees that a path ends in no name, whether or not the caller may look there.
        let is_nameless =
            |at| self.walk(&root, at, WalkStop::Parent).is_ok_and(|place| place.name.is_none());
        if self.rules.kernel && is_nameless(from) {
            note(Err(Errno::EBUSY));
        }
        if self.rules.kernel && is_nameless(to) {
            note(Err(if flags & RENAME_NOREPLACE != 0 { Errno::EEXIST } else { Errno::EBUSY }));
        }
        // A move into itself is one, whether or not the caller may look there.
        if let (Some(source), Ok(new)) = (source, self.walk(&root, to, WalkStop::NoFollow))
            && self.is_within(new.dir, source)
        {
            note(Err(Errno::EINVAL));
        }
        let Ok(new) = &new else { return };
        note(self.may_create(who, new.dir));
        if flags & RENAME_EXCHANGE != 0 && target.is_none() {
            note(Err(Errno::ENOENT));
        }
        if let Some(target) = target {
            note(self.may_delete(who, new.dir, target, self.inode(target).is_dir()));
            note(self.check_sticky(who, new.dir, target));
            if let Some(source) = source.filter(|_| flags & RENAME_EXCHANGE == 0) {
                match (self.inode(source).is_dir(), self.inode(target).is_dir()) {
                    (true, false) => note(Err(Errno::ENOTDIR)),
                    (false, true) => note(Err(Errno::EISDIR)),
                    _ => {}
                }
            }
            if flags & RENAME_NOREPLACE != 0 {
                note(Err(Errno::EEXIST));
            }
            if !self.inode(target).entries.is_empty() {
                note(Err(Errno::ENOTEMPTY));
            }
        }
        for moved in [source, target].into_iter().flatten() {
            if self.inode(moved).is_dir() {
                note(self.permit(who, moved, 2));
                let dirs = [Some(new.dir), old.as_ref().ok().map(|place| place.dir)];
                if dirs.into_iter().flatten().any(|dir| self.is_within(dir, moved)) {
                    note(Err(Errno::EINVAL));
                }
            }
        }
    }

    fn removal_errors(
        &self,
        who: &User,
        at: &PathFrom,
        as_dir: bool,
        note: &mut impl FnMut(Found<()>),
    ) {
        let Ok(place) = self.walk(who, at, WalkStop::NoFollow) else { return };
        let Some(ino) = place.ino else { return };
        note(self.may_delete(who, place.dir, ino, as_dir));
        note(self.check_sticky(who, place.dir, ino));
        match (as_dir, self.inode(ino).is_dir()) {
            (true, false) => note(Err(Errno::ENOTDIR)),
            (false, true) => note(Err(Errno::EISDIR)),
            _ => {}
        }
    }

    fn link_errors(
        &self,
        who: &User,
        from: &PathFrom,
        to: &PathFrom,
        note: &mut impl FnMut(Found<()>),
    ) {
        let source = self.find(who, from, WalkStop::NoFollow);
        note(source.as_ref().map(|_| ()).map_err(|e| *e));
        if let Ok(source) = source {
            // A kernel looks at that after the target's directory, of which it may have been told a guess.
            note(self.may_link(who, source));
            if self.inode(source).is_dir() {
                note(Err(Errno::EPERM));
            }
        }
        match self.walk(who, to, WalkStop::NoFollow) {
            Ok(place) => {
                note(self.may_create(who, place.dir));
                if place.ino.is_some() {
                    note(Err(Errno::EEXIST));
                }
            }
            Err(errno) => note(Err(errno)),
        }
    }
}
