//! The table of nodes and names.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use saker_runtime::telemetry::Gauge;
use saker_runtime::time::{self, Time};
use saker_types::id::{GUESSES, compose};
use saker_types::limits::NAME_CONTENDED;
use saker_types::wire::{Entry, KeptDir};
use saker_types::{Attr, FileKind, InodeId, Locator, ROOT, Result, Stamp};

use super::keep::Keep;
use super::{DataVersion, FuseNodeId, stale};
use crate::refusals::Tellings;

/// Guesses have the allocator number that no shard can have. All from here on are guesses.
pub(super) const FIRST_GUESS: FuseNodeId = compose(GUESSES, 0);
/// Names kept that are not what the kernel was told.
const CONFLICTS_MAX: usize = 1024;
/// They are kept this long: until the kernel has walked again, for which it may look up the name
/// more than once, and forget it in between.
const CONFLICT_TIME: Duration = Duration::from_secs(5);

type Name = (FuseNodeId, Bytes);

/// What there is of a node.
pub(super) struct Node {
    pub(super) what: What,
    /// Names that the kernel has for it, the newest last. Only with guesses.
    pub(super) names: Vec<Name>,
    /// Replies that named it, less what was forgotten.
    pub(super) lookups: u64,
    /// Pages that the kernel has cached hold data of this version or a later one.
    pub(super) cached: Option<DataVersion>,
    /// It was found not to be what its name leads to.
    pub(super) stale: bool,
    /// A server has found it on a way that everybody may walk: that counts until then.
    pub(super) free_until: Time,
    /// A directory's name: how long the kernel may keep it.
    pub(super) keep: Keep,
    /// The kernel may have attributes of it that no reply has told it: it was written here, say.
    pub(super) attr_stale: bool,
    /// Of the newest attributes that a reply has told. Replies can overtake each other.
    pub(super) newest: Age,
    /// What the kernel was told last, and when.
    pub(super) told: (Age, Time),
    /// Until then the kernel may have older attributes than that.
    pub(super) behind: Time,
    /// How often it was told anything.
    pub(super) tellings: Arc<Tellings>,
    /// It has a name that was another node's until a LOOKUP: whoever removes that name at the same time has
    /// the other one for it.
    pub(super) displaces: bool,
    /// It is known by a lease; the kernel still thinks what it was told of a guess.
    pub(super) attr_guessed: bool,
}

/// Of two states of an inode, the newer one's is not lower.
pub(super) type Age = (u64, Stamp);

pub(super) fn age(attr: &Attr) -> Age {
    (attr.data_version, attr.ctime_ns)
}

pub(super) enum What {
    /// Something that is said to be of this kind.
    Guess(FileKind),
    /// An inode.
    Known {
        loc: Locator,
        /// As last seen.
        attr: Box<Attr>,
    },
}

impl What {
    fn of(entry: &Entry) -> What {
        What::Known { loc: entry.loc.owned(), attr: Box::new(entry.attr.clone()) }
    }
}

/// All nodes.
pub(super) struct NodeTable {
    pub(super) nodes: FxHashMap<FuseNodeId, Node>,
    /// Users choose names, so that nobody may know how they are hashed.
    pub(super) names: HashMap<Name, FuseNodeId>,
    /// See [`NodeTable::is_eager`].
    eager_from: Time,
    /// Nodes of inodes that have another number: they were guesses first.
    aliases: FxHashMap<InodeId, FuseNodeId>,
    /// Until when each is kept.
    conflicts: HashMap<Name, Time>,
    next_guess: FuseNodeId,
    /// Nodes held, besides the root.
    pub(super) count: Gauge,
}

impl NodeTable {
    pub(super) fn new(held: Gauge) -> NodeTable {
        let attr = Attr { id: ROOT, mode: FileKind::Directory.bits() | 0o755, ..Attr::default() };
        let what = What::Known { loc: Locator::root(), attr: Box::new(attr) };
        let mut table = NodeTable {
            nodes: FxHashMap::default(),
            names: HashMap::new(),
            eager_from: Time::ZERO,
            aliases: FxHashMap::default(),
            conflicts: HashMap::new(),
            next_guess: FIRST_GUESS,
            count: held,
        };
        table.nodes.insert(ROOT, Node { lookups: 1, ..Node::new(what) });
        table
    }

    pub(super) fn get(&self, id: FuseNodeId) -> Result<&Node> {
        self.nodes.get(&id).ok_or_else(stale)
    }

    pub(super) fn get_mut(&mut self, id: FuseNodeId) -> Result<&mut Node> {
        self.nodes.get_mut(&id).ok_or_else(stale)
    }

    /// The node of an inode, if the kernel holds it.
    pub(super) fn node_of(&self, inode: InodeId) -> FuseNodeId {
        self.aliases.get(&inode).copied().unwrap_or(inode)
    }

    /// The node that the kernel has for a name.
    pub(super) fn named(&self, dir: FuseNodeId, name: &Bytes) -> Option<FuseNodeId> {
        self.names.get(&(dir, name.clone())).copied()
    }

    /// A new guess, not held yet.
    pub(super) fn guess(
        &mut self,
        dir: FuseNodeId,
        name: &Bytes,
        kind: FileKind,
    ) -> Option<FuseNodeId> {
        if !self.nodes.contains_key(&dir) || self.is_conflict(dir, name) {
            return None;
        }
        let id = self.next_guess;
        self.next_guess += 1;
        self.add(id, What::Guess(kind));
        self.name(id, dir, name);
        Some(id)
    }

    fn add(&mut self, id: FuseNodeId, what: What) {
        self.count.add(1);
        self.nodes.insert(id, Node::new(what));
    }

    pub(super) fn count_lookup(&mut self, id: FuseNodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
        }
    }

    /// The node of an inode, as a reply describes it.
    pub(super) fn known(&mut self, entry: &Entry) -> FuseNodeId {
        let id = self.node_of(entry.attr.id);
        if self.nodes.contains_key(&id) {
            self.refresh(entry);
        } else {
            self.add(id, What::of(entry));
        }
        id
    }

    /// The node of the inode that a name leads to.
    pub(super) fn named_as(&mut self, dir: FuseNodeId, name: &Bytes, entry: &Entry) -> FuseNodeId {
        if let Some(id) = self.named(dir, name)
            && entry.attr.is_dir()
            && self.bind(id, entry)
        {
            return id;
        }
        let id = self.known(entry);
        if self.named(dir, name) != Some(id) {
            let displaces = self.unname(dir, name).is_some();
            if entry.attr.is_dir() {
                // It has no other.
                self.unname_all(id);
            }
            self.name(id, dir, name);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.displaces |= displaces;
            }
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.stale = false;
        }
        id
    }

    /// A node is this directory: true if it is, or as a guess can become it.
    pub(super) fn bind(&mut self, id: FuseNodeId, entry: &Entry) -> bool {
        let inode = entry.attr.id;
        let other = self.node_of(inode);
        let taken = other != id && self.nodes.contains_key(&other);
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        match &node.what {
            What::Known { loc, .. } if loc.id != inode => return false,
            What::Guess(kind) if taken || *kind != entry.attr.kind() => return false,
            What::Guess(_) | What::Known { .. } => {}
        }
        node.what = What::of(entry);
        node.newest = node.newest.max(age(&entry.attr));
        (node.stale, node.attr_guessed) = (false, false);
        if id != inode {
            self.aliases.insert(inode, id);
        }
        true
    }

    /// A server has met a directory as `name` in `pid`, which is this node's name: true if the node is
    /// that, or as a guess becomes it. A guess that cannot is looked up.
    ///
    /// Nobody sees the attributes that it does not say: they are asked for before.
    pub(super) fn meet(
        &mut self,
        id: FuseNodeId,
        dir: &KeptDir,
        pid: InodeId,
        name: &Bytes,
    ) -> bool {
        match self.nodes.get(&id).map(|node| &node.what) {
            Some(What::Known { loc, .. }) => return loc.id == dir.id,
            Some(What::Guess(FileKind::Directory)) => {}
            _ => return false,
        }
        let KeptDir { id: inode, mode, uid, gid, policy, .. } = *dir;
        let attr = Attr { id: inode, mode, uid, gid, nlink: 2, ..Attr::default() };
        let loc = Locator::entry(pid, name.clone(), inode).under(policy);
        let met = self.bind(id, &Entry { attr, loc, ..Entry::default() });
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.stale, node.attr_guessed) = (!met, met);
        }
        met
    }

    pub(super) fn refresh(&mut self, entry: &Entry) {
        let id = self.node_of(entry.attr.id);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Node { what: What::Known { loc, attr }, attr_stale, newest, .. } = node else { return };
        *newest = (*newest).max(age(&entry.attr));
        // Replies can overtake each other; the kernel heeds those in the order that it sees.
        *attr_stale |= entry.attr.data_version < attr.data_version;
        **attr = entry.attr.clone();
        if *loc != entry.loc {
            *loc = entry.loc.owned();
        }
    }

    /// `st_mode` of an inode as last seen; 0 if the kernel does not hold it.
    pub(super) fn mode(&self, id: FuseNodeId) -> u32 {
        match self.nodes.get(&id).map(|node| &node.what) {
            Some(What::Known { attr, .. }) => attr.mode,
            Some(What::Guess(_)) | None => 0,
        }
    }

    pub(super) fn mark_attr_stale(&mut self, id: FuseNodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.attr_stale = true;
        }
    }

    /// An inode is elsewhere now.
    pub(super) fn moved(&mut self, to: &Locator) {
        let id = self.node_of(to.id);
        if let Some(Node { what: What::Known { loc, .. }, .. }) = self.nodes.get_mut(&id) {
            *loc = to.owned();
        }
    }

    /// The kernel has this name for a node.
    pub(super) fn name(&mut self, id: FuseNodeId, dir: FuseNodeId, name: &Bytes) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let own = (dir, Bytes::copy_from_slice(name));
        node.names.push(own.clone());
        self.names.insert(own, id);
    }

    /// The kernel has the name for nothing, or will. For what it had it.
    pub(super) fn unname(&mut self, dir: FuseNodeId, name: &Bytes) -> Option<FuseNodeId> {
        let key = (dir, name.clone());
        let id = self.names.remove(&key)?;
        let node = self.nodes.get_mut(&id)?;
        node.names.retain(|other| *other != key);
        node.keep.end();
        Some(id)
    }

    fn unname_all(&mut self, id: FuseNodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.keep.end();
        for name in std::mem::take(&mut node.names) {
            self.names.remove(&name);
        }
    }

    /// Something is changed in a directory.
    pub(super) fn changed_in(&mut self, dir: FuseNodeId) {
        let (mut id, now) = (dir, time::now());
        // If it is known of one it is known of those above.
        while let Some(node) = self.nodes.get_mut(&id) {
            if !node.keep.change(now) {
                return;
            }
            let Some((above, _)) = node.names.last() else { return };
            id = *above;
        }
    }

    /// Whoever changes a directory has to wait, and that was not worth it.
    pub(super) fn is_contended(&self, id: FuseNodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.keep.is_contended(time::now()))
    }

    /// Somebody has waited so: for a while only names that are in use for long count.
    pub(super) fn note_contention(&mut self) {
        self.eager_from = time::now() + NAME_CONTENDED;
    }

    /// Names may be kept that were not in use for long.
    pub(super) fn is_eager(&self, now: Time) -> bool {
        now >= self.eager_from
    }

    pub(super) fn is_conflict(&self, dir: FuseNodeId, name: &Bytes) -> bool {
        !self.conflicts.is_empty()
            && self.conflicts.get(&(dir, name.clone())).is_some_and(|until| time::now() < *until)
    }

    pub(super) fn note_conflict(&mut self, dir: FuseNodeId, name: &Bytes) {
        let now = time::now();
        self.conflicts.retain(|_, until| now < *until);
        if self.conflicts.len() < CONFLICTS_MAX {
            self.conflicts.insert((dir, Bytes::copy_from_slice(name)), now + CONFLICT_TIME);
        }
    }

    pub(super) fn forget(&mut self, id: FuseNodeId, count: u64) {
        if id == ROOT {
            return;
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups > 0 {
            return;
        }
        self.unname_all(id);
        if let Some(Node { what: What::Known { loc, .. }, .. }) = self.nodes.remove(&id) {
            self.end_alias(id, loc.id);
        }
        self.count.add(-1);
    }

    fn end_alias(&mut self, id: FuseNodeId, inode: InodeId) {
        let alias = self.node_of(inode);
        if alias == id && self.nodes.contains_key(&inode) {
            // That one is disowned.
            self.renumber(inode);
        } else if alias == id || !self.nodes.contains_key(&alias) {
            self.aliases.remove(&inode);
        }
    }

    /// An inode's node is another one from the next reply on.
    fn renumber(&mut self, inode: InodeId) {
        self.aliases.insert(inode, self.next_guess);
        self.next_guess += 1;
    }

    /// The kernel takes this directory for removed, and will never do anything in this node again.
    /// If the directory is there it is another node from now on.
    pub(super) fn disown(&mut self, id: FuseNodeId) {
        let Some(Node { what: What::Known { loc, .. }, .. }) = self.nodes.get(&id) else { return };
        let inode = loc.id;
        if self.node_of(inode) == id {
            self.unname_all(id);
            self.renumber(inode);
        }
    }
}

impl Node {
    fn new(what: What) -> Node {
        let newest = match &what {
            What::Known { attr, .. } => age(attr),
            What::Guess(_) => Age::default(),
        };
        Node {
            what,
            names: Vec::new(),
            lookups: 0,
            cached: None,
            stale: false,
            free_until: Time::ZERO,
            keep: Keep::default(),
            attr_stale: false,
            newest,
            told: (Age::default(), Time::ZERO),
            behind: Time::ZERO,
            tellings: Arc::default(),
            displaces: false,
            attr_guessed: false,
        }
    }
}
