//! Names and inodes that the kernel holds.

use std::collections::{BTreeMap, BTreeSet};

use saker_runtime::time::{self, Time};
use saker_types::Errno;
use std::time::Duration;

use super::Kernel;
use super::lock::KernelLock;
use super::wire::{ROOT_NODE, S_IFDIR, S_IFREG, WireAttr, WireBody, WireEntry, op};

/// The root's dentry.
pub const ROOT: usize = 0;

pub struct KernelDentry {
    pub parent: usize,
    pub name: Vec<u8>,
    /// None: there is nothing of this name.
    pub inode: Option<usize>,
    /// It may be used without asking until then.
    pub valid: Time,
    /// It can be found by its name.
    pub hashed: bool,
    children: BTreeSet<usize>,
    refs: usize,
}

pub struct KernelInode {
    pub nodeid: u64,
    pub attr: WireAttr,
    /// Attributes may be used until then.
    pub valid: Time,
    /// They must be asked for in any case.
    pub invalid: bool,
    pub version: u64,
    pub size: u64,
    /// A write or truncation is under way.
    pub size_unstable: bool,
    pub bad: bool,
    /// A directory that is removed.
    pub dead: bool,
    pub pages: BTreeMap<u64, Vec<u8>>,
    /// Counts how often pages were thrown away.
    pub dropped: u64,
    /// `i_rwsem`.
    pub lock: KernelLock,
    /// Of pages that are being read or written.
    pub filling: KernelLock,
    nlookup: u64,
    dentries: BTreeSet<usize>,
    refs: usize,
    found_by_node: bool,
}

/// All of them.
pub struct Dentries {
    dentries: BTreeMap<usize, KernelDentry>,
    names: BTreeMap<(usize, Vec<u8>), usize>,
    inodes: BTreeMap<usize, KernelInode>,
    by_node: BTreeMap<u64, usize>,
    next: usize,
}

impl Dentries {
    pub fn new() -> Dentries {
        let attr =
            WireAttr { ino: ROOT_NODE, mode: S_IFDIR | 0o755, nlink: 2, ..WireAttr::default() };
        let root = KernelDentry {
            parent: ROOT,
            name: Vec::new(),
            inode: Some(ROOT),
            valid: Time::MAX,
            hashed: true,
            children: BTreeSet::new(),
            refs: 1,
        };
        let mut inode = KernelInode::new(ROOT_NODE, attr);
        inode.dentries.insert(ROOT);
        Dentries {
            dentries: [(ROOT, root)].into(),
            names: BTreeMap::new(),
            inodes: [(ROOT, inode)].into(),
            by_node: [(ROOT_NODE, ROOT)].into(),
            next: 1,
        }
    }

    pub fn dentry(&self, id: usize) -> &KernelDentry {
        &self.dentries[&id]
    }

    pub fn dentry_mut(&mut self, id: usize) -> &mut KernelDentry {
        self.dentries.get_mut(&id).expect("who uses a dentry holds it")
    }

    pub fn inode(&self, id: usize) -> &KernelInode {
        &self.inodes[&id]
    }

    pub fn inode_mut(&mut self, id: usize) -> &mut KernelInode {
        self.inodes.get_mut(&id).expect("who uses an inode holds it")
    }

    /// Takes a name away from a dentry; who uses it goes on.
    fn unhash(&mut self, id: usize) {
        let dentry = self.dentry_mut(id);
        if std::mem::take(&mut dentry.hashed) {
            let key = (dentry.parent, dentry.name.clone());
            self.names.remove(&key);
        }
    }

    fn hash(&mut self, id: usize) {
        let dentry = self.dentry_mut(id);
        dentry.hashed = true;
        let key = (dentry.parent, dentry.name.clone());
        if let Some(before) = self.names.insert(key, id)
            && before != id
        {
            self.dentry_mut(before).hashed = false;
        }
    }
}

impl KernelInode {
    fn new(nodeid: u64, attr: WireAttr) -> KernelInode {
        KernelInode {
            nodeid,
            attr,
            valid: Time::ZERO,
            invalid: true,
            version: 0,
            size: attr.size,
            size_unstable: false,
            bad: false,
            dead: false,
            pages: BTreeMap::new(),
            dropped: 0,
            lock: KernelLock::default(),
            filling: KernelLock::default(),
            nlookup: 0,
            dentries: BTreeSet::new(),
            refs: 0,
            found_by_node: true,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.attr.kind() == S_IFDIR
    }

    pub fn drop_pages_from(&mut self, first: u64) {
        self.pages.retain(|page, _| *page < first);
        self.dropped += 1;
    }
}

/// A use of a dentry.
pub struct Ref {
    kernel: Kernel,
    pub id: usize,
}

impl Clone for Ref {
    fn clone(&self) -> Ref {
        self.kernel.dget(self.id)
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        self.kernel.put(self.id);
    }
}

/// A use of an inode.
pub struct InodeRef {
    kernel: Kernel,
    pub id: usize,
}

impl Clone for InodeRef {
    fn clone(&self) -> InodeRef {
        self.kernel.igrab(self.id)
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        self.kernel.put_inode(self.id);
    }
}

fn end(valid_ns: u64) -> Time {
    match valid_ns {
        0 => Time::ZERO,
        ns => time::now() + Duration::from_nanos(ns),
    }
}

impl Kernel {
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Dentries) -> T) -> T {
        f(&mut self.0.dentries.borrow_mut())
    }

    pub(super) fn dget(&self, id: usize) -> Ref {
        self.with(|all| all.dentry_mut(id).refs += 1);
        Ref { kernel: self.clone(), id }
    }

    pub(super) fn igrab(&self, id: usize) -> InodeRef {
        self.with(|all| all.inode_mut(id).refs += 1);
        InodeRef { kernel: self.clone(), id }
    }

    fn put(&self, id: usize) {
        let free = self.with(|all| {
            let dentry = all.dentry_mut(id);
            dentry.refs -= 1;
            // Fuse does not keep what may not be used without asking.
            dentry.refs == 0
                && dentry.children.is_empty()
                && (!dentry.hashed || dentry.valid <= time::now())
        });
        if free {
            self.kill(id);
        }
    }

    /// Frees a dentry that nobody uses, and those above that are only kept by it.
    fn kill(&self, id: usize) {
        let (inode, parent) = self.with(|all| {
            all.unhash(id);
            let dentry = all.dentries.remove(&id).expect("it was there");
            all.dentry_mut(dentry.parent).children.remove(&id);
            if let Some(inode) = dentry.inode {
                all.inode_mut(inode).dentries.remove(&id);
            }
            (dentry.inode, dentry.parent)
        });
        if let Some(inode) = inode {
            self.release_inode(inode);
        }
        let free = self.with(|all| {
            let dentry = all.dentry(parent);
            dentry.refs == 0
                && dentry.children.is_empty()
                && (!dentry.hashed || dentry.valid <= time::now())
        });
        if free {
            self.kill(parent);
        }
    }

    fn put_inode(&self, id: usize) {
        self.with(|all| all.inode_mut(id).refs -= 1);
        self.release_inode(id);
    }

    /// Forgets an inode that nobody uses.
    fn release_inode(&self, id: usize) {
        let forgotten = self.with(|all| {
            let inode = all.inode(id);
            if inode.refs > 0 || !inode.dentries.is_empty() {
                return None;
            }
            let inode = all.inodes.remove(&id)?;
            if inode.found_by_node {
                all.by_node.remove(&inode.nodeid);
            }
            Some((inode.nodeid, inode.nlookup))
        });
        if let Some((nodeid, nlookup)) = forgotten {
            self.forget(nodeid, nlookup);
        }
    }

    pub(super) fn forget(&self, nodeid: u64, nlookup: u64) {
        if nlookup > 0 {
            self.tell(op::FORGET, nodeid, WireBody::default().u64(nlookup));
        }
    }

    /// Frees all that nobody uses.
    pub(super) fn prune(&self) {
        loop {
            let unused = self.with(|all| {
                let is_unused =
                    |dentry: &KernelDentry| dentry.refs == 0 && dentry.children.is_empty();
                all.dentries.iter().find(|(_, dentry)| is_unused(dentry)).map(|(id, _)| *id)
            });
            match unused {
                Some(id) => self.kill(id),
                None => return,
            }
        }
    }

    /// Frees what nobody uses below a dentry.
    pub(super) fn prune_below(&self, top: usize) {
        loop {
            let unused = self.with(|all| {
                let is_unused = |(id, dentry): &(&usize, &KernelDentry)| {
                    dentry.refs == 0
                        && dentry.children.is_empty()
                        && **id != top
                        && is_below(all, **id, top)
                };
                all.dentries.iter().find(is_unused).map(|(id, _)| *id)
            });
            match unused {
                Some(id) => self.kill(id),
                None => return,
            }
        }
    }

    // ---- names ----------------------------------------------------------------------------

    /// `__d_lookup`.
    pub(super) fn find(&self, dir: usize, name: &[u8]) -> Option<Ref> {
        let id = self.with(|all| all.names.get(&(dir, name.to_vec())).copied())?;
        Some(self.dget(id))
    }

    /// `d_invalidate`.
    pub(super) fn invalidate(&self, dentry: &Ref) {
        let is_positive = self.with(|all| {
            all.unhash(dentry.id);
            all.dentry(dentry.id).inode.is_some()
        });
        if is_positive {
            self.prune_below(dentry.id);
        }
    }

    /// Is `top` the dentry, or above it?
    pub(super) fn is_ancestor(&self, top: usize, dentry: usize) -> bool {
        self.with(|all| top == dentry || is_below(all, dentry, top))
    }

    /// The child of `top` that is above, or is, the dentry.
    pub(super) fn child_towards(&self, top: usize, dentry: usize) -> Option<usize> {
        self.with(|all| {
            let mut id = dentry;
            while id != ROOT {
                let parent = all.dentry(id).parent;
                if parent == top {
                    return Some(id);
                }
                id = parent;
            }
            None
        })
    }

    /// A new dentry that can be found.
    fn add(&self, dir: usize, name: &[u8], inode: Option<usize>) -> Ref {
        self.with(|all| {
            let id = all.next;
            all.next += 1;
            let dentry = KernelDentry {
                parent: dir,
                name: name.to_vec(),
                inode,
                valid: Time::ZERO,
                hashed: false,
                children: BTreeSet::new(),
                refs: 1,
            };
            all.dentries.insert(id, dentry);
            all.dentry_mut(dir).children.insert(id);
            if let Some(inode) = inode {
                all.inode_mut(inode).dentries.insert(id);
            }
            all.hash(id);
            Ref { kernel: self.clone(), id }
        })
    }

    /// `d_splice_alias`: the dentry of what was found as `name`.
    pub(super) fn splice(
        &self,
        dir: &Ref,
        name: &[u8],
        inode: Option<&InodeRef>,
        valid_ns: u64,
    ) -> Result<Ref, Errno> {
        let alias = inode.and_then(|inode| {
            self.with(|all| {
                let inode = all.inode(inode.id);
                if inode.is_dir() { inode.dentries.first().copied() } else { None }
            })
        });
        let dentry = match alias {
            Some(alias) => {
                if self.is_ancestor(alias, dir.id) {
                    return Err(Errno::ELOOP);
                }
                let alias = self.dget(alias);
                self.rename_dentry(alias.id, dir.id, name);
                alias
            }
            None => self.add(dir.id, name, inode.map(|inode| inode.id)),
        };
        self.with(|all| all.dentry_mut(dentry.id).valid = end(valid_ns));
        Ok(dentry)
    }

    /// `d_move`.
    pub(super) fn rename_dentry(&self, id: usize, dir: usize, name: &[u8]) {
        let before = self.with(|all| {
            all.unhash(id);
            let before = all.dentry(id).parent;
            all.dentry_mut(before).children.remove(&id);
            let dentry = all.dentry_mut(id);
            (dentry.parent, dentry.name) = (dir, name.to_vec());
            all.dentry_mut(dir).children.insert(id);
            all.hash(id);
            before
        });
        let free = self.with(|all| {
            let dentry = all.dentry(before);
            dentry.refs == 0
                && dentry.children.is_empty()
                && (!dentry.hashed || dentry.valid <= time::now())
        });
        if free {
            self.kill(before);
        }
    }

    /// `d_exchange`.
    pub(super) fn exchange_dentries(&self, a: usize, b: usize) {
        let (to_a, to_b) = self.with(|all| {
            let at = |id: usize| (all.dentry(id).parent, all.dentry(id).name.clone());
            (at(b), at(a))
        });
        self.with(|all| {
            all.unhash(a);
            all.unhash(b);
        });
        self.rename_dentry(a, to_a.0, &to_a.1);
        self.rename_dentry(b, to_b.0, &to_b.1);
    }

    /// `d_delete`: what is there is removed.
    pub(super) fn delete_dentry(&self, dentry: &Ref) {
        self.with(|all| all.unhash(dentry.id));
    }

    /// `fuse_change_entry_timeout`.
    pub(super) fn keep_entry(&self, dentry: usize, valid_ns: u64) {
        self.with(|all| all.dentry_mut(dentry).valid = end(valid_ns));
    }

    /// `fuse_invalidate_entry`.
    pub(super) fn drop_entry(&self, dentry: &Ref) {
        self.invalidate(dentry);
        self.with(|all| all.dentry_mut(dentry.id).valid = Time::ZERO);
    }

    pub(super) fn inode_of(&self, dentry: &Ref) -> Option<InodeRef> {
        let id = self.with(|all| all.dentry(dentry.id).inode)?;
        Some(self.igrab(id))
    }

    /// The inode of a directory that somebody uses.
    pub(super) fn dir_of(&self, dentry: &Ref) -> Result<InodeRef, Errno> {
        let inode = self.inode_of(dentry).ok_or(Errno::ENOENT)?;
        match self.with(|all| all.inode(inode.id).is_dir()) {
            true => Ok(inode),
            false => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn node_of(&self, inode: &InodeRef) -> u64 {
        self.with(|all| all.inode(inode.id).nodeid)
    }

    pub(super) fn kind_of(&self, inode: &InodeRef) -> u32 {
        self.with(|all| all.inode(inode.id).attr.kind())
    }

    // ---- inodes ---------------------------------------------------------------------------

    /// `fuse_iget`.
    pub(super) fn iget(&self, entry: &WireEntry, version: u64) -> InodeRef {
        let known = self.with(|all| {
            let id = all.by_node.get(&entry.nodeid).copied()?;
            let inode = all.inode_mut(id);
            if inode.attr.kind() != entry.attr.kind() {
                (inode.bad, inode.found_by_node) = (true, false);
                all.by_node.remove(&entry.nodeid);
                return None;
            }
            Some(id)
        });
        let is_new = known.is_none();
        let id = known.unwrap_or_else(|| {
            self.with(|all| {
                let id = all.next;
                all.next += 1;
                all.inodes.insert(id, KernelInode::new(entry.nodeid, entry.attr));
                all.by_node.insert(entry.nodeid, id);
                id
            })
        });
        let inode = self.igrab(id);
        self.with(|all| all.inode_mut(id).nlookup += 1);
        self.change_attributes(id, &entry.attr, entry.attr_valid_ns, version, is_new);
        inode
    }

    pub(super) fn count_lookup(&self, inode: &InodeRef) {
        self.with(|all| all.inode_mut(inode.id).nlookup += 1);
    }

    /// `fuse_change_attributes`. `version`: when they were asked for.
    pub(super) fn change_attributes(
        &self,
        id: usize,
        attr: &WireAttr,
        valid_ns: u64,
        version: u64,
        is_new: bool,
    ) {
        let next = self.next_version();
        self.with(|all| {
            let inode = all.inode_mut(id);
            if !is_new && (inode.version > version || inode.size_unstable) {
                return;
            }
            let (size, mtime) = (inode.size, inode.attr.mtime);
            inode.version = next;
            (inode.attr, inode.valid, inode.invalid) = (*attr, end(valid_ns), false);
            inode.size = attr.size;
            if attr.kind() != S_IFREG || is_new {
                return;
            }
            if size != attr.size || mtime != attr.mtime {
                inode.drop_pages_from(0);
            }
        });
    }

    /// The reply to a SETATTR counts in any case (`fuse_do_setattr`).
    pub(super) fn set_attributes(
        &self,
        id: usize,
        attr: &WireAttr,
        valid_ns: u64,
        truncated: bool,
    ) {
        let next = self.next_version();
        self.with(|all| {
            let inode = all.inode_mut(id);
            let size = inode.size;
            inode.version = next;
            (inode.attr, inode.valid, inode.invalid) = (*attr, end(valid_ns), false);
            inode.size = attr.size;
            if truncated {
                inode.size_unstable = false;
            }
            if attr.kind() == S_IFREG && size != attr.size {
                inode.drop_pages_from(0);
            }
        });
    }

    /// FUSE_NOTIFY_INVAL_INODE.
    pub(super) fn inval(&self, nodeid: u64, pages: bool) {
        let next = self.next_version();
        self.with(|all| {
            let Some(id) = all.by_node.get(&nodeid).copied() else { return };
            let inode = all.inode_mut(id);
            (inode.version, inode.invalid) = (next, true);
            if pages {
                inode.drop_pages_from(0);
            }
        });
    }

    /// `fuse_entry_unlinked`.
    pub(super) fn unlinked(&self, dentry: &Ref) {
        let next = self.next_version();
        self.with(|all| {
            all.dentry_mut(dentry.id).valid = Time::ZERO;
            let Some(id) = all.dentry(dentry.id).inode else { return };
            let inode = all.inode_mut(id);
            inode.version = next;
            inode.attr.nlink = inode.attr.nlink.saturating_sub(1);
            inode.invalid = true;
        });
    }

    /// `fuse_dir_changed`.
    pub(super) fn dir_changed(&self, dir: &InodeRef) {
        self.with(|all| all.inode_mut(dir.id).invalid = true);
    }
}

fn is_below(all: &Dentries, mut id: usize, top: usize) -> bool {
    while id != ROOT {
        id = all.dentry(id).parent;
        if id == top {
            return true;
        }
    }
    false
}
