//! The sequential specification of names and attributes: what one call may answer in a given
//! state, and what it changes. Small and cheap to copy, since the search for an order of
//! concurrent calls ([`super::linear`]) copies it at each step.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use rustc_hash::FxHasher;
use saker_types::{Errno, FileKind, InodeId, ROOT};

use super::history::{Answer, Call, Name, Path, Seen, Subject};

/// Number of an inode in the specification: of the call that made it, plus one; 0 is the root.
pub type Ino = u16;
const ROOT_INO: Ino = 0;
/// Times below were set by somebody, those above come from a clock.
pub const SET_TIMES_END_NS: i64 = 1_000_000_000_000_000_000;

#[derive(Clone, Hash)]
struct Node {
    kind: Kind,
    perm: u32,
    nlink: u32,
    size: u64,
    /// Where the next append goes, if that is behind the end.
    append_end: u64,
    xattr: Option<u8>,
    /// Set by utimes and not changed since.
    mtime: Option<i64>,
    /// It has, or had, several names: its attributes are not beside its name.
    linked: bool,
    entries: BTreeMap<Name, Ino>,
    /// The real id, once it was seen; 0 before.
    id: InodeId,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
}

impl Kind {
    fn bits(self) -> u32 {
        match self {
            Kind::File => FileKind::Regular,
            Kind::Dir => FileKind::Directory,
            Kind::Symlink => FileKind::Symlink,
            Kind::Fifo => FileKind::Fifo,
        }
        .bits()
    }
}

/// A listing under way.
#[derive(Clone, Hash)]
struct Listing {
    call: usize,
    dir: Ino,
    /// There all the time.
    throughout: Vec<Name>,
    /// There at some time.
    ever: Vec<(Name, Ino)>,
    removed: bool,
}

/// How far a call of more than one step has come.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub enum Stage {
    /// A path led to an inode that lives elsewhere: it acts on that inode, whatever becomes of the
    /// path.
    Found(Ino),
    /// Rename and link resolve each path at an instant of its own: the first led here.
    Source(Ino, Name),
    /// An append has its place; others see it when its data is there.
    Appended(Ino, u64),
}

/// What one step of a call does.
pub enum Next {
    /// It is over, with this state.
    Done(Spec),
    /// It goes on later.
    Later(Spec, Stage),
}

/// The state.
#[derive(Clone)]
pub struct Spec {
    nodes: Vec<Option<Rc<Node>>>,
    listings: Vec<Listing>,
}

type Step<T> = Result<T, Errno>;

/// An inode, or the place where one may be made.
struct Place {
    dir: Ino,
    name: Name,
    there: Option<Ino>,
}

impl Spec {
    /// An empty root.
    pub fn new() -> Spec {
        let mut spec = Spec { nodes: Vec::new(), listings: Vec::new() };
        spec.make(ROOT_INO, Kind::Dir, ROOT);
        spec
    }

    /// Hash of everything that decides what calls may answer.
    pub fn digest(&self) -> u64 {
        let mut hasher = FxHasher::default();
        for (ino, node) in self.nodes.iter().enumerate() {
            if let Some(node) = node {
                (ino, node).hash(&mut hasher);
            }
        }
        self.listings.hash(&mut hasher);
        hasher.finish()
    }

    fn node(&self, ino: Ino) -> &Node {
        self.nodes[usize::from(ino)].as_ref().expect("entries name inodes that are there")
    }

    fn node_mut(&mut self, ino: Ino) -> &mut Node {
        let node = self.nodes[usize::from(ino)].as_mut();
        Rc::make_mut(node.expect("entries name inodes that are there"))
    }

    fn make(&mut self, ino: Ino, kind: Kind, id: InodeId) {
        let index = usize::from(ino);
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, None);
        }
        let perm = if kind == Kind::Symlink { 0o777 } else { 0o755 };
        let node = Node {
            kind,
            perm,
            nlink: 1,
            size: 0,
            append_end: 0,
            xattr: None,
            mtime: None,
            linked: false,
            entries: BTreeMap::new(),
            id,
        };
        self.nodes[index] = Some(Rc::new(node));
    }

    fn by_id(&self, id: InodeId) -> Option<Ino> {
        let found = |node: &Option<Rc<Node>>| node.as_ref().is_some_and(|node| node.id == id);
        self.nodes.iter().position(found).map(|ino| ino as Ino)
    }

    /// The inode has this id, as far as is known.
    fn is(&mut self, ino: Ino, id: InodeId) -> bool {
        match self.node(ino).id {
            0 if self.by_id(id).is_none() => {
                self.node_mut(ino).id = id;
                true
            }
            known => known == id,
        }
    }

    // ---- paths ----------------------------------------------------------------------------

    fn base(&self, path: &Path) -> Step<Ino> {
        match path.base {
            None => Ok(ROOT_INO),
            Some(id) => {
                let dir = self.by_id(id).ok_or(Errno::ENOENT)?;
                let removed = self.node(dir).nlink == 0;
                if removed { Err(Errno::ENOENT) } else { Ok(dir) }
            }
        }
    }

    fn enter(&self, dir: Ino, name: Name) -> Step<Ino> {
        let child = *self.node(dir).entries.get(&name).ok_or(Errno::ENOENT)?;
        match self.node(child).kind {
            Kind::Dir => Ok(child),
            Kind::Symlink => Err(Errno::ELOOP),
            Kind::File | Kind::Fifo => Err(Errno::ENOTDIR),
        }
    }

    fn place(&self, path: &Path) -> Step<Place> {
        let mut dir = self.base(path)?;
        let (&name, above) = path.names.split_last().ok_or(Errno::EINVAL)?;
        for name in above {
            dir = self.enter(dir, *name)?;
        }
        Ok(Place { dir, name, there: self.node(dir).entries.get(&name).copied() })
    }

    fn find(&self, path: &Path) -> Step<Ino> {
        if path.names.is_empty() {
            return self.base(path);
        }
        self.place(path)?.there.ok_or(Errno::ENOENT)
    }

    // ---- changes --------------------------------------------------------------------------

    fn insert(&mut self, dir: Ino, name: Name, ino: Ino) {
        let node = self.node_mut(dir);
        node.entries.insert(name, ino);
        node.mtime = None;
    }

    fn remove(&mut self, dir: Ino, name: Name) {
        let node = self.node_mut(dir);
        node.entries.remove(&name);
        node.mtime = None;
    }

    fn drop_link(&mut self, ino: Ino) {
        let node = self.node_mut(ino);
        node.nlink -= 1;
    }

    /// Listings under way see what has changed.
    fn note_listings(&mut self) {
        let mut listings = std::mem::take(&mut self.listings);
        for listing in &mut listings {
            let dir = self.node(listing.dir);
            listing.removed |= dir.nlink == 0;
            listing.throughout.retain(|name| dir.entries.contains_key(name));
            for (name, ino) in &dir.entries {
                if !listing.ever.contains(&(*name, *ino)) {
                    listing.ever.push((*name, *ino));
                }
            }
        }
        self.listings = listings;
    }

    // ---- listings -------------------------------------------------------------------------

    /// A listing begins: from here on it may see what is there.
    pub fn begin_listing(&mut self, call: usize, dir: InodeId) {
        let Some(ino) = self.by_id(dir) else { return };
        let node = self.node(ino);
        let throughout = node.entries.keys().copied().collect();
        let ever = node.entries.iter().map(|(name, ino)| (*name, *ino)).collect();
        let removed = node.nlink == 0;
        self.listings.push(Listing { call, dir: ino, throughout, ever, removed });
    }

    /// Has the listing begun?
    pub fn is_listing(&self, call: usize) -> bool {
        self.listings.iter().any(|listing| listing.call == call)
    }

    /// It ends with this answer (protocols.md, rule 19).
    pub fn end_listing(&self, call: usize, answer: &Answer) -> Option<Spec> {
        let mut spec = self.clone();
        let Some(at) = spec.listings.iter().position(|listing| listing.call == call) else {
            return matches!(answer, Answer::Failed(_)).then_some(spec);
        };
        let listing = spec.listings.remove(at);
        match answer {
            Answer::Failed(errno) => {
                let gone = matches!(*errno, Errno::ENOENT | Errno::ESTALE) && listing.removed;
                gone.then_some(spec)
            }
            Answer::Names(names) => {
                let twice = (1..names.len()).any(|i| names[..i].iter().any(|n| n.0 == names[i].0));
                let missing = |name: &Name| !names.iter().any(|listed| listed.0 == *name);
                if twice || listing.throughout.iter().any(missing) {
                    return None;
                }
                for (name, id) in names {
                    let mut seen = listing.ever.iter().filter(|(other, _)| other == name);
                    if !seen.any(|(_, ino)| spec.is(*ino, *id)) {
                        return None;
                    }
                }
                Some(spec)
            }
            _ => None,
        }
    }

    // ---- calls ----------------------------------------------------------------------------

    /// The ways in which a call may go on now. `number` is its index in the history; `split`:
    /// others may have changed directories between its two paths.
    pub fn step(
        &self,
        number: usize,
        call: &Call,
        answer: &Answer,
        stage: Option<Stage>,
        split: bool,
    ) -> Vec<Next> {
        let mut next = Vec::new();
        let mut spec = self.clone();
        if let Some(Stage::Found(ino)) = stage {
            if spec.act(ino, call, answer, true) {
                spec.note_listings();
                next.push(Next::Done(spec));
            }
            return next;
        }
        if let Call::Append { id, len } = call {
            return self.append(*id, *len, answer, stage);
        }
        if let Some(later) = self.found_elsewhere(call, stage) {
            next.push(Next::Later(self.clone(), later));
        }
        let source = match call {
            Call::Rename { from, .. } | Call::Exchange { from, .. } | Call::Link { from, .. } => {
                Some(from)
            }
            _ => None,
        };
        if let (true, None, Some(from)) = (split, stage, source)
            && let Ok(place) = self.place(from)
        {
            next.push(Next::Later(self.clone(), Stage::Source(place.dir, place.name)));
        }
        if spec.apply(number, call, answer, stage) {
            spec.note_listings();
            next.push(Next::Done(spec));
        }
        next
    }

    /// An append is given its place, and is seen when its data is there: at once, if that goes into
    /// the row.
    fn append(&self, id: InodeId, len: u64, answer: &Answer, stage: Option<Stage>) -> Vec<Next> {
        let mut next = Vec::new();
        if let Some(Stage::Appended(ino, end)) = stage {
            if self.node(ino).append_end < end {
                // Truncated meanwhile: its data may count as written before that.
                next.push(Next::Done(self.clone()));
            }
            let mut spec = self.clone();
            spec.grow(ino, end);
            next.push(Next::Done(spec));
            return next;
        }
        let Some(ino) = self.by_id(id) else { return next };
        let node = self.node(ino);
        if node.nlink == 0 && matches!(answer, Answer::Failed(Errno::ESTALE | Errno::ENOENT)) {
            next.push(Next::Done(self.clone()));
            return next;
        }
        let offset = node.size.max(node.append_end);
        if !unknown(answer) && *answer != Answer::Offset(offset) {
            return next;
        }
        let end = offset + len;
        for changes_time in [false, true] {
            let mut spec = self.clone();
            let node = spec.node_mut(ino);
            node.append_end = end;
            if changes_time {
                node.mtime = None;
            }
            next.push(Next::Later(spec, Stage::Appended(ino, end)));
        }
        let mut spec = self.clone();
        spec.grow(ino, end);
        next.push(Next::Done(spec));
        next
    }

    fn grow(&mut self, ino: Ino, end: u64) {
        let node = self.node_mut(ino);
        (node.size, node.mtime) = (node.size.max(end), None);
    }

    /// The path of the call leads to an inode on which it acts later.
    fn found_elsewhere(&self, call: &Call, stage: Option<Stage>) -> Option<Stage> {
        let path = match call {
            _ if stage.is_some() => return None,
            Call::Getattr { of: Subject::At(at) }
            | Call::Chmod { of: Subject::At(at), .. }
            | Call::Utimes { of: Subject::At(at), .. }
            | Call::Truncate { of: Subject::At(at), .. }
            | Call::Setxattr { of: Subject::At(at), .. }
            | Call::Getxattr { of: Subject::At(at) }
            | Call::Removexattr { of: Subject::At(at) }
            | Call::Lookup { at }
            | Call::Open { at }
            | Call::Create { at, exclusive: false }
            | Call::Link { from: at, .. } => at,
            _ => return None,
        };
        let ino = self.find(path).ok()?;
        let node = self.node(ino);
        // What asks all shards about a directory acts on it when they have answered, as a local
        // file system acts on the inode that the path led to.
        let collects = matches!(call, Call::Getattr { .. } | Call::Utimes { .. });
        let elsewhere = node.linked || (collects && node.kind == Kind::Dir);
        elsewhere.then_some(Stage::Found(ino))
    }

    fn apply(&mut self, number: usize, call: &Call, answer: &Answer, stage: Option<Stage>) -> bool {
        let ino = number as Ino + 1;
        match call {
            Call::Create { at, exclusive } => self.create(ino, at, *exclusive, answer),
            Call::Mkdir { at } => self.new_entry(ino, at, Kind::Dir, answer),
            Call::Symlink { at } => self.new_entry(ino, at, Kind::Symlink, answer),
            Call::Mkfifo { at } => self.new_entry(ino, at, Kind::Fifo, answer),
            Call::Unlink { at } => {
                let result = self.unlink(at);
                is_answer(result, answer)
            }
            Call::Rmdir { at } => {
                let result = self.rmdir(at);
                is_answer(result, answer)
            }
            Call::Rename { from, to, no_replace } => {
                self.rename(from, to, *no_replace, stage, answer)
            }
            Call::Exchange { from, to } => self.exchange(from, to, stage, answer),
            Call::Link { from, to } => self.link(from, to, stage, answer),
            Call::Lookup { at } | Call::Open { at } => match self.find(at) {
                Ok(ino) => self.act(ino, call, answer, false),
                Err(errno) => failed(errno, answer),
            },
            Call::Getattr { of }
            | Call::Chmod { of, .. }
            | Call::Utimes { of, .. }
            | Call::Truncate { of, .. }
            | Call::Setxattr { of, .. }
            | Call::Getxattr { of }
            | Call::Removexattr { of } => match of {
                Subject::At(at) => match self.find(at) {
                    Ok(ino) => self.act(ino, call, answer, false),
                    Err(errno) => failed(errno, answer),
                },
                Subject::Open(id) => self.act_open(*id, call, answer),
            },
            Call::Write { id, .. } => self.act_open(*id, call, answer),
            Call::Append { .. } | Call::Readdir { .. } => false,
        }
    }

    fn act_open(&mut self, id: InodeId, call: &Call, answer: &Answer) -> bool {
        match self.by_id(id) {
            Some(ino) => self.act(ino, call, answer, true),
            None => false,
        }
    }

    /// An operation on one inode. `by_handle`: its path does not matter any more.
    fn act(&mut self, ino: Ino, call: &Call, answer: &Answer, by_handle: bool) -> bool {
        let orphan = self.node(ino).nlink == 0;
        if by_handle && orphan && matches!(answer, Answer::Failed(Errno::ESTALE | Errno::ENOENT)) {
            // Its last lease may have ended.
            return true;
        }
        match call {
            Call::Link { to, .. } => self.link_inode(ino, to, answer),
            Call::Create { .. } => self.open_there(ino, answer),
            Call::Open { .. } => match self.node(ino).kind {
                Kind::Symlink => failed(Errno::ELOOP, answer),
                Kind::Dir => failed(Errno::EISDIR, answer),
                _ => self.open_there(ino, answer),
            },
            Call::Lookup { .. } => match answer {
                Answer::Entry(seen) => {
                    self.is(ino, seen.id) && seen.mode & 0o170_000 == self.node(ino).kind.bits()
                }
                _ => unknown(answer),
            },
            Call::Getattr { .. } => self.shows(ino, answer),
            Call::Chmod { mode, .. } => {
                self.node_mut(ino).perm = *mode;
                self.is_there(ino, answer)
            }
            Call::Utimes { mtime_ns, .. } => {
                self.node_mut(ino).mtime = Some(*mtime_ns);
                self.is_there(ino, answer)
            }
            Call::Truncate { size, .. } => match self.node(ino).kind {
                Kind::Dir => failed(Errno::EISDIR, answer),
                Kind::File => {
                    let node = self.node_mut(ino);
                    if *size < node.size {
                        node.append_end = 0;
                    }
                    (node.size, node.mtime) = (*size, None);
                    self.is_there(ino, answer)
                }
                _ => failed(Errno::EINVAL, answer),
            },
            Call::Write { end, .. } => {
                self.grow(ino, *end);
                done(answer)
            }
            Call::Setxattr { value, flags, .. } => match (self.node(ino).xattr, flags) {
                (Some(_), 1) => failed(Errno::EEXIST, answer),
                (None, 2) => failed(Errno::ENODATA, answer),
                _ => {
                    self.node_mut(ino).xattr = Some(*value);
                    done(answer)
                }
            },
            Call::Getxattr { .. } => match self.node(ino).xattr {
                Some(value) => *answer == Answer::Value(value) || unknown(answer),
                None => failed(Errno::ENODATA, answer),
            },
            Call::Removexattr { .. } => match self.node_mut(ino).xattr.take() {
                Some(_) => done(answer),
                None => failed(Errno::ENODATA, answer),
            },
            _ => false,
        }
    }

    /// Do the attributes shown belong to this inode now?
    fn shows(&mut self, ino: Ino, answer: &Answer) -> bool {
        let Answer::Entry(seen) = answer else { return unknown(answer) };
        if !self.is(ino, seen.id) {
            return false;
        }
        let node = self.node(ino);
        let nlink = match node.kind {
            Kind::Dir => {
                let is_dir = |ino: &&Ino| self.node(**ino).kind == Kind::Dir;
                2 + node.entries.values().filter(is_dir).count() as u32
            }
            _ => node.nlink,
        };
        let is_set = seen.mtime_ns < SET_TIMES_END_NS;
        let mtime_fits = match node.mtime {
            Some(ns) => ns == seen.mtime_ns,
            None => !is_set,
        };
        // The size of a directory or symlink says nothing.
        let size_fits = node.kind != Kind::File || node.size == seen.size;
        seen.mode == node.kind.bits() | node.perm && seen.nlink == nlink && mtime_fits && size_fits
    }

    fn is_there(&mut self, ino: Ino, answer: &Answer) -> bool {
        match answer {
            Answer::Entry(seen) => self.is(ino, seen.id),
            _ => unknown(answer),
        }
    }

    fn open_there(&mut self, ino: Ino, answer: &Answer) -> bool {
        match answer {
            Answer::Opened(seen, false) => self.is(ino, seen.id),
            _ => unknown(answer),
        }
    }

    // ---- names ----------------------------------------------------------------------------

    fn create(&mut self, ino: Ino, at: &Path, exclusive: bool, answer: &Answer) -> bool {
        let place = match self.place(at) {
            Ok(place) => place,
            Err(errno) => return failed(errno, answer),
        };
        let Some(there) = place.there else {
            return self.new_entry(ino, at, Kind::File, answer);
        };
        if exclusive {
            return failed(Errno::EEXIST, answer);
        }
        match self.node(there).kind {
            Kind::Dir => failed(Errno::EISDIR, answer),
            Kind::Symlink => failed(Errno::ELOOP, answer),
            Kind::File | Kind::Fifo => self.open_there(there, answer),
        }
    }

    fn new_entry(&mut self, ino: Ino, at: &Path, kind: Kind, answer: &Answer) -> bool {
        let place = match self.place(at) {
            Ok(place) => place,
            Err(errno) => return failed(errno, answer),
        };
        if place.there.is_some() {
            return failed(Errno::EEXIST, answer);
        }
        let id = match answer {
            Answer::Entry(seen) | Answer::Opened(seen, true) => seen.id,
            Answer::Unknown(_) => 0,
            _ => return false,
        };
        if id != 0 && self.by_id(id).is_some() {
            return false;
        }
        self.make(ino, kind, id);
        self.insert(place.dir, place.name, ino);
        true
    }

    fn unlink(&mut self, at: &Path) -> Step<()> {
        let place = self.place(at)?;
        let ino = place.there.ok_or(Errno::ENOENT)?;
        if self.node(ino).kind == Kind::Dir {
            return Err(Errno::EISDIR);
        }
        self.remove(place.dir, place.name);
        self.drop_link(ino);
        Ok(())
    }

    fn rmdir(&mut self, at: &Path) -> Step<()> {
        let place = self.place(at)?;
        let ino = place.there.ok_or(Errno::ENOENT)?;
        let node = self.node(ino);
        if node.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        if !node.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.remove(place.dir, place.name);
        self.drop_link(ino);
        Ok(())
    }

    fn is_within(&self, dir: Ino, top: Ino) -> bool {
        if dir == top {
            return true;
        }
        let children = self.node(top).entries.values();
        let mut dirs = children.filter(|ino| self.node(**ino).kind == Kind::Dir);
        dirs.any(|child| self.is_within(dir, *child))
    }

    /// All errors that are true of a rename: which one is told is not promised.
    fn rename_errors(&self, from: &Path, to: &Path, no_replace: bool) -> Vec<Errno> {
        let mut errors = Vec::new();
        let (old, new) = (self.place(from), self.place(to));
        errors.extend(old.as_ref().err().copied());
        errors.extend(new.as_ref().err().copied());
        let source = old.as_ref().ok().and_then(|place| place.there);
        if old.is_ok() && source.is_none() {
            errors.push(Errno::ENOENT);
        }
        let is_below = to.names.len() > from.names.len() && to.names.starts_with(&from.names);
        if is_below && from.base == to.base {
            errors.push(if source.is_some_and(|s| self.node(s).kind == Kind::Dir) {
                Errno::EINVAL
            } else {
                Errno::ENOTDIR
            });
        }
        let (Ok(old), Ok(new), Some(source)) = (&old, &new, source) else { return errors };
        let source_is_dir = self.node(source).kind == Kind::Dir;
        if source_is_dir && self.is_within(new.dir, source) {
            errors.push(Errno::EINVAL);
        }
        let Some(target) = new.there else { return errors };
        if no_replace {
            errors.push(Errno::EEXIST);
        }
        if target == source {
            return errors;
        }
        let node = self.node(target);
        match (source_is_dir, node.kind == Kind::Dir) {
            (true, false) => errors.push(Errno::ENOTDIR),
            (false, true) => errors.push(Errno::EISDIR),
            (true, true) if !node.entries.is_empty() || self.is_within(old.dir, target) => {
                errors.push(Errno::ENOTEMPTY);
            }
            _ => {}
        }
        errors
    }

    fn rename(
        &mut self,
        from: &Path,
        to: &Path,
        no_replace: bool,
        stage: Option<Stage>,
        answer: &Answer,
    ) -> bool {
        let Some(from) = self.source(from, stage) else { return false };
        let errors = self.rename_errors(&from, to, no_replace);
        if let Answer::Failed(errno) = answer {
            // The way to the new parent changed again and again: nothing was done.
            return errors.contains(errno) || *errno == Errno::ESTALE;
        }
        if !errors.is_empty() {
            return unknown(answer);
        }
        let (Ok(old), Ok(new)) = (self.place(&from), self.place(to)) else { return false };
        let Some(source) = old.there else { return false };
        if let Answer::Entry(seen) = answer
            && !self.is(source, seen.id)
        {
            return false;
        }
        if new.there != Some(source) {
            if let Some(target) = new.there {
                self.drop_link(target);
            }
            self.remove(old.dir, old.name);
            self.insert(new.dir, new.name, source);
        }
        true
    }

    fn exchange(&mut self, from: &Path, to: &Path, stage: Option<Stage>, answer: &Answer) -> bool {
        let Some(from) = self.source(from, stage) else { return false };
        let errors = self.exchange_errors(&from, to);
        if let Answer::Failed(errno) = answer {
            return errors.contains(errno) || *errno == Errno::ESTALE;
        }
        let (Ok(old), Ok(new)) = (self.place(&from), self.place(to)) else {
            return unknown(answer);
        };
        let (Some(source), Some(target)) = (old.there, new.there) else { return unknown(answer) };
        if !errors.is_empty() {
            return unknown(answer);
        }
        if let Answer::Entry(seen) = answer
            && !self.is(source, seen.id)
        {
            return false;
        }
        if source != target {
            self.insert(old.dir, old.name, target);
            self.insert(new.dir, new.name, source);
        }
        true
    }

    fn exchange_errors(&self, from: &Path, to: &Path) -> Vec<Errno> {
        let mut errors = Vec::new();
        let places = [(from, to), (to, from)].map(|(path, other)| {
            let place = self.place(path);
            errors.extend(place.as_ref().err().copied());
            let there = place.as_ref().ok().and_then(|place| place.there);
            if place.is_ok() && there.is_none() {
                errors.push(Errno::ENOENT);
            }
            let below =
                other.names.len() > path.names.len() && other.names.starts_with(&path.names);
            if below && path.base == other.base {
                errors.extend([Errno::EINVAL, Errno::ENOTDIR]);
            }
            place
        });
        if let [Ok(old), Ok(new)] = &places {
            for (moved, into) in [(old, new), (new, old)] {
                let moves_dir = |ino: &Ino| self.node(*ino).kind == Kind::Dir;
                if moved.there.filter(moves_dir).is_some_and(|dir| self.is_within(into.dir, dir)) {
                    errors.push(Errno::EINVAL);
                }
            }
        }
        errors
    }

    /// The source's path, or where it led to before.
    fn source(&self, from: &Path, stage: Option<Stage>) -> Option<Path> {
        match stage {
            Some(Stage::Source(dir, name)) => self.id_path(dir, name),
            _ => Some(from.clone()),
        }
    }

    /// A path by the id of its directory, if that is known and there.
    fn id_path(&self, dir: Ino, name: Name) -> Option<Path> {
        let node = self.node(dir);
        (node.id != 0 && node.nlink > 0).then(|| Path { base: Some(node.id), names: vec![name] })
    }

    fn link(&mut self, from: &Path, to: &Path, stage: Option<Stage>, answer: &Answer) -> bool {
        let Some(from) = self.source(from, stage) else { return false };
        if let Answer::Failed(errno) = answer {
            let mut errors = Vec::new();
            match self.find(&from) {
                Ok(ino) if self.node(ino).kind == Kind::Dir => errors.push(Errno::EPERM),
                Ok(_) => {}
                Err(errno) => errors.push(errno),
            }
            let below = to.names.len() > from.names.len() && to.names.starts_with(&from.names);
            if below && from.base == to.base {
                errors.push(Errno::ENOTDIR);
            }
            match self.place(to) {
                Ok(place) if place.there.is_some() => errors.push(Errno::EEXIST),
                Ok(_) => {}
                Err(errno) => errors.push(errno),
            }
            return errors.contains(errno);
        }
        match self.find(&from) {
            Ok(ino) if self.node(ino).kind != Kind::Dir => self.link_inode(ino, to, answer),
            _ => unknown(answer),
        }
    }

    fn link_inode(&mut self, ino: Ino, to: &Path, answer: &Answer) -> bool {
        let place = match self.place(to) {
            Ok(place) if place.there.is_some() => return failed(Errno::EEXIST, answer),
            Ok(place) => place,
            Err(errno) => return failed(errno, answer),
        };
        if self.node(ino).nlink == 0 {
            return failed(Errno::ENOENT, answer);
        }
        let node = self.node_mut(ino);
        (node.nlink, node.linked) = (node.nlink + 1, true);
        let nlink = node.nlink;
        self.insert(place.dir, place.name, ino);
        match answer {
            Answer::Entry(Seen { id, nlink: seen, .. }) => self.is(ino, *id) && *seen == nlink,
            _ => unknown(answer),
        }
    }
}

impl Default for Spec {
    fn default() -> Spec {
        Spec::new()
    }
}

/// Nobody knows what was answered: then this may be it.
fn unknown(answer: &Answer) -> bool {
    matches!(answer, Answer::Unknown(_))
}

fn failed(errno: Errno, answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(told) if *told == errno) || unknown(answer)
}

fn done(answer: &Answer) -> bool {
    matches!(answer, Answer::Done) || unknown(answer)
}

fn is_answer(result: Step<()>, answer: &Answer) -> bool {
    match result {
        Ok(()) => done(answer),
        Err(errno) => failed(errno, answer),
    }
}
