//! Paths: `fs/namei.c` and the LOOKUPs of `fs/fuse/dir.c`.

use std::collections::VecDeque;

use saker_mount::hint::{Hint, LookupIntent, PathStep, Rest, Which};
use saker_types::Errno;

use super::Kernel;
use super::dcache::Ref;
use super::wire::{self, S_IFLNK, WireBody, op};

/// Symlinks that one path may lead through.
const LINKS_MAX: usize = 40;

/// A path as a syscall is given it: where it starts (`None`: the root), and its components.
#[derive(Clone)]
pub struct PathArg {
    pub start: Option<Ref>,
    pub names: Vec<Vec<u8>>,
}

impl PathArg {
    fn is_alone(&self) -> bool {
        self.names.len() == 1
    }
}

/// How a path is walked.
#[derive(Clone, Copy)]
pub struct KernelWalk {
    pub tid: u32,
    /// Which of the syscall's paths it is.
    pub which: Which,
    /// The syscall is a rename, and its other path has names before the last one.
    pub beside: bool,
    /// For the second time, after ESTALE.
    pub reval: bool,
}

/// What is done with the last name.
#[derive(Clone, Copy)]
pub enum WalkTo {
    /// It is left to the syscall.
    Parent,
    /// It is looked up.
    End { intent: LookupIntent, follow: bool },
}

/// Where a walk has ended.
pub struct Walked {
    pub dir: Ref,
    pub name: Vec<u8>,
    /// With [`WalkTo::End`]: what is there, which may be nothing.
    pub found: Option<Ref>,
}

/// A name that is still to be walked.
struct Todo {
    name: Vec<u8>,
    /// It is part of a symlink's text.
    nested: bool,
}

impl Kernel {
    /// A walk, and once more if it meets ESTALE (`filename_lookup`, `filename_parentat`).
    pub(super) async fn walk(
        &self,
        path: &PathArg,
        walk: KernelWalk,
        to: WalkTo,
    ) -> Result<Walked, Errno> {
        match self.walk_once(path, walk, to).await {
            Err(Errno::ESTALE) => {
                self.walk_once(path, KernelWalk { reval: true, ..walk }, to).await
            }
            other => other,
        }
    }

    /// `path_lookupat`, `path_parentat`.
    pub(super) async fn walk_once(
        &self,
        path: &PathArg,
        walk: KernelWalk,
        to: WalkTo,
    ) -> Result<Walked, Errno> {
        let todo = |name: &Vec<u8>| Todo { name: name.clone(), nested: false };
        let mut todo: VecDeque<Todo> = path.names.iter().map(todo).collect();
        let mut dir = path.start.clone().unwrap_or_else(|| self.root());
        let (mut first, mut links) = (true, 0);
        loop {
            let Some(Todo { name, nested }) = todo.pop_front() else { return Err(Errno::EINVAL) };
            self.dir_of(&dir)?;
            if name == b".." {
                let parent = self.with(|all| all.dentry(dir.id).parent);
                dir = self.dget(parent);
                if todo.is_empty() {
                    let (found, name) = (Some(dir.clone()), Vec::new());
                    return Ok(Walked { dir, name, found });
                }
                continue;
            }
            let is_last = todo.is_empty();
            let step = match to {
                WalkTo::Parent if is_last => return Ok(Walked { dir, name, found: None }),
                WalkTo::End { intent, .. } if is_last => PathStep::Last(intent),
                _ if nested => PathStep::Through(Rest::InLink),
                _ if todo.iter().any(|todo| todo.name == b"..") => PathStep::Through(Rest::DotDot),
                _ => PathStep::Through(Rest::Names),
            };
            let KernelWalk { which, beside, reval, .. } = walk;
            let first_here = std::mem::take(&mut first) && !nested;
            let hint = Hint { step, first: first_here, path: Some(which), beside, reval };
            let found = match (is_last, to) {
                (true, WalkTo::End { intent: LookupIntent::Open { flags }, .. }) => {
                    self.look_up_to_open(&dir, &name, walk, Some(hint), flags).await?
                }
                _ => self.look_up(&dir, &name, walk.tid, Some(hint), reval).await?,
            };
            let inode = self.inode_of(&found);
            let is_link = inode.as_ref().is_some_and(|inode| self.kind_of(inode) == S_IFLNK);
            let follows = !is_last || matches!(to, WalkTo::End { follow: true, .. });
            if let (Some(inode), true, true) = (&inode, is_link, follows) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let body = WireBody::default();
                let text = self.ask(walk.tid, op::READLINK, self.node_of(inode), &body, None);
                let text = text.await?;
                let names = text.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
                let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
                for name in names.into_iter().rev() {
                    todo.push_front(Todo { name, nested: true });
                }
                if text.first() == Some(&b'/') {
                    dir = self.root();
                }
                continue;
            }
            if is_last {
                return Ok(Walked { dir, name, found: Some(found) });
            }
            if inode.is_none() {
                return Err(Errno::ENOENT);
            }
            dir = found;
        }
    }

    /// `walk_component`: `lookup_fast`, then `lookup_slow`.
    async fn look_up(
        &self,
        dir: &Ref,
        name: &[u8],
        tid: u32,
        hint: Option<Hint>,
        force: bool,
    ) -> Result<Ref, Errno> {
        if let Some(dentry) = self.find(dir.id, name) {
            if self.revalidate(dir, &dentry, name, tid, hint, force).await? {
                return Ok(dentry);
            }
            self.invalidate(&dentry);
        }
        let lock = self.with_inode(dir, |inode| inode.lock.clone())?;
        let _shared = lock.shared().await;
        self.look_up_slowly(dir, name, tid, hint, force).await
    }

    /// `__lookup_slow`, with the directory locked to read.
    async fn look_up_slowly(
        &self,
        dir: &Ref,
        name: &[u8],
        tid: u32,
        hint: Option<Hint>,
        force: bool,
    ) -> Result<Ref, Errno> {
        if self.with_inode(dir, |inode| inode.dead)? {
            return Err(Errno::ENOENT);
        }
        loop {
            let key = (dir.id, name.to_vec());
            let looking = self.0.looking.borrow_mut().entry(key).or_default().clone();
            let guard = looking.exclusive().await;
            let Some(dentry) = self.find(dir.id, name) else {
                return self.fuse_lookup(dir, name, tid, hint).await;
            };
            drop(guard);
            if self.revalidate(dir, &dentry, name, tid, hint, force).await? {
                return Ok(dentry);
            }
            self.invalidate(&dentry);
        }
    }

    /// The end of open(2): `open_last_lookups`. A directory is locked to write by an open that may create.
    async fn look_up_to_open(
        &self,
        dir: &Ref,
        name: &[u8],
        walk: KernelWalk,
        hint: Option<Hint>,
        flags: i32,
    ) -> Result<Ref, Errno> {
        let creates = flags & libc::O_CREAT != 0;
        let excl = creates && flags & libc::O_EXCL != 0;
        let force = walk.reval || excl;
        if let Some(dentry) = self.find(dir.id, name) {
            if self.revalidate(dir, &dentry, name, walk.tid, hint, force).await? {
                return Ok(dentry);
            }
            self.invalidate(&dentry);
        }
        let lock = self.with_inode(dir, |inode| inode.lock.clone())?;
        if !creates {
            let _shared = lock.shared().await;
            return self.look_up_slowly(dir, name, walk.tid, hint, force).await;
        }
        let _exclusive = lock.exclusive().await;
        let found = self.look_up_slowly(dir, name, walk.tid, hint, force).await?;
        if self.inode_of(&found).is_some() {
            return Ok(found);
        }
        self.create(dir, name, walk.tid, flags).await
    }

    /// `lookup_one_qstr_excl`, with the directory locked to write.
    pub(super) async fn look_up_locked(
        &self,
        dir: &Ref,
        name: &[u8],
        tid: u32,
        hint: Option<Hint>,
        force: bool,
    ) -> Result<Ref, Errno> {
        if let Some(dentry) = self.find(dir.id, name) {
            if self.revalidate(dir, &dentry, name, tid, hint, force).await? {
                return Ok(dentry);
            }
            self.invalidate(&dentry);
        }
        if self.with_inode(dir, |inode| inode.dead)? {
            return Err(Errno::ENOENT);
        }
        self.fuse_lookup(dir, name, tid, hint).await
    }

    /// `fuse_dentry_revalidate`: may the dentry be used?
    async fn revalidate(
        &self,
        dir: &Ref,
        dentry: &Ref,
        name: &[u8],
        tid: u32,
        hint: Option<Hint>,
        force: bool,
    ) -> Result<bool, Errno> {
        let Some(inode) = self.inode_of(dentry) else { return Ok(false) };
        let (bad, nodeid, kind) = self.with(|all| {
            let inode = all.inode(inode.id);
            (inode.bad, inode.nodeid, inode.attr.kind())
        });
        if bad {
            return Ok(false);
        }
        let is_valid = self.with(|all| all.dentry(dentry.id).valid) > saker_runtime::time::now();
        if is_valid && !force {
            return Ok(true);
        }
        let version = self.version();
        let body = WireBody::default().name(name);
        let dir_node = self.with_inode(dir, |inode| inode.nodeid)?;
        let Ok(reply) = self.ask(tid, op::LOOKUP, dir_node, &body, hint).await else {
            return Ok(false);
        };
        let entry = wire::entry(&reply)?;
        if entry.nodeid == 0 {
            return Ok(false);
        }
        if entry.nodeid != nodeid {
            self.forget(entry.nodeid, 1);
            return Ok(false);
        }
        self.count_lookup(&inode);
        if entry.attr.kind() != kind {
            return Ok(false);
        }
        self.change_attributes(inode.id, &entry.attr, entry.attr_valid_ns, version, false);
        self.keep_entry(dentry.id, entry.entry_valid_ns);
        Ok(true)
    }

    /// `fuse_lookup`.
    async fn fuse_lookup(
        &self,
        dir: &Ref,
        name: &[u8],
        tid: u32,
        hint: Option<Hint>,
    ) -> Result<Ref, Errno> {
        let version = self.version();
        let body = WireBody::default().name(name);
        let dir_node = self.with_inode(dir, |inode| inode.nodeid)?;
        let entry = match self.ask(tid, op::LOOKUP, dir_node, &body, hint).await {
            Ok(reply) => Some(wire::entry(&reply)?),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        let Some(entry) = entry.filter(|entry| entry.nodeid != 0) else {
            return self.splice(dir, name, None, 0);
        };
        if entry.nodeid == wire::ROOT_NODE {
            return Err(Errno::EIO);
        }
        let inode = self.iget(&entry, version);
        self.splice(dir, name, Some(&inode), entry.entry_valid_ns)
    }

    pub(super) fn with_inode<T>(
        &self,
        dentry: &Ref,
        f: impl FnOnce(&mut super::dcache::KernelInode) -> T,
    ) -> Result<T, Errno> {
        let inode = self.inode_of(dentry).ok_or(Errno::ENOENT)?;
        Ok(self.with(|all| f(all.inode_mut(inode.id))))
    }
}

/// What the kernel shows of the last name of a path after it has ended the walk.
pub(super) fn after_walk(intent: LookupIntent, paths: [Option<&PathArg>; 2], which: Which) -> Hint {
    let [own, other] = match which {
        Which::First => paths,
        Which::Second => [paths[1], paths[0]],
    };
    Hint {
        step: PathStep::Last(intent),
        first: own.is_some_and(PathArg::is_alone),
        path: Some(which),
        beside: other.is_some_and(|other| !other.is_alone()),
        reval: false,
    }
}
