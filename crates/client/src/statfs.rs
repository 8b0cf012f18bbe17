//! statfs(2): capacity from the stores, inodes from the shards.

use std::collections::BTreeMap;
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
        self.0.statfs().await
    }
}

impl Core {
    /// What [`Fs::statfs`] says.
    pub(crate) async fn statfs(&self) -> Result<StatFs> {
        let asked = time::now();
        let cache = || self.stat_cache.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, stat)) = *cache()
            && asked - at < AGE_MAX
        {
            return Ok(stat);
        }
        let stat = self.ask_statfs(asked + PATIENCE).await?;
        *cache() = Some((asked, stat));
        Ok(stat)
    }

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

/// Copies are counted once, and disks that stores share.
fn sum(stores: &[StoreStats], shards: &[ShardStats], replicas: u32) -> StatFs {
    let copies = u64::from(replicas.max(1));
    let mut disks: BTreeMap<(u64, usize), Disk> = BTreeMap::new();
    for (n, store) in stores.iter().enumerate() {
        // A store that does not know its disk has one of its own.
        let place = (store.disk, if store.disk == 0 { n } else { 0 });
        let disk = disks.entry(place).or_default();
        disk.capacity_bytes += store.capacity_bytes;
        disk.free_bytes += store.free_bytes;
        disk.whole = (store.disk != 0).then_some((store.disk_bytes, store.disk_free_bytes));
    }
    disks.values_mut().for_each(Disk::bound);
    StatFs {
        capacity_bytes: disks.values().map(|d| d.capacity_bytes).sum::<u64>() / copies,
        free_bytes: disks.values().map(|d| d.free_bytes).sum::<u64>() / copies,
        inodes: shards.iter().map(|s| s.inodes).sum(),
    }
}

/// What the stores of one disk say together.
#[derive(Default)]
struct Disk {
    capacity_bytes: u64,
    free_bytes: u64,
    /// Capacity and free bytes of the disk itself.
    whole: Option<(u64, u64)>,
}

impl Disk {
    /// Stores cannot have more together than the disk has.
    fn bound(&mut self) {
        if let Some((capacity_bytes, free_bytes)) = self.whole {
            self.capacity_bytes = self.capacity_bytes.min(capacity_bytes);
            self.free_bytes = self.free_bytes.min(free_bytes);
        }
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

    #[test]
    fn a_disk_is_counted_once_however_many_stores_share_it() {
        let disk = |disk, capacity_bytes, free_bytes| StoreStats {
            disk,
            capacity_bytes,
            free_bytes,
            disk_bytes: 100,
            disk_free_bytes: 60,
            ..StoreStats::default()
        };
        // Two that may use all of a disk, two that have a part of another.
        let stores = [disk(1, 100, 60), disk(1, 100, 58), disk(2, 30, 20), disk(2, 30, 10)];
        let stat = sum(&stores, &[], 1);
        assert_eq!((stat.capacity_bytes, stat.free_bytes), (160, 90));
    }
}
