//! What the clients do: random calls of the real library, each noted in the history.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use saker_client::{Caller, DirItem, File, Fs, OpenFlags, SetAttr, SetTime};
use saker_runtime::rand::Rng;
use saker_types::limits::CHUNK_BYTES;
use saker_types::time::{stamp_of_unix_ns, unix_ns};
use saker_types::wire::{self, At};
use saker_types::{Attr, Class, Errno, Error, FileKind, InodeId, Locator, ROOT, Stamp};

use super::history::{
    CallSubject, Moments, NameNo, Path, WorldAnswer, WorldCall, WorldHistory, WorldSeen, name_of,
    parse_name,
};

const NAMES: u64 = 7;
const DEPTH_MAX: usize = 4;
const XATTR: &[u8] = b"trusted.t";
/// Files a client holds open.
const OPEN_MAX: usize = 3;
/// Longest read and write at the end of a chunk, bytes.
pub const EDGE_BYTES: u64 = 400;
/// Paths and directories remembered.
const KNOWN_MAX: usize = 16;

/// What all clients share.
#[derive(Default)]
pub struct WorldState {
    pub history: WorldHistory,
    /// Paths at which there once was a directory.
    dirs: Vec<Vec<NameNo>>,
    /// Paths at which there once was something else.
    files: Vec<Vec<NameNo>>,
    /// Clients that have finished.
    pub finished: usize,
    /// Calls made so far; the world watches it.
    pub calls: Rc<Cell<usize>>,
    /// Clocks are about right.
    pub clocks_are_near: bool,
    /// What was written last.
    tags: u8,
}

impl WorldState {
    /// Nothing yet; `calls` counts calls, `moments` those of the history.
    pub fn new(calls: Rc<Cell<usize>>, moments: Moments) -> WorldState {
        let history = WorldHistory { moments, ..WorldHistory::default() };
        WorldState { calls, history, ..WorldState::default() }
    }

    fn new_tag(&mut self) -> u8 {
        self.tags = self.tags.wrapping_add(1).max(1);
        self.tags
    }
}

/// As the clients have it.
pub type SharedWorld = Rc<RefCell<WorldState>>;

struct Open {
    file: File,
    id: InodeId,
    append: bool,
}

/// A client with its library.
pub struct WorldClient {
    number: usize,
    fs: Fs,
    who: Caller,
    rng: Rng,
    shared: SharedWorld,
    open: Vec<Open>,
    anchors: Vec<Locator>,
    /// Largest size of a truncation or write, so that some files leave their rows.
    size_max: u64,
    /// The newest time of a change that it has seen.
    seen_ns: Stamp,
}

impl WorldClient {
    /// A client that draws from `seed`.
    pub fn new(
        number: usize,
        fs: Fs,
        seed: u64,
        shared: SharedWorld,
        size_max: u64,
    ) -> WorldClient {
        let rng = Rng::seeded(seed);
        let (open, anchors) = (Vec::new(), Vec::new());
        let (who, seen_ns) = (Caller::root(), 0);
        WorldClient { number, fs, who, rng, shared, open, anchors, size_max, seen_ns }
    }

    // ---- what to do -----------------------------------------------------------------------

    fn dir(&mut self) -> Vec<NameNo> {
        let shared = self.shared.borrow();
        let known = shared.dirs.len() as u64;
        if known > 0 && self.rng.chance(3, 4) {
            return shared.dirs[self.rng.below(known) as usize].clone();
        }
        let len = self.rng.below(3);
        (0..len).map(|_| self.rng.below(NAMES) as NameNo).collect()
    }

    fn path(&mut self) -> Path {
        let mut names = self.dir();
        names.truncate(DEPTH_MAX - 1);
        names.push(self.rng.below(NAMES) as NameNo);
        Path { base: None, names }
    }

    /// A path at which something may be: a directory, or something else.
    fn known(&mut self, is_dir: bool) -> Path {
        let shared = self.shared.borrow();
        let known = if is_dir { &shared.dirs } else { &shared.files };
        if known.is_empty() || self.rng.chance(1, 4) {
            drop(shared);
            return self.path();
        }
        Path::of(&known[self.rng.below(known.len() as u64) as usize])
    }

    fn either(&mut self) -> Path {
        let is_dir = self.rng.chance(2, 5);
        self.known(is_dir)
    }

    /// A path that may start at a directory that was looked up before.
    fn place(&mut self) -> Path {
        if !self.anchors.is_empty() && self.rng.chance(1, 6) {
            let at = self.rng.below(self.anchors.len() as u64) as usize;
            let mut names = vec![self.rng.below(NAMES) as NameNo];
            if self.rng.chance(1, 4) {
                names.push(self.rng.below(NAMES) as NameNo);
            }
            return Path { base: Some(self.anchors[at].id), names };
        }
        self.path()
    }

    fn subject(&mut self) -> CallSubject {
        if !self.open.is_empty() && self.rng.chance(1, 3) {
            let at = self.rng.below(self.open.len() as u64) as usize;
            return CallSubject::Open(self.open[at].id);
        }
        match self.rng.below(4) {
            0 => CallSubject::At(self.place()),
            _ => CallSubject::At(self.either()),
        }
    }

    fn size(&mut self) -> u64 {
        match self.rng.below(3) {
            0 => 0,
            1 => 1 + self.rng.below(16),
            _ => 1 + self.rng.below(self.size_max),
        }
    }

    fn draw(&mut self) -> WorldCall {
        let is_start = self.shared.borrow().calls.get() < 40;
        if is_start && self.rng.chance(2, 3) {
            // There should be something to work on.
            let at = self.path();
            return match self.rng.chance(1, 2) {
                true => WorldCall::Mkdir { at },
                false => WorldCall::Create { at, exclusive: true },
            };
        }
        match self.rng.below(100) {
            0..11 => WorldCall::Create { at: self.place(), exclusive: self.rng.chance(2, 3) },
            11..23 => WorldCall::Mkdir { at: self.place() },
            23..25 => WorldCall::Symlink { at: self.place() },
            25..26 => WorldCall::Mkfifo { at: self.place() },
            26..33 => WorldCall::Unlink { at: self.known(false) },
            33..40 => WorldCall::Rmdir { at: self.known(true) },
            40..44 => WorldCall::Exchange { from: self.either(), to: self.either() },
            44..54 => WorldCall::Rename {
                from: self.either(),
                to: if self.rng.chance(1, 4) { self.either() } else { self.path() },
                no_replace: self.rng.chance(1, 4),
            },
            54..59 => WorldCall::Link { from: self.known(false), to: self.path() },
            59..62 => WorldCall::Lookup { at: self.either() },
            62..69 => WorldCall::Getattr { of: self.subject() },
            69..73 => {
                WorldCall::Chmod { of: self.subject(), mode: 0o700 + self.rng.below(64) as u32 }
            }
            73..76 => WorldCall::Utimes {
                of: self.subject(),
                mtime_ns: 1_000_000_000 * (1 + self.rng.below(1_000) as i64),
            },
            76..80 => WorldCall::Truncate { of: self.subject(), size: self.size() },
            80..81 => WorldCall::Setxattr {
                of: self.subject(),
                value: self.rng.below(256) as u8,
                flags: self.rng.below(3) as u32,
            },
            81..82 => WorldCall::Getxattr { of: self.subject() },
            82..83 => WorldCall::Removexattr { of: self.subject() },
            83..86 => WorldCall::Open { at: self.known(false) },
            86..94 => self.draw_write(),
            94..97 => self.draw_read(),
            _ => WorldCall::Readdir { dir: ROOT },
        }
    }

    fn draw_write(&mut self) -> WorldCall {
        if self.open.is_empty() {
            return WorldCall::Open { at: self.place() };
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (id, len) = (self.open[at].id, 1 + self.size());
        if self.rng.chance(1, 4) {
            return WorldCall::Fsync { id };
        }
        let tag = self.shared.borrow_mut().new_tag();
        if self.open[at].append {
            return WorldCall::Append { id, len, tag };
        }
        if self.rng.chance(1, 5) {
            // In two chunks.
            let start = CHUNK_BYTES - 1 - self.rng.below(EDGE_BYTES);
            let end = CHUNK_BYTES + 1 + self.rng.below(EDGE_BYTES);
            return WorldCall::Write { id, start, end, tag };
        }
        WorldCall::Write { id, start: len / 2, end: len, tag }
    }

    fn draw_read(&mut self) -> WorldCall {
        let [start, edge] = self.regions();
        let region = if self.rng.chance(1, 4) { edge } else { start };
        WorldCall::Read { at: self.known(false), offset: region.0, len: region.1 }
    }

    /// Where there may be data: offsets and lengths.
    fn regions(&self) -> [(u64, usize); 2] {
        let edge = CHUNK_BYTES - EDGE_BYTES;
        [(0, 2 * self.size_max as usize), (edge, 2 * EDGE_BYTES as usize)]
    }

    // ---- doing it -------------------------------------------------------------------------

    /// Makes so many calls.
    pub async fn run(mut self, calls: usize) {
        let made = self.shared.borrow().calls.clone();
        while made.get() < calls {
            made.set(made.get() + 1);
            let call = self.draw();
            match call {
                WorldCall::Readdir { .. } => self.list_some().await,
                call => self.note(call).await,
            }
            if self.open.len() > OPEN_MAX || (!self.open.is_empty() && self.rng.chance(1, 25)) {
                let at = self.rng.below(self.open.len() as u64) as usize;
                self.open.swap_remove(at).file.release().await;
            }
        }
        for open in self.open.drain(..) {
            open.file.release().await;
        }
        self.shared.borrow_mut().finished += 1;
    }

    /// Looks at everything, when nobody else is there.
    pub async fn look_at_all(mut self) {
        let mut dirs = vec![(Locator::root(), Vec::new())];
        while let Some((loc, names)) = dirs.pop() {
            for item in self.list(&loc).await {
                let Some(name) = parse_name(&item.name) else { continue };
                let mut path: Vec<NameNo> = names.clone();
                path.push(name);
                let at = Path::of(&path);
                self.note(WorldCall::Getattr { of: CallSubject::At(at.clone()) }).await;
                self.note(WorldCall::Getxattr { of: CallSubject::At(at.clone()) }).await;
                if item.attr.kind() == FileKind::Regular {
                    let there = self.regions().into_iter().filter(|r| r.0 < item.attr.size);
                    for (offset, len) in there {
                        self.note(WorldCall::Read { at: at.clone(), offset, len }).await;
                    }
                }
                if item.attr.is_dir() {
                    dirs.push((item.loc, path));
                }
            }
        }
        self.shared.borrow_mut().finished += 1;
    }

    async fn list_some(&mut self) {
        let names = self.dir();
        if names.is_empty() {
            self.list(&Locator::root()).await;
            return;
        }
        let call = WorldCall::Lookup { at: Path { base: None, names } };
        let index = self.begin(&call);
        let found = self.entry(&call).await;
        let loc = found.as_ref().ok().map(|entry| entry.loc.clone());
        let is_dir = found.as_ref().is_ok_and(|entry| entry.attr.is_dir());
        self.end(index, found.map_or_else(told, |entry| WorldAnswer::Entry(seen(&entry))));
        if let (Some(loc), true) = (loc, is_dir) {
            self.list(&loc).await;
        }
    }

    async fn list(&mut self, loc: &Locator) -> Vec<DirItem> {
        let index = self.begin(&WorldCall::Readdir { dir: loc.id });
        let mut stream = self.fs.readdir(&self.who, loc, 0);
        let mut items = Vec::new();
        let answer = loop {
            match stream.next().await {
                Ok(Some(item)) => items.push(item),
                Ok(None) => {
                    let name = |item: &DirItem| Some((parse_name(&item.name)?, item.loc.id));
                    break WorldAnswer::Names(items.iter().filter_map(name).collect());
                }
                Err(error) => break told(error),
            }
        };
        self.end(index, answer);
        items
    }

    fn begin(&self, call: &WorldCall) -> usize {
        self.shared.borrow_mut().history.begin(self.number, call.clone())
    }

    fn end(&self, index: usize, answer: WorldAnswer) {
        self.shared.borrow_mut().history.end(index, answer);
    }

    async fn note(&mut self, call: WorldCall) {
        let index = self.begin(&call);
        let answer = self.make(&call).await.unwrap_or_else(told);
        self.learn(&call, &answer);
        self.end(index, answer);
    }

    fn learn(&mut self, call: &WorldCall, answer: &WorldAnswer) {
        let mut shared = self.shared.borrow_mut();
        let shared = &mut *shared;
        let good =
            matches!(answer, WorldAnswer::Entry(_) | WorldAnswer::Opened(..) | WorldAnswer::Done);
        let (names, is_dir) = match call {
            _ if !good => return,
            WorldCall::Mkdir { at } if at.base.is_none() => (&at.names, true),
            WorldCall::Create { at, .. } | WorldCall::Symlink { at } if at.base.is_none() => {
                (&at.names, false)
            }
            WorldCall::Link { to, .. } => (&to.names, false),
            WorldCall::Unlink { at } => return shared.files.retain(|names| names != &at.names),
            WorldCall::Rmdir { at } => return shared.dirs.retain(|names| names != &at.names),
            WorldCall::Rename { from, to, .. } => {
                let is_dir = shared.dirs.contains(&from.names);
                (&to.names, is_dir)
            }
            _ => return,
        };
        let known = if is_dir { &mut shared.dirs } else { &mut shared.files };
        if known.contains(names) || (is_dir && names.len() >= DEPTH_MAX) {
            return;
        }
        if known.len() == KNOWN_MAX {
            known.remove(0);
        }
        known.push(names.clone());
        if let WorldCall::Rename { from, .. } = call {
            known.retain(|names| names != &from.names);
        }
    }

    fn at(&self, path: &Path) -> Result<At, Error> {
        let anchor = match path.base {
            None => Locator::root(),
            Some(id) => {
                let known = self.anchors.iter().rev().find(|loc| loc.id == id);
                known.cloned().ok_or(Errno::EBADF)?
            }
        };
        let names = path.names.iter().map(|name| Bytes::from(name_of(*name)));
        Ok(At::below(anchor, names.collect()))
    }

    fn subject_at(&self, of: &CallSubject) -> Result<At, Error> {
        match of {
            CallSubject::At(path) => self.at(path),
            CallSubject::Open(id) => Ok(At::handle(self.opened(*id)?.file.locator())),
        }
    }

    fn opened(&self, id: InodeId) -> Result<&Open, Error> {
        self.open.iter().find(|open| open.id == id).ok_or_else(|| Errno::EBADF.into())
    }

    /// Lookup, with the anchor that it gives.
    async fn entry(&mut self, call: &WorldCall) -> Result<wire::Entry, Error> {
        let WorldCall::Lookup { at } = call else { return Err(Errno::EINVAL.into()) };
        let entry = self.fs.lookup(&self.who, &self.at(at)?).await?;
        self.see_time(&entry, false);
        self.anchor(&entry);
        Ok(entry)
    }

    /// What is `new` was made later than all that this client has seen.
    fn see_time(&mut self, entry: &wire::Entry, new: bool) {
        let Attr { id, ctime_ns, .. } = entry.attr;
        let number = self.number;
        assert!(
            !new || ctime_ns > self.seen_ns || !self.shared.borrow().clocks_are_near,
            "client {number}: inode {id:#x} is new and older than what it has seen"
        );
        self.seen_ns = self.seen_ns.max(ctime_ns);
    }

    fn anchor(&mut self, entry: &wire::Entry) {
        if entry.attr.is_dir() {
            if self.anchors.len() == KNOWN_MAX {
                self.anchors.remove(0);
            }
            self.anchors.push(entry.loc.clone());
        }
    }

    async fn make(&mut self, call: &WorldCall) -> Result<WorldAnswer, Error> {
        let (fs, who) = (self.fs.clone(), self.who.clone());
        Ok(match call {
            WorldCall::Create { at, exclusive } => {
                let (append, at) = (self.rng.chance(1, 3), self.at(at)?);
                let flags = OpenFlags {
                    write: true,
                    append,
                    exclusive: *exclusive,
                    ..OpenFlags::default()
                };
                let (file, entry) = fs.create(&who, &at, 0o755, flags).await?;
                self.see_time(&entry, entry.created);
                self.keep(file, &entry, append);
                WorldAnswer::Opened(seen(&entry), entry.created)
            }
            WorldCall::Open { at } => {
                let (append, at) = (self.rng.chance(1, 3), self.at(at)?);
                let flags = OpenFlags { write: true, append, ..OpenFlags::default() };
                let (file, entry) = fs.open(&who, &at, flags).await?;
                self.keep(file, &entry, append);
                WorldAnswer::Opened(seen(&entry), false)
            }
            WorldCall::Read { at, offset, len } => {
                let flags = OpenFlags { read: true, ..OpenFlags::default() };
                let (file, entry) = fs.open(&who, &self.at(at)?, flags).await?;
                let read = match entry.attr.kind() {
                    FileKind::Regular => file.read(*offset, *len).await,
                    _ => Ok(Bytes::new()),
                };
                file.release().await;
                WorldAnswer::Data(seen(&entry), read?)
            }
            WorldCall::Mkdir { at } => {
                let entry = fs.mkdir(&who, &self.at(at)?, 0o755).await?;
                self.see_time(&entry, true);
                self.anchor(&entry);
                WorldAnswer::Entry(seen(&entry))
            }
            WorldCall::Symlink { at } => {
                let entry = fs.symlink(&who, &self.at(at)?, b"nowhere").await?;
                self.see_time(&entry, true);
                WorldAnswer::Entry(seen(&entry))
            }
            WorldCall::Mkfifo { at } => {
                let mode = FileKind::Fifo.bits() | 0o755;
                let entry = fs.mknod(&who, &self.at(at)?, mode, 0).await?;
                self.see_time(&entry, true);
                WorldAnswer::Entry(seen(&entry))
            }
            WorldCall::Unlink { at } => {
                fs.unlink(&who, &self.at(at)?).await?;
                WorldAnswer::Done
            }
            WorldCall::Rmdir { at } => {
                fs.rmdir(&who, &self.at(at)?).await?;
                WorldAnswer::Done
            }
            WorldCall::Rename { from, to, no_replace } => {
                let (from, to) = (self.at(from)?, self.at(to)?);
                only_id(fs.rename(&who, &from, &to, *no_replace, &[]).await?.loc.id)
            }
            WorldCall::Exchange { from, to } => {
                let (from, to) = (self.at(from)?, self.at(to)?);
                let [loc, _] = fs.exchange(&who, &from, &to, [&[], &[]]).await?;
                only_id(loc.id)
            }
            WorldCall::Link { from, to } => {
                WorldAnswer::Entry(seen(&fs.link(&who, &self.at(from)?, &self.at(to)?).await?))
            }
            WorldCall::Lookup { .. } => WorldAnswer::Entry(seen(&self.entry(call).await?)),
            WorldCall::Readdir { .. } => return Err(Errno::EINVAL.into()),
            _ => self.make_on_inode(call).await?,
        })
    }

    fn keep(&mut self, file: File, entry: &wire::Entry, append: bool) {
        if entry.attr.kind() == FileKind::Regular {
            self.open.push(Open { file, id: entry.attr.id, append });
        }
    }

    async fn make_on_inode(&mut self, call: &WorldCall) -> Result<WorldAnswer, Error> {
        let (fs, who) = (self.fs.clone(), self.who.clone());
        let change = match call {
            WorldCall::Chmod { mode, .. } => SetAttr { mode: Some(*mode), ..SetAttr::default() },
            WorldCall::Utimes { mtime_ns, .. } => SetAttr {
                mtime: Some(SetTime::At(stamp_of_unix_ns(*mtime_ns))),
                ..SetAttr::default()
            },
            WorldCall::Truncate { size, .. } => SetAttr { size: Some(*size), ..SetAttr::default() },
            _ => SetAttr::default(),
        };
        Ok(match call {
            WorldCall::Getattr { of } => {
                let entry = fs.getattr(&who, &self.subject_at(of)?).await?;
                self.see_time(&entry, false);
                WorldAnswer::Entry(seen(&entry))
            }
            WorldCall::Chmod { of, .. }
            | WorldCall::Utimes { of, .. }
            | WorldCall::Truncate { of, .. } => {
                let at = self.subject_at(of)?;
                WorldAnswer::Entry(seen(&fs.setattr(&who, &at, &change).await?))
            }
            WorldCall::Setxattr { of, value, flags } => {
                let at = self.subject_at(of)?;
                fs.setxattr(&who, &at, XATTR, &[*value], *flags).await?;
                WorldAnswer::Done
            }
            WorldCall::Getxattr { of } => {
                let value = fs.getxattr(&who, &self.subject_at(of)?, XATTR).await?;
                WorldAnswer::Value(value.first().copied().unwrap_or_default())
            }
            WorldCall::Removexattr { of } => {
                fs.removexattr(&who, &self.subject_at(of)?, XATTR).await?;
                WorldAnswer::Done
            }
            WorldCall::Write { id, start, end, tag } => {
                let file = self.writer(*id, false)?;
                file.write(*start, &vec![*tag; (end - start) as usize]).await?;
                file.flush().await?;
                WorldAnswer::Done
            }
            WorldCall::Fsync { id } => {
                self.opened(*id)?.file.fsync().await?;
                WorldAnswer::Done
            }
            WorldCall::Append { id, len, tag } => {
                let file = self.writer(*id, true)?;
                let offset = file.write(0, &vec![*tag; *len as usize]).await?;
                // Others see it from here on.
                file.flush().await?;
                WorldAnswer::Offset(offset)
            }
            _ => return Err(Errno::EINVAL.into()),
        })
    }

    fn writer(&self, id: InodeId, append: bool) -> Result<File, Error> {
        let open = self.open.iter().find(|open| open.id == id && open.append == append);
        open.map(|open| open.file.clone()).ok_or_else(|| Errno::EBADF.into())
    }
}

fn only_id(id: InodeId) -> WorldAnswer {
    WorldAnswer::Entry(WorldSeen { id, mode: 0, nlink: 0, size: 0, mtime_ns: 0 })
}

fn seen(entry: &wire::Entry) -> WorldSeen {
    let a = &entry.attr;
    WorldSeen {
        id: a.id,
        mode: a.mode,
        nlink: a.nlink,
        size: a.size,
        mtime_ns: unix_ns(a.mtime_ns) as i64,
    }
}

/// What an error says. Some say that nobody knows.
fn told(error: Error) -> WorldAnswer {
    let is_lost = matches!(error.errno(), Errno::ETIMEDOUT | Errno::EIO | Errno::EAGAIN);
    if is_lost || error.is(Class::Retry) {
        return WorldAnswer::Unknown(error.to_string());
    }
    WorldAnswer::Failed(error.errno())
}
