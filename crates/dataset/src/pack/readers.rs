//! Threads that read ahead of the writer: each takes the next block, and what it makes of it is
//! handed over in order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::source::{Entry, Source};
use super::{Options, Plan};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::inode::BLOCK_BYTES;

/// What a block takes besides its data.
const TASK_BYTES: u64 = 512;

/// A block to read: entry of the plan, and number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) entry: usize,
    pub(super) block: u64,
}

/// A block as it is stored.
pub(super) struct Block {
    pub(super) task: Task,
    pub(super) stored: Vec<u8>,
    pub(super) raw_len: u64,
    /// Of its data.
    pub(super) crc: u32,
    /// Of a file of one block: the file's.
    pub(super) digest: Option<Digest>,
    /// Of a file of more: the data, for the file's digest, if it is not stored as it is.
    pub(super) raw: Option<Vec<u8>>,
}

struct State {
    next: usize,
    /// The first that has not been handed over.
    due: usize,
    /// Bytes that are held, or are being read.
    held: u64,
    ready: BTreeMap<usize, Result<Block>>,
    stop: bool,
}

struct Shared<'a> {
    source: &'a dyn Source,
    plan: &'a Plan,
    options: &'a Options,
    tasks: &'a [Task],
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cost(&self, n: usize) -> u64 {
        let Task { entry, block } = self.tasks[n];
        let bytes = (self.plan.entry(entry).meta.size - block * BLOCK_BYTES).min(BLOCK_BYTES);
        2 * bytes + TASK_BYTES
    }

    /// Reads until there is nothing more, or nobody wants it.
    fn work(&self) {
        let mut buffer = Vec::new();
        loop {
            let n = {
                let mut state = self.lock();
                loop {
                    if state.stop || state.next == self.tasks.len() {
                        return;
                    }
                    // What is due is read whatever it takes.
                    let cost = self.cost(state.next);
                    let has_room = state.held + cost <= self.options.memory_bytes;
                    if has_room || state.next == state.due {
                        state.held += cost;
                        state.next += 1;
                        break state.next - 1;
                    }
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let block = self.read(self.tasks[n], &mut buffer);
            self.lock().ready.insert(n, block);
            self.changed.notify_all();
        }
    }

    fn read(&self, task: Task, buffer: &mut Vec<u8>) -> Result<Block> {
        let entry = self.plan.entry(task.entry);
        let (offset, size) = (task.block * BLOCK_BYTES, entry.meta.size);
        let len = (size - offset).min(BLOCK_BYTES);
        let is_last = offset + len == size;
        // One byte more at the end: the file may have grown.
        buffer.resize(len as usize + usize::from(is_last), 0);
        if self.source.read(entry, offset, buffer)? as u64 != len {
            return Err(changed(entry));
        }
        let is_whole = size <= BLOCK_BYTES;
        if is_whole {
            must_be_as_listed(self.source, entry)?;
        }
        buffer.truncate(len as usize);
        let raw = &buffer[..];
        let (crc, digest) = (crc32c::crc32c(raw), is_whole.then(|| Digest::of(raw)));
        let small = self
            .options
            .codec
            .compress(raw)
            .map_err(|e| Error::io(Path::new(std::ffi::OsStr::from_bytes(&entry.path)), e))?;
        let (stored, raw) = match small {
            Cow::Owned(small) => (small, (!is_whole).then(|| buffer.clone())),
            Cow::Borrowed(_) => (std::mem::take(buffer), None),
        };
        Ok(Block { task, stored, raw_len: len, crc, digest, raw })
    }
}

/// An error for a file that is not as it was listed.
pub(super) fn changed(entry: &Entry) -> Error {
    let path = String::from_utf8_lossy(&entry.path).into_owned();
    Error::invalid(Path::new(&path), "changed while it was packed")
}

fn must_be_as_listed(source: &dyn Source, entry: &Entry) -> Result<()> {
    if source.version(entry)? == entry.version { Ok(()) } else { Err(changed(entry)) }
}

/// Hands the blocks of all tasks over, in order.
pub(super) fn each(
    source: &dyn Source,
    plan: &Plan,
    options: &Options,
    tasks: &[Task],
    mut take: impl FnMut(Block) -> Result<()>,
) -> Result<()> {
    let state = State { next: 0, due: 0, held: 0, ready: BTreeMap::new(), stop: false };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    let shared = Shared { source, plan, options, tasks, state, changed };
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if options.threads == 0 { cores() } else { options.threads };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(tasks.len()) {
            scope.spawn(|| shared.work());
        }
        let mut outcome = Ok(());
        for n in 0..tasks.len() {
            let block = {
                let mut state = shared.lock();
                loop {
                    if let Some(block) = state.ready.remove(&n) {
                        state.held -= shared.cost(n);
                        state.due = n + 1;
                        break block;
                    }
                    state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            shared.changed.notify_all();
            outcome = block.and_then(|block| {
                let (task, entry) = (block.task, plan.entry(block.task.entry));
                // Threads read its blocks in any order: by now all of them.
                if task.block > 0 && (task.block + 1) * BLOCK_BYTES >= entry.meta.size {
                    must_be_as_listed(source, entry)?;
                }
                take(block)
            });
            if outcome.is_err() {
                break;
            }
        }
        shared.lock().stop = true;
        shared.changed.notify_all();
        outcome
    })
}
