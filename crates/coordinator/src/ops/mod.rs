//! The operations on directories. Each prepares all rows, then invalidates their entries on
//! every shard, then decides (rule 5). One that meets somebody else's prepared row aborts and is
//! tried again by the client (rule 11): nothing here waits while it holds a lock.

mod chain;
mod exchange;
mod hold;
mod merge;
mod policy;
mod rename;
mod rmdir;
mod setattr;
mod setxattr;

pub(crate) use hold::{hold, provision, release};
pub(crate) use merge::{merge, resume_merges};
pub(crate) use policy::set_policy;
pub(crate) use rename::rename;
pub(crate) use rmdir::rmdir;
pub(crate) use setattr::setattr;
pub(crate) use setxattr::setxattr;

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use saker_runtime::failpoint;
use saker_types::inode::Locator;
use saker_types::time::later;
use saker_types::wire::{Ctx, Emptiness, EntryKey, InvalidateReply, InvalidateReq, Op};
use saker_types::{Errno, Error, Inode, InodeId, NodeId, Stamp};

use crate::state::{StateHandle, key_of};

/// Why a change was not made.
enum ChangeStop {
    /// It cannot be.
    Fail(Error),
    /// Mounts keep these names, for so many milliseconds yet.
    Kept { keys: Vec<EntryKey>, waits_ms: u32 },
}

impl From<Errno> for ChangeStop {
    fn from(errno: Errno) -> ChangeStop {
        ChangeStop::Fail(errno.into())
    }
}

impl From<Error> for ChangeStop {
    fn from(error: Error) -> ChangeStop {
        ChangeStop::Fail(error)
    }
}

/// Must mounts have let go of the names of entries before these change?
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keepers {
    /// Yes.
    LetGo,
    /// No: the names lead to the same as before, and everybody may know it.
    Stay,
}

/// Makes a change of directories. If mounts keep their names, no leases on these are given from then
/// on, and the change is made again when those that were given are over. Meanwhile nothing is locked:
/// who walks there goes on, and other changes are made.
async fn when_let_go(
    h: &StateHandle,
    ctx: &Ctx,
    change: impl AsyncFn() -> Result<Bytes, ChangeStop>,
) -> Result<Bytes, Error> {
    loop {
        match change().await {
            Ok(reply) => return Ok(reply),
            Err(ChangeStop::Fail(error)) => return Err(error),
            Err(ChangeStop::Kept { keys, waits_ms }) => {
                h.state().metrics.kept.inc();
                let request =
                    InvalidateReq { keys, bar: true, waits_ms, ..InvalidateReq::default() };
                let kept_ms = broadcast(h, &request).await?.kept_ms;
                h.hub.sleep(Duration::from_millis(kept_ms.into())).await;
                still_wanted(h, ctx)?;
            }
        }
    }
}

/// After a wait with nothing locked: whoever asked for it may have been told meanwhile that it failed,
/// and have gone on. Then it must not be done, to whatever has the name by now. (Who still waits asks
/// again.)
fn still_wanted(h: &StateHandle, ctx: &Ctx) -> Result<(), Error> {
    match h.state().is_wanted(ctx, h.hub.now()) {
        true => Ok(()),
        false => Err(Error::retry("it waited for longer than its client")),
    }
}

/// Invalidates entries on every shard, and asks whether `empty_dir` (0: none) is empty. Returns
/// when all have acknowledged, however long a shard is down: until then nothing may change.
async fn invalidate(
    h: &StateHandle,
    entries: &[&Locator],
    empty_dir: InodeId,
    keepers: Keepers,
) -> Result<(), ChangeStop> {
    let keys: Vec<EntryKey> = entries.iter().map(|loc| key_of(loc)).collect();
    let request = InvalidateReq { keys, empty_dir, ..InvalidateReq::default() };
    failpoint!("invalidate.sent");
    let InvalidateReply { emptiness, kept_ms } = broadcast(h, &request).await?;
    match Emptiness::try_from(emptiness).unwrap_or(Emptiness::Undecided) {
        Emptiness::NotEmpty => Err(Errno::ENOTEMPTY.into()),
        Emptiness::Undecided => {
            Err(Error::retry("an entry of the directory is being moved").into())
        }
        Emptiness::Empty if kept_ms > 0 && keepers == Keepers::LetGo => {
            Err(ChangeStop::Kept { keys: request.keys, waits_ms: kept_ms })
        }
        Emptiness::Empty => Ok(()),
    }
}

/// Asks every shard; the answer of all together.
async fn broadcast(h: &StateHandle, request: &InvalidateReq) -> Result<InvalidateReply, Error> {
    let shards = h.state().map.shards.len() as u16;
    let calls = (0..shards).map(|n| {
        let to = NodeId::Shard(n);
        h.hub.ask_until::<InvalidateReply>(to, Op::Invalidate, 0, request, Bytes::new())
    });
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
    Ok(InvalidateReply { emptiness: worst.into(), kept_ms })
}

/// The row as it is at its new name.
fn moved(mut row: Inode, now_ns: Stamp) -> Inode {
    row.attr.ctime_ns = later(row.attr.ctime_ns, now_ns);
    row
}
