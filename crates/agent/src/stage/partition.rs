//! A partition.

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use saker_agent_api::Stored;
use saker_dataset::Partition;

use super::fetch::{Wanted, fetch};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::staged::StagedDataset;

/// Gets a partition: the first of its keepers from the origin, the others from the one before.
///
/// # Errors
/// Of the origin and of the disk.
pub(super) async fn stage(
    node: &Arc<Node>,
    dataset: &Arc<StagedDataset>,
    number: u32,
) -> Result<()> {
    let Some(part) = dataset.parts.get(&number) else { return Ok(()) };
    let keepers = dataset.stage.keepers(number);
    let mut peers: Vec<usize> = keepers.take_while(|n| *n != dataset.node).collect();
    peers.reverse();
    let wanted = Wanted { of: (Stored::Partition, number), part, peers };
    let check = move |dataset: &StagedDataset, path: &Path| is_partition(dataset, path, number);
    fetch(node, dataset, &wanted, check).await
}

/// Compares all of a partition with the manifest and its checksums.
fn is_partition(dataset: &StagedDataset, path: &Path, number: u32) -> Result<()> {
    let partition = Partition::open(path)?;
    partition.verify()?;
    let info = dataset.manifest().and_then(|all| all.partitions.get(number as usize));
    if partition.number != number || info.map(|info| info.digest) != Some(partition.digest) {
        let what = format!("{}: damaged: another partition", path.display());
        return Err(Error::new(Errno::IO, what));
    }
    let table = partition.table();
    for ino in 0..table.len() {
        let Some(data) = table.inode(ino).data() else { continue };
        for block in 0..data.blocks() {
            dataset.advance(partition.read_block(table, &data, block)?.len() as u64);
            if dataset.is_stopped() {
                return Err(Error::new(Errno::CANCELED, "staging has ended"));
            }
        }
    }
    Ok(())
}
