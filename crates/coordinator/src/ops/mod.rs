//! The operations on directories. Each prepares all rows, then invalidates their entries on
//! every shard, then decides (rule 5). One that meets somebody else's prepared row aborts and is
//! tried again by the client (rule 11): nothing here waits while it holds a lock.

mod chain;
mod exchange;
mod rename;
mod rmdir;
mod setattr;
mod setxattr;

pub(crate) use rename::rename;
pub(crate) use rmdir::rmdir;
pub(crate) use setattr::setattr;
pub(crate) use setxattr::setxattr;

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use saker_runtime::failpoint;
use saker_types::inode::Locator;
use saker_types::wire::{Emptiness, InvalidateReply, InvalidateReq, Op};
use saker_types::{Errno, Error, InodeId, NodeId};

use crate::state::{Handle, key_of};

/// Whose leases on the names of entries must be over before these change.
#[derive(Clone, Copy, Debug)]
enum Keepers {
    /// All but this mount's (0: none), whose kernel changes the name itself.
    AllBut(u64),
    /// None: the names lead to the same as before, and everybody may know it.
    None,
}

/// Invalidates entries on every shard, and asks whether `empty_dir` (0: none) is empty. Returns
/// when all have acknowledged, however long a shard is down, and no mount keeps the names any more:
/// until then nothing may change.
async fn invalidate(
    h: &Handle,
    entries: &[&Locator],
    empty_dir: InodeId,
    keepers: Keepers,
) -> Result<(), Error> {
    let shards = h.state().map.shards.len() as u16;
    let keys = entries.iter().map(|loc| key_of(loc)).collect();
    let holder = if let Keepers::AllBut(holder) = keepers { holder } else { 0 };
    let request = InvalidateReq { keys, empty_dir, forget: Vec::new(), holder };
    let calls = (0..shards).map(|n| {
        let to = NodeId::Shard(n);
        h.hub.ask_until::<InvalidateReply>(to, Op::Invalidate, 0, &request, Bytes::new())
    });
    failpoint!("invalidate.sent");
    let (mut worst, mut kept_ms) = (Emptiness::Empty, 0);
    for answer in join_all(calls).await {
        let answer = answer?;
        kept_ms = kept_ms.max(answer.kept_ms);
        let emptiness = Emptiness::try_from(answer.emptiness).unwrap_or(Emptiness::Undecided);
        worst = match (worst, emptiness) {
            (Emptiness::NotEmpty, _) | (_, Emptiness::NotEmpty) => Emptiness::NotEmpty,
            (Emptiness::Undecided, _) | (_, Emptiness::Undecided) => Emptiness::Undecided,
            _ => Emptiness::Empty,
        };
    }
    match worst {
        Emptiness::Empty => {
            if kept_ms > 0 && matches!(keepers, Keepers::AllBut(_)) {
                h.state().metrics.kept.inc();
                h.hub.sleep(Duration::from_millis(kept_ms.into())).await;
            }
            Ok(())
        }
        Emptiness::NotEmpty => Err(Errno::ENOTEMPTY.into()),
        Emptiness::Undecided => Err(Error::retry("an entry of the directory is being moved")),
    }
}
