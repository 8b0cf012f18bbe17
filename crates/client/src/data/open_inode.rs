//! Open inodes: one for each file that is open in this client, shared by all its handles, so
//! that they see each other's writes.
//!
//! Short facts are in [`InodeState`], behind a lock that is never held across a request. Whatever
//! writes, truncates or reports holds [`OpenInode::writer`] as well, an asynchronous lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use saker_runtime::time::Time;
use saker_types::wire::{At, Entry};
use saker_types::{Attr, Errno, Error, InodeId, Locator, Stamp};

pub(crate) use self::state::InodeState;
use crate::data::ahead::Ahead;
use crate::data::holds::ClientHolds;
use crate::data::write::writer::Writer;

mod state;

/// Whose lock it is: flock(2)'s or not, and the owner's number.
pub(crate) type LockOwner = (bool, u64);

/// A file that is open in this client.
pub(crate) struct OpenInode {
    pub(crate) id: InodeId,
    state: Mutex<InodeState>,
    /// Data that is on its way to stores. Held by whatever changes the file.
    pub(crate) writer: async_lock::Mutex<Writer>,
    /// Data that was read before it was asked for.
    pub(crate) ahead: async_lock::Mutex<Ahead>,
    /// Inodes of this client that are dirty.
    dirty_inodes: Arc<AtomicUsize>,
}

impl OpenInode {
    /// Runs `f` on the state; `f` must be short.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut InodeState) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.is_dirty();
        let result = f(&mut state);
        match state.turned_dirty(before) {
            Some(true) => _ = self.dirty_inodes.fetch_add(1, Ordering::Relaxed),
            Some(false) => _ = self.dirty_inodes.fetch_sub(1, Ordering::Relaxed),
            None => {}
        }
        result
    }

    /// The handle of this file as a place.
    pub(crate) fn at(&self) -> At {
        At::handle(self.with(|s| s.loc().clone()))
    }

    /// It was found to be there.
    pub(crate) fn moved_to(&self, loc: &Locator) {
        self.with(|s| s.moved_to(loc));
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
pub(crate) struct OpenInodes {
    table: Mutex<BTreeMap<InodeId, Arc<OpenInode>>>,
    dirty: Arc<AtomicUsize>,
    pub(crate) holds: ClientHolds,
}

impl OpenInodes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<InodeId, Arc<OpenInode>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new handle of the inode that was just opened, as was asked for at `asked`.
    pub(crate) fn open(&self, entry: &Entry, asked: Time) -> Arc<OpenInode> {
        let id = entry.attr.id;
        let inline = inline_of(entry);
        let mut table = self.lock();
        if let Some(inode) = table.get(&id) {
            inode.with(|s| s.opened_again(entry, inline));
            return inode.clone();
        }
        let state = InodeState::opened(entry, inline, asked);
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
            s.closed();
            s.is_unused()
        });
        if unused {
            table.remove(&inode.id);
            self.closed(inode);
        }
    }

    fn closed(&self, inode: &OpenInode) {
        self.holds.close(inode.with(|s| s.loc().clone()));
    }

    /// Forgets inodes that were kept for their dirty data only and have none any more.
    pub(crate) fn sweep(&self) {
        self.lock().retain(|_, inode| {
            let stays = !inode.with(|s| s.is_unused());
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
