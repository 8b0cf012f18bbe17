//! Truncations and deletions.

use std::collections::BTreeSet;

use saker_types::wire::ChunkTruncateReq;
use saker_types::{InodeId, Result};

use super::format::{self, RecordHeader, RecordKind};
use super::log::{Draft, Purpose};
use super::state::SegmentStore;
use crate::backend::io_error;
use crate::wait::WaitPolicy;

/// Most ids in one record of a deletion.
const DELETE_IDS_MAX: usize = 512;

impl SegmentStore {
    /// Cuts a file, and refuses writes of older generations from now on. Of an equal or older
    /// generation: no effect. Tells the newest generation known then. Survives the loss of power after
    /// the next flush.
    ///
    /// # Errors
    /// EIO and ENOSPC; the outcome is unknown then, and a repetition is safe.
    pub fn truncate(&self, req: &ChunkTruncateReq) -> Result<u64> {
        self.limit_dirty(WaitPolicy::May)?;
        let newest = {
            let _alone = self.index.begin_exclusive(req.id)?;
            let known = self.index.truncate_gen(req.id)?;
            if req.truncate_gen > known {
                let record = RecordHeader {
                    kind: RecordKind::Truncate,
                    id: req.id,
                    index: req.cut,
                    truncate_gen: req.truncate_gen,
                    ..RecordHeader::EMPTY
                };
                let draft = Draft { record, replicas: &[], sums: &[], sum: 0, payload: &[] };
                let appended = self.log.append(&draft, Purpose::Control, WaitPolicy::May);
                let _appended = appended.map_err(|e| io_error("truncate", &e))?;
                self.index.truncate(req.id, req.truncate_gen, req.cut)?;
            }
            known.max(req.truncate_gen)
        };
        self.rounds.wake();
        Ok(newest)
    }

    /// Deletes all chunks of inodes, and refuses late writes to them. Survives the death of the
    /// process on return, the loss of power after the next flush.
    ///
    /// # Errors
    /// EIO and ENOSPC; some may be deleted then, and a repetition is safe.
    pub fn delete(&self, ids: &[InodeId]) -> Result<()> {
        // In one order everywhere, so that two deletions cannot wait for each other.
        let ids: BTreeSet<InodeId> = ids.iter().copied().collect();
        let ids: Vec<InodeId> = ids.into_iter().collect();
        for ids in ids.chunks(DELETE_IDS_MAX) {
            self.limit_dirty(WaitPolicy::May)?;
            let alone = ids.iter().map(|id| self.index.begin_exclusive(*id));
            let _alone = alone.collect::<Result<Vec<_>>>()?;
            let payload: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let mut sums = Vec::new();
            let sum = format::block_sums(&payload, &mut sums);
            let record = RecordHeader { kind: RecordKind::Delete, ..RecordHeader::EMPTY };
            let draft = Draft { record, replicas: &[], sums: &sums, sum, payload: &payload };
            let appended = self.log.append(&draft, Purpose::Control, WaitPolicy::May);
            let appended = appended.map_err(|e| io_error("delete", &e))?;
            ids.iter().try_for_each(|id| self.index.delete(*id))?;
            self.index.remember_deleted(appended.seq, ids);
        }
        self.rounds.wake();
        Ok(())
    }
}
