//! Reading all rows of a shard, for fsck, and its counts.

use std::ops::ControlFlow;

use bytes::Bytes;
use saker_engine::Engine;
use saker_types::Errno;
use saker_types::wire::{Row, ScanReply, ScanReq, ShardStats};

use crate::request::Attempt;
use crate::shard::{Shard, encoded};

/// About the most bytes of one answer.
const REPLY_BYTES_MAX: usize = 512 << 10;
/// No row's key is longer.
const AFTER_BYTES_MAX: usize = 1_024;
/// Past every row's key.
const END: &[u8] = &[0xFF];

impl Shard {
    /// Rows after a key, whatever they are.
    pub(crate) fn scan(&mut self, msg: &ScanReq) -> Attempt<Bytes> {
        if msg.after.len() > AFTER_BYTES_MAX {
            return Err(Errno::EINVAL.into());
        }
        // What is changed in this batch and not written yet belongs to the answer.
        self.write_totals();
        let mut start = msg.after.to_vec();
        if !start.is_empty() {
            start.push(0);
        }
        let limit = (msg.limit as usize).clamp(1, 65_536);
        let mut reply = ScanReply { rows: Vec::new(), end: true };
        let mut bytes = 0;
        let scanned = self.engine.scan(&start, END, |key, value| {
            if reply.rows.len() >= limit || bytes >= REPLY_BYTES_MAX {
                reply.end = false;
                return ControlFlow::Break(());
            }
            bytes += key.len() + value.len() + 16;
            let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            reply.rows.push(Row { key, value });
            ControlFlow::Continue(())
        });
        if let Err(e) = scanned {
            tracing::error!("cannot scan the rows: {e}");
            return Err(Errno::EIO.into());
        }
        Ok(encoded(&reply))
    }

    /// Counts of this shard.
    pub(crate) fn statfs(&mut self) -> Attempt<Bytes> {
        Ok(encoded(&ShardStats {
            inodes: self.inode_count.max(0) as u64,
            orphans: self.leases.len() as u64,
            prepared: self.votes.len() as u64,
        }))
    }
}
