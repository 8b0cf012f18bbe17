//! Collecting the totals of a directory from all shards, in the `fanout` form.
//!
//! A collection that equals the last one was current at an instant between the two, because
//! versions only grow; so it is current now if it equals the cached vector, or the collection
//! just before. After three that differ, new changes to the directory are held back for a
//! moment: a collection all of whose answers arrive within that moment is current, too.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use saker_runtime::failpoint;
use saker_types::wire::{CollectReply, CollectReq, Op, Totals};
use saker_types::{Attr, Class, Error, Inode, InodeId, NodeId, ShardNo};

use crate::request::{Step, Stop, Wait};
use crate::shard::{Handle, Shard, encoded};

/// How long one shard may take to answer.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Collections without a freeze.
const ROUNDS: usize = 3;
/// First freeze; doubled while answers come too late.
const FREEZE_MS: u32 = 20;

impl Shard {
    /// Serves a collection: waits for prepared entries of the directory (rule 14).
    pub(crate) fn collect(&mut self, msg: &CollectReq) -> Step<Bytes> {
        // Before it waits: or new entries could be prepared as long as it does.
        if msg.freeze_ms > 0 {
            let until = self.hub.now() + Duration::from_millis(msg.freeze_ms.min(1_000).into());
            self.freezes.freeze(msg.dir, until);
        }
        let waits_for = self.prepared_below(msg.dir).next().map(|(_, txn)| *txn);
        if let Some(txn) = waits_for {
            return Err(Stop::Wait(Wait::Txn(txn)));
        }
        let (totals, slots_version) = (self.totals(msg.dir)?, self.map.slots_version);
        Ok(encoded(&CollectReply { totals, slots_version }))
    }
}

/// What all shards say. Some may stand by other maps, which move entries between them: that is no
/// answer, and is asked again.
async fn round(h: &Handle, dir: InodeId, freeze_ms: u32) -> Result<Vec<Totals>, Error> {
    let shards = h.shard().map.shards.len();
    let request = CollectReq { dir, freeze_ms };
    let calls = (0..shards).map(|no| {
        let to = NodeId::Shard(no as ShardNo);
        h.hub.ask::<CollectReply>(to, Op::Collect, 0, &request, COLLECT_TIMEOUT)
    });
    let answers: Vec<CollectReply> = join_all(calls).await.into_iter().collect::<Result<_, _>>()?;
    if answers.windows(2).any(|pair| pair[0].slots_version != pair[1].slots_version) {
        return Err(Error::retry("slots are moving"));
    }
    Ok(answers.into_iter().map(|answer| answer.totals).collect())
}

/// The totals of a directory on all shards, current at one instant during the call; the index
/// is the shard.
pub(crate) async fn collect(h: &Handle, dir: InodeId) -> Result<Rc<Vec<Totals>>, Error> {
    let mut last = h.shard().vectors.get(&dir).cloned();
    for _ in 0..ROUNDS {
        let vector = match round(h, dir, 0).await {
            Ok(vector) => Rc::new(vector),
            // Some shard had prepared entries all the time.
            Err(error) if error.is(Class::Retry) => break,
            Err(error) => return Err(error),
        };
        if last.as_ref() == Some(&vector) {
            return Ok(vector);
        }
        h.shard().vectors.insert(dir, vector.clone());
        last = Some(vector);
    }
    failpoint!("collect.freezes");
    let mut freeze_ms = FREEZE_MS;
    loop {
        let start = h.hub.now();
        let vector = Rc::new(round(h, dir, freeze_ms).await?);
        let frozen = Duration::from_millis(freeze_ms.into());
        if h.hub.now() < start + frozen {
            h.shard().vectors.insert(dir, vector.clone());
            return Ok(vector);
        }
        freeze_ms = (freeze_ms * 2).min(1_000);
    }
}

/// The attributes of a directory: its row and the totals.
pub(crate) fn combine(inode: &Inode, vector: &[Totals]) -> Attr {
    let mut attr = inode.attr.clone();
    attr.nlink = 2 + vector.iter().map(|t| t.subdirs).sum::<u64>() as u32;
    for (shard, totals) in vector.iter().enumerate() {
        attr.ctime_ns = attr.ctime_ns.max(totals.mtime_ns);
        let seen = inode.seen.iter().find(|s| s.shard == shard as u32).map_or(0, |s| s.version);
        if totals.version > seen {
            attr.mtime_ns = attr.mtime_ns.max(totals.mtime_ns);
        }
    }
    attr
}

#[cfg(test)]
mod tests {
    use super::*;
    use saker_types::inode::SeenVersion;

    #[test]
    fn times_that_utimes_has_seen_do_not_come_back() {
        let mut inode = Inode::default();
        inode.attr.mtime_ns = 100;
        inode.attr.ctime_ns = 100;
        let totals = |version, mtime_ns| Totals { version, entries: 3, subdirs: 1, mtime_ns };
        assert_eq!(combine(&inode, &[totals(5, 900), totals(0, 0)]).mtime_ns, 900);
        inode.seen = vec![SeenVersion { shard: 0, version: 5 }];
        let attr = combine(&inode, &[totals(5, 900), totals(0, 0)]);
        assert_eq!((attr.mtime_ns, attr.ctime_ns, attr.nlink), (100, 900, 4));
        assert_eq!(combine(&inode, &[totals(5, 900), totals(1, 950)]).mtime_ns, 950);
        assert_eq!(combine(&inode, &[totals(6, 901), totals(0, 0)]).mtime_ns, 901);
    }
}
