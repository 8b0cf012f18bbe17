//! What programs do: short calls on few names, so that they meet.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use saker_client::{Caller, Fs, OpenFlags};
use saker_rpc::Transport as _;
use saker_runtime::rand::Rng;
use saker_types::wire::At;
use saker_types::{Class, Errno, Error, Locator};

use super::history::{Fd, SyscallAnswer, SyscallHistory, SyscallOp, SyscallSeen};
use super::kernel::{Kernel, KernelFile, PathArg, wire};
use crate::world::history::{NameNo, Path, name_of, parse_name};
use crate::world::transport::WorldTransport;

const DEPTH_MAX: u64 = 3;
/// Files and directories that a program has open.
const OPEN_MAX: usize = 2;

/// What all programs of a run share.
#[derive(Default)]
pub struct MountsState {
    pub history: SyscallHistory,
    pub finished: usize,
    fds: Fd,
    tags: u8,
}

pub type SharedMounts = Rc<RefCell<MountsState>>;

/// How calls are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Of 100 calls, those on open files.
    pub data: u64,
    /// Of 100 others, those that move directories and what else they are called by.
    pub moves: u64,
    /// Names that there are, besides that of a file at the top.
    pub names: u64,
    /// Longest size, bytes.
    pub size_max: u64,
}

/// Draws calls.
pub struct Draw {
    pub rng: Rng,
    pub mix: Mix,
}

impl Draw {
    fn name(&mut self) -> NameNo {
        self.rng.below(self.mix.names) as NameNo
    }

    /// A path, mostly of one or two names.
    pub fn path(&mut self) -> Path {
        let len = match self.rng.below(8) {
            0..=1 => 1,
            2..=5 => 2,
            _ => 1 + self.rng.below(DEPTH_MAX),
        };
        let names: Vec<NameNo> = (0..len).map(|_| self.name()).collect();
        Path::of(&names)
    }

    fn dir_path(&mut self) -> Path {
        let len = 1 + self.rng.below(2);
        let names: Vec<NameNo> =
            (0..len).map(|_| self.name() % 3.min(self.mix.names as NameNo)).collect();
        Path::of(&names)
    }

    fn size(&mut self) -> u64 {
        match self.rng.below(3) {
            0 => 0,
            _ => 1 + self.rng.below(self.mix.size_max),
        }
    }

    /// Changes names of directories, and what else.
    fn mover(&mut self) -> SyscallOp {
        match self.rng.below(10) {
            0..=4 => SyscallOp::Exchange { from: self.dir_path(), to: self.dir_path() },
            5..=7 => {
                let (from, to) = (self.dir_path(), self.dir_path());
                SyscallOp::Rename { from, to, no_replace: self.rng.chance(1, 3) }
            }
            8 => SyscallOp::Rmdir { at: self.dir_path() },
            _ => SyscallOp::Mkdir { at: self.dir_path() },
        }
    }

    fn any(&mut self) -> SyscallOp {
        if self.rng.chance(self.mix.moves, 100) {
            return self.mover();
        }
        match self.rng.below(40) {
            0..=6 => SyscallOp::Create { at: self.path(), exclusive: self.rng.chance(1, 2) },
            7..=10 => SyscallOp::Unlink { at: self.path() },
            11..=13 => SyscallOp::Mkdir { at: self.path() },
            14..=15 => SyscallOp::Rmdir { at: self.path() },
            16..=20 => {
                let (from, to) = (self.path(), self.path());
                SyscallOp::Rename { from, to, no_replace: self.rng.chance(1, 4) }
            }
            21..=22 => SyscallOp::Exchange { from: self.path(), to: self.path() },
            23..=24 => SyscallOp::Link { from: self.path(), to: self.path() },
            25..=33 => SyscallOp::Stat { at: self.path() },
            34..=35 => {
                SyscallOp::Chmod { at: self.path(), mode: 0o700 + self.rng.below(64) as u32 }
            }
            36 => SyscallOp::Mkfifo { at: self.path() },
            _ => SyscallOp::Truncate { at: self.path(), size: self.size() },
        }
    }
}

/// One thread of a program on a mount.
pub struct MountProgram {
    pub mount: usize,
    pub tid: u32,
    pub kernel: Kernel,
    pub draw: Draw,
    pub shared: SharedMounts,
    pub sender: WorldTransport,
    /// The mount has READDIRPLUS.
    pub plus: bool,
    pub files: Vec<(Fd, KernelFile)>,
    pub dirs: Vec<(u64, KernelFile)>,
}

impl MountProgram {
    /// Makes so many calls.
    pub async fn run(mut self, calls: usize) {
        for _ in 0..calls {
            let us = match self.draw.rng.below(10) {
                0 => 100_000,
                1..=3 => 3_000,
                _ => 200,
            };
            self.sender.sleep(Duration::from_micros(self.draw.rng.below(us))).await;
            if self.draw.rng.chance(1, 12) {
                self.kernel.shrink();
            }
            let call = self.next();
            let number = self.begin(&call);
            let answer = match self.make(&call).await {
                Ok(answer) => answer,
                Err(errno) => told(errno),
            };
            self.shared.borrow_mut().history.end(number, answer);
        }
        while let Some((fd, open)) = self.files.pop() {
            let number = self.begin(&SyscallOp::Flush { fd });
            let done = self.kernel.close(self.tid, open).await;
            let answer = done.map_or_else(told, |()| SyscallAnswer::Done);
            self.shared.borrow_mut().history.end(number, answer);
        }
        while let Some((_, open)) = self.dirs.pop() {
            // Nobody hears of it.
            let _ = self.kernel.close(self.tid, open).await;
        }
        self.shared.borrow_mut().finished += 1;
    }

    fn begin(&self, call: &SyscallOp) -> usize {
        let mut shared = self.shared.borrow_mut();
        shared.history.begin(Some(self.mount), self.tid as usize, call.clone())
    }

    fn next(&mut self) -> SyscallOp {
        let rng = &mut self.draw.rng;
        if rng.chance(self.draw.mix.data, 100) {
            return self.on_file();
        }
        match rng.below(14) {
            0 => return SyscallOp::OpenDir { at: self.draw.dir_path() },
            1 if !self.dirs.is_empty() => {
                let at = rng.below(self.dirs.len() as u64) as usize;
                return SyscallOp::List { dir: self.dirs[at].0 };
            }
            _ => {}
        }
        let call = self.draw.any();
        if self.dirs.is_empty() || self.draw.rng.chance(2, 3) {
            return call;
        }
        // Some of its paths begin in an open directory.
        let at = self.draw.rng.below(self.dirs.len() as u64) as usize;
        let (base, both) = (self.dirs[at].0, self.draw.rng.below(3));
        let from_there = |path: Path| match path.names.len() {
            1 => Path { base: Some(base), ..path },
            _ => Path { base: Some(base), names: path.names[1..].to_vec() },
        };
        let pick = |which: u64, path: Path| if both == which { path } else { from_there(path) };
        match call {
            SyscallOp::Rename { from, to, no_replace } => {
                SyscallOp::Rename { from: pick(1, from), to: pick(2, to), no_replace }
            }
            SyscallOp::Exchange { from, to } => {
                SyscallOp::Exchange { from: pick(1, from), to: pick(2, to) }
            }
            SyscallOp::Link { from, to } => {
                SyscallOp::Link { from: pick(1, from), to: pick(2, to) }
            }
            SyscallOp::Mkdir { at } => SyscallOp::Mkdir { at: from_there(at) },
            SyscallOp::Mkfifo { at } => SyscallOp::Mkfifo { at: from_there(at) },
            SyscallOp::Create { at, exclusive } => {
                SyscallOp::Create { at: from_there(at), exclusive }
            }
            SyscallOp::Unlink { at } => SyscallOp::Unlink { at: from_there(at) },
            SyscallOp::Rmdir { at } => SyscallOp::Rmdir { at: from_there(at) },
            SyscallOp::Stat { at } => SyscallOp::Stat { at: from_there(at) },
            SyscallOp::Chmod { at, mode } => SyscallOp::Chmod { at: from_there(at), mode },
            SyscallOp::Truncate { at, size } => SyscallOp::Truncate { at: from_there(at), size },
            other => other,
        }
    }

    fn on_file(&mut self) -> SyscallOp {
        let (draw, open) = (&mut self.draw, self.files.len() as u64);
        if open == 0 || (self.files.len() < OPEN_MAX && draw.rng.chance(1, 4)) {
            let mut shared = self.shared.borrow_mut();
            shared.fds += 1;
            let at = if draw.rng.chance(3, 4) { Path::of(&[3]) } else { draw.path() };
            return SyscallOp::Open { at, fd: shared.fds };
        }
        let fd = self.files[draw.rng.below(open) as usize].0;
        match draw.rng.below(10) {
            0..=3 => {
                let mut shared = self.shared.borrow_mut();
                shared.tags = shared.tags.wrapping_add(1).max(1);
                let (offset, tag) = (draw.rng.below(draw.mix.size_max), shared.tags);
                SyscallOp::Write { fd, offset, len: 1 + draw.rng.below(draw.mix.size_max), tag }
            }
            4 => SyscallOp::Flush { fd },
            _ => SyscallOp::Look { fd, back: 1 + draw.rng.below(draw.mix.size_max) },
        }
    }

    fn arg(&self, path: &Path) -> Result<PathArg, Errno> {
        let start = match path.base {
            None => None,
            Some(id) => {
                let dir = self.dirs.iter().find(|(dir, _)| *dir == id).ok_or(Errno::EBADF)?;
                Some(dir.1.dir())
            }
        };
        let names = path.names.iter().map(|name| name_of(*name).into_bytes()).collect();
        Ok(PathArg { start, names })
    }

    async fn make(&mut self, call: &SyscallOp) -> Result<SyscallAnswer, Errno> {
        let (kernel, tid) = (self.kernel.clone(), self.tid);
        let done = |()| SyscallAnswer::Done;
        match call {
            SyscallOp::Mkdir { at } => kernel.mkdir(tid, &self.arg(at)?).await.map(done),
            SyscallOp::Mkfifo { at } => kernel.mkfifo(tid, &self.arg(at)?).await.map(done),
            SyscallOp::Create { at, exclusive } => {
                let excl = if *exclusive { libc::O_EXCL } else { 0 };
                let flags = libc::O_CREAT | libc::O_WRONLY | excl;
                let open = kernel.open(tid, &self.arg(at)?, flags).await?;
                let told = kernel.fstat(tid, &open).await;
                kernel.close(tid, open).await?;
                Ok(SyscallAnswer::Seen(seen(&told?)))
            }
            SyscallOp::Unlink { at } => kernel.remove(tid, &self.arg(at)?, false).await.map(done),
            SyscallOp::Rmdir { at } => kernel.remove(tid, &self.arg(at)?, true).await.map(done),
            SyscallOp::Rename { from, to, no_replace } => {
                let flags = if *no_replace { wire::RENAME_NOREPLACE } else { 0 };
                kernel.rename(tid, &self.arg(from)?, &self.arg(to)?, flags).await.map(done)
            }
            SyscallOp::Exchange { from, to } => {
                let (from, to) = (self.arg(from)?, self.arg(to)?);
                kernel.rename(tid, &from, &to, wire::RENAME_EXCHANGE).await.map(done)
            }
            SyscallOp::Link { from, to } => {
                kernel.link(tid, &self.arg(from)?, &self.arg(to)?).await.map(done)
            }
            SyscallOp::Stat { at } => {
                let told = kernel.stat(tid, &self.arg(at)?).await?;
                Ok(SyscallAnswer::Seen(seen(&told)))
            }
            SyscallOp::Chmod { at, mode } => {
                kernel.chmod(tid, &self.arg(at)?, *mode).await.map(done)
            }
            SyscallOp::Truncate { at, size } => {
                let told = kernel.truncate(tid, &self.arg(at)?, *size).await?;
                Ok(SyscallAnswer::Seen(seen(&told)))
            }
            SyscallOp::OpenDir { at } => {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY;
                let open = kernel.open(tid, &self.arg(at)?, flags).await?;
                let told = kernel.fstat(tid, &open).await?;
                if self.dirs.len() == OPEN_MAX {
                    let (_, first) = self.dirs.remove(0);
                    kernel.close(tid, first).await?;
                }
                self.dirs.push((told.ino, open));
                Ok(SyscallAnswer::Seen(seen(&told)))
            }
            SyscallOp::List { dir } => {
                let found = self.dirs.iter().find(|(id, _)| id == dir).ok_or(Errno::EBADF)?;
                let names = kernel.list(tid, &found.1, self.plus).await?;
                let name = |(name, id): &(Vec<u8>, u64)| Some((parse_name(name)?, *id));
                Ok(SyscallAnswer::Names(names.iter().filter_map(name).collect()))
            }
            SyscallOp::Open { at, fd } => {
                let open = kernel.open(tid, &self.arg(at)?, libc::O_RDWR).await?;
                let told = kernel.fstat(tid, &open).await?;
                if told.kind() == wire::S_IFREG {
                    self.files.push((*fd, open));
                }
                Ok(SyscallAnswer::Seen(seen(&told)))
            }
            SyscallOp::Write { fd, offset, len, tag } => {
                let open = self.file(*fd)?;
                kernel.write(tid, open, *offset, &vec![*tag; *len as usize]).await.map(done)
            }
            SyscallOp::Flush { fd } => {
                if self.draw.rng.chance(1, 3) {
                    return kernel.fsync(tid, self.file(*fd)?).await.map(done);
                }
                let at = self.files.iter().position(|(other, _)| other == fd);
                let (_, open) = self.files.remove(at.ok_or(Errno::EBADF)?);
                kernel.close(tid, open).await.map(done)
            }
            SyscallOp::Look { fd, back } => {
                let open = self.file(*fd)?;
                let end = kernel.seek_end(tid, open).await?;
                let bytes = kernel.read(tid, open, end.saturating_sub(*back), *back).await?;
                Ok(SyscallAnswer::Data { end, bytes })
            }
        }
    }

    fn file(&self, fd: Fd) -> Result<&KernelFile, Errno> {
        let found = self.files.iter().find(|(other, _)| *other == fd);
        found.map(|(_, open)| open).ok_or(Errno::EBADF)
    }
}

fn seen(told: &wire::WireAttr) -> SyscallSeen {
    SyscallSeen { id: told.ino, mode: told.mode, size: told.size }
}

fn told(errno: Errno) -> SyscallAnswer {
    match errno {
        super::kernel::REFUSED | Errno::ELOOP => SyscallAnswer::Refused,
        super::kernel::LOST => SyscallAnswer::Failed(Errno::ESTALE),
        errno => SyscallAnswer::Failed(errno),
    }
}

/// A program that uses the library.
pub struct Library {
    pub fs: Fs,
    pub draw: Draw,
    pub shared: SharedMounts,
    pub sender: WorldTransport,
    pub thread: usize,
}

impl Library {
    /// Makes what there is at the start.
    pub async fn begin(&mut self) {
        for name in 0..3 {
            self.note(SyscallOp::Mkdir { at: Path::of(&[name]) }).await;
            if self.draw.rng.chance(1, 2) {
                let inner = self.draw.rng.below(3) as NameNo;
                self.note(SyscallOp::Mkdir { at: Path::of(&[name, inner]) }).await;
            }
            let file = Path::of(&[name, 3]);
            self.note(SyscallOp::Create { at: file, exclusive: true }).await;
        }
        self.note(SyscallOp::Create { at: Path::of(&[3]), exclusive: true }).await;
    }

    /// Makes so many calls.
    pub async fn run(mut self, calls: usize) {
        for _ in 0..calls {
            let us = if self.draw.rng.chance(1, 6) { 100_000 } else { 3_000 };
            self.sender.sleep(Duration::from_micros(self.draw.rng.below(us))).await;
            let call = match self.draw.rng.chance(1, 2) {
                true => self.draw.mover(),
                false => self.draw.any(),
            };
            self.note(call).await;
        }
        self.shared.borrow_mut().finished += 1;
    }

    async fn note(&mut self, call: SyscallOp) {
        let number = self.shared.borrow_mut().history.begin(None, self.thread, call.clone());
        let answer = match self.make(&call).await {
            Ok(answer) => answer,
            Err(error) if error.errno() == Errno::ESTALE || error.is(Class::Retry) => {
                SyscallAnswer::Refused
            }
            Err(error) => SyscallAnswer::Failed(error.errno()),
        };
        self.shared.borrow_mut().history.end(number, answer);
    }

    async fn make(&self, call: &SyscallOp) -> Result<SyscallAnswer, Error> {
        let (fs, who) = (&self.fs, &Caller::root());
        let at = |path: &Path| {
            let names = path.names.iter().map(|name| Bytes::from(name_of(*name)));
            At::below(Locator::root(), names.collect())
        };
        let of = |attr: &saker_types::Attr| {
            SyscallAnswer::Seen(SyscallSeen { id: attr.id, mode: attr.mode, size: attr.size })
        };
        Ok(match call {
            SyscallOp::Mkdir { at: path } => {
                fs.mkdir(who, &at(path), 0o755).await?;
                SyscallAnswer::Done
            }
            SyscallOp::Create { at: path, exclusive } => {
                let flags =
                    OpenFlags { write: true, exclusive: *exclusive, ..OpenFlags::default() };
                let (file, entry) = fs.create(who, &at(path), 0o644, flags).await?;
                file.release().await;
                of(&entry.attr)
            }
            SyscallOp::Unlink { at: path } => {
                fs.unlink(who, &at(path)).await?;
                SyscallAnswer::Done
            }
            SyscallOp::Rmdir { at: path } => {
                fs.rmdir(who, &at(path)).await?;
                SyscallAnswer::Done
            }
            SyscallOp::Rename { from, to, no_replace } => {
                fs.rename(who, &at(from), &at(to), *no_replace, &[]).await?;
                SyscallAnswer::Done
            }
            SyscallOp::Exchange { from, to } => {
                fs.exchange(who, &at(from), &at(to), [&[], &[]]).await?;
                SyscallAnswer::Done
            }
            SyscallOp::Link { from, to } => {
                fs.link(who, &at(from), &at(to)).await?;
                SyscallAnswer::Done
            }
            SyscallOp::Chmod { at: path, mode } => {
                let change = saker_client::SetAttr { mode: Some(*mode), ..Default::default() };
                fs.setattr(who, &at(path), &change).await?;
                SyscallAnswer::Done
            }
            SyscallOp::Truncate { at: path, size } => {
                let change = saker_client::SetAttr { size: Some(*size), ..Default::default() };
                of(&fs.setattr(who, &at(path), &change).await?.attr)
            }
            SyscallOp::Mkfifo { at: path } => {
                fs.mknod(who, &at(path), libc::S_IFIFO | 0o644, 0).await?;
                SyscallAnswer::Done
            }
            SyscallOp::Stat { at: path } => of(&fs.getattr(who, &at(path)).await?.attr),
            SyscallOp::OpenDir { .. }
            | SyscallOp::List { .. }
            | SyscallOp::Open { .. }
            | SyscallOp::Write { .. }
            | SyscallOp::Flush { .. }
            | SyscallOp::Look { .. } => return Err(Errno::EINVAL.into()),
        })
    }
}
