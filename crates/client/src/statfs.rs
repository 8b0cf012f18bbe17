//! statfs(2): capacity from the stores, inodes from the shards.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use saker_runtime::time::{self, Time};
use saker_types::wire::{Empty, Op, ShardStats, StoreStats};
use saker_types::{Errno, Error, NodeId, Result};

use crate::core::{Core, Fail, decode};
use crate::{Fs, StatFs};

/// Figures older than this are asked for again.
const AGE_MAX: Duration = Duration::from_secs(1);
/// A node that does not answer within this is left out: `df` must not hang for a dead store.
const PATIENCE: Duration = Duration::from_secs(2);

/// The last figures, and when they were asked for.
#[derive(Default)]
pub(crate) struct StatCache(Mutex<Option<(Time, StatFs)>>);

impl Fs {
    /// Capacity and use of the whole file system, at most a second old. Nodes that do not answer
    /// are left out.
    ///
    /// # Errors
    /// EIO when no shard answers.
    pub async fn statfs(&self) -> Result<StatFs> {
        let asked = time::now();
        let cache = || self.0.stat_cache.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, stat)) = *cache()
            && asked - at < AGE_MAX
        {
            return Ok(stat);
        }
        let stat = self.0.ask_statfs(asked + PATIENCE).await?;
        *cache() = Some((asked, stat));
        Ok(stat)
    }
}

impl Core {
    async fn ask_statfs(&self, until: Time) -> Result<StatFs> {
        let map = self.routes().map.clone();
        let stores = (0..map.stores.len()).map(|n| NodeId::Store(n as u16));
        let shards = (0..map.shards.len()).map(|n| NodeId::Shard(n as u16));
        let stores = join_all(stores.map(|n| self.stat_of::<StoreStats>(n, Op::StoreStat, until)));
        let shards = join_all(shards.map(|n| self.stat_of::<ShardStats>(n, Op::Statfs, until)));
        let (stores, shards) = futures_util::future::join(stores, shards).await;
        if shards.iter().all(Result::is_err) {
            return Err(Error::new(Errno::EIO).with_text("no shard answers"));
        }
        let stores: Vec<StoreStats> = stores.into_iter().flatten().collect();
        let shards: Vec<ShardStats> = shards.into_iter().flatten().collect();
        Ok(sum(&stores, &shards, map.replicas))
    }

    async fn stat_of<A: Message + Default>(&self, node: NodeId, op: Op, until: Time) -> Result<A> {
        let body = Bytes::from(Empty {}.encode_to_vec());
        let routes = self.routes();
        let sent = self.send(&routes, node, op, self.trace(), body, Bytes::new(), until).await;
        let reply = sent.map_err(|fail| match fail {
            Fail::Answer(error) => error,
            Fail::Call(error) => Error::new(Errno::EIO).with_text(error.to_string()),
        })?;
        decode(op, reply.body)
    }
}

/// Copies are counted once.
fn sum(stores: &[StoreStats], shards: &[ShardStats], replicas: u32) -> StatFs {
    let copies = u64::from(replicas.max(1));
    StatFs {
        capacity_bytes: stores.iter().map(|s| s.capacity_bytes).sum::<u64>() / copies,
        free_bytes: stores.iter().map(|s| s.free_bytes).sum::<u64>() / copies,
        inodes: shards.iter().map(|s| s.inodes).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_counted_once() {
        let store = StoreStats { capacity_bytes: 100, free_bytes: 40, ..StoreStats::default() };
        let shard = ShardStats { inodes: 7, ..ShardStats::default() };
        let stat = sum(&[store; 4], &[shard; 3], 2);
        assert_eq!(stat, StatFs { capacity_bytes: 200, free_bytes: 80, inodes: 21 });
        assert_eq!(sum(&[store], &[], 0).capacity_bytes, 100);
    }
}
