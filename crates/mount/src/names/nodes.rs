//! What the kernel holds: its nodes, what is known of each, and by which names it found them.
//!
//! The kernel counts the replies that named a node, and gives the count back when it forgets it;
//! so the table is exactly as large as the kernel's cache, which the kernel bounds.
//!
//! A *known* node is an inode that a server has spoken of; requests about it go to that inode. With
//! the shortcut, a directory on the way to something is answered without asking anybody: then all
//! there is of it is a *guess*, "the directory of this name in that one", with a number of its own,
//! until it is looked up for its own sake, or a server lends its name (`keep`). A request names what it
//! is about by the names that its own walk has passed ([`Walk`]), and says of the known directories on the
//! way which inodes they are ([`At::expect`]). Where a server finds another one, the node is *stale*: it
//! is looked up before it is walked through again. Who is in it (a working directory, an open one) begins
//! there, and stays at its inode wherever that is. What the table has a node by is for the next walk: no
//! call that has passed it goes by that.

mod keep;
mod table;

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use saker_client::{Caller, Lessee};
use saker_runtime::sim::mutation;
use saker_runtime::telemetry::Gauge;
use saker_runtime::time::{self, Time};
use saker_types::error::SECOND_PATH;
use saker_types::limits::{COMPONENTS_MAX, NAME_KEEP, NAME_KEEP_MAX};
use saker_types::wire::{At, Entry, KeptDir};
use saker_types::{
    Attr, Class, Errno, Error, FileKind, InodeId, Locator, ROOT, Result, Stamp, access,
};

use crate::names::walk::Walk;
use crate::options::Leases;
use crate::refusals::Tellings;
use table::{Node, NodeTable, What, age};

/// A node's number.
pub(crate) type FuseNodeId = u64;

/// The nodes. All methods may be called from many threads.
pub(crate) struct Nodes {
    table: Arc<Mutex<NodeTable>>,
    /// There are guesses: what is below a directory goes by its path from where a walk began.
    by_path: bool,
    leases: Leases,
}

/// Which data a file holds. It grows with each change of data in the file's row, and whenever the
/// owner hears that data has reached the stores: so pages that were read since an open that saw
/// this version are right as long as opens see it. (Of a writer that dies before it has told,
/// they may or may not have what it wrote.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataVersion {
    data_version: u64,
    truncate_gen: u64,
    size: u64,
    mtime_ns: Stamp,
}

impl DataVersion {
    /// The version that an open saw.
    pub(crate) fn of(attr: &Attr) -> DataVersion {
        let Attr { data_version, truncate_gen, size, mtime_ns, .. } = *attr;
        DataVersion { data_version, truncate_gen, size, mtime_ns }
    }
}

/// What a node is, as far as that is known.
#[derive(Debug)]
pub(crate) enum NodeIdentity {
    /// This inode.
    Known(Locator),
    /// Whatever is there.
    Guess(At),
}

/// A directory that is walked through.
pub(crate) struct Passed {
    pub(crate) node: FuseNodeId,
    /// As last seen, if ever.
    pub(crate) attr: Option<Attr>,
    /// The inode; 0: nobody knows.
    pub(crate) id: InodeId,
    /// For how long it will be what the name leads to.
    pub(crate) keep: Duration,
}

/// A name in a directory, as a server is asked for it.
pub(crate) struct Named {
    pub(crate) dir: FuseNodeId,
    pub(crate) name: Bytes,
    pub(crate) at: At,
    /// The user that `at.keep_ms` is for.
    lessee: Option<Arc<Leased>>,
}

impl Named {
    /// The caller that asks for it, and is told of the leases that `at` asks for.
    pub(crate) fn for_caller(&self, who: Caller) -> Caller {
        let lessee = self.lessee.clone().map(|leased| leased as Arc<dyn Lessee>);
        Caller { lessee, ..who }
    }
}

/// Directories whose names the kernel may keep if a server says so.
struct Leased {
    table: Arc<Mutex<NodeTable>>,
    asked: Time,
    /// What the names are below is there until then.
    base: Time,
    /// The directory that they are below.
    anchor: InodeId,
    /// Each with its name, and the version of that.
    nodes: Vec<(FuseNodeId, Bytes, u32)>,
}

impl Lessee for Leased {
    /// Those that were guesses are known now.
    fn lent(&self, dirs: &[KeptDir]) {
        let mut table = lock(&self.table);
        let (mut pid, mut above) = (self.anchor, self.base);
        for ((id, name, version), dir) in self.nodes.iter().zip(dirs) {
            match table.nodes.get(id) {
                Some(node) if node.keep.version == *version && !node.stale => {}
                _ => return,
            }
            if !table.meet(*id, dir, pid, name) {
                return;
            }
            if let Some(Node { keep, .. }) = table.nodes.get_mut(id) {
                let until = self.asked + Duration::from_millis(dir.keep_ms.into());
                keep.until = keep.until.max(until.min(above));
                above = keep.until;
            }
            pid = dir.id;
        }
    }
}

fn lock(table: &Mutex<NodeTable>) -> MutexGuard<'_, NodeTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nodes {
    /// A table with the root, which is never forgotten. `held` counts the others. `by_path`: there
    /// will be guesses, and `leases` on names.
    pub(crate) fn new(held: Gauge, by_path: bool, leases: Leases) -> Nodes {
        Nodes { table: Arc::new(Mutex::new(NodeTable::new(held))), by_path, leases }
    }

    fn lock(&self) -> MutexGuard<'_, NodeTable> {
        lock(&self.table)
    }

    /// What a node is.
    ///
    /// # Errors
    /// ESTALE for one that the kernel does not hold.
    pub(crate) fn place(&self, id: FuseNodeId) -> Result<NodeIdentity> {
        let table = self.lock();
        match &table.get(id)?.what {
            What::Known { loc, .. } => Ok(NodeIdentity::Known(loc.clone())),
            What::Guess(_) => Ok(NodeIdentity::Guess(NodePath::to(&table, id)?.at())),
        }
    }

    /// Where an inode is.
    ///
    /// # Errors
    /// ESTALE for a node that the kernel does not hold, or that is a guess.
    pub(crate) fn locate(&self, id: FuseNodeId) -> Result<Locator> {
        match self.place(id)? {
            NodeIdentity::Known(loc) => Ok(loc),
            NodeIdentity::Guess(_) => Err(stale()),
        }
    }

    /// A name in the directory that a walk has come to.
    ///
    /// # Errors
    /// ESTALE for a directory that the kernel does not hold.
    pub(crate) fn child(&self, walk: &Walk, name: &Bytes) -> Result<At> {
        if !self.by_path {
            return Ok(At::below(self.locate(walk.at())?, vec![name.clone()]));
        }
        let mut at = NodePath::of(&self.lock(), walk)?.at();
        at.path.push(name.clone());
        Ok(at)
    }

    /// The same by names alone, for a walk that began at the root and found each name.
    pub(crate) fn by_names(&self, walk: &Walk, name: &Bytes) -> Option<At> {
        let is_found = walk.start == ROOT && walk.steps.iter().all(|step| step.found);
        let names = walk.steps.iter().map(|step| &step.name).chain([name]);
        is_found.then(|| At::below(Locator::root(), names.cloned().collect()))
    }

    /// The same, to ask for a lease, too, on names on the way that the kernel asks for often: if it is asked
    /// for by [`Named::for_caller`].
    ///
    /// # Errors
    /// As [`Nodes::child`].
    pub(crate) fn named(&self, walk: &Walk, name: &Bytes) -> Result<Named> {
        let dir = walk.at();
        if !self.by_path {
            let at = self.child(walk, name)?;
            return Ok(Named { dir, name: name.clone(), at, lessee: None });
        }
        let mut table = self.lock();
        let way = NodePath::of(&table, walk)?;
        let (lessee, keep_ms) = way.to_lease(self, &mut table, time::now()).unzip();
        drop(table);
        let mut at = way.at();
        at.path.push(name.clone());
        at.keep_ms = keep_ms.unwrap_or_default();
        Ok(Named { dir, name: name.clone(), at, lessee: lessee.map(Arc::new) })
    }

    /// The kernel walks through a name: its node is held once more. `None`: it must be looked up.
    pub(crate) fn pass(&self, dir: FuseNodeId, name: &Bytes) -> Option<Passed> {
        let mut table = self.lock();
        let id = match table.named(dir, name) {
            Some(id) => id,
            None => table.guess(dir, name, FileKind::Directory)?,
        };
        let node = table.nodes.get_mut(&id).filter(|node| !node.stale)?;
        let now = time::now();
        node.keep.ask(now);
        let (id_of, attr) = match &node.what {
            What::Guess(FileKind::Directory) => (0, None),
            What::Known { loc, attr } if attr.is_dir() => (loc.id, Some((**attr).clone())),
            What::Guess(_) | What::Known { .. } => return None,
        };
        node.lookups += 1;
        node.attr_guessed = false;
        let keep = node.keep.left(now).max(node.free_until.since(now));
        Some(Passed { node: id, attr, id: id_of, keep })
    }

    /// A name in a directory is made, removed or changed.
    pub(crate) fn changed_in(&self, dir: FuseNodeId) {
        if self.leases != Leases::Off {
            self.lock().changed_in(dir);
        }
    }

    /// Whoever changes a directory now has to wait because its name is kept, and that was not worth it.
    pub(crate) fn is_contended(&self, node: FuseNodeId) -> bool {
        self.leases != Leases::Off && self.lock().is_contended(node)
    }

    /// The same, of one that is to be renamed or removed.
    pub(crate) fn is_contended_name(&self, dir: FuseNodeId, name: &Bytes) -> bool {
        if self.leases == Leases::Off {
            return false;
        }
        let table = self.lock();
        table.named(dir, name).is_some_and(|node| table.is_contended(node))
    }

    /// A change is made, of a name whose lease was `contended`, if it was: somebody has waited.
    pub(crate) fn changed_itself(&self, contended: bool) {
        if contended {
            self.lock().note_contention();
        }
    }

    /// The node of an inode, if the kernel holds that.
    pub(crate) fn of(&self, inode: InodeId) -> FuseNodeId {
        self.lock().node_of(inode)
    }

    /// A server has found something in a directory, on a way that everybody may walk: the kernel may keep
    /// the names on it for so long.
    pub(crate) fn prove(&self, dir: FuseNodeId, keep: Duration) {
        let until = time::now() + keep;
        let mut table = self.lock();
        let mut id = dir;
        while let Some(node) = table.nodes.get_mut(&id).filter(|node| node.free_until < until) {
            node.free_until = until;
            match node.names.last() {
                Some((parent, _)) => id = *parent,
                None => break,
            }
        }
    }

    /// A directory, or something else, is about to be removed: the node that the kernel has for it
    /// with its attributes, or a new one without any; held once more. `None`: it must be looked up.
    pub(crate) fn pretend(
        &self,
        dir: FuseNodeId,
        name: &Bytes,
        is_dir: bool,
    ) -> Option<(FuseNodeId, Option<Attr>)> {
        let mut table = self.lock();
        let id = match table.named(dir, name) {
            // Of what is in a sticky directory the kernel needs to know the owner.
            Some(_) if table.mode(dir) & access::S_ISVTX != 0 => return None,
            Some(id) => id,
            None => {
                let kind = if is_dir { FileKind::Directory } else { FileKind::Regular };
                let id = table.guess(dir, name, kind)?;
                table.count_lookup(id);
                return Some((id, None));
            }
        };
        let node = table.nodes.get_mut(&id).filter(|node| !node.stale && !node.attr_stale)?;
        let What::Known { attr, .. } = &node.what else { return None };
        let attr = (attr.is_dir() == is_dir).then(|| (**attr).clone())?;
        node.lookups += 1;
        Some((id, Some(attr)))
    }

    /// May the kernel be told that a name is free, since what it does then will show? Not if it
    /// holds what is there.
    pub(crate) fn may_be_free(&self, dir: FuseNodeId, name: &Bytes) -> bool {
        let table = self.lock();
        table.named(dir, name).is_none() && !table.is_conflict(dir, name)
    }

    /// Has the walk come through a node, or is it below it by now, as far as the kernel knows? It is if
    /// that cannot be told.
    pub(crate) fn is_inside(&self, walk: &Walk, node: FuseNodeId) -> bool {
        if walk.has(node) {
            return true;
        }
        let table = self.lock();
        let mut id = walk.at();
        for _ in 0..COMPONENTS_MAX {
            match table.nodes.get(&id).and_then(|node| node.names.last()) {
                _ if id == node => return true,
                _ if id == ROOT => return false,
                Some((parent, _)) => id = *parent,
                None => return true,
            }
        }
        true
    }

    /// Is this directory to the kernel a guess, and must it see the attributes? Then it is looked up the
    /// next time.
    pub(crate) fn must_be_known(&self, dir: FuseNodeId) -> bool {
        let mut table = self.lock();
        let Some(node) = table.nodes.get_mut(&dir) else { return false };
        if !matches!(node.what, What::Guess(_)) && !node.attr_guessed {
            return false;
        }
        node.stale = true;
        // The kernel may forget the node before it walks again.
        if let Some((parent, name)) = node.names.last().cloned() {
            table.note_conflict(parent, &name);
        }
        true
    }

    /// A name was told to be free and is not: it must be looked up for a while.
    pub(crate) fn note_conflict(&self, dir: FuseNodeId, name: &Bytes) {
        self.lock().note_conflict(dir, name);
    }

    /// A reply gives the inode of this name to the kernel, which holds it once more; as which node.
    pub(crate) fn count_lookup(&self, dir: FuseNodeId, name: &Bytes, entry: &Entry) -> FuseNodeId {
        let mut table = self.lock();
        let id = match self.by_path {
            true => table.named_as(dir, name, entry),
            false => table.known(entry),
        };
        table.count_lookup(id);
        id
    }

    /// The same for an inode that has no name, or keeps it.
    pub(crate) fn count_lookup_nameless(&self, entry: &Entry) -> FuseNodeId {
        let mut table = self.lock();
        let id = table.known(entry);
        table.count_lookup(id);
        id
    }

    /// A server says that a name is free.
    pub(crate) fn vanished(&self, dir: FuseNodeId, name: &Bytes) {
        if !self.by_path {
            return;
        }
        let mut table = self.lock();
        if let Some(id) = table.unname(dir, name) {
            // If it was removed here, the kernel counts one link less.
            table.mark_attr_stale(id);
        }
    }

    /// An inode has lost a name here, and the kernel, which holds it by another one or open, may not
    /// know that: it had a guess for the name, or something else, or thought that it is free. Its node.
    /// To be asked before the name is taken away.
    pub(crate) fn unaware(
        &self,
        inode: InodeId,
        dir: FuseNodeId,
        name: &Bytes,
    ) -> Option<FuseNodeId> {
        let table = self.lock();
        let id = table.node_of(inode);
        let is_aware = |node: &Node| !node.displaces && table.named(dir, name) == Some(id);
        table.nodes.get(&id).is_some_and(|node| !is_aware(node)).then_some(id)
    }

    /// The directories on a walk's way of which nobody knows more than the names, from the top down.
    pub(crate) fn guesses(&self, walk: &Walk) -> Vec<FuseNodeId> {
        let table = self.lock();
        let is_guess = |id: &FuseNodeId| {
            table.nodes.get(id).is_some_and(|node| matches!(node.what, What::Guess(_)))
        };
        let way = NodePath::of(&table, walk).map_or_else(|_| Vec::new(), |way| way.nodes);
        way.into_iter().filter(is_guess).collect()
    }

    /// The directory that a node is known to be; 0: it is none, or a guess.
    pub(crate) fn known_dir(&self, id: FuseNodeId) -> InodeId {
        match self.lock().nodes.get(&id).map(|node| &node.what) {
            Some(What::Known { loc, attr }) if attr.is_dir() => loc.id,
            _ => 0,
        }
    }

    /// It is not what its name leads to: it is looked up the next time.
    pub(crate) fn misled(&self, id: FuseNodeId) {
        if let Some(node) = self.lock().nodes.get_mut(&id) {
            node.stale = true;
        }
    }

    /// The kernel has removed a directory's name, which led to `told`, as it thinks, and led to `removed`.
    /// If that is another one, the kernel does nothing any more in the one that is still there.
    pub(crate) fn buried(&self, told: FuseNodeId, removed: InodeId) {
        let mut table = self.lock();
        if let Some(Node { what: What::Known { loc, attr }, .. }) = table.nodes.get(&told)
            && attr.is_dir()
            && loc.id != removed
            && !mutation("a directory that is taken for removed")
        {
            table.disown(told);
        }
    }

    /// The node that the kernel has for a name.
    pub(crate) fn of_name(&self, dir: FuseNodeId, name: &Bytes) -> Option<FuseNodeId> {
        self.lock().named(dir, name)
    }

    /// The kernel changes the attributes of a file by itself: its data is written, say. To be told
    /// before it hears that this was done.
    pub(crate) fn mark_attr_stale(&self, id: FuseNodeId) {
        self.lock().mark_attr_stale(id);
    }

    /// What a server says of a guess: a directory, and the node is known from now on; or not, and
    /// the kernel must look its name up.
    ///
    /// # Errors
    /// ESTALE: it must.
    pub(crate) fn confirm(&self, id: FuseNodeId, entry: &Entry) -> Result<()> {
        let mut table = self.lock();
        if entry.attr.is_dir() && table.bind(id, entry) {
            return Ok(());
        }
        table.get_mut(id)?.stale = true;
        Err(stale())
    }

    /// Notes what a reply said of an inode, if the kernel holds it.
    pub(crate) fn refresh(&self, entry: &Entry) {
        self.lock().refresh(entry);
    }

    /// What the first name led to has the second one now, and is at `loc`.
    pub(crate) fn renamed(&self, [from, to]: [(FuseNodeId, &Bytes); 2], loc: &Locator) {
        let mut table = self.lock();
        table.moved(loc);
        if self.by_path {
            let node = table.unname(from.0, from.1);
            table.unname(to.0, to.1);
            if let Some(id) = node {
                table.name(id, to.0, to.1);
            }
        }
    }

    /// Two names have changed places; `locs`: where what they led to is now.
    pub(crate) fn exchanged(&self, [a, b]: [(FuseNodeId, &Bytes); 2], locs: &[Locator; 2]) {
        let mut table = self.lock();
        locs.iter().for_each(|loc| table.moved(loc));
        if self.by_path {
            let was = [table.unname(a.0, a.1), table.unname(b.0, b.1)];
            for (node, (dir, name)) in was.into_iter().zip([b, a]) {
                if let Some(id) = node {
                    table.name(id, dir, name);
                }
            }
        }
    }

    /// A request failed that names something by its path, as far as the walk is: because a name on the way
    /// does not lead to what was passed there? Then it is looked up the next time, and the kernel must
    /// walk again.
    pub(crate) fn mark_stale(&self, walk: &Walk, error: &Error) -> bool {
        if !self.by_path || !(error.is(Class::Elsewhere) || error.is(Class::Symlink)) {
            return false;
        }
        let mut table = self.lock();
        let Some(at) = error.component.map(|at| (at & !SECOND_PATH) as usize) else { return false };
        let Ok(way) = NodePath::of(&table, walk) else { return false };
        let Some((&id, name)) = way.nodes.get(at).zip(way.names.get(at)) else { return false };
        if let Some(node) = table.nodes.get_mut(&id) {
            node.stale = true;
        }
        if error.is(Class::Symlink) {
            let above = at.checked_sub(1).map_or(way.base, |above| way.nodes[above]);
            table.note_conflict(above, name);
        }
        true
    }

    /// Has the kernel been told nothing newer of the inode, or of any other state of the same age?
    pub(crate) fn is_newest(&self, attr: &Attr) -> bool {
        let table = self.lock();
        newest(&table, table.node_of(attr.id)).is_some_and(|last| last == attr)
    }

    /// The kernel is about to be told these attributes, and may keep them for `keep`. May it go by older
    /// ones all the same? It does not heed a reply to a request that it sent before another reply came,
    /// though it was the older one.
    pub(crate) fn tell(&self, id: FuseNodeId, attr: &Attr, keep: Duration) -> bool {
        let mut table = self.lock();
        let Some(node) = table.nodes.get_mut(&id) else { return false };
        node.tellings.tell(attr.size);
        let (now, age, (last, since)) = (time::now(), age(attr), node.told);
        let until = |told: Time| if told > Time::ZERO { told + keep * 2 } else { told };
        match age.cmp(&last) {
            Ordering::Greater => node.behind = node.behind.max(until(since)),
            Ordering::Less => node.behind = node.behind.max(until(now)),
            Ordering::Equal => {}
        }
        if age >= last {
            node.told = (age, now);
        }
        now < node.behind
    }

    /// How often the kernel is told something of an inode.
    pub(crate) fn tellings(&self, id: FuseNodeId) -> Arc<Tellings> {
        self.lock().nodes.get(&id).map_or_else(Arc::default, |node| node.tellings.clone())
    }

    /// The kernel has thrown away the attributes that it had.
    pub(crate) fn untell(&self, id: FuseNodeId) {
        if let Some(node) = self.lock().nodes.get_mut(&id) {
            node.behind = Time::ZERO;
        }
    }

    /// What the kernel was told last, unless it knows of something newer.
    pub(crate) fn newest(&self, id: FuseNodeId) -> Option<Attr> {
        newest(&self.lock(), id).cloned()
    }

    /// `st_mode` of an inode as last seen; 0 if the kernel does not hold it.
    pub(crate) fn mode(&self, id: FuseNodeId) -> u32 {
        self.lock().mode(id)
    }

    /// A file is opened at `version`: may the kernel keep the pages it has? If not, it will drop
    /// them before the open returns, and [`Nodes::filled`] tells when that is done. Until then
    /// no other open may keep them either: it could return before they are dropped.
    pub(crate) fn keep_pages(&self, id: FuseNodeId, version: DataVersion) -> bool {
        let mut table = self.lock();
        let Some(node) = table.nodes.get_mut(&id) else { return false };
        let keep = node.cached == Some(version);
        if !keep {
            node.cached = None;
        }
        keep
    }

    /// A request came through a handle whose open at `version` kept no pages: those that the
    /// kernel has now were read after that open.
    pub(crate) fn filled(&self, id: FuseNodeId, version: DataVersion) {
        if let Some(node) = self.lock().nodes.get_mut(&id) {
            node.cached = Some(version);
        }
    }

    /// The kernel drops `count` of its references.
    pub(crate) fn forget(&self, id: FuseNodeId, count: u64) {
        self.lock().forget(id, count);
    }

    /// The directory above one that is at `loc`: where that says, if the kernel holds what is there,
    /// else where the kernel has found it. (The kernel holds the parents of whatever it holds, but of
    /// one that was only walked through nobody knows the inode.)
    pub(crate) fn above(&self, id: FuseNodeId, loc: &Locator) -> FuseNodeId {
        let table = self.lock();
        let above = table.node_of(loc.pid);
        if table.nodes.contains_key(&above) {
            return above;
        }
        let found = table.nodes.get(&id).and_then(|node| node.names.last());
        found.map_or(above, |(dir, _)| *dir)
    }
}

/// The way to a directory, as a request names it.
struct NodePath {
    anchor: Locator,
    /// The anchor's.
    base: FuseNodeId,
    /// From below the anchor down, inclusive.
    nodes: Vec<FuseNodeId>,
    names: Vec<Bytes>,
    expect: Vec<InodeId>,
}

impl NodePath {
    /// Where a walk is: from the last directory that a server has found in it, or from its start, by the
    /// names that were passed.
    ///
    /// # Errors
    /// ESTALE.
    fn of(table: &NodeTable, walk: &Walk) -> Result<NodePath> {
        if mutation("a call acts where another has walked") {
            return NodePath::to(table, walk.at());
        }
        let found = walk.steps.iter().rposition(|step| step.found);
        let (base, passed) = match found {
            Some(at) => (walk.steps[at].node, &walk.steps[at + 1..]),
            None => (walk.start, &walk.steps[..]),
        };
        let mut way = NodePath::to(table, base)?;
        for step in passed {
            way.nodes.push(step.node);
            way.names.push(step.name.clone());
            way.expect.push(step.id);
        }
        Ok(way)
    }

    /// A directory by itself: its inode, or of a guess the names that it was passed by.
    ///
    /// # Errors
    /// ESTALE.
    fn to(table: &NodeTable, dir: FuseNodeId) -> Result<NodePath> {
        let (mut nodes, mut names) = (Vec::new(), Vec::new());
        let mut id = dir;
        let anchor = loop {
            let node = table.get(id)?;
            match (&node.what, node.names.last()) {
                (What::Known { loc, .. }, _) => break loc.clone(),
                (What::Guess(_), Some((parent, name))) if nodes.len() < COMPONENTS_MAX => {
                    nodes.push(id);
                    names.push(name.clone());
                    id = *parent;
                }
                (What::Guess(_), _) => return Err(stale()),
            }
        };
        nodes.reverse();
        names.reverse();
        let expect = vec![0; names.len()];
        Ok(NodePath { anchor, base: id, nodes, names, expect })
    }

    fn at(self) -> At {
        At { expect: self.expect, ..At::below(self.anchor, self.names) }
    }

    /// Those, from the anchor on, whose names the kernel asks for often, unless it may keep them for
    /// a while yet; and for how long each is wanted (`At::keep_ms`).
    fn to_lease(&self, of: &Nodes, table: &mut NodeTable, now: Time) -> Option<(Leased, Vec<u32>)> {
        let base = match self.base {
            ROOT => Time::MAX,
            id => table.nodes.get(&id)?.keep.until,
        };
        let eager = table.is_eager(now);
        let hot = |node: &&Node| !node.stale && node.keep.is_hot(now, of.leases, eager);
        let on_the_way = || self.nodes.iter().map_while(|id| table.nodes.get(id));
        let hot = on_the_way().take_while(hot).count();
        let due = |node: &Node| node.keep.ends_soon(now);
        if base <= now + NAME_KEEP / 2 || !on_the_way().take(hot).any(due) {
            return None;
        }
        let (mut nodes, mut keep_ms) = (Vec::with_capacity(hot), Vec::with_capacity(hot));
        // What is below a name is kept no longer than that.
        let mut wanted = NAME_KEEP_MAX.min(base.since(now));
        for (id, name) in self.nodes.iter().zip(&self.names).take(hot) {
            let keep = &mut table.nodes.get_mut(id)?.keep;
            keep.tried = now;
            wanted = wanted.min(keep.wanted(now, eager));
            nodes.push((*id, name.clone(), keep.version));
            keep_ms.push(wanted.as_millis() as u32);
        }
        let (table, anchor) = (of.table.clone(), self.anchor.id);
        Some((Leased { table, asked: now, base, anchor, nodes }, keep_ms))
    }
}

fn stale() -> Error {
    Error::new(Errno::ESTALE)
}

fn newest(table: &NodeTable, id: FuseNodeId) -> Option<&Attr> {
    let node = table.nodes.get(&id)?;
    match &node.what {
        What::Known { attr, .. } if node.newest <= age(attr) => Some(attr),
        What::Known { .. } | What::Guess(_) => None,
    }
}

#[cfg(test)]
mod tests;
