//! What must hold when nothing is under way: read from the rows and replicas of all shards.

use std::collections::BTreeSet;

use saker_types::InodeId;
use saker_types::wire::{ChunkListReply, ChunkListReq, Empty, Op, ScanReply, ScanReq, ShardStats};

use super::World;
use crate::bench::Tree;

/// Reads everything from all shards.
///
/// # Errors
/// Rows that make no sense, or a shard that does not answer.
pub fn tree(world: &mut World) -> Result<Tree, String> {
    let mut tree = Tree::default();
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

/// Checks the tree.
///
/// # Errors
/// What is wrong.
pub fn check(world: &mut World) -> Result<(), String> {
    let tree = tree(world)?;
    tree.check()?;
    if tree.gone > 0 {
        return Err(format!("{} gone records outlived their leases", tree.gone));
    }
    check_chunks(world, &tree)
}

/// No store keeps data of an inode that is not there.
fn check_chunks(world: &mut World, tree: &Tree) -> Result<(), String> {
    let request = ChunkListReq { limit: 1_024, ..ChunkListReq::default() };
    let plain = tree.entries.values().filter(|inode| inode.home_slot.is_none());
    let ids: BTreeSet<InodeId> =
        plain.chain(tree.attributes.values()).map(|inode| inode.attr.id).collect();
    for store in world.cluster().stores() {
        let list: ChunkListReply = world.ask(store, Op::ChunkList, &request)?;
        if let Some(chunk) = list.chunks.iter().find(|chunk| !ids.contains(&chunk.id)) {
            return Err(format!("{store} keeps data of {:#x}, which is gone", chunk.id));
        }
    }
    Ok(())
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
