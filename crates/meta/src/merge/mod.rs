//! Merging a decoupled subtree, at a shard (docs/decisions/0063; Cudele section 3).
//!
//! ```text
//! client       stage     rows are kept beside the namespace, and where others will have to wait
//! coordinator  check     from now on others wait there; do the rows still fit?
//! coordinator  apply     the rows become part of the namespace, piece by piece
//! shard        sweep     rows of holds that are over are dropped
//! ```
//!
//! Nobody sees a part of a merge: as long as one may be under way the coordinator does not tell the
//! policy's state, for which every request waits that comes to the subtree. A client that still uses a
//! handle from before the policy does not say that it is there: it waits at the directories of the
//! merge, which every shard is told with the rows.

mod apply;
mod check;
mod stage;
mod sweep;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_engine::Engine;
use saker_types::change::{staged_key, staged_prefix, table};
use saker_types::wire::{Ctx, StagedValue};
use saker_types::{Errno, Error, InodeId, Locator};

use crate::request::{Attempt, Stop, Wait};
use crate::shard::Shard;
use crate::state::merges::HeldIn;

/// Rows that are looked at, put or dropped before others get their turn.
const PIECE_ROWS: usize = 1_024;
/// About the most bytes of these.
const PIECE_BYTES: usize = 1 << 20;
/// Others get their turn.
const PIECE_PAUSE: Duration = Duration::from_millis(1);

/// Something staged.
struct Staged {
    /// Key of its own row.
    key: Bytes,
    value: StagedValue,
}

impl Staged {
    /// The key of the row that it will be.
    fn of(&self) -> &[u8] {
        &self.key[staged_prefix(0, 0).len()..]
    }
}

impl Shard {
    /// Refuses who does not hold the subtree in this epoch.
    fn must_hold(&self, ctx: &Ctx, policy: u64, epoch: u64) -> Attempt<()> {
        let state = self.policy_state(policy)?;
        let is_held = state.hold != 0 && state.hold == epoch;
        match is_held && state.holder == ctx.holder {
            true => Ok(()),
            false => {
                let text = "the hold of the subtree has ended";
                Err(Error::new(Errno::ESTALE).with_text(text).into())
            }
        }
    }

    /// The same for who is in a directory under this policy.
    pub(crate) fn must_hold_here(&self, ctx: &Ctx, policy: u64) -> Attempt<()> {
        match policy {
            0 => Err(Error::new(Errno::EINVAL).with_text("the directory is in no subtree").into()),
            _ => self.must_hold(ctx, policy, ctx.hold),
        }
    }

    /// Waits while a merge may be under way that changes this directory.
    pub(crate) fn not_merging(&self, dir: InodeId) -> Attempt<()> {
        match self.merges.closed_by(dir) {
            Some(policy) => Err(Stop::Wait(Wait::Policy(policy))),
            None => Ok(()),
        }
    }

    /// The same of what is at a handle, by its directory, or the policy that the client was told.
    pub(crate) fn not_merging_at(&self, handle: &Locator) -> Attempt<()> {
        self.not_merging(handle.pid)?;
        self.not_merging(handle.id)?;
        self.policy_in_force(handle.policy).map(drop)
    }

    /// Some of what is staged in a hold behind a key; whether there is more.
    fn staged_after(&self, held: HeldIn, after: &[u8]) -> Result<(Vec<Staged>, bool), Error> {
        let start = match after.is_empty() {
            true => staged_prefix(held.0, held.1).to_vec(),
            false => [after, &[0]].concat(),
        };
        self.staged_between(&start, &end_of(held))
    }

    fn staged_between(&self, start: &[u8], end: &[u8]) -> Result<(Vec<Staged>, bool), Error> {
        let (mut found, mut bytes, mut is_more) = (Vec::new(), 0, false);
        let mut corrupt = None;
        let scanned = self.engine.scan(start, end, |key, value| {
            if found.len() >= PIECE_ROWS || bytes >= PIECE_BYTES {
                is_more = true;
                return ControlFlow::Break(());
            }
            bytes += key.len() + value.len();
            match StagedValue::decode(value) {
                Ok(value) => found.push(Staged { key: Bytes::copy_from_slice(key), value }),
                Err(error) => {
                    corrupt = Some(error.to_string());
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        let failed = scanned.err().map(|error| error.to_string()).or(corrupt);
        match failed {
            None => Ok((found, is_more)),
            Some(why) => {
                tracing::error!("cannot read what is staged: {why}");
                Err(Error::new(Errno::EIO).with_text(format!("cannot read what is staged: {why}")))
            }
        }
    }

    /// Directories in which rows of a hold are staged, with the attempts in which that was told.
    fn staged_dirs(&self, held: HeldIn) -> Result<Vec<(u32, Locator)>, Error> {
        let mut start = staged_key(held.0, held.1, &[table::STAGED_DIR]).to_vec();
        let end = staged_key(held.0, held.1, &[table::STAGED_DIR + 1]);
        let mut dirs = Vec::new();
        loop {
            let (found, is_more) = self.staged_between(&start, &end)?;
            if let Some(last) = found.last().filter(|_| is_more) {
                start = [&last.key[..], &[0]].concat();
            }
            let of = |Staged { value, .. }: Staged| Some((value.attempt, value.dir?));
            dirs.extend(found.into_iter().filter_map(of));
            if !is_more {
                return Ok(dirs);
            }
        }
    }
}

/// Behind all keys of what is staged in a hold.
fn end_of((policy, epoch): HeldIn) -> Vec<u8> {
    match (epoch.checked_add(1), policy.checked_add(1)) {
        (Some(epoch), _) => staged_prefix(policy, epoch).to_vec(),
        (None, Some(policy)) => staged_prefix(policy, 0).to_vec(),
        (None, None) => vec![table::STAGED + 1],
    }
}
