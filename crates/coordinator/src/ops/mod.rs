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

use bytes::Bytes;
use futures_util::future::join_all;
use saker_runtime::failpoint;
use saker_types::inode::Locator;
use saker_types::wire::{Emptiness, InvalidateReply, InvalidateReq, Op};
use saker_types::{Errno, Error, InodeId, NodeId};

use crate::state::{Handle, key_of};

/// Invalidates entries on every shard, and asks whether `empty_dir` (0: none) is empty. Returns
/// when all have acknowledged, however long a shard is down: until then nothing may change.
async fn invalidate(h: &Handle, entries: &[&Locator], empty_dir: InodeId) -> Result<(), Error> {
    let shards = h.state().map.shards.len() as u16;
    let keys = entries.iter().map(|loc| key_of(loc)).collect();
    let request = InvalidateReq { keys, empty_dir, forget: Vec::new() };
    let calls = (0..shards).map(|n| {
        let to = NodeId::Shard(n);
        h.hub.ask_until::<InvalidateReply>(to, Op::Invalidate, 0, &request, Bytes::new())
    });
    failpoint!("invalidate.sent");
    let mut worst = Emptiness::Empty;
    for answer in join_all(calls).await {
        let emptiness = Emptiness::try_from(answer?.emptiness).unwrap_or(Emptiness::Undecided);
        worst = match (worst, emptiness) {
            (Emptiness::NotEmpty, _) | (_, Emptiness::NotEmpty) => Emptiness::NotEmpty,
            (Emptiness::Undecided, _) | (_, Emptiness::Undecided) => Emptiness::Undecided,
            _ => Emptiness::Empty,
        };
    }
    match worst {
        Emptiness::Empty => Ok(()),
        Emptiness::NotEmpty => Err(Errno::ENOTEMPTY.into()),
        Emptiness::Undecided => Err(Error::retry("an entry of the directory is being moved")),
    }
}
