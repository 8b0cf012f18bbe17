//! Collecting the totals of a directory from all shards.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use saker_rpc::hub::Hub;
use saker_types::wire::{CollectReply, CollectReq, Op, Totals};
use saker_types::{Attr, Error, Inode, InodeId, NodeId, ShardNo};

use super::tracker::{InUse, TotalsSource, Tracker, Vector};
use crate::request::{Attempt, Stop, Wait};
use crate::shard::{Shard, ShardHandle, encoded};

/// How long one shard may take to answer.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(2);

impl Shard {
    /// Serves a collection: waits for prepared entries of the directory (rule 14).
    pub(crate) fn collect(&mut self, msg: &CollectReq) -> Attempt<Bytes> {
        self.not_merging(msg.dir)?;
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

impl TotalsSource for ShardHandle {
    /// Some may stand by other maps, which move entries between them: that is no answer.
    async fn ask_all(&self, dir: InodeId, freeze_ms: u32) -> Result<Vec<Totals>, Error> {
        let shards = self.shard().map.shards.len();
        let request = CollectReq { dir, freeze_ms };
        let calls = (0..shards).map(|no| {
            let to = NodeId::Shard(no as ShardNo);
            self.hub.ask::<CollectReply>(to, Op::Collect, 0, &request, COLLECT_TIMEOUT)
        });
        let answers = join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        if answers.windows(2).any(|pair| pair[0].slots_version != pair[1].slots_version) {
            return Err(Error::retry("slots are moving"));
        }
        Ok(answers.into_iter().map(|answer| answer.totals).collect())
    }

    fn last(&self, dir: InodeId) -> Option<Vector> {
        self.shard().vectors.get(&dir).cloned()
    }

    fn keep(&self, dir: InodeId, vector: &Vector) {
        self.shard().vectors.insert(dir, vector.clone());
    }

    fn hub(&self) -> &Hub {
        &self.hub
    }
}

/// The totals of a directory on all shards, current at one instant during the call; the index
/// is the shard.
pub(crate) async fn collect(h: &ShardHandle, dir: InodeId) -> Result<Vector, Error> {
    InUse::collect(h, dir).await
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
