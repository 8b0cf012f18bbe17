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

use super::history::{Answer, Call, Fd, History, Seen};
use super::kernel::{Kernel, Opened, PathArg, wire};
use crate::world::history::{Name, Path, name_of, parse_name};
use crate::world::transport::Sender;

const DEPTH_MAX: u64 = 3;
/// Files and directories that a program has open.
const OPEN_MAX: usize = 2;

/// What all programs of a run share.
#[derive(Default)]
pub struct Shared {
    pub history: History,
    pub finished: usize,
    fds: Fd,
    tags: u8,
}

pub type Share = Rc<RefCell<Shared>>;

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
    fn name(&mut self) -> Name {
        self.rng.below(self.mix.names) as Name
    }

    /// A path, mostly of one or two names.
    pub fn path(&mut self) -> Path {
        let len = match self.rng.below(8) {
            0..=1 => 1,
            2..=5 => 2,
            _ => 1 + self.rng.below(DEPTH_MAX),
        };
        let names: Vec<Name> = (0..len).map(|_| self.name()).collect();
        Path::of(&names)
    }

    fn dir_path(&mut self) -> Path {
        let len = 1 + self.rng.below(2);
        let names: Vec<Name> =
            (0..len).map(|_| self.name() % 3.min(self.mix.names as Name)).collect();
        Path::of(&names)
    }

    fn size(&mut self) -> u64 {
        match self.rng.below(3) {
            0 => 0,
            _ => 1 + self.rng.below(self.mix.size_max),
        }
    }

    /// Changes names of directories, and what else.
    fn mover(&mut self) -> Call {
        match self.rng.below(10) {
            0..=4 => Call::Exchange { from: self.dir_path(), to: self.dir_path() },
            5..=7 => {
                let (from, to) = (self.dir_path(), self.dir_path());
                Call::Rename { from, to, no_replace: self.rng.chance(1, 3) }
            }
            8 => Call::Rmdir { at: self.dir_path() },
            _ => Call::Mkdir { at: self.dir_path() },
        }
    }

    fn any(&mut self) -> Call {
        if self.rng.chance(self.mix.moves, 100) {
            return self.mover();
        }
        match self.rng.below(40) {
            0..=6 => Call::Create { at: self.path(), exclusive: self.rng.chance(1, 2) },
            7..=10 => Call::Unlink { at: self.path() },
            11..=13 => Call::Mkdir { at: self.path() },
            14..=15 => Call::Rmdir { at: self.path() },
            16..=20 => {
                let (from, to) = (self.path(), self.path());
                Call::Rename { from, to, no_replace: self.rng.chance(1, 4) }
            }
            21..=22 => Call::Exchange { from: self.path(), to: self.path() },
            23..=24 => Call::Link { from: self.path(), to: self.path() },
            25..=33 => Call::Stat { at: self.path() },
            34..=35 => Call::Chmod { at: self.path(), mode: 0o700 + self.rng.below(64) as u32 },
            36 => Call::Mkfifo { at: self.path() },
            _ => Call::Truncate { at: self.path(), size: self.size() },
        }
    }
}

/// One thread of a program on a mount.
pub struct Program {
    pub mount: usize,
    pub tid: u32,
    pub kernel: Kernel,
    pub draw: Draw,
    pub shared: Share,
    pub sender: Sender,
    /// The mount has READDIRPLUS.
    pub plus: bool,
    pub files: Vec<(Fd, Opened)>,
    pub dirs: Vec<(u64, Opened)>,
}

impl Program {
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
            let number = self.begin(&Call::Flush { fd });
            let done = self.kernel.close(self.tid, open).await;
            let answer = done.map_or_else(told, |()| Answer::Done);
            self.shared.borrow_mut().history.end(number, answer);
        }
        while let Some((_, open)) = self.dirs.pop() {
            // Nobody hears of it.
            let _ = self.kernel.close(self.tid, open).await;
        }
        self.shared.borrow_mut().finished += 1;
    }

    fn begin(&self, call: &Call) -> usize {
        let mut shared = self.shared.borrow_mut();
        shared.history.begin(Some(self.mount), self.tid as usize, call.clone())
    }

    fn next(&mut self) -> Call {
        let rng = &mut self.draw.rng;
        if rng.chance(self.draw.mix.data, 100) {
            return self.on_file();
        }
        match rng.below(14) {
            0 => return Call::OpenDir { at: self.draw.dir_path() },
            1 if !self.dirs.is_empty() => {
                let at = rng.below(self.dirs.len() as u64) as usize;
                return Call::List { dir: self.dirs[at].0 };
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
            Call::Rename { from, to, no_replace } => {
                Call::Rename { from: pick(1, from), to: pick(2, to), no_replace }
            }
            Call::Exchange { from, to } => Call::Exchange { from: pick(1, from), to: pick(2, to) },
            Call::Link { from, to } => Call::Link { from: pick(1, from), to: pick(2, to) },
            Call::Mkdir { at } => Call::Mkdir { at: from_there(at) },
            Call::Mkfifo { at } => Call::Mkfifo { at: from_there(at) },
            Call::Create { at, exclusive } => Call::Create { at: from_there(at), exclusive },
            Call::Unlink { at } => Call::Unlink { at: from_there(at) },
            Call::Rmdir { at } => Call::Rmdir { at: from_there(at) },
            Call::Stat { at } => Call::Stat { at: from_there(at) },
            Call::Chmod { at, mode } => Call::Chmod { at: from_there(at), mode },
            Call::Truncate { at, size } => Call::Truncate { at: from_there(at), size },
            other => other,
        }
    }

    fn on_file(&mut self) -> Call {
        let (draw, open) = (&mut self.draw, self.files.len() as u64);
        if open == 0 || (self.files.len() < OPEN_MAX && draw.rng.chance(1, 4)) {
            let mut shared = self.shared.borrow_mut();
            shared.fds += 1;
            let at = if draw.rng.chance(3, 4) { Path::of(&[3]) } else { draw.path() };
            return Call::Open { at, fd: shared.fds };
        }
        let fd = self.files[draw.rng.below(open) as usize].0;
        match draw.rng.below(10) {
            0..=3 => {
                let mut shared = self.shared.borrow_mut();
                shared.tags = shared.tags.wrapping_add(1).max(1);
                let (offset, tag) = (draw.rng.below(draw.mix.size_max), shared.tags);
                Call::Write { fd, offset, len: 1 + draw.rng.below(draw.mix.size_max), tag }
            }
            4 => Call::Flush { fd },
            _ => Call::Look { fd, back: 1 + draw.rng.below(draw.mix.size_max) },
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

    async fn make(&mut self, call: &Call) -> Result<Answer, Errno> {
        let (kernel, tid) = (self.kernel.clone(), self.tid);
        let done = |()| Answer::Done;
        match call {
            Call::Mkdir { at } => kernel.mkdir(tid, &self.arg(at)?).await.map(done),
            Call::Mkfifo { at } => kernel.mkfifo(tid, &self.arg(at)?).await.map(done),
            Call::Create { at, exclusive } => {
                let excl = if *exclusive { libc::O_EXCL } else { 0 };
                let flags = libc::O_CREAT | libc::O_WRONLY | excl;
                let open = kernel.open(tid, &self.arg(at)?, flags).await?;
                let told = kernel.fstat(tid, &open).await;
                kernel.close(tid, open).await?;
                Ok(Answer::Seen(seen(&told?)))
            }
            Call::Unlink { at } => kernel.remove(tid, &self.arg(at)?, false).await.map(done),
            Call::Rmdir { at } => kernel.remove(tid, &self.arg(at)?, true).await.map(done),
            Call::Rename { from, to, no_replace } => {
                let flags = if *no_replace { wire::RENAME_NOREPLACE } else { 0 };
                kernel.rename(tid, &self.arg(from)?, &self.arg(to)?, flags).await.map(done)
            }
            Call::Exchange { from, to } => {
                let (from, to) = (self.arg(from)?, self.arg(to)?);
                kernel.rename(tid, &from, &to, wire::RENAME_EXCHANGE).await.map(done)
            }
            Call::Link { from, to } => {
                kernel.link(tid, &self.arg(from)?, &self.arg(to)?).await.map(done)
            }
            Call::Stat { at } => {
                let told = kernel.stat(tid, &self.arg(at)?).await?;
                Ok(Answer::Seen(seen(&told)))
            }
            Call::Chmod { at, mode } => kernel.chmod(tid, &self.arg(at)?, *mode).await.map(done),
            Call::Truncate { at, size } => {
                let told = kernel.truncate(tid, &self.arg(at)?, *size).await?;
                Ok(Answer::Seen(seen(&told)))
            }
            Call::OpenDir { at } => {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY;
                let open = kernel.open(tid, &self.arg(at)?, flags).await?;
                let told = kernel.fstat(tid, &open).await?;
                if self.dirs.len() == OPEN_MAX {
                    let (_, first) = self.dirs.remove(0);
                    kernel.close(tid, first).await?;
                }
                self.dirs.push((told.ino, open));
                Ok(Answer::Seen(seen(&told)))
            }
            Call::List { dir } => {
                let found = self.dirs.iter().find(|(id, _)| id == dir).ok_or(Errno::EBADF)?;
                let names = kernel.list(tid, &found.1, self.plus).await?;
                let name = |(name, id): &(Vec<u8>, u64)| Some((parse_name(name)?, *id));
                Ok(Answer::Names(names.iter().filter_map(name).collect()))
            }
            Call::Open { at, fd } => {
                let open = kernel.open(tid, &self.arg(at)?, libc::O_RDWR).await?;
                let told = kernel.fstat(tid, &open).await?;
                if told.kind() == wire::S_IFREG {
                    self.files.push((*fd, open));
                }
                Ok(Answer::Seen(seen(&told)))
            }
            Call::Write { fd, offset, len, tag } => {
                let open = self.file(*fd)?;
                kernel.write(tid, open, *offset, &vec![*tag; *len as usize]).await.map(done)
            }
            Call::Flush { fd } => {
                if self.draw.rng.chance(1, 3) {
                    return kernel.fsync(tid, self.file(*fd)?).await.map(done);
                }
                let at = self.files.iter().position(|(other, _)| other == fd);
                let (_, open) = self.files.remove(at.ok_or(Errno::EBADF)?);
                kernel.close(tid, open).await.map(done)
            }
            Call::Look { fd, back } => {
                let open = self.file(*fd)?;
                let end = kernel.seek_end(tid, open).await?;
                let bytes = kernel.read(tid, open, end.saturating_sub(*back), *back).await?;
                Ok(Answer::Data { end, bytes })
            }
        }
    }

    fn file(&self, fd: Fd) -> Result<&Opened, Errno> {
        let found = self.files.iter().find(|(other, _)| *other == fd);
        found.map(|(_, open)| open).ok_or(Errno::EBADF)
    }
}

fn seen(told: &wire::Attr) -> Seen {
    Seen { id: told.ino, mode: told.mode, size: told.size }
}

fn told(errno: Errno) -> Answer {
    match errno {
        super::kernel::REFUSED | Errno::ELOOP => Answer::Refused,
        super::kernel::LOST => Answer::Failed(Errno::ESTALE),
        errno => Answer::Failed(errno),
    }
}

/// A program that uses the library.
pub struct Library {
    pub fs: Fs,
    pub draw: Draw,
    pub shared: Share,
    pub sender: Sender,
    pub thread: usize,
}

impl Library {
    /// Makes what there is at the start.
    pub async fn begin(&mut self) {
        for name in 0..3 {
            self.note(Call::Mkdir { at: Path::of(&[name]) }).await;
            if self.draw.rng.chance(1, 2) {
                let inner = self.draw.rng.below(3) as Name;
                self.note(Call::Mkdir { at: Path::of(&[name, inner]) }).await;
            }
            let file = Path::of(&[name, 3]);
            self.note(Call::Create { at: file, exclusive: true }).await;
        }
        self.note(Call::Create { at: Path::of(&[3]), exclusive: true }).await;
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

    async fn note(&mut self, call: Call) {
        let number = self.shared.borrow_mut().history.begin(None, self.thread, call.clone());
        let answer = match self.make(&call).await {
            Ok(answer) => answer,
            Err(error) if error.errno() == Errno::ESTALE || error.is(Class::Retry) => {
                Answer::Refused
            }
            Err(error) => Answer::Failed(error.errno()),
        };
        self.shared.borrow_mut().history.end(number, answer);
    }

    async fn make(&self, call: &Call) -> Result<Answer, Error> {
        let (fs, who) = (&self.fs, &Caller::root());
        let at = |path: &Path| {
            let names = path.names.iter().map(|name| Bytes::from(name_of(*name)));
            At::below(Locator::root(), names.collect())
        };
        let of = |attr: &saker_types::Attr| {
            Answer::Seen(Seen { id: attr.id, mode: attr.mode, size: attr.size })
        };
        Ok(match call {
            Call::Mkdir { at: path } => {
                fs.mkdir(who, &at(path), 0o755).await?;
                Answer::Done
            }
            Call::Create { at: path, exclusive } => {
                let flags =
                    OpenFlags { write: true, exclusive: *exclusive, ..OpenFlags::default() };
                let (file, entry) = fs.create(who, &at(path), 0o644, flags).await?;
                file.release().await;
                of(&entry.attr)
            }
            Call::Unlink { at: path } => {
                fs.unlink(who, &at(path)).await?;
                Answer::Done
            }
            Call::Rmdir { at: path } => {
                fs.rmdir(who, &at(path)).await?;
                Answer::Done
            }
            Call::Rename { from, to, no_replace } => {
                fs.rename(who, &at(from), &at(to), *no_replace, &[]).await?;
                Answer::Done
            }
            Call::Exchange { from, to } => {
                fs.exchange(who, &at(from), &at(to), [&[], &[]]).await?;
                Answer::Done
            }
            Call::Link { from, to } => {
                fs.link(who, &at(from), &at(to)).await?;
                Answer::Done
            }
            Call::Chmod { at: path, mode } => {
                let change = saker_client::SetAttr { mode: Some(*mode), ..Default::default() };
                fs.setattr(who, &at(path), &change).await?;
                Answer::Done
            }
            Call::Truncate { at: path, size } => {
                let change = saker_client::SetAttr { size: Some(*size), ..Default::default() };
                of(&fs.setattr(who, &at(path), &change).await?.attr)
            }
            Call::Mkfifo { at: path } => {
                fs.mknod(who, &at(path), libc::S_IFIFO | 0o644, 0).await?;
                Answer::Done
            }
            Call::Stat { at: path } => of(&fs.getattr(who, &at(path)).await?.attr),
            Call::OpenDir { .. }
            | Call::List { .. }
            | Call::Open { .. }
            | Call::Write { .. }
            | Call::Flush { .. }
            | Call::Look { .. } => return Err(Errno::EINVAL.into()),
        })
    }
}
