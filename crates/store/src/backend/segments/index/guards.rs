//! Who may change an inode's chunks: its writers together, or one alone.

use std::sync::PoisonError;

use saker_types::{Errno, Error, InodeId, Result};

use super::{ChunkKey, DELETED, Index};
use crate::wait::{WaitPolicy, locked, would_wait};

impl Index {
    /// Joins the writers of a chunk's inode, once nobody has it alone.
    ///
    /// # Errors
    /// ESTALE when a truncation newer than `truncate_gen` is known, or the inode was deleted.
    /// EAGAIN, also if what the write does to the index would have to wait.
    pub fn begin_write(
        &self,
        key: ChunkKey,
        truncate_gen: u64,
        wait: WaitPolicy,
    ) -> Result<WriteGuard<'_>> {
        let id = key.0;
        let shard = self.shard(id);
        let mut state = wait.lock(&shard.state)?;
        if wait == WaitPolicy::Never {
            self.load(&mut state, key, wait)?;
        }
        loop {
            let inode = self.inode(&mut state, id, wait)?;
            if !inode.exclusive {
                check_gen(id, truncate_gen, inode.truncate_gen)?;
                inode.writers += 1;
                self.evict(&mut state);
                return Ok(WriteGuard { index: self, id });
            }
            if wait == WaitPolicy::Never {
                return Err(would_wait());
            }
            state = shard.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the inode has no writers, and keeps new ones away.
    ///
    /// # Errors
    /// The table's.
    pub fn begin_exclusive(&self, id: InodeId) -> Result<ExclusiveGuard<'_>> {
        let shard = self.shard(id);
        let mut state = locked(&shard.state);
        loop {
            let inode = self.inode(&mut state, id, WaitPolicy::May)?;
            if !inode.exclusive {
                inode.exclusive = true;
                self.evict(&mut state);
                break;
            }
            state = shard.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let guard = ExclusiveGuard { index: self, id };
        while state.inodes.get(&id).is_some_and(|inode| inode.writers > 0) {
            state = shard.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(guard)
    }
}

/// May what was sent under `truncate_gen` be written to an inode that knows `newest`?
///
/// # Errors
/// ESTALE.
pub fn check_gen(id: InodeId, truncate_gen: u64, newest: u64) -> Result<()> {
    let text = match newest {
        DELETED => format!("inode {id} was deleted"),
        newest if truncate_gen < newest => format!("inode {id} was truncated since"),
        _ => return Ok(()),
    };
    Err(Error::new(Errno::ESTALE).with_text(text))
}

/// One of the writers of an inode.
pub struct WriteGuard<'a> {
    index: &'a Index,
    id: InodeId,
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        let shard = self.index.shard(self.id);
        let mut state = locked(&shard.state);
        if let Some(inode) = state.inodes.get_mut(&self.id) {
            inode.writers -= 1;
            if inode.writers == 0 && inode.exclusive {
                shard.idle.notify_all();
            }
        }
    }
}

/// The only one to change an inode's chunks.
pub struct ExclusiveGuard<'a> {
    index: &'a Index,
    id: InodeId,
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        let shard = self.index.shard(self.id);
        if let Some(inode) = locked(&shard.state).inodes.get_mut(&self.id) {
            inode.exclusive = false;
        }
        shard.idle.notify_all();
    }
}
