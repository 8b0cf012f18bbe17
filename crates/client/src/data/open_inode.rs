//! Open inodes: one for each file that is open in this client, shared by all its handles, so
//! that they see each other's writes.
//!
//! Short facts are in [`State`], behind a lock that is never held across a request. Whatever
//! writes, truncates or reports holds [`OpenInode::writer`] as well, an asynchronous lock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use saker_runtime::time::{self, Time};
use saker_types::wire::{At, Entry};
use saker_types::{Attr, Errno, Error, InodeId, Locator, Stamp, Unflushed};

use crate::Caller;
use crate::data::ahead::Ahead;
use crate::data::holds::Holds;
use crate::data::ranges::{Ranges, overlay};
use crate::data::write::writer::Writer;

/// Whose lock it is: flock(2)'s or not, and the owner's number.
pub(crate) type LockOwner = (bool, u64);

/// A file that is open in this client.
pub(crate) struct OpenInode {
    pub(crate) id: InodeId,
    state: Mutex<State>,
    /// Data that is on its way to stores. Held by whatever changes the file.
    pub(crate) writer: async_lock::Mutex<Writer>,
    /// Data that was read before it was asked for.
    pub(crate) ahead: async_lock::Mutex<Ahead>,
    /// Inodes of this client that are dirty.
    dirty_inodes: Arc<AtomicUsize>,
}

/// What is known of an open inode.
pub(crate) struct State {
    /// Where it was last known to be.
    pub(crate) loc: Locator,
    /// As the owner said last; the size covers this client's own writes.
    pub(crate) attr: Attr,
    /// A small file's data at `attr.data_version`, with this client's own writes; may be shorter
    /// than the size. `None`: to be asked for. Meaningless when the file is chunked.
    pub(crate) inline: Option<Bytes>,
    /// Bytes of `inline` that the owner has not heard of.
    pub(crate) unsaved: Ranges,
    /// The owner was seen to have other data than the unsaved bytes were written over.
    overtaken: bool,
    /// End of the largest write to chunks that the owner has not heard of; 0: none.
    pub(crate) written_end: u64,
    /// Bytes written to chunks, and cleared in them, that the owner has not heard of.
    pub(crate) unreported: (u64, u64),
    /// What stores have accepted and were not told to flush.
    pub(crate) unflushed: Vec<Unflushed>,
    /// Range of the file that covers all data which stores have not accepted yet.
    pub(crate) pending: Option<Range<u64>>,
    /// Who wrote last.
    pub(crate) writer_is: Option<Caller>,
    /// Changes whenever data that was read ahead may be wrong.
    pub(crate) epoch: u64,
    /// How often the owner said that the file is shorter than was known here.
    pub(crate) cuts: u64,
    /// Where a sequential reader would go on.
    pub(crate) next_read: u64,
    /// Bytes to read ahead of it.
    pub(crate) window: usize,
    /// When the owner was last asked for the attributes.
    pub(crate) asked_at: Time,
    /// When its owner was asked to open it first.
    pub(crate) opened_at: Time,
    /// Since when something waits to be written out or reported, if it does.
    pub(crate) dirty_since: Time,
    /// When it was written to last.
    pub(crate) written_at: Time,
    /// Locks on it that this client has lost, and of which one each owner has lost last.
    pub(crate) losses: u64,
    lost: BTreeMap<LockOwner, u64>,
    handles: usize,
    /// Failures of writing out so far, and the last one.
    failures: (u64, Option<Error>),
}

impl State {
    /// Has the owner, or a store, something to hear of?
    pub(crate) fn is_dirty(&self) -> bool {
        !self.unsaved.is_empty() || self.written_end > 0 || self.pending.is_some()
    }

    /// Must unsaved bytes be put over the owner's data before anybody reads them?
    pub(crate) fn is_overtaken(&self) -> bool {
        self.overtaken && !self.unsaved.is_empty()
    }

    /// Takes what the owner said, unless something newer is known. `inline`: the data that
    /// belongs to it, if it is known. What is dirty here stays.
    pub(crate) fn adopt(&mut self, entry: &Entry, inline: Option<Bytes>) {
        if age(&entry.attr) < age(&self.attr) {
            return;
        }
        let same_data = entry.attr.data_version == self.attr.data_version
            && entry.attr.chunked == self.attr.chunked;
        let pending_end = self.pending.as_ref().map_or(0, |p| p.end);
        if entry.attr.truncate_gen > self.attr.truncate_gen {
            // What stores have accepted was cut; what they have not is written after the cut.
            self.written_end = pending_end;
        }
        let own_end = self.written_end.max(pending_end).max(self.unsaved.end());
        let size = entry.attr.size.max(own_end);
        self.cuts += u64::from(size < self.attr.size);
        self.loc = entry.loc.owned();
        if !self.unsaved.is_empty() {
            // Unsaved bytes belong to the version that they were written over; the owner will
            // find the conflict and answer with the data to build on.
            self.overtaken |= !same_data;
            let base = (self.attr.data_version, self.attr.truncate_gen, self.attr.chunked);
            self.attr = entry.attr.clone();
            (self.attr.data_version, self.attr.truncate_gen, self.attr.chunked) = base;
        } else {
            self.attr = entry.attr.clone();
            if !same_data {
                self.epoch += 1;
                self.inline = inline;
            } else if inline.is_some() {
                self.inline = inline;
            }
        }
        self.attr.size = size;
    }

    /// An answer about this inode that was adopted, with what is known here if that is newer.
    pub(crate) fn newest(&self, entry: Entry) -> Entry {
        if saker_runtime::sim::mutation("older attributes than are known") {
            return entry;
        }
        Entry { attr: self.attr.clone(), loc: self.loc.clone(), ..entry }
    }

    /// Forgets what is dirty, as after a truncation of the file to nothing.
    pub(crate) fn discard(&mut self) {
        self.unsaved.clear();
        self.written_end = 0;
        self.unreported = (0, 0);
        self.unflushed.clear();
        self.pending = None;
        self.inline = None;
        self.epoch += 1;
    }

    /// Applies a write to a small file whose data is known.
    pub(crate) fn write_inline(&mut self, offset: u64, data: &[u8], who: &Caller) {
        let end = offset + data.len() as u64;
        let mut bytes = Vec::from(self.inline.take().unwrap_or_default());
        if bytes.len() < end as usize {
            bytes.resize(end as usize, 0);
        }
        bytes[offset as usize..end as usize].copy_from_slice(data);
        self.inline = Some(bytes.into());
        self.overtaken &= !self.unsaved.is_empty();
        self.unsaved.add(offset, end);
        self.attr.size = self.attr.size.max(end);
        self.writer_is = Some(who.clone());
        self.written_at = time::now();
    }

    /// Clears bytes of a small file whose data is known; where it has none it is clear.
    pub(crate) fn clear_inline(&mut self, offset: u64, end: u64, who: &Caller) {
        let end = end.min(self.inline.as_ref().map_or(0, Bytes::len) as u64);
        if offset < end {
            self.write_inline(offset, &vec![0; (end - offset) as usize], who);
        }
    }

    /// The owner has other data than the unsaved bytes were written over: puts them over that.
    /// When the file is chunked now, the unsaved bytes come back, to be written to chunks.
    pub(crate) fn rebase(&mut self, entry: &Entry) -> Vec<(u64, Bytes)> {
        let ours = self.inline.take().unwrap_or_default();
        self.overtaken = false;
        self.attr = entry.attr.clone();
        self.loc = entry.loc.owned();
        self.epoch += 1;
        self.attr.size = self.attr.size.max(self.unsaved.end());
        if entry.attr.chunked {
            self.inline = Some(ours);
            return self.take_unsaved();
        }
        self.inline = Some(overlay(&entry.inline, &ours, &self.unsaved).into());
        Vec::new()
    }

    /// Takes the unsaved bytes out, to be written to chunks.
    pub(crate) fn take_unsaved(&mut self) -> Vec<(u64, Bytes)> {
        let data = self.inline.take().unwrap_or_default();
        let pieces = self
            .unsaved
            .iter()
            .map(|(start, end)| {
                let end = (end as usize).min(data.len());
                (start, data.slice((start as usize).min(end)..end))
            })
            .collect();
        self.unsaved.clear();
        pieces
    }

    /// A lock was lost. What was written, perhaps under it, and not sent yet is not sent any more.
    pub(crate) fn lose_lock(&mut self, owner: LockOwner) {
        self.losses += 1;
        self.lost.insert(owner, self.losses);
        if self.is_dirty() {
            self.discard();
            // How long the file is without that, the owner knows.
            self.asked_at = Time::ZERO;
            self.fail(lost_lock());
        }
    }

    /// Has this owner lost a lock after so many losses?
    pub(crate) fn has_lost(&self, owner: LockOwner, losses: u64) -> bool {
        self.lost.get(&owner).is_some_and(|last| *last > losses)
    }

    /// Notes a failure of writing out, for all handles to report.
    pub(crate) fn fail(&mut self, error: Error) {
        tracing::warn!(inode = self.attr.id, "data could not be written out: {error}");
        self.failures = (self.failures.0 + 1, Some(error));
    }

    /// Failures so far, and the last one.
    pub(crate) fn failures(&self) -> (u64, Option<&Error>) {
        (self.failures.0, self.failures.1.as_ref())
    }
}

impl OpenInode {
    /// Runs `f` on the state; `f` must be short.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.is_dirty();
        let result = f(&mut state);
        match (before, state.is_dirty()) {
            (false, true) => {
                state.dirty_since = time::now();
                self.dirty_inodes.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => _ = self.dirty_inodes.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        result
    }

    /// The handle of this file as a place.
    pub(crate) fn at(&self) -> At {
        At::handle(self.with(|s| s.loc.clone()))
    }

    /// It was found to be there.
    pub(crate) fn moved_to(&self, loc: &Locator) {
        self.with(|s| s.loc.follow(loc));
    }

    /// Is there anything to write out or to report?
    pub(crate) fn is_dirty(&self) -> bool {
        self.with(|s| s.is_dirty())
    }
}

/// What programs are told that rely on a lock which is lost.
pub(crate) fn lost_lock() -> Error {
    Error::new(Errno::EIO).with_text("a lock on the file was lost")
}

/// Of two states of an inode, the newer one's is not lower.
pub(crate) fn age(attr: &Attr) -> (u64, Stamp) {
    (attr.data_version, attr.ctime_ns)
}

/// A small file's data in a reply. A copy: that there is part of a whole frame, which must not be kept.
pub(crate) fn inline_of(entry: &Entry) -> Option<Bytes> {
    (!entry.attr.chunked).then(|| Bytes::copy_from_slice(&entry.inline))
}

/// The open inodes of a client.
#[derive(Default)]
pub(crate) struct Inodes {
    table: Mutex<BTreeMap<InodeId, Arc<OpenInode>>>,
    dirty: Arc<AtomicUsize>,
    pub(crate) holds: Holds,
}

impl Inodes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<InodeId, Arc<OpenInode>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new handle of the inode that was just opened, as was asked for at `asked`.
    pub(crate) fn open(&self, entry: &Entry, asked: Time) -> Arc<OpenInode> {
        let id = entry.attr.id;
        let inline = inline_of(entry);
        let now = time::now();
        let mut table = self.lock();
        if let Some(inode) = table.get(&id) {
            inode.with(|s| {
                s.handles += 1;
                // What was read ahead before this open is not what this open saw.
                s.epoch += 1;
                s.asked_at = now;
                s.adopt(entry, inline);
            });
            return inode.clone();
        }
        let state = State {
            loc: entry.loc.owned(),
            attr: entry.attr.clone(),
            inline,
            unsaved: Ranges::default(),
            overtaken: false,
            written_end: 0,
            unreported: (0, 0),
            unflushed: Vec::new(),
            pending: None,
            writer_is: None,
            epoch: 0,
            cuts: 0,
            next_read: 0,
            window: 0,
            asked_at: now,
            opened_at: asked,
            dirty_since: now,
            written_at: now,
            losses: 0,
            lost: BTreeMap::new(),
            handles: 1,
            failures: (0, None),
        };
        let inode = Arc::new(OpenInode {
            id,
            state: Mutex::new(state),
            writer: async_lock::Mutex::default(),
            ahead: async_lock::Mutex::default(),
            dirty_inodes: self.dirty.clone(),
        });
        table.insert(id, inode.clone());
        inode
    }

    /// A handle is gone. An inode with dirty data stays until that is written out.
    pub(crate) fn close(&self, inode: &OpenInode) {
        let mut table = self.lock();
        let unused = inode.with(|s| {
            s.handles -= 1;
            s.handles == 0 && !s.is_dirty()
        });
        if unused {
            table.remove(&inode.id);
            self.closed(inode);
        }
    }

    fn closed(&self, inode: &OpenInode) {
        self.holds.close(inode.with(|s| s.loc.clone()));
    }

    /// Forgets inodes that were kept for their dirty data only and have none any more.
    pub(crate) fn sweep(&self) {
        self.lock().retain(|_, inode| {
            let stays = inode.with(|s| s.handles > 0 || s.is_dirty());
            if !stays {
                self.closed(inode);
            }
            stays
        });
    }

    /// The inode, if it is open.
    pub(crate) fn get(&self, id: InodeId) -> Option<Arc<OpenInode>> {
        self.lock().get(&id).cloned()
    }

    /// The inode, if it is open and dirty. Costs nothing while no inode is.
    pub(crate) fn dirty(&self, id: InodeId) -> Option<Arc<OpenInode>> {
        if self.dirty.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.get(id).filter(|inode| inode.is_dirty())
    }

    /// Is any inode dirty?
    pub(crate) fn any_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) > 0
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<OpenInode>> {
        self.lock().values().cloned().collect()
    }
}

#[cfg(test)]
#[path = "open_inode/tests.rs"]
mod tests;
