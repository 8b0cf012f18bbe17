//! What is staged in a hold that has ended is dropped: it was given up, or another attempt was merged.

use bytes::Bytes;
use saker_engine::Engine;
use saker_types::Error;
use saker_types::change::{parse_staged_key, table};
use saker_types::wire::PolicyState;
use std::ops::ControlFlow;

use super::{PIECE_PAUSE, end_of};
use crate::shard::{Shard, ShardHandle};
use crate::state::merges::HeldIn;

impl Shard {
    /// The coordinator tells the state of a policy: no merge is under way, and other holds are over.
    pub(crate) fn merges_are_over(&mut self, policy: u64, state: PolicyState) {
        if !self.merges.concern(policy) {
            return;
        }
        self.merges.open(policy);
        // Requests that have waited were told of names before the merge.
        self.replica.invalidations += 1;
        for held in self.merges.over(policy, state.hold) {
            if self.merges.begin_work(held) {
                let task = sweep(self.handle(), held);
                self.hub.spawn(task);
            }
        }
    }

    /// After a start: others wait at the directories of what is staged until the coordinator has told
    /// whether a merge is under way.
    ///
    /// # Errors
    /// What cannot be read.
    pub(crate) fn resume_merges(&mut self) -> Result<(), Error> {
        let mut from = vec![table::STAGED];
        while let Some(held) = self.first_staged(&from)? {
            self.merges.stage(held, 0);
            let dirs: Vec<_> = self.staged_dirs(held)?.into_iter().map(|(_, dir)| dir.id).collect();
            if !self.merges.close(held.0, &dirs) {
                tracing::warn!("too many directories are being merged to wait at all of them");
            }
            self.ask_policy(held.0);
            from = end_of(held);
        }
        Ok(())
    }

    fn first_staged(&self, from: &[u8]) -> Result<Option<HeldIn>, Error> {
        let mut first = None;
        let scanned = self.engine.scan(from, &[table::STAGED + 1], |key, _| {
            first = parse_staged_key(key).map(|(policy, epoch, _)| (policy, epoch));
            ControlFlow::Break(())
        });
        scanned.map_err(|e| Error::new(saker_types::Errno::EIO).with_text(e.to_string()))?;
        Ok(first)
    }
}

async fn sweep(h: ShardHandle, held: HeldIn) {
    loop {
        let dropped = h.shard().drop_staged(held);
        match dropped {
            Ok(true) => h.hub.sleep(PIECE_PAUSE).await,
            Ok(false) => break,
            Err(error) => {
                tracing::error!("rows of a hold that has ended stay: {error}");
                return h.shard().merges.end_work(held);
            }
        }
    }
    let mut s = h.shard();
    s.merges.end_work(held);
    s.merges.none_left(held);
}

impl Shard {
    /// Drops some of what is staged in a hold; whether there is more.
    pub(super) fn drop_staged(&mut self, held: HeldIn) -> Result<bool, Error> {
        let (piece, is_more) = self.staged_after(held, &[])?;
        let keys: Vec<Bytes> = piece.into_iter().map(|staged| staged.key).collect();
        keys.into_iter().for_each(|key| self.delete(key));
        Ok(is_more)
    }
}
