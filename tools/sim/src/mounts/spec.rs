//! What a tree of files answers, one step of a call after the other.
//!
//! A path is no instant: each component is looked up at a moment between the call's beginning and
//! its end, in order, and then the call acts in the directory that was found, or on the inode. So a
//! call has steps ([`SyscallStage`] is how far it is); a name that led elsewhere before the call began, by
//! a call that had ended, is never followed.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use saker_types::{Errno, InodeId, ROOT};

use super::history::{SyscallAnswer, SyscallEntry, SyscallOp};
use crate::world::history::{NameNo, Path};

/// Number of an inode: of the call that made it, plus one; 0 is the root.
pub type SyscallIno = u16;
const ROOT_INO: SyscallIno = 0;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    File,
    Dir,
    Fifo,
}

impl Kind {
    fn bits(self) -> u32 {
        match self {
            Kind::File => libc::S_IFREG,
            Kind::Dir => libc::S_IFDIR,
            Kind::Fifo => libc::S_IFIFO,
        }
    }
}

#[derive(Clone, Hash)]
struct Node {
    kind: Kind,
    perm: u32,
    nlink: u32,
    entries: BTreeMap<NameNo, SyscallIno>,
    /// The real id, once it was seen.
    id: InodeId,
}

/// How far a call is.
#[derive(Clone, Default, Hash, PartialEq, Eq)]
pub struct SyscallStage {
    /// Of each path: the directory, and the names that remain.
    at: [Option<(SyscallIno, Vec<NameNo>)>; 2],
    /// Directories that each path has led through.
    passed: [Vec<SyscallIno>; 2],
    /// The inode that it acts on.
    found: Option<SyscallIno>,
    /// What a rename has found as its source.
    source: Option<Option<SyscallIno>>,
}

/// What one step of a call leads to.
pub enum SyscallNext {
    Done(SyscallSpec),
    Later(SyscallSpec, SyscallStage),
}

/// The state.
#[derive(Clone)]
pub struct SyscallSpec {
    nodes: Vec<Option<Rc<Node>>>,
    learnt: usize,
    /// By listing: what was there all the time, and at some time.
    listings: BTreeMap<usize, Listing>,
}

#[derive(Clone, Hash)]
struct Listing {
    dir: SyscallIno,
    throughout: Vec<NameNo>,
    ever: Vec<(NameNo, SyscallIno)>,
}

impl Hash for SyscallSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.nodes, &self.listings).hash(state);
    }
}

type Step<T> = Result<T, Errno>;

struct Resolved {
    dir: SyscallIno,
    name: NameNo,
    there: Option<SyscallIno>,
    passed: Vec<SyscallIno>,
}

impl Default for SyscallSpec {
    /// An empty root.
    fn default() -> SyscallSpec {
        let mut spec = SyscallSpec { nodes: Vec::new(), learnt: 0, listings: BTreeMap::new() };
        spec.make(ROOT_INO, Kind::Dir, ROOT);
        spec
    }
}

impl SyscallSpec {
    /// Ids that were learnt so far.
    pub fn learnt(&self) -> usize {
        self.learnt
    }

    fn node(&self, ino: SyscallIno) -> &Node {
        self.nodes[usize::from(ino)].as_ref().expect("entries name inodes that are there")
    }

    fn node_mut(&mut self, ino: SyscallIno) -> &mut Node {
        let node = self.nodes[usize::from(ino)].as_mut();
        Rc::make_mut(node.expect("entries name inodes that are there"))
    }

    fn is_dir(&self, ino: SyscallIno) -> bool {
        self.node(ino).kind == Kind::Dir
    }

    fn make(&mut self, ino: SyscallIno, kind: Kind, id: InodeId) {
        let index = usize::from(ino);
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, None);
        }
        let perm = if kind == Kind::Dir { 0o755 } else { 0o644 };
        let node = Node { kind, perm, nlink: 1, entries: BTreeMap::new(), id };
        self.nodes[index] = Some(Rc::new(node));
    }

    fn by_id(&self, id: InodeId) -> Option<SyscallIno> {
        let found = |node: &Option<Rc<Node>>| node.as_ref().is_some_and(|node| node.id == id);
        self.nodes.iter().position(found).map(|ino| ino as SyscallIno)
    }

    fn is(&mut self, ino: SyscallIno, id: InodeId) -> bool {
        match self.node(ino).id {
            0 if id != 0 && self.by_id(id).is_none() => {
                self.node_mut(ino).id = id;
                self.learnt += 1;
                true
            }
            known => known == id,
        }
    }

    // ---- paths ----------------------------------------------------------------------------

    fn enter(&self, dir: SyscallIno, name: NameNo) -> Step<SyscallIno> {
        let child = *self.node(dir).entries.get(&name).ok_or(Errno::ENOENT)?;
        if self.is_dir(child) { Ok(child) } else { Err(Errno::ENOTDIR) }
    }

    /// Where a path is: as far as the stage says, or at its start. `None`: nobody knows that directory yet.
    fn position(
        &self,
        path: &Path,
        which: usize,
        stage: &SyscallStage,
    ) -> Option<(SyscallIno, Vec<NameNo>)> {
        if let Some(position) = &stage.at[which] {
            return Some(position.clone());
        }
        let dir = path.base.map_or(Some(ROOT_INO), |id| self.by_id(id))?;
        Some((dir, path.names.clone()))
    }

    fn place(&self, path: &Path, which: usize, stage: &SyscallStage) -> Step<Resolved> {
        let (mut dir, names) = self.position(path, which, stage).ok_or(UNKNOWN)?;
        let mut passed = stage.passed[which].clone();
        let (&name, above) = names.split_last().ok_or(Errno::EINVAL)?;
        passed.push(dir);
        for name in above {
            dir = self.enter(dir, *name)?;
            passed.push(dir);
        }
        let there = self.node(dir).entries.get(&name).copied();
        Ok(Resolved { dir, name, there, passed })
    }

    /// The stage after the next component of a path, if names remain before the last.
    fn advance(&self, path: &Path, which: usize, stage: &SyscallStage) -> Option<SyscallStage> {
        let (dir, mut names) = self.position(path, which, stage)?;
        if names.len() < 2 {
            return None;
        }
        let next = self.enter(dir, names.remove(0)).ok()?;
        let mut stage = stage.clone();
        stage.passed[which].push(dir);
        stage.at[which] = Some((next, names));
        Some(stage)
    }

    fn is_walked(path: &Path, which: usize, stage: &SyscallStage) -> bool {
        stage.at[which].as_ref().map_or(path.names.len(), |(_, names)| names.len()) == 1
    }

    // ---- steps ----------------------------------------------------------------------------

    /// The ways in which a call may go on now. `split`: others may have changed names meanwhile.
    pub fn step(
        &self,
        number: usize,
        entry: &SyscallEntry,
        stage: &SyscallStage,
        split: bool,
    ) -> Vec<SyscallNext> {
        let mut next = Vec::new();
        if entry.answer == SyscallAnswer::Refused {
            return vec![SyscallNext::Done(self.clone())];
        }
        let is_link = matches!(entry.call, SyscallOp::Link { .. });
        if split && (stage.found.is_none() || is_link) {
            next.extend(self.walk_on(&entry.call, stage));
        }
        let mut spec = self.clone();
        let done = spec.act(number, entry, stage);
        if done {
            spec.note_listings();
            next.push(SyscallNext::Done(spec));
        }
        next
    }

    fn walk_on(&self, call: &SyscallOp, stage: &SyscallStage) -> Vec<SyscallNext> {
        let (first, second) = paths(call);
        let Some(first) = first else { return Vec::new() };
        let later = |stage| vec![SyscallNext::Later(self.clone(), stage)];
        if !SyscallSpec::is_walked(first, 0, stage) {
            return self.advance(first, 0, stage).map_or_else(Vec::new, later);
        }
        if let SyscallOp::Link { .. } = call
            && stage.found.is_none()
            && let Ok(Resolved { there: Some(found), .. }) = self.place(first, 0, stage)
        {
            // It goes on with the other path then.
            return later(SyscallStage { found: Some(found), ..stage.clone() });
        }
        if let Some(second) = second {
            if !SyscallSpec::is_walked(second, 1, stage) {
                return self.advance(second, 1, stage).map_or_else(Vec::new, later);
            }
            if stage.source.is_none()
                && !matches!(call, SyscallOp::Link { .. })
                && let Ok(place) = self.place(first, 0, stage)
            {
                return later(SyscallStage { source: Some(place.there), ..stage.clone() });
            }
            return Vec::new();
        }
        let acts_on_inode = matches!(
            call,
            SyscallOp::Stat { .. }
                | SyscallOp::Chmod { .. }
                | SyscallOp::Truncate { .. }
                | SyscallOp::OpenDir { .. }
                | SyscallOp::Open { .. }
                | SyscallOp::Create { exclusive: false, .. }
        );
        match self.place(first, 0, stage) {
            Ok(Resolved { there: Some(found), .. }) if acts_on_inode => {
                later(SyscallStage { found: Some(found), ..stage.clone() })
            }
            _ => Vec::new(),
        }
    }

    /// Can the call be over now, with its answer?
    fn act(&mut self, number: usize, entry: &SyscallEntry, stage: &SyscallStage) -> bool {
        let (call, answer) = (&entry.call, &entry.answer);
        let ino = number as SyscallIno + 1;
        match call {
            SyscallOp::Mkdir { at } => self.new_entry(ino, at, Kind::Dir, answer, stage),
            SyscallOp::Mkfifo { at } => self.new_entry(ino, at, Kind::Fifo, answer, stage),
            SyscallOp::Create { at, exclusive } => self.create(ino, at, *exclusive, answer, stage),
            SyscallOp::Unlink { at } => {
                let result = self.unlink(at, stage);
                is_answer(result, answer)
            }
            SyscallOp::Rmdir { at } => {
                let result = self.rmdir(at, stage);
                is_answer(result, answer)
            }
            SyscallOp::Rename { from, to, no_replace } => {
                self.rename([from, to], *no_replace, answer, stage)
            }
            SyscallOp::Exchange { from, to } => self.exchange([from, to], answer, stage),
            SyscallOp::Link { from, to } => self.link(from, to, answer, stage),
            SyscallOp::Stat { at }
            | SyscallOp::Chmod { at, .. }
            | SyscallOp::Truncate { at, .. }
            | SyscallOp::OpenDir { at }
            | SyscallOp::Open { at, .. } => {
                let found = match stage.found {
                    Some(found) => Ok(found),
                    None => self.place(at, 0, stage).and_then(|p| p.there.ok_or(Errno::ENOENT)),
                };
                match found {
                    Ok(found) => self.act_on(found, entry),
                    Err(errno) => *answer == SyscallAnswer::Failed(errno),
                }
            }
            SyscallOp::List { .. } => false,
            // Of the file, not of its names.
            SyscallOp::Write { .. } | SyscallOp::Flush { .. } | SyscallOp::Look { .. } => true,
        }
    }

    fn act_on(&mut self, found: SyscallIno, entry: &SyscallEntry) -> bool {
        let answer = &entry.answer;
        match &entry.call {
            SyscallOp::Stat { .. } => self.shows(found, answer),
            SyscallOp::OpenDir { .. } => match self.is_dir(found) {
                true => matches!(answer, SyscallAnswer::Seen(seen) if self.is(found, seen.id)),
                false => *answer == SyscallAnswer::Failed(Errno::ENOTDIR),
            },
            SyscallOp::Chmod { mode, .. } => {
                self.node_mut(found).perm = *mode;
                *answer == SyscallAnswer::Done
            }
            SyscallOp::Open { .. } => match self.node(found).kind {
                Kind::Dir => *answer == SyscallAnswer::Failed(Errno::EISDIR),
                Kind::File | Kind::Fifo => {
                    matches!(answer, SyscallAnswer::Seen(seen) if self.is(found, seen.id))
                }
            },
            SyscallOp::Truncate { .. } => match self.node(found).kind {
                Kind::Dir => *answer == SyscallAnswer::Failed(Errno::EISDIR),
                Kind::Fifo => *answer == SyscallAnswer::Failed(Errno::EINVAL),
                Kind::File => match answer {
                    SyscallAnswer::Done => true,
                    SyscallAnswer::Seen(seen) => self.is(found, seen.id),
                    _ => false,
                },
            },
            _ => false,
        }
    }

    fn shows(&mut self, ino: SyscallIno, answer: &SyscallAnswer) -> bool {
        let SyscallAnswer::Seen(seen) = answer else { return false };
        let node = self.node(ino);
        let fits = seen.mode == node.kind.bits() | node.perm;
        fits && self.is(ino, seen.id)
    }

    // ---- names ----------------------------------------------------------------------------

    fn new_entry(
        &mut self,
        ino: SyscallIno,
        at: &Path,
        kind: Kind,
        answer: &SyscallAnswer,
        stage: &SyscallStage,
    ) -> bool {
        let place = match self.place(at, 0, stage) {
            Ok(place) => place,
            Err(errno) => return *answer == SyscallAnswer::Failed(errno),
        };
        if place.there.is_some() {
            return *answer == SyscallAnswer::Failed(Errno::EEXIST);
        }
        if self.node(place.dir).nlink == 0 {
            return *answer == SyscallAnswer::Failed(Errno::ENOENT);
        }
        let id = match answer {
            SyscallAnswer::Done => 0,
            SyscallAnswer::Seen(seen) if self.by_id(seen.id).is_none() => seen.id,
            _ => return false,
        };
        self.make(ino, kind, id);
        self.node_mut(place.dir).entries.insert(place.name, ino);
        true
    }

    fn create(
        &mut self,
        ino: SyscallIno,
        at: &Path,
        exclusive: bool,
        answer: &SyscallAnswer,
        stage: &SyscallStage,
    ) -> bool {
        let there = match stage.found {
            Some(found) => found,
            None => match self.place(at, 0, stage) {
                Err(errno) => return *answer == SyscallAnswer::Failed(errno),
                Ok(Resolved { there: None, .. }) => {
                    return self.new_entry(ino, at, Kind::File, answer, stage);
                }
                Ok(Resolved { there: Some(there), .. }) => there,
            },
        };
        match (exclusive, self.node(there).kind) {
            (true, _) => *answer == SyscallAnswer::Failed(Errno::EEXIST),
            (false, Kind::Dir) => *answer == SyscallAnswer::Failed(Errno::EISDIR),
            (false, Kind::File | Kind::Fifo) => {
                matches!(answer, SyscallAnswer::Seen(seen) if self.is(there, seen.id))
            }
        }
    }

    fn unlink(&mut self, at: &Path, stage: &SyscallStage) -> Step<()> {
        let place = self.place(at, 0, stage)?;
        let ino = place.there.ok_or(Errno::ENOENT)?;
        if self.is_dir(ino) {
            return Err(Errno::EISDIR);
        }
        self.node_mut(place.dir).entries.remove(&place.name);
        self.node_mut(ino).nlink -= 1;
        Ok(())
    }

    fn rmdir(&mut self, at: &Path, stage: &SyscallStage) -> Step<()> {
        let place = self.place(at, 0, stage)?;
        let ino = place.there.ok_or(Errno::ENOENT)?;
        if !self.is_dir(ino) {
            return Err(Errno::ENOTDIR);
        }
        if !self.node(ino).entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.node_mut(place.dir).entries.remove(&place.name);
        self.node_mut(ino).nlink -= 1;
        Ok(())
    }

    fn is_within(&self, dir: SyscallIno, top: SyscallIno) -> bool {
        let mut children = self.node(top).entries.values();
        dir == top || children.any(|ino| self.is_dir(*ino) && self.is_within(dir, *ino))
    }

    /// All errors that are true of a rename: which one is told is not promised.
    fn rename_errors(
        &self,
        places: &[Step<Resolved>; 2],
        no_replace: bool,
        stage: &SyscallStage,
    ) -> Vec<Errno> {
        let mut errors: Vec<Errno> =
            places.iter().filter_map(|place| place.as_ref().err().copied()).collect();
        if places[0].as_ref().is_ok_and(|place| place.there.is_none()) {
            errors.push(Errno::ENOENT);
        }
        let [Ok(old), Ok(new)] = places else { return errors };
        // The source as it was found before, or as it is now.
        let sources = [stage.source, Some(old.there)].into_iter().flatten();
        for source in sources {
            let Some(source) = source else {
                errors.push(Errno::ENOENT);
                continue;
            };
            if self.node(new.dir).nlink == 0 {
                errors.push(Errno::ENOENT);
            }
            let source_is_dir = self.is_dir(source);
            let is_inside = |passed: &[SyscallIno], ino| passed.contains(&ino);
            if source_is_dir && (is_inside(&new.passed, source) || self.is_within(new.dir, source))
            {
                errors.push(Errno::EINVAL);
            }
            let Some(target) = new.there else { continue };
            if no_replace {
                errors.push(Errno::EEXIST);
            }
            if target == source {
                continue;
            }
            match (source_is_dir, self.is_dir(target)) {
                (true, false) => errors.push(Errno::ENOTDIR),
                (false, true) => errors.extend([Errno::EISDIR]),
                _ => {}
            }
            if self.is_dir(target)
                && (is_inside(&old.passed, target) || self.is_within(old.dir, target))
            {
                errors.push(Errno::ENOTEMPTY);
            }
            if source_is_dir && self.is_dir(target) && !self.node(target).entries.is_empty() {
                errors.push(Errno::ENOTEMPTY);
            }
        }
        errors
    }

    /// What may be said of two paths one of which begins with the other, whatever is behind that.
    fn below_errors(
        &self,
        [from, to]: [&Path; 2],
        places: &[Step<Resolved>; 2],
        above: Errno,
    ) -> Vec<Errno> {
        let is_dir = |place: &Step<Resolved>| {
            let there = place.as_ref().ok().and_then(|place| place.there);
            there.is_some_and(|there| self.is_dir(there))
        };
        let is_below = |a: &Path, b: &Path| {
            a.base == b.base && a.names.len() > b.names.len() && a.names.starts_with(&b.names)
        };
        let mut errors = Vec::new();
        if is_below(to, from) && is_dir(&places[0]) {
            errors.push(Errno::EINVAL);
        }
        if is_below(from, to) && is_dir(&places[1]) {
            errors.push(above);
        }
        errors
    }

    fn rename(
        &mut self,
        [from, to]: [&Path; 2],
        no_replace: bool,
        answer: &SyscallAnswer,
        stage: &SyscallStage,
    ) -> bool {
        let places = [self.place(from, 0, stage), self.place(to, 1, stage)];
        if let SyscallAnswer::Failed(errno) = answer {
            let mut errors = self.rename_errors(&places, no_replace, stage);
            errors.extend(self.below_errors([from, to], &places, Errno::ENOTEMPTY));
            return errors.contains(errno);
        }
        let is_same_inode = |source: SyscallIno, new: &Resolved| new.there == Some(source);
        let [Ok(old), Ok(new)] = places else { return false };
        // Two names of one inode: nothing is done.
        if let Some(Some(source)) = stage.source
            && is_same_inode(source, &new)
            && !no_replace
        {
            return *answer == SyscallAnswer::Done;
        }
        let now = SyscallStage { source: None, ..stage.clone() };
        let places = [Ok(old), Ok(new)];
        if !self.rename_errors(&places, no_replace, &now).is_empty() {
            return false;
        }
        let [Ok(old), Ok(new)] = places else { return false };
        let Some(source) = old.there else { return false };
        if new.there != Some(source) {
            if let Some(target) = new.there {
                self.node_mut(target).nlink -= 1;
            }
            self.node_mut(old.dir).entries.remove(&old.name);
            self.node_mut(new.dir).entries.insert(new.name, source);
        }
        *answer == SyscallAnswer::Done
    }

    fn exchange(
        &mut self,
        [from, to]: [&Path; 2],
        answer: &SyscallAnswer,
        stage: &SyscallStage,
    ) -> bool {
        let places = [self.place(from, 0, stage), self.place(to, 1, stage)];
        let mut errors: Vec<Errno> =
            places.iter().filter_map(|place| place.as_ref().err().copied()).collect();
        let source = stage.source.flatten();
        let is_free = |place: &Step<Resolved>| place.as_ref().is_ok_and(|it| it.there.is_none());
        if places.iter().any(is_free) || stage.source == Some(None) {
            errors.push(Errno::ENOENT);
        }
        let mut exchanged = None;
        if let [Ok(old), Ok(new)] = &places {
            let moves = [(old.there, new), (new.there, old), (source, new)];
            for (moved, into) in moves {
                let Some(moved) = moved.filter(|ino| self.is_dir(*ino)) else { continue };
                if into.passed.contains(&moved) || self.is_within(into.dir, moved) {
                    errors.push(Errno::EINVAL);
                }
            }
            exchanged = old.there.zip(new.there);
        }
        if let SyscallAnswer::Failed(errno) = answer {
            errors.extend(self.below_errors([from, to], &places, Errno::EINVAL));
            return errors.contains(errno);
        }
        if let ([Ok(_), Ok(new)], Some(source)) = (&places, source)
            && new.there == Some(source)
        {
            return *answer == SyscallAnswer::Done;
        }
        let ([Ok(old), Ok(new)], Some((a, b))) = (&places, exchanged) else { return false };
        let inside = |moved: SyscallIno, into: &Resolved| {
            self.is_dir(moved) && self.is_within(into.dir, moved)
        };
        if inside(a, new) || inside(b, old) {
            return false;
        }
        if a != b {
            let (old, new) = ((old.dir, old.name), (new.dir, new.name));
            self.node_mut(old.0).entries.insert(old.1, b);
            self.node_mut(new.0).entries.insert(new.1, a);
        }
        *answer == SyscallAnswer::Done
    }

    fn link(
        &mut self,
        from: &Path,
        to: &Path,
        answer: &SyscallAnswer,
        stage: &SyscallStage,
    ) -> bool {
        let found = match stage.found {
            Some(found) => Ok(found),
            None => self.place(from, 0, stage).and_then(|p| p.there.ok_or(Errno::ENOENT)),
        };
        let place = self.place(to, 1, stage);
        let mut errors = Vec::new();
        match found {
            Ok(found) if self.is_dir(found) => errors.push(Errno::EPERM),
            Ok(found) if self.node(found).nlink == 0 => errors.push(Errno::ENOENT),
            Ok(_) => {}
            Err(errno) => errors.push(errno),
        }
        match &place {
            Ok(Resolved { there: Some(_), .. }) => errors.push(Errno::EEXIST),
            Ok(place) if self.node(place.dir).nlink == 0 => errors.push(Errno::ENOENT),
            Ok(_) => {}
            Err(errno) => errors.push(*errno),
        }
        if let SyscallAnswer::Failed(errno) = answer {
            return errors.contains(errno);
        }
        let (Ok(found), Ok(place), true) = (found, place, errors.is_empty()) else { return false };
        self.node_mut(found).nlink += 1;
        self.node_mut(place.dir).entries.insert(place.name, found);
        *answer == SyscallAnswer::Done
    }

    // ---- listings -------------------------------------------------------------------------

    /// A listing begins.
    pub fn begin_listing(&mut self, call: usize, dir: InodeId) {
        let Some(dir) = self.by_id(dir) else { return };
        let entries = &self.node(dir).entries;
        let throughout = entries.keys().copied().collect();
        let ever = entries.iter().map(|(name, ino)| (*name, *ino)).collect();
        self.listings.insert(call, Listing { dir, throughout, ever });
    }

    pub fn is_listing(&self, call: usize) -> bool {
        self.listings.contains_key(&call)
    }

    fn note_listings(&mut self) {
        let mut listings = std::mem::take(&mut self.listings);
        for listing in listings.values_mut() {
            let entries = &self.node(listing.dir).entries;
            listing.throughout.retain(|name| entries.contains_key(name));
            for (name, ino) in entries {
                if !listing.ever.contains(&(*name, *ino)) {
                    listing.ever.push((*name, *ino));
                }
            }
        }
        self.listings = listings;
    }

    /// The states after a listing.
    pub fn end_listing(&self, call: usize, answer: &SyscallAnswer) -> Vec<SyscallSpec> {
        let mut spec = self.clone();
        let Some(listing) = spec.listings.remove(&call) else { return Vec::new() };
        let is_gone = spec.node(listing.dir).nlink == 0;
        let names = match answer {
            SyscallAnswer::Names(names) => names,
            SyscallAnswer::Failed(Errno::ENOENT) if is_gone => return vec![spec],
            _ => return Vec::new(),
        };
        let twice = (1..names.len()).any(|i| names[..i].iter().any(|n| n.0 == names[i].0));
        let missing = |name: &NameNo| !names.iter().any(|listed| listed.0 == *name);
        if twice || listing.throughout.iter().any(missing) {
            return Vec::new();
        }
        let saw = |specs: Vec<SyscallSpec>, (name, id): &(NameNo, InodeId)| {
            let mut all = Vec::new();
            for spec in specs {
                for (_, ino) in listing.ever.iter().filter(|(other, _)| other == name) {
                    let mut spec = spec.clone();
                    if spec.is(*ino, *id) {
                        all.push(spec);
                    }
                }
            }
            all
        };
        names.iter().fold(vec![spec], saw)
    }
}

/// Nobody has seen the directory yet where a path begins.
const UNKNOWN: Errno = Errno(u16::MAX - 2);

/// The paths of a call.
pub fn paths(call: &SyscallOp) -> (Option<&Path>, Option<&Path>) {
    match call {
        SyscallOp::Mkdir { at }
        | SyscallOp::Mkfifo { at }
        | SyscallOp::Create { at, .. }
        | SyscallOp::Unlink { at }
        | SyscallOp::Rmdir { at }
        | SyscallOp::Stat { at }
        | SyscallOp::Chmod { at, .. }
        | SyscallOp::Truncate { at, .. }
        | SyscallOp::OpenDir { at }
        | SyscallOp::Open { at, .. } => (Some(at), None),
        SyscallOp::Rename { from, to, .. }
        | SyscallOp::Exchange { from, to }
        | SyscallOp::Link { from, to } => (Some(from), Some(to)),
        SyscallOp::List { .. }
        | SyscallOp::Write { .. }
        | SyscallOp::Flush { .. }
        | SyscallOp::Look { .. } => (None, None),
    }
}

fn is_answer(result: Step<()>, answer: &SyscallAnswer) -> bool {
    match result {
        Ok(()) => *answer == SyscallAnswer::Done,
        Err(errno) => *answer == SyscallAnswer::Failed(errno),
    }
}
