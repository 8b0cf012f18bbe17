//! A client: random operations, on names of its own and on names that all clients fight for.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::arena::{Arena, Arenas, Event};
use super::hands::{Hands, Trouble, make_dir};
use crate::generate::Random;
use crate::history::{FileCall, FileReply, Files, RECORD_BYTES, Spec, Tree, TreeKind, WriteAt};

/// Operations in a directory of one client.
const PRIVATE_RECORDS: usize = 150;
/// Operations in a directory of all clients.
const SHARED_RECORDS: usize = 400;
/// Directories of all clients at a time.
const SHARED_ARENAS: usize = 2;
/// Percent of operations that go there.
const SHARED_PERCENT: usize = 40;
/// Percent of a client's own operations that go through the other mount.
const OTHER_MOUNT_PERCENT: usize = 10;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SHARED_NAMES: [&str; 6] = ["n0", "n1", "n2", "n3", "n4", "n5"];
const DEPTH_MAX: usize = 3;
/// Bytes of a write: below, at and above what fits into an inode's row.
const SIZES: [u64; 7] = [0, 16, 1_024, 4_096, 4_112, 32_768, 299_984];
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(20);

/// What all clients count.
#[derive(Default)]
pub struct ClientCounters {
    /// Calls.
    pub calls: AtomicU64,
    /// Of them, those that failed because something was down.
    pub failed: AtomicU64,
    /// Changes that were acknowledged.
    pub mutations: AtomicU64,
    /// Operations without an answer.
    pub unknown: AtomicU64,
}

/// What they counted until a moment.
#[derive(Clone, Copy, Debug)]
pub struct ClientCounts {
    /// As in [`ClientCounters`].
    pub calls: u64,
    /// As in [`ClientCounters`].
    pub failed: u64,
    /// As in [`ClientCounters`].
    pub mutations: u64,
    /// As in [`ClientCounters`].
    pub unknown: u64,
}

impl ClientCounters {
    /// Until now.
    pub fn totals(&self) -> ClientCounts {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let ClientCounters { calls, failed, mutations, unknown } = self;
        let (calls, failed) = (read(calls), read(failed));
        ClientCounts { calls, failed, mutations: read(mutations), unknown: read(unknown) }
    }
}

/// What all clients share.
pub struct Field {
    /// Directory of the run below each mount.
    pub tops: Vec<PathBuf>,
    /// Where they play.
    pub arenas: Arenas,
    /// What they count.
    pub counts: ClientCounters,
    /// Told to end.
    pub stop: AtomicBool,
    /// Everything written is flushed before it counts.
    pub sync: bool,
    /// Pause between operations.
    pub think: Duration,
    /// When the run began.
    pub start: Instant,
}

/// A client.
pub struct TormentClient {
    field: Arc<Field>,
    n: usize,
    rng: Random,
    tags: u64,
    /// The arena of its own, and what should be in it.
    own: Option<(Arc<Arena>, Tree)>,
    owned: usize,
    hands: BTreeMap<(usize, String), Hands>,
}

/// What it does next.
enum Move {
    One(FileCall),
    /// Opens, then writes this much there.
    Write(FileCall, u64, WriteAt),
    /// Opens, then sets the size.
    Resize(FileCall, u64),
    /// Writes a file aside and renames it into place.
    Put(String),
}

impl TormentClient {
    /// Client `n`.
    pub fn new(field: &Arc<Field>, n: usize, seed: u64) -> TormentClient {
        let rng = Random::new(seed.wrapping_mul(1_000).wrapping_add(n as u64));
        let (field, hands) = (field.clone(), BTreeMap::new());
        TormentClient { field, n, rng, tags: 0, own: None, owned: 0, hands }
    }

    /// Plays until it is told to stop.
    pub fn run(mut self) {
        while !self.field.stop.load(Ordering::Relaxed) {
            if self.turn().is_none() {
                sleep(PAUSE);
            }
            sleep(self.field.think);
        }
    }

    /// One move; none when something was down.
    fn turn(&mut self) -> Option<()> {
        let mount = self.n % self.field.tops.len();
        if self.rng.chance(SHARED_PERCENT) {
            let which = self.rng.below(SHARED_ARENAS);
            let top = self.field.tops[mount].clone();
            let make = |name: &str| make_dir(&top.join(name));
            let Some(arena) = self.field.arenas.shared(which, SHARED_RECORDS, make) else {
                return self.missed();
            };
            let next = self.shared_move();
            return self.play(&arena, mount, next);
        }
        if self.own.as_ref().is_none_or(|(arena, _)| arena.is_full()) {
            let name = format!("own-{}-{:06}", self.n, self.owned);
            if !make_dir(&self.field.tops[mount].join(&name)) {
                return self.missed();
            }
            self.owned += 1;
            self.hands.clear();
            let arena = Arena::new(name, PRIVATE_RECORDS);
            self.field.arenas.add(&arena);
            self.own = Some((arena, Tree::default()));
        }
        let arena = self.own.as_ref().map(|(arena, _)| arena.clone())?;
        let next = self.own_move();
        let other = self.rng.chance(OTHER_MOUNT_PERCENT);
        let mount = (mount + usize::from(other)) % self.field.tops.len();
        self.play(&arena, mount, next)
    }

    /// A call that could not even be made.
    fn missed(&self) -> Option<()> {
        self.field.counts.calls.fetch_add(1, Ordering::Relaxed);
        self.field.counts.failed.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn play(&mut self, arena: &Arc<Arena>, mount: usize, next: Move) -> Option<()> {
        match next {
            Move::One(op) => self.act(arena, mount, op, None).map(|_| ()),
            Move::Write(open, len, place) => {
                let (handle, file) = self.act(arena, mount, open, None)?;
                let Some(file) = file else { return Some(()) };
                let write = FileCall::Write { handle, tag: self.tag(), len, place };
                self.act(arena, mount, write, Some(file)).map(|_| ())
            }
            Move::Resize(open, len) => {
                let (handle, file) = self.act(arena, mount, open, None)?;
                let Some(file) = file else { return Some(()) };
                self.act(arena, mount, FileCall::Resize { handle, len }, Some(file)).map(|_| ())
            }
            Move::Put(to) => {
                let tag = self.tag();
                let aside = format!("aside-{tag:x}");
                let create = FileCall::Create { path: aside.clone() };
                let (handle, file) = self.act(arena, mount, create, None)?;
                let Some(file) = file else { return Some(()) };
                let len = *self.rng.pick(&SIZES[..6]);
                let write = FileCall::Write { handle, tag, len, place: WriteAt::Start };
                self.act(arena, mount, write, Some(file))?;
                let rename = FileCall::Rename { from: aside, to, no_replace: false };
                self.act(arena, mount, rename, None).map(|_| ())
            }
        }
    }

    /// Carries out one operation and notes it; its number and the file that it opened. None when
    /// something was down.
    fn act(
        &mut self,
        arena: &Arc<Arena>,
        mount: usize,
        op: FileCall,
        file: Option<OwnedFd>,
    ) -> Option<(usize, Option<OwnedFd>)> {
        let field = self.field.clone();
        let counts = &field.counts;
        let place = (mount, arena.name.clone());
        if !self.hands.contains_key(&place) {
            let path = field.tops[mount].join(&arena.name);
            match Hands::open(&path, field.sync) {
                Some(hands) => _ = self.hands.insert(place.clone(), hands),
                None => {
                    self.missed();
                    return None;
                }
            }
        }
        counts.calls.fetch_add(1, Ordering::Relaxed);
        let call_ns = field.start.elapsed().as_nanos() as u64;
        let done = self.hands[&place].perform(&op, file);
        let reply_ns = field.start.elapsed().as_nanos() as u64;
        let event = |reply| Event { client: self.n, call_ns, reply, op: op.clone() };
        match done {
            Ok((reply, opened)) => {
                if reply == FileReply::Done && changes(&op) {
                    counts.mutations.fetch_add(1, Ordering::Relaxed);
                }
                if let FileReply::Names(names) = &reply
                    && arena.is_shared()
                {
                    // A listing is no instant: each name has one of its own.
                    for name in SHARED_NAMES {
                        let listed = FileReply::Listed(names.iter().any(|n| n == name));
                        let op = FileCall::Listed { path: name.to_owned() };
                        let reply = Some((reply_ns, listed));
                        arena.push(Event { client: self.n, call_ns, reply, op });
                    }
                    return Some((0, None));
                }
                let n = arena.push(event(Some((reply_ns, reply.clone()))));
                self.expect(arena, n, &op, &reply);
                Some((n, opened))
            }
            Err(trouble) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                if trouble != Trouble::NotAsked && changes(&op) {
                    counts.unknown.fetch_add(1, Ordering::Relaxed);
                    arena.push(event(None));
                }
                self.hands.remove(&place);
                None
            }
        }
    }

    /// What is there now, to choose the next operation by.
    fn expect(&mut self, arena: &Arc<Arena>, n: usize, op: &FileCall, reply: &FileReply) {
        if let Some((own, tree)) = &mut self.own
            && Arc::ptr_eq(own, arena)
            && let Some(after) = Files.apply(tree, n, op, Some(reply))
        {
            *tree = after;
        }
    }

    fn tag(&mut self) -> u64 {
        self.tags += 1;
        (self.n as u64 + 1) << 40 | self.tags
    }

    fn shared_move(&mut self) -> Move {
        let path = (*self.rng.pick(&SHARED_NAMES)).to_owned();
        let to = (*self.rng.pick(&SHARED_NAMES)).to_owned();
        Move::One(match self.rng.below(100) {
            0..20 => return Move::Put(path),
            20..28 => FileCall::Symlink { path, tag: self.tag() },
            28..36 => FileCall::Mkdir { path },
            36..42 => FileCall::Create { path },
            42..56 => FileCall::Unlink { path },
            56..64 => FileCall::Rmdir { path },
            // With replacement the kernel may find one inode at both names, one after the other,
            // and answer by itself.
            64..80 => FileCall::Rename { from: path, to, no_replace: true },
            80..88 => FileCall::Read { path },
            88..94 => FileCall::Readlink { path },
            _ => FileCall::List { path: String::new() },
        })
    }

    fn own_move(&mut self) -> Move {
        let paths = self.own.as_ref().map(|(_, tree)| tree.paths()).unwrap_or_default();
        let fresh = self.fresh(&paths);
        let path = self.existing(&paths).unwrap_or_else(|| fresh.clone());
        let len = *self.rng.pick(&SIZES);
        let start = WriteAt::Start;
        Move::One(match self.rng.below(100) {
            0..14 => return Move::Write(FileCall::Create { path: fresh }, len, start),
            14..20 => return Move::Write(FileCall::Open { path, truncate: true }, len, start),
            20..26 => {
                return Move::Write(FileCall::Open { path, truncate: false }, len, WriteAt::End);
            }
            26..30 => return Move::Resize(FileCall::Open { path, truncate: false }, len),
            30..38 => FileCall::Read { path },
            38..47 => FileCall::Mkdir { path: fresh },
            47..51 => FileCall::Rmdir { path },
            51..57 => FileCall::Unlink { path },
            57..61 => FileCall::Symlink { path: fresh, tag: self.tag() },
            61..63 => FileCall::Readlink { path },
            63..68 => FileCall::Link { from: path, to: fresh },
            68..73 => FileCall::Rename { from: path, to: fresh, no_replace: self.rng.chance(30) },
            73..78 => {
                let to = self.existing(&paths).unwrap_or(fresh);
                FileCall::Rename { from: path, to, no_replace: false }
            }
            78..81 => FileCall::Chmod { path, mode: *self.rng.pick(&[0o600, 0o644, 0o755, 0o777]) },
            81..84 => {
                FileCall::SetMtime { path, ns: 1_000_000_000 + self.rng.below(1 << 50) as i64 }
            }
            84..87 => FileCall::Setxattr { path, value: self.tag() },
            87..88 => FileCall::Removexattr { path },
            88..90 => FileCall::Getxattr { path },
            90..96 => FileCall::Stat { path },
            _ => FileCall::List { path: self.directory(&paths) },
        })
    }

    fn existing(&mut self, paths: &[(String, TreeKind)]) -> Option<String> {
        let use_it = !paths.is_empty() && self.rng.chance(90);
        use_it.then(|| self.rng.pick(paths).0.clone())
    }

    /// A directory that should be there; "" is the arena's own.
    fn directory(&mut self, paths: &[(String, TreeKind)]) -> String {
        let dirs: Vec<&str> = paths
            .iter()
            .filter(|(path, kind)| *kind == TreeKind::Dir && path.split('/').count() < DEPTH_MAX)
            .map(|(path, _)| path.as_str())
            .chain([""])
            .collect();
        (*self.rng.pick(&dirs)).to_owned()
    }

    /// A name in a directory that should be there.
    fn fresh(&mut self, paths: &[(String, TreeKind)]) -> String {
        let dir = self.directory(paths);
        let name = *self.rng.pick(&NAMES);
        if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
    }
}

fn changes(op: &FileCall) -> bool {
    !matches!(
        op,
        FileCall::Read { .. }
            | FileCall::Readlink { .. }
            | FileCall::Getxattr { .. }
            | FileCall::Stat { .. }
            | FileCall::List { .. }
            | FileCall::Open { truncate: false, .. }
    )
}

const _: () = {
    let mut n = 0;
    while n < SIZES.len() {
        assert!(SIZES[n].is_multiple_of(RECORD_BYTES));
        n += 1;
    }
};
