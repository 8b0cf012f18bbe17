//! Files that fail by a script. A wrapper, so that neither kind of file knows about faults.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use saker_types::wire::LocalDir;

use super::{Dir, File};

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// [`Dir::open`]
    Open,
    /// [`Dir::create`]
    Create,
    /// [`Dir::list`]
    List,
    /// [`Dir::remove`]
    Remove,
    /// [`Dir::rename`]
    Rename,
    /// [`Dir::sync`]
    SyncDir,
    /// [`Dir::sub_dir`]
    SubDir,
    /// [`File::write_at`] and [`File::append`]
    Write,
    /// [`File::read_at`]
    Read,
    /// [`File::sync`]
    Sync,
    /// [`File::truncate`]
    Truncate,
    /// [`File::preallocate`]
    Preallocate,
    /// [`File::punch`]
    Punch,
}

impl OpKind {
    /// Whether the call can change the disk or what of it is durable.
    pub fn mutates(self) -> bool {
        !matches!(self, OpKind::Open | OpKind::List | OpKind::Read)
    }
}

/// A call about to be made.
#[derive(Clone, Debug)]
pub struct FileOp<'a> {
    /// What it does.
    pub kind: OpKind,
    /// The name it was opened under, without the directory.
    pub name: &'a str,
    /// Where in the file; 0 for calls that have no place.
    pub offset: u64,
    /// Bytes written, asked for or (truncate, preallocate) the new length.
    pub len: u64,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the call is made.
    None,
    /// It fails with this errno and has no effect.
    Fail(i32),
    /// The same; but of a flush, as on Linux: what was written is in the page cache only from then on
    /// ([`File::lose_unsynced`]), and the next flush does not tell.
    Lose(i32),
    /// It takes effect but fails with this errno: the outcome is unknown to the caller.
    FailAfter(i32),
    /// A write stops after so many bytes and fails with this errno. Other calls just fail.
    Short(u64, i32),
    /// A read or write goes well but for this bit (modulo the length) of its data.
    FlipBit(u64),
}

/// Decides the fate of each call, in the order they are made.
pub type Script = Box<dyn FnMut(&FileOp<'_>) -> Fault + Send>;

/// A script in which the `count`th call that mutates (from 0) takes effect but fails with EIO, and
/// every call after it fails without effect: the process as good as died there.
pub fn fail_from(count: u64) -> Script {
    let mut seen = 0;
    Box::new(move |op| {
        if seen > count {
            return Fault::Fail(libc::EIO);
        }
        if !op.kind.mutates() {
            return Fault::None;
        }
        seen += 1;
        if seen > count { Fault::FailAfter(libc::EIO) } else { Fault::None }
    })
}

#[derive(Clone)]
struct Judge(Arc<Mutex<Script>>);

impl Judge {
    fn fate(&self, kind: OpKind, name: &str, offset: u64, len: u64) -> Fault {
        let mut script = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (*script)(&FileOp { kind, name, offset, len })
    }

    fn run<T>(
        &self,
        kind: OpKind,
        name: &str,
        range: (u64, u64),
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match self.fate(kind, name, range.0, range.1) {
            Fault::None | Fault::FlipBit(_) => call(),
            Fault::Fail(errno) | Fault::Lose(errno) | Fault::Short(_, errno) => Err(failure(errno)),
            Fault::FailAfter(errno) => call().and(Err(failure(errno))),
        }
    }
}

fn failure(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// A directory whose calls, and those of the files and directories opened through it, a script
/// may make fail.
pub struct FaultDir {
    inner: Arc<dyn Dir>,
    judge: Judge,
}

impl FaultDir {
    /// Puts `script` before `inner`.
    pub fn new(inner: Arc<dyn Dir>, script: Script) -> FaultDir {
        FaultDir { inner, judge: Judge(Arc::new(Mutex::new(script))) }
    }

    fn wrap(&self, name: &str, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(FaultFile { name: name.to_owned(), inner, judge: self.judge.clone() })
    }
}

impl Dir for FaultDir {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = self.judge.run(OpKind::Open, name, (0, 0), || self.inner.open(name))?;
        Ok(self.wrap(name, file))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = self.judge.run(OpKind::Create, name, (0, 0), || self.inner.create(name))?;
        Ok(self.wrap(name, file))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.judge.run(OpKind::List, "", (0, 0), || self.inner.list())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.judge.run(OpKind::Remove, name, (0, 0), || self.inner.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.judge.run(OpKind::Rename, from, (0, 0), || self.inner.rename(from, to))
    }

    fn sync(&self) -> io::Result<()> {
        self.judge.run(OpKind::SyncDir, "", (0, 0), || self.inner.sync())
    }

    fn sub_dir(&self, name: &str) -> io::Result<Arc<dyn Dir>> {
        let inner = self.judge.run(OpKind::SubDir, name, (0, 0), || self.inner.sub_dir(name))?;
        Ok(Arc::new(FaultDir { inner, judge: self.judge.clone() }))
    }

    fn lock(&self) -> io::Result<()> {
        self.inner.lock()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }

    fn whereabouts(&self) -> Option<LocalDir> {
        self.inner.whereabouts()
    }

    fn label(&self) -> String {
        self.inner.label()
    }
}

struct FaultFile {
    name: String,
    inner: Arc<dyn File>,
    judge: Judge,
}

impl FaultFile {
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.judge.fate(OpKind::Write, &self.name, offset, data.len() as u64) {
            Fault::None => self.inner.write_at(offset, data),
            Fault::Fail(errno) | Fault::Lose(errno) => Err(failure(errno)),
            Fault::FailAfter(errno) => self.inner.write_at(offset, data).and(Err(failure(errno))),
            Fault::Short(len, errno) => {
                let len = data.len().min(len as usize);
                self.inner.write_at(offset, &data[..len]).and(Err(failure(errno)))
            }
            Fault::FlipBit(bit) => {
                let mut data = data.to_vec();
                flip(&mut data, bit);
                self.inner.write_at(offset, &data)
            }
        }
    }

    fn run(
        &self,
        kind: OpKind,
        range: (u64, u64),
        call: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.judge.run(kind, &self.name, range, call)
    }
}

impl File for FaultFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(offset, data)
    }

    fn append(&self, data: &[u8]) -> io::Result<u64> {
        let end = self.inner.len()?;
        self.write(end, data)?;
        Ok(end)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        match self.judge.fate(OpKind::Read, &self.name, offset, buf.len() as u64) {
            Fault::None => self.inner.read_at(offset, buf),
            Fault::FlipBit(bit) => {
                let read = self.inner.read_at(offset, buf)?;
                flip(&mut buf[..read], bit);
                Ok(read)
            }
            Fault::Fail(errno)
            | Fault::Lose(errno)
            | Fault::FailAfter(errno)
            | Fault::Short(_, errno) => Err(failure(errno)),
        }
    }

    fn expect_random_reads(&self) {
        self.inner.expect_random_reads();
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_durable(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let read = (offset, buf.len() as u64);
        self.judge.run(OpKind::Read, &self.name, read, || self.inner.read_durable(offset, buf))
    }

    fn sync(&self) -> io::Result<()> {
        match self.judge.fate(OpKind::Sync, &self.name, 0, 0) {
            Fault::None | Fault::FlipBit(_) => self.inner.sync(),
            Fault::FailAfter(errno) => self.inner.sync().and(Err(failure(errno))),
            Fault::Lose(errno) => {
                self.inner.lose_unsynced();
                Err(failure(errno))
            }
            Fault::Fail(errno) | Fault::Short(_, errno) => Err(failure(errno)),
        }
    }

    fn lose_unsynced(&self) {
        self.inner.lose_unsynced();
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.run(OpKind::Truncate, (0, len), || self.inner.truncate(len))
    }

    fn preallocate(&self, len: u64) -> io::Result<()> {
        self.run(OpKind::Preallocate, (0, len), || self.inner.preallocate(len))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(OpKind::Punch, (offset, len), || self.inner.punch(offset, len))
    }
}

fn flip(data: &mut [u8], bit: u64) {
    if !data.is_empty() {
        let bit = bit % (data.len() as u64 * 8);
        data[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}
