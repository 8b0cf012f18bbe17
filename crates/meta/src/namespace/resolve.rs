//! Path resolution under the guard: a shard runs one request at a time, so that everything from
//! the first resolved component to the change is one atomic step (rules 1, 2). A missing entry
//! parks the request, which later runs again from the root (rule 4).

use std::time::Duration;

use bytes::Bytes;
use saker_types::wire::{At, Dentry, KeptDir, StickyDir};
use saker_types::{
    Access, Cred, Errno, Error, FileKind, Inode, InodeId, Locator, access, acl, check_name, limits,
};

use super::dir::{ResolvedDir, in_force, in_force_below};
use super::walk::{LastWalk, PassedDir};
use crate::request::{Attempt, Msg, OwnerAnswer, Rq, Stop, Wait};
use crate::shard::Shard;

/// The directory that holds the last component.
#[derive(Clone, Debug)]
pub struct Parent {
    /// The directory.
    pub dir: ResolvedDir,
    /// What the directories on the way, this one among them, are like.
    pub way: PathInfo,
}

/// What is said of the directories that a name was found through.
#[derive(Clone, Debug, Default)]
pub struct PathInfo {
    /// All may be searched by everyone.
    pub searchable: bool,
    /// The last one, if it is sticky.
    pub sticky: Option<StickyDir>,
    /// Policy in force in the last one; 0: none.
    pub policy: u64,
}

impl PathInfo {
    /// To an inode that a handle leads to.
    pub fn of_handle(handle: &Locator) -> PathInfo {
        PathInfo { policy: handle.policy, ..PathInfo::default() }
    }

    /// Policy in force at what was found: a directory may have its own.
    pub fn policy_of(&self, found: &Inode) -> u64 {
        in_force(found.policy, self.policy)
    }
}

impl Shard {
    /// Resolves all but the last component. The caller may search every directory on the way
    /// and the parent itself.
    pub(crate) fn parent(&mut self, rq: &Rq, cred: &Cred, at: &At) -> Attempt<Parent> {
        if at.path.len() > limits::COMPONENTS_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let coalesces = self.limits.coalesce_prefixes && LastWalk::serves(at);
        let shared = if coalesces { self.replica.last_walk.resume(cred, at) } else { None };
        let (first, start) = match shared {
            Some(shared) => shared,
            None => {
                let start = PassedDir::start(self.anchor(rq, &at.anchor)?, at.anchor.policy);
                self.not_merging(start.dir.id)?;
                if coalesces {
                    self.replica.last_walk.begin(cred, start.clone());
                }
                (0, start)
            }
        };
        self.metrics.coalesced.add(first as u64);
        let mut dir = start.dir;
        let (searchable, policy, mut root) = (start.searchable, start.policy, start.policy_root);
        let mut way = PathInfo { searchable, policy, ..PathInfo::default() };
        self.enter_as_holder(rq, policy, root)?;
        let mut lends = self.lends_root(rq, at);
        let last = at.path.len().saturating_sub(1);
        for (i, name) in at.path.iter().enumerate().skip(first) {
            check_name(name).map_err(|e| Error::at(e, i))?;
            dir.check(cred, Access::X).map_err(|e| Error { component: Some(i as u32), ..e })?;
            way.searchable &= dir.is_open();
            if i < last {
                let above = dir.id;
                dir = self.child(rq, &dir, name, i)?;
                self.not_merging(dir.id)?;
                if at.expect.get(i).is_some_and(|id| *id != 0 && *id != dir.id) {
                    return Err(Error::elsewhere(i).into());
                }
                if coalesces {
                    self.replica.last_walk.add(name, &dir, way.searchable);
                }
                let above_root = root;
                (way.policy, root) = in_force_below((way.policy, root), dir.policy, i);
                if root != above_root {
                    self.enter_as_holder(rq, way.policy, root)?;
                }
                // The kernel tells the name to everybody.
                let lent = match lends && way.searchable {
                    true => self.lend(at, i, above, name),
                    false => None,
                };
                lends = lent.is_some();
                rq.kept.borrow_mut().extend(lent.map(|keep| {
                    let (id, mode, uid, gid) = (dir.id, dir.mode, dir.uid, dir.gid);
                    let (keep_ms, policy) = (keep.as_millis() as u32, way.policy);
                    KeptDir { id, mode, uid, gid, keep_ms, policy }
                }));
            }
        }
        way.policy = self.enter_policy(rq, way.policy, root)?;
        rq.policy.set(way.policy);
        let is_sticky = dir.mode & access::S_ISVTX != 0;
        way.sticky = is_sticky.then_some(StickyDir { mode: dir.mode, uid: dir.uid });
        Ok(Parent { dir, way })
    }

    /// Gives a lease on component `i`, `name` in the directory `above`, if it is asked for and to be
    /// had; for how long the name may be kept.
    fn lend(&mut self, at: &At, i: usize, above: InodeId, name: &Bytes) -> Option<Duration> {
        let keep = Duration::from_millis((*at.keep_ms.get(i)?).into());
        self.name_leases.give(above, name, keep, self.hub.now())
    }

    /// The root has no name to keep, but while names below it are kept everybody may search it. (A
    /// walk that begins elsewhere is for a client that keeps the names down to there.) False: no lease is asked
    /// for, or none is to be had. Who drives a transaction keeps no names.
    fn lends_root(&mut self, rq: &Rq, at: &At) -> bool {
        if at.keep_ms.is_empty() || matches!(rq.msg, Msg::Prepare(_)) {
            return false;
        }
        // Of an earlier attempt.
        rq.kept.borrow_mut().clear();
        let root = Locator::root();
        at.anchor.id != root.id || self.lend(at, 0, root.pid, &root.name).is_some()
    }

    /// Resolves all components to a directory, of which this shard need not be the owner.
    pub(crate) fn directory(&mut self, rq: &Rq, cred: &Cred, at: &At) -> Attempt<ResolvedDir> {
        let parent = self.parent(rq, cred, at)?;
        match at.path.split_last() {
            None => Ok(parent.dir),
            Some((name, rest)) => {
                let dir = self.child(rq, &parent.dir, name, rest.len())?;
                self.not_merging(dir.id)?;
                Ok(dir)
            }
        }
    }

    /// The directory where a walk starts, if its id is still where it was last known (rule 16).
    fn anchor(&mut self, rq: &Rq, anchor: &Locator) -> Attempt<ResolvedDir> {
        if anchor.home_slot.is_some() {
            return Err(Errno::ENOTDIR.into());
        }
        if let Some(dir) = self.known(anchor.pid, &anchor.name)?
            && dir.id == anchor.id
        {
            return Ok(dir);
        }
        let answer = self.ask_owner(rq, anchor.pid, &anchor.name, anchor.id)?;
        if let Some(moved) = answer.moved {
            return Err(Error::moved(moved).into());
        }
        match ResolvedDir::of(&answer)? {
            Some(dir) if dir.id == anchor.id => Ok(dir),
            _ if answer.id == anchor.id => Err(Errno::ENOTDIR.into()),
            _ => Err(Error::new(Errno::ENOENT).with_text("the directory was removed").into()),
        }
    }

    fn child(
        &mut self,
        rq: &Rq,
        dir: &ResolvedDir,
        name: &Bytes,
        i: usize,
    ) -> Attempt<ResolvedDir> {
        if let Some(dir) = self.known(dir.id, name)? {
            return Ok(dir);
        }
        let answer = self.ask_owner(rq, dir.id, name, 0)?;
        match ResolvedDir::of(&answer)? {
            Some(dir) => Ok(dir),
            None if answer.id == 0 => Err(Error::at(Errno::ENOENT, i).into()),
            // The target of one with several names is elsewhere: the client asks for it.
            None if FileKind::of_mode(answer.mode) == Some(FileKind::Symlink) => {
                Err(Error::symlink(i, answer.target).into())
            }
            None => Err(Error::at(Errno::ENOTDIR, i).into()),
        }
    }

    /// A directory that the replica or an own row knows.
    fn known(&mut self, pid: InodeId, name: &[u8]) -> Attempt<Option<ResolvedDir>> {
        if let Some(dir) = self.replica.get(pid, name) {
            return Ok(Some(dir));
        }
        if !self.owns(pid, name) {
            return Ok(None);
        }
        let found = ResolvedDir::of(&self.dentry(pid, name, 0)?)?;
        if let Some(dir) = &found {
            // Own directories are kept in the replica, too: the broadcast reaches their owner.
            self.replica.insert(pid, Bytes::copy_from_slice(name), dir.clone());
        }
        Ok(found)
    }

    /// What the owner says of an entry that is not known as a directory.
    fn ask_owner(
        &mut self,
        rq: &Rq,
        pid: InodeId,
        name: &[u8],
        anchor_id: InodeId,
    ) -> Attempt<Dentry> {
        if self.owns(pid, name) {
            return self.dentry(pid, name, anchor_id);
        }
        // A request may wait for other things between the answer and its next run: an answer from
        // before an invalidation says nothing any more (rule 2).
        let invalidations = self.replica.invalidations;
        let matches = |f: &OwnerAnswer| {
            f.invalidations == invalidations
                && f.anchor_id == anchor_id
                && f.key.pid == pid
                && f.key.name == name
        };
        let found = rq.found.borrow();
        // The last answer is the newest.
        let answer = found.iter().rev().find(|f| matches(f));
        match answer {
            Some(answer) => Ok(answer.dentry.clone()),
            None => Err(Stop::Wait(Wait::Fetch(Shard::entry_key(pid, name), anchor_id))),
        }
    }

    /// The owner's view of an entry; waits while a transaction holds it.
    pub(crate) fn dentry(
        &mut self,
        pid: InodeId,
        name: &[u8],
        anchor_id: InodeId,
    ) -> Attempt<Dentry> {
        let key = self.map.key(pid, name);
        if let Some(txn) = self.locked_by(&key) {
            return Err(Stop::Wait(Wait::Txn(txn)));
        }
        let mut answer = Dentry::default();
        if let Some(inode) = self.entry_loaded(&key)? {
            answer = dentry_of(&inode);
        }
        if anchor_id != 0 && answer.id != anchor_id {
            let slot = self.map.slot_of(pid, name);
            answer.moved = self.gone(slot, anchor_id)?.and_then(|gone| gone.moved);
        }
        Ok(answer)
    }
}

/// What an owner says of an entry to those who resolve paths through it.
pub(super) fn dentry_of(inode: &Inode) -> Dentry {
    let a = &inode.attr;
    let target = match a.kind() {
        FileKind::Symlink => inode.inline.clone(),
        _ => Bytes::new(),
    };
    Dentry {
        id: a.id,
        mode: a.mode,
        uid: a.uid,
        gid: a.gid,
        policy: inode.policy,
        target,
        moved: None,
        acl: inode.xattr(acl::ACCESS).cloned().unwrap_or_default(),
        default_acl: inode.xattr(acl::DEFAULT).cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
