//! The reference model: what POSIX and Linux promise, in memory, in the plainest way.
//!
//! Errors come in the order in which Linux's `fs/namei.c` and ext4 find them. The model is itself
//! tested against a real local directory (`tests/model_vs_local.rs`). Times are numbers of
//! steps: what matters is who must change and who must not, and in which order.

use std::collections::{BTreeMap, VecDeque};

use saker_types::Errno;

use crate::op::{
    DIR_FDS, FDS, FsOp, How, NameBytes, OpResult, OpStat, OpStep, PathFrom, User, Value,
};

mod data;
mod errors;
mod inodes;
mod names;

/// Number of an inode in the model.
pub type ModelIno = u64;
/// The root directory of a run.
pub const ROOT_INO: ModelIno = 1;
/// "Not defined by the model": the step is not tried on the system under test.
pub const UNDEFINED: Errno = Errno(0);
/// Largest file of ext4 and of Saker.
const FILE_BYTES_MAX: u64 = 16 << 40;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// Where systems differ within what POSIX leaves open.
#[derive(Clone, Copy, Debug)]
pub struct ModelRules {
    /// `fs.protected_hardlinks` of the kernel above the file system.
    pub protected_hardlinks: bool,
    /// `fs.protected_symlinks`.
    pub protected_symlinks: bool,
    /// `fs.protected_regular` is at least 1.
    pub protected_regular: u8,
    /// truncate(2) to the present size changes the times, as POSIX says (file systems differ:
    /// else it is not tried).
    pub same_size_truncate_touches: bool,
    /// rename changes ctime of an inode with several links (POSIX leaves it open; on Saker the
    /// attributes of such an inode need not be where its names are).
    pub rename_touches_linked: bool,
    /// `.` and `..` ask for search permission of their directory. The kernel does not tell a FUSE
    /// file system of them.
    pub dots_are_searched: bool,
    /// A kernel is above: it sees that both names are one inode before it asks for permissions.
    pub kernel: bool,
    /// Files end at 16 TiB (else larger sizes are not tried).
    pub ends_at_16_tib: bool,
}

impl ModelRules {
    /// A file system without a kernel above it.
    pub fn plain() -> ModelRules {
        ModelRules {
            protected_hardlinks: false,
            protected_symlinks: false,
            protected_regular: 0,
            same_size_truncate_touches: true,
            rename_touches_linked: false,
            dots_are_searched: true,
            kernel: false,
            ends_at_16_tib: true,
        }
    }

    /// Saker below the running kernel.
    pub fn of_mount() -> ModelRules {
        ModelRules {
            rename_touches_linked: false,
            dots_are_searched: false,
            ..ModelRules::of_kernel()
        }
    }

    /// The running kernel's settings, and what ext4 does.
    pub fn of_kernel() -> ModelRules {
        let read = |name: &str| -> u8 {
            let text = std::fs::read_to_string(format!("/proc/sys/fs/protected_{name}"));
            text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
        };
        ModelRules {
            protected_hardlinks: read("hardlinks") > 0,
            protected_symlinks: read("symlinks") > 0,
            protected_regular: read("regular"),
            same_size_truncate_touches: false,
            rename_touches_linked: true,
            dots_are_searched: true,
            kernel: true,
            ends_at_16_tib: true,
        }
    }
}

/// A time of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelTime {
    /// Changed in this step.
    Step(u64),
    /// Set by utimes, ns since the epoch.
    Set(i64),
    /// Changed in this step or not, as the system likes.
    Maybe(u64),
}

#[derive(Clone, Debug)]
struct Inode {
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    /// It has, or once had, several names.
    linked: bool,
    data: Vec<u8>,
    /// Only when far beyond what `data` may hold (sparse tails are not stored).
    size: u64,
    target: Vec<u8>,
    entries: BTreeMap<NameBytes, ModelIno>,
    parent: ModelIno,
    xattrs: BTreeMap<NameBytes, Vec<u8>>,
    atime: ModelTime,
    mtime: ModelTime,
    ctime: ModelTime,
    opens: u32,
    /// Step of the last change of data by each client.
    writers: BTreeMap<usize, u64>,
}

impl Inode {
    fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }
    fn is_regular(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }
    fn is_symlink(&self) -> bool {
        self.mode & S_IFMT == S_IFLNK
    }
}

/// An open file.
#[derive(Clone, Debug)]
pub struct ModelHandle {
    /// What is open.
    pub ino: ModelIno,
    /// How.
    pub how: How,
    /// The client that opened it.
    pub client: usize,
    /// The user that opened it.
    pub user: usize,
    /// In which step.
    pub since: u64,
    /// It was written and not yet closed or flushed.
    pub dirty: bool,
}

/// The model's state.
#[derive(Clone)]
pub struct Model {
    rules: ModelRules,
    inodes: BTreeMap<ModelIno, Inode>,
    next: ModelIno,
    /// Number of the present step.
    pub now: u64,
    /// Client of the present step.
    client: usize,
    handles: [Option<ModelHandle>; FDS],
    held: [Option<ModelIno>; DIR_FDS],
}

/// What a walk stops at.
#[derive(Clone, Copy, PartialEq)]
enum WalkStop {
    /// Before the last component is looked up.
    Parent,
    /// At the last component, a symlink included.
    NoFollow,
    /// After following it.
    Follow,
}

/// Where a walk ended.
#[derive(Clone, Debug)]
struct WalkEnd {
    dir: ModelIno,
    /// None: the path ended in `.`, `..` or was empty.
    name: Option<NameBytes>,
    /// None: there is no such entry (or it was not looked up).
    ino: Option<ModelIno>,
}

type Found<T> = Result<T, Errno>;

impl Model {
    /// A root directory that everybody may write to.
    pub fn new(rules: ModelRules) -> Model {
        let mut model = Model {
            rules,
            inodes: BTreeMap::new(),
            next: ROOT_INO,
            now: 0,
            client: 0,
            handles: Default::default(),
            held: Default::default(),
        };
        let ino = model.add(S_IFDIR | 0o777, &User { uid: 0, gid: 0, groups: vec![] }, ROOT_INO);
        model.inode_mut(ino).gid = 0;
        model
    }

    /// Executes a step. [`UNDEFINED`] means that nothing was done and nothing is promised.
    pub fn apply(&mut self, who: &User, step: &OpStep) -> OpResult<ModelTime> {
        self.now += 1;
        self.client = step.client;
        match &step.op {
            FsOp::Stat { at, follow } => {
                let ino = self.find(who, at, stop(*follow))?;
                Ok(Value::Stat(self.stat(ino)))
            }
            FsOp::Access { at, want } => {
                let ino = self.find(who, at, WalkStop::Follow)?;
                self.permit(who, ino, *want).map(|()| Value::Done)
            }
            FsOp::Readdir { at } => self.readdir(who, at),
            FsOp::Readlink { at } => self.readlink(who, at),
            FsOp::Mkdir { at, mode } => self.mkdir(who, at, *mode),
            FsOp::Mknod { at, mode } => self.mknod(who, at, *mode),
            FsOp::Symlink { at, target } => self.symlink(who, at, target),
            FsOp::Create { at, mode, how, fd } => {
                self.open(who, step.user, at, *how, Some(*mode), *fd)
            }
            FsOp::Open { at, how, fd } => self.open(who, step.user, at, *how, None, *fd),
            FsOp::OpenDir { at, fd } => self.hold(who, at, *fd),
            FsOp::Close { fd } => self.close(*fd),
            FsOp::Read { fd, offset, len } => self.read(*fd, *offset, *len),
            FsOp::Write { fd, offset, len, fill } => self.write(who, *fd, *offset, *len, *fill),
            FsOp::Fsync { fd } => self.fsync(*fd),
            FsOp::Fstat { fd } => {
                let ino = self.handle(*fd).ok_or(UNDEFINED)?.ino;
                Ok(Value::Stat(self.stat(ino)))
            }
            FsOp::Ftruncate { fd, size } => self.ftruncate(who, *fd, *size),
            FsOp::Truncate { at, size } => self.truncate(who, at, *size),
            FsOp::Chmod { at, mode } => self.chmod(who, at, *mode),
            FsOp::Chown { at, uid, gid, follow } => self.chown(who, at, *uid, *gid, *follow),
            FsOp::Utimes { at, atime, mtime, follow } => {
                self.utimes(who, at, *atime, *mtime, *follow)
            }
            FsOp::Unlink { at } => self.unlink(who, at),
            FsOp::Rmdir { at } => self.rmdir(who, at),
            FsOp::Rename { from, to, flags } => self.rename(who, from, to, *flags),
            FsOp::Link { from, to } => self.link(who, from, to),
            FsOp::Setxattr { at, name, value, flags } => {
                self.setxattr(who, at, name, value, *flags)
            }
            FsOp::Getxattr { at, name } => self.getxattr(who, at, name),
            FsOp::Listxattr { at } => self.listxattr(who, at),
            FsOp::Removexattr { at, name } => self.removexattr(who, at, name),
        }
    }

    /// The open file with a descriptor.
    pub fn handle(&self, fd: usize) -> Option<&ModelHandle> {
        self.handles[fd].as_ref()
    }

    /// The directory open with a descriptor.
    pub fn held(&self, fd: usize) -> Option<ModelIno> {
        self.held[fd]
    }

    /// Has a held directory been removed?
    pub fn held_is_gone(&self, fd: usize) -> bool {
        self.held[fd].is_some_and(|ino| self.inode(ino).nlink == 0)
    }

    /// May a read of the open file be out of date, because another client changed the data since
    /// it was opened (close-to-open consistency)?
    pub fn is_stale(&self, fd: usize) -> bool {
        self.handle(fd).is_some_and(|h| {
            let writers = &self.inode(h.ino).writers;
            writers.iter().any(|(client, step)| *client != h.client && *step > h.since)
        })
    }

    /// Is the inode still there (named or open)?
    pub fn lives(&self, ino: ModelIno) -> bool {
        self.inodes.contains_key(&ino)
    }

    /// Everything in the tree below the root, the root first: paths and inodes.
    pub fn tree(&self) -> Vec<(PathFrom, ModelIno)> {
        let mut out = vec![(PathFrom { base: None, path: vec![] }, ROOT_INO)];
        let mut next = 0;
        while next < out.len() {
            let (at, ino) = out[next].clone();
            for (name, child) in &self.inode(ino).entries {
                let mut path = at.path.clone();
                path.push(name.clone());
                out.push((PathFrom { base: None, path }, *child));
            }
            next += 1;
        }
        out
    }

    /// The same place by way of the root, if the directory where the path starts is there.
    pub fn from_root(&self, at: PathFrom) -> PathFrom {
        let Some(held) = at.base.and_then(|fd| self.held[fd]) else { return at };
        match self.tree().into_iter().find(|(_, ino)| *ino == held) {
            Some((dir, _)) => PathFrom { base: None, path: [dir.path, at.path].concat() },
            None => at,
        }
    }

    /// Mode of an inode, with type bits.
    pub fn mode(&self, ino: ModelIno) -> u32 {
        self.inode(ino).mode
    }

    /// What lies at a path of plain names from the root, whoever asks.
    pub fn peek(&self, at: &PathFrom) -> Option<ModelIno> {
        let mut ino = ROOT_INO;
        for name in &at.path {
            ino = *self.inode(ino).entries.get(name)?;
        }
        Some(ino)
    }

    /// Attributes, whoever asks.
    pub fn attributes(&self, ino: ModelIno) -> OpStat<ModelTime> {
        self.stat(ino)
    }

    /// Names of extended attributes, whoever asks.
    pub fn xattr_names(&self, ino: ModelIno) -> Vec<NameBytes> {
        self.inode(ino).xattrs.keys().cloned().collect()
    }

    /// Is it a directory without entries?
    pub fn is_empty_dir(&self, ino: ModelIno) -> bool {
        self.is_dir(ino) && self.inode(ino).entries.is_empty()
    }

    /// Everything that is there, named or open.
    pub fn inos(&self) -> Vec<ModelIno> {
        self.inodes.keys().copied().collect()
    }

    /// Has it, or had it once, several names?
    pub fn is_linked(&self, ino: ModelIno) -> bool {
        self.inode(ino).linked
    }

    /// Size, and the step in which data was changed last (0: never); `None` if it is not there any more.
    pub fn data_state(&self, ino: ModelIno) -> Option<(u64, u64)> {
        let inode = self.inodes.get(&ino)?;
        Some((inode.size, inode.writers.values().copied().max().unwrap_or_default()))
    }

    /// Its names, with the directories that they are in.
    pub fn names_of(&self, ino: ModelIno) -> Vec<(ModelIno, NameBytes)> {
        let dirs = self.inodes.iter().filter(|(_, inode)| inode.nlink > 0);
        let names =
            dirs.flat_map(|(dir, inode)| inode.entries.iter().map(move |entry| (*dir, entry)));
        let names = names.filter(|(_, (_, there))| **there == ino);
        names.map(|(dir, (name, _))| (dir, name.clone())).collect()
    }

    /// From now on these have other times of change: nobody says which.
    pub fn forget_change_times(&mut self, inos: &[ModelIno]) {
        let now = ModelTime::Maybe(self.now);
        for ino in inos {
            let inode = self.inode_mut(*ino);
            inode.ctime = now;
            if inode.is_dir() {
                inode.mtime = now;
            }
        }
    }

    /// Is it a directory?
    pub fn is_dir(&self, ino: ModelIno) -> bool {
        self.inode(ino).is_dir()
    }

    fn inode(&self, ino: ModelIno) -> &Inode {
        &self.inodes[&ino]
    }

    fn inode_mut(&mut self, ino: ModelIno) -> &mut Inode {
        self.inodes.get_mut(&ino).expect("inodes of entries and handles exist")
    }

    /// Makes an inode that no entry names yet.
    fn add(&mut self, mode: u32, who: &User, dir: ModelIno) -> ModelIno {
        let ino = self.next;
        self.next += 1;
        let now = ModelTime::Step(self.now);
        let is_dir = mode & S_IFMT == S_IFDIR;
        let inode = Inode {
            mode,
            uid: who.uid,
            gid: who.gid,
            nlink: if is_dir { 2 } else { 1 },
            linked: false,
            data: Vec::new(),
            size: 0,
            target: Vec::new(),
            entries: BTreeMap::new(),
            parent: dir,
            xattrs: BTreeMap::new(),
            atime: now,
            mtime: now,
            ctime: now,
            opens: 0,
            writers: BTreeMap::new(),
        };
        self.inodes.insert(ino, inode);
        ino
    }

    fn touch(&mut self, ino: ModelIno, data: bool) {
        let now = ModelTime::Step(self.now);
        let inode = self.inode_mut(ino);
        inode.ctime = now;
        if data {
            inode.mtime = now;
        }
    }

    /// Forgets an inode that nothing names and nobody holds.
    fn reap(&mut self, ino: ModelIno) {
        let held = self.held.contains(&Some(ino));
        let inode = self.inode(ino);
        if inode.nlink == 0 && inode.opens == 0 && !held {
            self.inodes.remove(&ino);
        }
    }

    fn in_group(who: &User, gid: u32) -> bool {
        who.gid == gid || who.groups.contains(&gid)
    }

    /// inode(7): read 4, write 2, execute or search 1.
    fn permit(&self, who: &User, ino: ModelIno, want: u32) -> Found<()> {
        let inode = self.inode(ino);
        if who.uid == 0 {
            let refused = want & 1 != 0 && !inode.is_dir() && inode.mode & 0o111 == 0;
            return if refused { Err(Errno::EACCES) } else { Ok(()) };
        }
        let bits = if who.uid == inode.uid {
            inode.mode >> 6
        } else if Self::in_group(who, inode.gid) {
            inode.mode >> 3
        } else {
            inode.mode
        };
        if want & !bits & 7 == 0 { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn base(&self, at: &PathFrom) -> Found<ModelIno> {
        match at.base {
            None => Ok(ROOT_INO),
            Some(fd) => self.held[fd].ok_or(UNDEFINED),
        }
    }

    /// path_resolution(7).
    fn walk(&self, who: &User, at: &PathFrom, stop: WalkStop) -> Found<WalkEnd> {
        let mut dir = self.base(at)?;
        let mut rest: VecDeque<NameBytes> = at.path.iter().cloned().collect();
        let mut links = 0;
        if rest.is_empty() {
            rest.push_back(b".".to_vec());
        }
        loop {
            let name = rest.pop_front().ok_or(UNDEFINED)?;
            let last = rest.is_empty();
            let dots = name == b"." || name == b"..";
            if dots && !self.rules.dots_are_searched {
                self.permit(who, dir, 1).map_err(|_| UNDEFINED)?;
            }
            self.permit(who, dir, 1)?;
            if dots {
                if name == b".." {
                    dir = self.inode(dir).parent;
                }
                if last {
                    return Ok(WalkEnd { dir, name: None, ino: Some(dir) });
                }
                continue;
            }
            if last && stop == WalkStop::Parent {
                return Ok(WalkEnd { dir, name: Some(name), ino: None });
            }
            let Some(ino) = self.lookup(dir, &name)? else {
                let place = WalkEnd { dir, name: Some(name), ino: None };
                return if last { Ok(place) } else { Err(Errno::ENOENT) };
            };
            if self.inode(ino).is_symlink() && (!last || stop == WalkStop::Follow) {
                links += 1;
                if links > 40 {
                    return Err(Errno::ELOOP);
                }
                self.may_follow(who, dir, ino, last)?;
                for part in self.inode(ino).target.split(|b| *b == b'/').rev() {
                    rest.push_front(part.to_vec());
                }
            } else if last {
                return Ok(WalkEnd { dir, name: Some(name), ino: Some(ino) });
            } else if self.inode(ino).is_dir() {
                dir = ino;
            } else {
                return Err(Errno::ENOTDIR);
            }
        }
    }

    fn may_follow(&self, who: &User, dir: ModelIno, link: ModelIno, trailing: bool) -> Found<()> {
        let (dir, link) = (self.inode(dir), self.inode(link));
        let free = !trailing
            || !self.rules.protected_symlinks
            || who.uid == link.uid
            || dir.mode & 0o1002 != 0o1002
            || dir.uid == link.uid;
        if free { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn lookup(&self, dir: ModelIno, name: &[u8]) -> Found<Option<ModelIno>> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(self.inode(dir).entries.get(name).copied())
    }

    fn find(&self, who: &User, at: &PathFrom, stop: WalkStop) -> Found<ModelIno> {
        self.walk(who, at, stop)?.ino.ok_or(Errno::ENOENT)
    }

    fn is_owner(&self, who: &User, ino: ModelIno) -> bool {
        who.uid == 0 || who.uid == self.inode(ino).uid
    }

    fn stat(&self, ino: ModelIno) -> OpStat<ModelTime> {
        let inode = self.inode(ino);
        let size = if inode.is_symlink() { inode.target.len() as u64 } else { inode.size };
        OpStat {
            ino,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            nlink: inode.nlink,
            size,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
        }
    }
}

fn stop(follow: bool) -> WalkStop {
    if follow { WalkStop::Follow } else { WalkStop::NoFollow }
}
