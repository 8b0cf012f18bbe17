//! Inodes that were deleted: a write that comes late must not bring a chunk of one back.
//!
//! Ids are never used again, so the memory of a deletion is the inode's row, whose truncate
//! generation no write can reach. For the oldest to be forgotten, a row of the table for each
//! record of a deletion, by its sequence number, says whose rows they are.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use saker_types::{InodeId, Result};

use super::{Index, failed, rows};
use crate::wait::{WaitPolicy, locked};

/// Truncate generation of an inode that was deleted: nothing is written to it any more.
pub const DELETED: u64 = u64::MAX;

/// What the table does not know of deletions.
#[derive(Default)]
pub(super) struct Deleted {
    /// Records of deletions, by their sequence numbers, for the next checkpoint.
    fresh: BTreeMap<u64, Vec<InodeId>>,
    /// The same, for the checkpoint under way.
    draining: BTreeMap<u64, Vec<InodeId>>,
    /// Records that the checkpoint under way ends, each with its number of inodes.
    forgotten: BTreeMap<u64, u64>,
}

impl Index {
    /// The deletions of a record are to be remembered. Before the record's place is let go of.
    pub fn remember_deleted(&self, seq: u64, ids: &[InodeId]) {
        locked(&self.deleted).fresh.insert(seq, ids.to_vec());
    }

    /// What was deleted belongs to the checkpoint that begins. The oldest deletions are forgotten
    /// if there are too many: their inodes' rows go with this checkpoint.
    pub(super) fn drain_deleted(&self) -> Result<()> {
        let remembered = locked(&self.saved).deleted;
        let excess = {
            let deleted = &mut *locked(&self.deleted);
            deleted.draining.append(&mut deleted.fresh);
            let more: usize = deleted.draining.values().map(Vec::len).sum();
            (remembered + more as u64).saturating_sub(self.deleted_max)
        };
        for (seq, ids) in self.oldest_deleted(excess)? {
            for id in &ids {
                let mut state = locked(&self.shard(*id).state);
                let inode = self.inode(&mut state, *id, WaitPolicy::May)?;
                if inode.truncate_gen == DELETED {
                    inode.truncate_gen = 0;
                    self.mark_inode(&mut state, *id);
                }
            }
            locked(&self.deleted).forgotten.insert(seq, ids.len() as u64);
        }
        Ok(())
    }

    /// The oldest records that the table has, of at least `excess` inodes together.
    fn oldest_deleted(&self, excess: u64) -> Result<Vec<(u64, Vec<InodeId>)>> {
        let (mut oldest, mut count, mut result) = (Vec::new(), 0, Ok(()));
        if excess == 0 {
            return Ok(oldest);
        }
        let (start, end) = (rows::deleted_key(0), rows::deleted_key(u64::MAX));
        let scanned = self.table.scan(&start, &end, &mut |key, row| {
            match rows::decode_deleted(key, row) {
                Ok((seq, ids)) => {
                    count += ids.len() as u64;
                    oldest.push((seq, ids));
                }
                Err(error) => result = Err(error),
            }
            let is_enough = count >= excess || result.is_err();
            if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        scanned.map_err(|e| failed("read", e))?;
        result.map(|()| oldest)
    }

    /// The rows of deletions that the last commit of a checkpoint writes, and by how many inodes
    /// it changes what is remembered.
    pub(super) fn deleted_rows(&self, written: &mut BTreeMap<Bytes, Option<Bytes>>) -> Result<i64> {
        let deleted = locked(&self.deleted);
        let mut change = 0;
        for (seq, ids) in &deleted.draining {
            let key = rows::deleted_key(*seq);
            // After a crash it may be there already.
            if self.table.get(&key).map_err(|e| failed("read", e))?.is_none() {
                change += ids.len() as i64;
            }
            written.insert(key, Some(rows::encode_deleted(ids)));
        }
        for (seq, count) in &deleted.forgotten {
            change -= *count as i64;
            written.insert(rows::deleted_key(*seq), None);
        }
        Ok(change)
    }

    /// They are written.
    pub(super) fn deleted_written(&self) {
        let deleted = &mut *locked(&self.deleted);
        deleted.draining.clear();
        deleted.forgotten.clear();
    }
}
