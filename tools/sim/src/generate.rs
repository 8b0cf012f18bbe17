//! Random operations from a seed. The name space is small, so that operations meet each other:
//! five names a directory, four levels, four users, a few open files.

use crate::model::{Model, ModelIno};
use crate::op::{
    CHECK_FD, DIR_FDS, FsOp, How, NameBytes, NewTime, OpStep, PathFrom, RENAME_EXCHANGE,
    RENAME_NOREPLACE, users,
};

const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d.tmp", b"\xff\xfe"];
const XATTRS: [&[u8]; 3] = [b"user.k", b"user.label", b"user.0"];
const DEPTH_MAX: usize = 4;
const MODES: [u32; 14] = [
    0o777, 0o777, 0o755, 0o775, 0o1777, 0o1777, 0o700, 0o2775, 0o644, 0o666, 0o4755, 0o6777,
    0o2745, 0o111,
];
const UIDS: [u32; 5] = [0, 1001, 1002, 1003, 2000];

/// How often each kind is drawn, in the order of [`FsOp::KINDS`].
const WEIGHTS: [u32; FsOp::KINDS.len()] =
    [4, 3, 3, 3, 7, 3, 4, 9, 7, 3, 4, 6, 10, 3, 3, 4, 4, 5, 5, 4, 8, 5, 12, 5, 4, 3, 3, 3];

/// SplitMix64: small, seedable, the same everywhere and for ever.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.any() % n as u64) as usize
    }

    /// True in `percent` of cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Draws steps.
pub struct Generator {
    rng: Random,
    clients: usize,
    /// Also give operations on names paths that end in `.` or `..`; such a path is text, which
    /// only the kernel and the resolver see.
    dots: bool,
}

impl Generator {
    /// A generator for a number of clients.
    pub fn new(seed: u64, clients: usize, dots: bool) -> Generator {
        Generator { rng: Random::new(seed), clients, dots }
    }

    /// The next step, given what is there.
    pub fn step(&mut self, model: &Model) -> OpStep {
        let tree = model.tree();
        let client = self.rng.below(self.clients);
        let user = if self.rng.chance(50) { 0 } else { self.rng.below(users().len()) };
        let kind = self.kind(model, &tree);
        let op = self.op(kind, model, &tree);
        match op.handle().and_then(|fd| model.handle(fd)) {
            Some(handle) => OpStep { client: handle.client, user: handle.user, op },
            None => OpStep { client, user, op },
        }
    }

    fn kind(&mut self, model: &Model, tree: &[(PathFrom, ModelIno)]) -> usize {
        let unlink = 20;
        if tree.len() > 80 && self.rng.chance(30) {
            return unlink;
        }
        let total: u32 = WEIGHTS.iter().sum();
        let mut draw = self.rng.below(total as usize) as u32;
        let mut kind = 0;
        while draw >= WEIGHTS[kind] {
            draw -= WEIGHTS[kind];
            kind += 1;
        }
        let needs_handle = (10..=15).contains(&kind);
        let any_open = (0..CHECK_FD).any(|fd| model.handle(fd).is_some());
        let create = 7;
        if needs_handle && !any_open { create } else { kind }
    }

    fn op(&mut self, kind: usize, model: &Model, tree: &[(PathFrom, ModelIno)]) -> FsOp {
        match kind {
            0..=2 | 9 | 17..=19 | 24..=27 => self.inode_op(kind, model, tree),
            3 => FsOp::Readlink { at: self.existing(model, tree, 0o120_000) },
            10..=15 => self.handle_op(kind, model),
            16 => {
                let size = self.size();
                FsOp::Truncate { at: self.existing(model, tree, 0o100_000), size }
            }
            _ => self.name_op(kind, model, tree),
        }
    }

    fn inode_op(&mut self, kind: usize, model: &Model, tree: &[(PathFrom, ModelIno)]) -> FsOp {
        let wanted = match kind {
            2 | 9 => 0o040_000,
            24..=27 if self.rng.chance(60) => 0o100_000,
            _ => 0,
        };
        let at = self.existing(model, tree, wanted);
        let follow = self.rng.chance(50);
        let mut name = self.rng.pick(&XATTRS).to_vec();
        let marked = tree.iter().find(|(_, ino)| !model.xattr_names(*ino).is_empty());
        let at = match marked {
            Some((at, ino)) if matches!(kind, 25 | 27) && self.rng.chance(60) => {
                name = model.xattr_names(*ino)[0].clone();
                at.clone()
            }
            _ => at,
        };
        let at = self.scenic(at);
        match kind {
            0 => FsOp::Stat { at, follow },
            1 => FsOp::Access { at, want: self.rng.below(8) as u32 },
            2 => FsOp::Readdir { at },
            9 => FsOp::OpenDir { at, fd: self.rng.below(DIR_FDS) },
            17 => FsOp::Chmod { at, mode: self.mode() },
            18 => {
                let some = |g: &mut Self| g.rng.chance(60).then(|| *g.rng.pick(&UIDS));
                let (uid, gid) = (some(self), some(self));
                let gid = if uid.is_none() { gid.or(Some(2000)) } else { gid };
                FsOp::Chown { at, uid, gid, follow }
            }
            19 => {
                let (atime, mtime) = self.times();
                FsOp::Utimes { at, atime, mtime, follow }
            }
            24 => {
                let len = *self.rng.pick(&[0, 1, 10, 100, 1000]);
                let value = vec![self.rng.any() as u8; len];
                let flags = *self.rng.pick(&[0, 0, 1, 2]);
                FsOp::Setxattr { at, name, value, flags }
            }
            25 => FsOp::Getxattr { at, name },
            26 => FsOp::Listxattr { at },
            _ => FsOp::Removexattr { at, name },
        }
    }

    fn name_op(&mut self, kind: usize, model: &Model, tree: &[(PathFrom, ModelIno)]) -> FsOp {
        let mode = self.mode();
        match kind {
            4 => FsOp::Mkdir { at: self.fresh(tree, model), mode },
            5 => {
                let kind = *self.rng.pick(&[0o010_000, 0o140_000, 0o100_000]);
                FsOp::Mknod { at: self.fresh(tree, model), mode: kind | mode }
            }
            6 => FsOp::Symlink { at: self.fresh(tree, model), target: self.target() },
            7 => {
                let existing = self.rng.chance(30);
                let at = if existing {
                    self.existing(model, tree, 0o100_000)
                } else {
                    self.fresh(tree, model)
                };
                let how = How { exclusive: self.rng.chance(20), ..self.how() };
                FsOp::Create { at, mode, how, fd: self.rng.below(CHECK_FD) }
            }
            8 => {
                let at = self.existing(model, tree, 0o100_000);
                let at = self.scenic(at);
                FsOp::Open { at, how: self.how(), fd: self.rng.below(CHECK_FD) }
            }
            20 => FsOp::Unlink { at: self.victim(model, tree, 0o100_000) },
            21 => {
                let lower = model.tree().into_iter().skip(1);
                let empty: Vec<(PathFrom, ModelIno)> =
                    lower.filter(|(_, ino)| model.is_empty_dir(*ino)).collect();
                let some = if empty.is_empty() || self.rng.chance(50) { tree } else { &empty };
                FsOp::Rmdir { at: self.victim(model, some, 0o040_000) }
            }
            22 => {
                let wanted = *self.rng.pick(&[0, 0o040_000, 0o100_000]);
                let from = self.victim(model, tree, wanted);
                let to = if self.rng.chance(50) {
                    self.victim(model, tree, wanted)
                } else {
                    self.fresh(tree, model)
                };
                let flags = *self.rng.pick(&[
                    0,
                    0,
                    0,
                    0,
                    RENAME_NOREPLACE,
                    RENAME_EXCHANGE,
                    RENAME_EXCHANGE,
                    3,
                ]);
                // Only the kernel knows what is above a held directory.
                let to = if self.dots { to } else { model.from_root(to) };
                let walks_from = !self.dots && flags == RENAME_EXCHANGE;
                let from = if walks_from { model.from_root(from) } else { from };
                FsOp::Rename { from, to, flags }
            }
            _ => {
                let from = self.victim(model, tree, 0o100_000);
                FsOp::Link { from, to: self.fresh(tree, model) }
            }
        }
    }

    fn handle_op(&mut self, kind: usize, model: &Model) -> FsOp {
        let open: Vec<usize> = (0..CHECK_FD).filter(|s| model.handle(*s).is_some()).collect();
        let fd = *self.rng.pick(&open);
        match kind {
            10 => FsOp::Close { fd },
            11 => {
                let offset = if self.rng.chance(60) { 0 } else { self.offset() };
                FsOp::Read { fd, offset, len: *self.rng.pick(&[1, 100, 4096, 70_000, 200_000]) }
            }
            12 => {
                let (offset, len) = (self.offset(), self.len());
                FsOp::Write { fd, offset, len, fill: self.rng.any() as u8 }
            }
            13 => FsOp::Fsync { fd },
            14 => FsOp::Fstat { fd },
            _ => FsOp::Ftruncate { fd, size: self.size() },
        }
    }

    /// A place in a file: mostly in its row, sometimes in chunks, seldom in the second or third.
    fn offset(&mut self) -> u64 {
        let draw = self.rng.any();
        match self.rng.below(100) {
            0..40 => 0,
            40..70 => draw % 4096,
            70..80 => 4090 + draw % 12,
            80..95 => draw % 200_000,
            95..99 => (4 << 20) - 50 + draw % 100,
            _ => (8 << 20) + draw % 100,
        }
    }

    fn len(&mut self) -> usize {
        let draw = self.rng.any() as usize;
        match self.rng.below(100) {
            0..5 => 0,
            5..60 => 1 + draw % 600,
            60..90 => 1 + draw % 6000,
            90..99 => 1 + draw % 150_000,
            _ => (5 << 20) + draw % 100,
        }
    }

    fn size(&mut self) -> u64 {
        match self.rng.below(100) {
            0..30 => 0,
            30..35 => 1 << 50,
            _ => self.offset(),
        }
    }

    fn mode(&mut self) -> u32 {
        if self.rng.chance(90) { *self.rng.pick(&MODES) } else { self.rng.below(0o10000) as u32 }
    }

    fn how(&mut self) -> How {
        let (read, write) = *self.rng.pick(&[(true, false), (false, true), (true, true)]);
        let append = write && self.rng.chance(25);
        let truncate = write && self.rng.chance(20);
        How { read, write, append, truncate, exclusive: false }
    }

    fn times(&mut self) -> (NewTime, NewTime) {
        let ns = |g: &mut Self| NewTime::Ns(1_000_000_000 * g.rng.below(1_600_000_000) as i64 + 7);
        match self.rng.below(5) {
            0 => (NewTime::Now, NewTime::Now),
            1 => (NewTime::Omit, ns(self)),
            2 => (ns(self), NewTime::Omit),
            3 => (NewTime::Omit, NewTime::Now),
            _ => (ns(self), ns(self)),
        }
    }

    fn name(&mut self) -> NameBytes {
        match self.rng.below(100) {
            0 => vec![b'l'; 255],
            1 => vec![b'L'; 256],
            _ => self.rng.pick(&NAMES).to_vec(),
        }
    }

    /// Where a symlink leads: never up, so that no path leaves the run's root.
    fn target(&mut self) -> Vec<u8> {
        let first = self.rng.pick(&NAMES).to_vec();
        if self.rng.chance(60) {
            return first;
        }
        [first, self.rng.pick(&NAMES).to_vec()].join(&b'/')
    }

    /// Something that is there, of the kind wanted (0: any); sometimes of another, sometimes not.
    fn existing(&mut self, model: &Model, tree: &[(PathFrom, ModelIno)], kind: u32) -> PathFrom {
        if self.rng.chance(8) {
            return self.wild(model);
        }
        let of_kind: Vec<&PathFrom> = tree
            .iter()
            .filter(|(_, ino)| kind == 0 || model.mode(*ino) & 0o170_000 == kind)
            .map(|(at, _)| at)
            .collect();
        if of_kind.is_empty() || self.rng.chance(15) {
            let at = self.rng.pick(tree).0.clone();
            return self.rebased(model, at);
        }
        let at = (*self.rng.pick(&of_kind)).clone();
        self.rebased(model, at)
    }

    /// The same for an operation on the name: it has one.
    fn victim(&mut self, model: &Model, tree: &[(PathFrom, ModelIno)], kind: u32) -> PathFrom {
        let mut at = self.existing(model, tree, kind);
        if self.dots && self.rng.chance(2) {
            at.path.push(if at.path.is_empty() || self.rng.chance(50) {
                b".".to_vec()
            } else {
                b"..".to_vec()
            });
        } else if at.path.is_empty() {
            at.path.push(self.name());
        }
        at
    }

    /// A name in an existing directory, mostly not taken.
    fn fresh(&mut self, tree: &[(PathFrom, ModelIno)], model: &Model) -> PathFrom {
        if self.rng.chance(5) {
            return self.wild(model);
        }
        let dirs: Vec<&PathFrom> = tree
            .iter()
            .filter(|(at, ino)| model.is_dir(*ino) && at.path.len() < DEPTH_MAX)
            .map(|(at, _)| at)
            .collect();
        let dir = (*self.rng.pick(&dirs)).clone();
        let dir = self.rebased(model, dir);
        let mut at = self.scenic(dir);
        at.path.push(self.name());
        at
    }

    /// Any names at all, from the root or a held directory.
    fn wild(&mut self, model: &Model) -> PathFrom {
        let held: Vec<usize> = (0..DIR_FDS).filter(|s| model.held(*s).is_some()).collect();
        let base =
            if held.is_empty() || self.rng.chance(50) { None } else { Some(*self.rng.pick(&held)) };
        let depth = 1 + self.rng.below(3);
        PathFrom { base, path: (0..depth).map(|_| self.name()).collect() }
    }

    /// The same place by way of a held directory, where one lies on the path.
    fn rebased(&mut self, model: &Model, at: PathFrom) -> PathFrom {
        if at.base.is_some() || !self.rng.chance(40) {
            return at;
        }
        for fd in 0..DIR_FDS {
            let Some(held) = model.held(fd) else { continue };
            for len in 1..=at.path.len() {
                let prefix = PathFrom { base: None, path: at.path[..len].to_vec() };
                if model.peek(&prefix) == Some(held) {
                    return PathFrom { base: Some(fd), path: at.path[len..].to_vec() };
                }
            }
        }
        at
    }

    /// A detour by `.` or by `..`.
    fn scenic(&mut self, mut at: PathFrom) -> PathFrom {
        // From a held directory only the kernel understands them.
        if at.path.is_empty() || !self.rng.chance(8) || (at.base.is_some() && !self.dots) {
            return at;
        }
        let i = self.rng.below(at.path.len());
        if self.rng.chance(30) {
            at.path.insert(i, b".".to_vec());
        } else {
            let again = at.path[i].clone();
            at.path.insert(i, b"..".to_vec());
            at.path.insert(i, again);
        }
        at
    }
}
