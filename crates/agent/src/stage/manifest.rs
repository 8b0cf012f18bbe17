//! The manifest, which is small and tells what the rest must be.

use rustix::io::Errno;
use saker_agent_api::Stored;
use saker_dataset::MANIFEST;

use super::chain::{Chain, tree};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::sources::{Place, ask_peer};
use crate::staged::StagedDataset;
use crate::stored::READ_BYTES_MAX;

/// Longest manifest: of ten million partitions, which no dataset has.
const MANIFEST_BYTES_MAX: u64 = 2 << 30;

/// Gets the manifest into memory. To the disk it comes after the table.
///
/// # Errors
/// Of the origin; ESTALE: it has another dataset by now.
pub(super) async fn stage(node: &Node, dataset: &StagedDataset) -> Result<()> {
    if dataset.manifest().is_some() {
        return Ok(());
    }
    let mut chain = Chain::new(tree(dataset));
    loop {
        let (place, bytes) = chain.wait(node, dataset, (Stored::Manifest, 0), 0).await;
        let got = match place {
            Place::Origin => from_origin(node, dataset).await,
            Place::Peer(peer) => from_peer(node, dataset, peer, bytes).await,
        };
        match (got.and_then(|bytes| dataset.set_manifest(bytes)), place) {
            (Ok(()), _) => break,
            (Err(error), Place::Origin) => {
                return Err(
                    error.reworded(format_args!("origin {}: {error}", dataset.stage.origin))
                );
            }
            (Err(error), _) => {
                tracing::warn!("{}: {error}", dataset.stage.name);
                node.counters.read_failures.inc();
                chain.pass_over();
            }
        }
    }
    dataset.advance(1);
    Ok(())
}

async fn from_origin(node: &Node, dataset: &StagedDataset) -> Result<Vec<u8>> {
    let bytes = dataset.origin()?.get(MANIFEST).await?;
    node.counters.origin_reads.inc();
    node.counters.origin_bytes.add(bytes.len() as u64);
    Ok(bytes.into())
}

async fn from_peer(node: &Node, dataset: &StagedDataset, peer: usize, len: u64) -> Result<Vec<u8>> {
    if len > MANIFEST_BYTES_MAX {
        return Err(Error::new(Errno::FBIG, format!("a manifest of {len} bytes")));
    }
    let mut all = Vec::new();
    while (all.len() as u64) < len {
        let at = all.len() as u64;
        let range = at..len.min(at + READ_BYTES_MAX);
        let reply = ask_peer(node, dataset, peer, (Stored::Manifest, 0), range).await?;
        if reply.data.is_empty() {
            return Err(Error::new(Errno::IO, "a manifest that ends early"));
        }
        all.extend_from_slice(&reply.data);
    }
    Ok(all)
}
