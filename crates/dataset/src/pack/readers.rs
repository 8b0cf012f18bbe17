//! Threads that read ahead of the writer: each takes the next block, and what it makes of it is
//! handed over in order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::source::Source;
use super::{Options, Plan};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::inode::BLOCK_BYTES;

/// What a block counts besides its data: more than it takes, so that there are never many.
const TASK_BYTES: u64 = 4096;

/// A block to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    /// Number of the file among the entries of the partition.
    pub(super) n: u32,
    /// And in the plan.
    pub(super) entry: u32,
    /// Number of the block in the file.
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
    /// The next to be read, if it is a file's.
    at: Task,
    /// How many were taken.
    next: u64,
    /// The first that has not been handed over.
    due: u64,
    /// Bytes that are held, or are being read.
    held: u64,
    /// What was read, and what it costs.
    ready: BTreeMap<u64, (u64, Result<Block>)>,
    stop: bool,
}

struct Shared<'a> {
    source: &'a dyn Source,
    plan: &'a Plan,
    options: &'a Options,
    /// Of the partition.
    entries: &'a [u32],
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next block, which stays the next.
    fn peek(&self, state: &mut State) -> Option<Task> {
        loop {
            let at = &mut state.at;
            at.entry = *self.entries.get(at.n as usize)?;
            let blocks = self.plan.size(at.entry).div_ceil(BLOCK_BYTES).max(1);
            if self.plan.is_file(at.entry) && at.block < blocks {
                return Some(*at);
            }
            (at.n, at.block) = (at.n + 1, 0);
        }
    }

    fn cost(&self, task: Task) -> u64 {
        let bytes = (self.plan.size(task.entry) - task.block * BLOCK_BYTES).min(BLOCK_BYTES);
        2 * bytes + TASK_BYTES
    }

    /// Takes the next block, once there is room for it.
    fn take(&self) -> Option<(u64, Task, u64)> {
        let mut state = self.lock();
        loop {
            let task = self.peek(&mut state).filter(|_| !state.stop)?;
            let cost = self.cost(task);
            // What is due is read whatever it takes.
            let has_room = state.held + cost <= self.options.memory_bytes;
            if has_room || state.next == state.due {
                state.held += cost;
                state.next += 1;
                state.at.block += 1;
                return Some((state.next - 1, task, cost));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads until there is nothing more, or nobody wants it.
    fn work(&self) {
        let mut buffer = Vec::new();
        while let Some((number, task, cost)) = self.take() {
            let block = self.read(task, &mut buffer);
            self.lock().ready.insert(number, (cost, block));
            self.changed.notify_all();
        }
    }

    /// The next block that is due; `None` after the last.
    fn next(&self) -> Option<Result<Block>> {
        let mut state = self.lock();
        let due = state.due;
        loop {
            if let Some((cost, block)) = state.ready.remove(&due) {
                state.held -= cost;
                state.due += 1;
                self.changed.notify_all();
                return Some(block);
            }
            if state.next == due && self.peek(&mut state).is_none() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read(&self, task: Task, buffer: &mut Vec<u8>) -> Result<Block> {
        let path = self.plan.path(task.entry);
        let (offset, size) = (task.block * BLOCK_BYTES, self.plan.size(task.entry));
        let len = (size - offset).min(BLOCK_BYTES);
        let is_last = offset + len == size;
        // One byte more at the end: the file may have grown.
        buffer.resize(len as usize + usize::from(is_last), 0);
        if self.source.read(&path, offset, buffer)? as u64 != len {
            return Err(changed(&path));
        }
        let is_whole = size <= BLOCK_BYTES;
        if is_whole {
            self.must_be_as_listed(task.entry)?;
        }
        buffer.truncate(len as usize);
        let raw = &buffer[..];
        let (crc, digest) = (crc32c::crc32c(raw), is_whole.then(|| Digest::of(raw)));
        let small = self
            .options
            .codec
            .compress(raw)
            .map_err(|e| Error::io(Path::new(std::ffi::OsStr::from_bytes(&path)), e))?;
        let (stored, raw) = match small {
            Cow::Owned(small) => (small, (!is_whole).then(|| buffer.clone())),
            Cow::Borrowed(_) => (std::mem::take(buffer), None),
        };
        Ok(Block { task, stored, raw_len: len, crc, digest, raw })
    }

    /// A block is handed over. Threads read the blocks of a file in any order: with the last one, all
    /// were read.
    fn check(&self, block: Block) -> Result<Block> {
        let Task { entry, block: number, .. } = block.task;
        if number > 0 && (number + 1) * BLOCK_BYTES >= self.plan.size(entry) {
            self.must_be_as_listed(entry)?;
        }
        Ok(block)
    }

    fn must_be_as_listed(&self, entry: u32) -> Result<()> {
        let path = self.plan.path(entry);
        let is_same = self.source.version(&path)? == self.plan.version(entry);
        if is_same { Ok(()) } else { Err(changed(&path)) }
    }
}

/// An error for a file that is not as it was listed.
fn changed(path: &[u8]) -> Error {
    let path = String::from_utf8_lossy(path).into_owned();
    Error::invalid(Path::new(&path), "changed while it was packed")
}

/// Hands over the blocks of a partition's files in order, from entry `begin` on.
pub(super) fn each(
    source: &dyn Source,
    plan: &Plan,
    options: &Options,
    (entries, begin): (&[u32], u32),
    mut take: impl FnMut(Block) -> Result<()>,
) -> Result<()> {
    let at = Task { n: begin, entry: 0, block: 0 };
    let state = State { at, next: 0, due: 0, held: 0, ready: BTreeMap::new(), stop: false };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    let shared = Shared { source, plan, options, entries, state, changed };
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if options.threads == 0 { cores() } else { options.threads };
    let left = entries.len().saturating_sub(begin as usize);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(left) {
            scope.spawn(|| shared.work());
        }
        let mut outcome = Ok(());
        while let Some(block) = shared.next() {
            outcome = block.and_then(|block| shared.check(block)).and_then(&mut take);
            if outcome.is_err() {
                break;
            }
        }
        shared.lock().stop = true;
        shared.changed.notify_all();
        outcome
    })
}
