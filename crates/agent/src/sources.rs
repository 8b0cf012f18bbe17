//! The copies of a partition: peers and the origin.

use std::ops::Range;

use rustix::io::Errno;
use saker_agent_api::{Ask, ReadStored, Reply, Stored};
use saker_dataset::partition_name;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::node::Node;
use crate::staged::StagedDataset;

/// Where a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On a node, by its number in the stage.
    Peer(usize),
    /// Where the dataset comes from.
    Origin,
}

/// Copies of a partition on other nodes and at the origin, in the order in which they are tried:
/// peers that did not fail of late, spread by `seed`; the origin; the other peers.
pub(crate) fn copies(
    node: &Node,
    dataset: &StagedDataset,
    partition: u32,
    seed: u32,
) -> Vec<Place> {
    let keepers = dataset.stage.keepers(partition).filter(|n| *n != dataset.node);
    let is_left_alone = |n: usize| node.peers.get(&dataset.stage.nodes[n]).is_left_alone();
    let mut peers: Vec<(bool, u64, usize)> =
        keepers.map(|n| (is_left_alone(n), rendezvous(seed, n), n)).collect();
    peers.sort_unstable();
    let well = peers.iter().take_while(|(left_alone, ..)| !left_alone).count();
    let mut places: Vec<Place> = peers.into_iter().map(|(_, _, n)| Place::Peer(n)).collect();
    places.insert(well, Place::Origin);
    places
}

/// Highest random weight: each seed has an order of nodes of its own.
pub(crate) fn rendezvous(seed: u32, node: usize) -> u64 {
    xxh3_64(&(u64::from(seed) << 32 | node as u64).to_le_bytes())
}

/// Asks a peer for a part of a file.
///
/// # Errors
/// Of the peer.
pub(crate) async fn ask_peer(
    node: &Node,
    dataset: &StagedDataset,
    peer: usize,
    (what, partition): (Stored, u32),
    range: Range<u64>,
) -> Result<Reply> {
    let ask = ReadStored {
        dataset: dataset.stage.name.clone(),
        table_digest: dataset.stage.table_digest.0.to_vec(),
        partition,
        offset: range.start,
        bytes: range.end - range.start,
        what: what.into(),
    };
    let reply = node.peers.get(&dataset.stage.nodes[peer]).call(Ask::Read(ask)).await?;
    if !reply.data.is_empty() {
        node.counters.peer_reads.inc();
        node.counters.peer_bytes.add(reply.data.len() as u64);
    }
    Ok(reply)
}

/// Reads a part of a file at the origin.
///
/// # Errors
/// Of the origin.
pub(crate) async fn ask_origin(
    node: &Node,
    dataset: &StagedDataset,
    name: &str,
    range: Range<u64>,
) -> Result<Vec<u8>> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = dataset.origin()?.read(name, range).await?;
    node.counters.origin_reads.inc();
    node.counters.origin_bytes.add(bytes.len() as u64);
    Ok(bytes.into())
}

/// Reads all of a range of a partition at one place.
///
/// # Errors
/// Of the place; EAGAIN: it does not have all of it yet.
pub(crate) async fn read(
    node: &Node,
    dataset: &StagedDataset,
    place: Place,
    partition: u32,
    range: Range<u64>,
) -> Result<Vec<u8>> {
    let peer = match place {
        Place::Peer(peer) => peer,
        Place::Origin => {
            return ask_origin(node, dataset, &partition_name(partition), range).await;
        }
    };
    let of = (Stored::Partition, partition);
    let reply = ask_peer(node, dataset, peer, of, range.clone()).await?;
    if reply.data.len() as u64 == range.end - range.start {
        return Ok(reply.data);
    }
    let name = &dataset.stage.nodes[peer];
    let what = format!("peer {name}: it has not so much of partition {partition} yet");
    Err(Error::new(Errno::AGAIN, what))
}
