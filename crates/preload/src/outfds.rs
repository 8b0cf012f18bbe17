//! Descriptors of output files and of their directories.
//!
//! A file that is written is a real one: the kernel does everything but closing it. When the last
//! descriptor of it in the process that has opened it is closed, the agent is told that the file is
//! finished. Children that inherit descriptors have nothing to tell.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use saker_agent_api::{OutputEntry, OutputInfo};

use crate::output::Output;
use crate::sys::{self, Result};
use crate::{agent, fds, process};

/// What a descriptor leads to.
pub struct Handle {
    what: What,
    /// Of a directory: what getdents64(3) reads.
    list: Mutex<Option<Arc<Vec<OutputEntry>>>>,
}

enum What {
    /// A path: a directory, or a file that is read.
    Named(Output),
    /// A file that is written, by the agent's token.
    Written(u64),
}

impl Handle {
    /// Of a path, and what is there.
    pub fn named(output: &Output, info: OutputInfo) -> Handle {
        let is_of_dir = info.mode & libc::S_IFMT == libc::S_IFDIR;
        let named = Output { is_of_dir, known: Some(info), ..output.clone() };
        Handle { what: What::Named(named), list: Mutex::default() }
    }

    /// Of a file that is written.
    pub fn written(token: u64) -> Handle {
        Handle { what: What::Written(token), list: Mutex::default() }
    }

    fn token(&self) -> Option<u64> {
        match &self.what {
            What::Written(token) => Some(*token),
            What::Named(_) => None,
        }
    }

    /// The path; none of a file that is written.
    pub fn output(&self) -> Option<&Output> {
        match &self.what {
            What::Named(output) => Some(output),
            What::Written(_) => None,
        }
    }

    /// The names in the directory: as they were at the last time that somebody began to read it.
    ///
    /// # Errors
    /// As of [`Output::list`].
    pub fn list(&self, is_begin: bool) -> Result<Arc<Vec<OutputEntry>>> {
        let output = self.output().ok_or(libc::ENOTDIR)?;
        let mut list = lock(&self.list);
        match &*list {
            Some(list) if !is_begin => Ok(list.clone()),
            _ => Ok(list.insert(Arc::new(output.list()?)).clone()),
        }
    }
}

type Table = BTreeMap<c_int, Arc<Handle>>;

static TABLE: AtomicPtr<Mutex<Table>> = AtomicPtr::new(std::ptr::null_mut());
/// What a child finds in its table.
static AT_FORK: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The table, if it has ever been used.
fn known() -> Option<&'static Mutex<Table>> {
    // SAFETY: never freed.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

fn table() -> &'static Mutex<Table> {
    if let Some(known) = known() {
        return known;
    }
    let (null, new) = (std::ptr::null_mut(), Box::into_raw(Box::<Mutex<Table>>::default()));
    let set = TABLE.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: either is never freed.
    unsafe { &*set.map_or_else(|other| other, |_| new) }
}

/// Notes what a descriptor leads to. Says whether that was possible: children of vfork(2) note
/// nothing.
pub fn insert(fd: c_int, handle: Handle) -> bool {
    insert_shared(fd, Arc::new(handle))
}

/// The same of a copy of a descriptor.
pub fn insert_shared(fd: c_int, handle: Arc<Handle>) -> bool {
    if fds::mark(fd).is_err() {
        return false;
    }
    // One that was closed past us has had this number.
    let before = lock(table()).insert(fd, handle);
    drop(before.map(finish));
    true
}

/// What a descriptor leads to, if that is an output.
pub fn get(fd: c_int) -> Option<Arc<Handle>> {
    if !fds::is_marked(fd) {
        return None;
    }
    lock(known()?).get(&fd).cloned()
}

/// All descriptors of outputs.
pub fn all() -> Vec<c_int> {
    known().map(|table| lock(table).keys().copied().collect()).unwrap_or_default()
}

/// The path of a descriptor that is not written.
pub fn output(fd: c_int) -> Option<Output> {
    get(fd)?.output().cloned()
}

/// A descriptor is closed, or about to be.
pub fn remove(fd: c_int) -> Closed {
    if !fds::is_marked(fd) || !process::owns_its_memory() {
        return Closed(None);
    }
    fds::unmark(fd);
    let handle = known().and_then(|table| lock(table).remove(&fd));
    handle.map_or(Closed(None), finish)
}

fn finish(handle: Arc<Handle>) -> Closed {
    let is_last = !lock(table()).values().any(|other| Arc::ptr_eq(other, &handle));
    Closed(handle.token().filter(|_| is_last))
}

/// What is to be told to the agent once a descriptor is closed: at the latest when this is dropped.
#[must_use]
pub struct Closed(Option<u64>);

impl Closed {
    /// Nothing.
    pub const NOTHING: Closed = Closed(None);

    /// Something is to be told.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Before the descriptor is closed: notes in the file itself that it is finished, for an agent that
    /// cannot be told.
    pub fn mark(&self, fd: c_int) {
        if self.0.is_some()
            && let Some(stat) = sys::fstat(fd)
        {
            let mode = stat.st_mode & 0o777 | libc::S_ISVTX;
            // SAFETY: touches no memory.
            let _ = unsafe { sys::syscall!(libc::SYS_fchmod, fd, mode) };
        }
    }

    /// Tells it, and waits until the file is published.
    ///
    /// # Errors
    /// What the agent says.
    pub fn end(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), |token| agent::commit(token, true))
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if let Some(token) = self.0.take() {
            let errno = sys::errno();
            let _ = agent::commit(token, true);
            sys::set_errno(errno);
        }
    }
}

/// Descriptors that are written, with the agent's tokens. `waits`: for a thread that is in the table;
/// in a signal handler, that thread may be this one.
fn written(waits: bool) -> BTreeMap<c_int, u64> {
    let Some(table) = known().filter(|_| process::owns_its_memory()) else {
        return BTreeMap::new();
    };
    // Another may have taken the number of one that was closed past us.
    let is_still = |fd: &&c_int| fds::is_marked(**fd);
    let table = match table.try_lock() {
        Err(TryLockError::WouldBlock) if waits => lock(table),
        Err(TryLockError::WouldBlock) => return BTreeMap::new(),
        Err(TryLockError::Poisoned(table)) => table.into_inner(),
        Ok(table) => table,
    };
    let fds = table.keys().filter(is_still);
    fds.filter_map(|fd| Some((*fd, table.get(fd)?.token()?))).collect()
}

/// Another program takes this one's place: it has the descriptors, and does not know of us. The
/// files are finished when it has closed them.
pub fn before_exec() {
    let mut tokens: Vec<u64> = written(true).into_values().collect();
    tokens.dedup();
    let errno = sys::errno();
    for token in tokens {
        let _ = agent::commit(token, false);
    }
    sys::set_errno(errno);
}

/// The process ends in order: what it has written is finished. `is_exit`: by exit(3), which flushes
/// streams, and which no signal handler calls.
pub fn at_exit(is_exit: bool) {
    let written = written(is_exit);
    if written.is_empty() {
        return;
    }
    if is_exit {
        // The C library does it later.
        // SAFETY: all streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
    }
    // Other threads run on: what they write must not get into a file that is given the number.
    let null = sys::open(c"/dev/null", libc::O_RDWR | libc::O_CLOEXEC);
    for fd in written.into_keys() {
        let closed = remove(fd);
        closed.mark(fd);
        // SAFETY: touches no memory.
        let is_kept = null.is_ok_and(|null| unsafe {
            sys::syscall!(libc::SYS_dup3, null, fd, libc::O_CLOEXEC).is_ok()
        });
        if !is_kept {
            let _ = sys::close(fd);
        }
        drop(closed);
    }
}

/// Before fork(2): the child must not find the table locked.
pub fn before_fork() {
    let table = known().map(|table| lock(table).clone()).unwrap_or_default();
    let new = if table.is_empty() { std::ptr::null_mut() } else { Box::into_raw(Box::new(table)) };
    let old = AT_FORK.swap(new, Ordering::AcqRel);
    if !old.is_null() {
        // SAFETY: made here, and nobody else has it.
        drop(unsafe { Box::from_raw(old) });
    }
}

/// In a child: what the parent has opened for writing is the parent's to finish.
pub fn after_fork() {
    let at_fork = AT_FORK.swap(std::ptr::null_mut(), Ordering::AcqRel);
    let mut table = match at_fork.is_null() {
        true => Table::new(),
        // SAFETY: made before fork(2); the parent has its own copy.
        false => *unsafe { Box::from_raw(at_fork) },
    };
    table.retain(|fd, handle| {
        let stays = handle.output().is_some();
        if !stays {
            fds::unmark(*fd);
        }
        stays
    });
    if !table.is_empty() || known().is_some() {
        TABLE.store(Box::into_raw(Box::new(Mutex::new(table))), Ordering::Release);
    }
}
