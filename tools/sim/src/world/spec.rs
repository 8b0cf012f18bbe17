//! The sequential specification of names and attributes: what one call may answer in a given
//! state, and what it changes. Small and cheap to copy, since the search for an order of
//! concurrent calls ([`super::linear`]) copies it at each step.

mod calls;
mod names;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use saker_types::{Errno, FileKind, InodeId, ROOT};
use xxhash_rust::xxh3::Xxh3;

use super::history::{NameNo, Path, WorldAnswer};

/// Number of an inode in the specification: of the call that made it, plus one; 0 is the root.
pub type WorldIno = u16;
const ROOT_INO: WorldIno = 0;
/// Times below were set by somebody, those above come from a clock.
pub const SET_TIMES_END_NS: i64 = 1_000_000_000_000_000_000;

#[derive(Clone)]
struct Node {
    kind: Kind,
    perm: u32,
    nlink: u32,
    size: u64,
    /// Where the next append goes, if that is behind the end; 0 while nothing is being appended.
    append_end: u64,
    /// Appends that have their place, and whose data is not there.
    appending: u32,
    /// Truncations that took their places away from appends, of those that are under way.
    cuts: u32,
    xattr: Option<u8>,
    /// Set by utimes and not changed since.
    mtime: Option<i64>,
    /// It has, or had, several names: its attributes are not beside its name.
    linked: bool,
    entries: BTreeMap<NameNo, WorldIno>,
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
    dir: WorldIno,
    /// There all the time.
    throughout: Vec<NameNo>,
    /// There at some time.
    ever: Vec<(NameNo, WorldIno)>,
    removed: bool,
}

/// What a call may ask of a state. (An inode is of one kind for ever.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fact {
    /// Its real id.
    Id(WorldIno),
    /// Which inode has this real id?
    WithId(InodeId),
    /// What has this name?
    Name(WorldIno, NameNo),
    /// All that is in a directory.
    Names(WorldIno),
    /// How many names it has, and whether it ever had several.
    Links(WorldIno),
    Perm(WorldIno),
    /// Its end, and that of what is being appended.
    Size(WorldIno),
    Xattr(WorldIno),
    Mtime(WorldIno),
    /// What a listing under way has seen.
    Listing(usize),
}

/// How far a call of more than one step has come.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub enum WorldStage {
    /// A path led to an inode that lives elsewhere: it acts on that inode, whatever becomes of the
    /// path.
    Found(WorldIno),
    /// Rename and link resolve each path at an instant of its own: the first led here.
    Source(WorldIno, NameNo),
    /// Of a write into two chunks the second part is there.
    Tail(WorldIno),
    /// An append has its place: where it ends, after so many cuts. Others see it when its data is
    /// there.
    Appended(WorldIno, u64, u32),
}

/// What one step of a call does.
pub enum WorldNext {
    /// It is over, with this state.
    Done(WorldSpec),
    /// It goes on later.
    Later(WorldSpec, WorldStage),
}

/// The state.
#[derive(Clone)]
pub struct WorldSpec {
    nodes: Vec<Option<Rc<Node>>>,
    listings: Vec<Listing>,
    learnt: usize,
    /// By this state and those it was copied from and to.
    asked: Rc<RefCell<Vec<Fact>>>,
}

type Step<T> = Result<T, Errno>;

/// An inode, or the place where one may be made.
struct PathEnd {
    dir: WorldIno,
    name: NameNo,
    there: Option<WorldIno>,
}

impl WorldSpec {
    /// An empty root.
    pub fn new() -> WorldSpec {
        let mut spec =
            WorldSpec { nodes: Vec::new(), listings: Vec::new(), learnt: 0, asked: Rc::default() };
        spec.make(ROOT_INO, Kind::Dir, ROOT);
        spec
    }

    /// Real ids that were seen and had not been known.
    pub fn learnt(&self) -> usize {
        self.learnt
    }

    /// The facts that calls have asked for since this was called last.
    pub fn take_asked(&self) -> Vec<Fact> {
        self.asked.take()
    }

    /// A fact's value, or its hash.
    pub fn value(&self, fact: &Fact) -> u64 {
        let of =
            |ino: &WorldIno| self.nodes.get(usize::from(*ino)).and_then(|node| node.as_deref());
        let mut hasher = Xxh3::new();
        match fact {
            Fact::Id(ino) => of(ino).map(|node| node.id).hash(&mut hasher),
            Fact::WithId(id) => self.find_id(*id).hash(&mut hasher),
            Fact::Name(dir, name) => of(dir).map(|n| n.entries.get(name)).hash(&mut hasher),
            Fact::Names(dir) => of(dir).map(|node| &node.entries).hash(&mut hasher),
            Fact::Links(ino) => of(ino).map(|node| (node.nlink, node.linked)).hash(&mut hasher),
            Fact::Perm(ino) => of(ino).map(|node| node.perm).hash(&mut hasher),
            Fact::Size(ino) => {
                of(ino).map(|n| (n.size, n.append_end, n.appending, n.cuts)).hash(&mut hasher);
            }
            Fact::Xattr(ino) => of(ino).map(|node| node.xattr).hash(&mut hasher),
            Fact::Mtime(ino) => of(ino).map(|node| node.mtime).hash(&mut hasher),
            Fact::Listing(call) => {
                self.listings.iter().find(|listing| listing.call == *call).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    fn node(&self, ino: WorldIno) -> &Node {
        self.nodes[usize::from(ino)].as_ref().expect("entries name inodes that are there")
    }

    fn ask(&self, fact: Fact) {
        self.asked.borrow_mut().push(fact);
    }

    fn kind(&self, ino: WorldIno) -> Kind {
        self.node(ino).kind
    }

    fn is_dir(&self, ino: WorldIno) -> bool {
        self.kind(ino) == Kind::Dir
    }

    fn named(&self, dir: WorldIno, name: NameNo) -> Option<WorldIno> {
        self.ask(Fact::Name(dir, name));
        self.node(dir).entries.get(&name).copied()
    }

    fn names(&self, dir: WorldIno) -> &BTreeMap<NameNo, WorldIno> {
        self.ask(Fact::Names(dir));
        &self.node(dir).entries
    }

    fn nlink(&self, ino: WorldIno) -> u32 {
        self.ask(Fact::Links(ino));
        self.node(ino).nlink
    }

    fn is_linked(&self, ino: WorldIno) -> bool {
        self.ask(Fact::Links(ino));
        self.node(ino).linked
    }

    fn id(&self, ino: WorldIno) -> InodeId {
        self.ask(Fact::Id(ino));
        self.node(ino).id
    }

    fn perm(&self, ino: WorldIno) -> u32 {
        self.ask(Fact::Perm(ino));
        self.node(ino).perm
    }

    fn size(&self, ino: WorldIno) -> u64 {
        self.ask(Fact::Size(ino));
        self.node(ino).size
    }

    fn append_end(&self, ino: WorldIno) -> u64 {
        self.ask(Fact::Size(ino));
        self.node(ino).append_end
    }

    fn cuts(&self, ino: WorldIno) -> u32 {
        self.ask(Fact::Size(ino));
        self.node(ino).cuts
    }

    fn xattr(&self, ino: WorldIno) -> Option<u8> {
        self.ask(Fact::Xattr(ino));
        self.node(ino).xattr
    }

    fn mtime(&self, ino: WorldIno) -> Option<i64> {
        self.ask(Fact::Mtime(ino));
        self.node(ino).mtime
    }

    /// To change it. What is changed without a look at it was not asked for.
    fn node_mut(&mut self, ino: WorldIno) -> &mut Node {
        let node = self.nodes[usize::from(ino)].as_mut();
        Rc::make_mut(node.expect("entries name inodes that are there"))
    }

    fn make(&mut self, ino: WorldIno, kind: Kind, id: InodeId) {
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
            appending: 0,
            cuts: 0,
            xattr: None,
            mtime: None,
            linked: false,
            entries: BTreeMap::new(),
            id,
        };
        self.nodes[index] = Some(Rc::new(node));
    }

    fn by_id(&self, id: InodeId) -> Option<WorldIno> {
        self.ask(Fact::WithId(id));
        self.find_id(id)
    }

    fn find_id(&self, id: InodeId) -> Option<WorldIno> {
        let found = |node: &Option<Rc<Node>>| node.as_ref().is_some_and(|node| node.id == id);
        self.nodes.iter().position(found).map(|ino| ino as WorldIno)
    }

    /// The inode has this id, as far as is known.
    fn is(&mut self, ino: WorldIno, id: InodeId) -> bool {
        match self.id(ino) {
            0 if self.by_id(id).is_none() => {
                self.node_mut(ino).id = id;
                self.learnt += 1;
                true
            }
            known => known == id,
        }
    }

    // ---- paths ----------------------------------------------------------------------------

    fn base(&self, path: &Path) -> Step<WorldIno> {
        match path.base {
            None => Ok(ROOT_INO),
            Some(id) => {
                let dir = self.by_id(id).ok_or(Errno::ENOENT)?;
                let removed = self.nlink(dir) == 0;
                if removed { Err(Errno::ENOENT) } else { Ok(dir) }
            }
        }
    }

    fn enter(&self, dir: WorldIno, name: NameNo) -> Step<WorldIno> {
        let child = self.named(dir, name).ok_or(Errno::ENOENT)?;
        match self.kind(child) {
            Kind::Dir => Ok(child),
            Kind::Symlink => Err(Errno::ELOOP),
            Kind::File | Kind::Fifo => Err(Errno::ENOTDIR),
        }
    }

    fn place(&self, path: &Path) -> Step<PathEnd> {
        let mut dir = self.base(path)?;
        let (&name, above) = path.names.split_last().ok_or(Errno::EINVAL)?;
        for name in above {
            dir = self.enter(dir, *name)?;
        }
        Ok(PathEnd { dir, name, there: self.named(dir, name) })
    }

    fn find(&self, path: &Path) -> Step<WorldIno> {
        if path.names.is_empty() {
            return self.base(path);
        }
        self.place(path)?.there.ok_or(Errno::ENOENT)
    }

    // ---- changes --------------------------------------------------------------------------

    fn insert(&mut self, dir: WorldIno, name: NameNo, ino: WorldIno) {
        let node = self.node_mut(dir);
        node.entries.insert(name, ino);
        node.mtime = None;
    }

    fn remove(&mut self, dir: WorldIno, name: NameNo) {
        let node = self.node_mut(dir);
        node.entries.remove(&name);
        node.mtime = None;
    }

    fn drop_link(&mut self, ino: WorldIno) {
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
        let names = self.names(ino);
        let throughout = names.keys().copied().collect();
        let ever = names.iter().map(|(name, ino)| (*name, *ino)).collect();
        let removed = self.nlink(ino) == 0;
        self.listings.push(Listing { call, dir: ino, throughout, ever, removed });
    }

    /// Has the listing begun?
    pub fn is_listing(&self, call: usize) -> bool {
        self.ask(Fact::Listing(call));
        self.listings.iter().any(|listing| listing.call == call)
    }

    /// The states after it has ended with this answer (docs/protocol.md, rule 19): several if it may
    /// have seen either of two inodes with a name whose ids nobody knows yet.
    pub fn end_listing(&self, call: usize, answer: &WorldAnswer) -> Vec<WorldSpec> {
        self.ask(Fact::Listing(call));
        let mut spec = self.clone();
        let Some(at) = spec.listings.iter().position(|listing| listing.call == call) else {
            return if matches!(answer, WorldAnswer::Failed(_)) { vec![spec] } else { Vec::new() };
        };
        let listing = spec.listings.remove(at);
        match answer {
            WorldAnswer::Failed(Errno::ENOENT | Errno::ESTALE) if listing.removed => vec![spec],
            WorldAnswer::Names(names) => {
                let twice = (1..names.len()).any(|i| names[..i].iter().any(|n| n.0 == names[i].0));
                let missing = |name: &NameNo| !names.iter().any(|listed| listed.0 == *name);
                if twice || listing.throughout.iter().any(missing) {
                    return Vec::new();
                }
                let saw = |specs: Vec<WorldSpec>, (name, id): &(NameNo, InodeId)| {
                    specs.iter().flat_map(|spec| spec.saw(&listing, *name, *id)).collect()
                };
                names.iter().fold(vec![spec], saw)
            }
            _ => Vec::new(),
        }
    }

    /// The states in which a listing saw the inode with this id by this name.
    fn saw(&self, listing: &Listing, name: NameNo, id: InodeId) -> Vec<WorldSpec> {
        let seen = listing.ever.iter().filter(|(other, _)| *other == name);
        let is = |(_, ino): &(NameNo, WorldIno)| {
            let mut spec = self.clone();
            spec.is(*ino, id).then_some(spec)
        };
        seen.filter_map(is).collect()
    }
}

impl Default for WorldSpec {
    fn default() -> WorldSpec {
        WorldSpec::new()
    }
}

/// Nobody knows what was answered: then this may be it.
fn unknown(answer: &WorldAnswer) -> bool {
    matches!(answer, WorldAnswer::Unknown(_))
}

fn failed(errno: Errno, answer: &WorldAnswer) -> bool {
    matches!(answer, WorldAnswer::Failed(told) if *told == errno) || unknown(answer)
}

fn done(answer: &WorldAnswer) -> bool {
    matches!(answer, WorldAnswer::Done) || unknown(answer)
}

fn is_answer(result: Step<()>, answer: &WorldAnswer) -> bool {
    match result {
        Ok(()) => done(answer),
        Err(errno) => failed(errno, answer),
    }
}
