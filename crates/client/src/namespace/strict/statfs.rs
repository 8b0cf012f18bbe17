//! statfs(2): capacity from the stores, inodes from the shards.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use saker_runtime::time::{self, Time};
use saker_types::wire::{Empty, Op, ShardStats, StoreStats};
use saker_types::{Errno, Error, NodeId, Result};

use crate::StatFs;
use crate::net::cluster::{Backoff, Cluster, Fail, decode};

/// Figures older than this are asked for again.
const AGE_MAX: Duration = Duration::from_secs(1);
/// A server that does not answer within this counts with what it said last: `df` must not hang for a dead
/// store.
const PATIENCE: Duration = Duration::from_secs(1);

/// The last figures.
#[derive(Default)]
pub(crate) struct StatCache(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// All together, and when they were asked for.
    sum: Option<(Time, StatFs)>,
    /// What each node said last: one that does not answer has what it had.
    stores: BTreeMap<NodeId, StoreStats>,
    shards: BTreeMap<NodeId, ShardStats>,
}

/// A node that does not answer, and why.
type Silent = (NodeId, Fail);

impl StatCache {
    /// What [`Fs::statfs`](crate::Fs::statfs) says.
    pub(crate) async fn statfs(&self, cluster: &Cluster) -> Result<StatFs> {
        let asked = time::now();
        if let Some((at, stat)) = self.known_stat().sum
            && asked - at < AGE_MAX
        {
            return Ok(stat);
        }
        Ok(self.ask_statfs(cluster).await?.0)
    }

    /// Asks everybody, so that something is known of those who do not answer the next time.
    pub(crate) async fn learn_room(&self, cluster: &Cluster) -> Result<()> {
        self.ask_statfs(cluster).await?;
        self.known_stat().sum = None;
        Ok(())
    }

    /// Is there room for so many bytes more? A store that does not answer is waited for, as by other
    /// operations, unless there is enough without it.
    ///
    /// # Errors
    /// ENOSPC; ETIMEDOUT and EIO when a store that must be asked does not answer.
    pub(crate) async fn must_have_room(&self, cluster: &Cluster, bytes: u64) -> Result<()> {
        let mut backoff = Backoff::until(cluster.deadline());
        loop {
            let (stat, silent) = self.ask_statfs(cluster).await?;
            if bytes <= stat.free_bytes {
                return Ok(());
            }
            let Some((to, fail)) = silent else { return Err(Errno::ENOSPC.into()) };
            cluster.pause(&mut backoff, to, Op::StoreStat, &cluster.routes(), &fail).await?;
        }
    }

    fn known_stat(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks everybody; also a store that did not answer.
    async fn ask_statfs(&self, cluster: &Cluster) -> Result<(StatFs, Option<Silent>)> {
        let (asked, map) = (time::now(), cluster.routes().map.clone());
        let until = asked + PATIENCE;
        let stores = (0..map.stores.len()).map(|n| NodeId::Store(n as u16));
        let shards = (0..map.shards.len()).map(|n| NodeId::Shard(n as u16));
        let stores =
            join_all(stores.map(|n| stat_of::<StoreStats>(cluster, n, Op::StoreStat, until)));
        let shards = join_all(shards.map(|n| stat_of::<ShardStats>(cluster, n, Op::Statfs, until)));
        let (stores, shards) = futures_util::future::join(stores, shards).await;
        let known = &mut *self.known_stat();
        let mut silent = None;
        for answer in stores {
            match answer {
                Ok((node, stats)) => _ = known.stores.insert(node, stats),
                Err(failed) => silent = Some(failed),
            }
        }
        known.shards.extend(shards.into_iter().flatten());
        if known.shards.is_empty() {
            return Err(Error::new(Errno::EIO).with_text("no shard answers"));
        }
        let stores: Vec<StoreStats> = known.stores.values().copied().collect();
        let shards: Vec<ShardStats> = known.shards.values().copied().collect();
        let stat = sum(&stores, &shards, map.replicas);
        known.sum = Some((asked, stat));
        Ok((stat, silent))
    }
}

async fn stat_of<A: Message + Default>(
    cluster: &Cluster,
    node: NodeId,
    op: Op,
    until: Time,
) -> std::result::Result<(NodeId, A), Silent> {
    let body = Bytes::from(Empty {}.encode_to_vec());
    let routes = cluster.routes();
    let sent = cluster.send(&routes, node, op, cluster.trace(), body, Bytes::new(), until).await;
    let decoded = sent.and_then(|reply| decode(op, reply.body).map_err(Fail::Answer));
    decoded.map(|stats| (node, stats)).map_err(|fail| (node, fail))
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
        disk.unused_bytes += store.unused_bytes;
        disk.whole = (store.disk != 0).then_some(*store);
    }
    disks.values_mut().for_each(Disk::bound);
    StatFs {
        capacity_bytes: disks.values().map(|d| d.capacity_bytes).sum::<u64>() / copies,
        free_bytes: disks.values().map(|d| d.free_bytes).sum::<u64>() / copies,
        unused_bytes: disks.values().map(|d| d.unused_bytes).sum::<u64>() / copies,
        inodes: shards.iter().map(|s| s.inodes).sum(),
    }
}

/// What the stores of one disk say together.
#[derive(Default)]
struct Disk {
    capacity_bytes: u64,
    free_bytes: u64,
    unused_bytes: u64,
    /// One of them, for the figures of the disk itself.
    whole: Option<StoreStats>,
}

impl Disk {
    /// Stores cannot have more together than the disk has.
    fn bound(&mut self) {
        if let Some(store) = &self.whole {
            self.capacity_bytes = self.capacity_bytes.min(store.disk_bytes);
            self.free_bytes = self.free_bytes.min(store.disk_free_bytes);
            self.unused_bytes = self.unused_bytes.min(store.disk_unused_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_counted_once() {
        let (capacity_bytes, free_bytes, unused_bytes) = (100, 40, 50);
        let store =
            StoreStats { capacity_bytes, free_bytes, unused_bytes, ..StoreStats::default() };
        let shard = ShardStats { inodes: 7, ..ShardStats::default() };
        let stat = sum(&[store; 4], &[shard; 3], 2);
        assert_eq!(
            stat,
            StatFs { capacity_bytes: 200, free_bytes: 80, unused_bytes: 100, inodes: 21 }
        );
        assert_eq!(sum(&[store], &[], 0).capacity_bytes, 100);
    }

    #[test]
    fn a_disk_is_counted_once_however_many_stores_share_it() {
        let disk = |disk, capacity_bytes, free_bytes| StoreStats {
            disk,
            capacity_bytes,
            free_bytes,
            unused_bytes: capacity_bytes - 20,
            disk_bytes: 100,
            disk_free_bytes: 60,
            disk_unused_bytes: 65,
            ..StoreStats::default()
        };
        // Two that may use all of a disk, two that have a part of another.
        let stores = [disk(1, 100, 60), disk(1, 100, 58), disk(2, 30, 20), disk(2, 30, 10)];
        let stat = sum(&stores, &[], 1);
        assert_eq!((stat.capacity_bytes, stat.free_bytes, stat.unused_bytes), (160, 90, 65 + 20));
    }
}
