//! Reads rows from shards and chunk lists from stores.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use prost::Message;
use saker_runtime::time;
use saker_types::change::{entry_key, id_key, parse_entry_key, table};
use saker_types::limits::WATCHED_MAX;
use saker_types::wire::{
    ChunkListReply, ChunkListReq, ChunkQuarantineReply, ChunkQuarantineReq, Empty, IdRange, Op,
    PoliciesReply, Row, ScanReply, ScanReq, ShardStats, StagedValue, Totals, WatchReply, WatchReq,
};
use saker_types::{ClusterMap, Inode, InodeId, Key, NodeId, ShardNo, StoreNo};

use super::check::{Look, check};
use super::chunks::{Chunks, Merge};
use super::rows::{Count, Rows};
use crate::progress::Progress;
use crate::signals;
use crate::wire::Wire;

/// How long one answer may take; a verified page of chunks is read from disk.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Rows asked for at once; the shard gives fewer when they are large.
const ROWS: u32 = 4096;
/// Chunks asked for at once.
const CHUNKS: u32 = 8192;
/// The same when each is read and checked: 4 MiB each, so that a page takes seconds.
const CHUNKS_VERIFIED: u32 = 64;

/// Why the check could not be made.
pub type CheckFailure = String;

/// Looks at the nodes of one cluster.
pub struct Scanner<'a> {
    pub wire: &'a Wire,
    pub map: &'a ClusterMap,
    pub progress: &'a Progress,
}

/// Where an inode is.
pub type Places = HashMap<InodeId, (InodeId, Vec<u8>)>;

impl Scanner<'_> {
    fn addr(&self, node: NodeId) -> Result<SocketAddr, CheckFailure> {
        self.map.addr(node).ok_or_else(|| format!("{node} has no address"))
    }

    fn shards(&self) -> impl Iterator<Item = ShardNo> + use<> {
        0..self.map.shards.len() as ShardNo
    }

    fn stores(&self) -> impl Iterator<Item = StoreNo> + use<> {
        0..self.map.stores.len() as StoreNo
    }

    /// One look at everything. Chunks come first: a chunk whose inode is not there afterwards
    /// has none, or is deleted at this moment.
    pub fn look(&self, verify: bool, strict: bool) -> Result<Look, CheckFailure> {
        self.wire.block_on(async {
            let chunks = self.all_chunks(verify).await?;
            let rows = try_join_all(self.shards().map(|shard| self.shard_rows(shard))).await?;
            let all = rows.into_iter().reduce(|mut all, rows| {
                all.append(rows);
                all
            });
            let given = self.given_ids().await?;
            Ok(check(self.map, all.unwrap_or_default(), chunks, &given, strict))
        })
    }

    /// Inode numbers that holders of subtrees were given.
    async fn given_ids(&self) -> Result<Vec<IdRange>, CheckFailure> {
        let to = self.addr(NodeId::Coordinator)?;
        let all: PoliciesReply = self.wire.call(to, Op::Policies, &Empty {}, ANSWER_WITHIN).await?;
        let holds = all.policies.into_iter().filter_map(|policy| policy.hold);
        Ok(holds.flat_map(|hold| hold.ids).collect())
    }

    async fn shard_rows(&self, shard: ShardNo) -> Result<Rows, CheckFailure> {
        let mut rows = Rows::default();
        self.each_row(shard, Bytes::new(), |row| {
            rows.add(self.map, shard, row);
            true
        })
        .await?;
        Ok(rows)
    }

    /// Shows all rows after a key, in order, until `take` has had enough.
    async fn each_row(
        &self,
        shard: ShardNo,
        mut after: Bytes,
        mut take: impl FnMut(&Row) -> bool,
    ) -> Result<(), CheckFailure> {
        let to = self.addr(NodeId::Shard(shard))?;
        loop {
            interruptible()?;
            let request = ScanReq { after: after.clone(), limit: ROWS };
            let reply: ScanReply = self.wire.call(to, Op::Scan, &request, ANSWER_WITHIN).await?;
            self.progress.add(reply.rows.len() as u64);
            for row in &reply.rows {
                if !take(row) {
                    return Ok(());
                }
            }
            match reply.rows.last() {
                Some(last) if !reply.end => after = last.key.clone(),
                _ => return Ok(()),
            }
        }
    }

    async fn all_chunks(&self, verify: bool) -> Result<Chunks, CheckFailure> {
        let mut merge = Merge::of(self.stores());
        let mut chunks = Chunks::default();
        let mut last: HashMap<StoreNo, (InodeId, u64)> = HashMap::new();
        loop {
            let hungry = merge.hungry();
            if hungry.is_empty() {
                return Ok(chunks);
            }
            let after = |store: &StoreNo| last.get(store).copied().unwrap_or_default();
            let pages = hungry.iter().map(|store| self.chunk_page(*store, after(store), verify));
            for (store, page) in hungry.iter().zip(join_all(pages).await) {
                let page = page?;
                let end = page.end || page.chunks.is_empty();
                if let Some(chunk) = page.chunks.last() {
                    last.insert(*store, (chunk.id, chunk.index));
                }
                self.progress.add(page.chunks.len() as u64);
                merge.feed(*store, page.chunks, end);
            }
            while let Some(copies) = merge.next() {
                chunks.add(self.map, &copies);
            }
        }
    }

    async fn chunk_page(
        &self,
        store: StoreNo,
        (after_id, after_index): (InodeId, u64),
        verify: bool,
    ) -> Result<ChunkListReply, CheckFailure> {
        interruptible()?;
        let limit = if verify { CHUNKS_VERIFIED } else { CHUNKS };
        let request = ChunkListReq { after_id, after_index, limit, verify };
        let to = self.addr(NodeId::Store(store))?;
        self.wire.call(to, Op::ChunkList, &request, ANSWER_WITHIN).await
    }

    /// The shards that have had a transaction under way at every look for so long.
    pub fn stuck_shards(&self, patience: Duration) -> Result<Vec<(ShardNo, u64)>, CheckFailure> {
        let mut busy: Vec<ShardNo> = self.shards().collect();
        let deadline = time::now() + patience;
        loop {
            interruptible()?;
            let stats = self.wire.block_on(try_join_all(busy.iter().map(async |shard| {
                let to = self.addr(NodeId::Shard(*shard))?;
                self.wire.call::<ShardStats>(to, Op::Statfs, &Empty {}, ANSWER_WITHIN).await
            })))?;
            let still: Vec<(ShardNo, u64)> = busy
                .iter()
                .zip(stats)
                .filter(|(_, stats)| stats.prepared > 0)
                .map(|(shard, stats)| (*shard, stats.prepared))
                .collect();
            if still.is_empty() || time::now() >= deadline {
                return Ok(still);
            }
            busy = still.iter().map(|(shard, _)| *shard).collect();
            time::sleep(Duration::from_millis(100));
        }
    }

    /// Totals of a directory on a shard as they are said to be, and as counted, both at one
    /// moment; `None` when the directory changes too fast.
    pub fn totals_now(
        &self,
        shard: ShardNo,
        dir: InodeId,
    ) -> Result<Option<(Count, Count)>, CheckFailure> {
        const ATTEMPTS: usize = 20;
        self.wire.block_on(async {
            for _ in 0..ATTEMPTS {
                let before = self.said_totals(shard, dir).await?;
                let found = self.count(shard, dir).await?;
                if self.said_totals(shard, dir).await? == before {
                    let Totals { entries, subdirs, .. } = before;
                    return Ok(Some((Count { dir, shard, entries, subdirs }, found)));
                }
            }
            Ok(None)
        })
    }

    async fn said_totals(&self, shard: ShardNo, dir: InodeId) -> Result<Totals, CheckFailure> {
        let key = id_key(table::TOTALS, dir);
        let mut said = None;
        // Keys of one table have one length, so nothing lies between a key and its predecessor.
        self.each_row(shard, id_key(table::TOTALS, dir.wrapping_sub(1)), |row| {
            said = (row.key == key).then(|| Totals::decode(row.value.clone()));
            false
        })
        .await?;
        said.transpose().map(Option::unwrap_or_default).map_err(|why| format!("totals: {why}"))
    }

    async fn count(&self, shard: ShardNo, dir: InodeId) -> Result<Count, CheckFailure> {
        let mut count = Count { dir, shard, entries: 0, subdirs: 0 };
        // The empty name with the least order sorts before all others of the directory.
        let start = entry_key(&Key { pid: dir, order: 0, name: Vec::new() });
        self.each_row(shard, start, |row| {
            let mine = parse_entry_key(&row.key).is_some_and(|key| key.pid == dir);
            if mine {
                count.entries += 1;
                let inode = Inode::decode(row.value.clone());
                count.subdirs += u64::from(inode.is_ok_and(|inode| inode.attr.is_dir()));
            }
            mine
        })
        .await?;
        Ok(count)
    }

    /// Finds the names of some inodes. Hard links have several: any.
    pub fn places(&self, wanted: &HashSet<InodeId>) -> Result<Places, CheckFailure> {
        self.wire.block_on(async {
            let found = try_join_all(self.shards().map(async |shard| {
                let mut places = Places::new();
                self.each_row(shard, Bytes::new(), |row| {
                    let Some(key) = parse_entry_key(&row.key) else { return true };
                    if let Ok(inode) = Inode::decode(row.value.clone())
                        && wanted.contains(&inode.attr.id)
                    {
                        places.insert(inode.attr.id, (key.pid, key.name));
                    }
                    true
                })
                .await?;
                Ok::<_, CheckFailure>(places)
            }))
            .await?;
            Ok(found.into_iter().flatten().collect())
        })
    }

    /// Which of these inodes no shard knows, whatever moves meanwhile ([`WatchReq`]).
    pub fn unknown(&self, ids: &[InodeId]) -> Result<Vec<InodeId>, CheckFailure> {
        let mut unknown = Vec::new();
        for part in ids.chunks(WATCHED_MAX) {
            unknown.extend(self.wire.block_on(self.unknown_of(part))?);
        }
        Ok(unknown)
    }

    async fn unknown_of(&self, ids: &[InodeId]) -> Result<HashSet<InodeId>, CheckFailure> {
        let watch = saker_runtime::rand::u64();
        let mut left: HashSet<InodeId> = ids.iter().copied().collect();
        for known in self.ask_all(&WatchReq { watch, ids: ids.to_vec() }).await? {
            left.remove(&known);
        }
        // Every shard looks out by now: what is nowhere in their rows either moves, and is met, or
        // is not there.
        let wanted = &left;
        let found = try_join_all(self.shards().map(async |shard| {
            let mut found = Vec::new();
            self.each_row(shard, Bytes::new(), |row| {
                found.extend(ids_of(row).into_iter().filter(|id| wanted.contains(id)));
                true
            })
            .await?;
            Ok::<_, CheckFailure>(found)
        }))
        .await?;
        for known in found.into_iter().flatten() {
            left.remove(&known);
        }
        for known in self.ask_all(&WatchReq { watch, ids: Vec::new() }).await? {
            left.remove(&known);
        }
        Ok(left)
    }

    async fn ask_all(&self, request: &WatchReq) -> Result<Vec<InodeId>, CheckFailure> {
        let answers = try_join_all(self.shards().map(async |shard| {
            let to = self.addr(NodeId::Shard(shard))?;
            self.wire.call::<WatchReply>(to, Op::Watch, request, ANSWER_WITHIN).await
        }));
        Ok(answers.await?.into_iter().flat_map(|answer| answer.known).collect())
    }

    /// Has all stores set chunks aside, take them back, or delete those that were aside for long
    /// enough; returns whose some store has deleted.
    pub fn quarantine(
        &self,
        request: &ChunkQuarantineReq,
    ) -> Result<HashSet<InodeId>, CheckFailure> {
        self.wire.block_on(async {
            let answers = try_join_all(self.stores().map(async |store| {
                let to = self.addr(NodeId::Store(store))?;
                let op = Op::ChunkQuarantine;
                self.wire.call::<ChunkQuarantineReply>(to, op, request, ANSWER_WITHIN).await
            }));
            Ok(answers.await?.into_iter().flat_map(|answer| answer.deleted).collect())
        })
    }
}

/// The inodes that a row belongs to, whatever it says of them.
fn ids_of(row: &Row) -> Vec<InodeId> {
    match row.key.first() {
        Some(&table::ENTRY) => {
            Inode::decode(row.value.clone()).ok().map(|inode| inode.attr.id).into_iter().collect()
        }
        Some(&table::STAGED) => {
            let staged = StagedValue::decode(row.value.clone()).ok();
            staged.iter().flat_map(StagedValue::ids).collect()
        }
        _ => row.key.last_chunk().copied().map(InodeId::from_be_bytes).into_iter().collect(),
    }
}

/// What [`Scanner`] says after Ctrl-C.
pub const INTERRUPTED: &str = "interrupted";

fn interruptible() -> Result<(), CheckFailure> {
    if signals::interrupted() { Err(INTERRUPTED.to_owned()) } else { Ok(()) }
}
