//! What must hold when nothing is under way: read from the rows and replicas of all shards.

use std::collections::BTreeSet;

use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::{
    ChunkListReply, ChunkListReq, ChunkReadReq, Empty, Op, ScanReply, ScanReq, ShardStats,
};
use saker_types::{Attr, ClusterMap, InodeId, NodeId};

use super::World;
use super::history::{Path, WorldAnswer, WorldCall, WorldEntry, WorldSeen};
use super::script::EDGE_BYTES;
use crate::testbed::TestbedTree;

/// Number of store 0 as a client.
const STORES: usize = 1_000;

/// Reads everything from all shards.
///
/// # Errors
/// Rows that make no sense, or a shard that does not answer.
pub fn tree(world: &mut World) -> Result<TestbedTree, String> {
    let mut tree = TestbedTree::default();
    for shard in world.cluster().shards() {
        let request = ScanReq { after: Default::default(), limit: 65_536 };
        let rows: ScanReply = world.ask(shard, Op::Scan, &request)?;
        for row in rows.rows {
            tree.take(&row.key, &row.value)?;
        }
        let stats: ShardStats = world.ask(shard, Op::Statfs, &Empty {})?;
        tree.inodes += stats.inodes;
        tree.prepared += stats.prepared;
    }
    Ok(tree)
}

/// Checks the tree, and gives it.
///
/// # Errors
/// What is wrong.
pub fn check(world: &mut World) -> Result<TestbedTree, String> {
    check_map(world)?;
    let tree = tree(world)?;
    tree.check()?;
    if tree.gone > 0 {
        return Err(format!("{} gone records outlived their leases", tree.gone));
    }
    check_chunks(world, &tree)?;
    Ok(tree)
}

/// The coordinator has the newest map.
fn check_map(world: &mut World) -> Result<(), String> {
    let map: ClusterMap = world.ask(NodeId::Coordinator, Op::Map, &Empty {})?;
    let newest = &*world.cluster().map;
    match map == *newest {
        true => Ok(()),
        false => Err(format!("the coordinator's map is {}, not {}", map.version, newest.version)),
    }
}

/// No store keeps data of an inode that is not there, unless it lost power: a deletion that was not
/// flushed is forgotten then, and what comes back is for `fsck` to set aside.
fn check_chunks(world: &mut World, tree: &TestbedTree) -> Result<(), String> {
    let request = ChunkListReq { limit: 1_024, ..ChunkListReq::default() };
    let plain = tree.entries.values().filter(|inode| inode.home_slot.is_none());
    let ids: BTreeSet<InodeId> =
        plain.chain(tree.attributes.values()).map(|inode| inode.attr.id).collect();
    let lost_power =
        |store: &NodeId| world.power_losses.iter().any(|(no, _)| NodeId::Store(*no) == *store);
    let mut stores = world.cluster().stores();
    stores.retain(|store| !lost_power(store));
    for store in stores {
        let list: ChunkListReply = world.ask(store, Op::ChunkList, &request)?;
        if let Some(chunk) = list.chunks.iter().find(|chunk| !ids.contains(&chunk.id)) {
            return Err(format!("{store} keeps data of {:#x}, which is gone", chunk.id));
        }
    }
    Ok(())
}

/// What each replica of each file's chunks holds, as reads of the whole file that are made now; by
/// store `n` as client [`STORES`]` + n`.
///
/// # Errors
/// A store that does not answer.
pub fn read_replicas(
    world: &mut World,
    tree: &TestbedTree,
    size_max: u64,
) -> Result<Vec<WorldEntry>, String> {
    let map = world.cluster().map.clone();
    let parts = [
        (0, 0, 2 * size_max),
        (0, CHUNK_BYTES - EDGE_BYTES, EDGE_BYTES),
        (1, 0, EDGE_BYTES + 2 * size_max),
    ];
    let mut reads = Vec::new();
    let now = world.moments.get() + 1;
    world.moments.set(now);
    let plain = tree.entries.values().filter(|inode| inode.home_slot.is_none());
    let chunked = plain.chain(tree.attributes.values()).filter(|inode| inode.attr.chunked);
    for Attr { id, size, mode, nlink, .. } in chunked.map(|inode| inode.attr.clone()) {
        for (index, offset, len) in parts {
            let start = index * CHUNK_BYTES + offset;
            let len = len.min(size.saturating_sub(start));
            let stores = if len > 0 { map.stores_of_chunk(id, index) } else { Vec::new() };
            for store in stores {
                let request = ChunkReadReq { id, index, offset, len, ..Default::default() };
                let mut data =
                    world.ask_raw(NodeId::Store(store), Op::ChunkRead, &request)?.payload.to_vec();
                data.resize(len as usize, 0);
                let call = WorldCall::Read {
                    at: Path { base: Some(id), names: Vec::new() },
                    offset: start,
                    len: len as usize,
                };
                let answer = WorldAnswer::Data(
                    WorldSeen { id, mode, nlink, size, mtime_ns: 0 },
                    data.into(),
                );
                let client = STORES + usize::from(store);
                reads.push(WorldEntry { client, call, invoked: now, returned: now, answer });
            }
        }
    }
    Ok(reads)
}

/// Each valid entry of a replica equals the owner's row.
///
/// # Errors
/// One that does not.
pub fn check_replicas(world: &mut World) -> Result<(), String> {
    let tree = tree(world)?;
    for shard in world.cluster().shards() {
        let Some(worker) = world.node(shard).shard() else {
            return Err(format!("{shard} is down"));
        };
        for (pid, name, dir) in worker.replica() {
            let name = String::from_utf8_lossy(&name).into_owned();
            let row = tree.entries.get(&(pid, name.clone()));
            let a = row.map(|inode| &inode.attr);
            let equal = a.is_some_and(|a| {
                (a.id, a.mode, a.uid, a.gid) == (dir.id, dir.mode, dir.uid, dir.gid)
            });
            if !equal {
                return Err(format!(
                    "{shard} remembers {name} in {pid:#x} as {dir:?}, it is {a:?}"
                ));
            }
        }
    }
    Ok(())
}
