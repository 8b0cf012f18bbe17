//! The output files of a dataset as one node sees them: which node is whose home, and asking it.

use std::sync::Arc;

use saker_agent_api::{Ask, OutputInfo, OutputOp, OutputRequest, Reply};
use xxhash_rust::xxh3::xxh3_64;

use super::path::OutputPath;
use super::store::Store;
use crate::error::Result;
use crate::node::Node;
use crate::staged::StagedDataset;

/// A dataset's output files.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) node: Arc<Node>,
    pub(super) dataset: Arc<StagedDataset>,
    pub(super) store: Arc<Store>,
}

impl Place {
    /// Of a dataset by its name.
    ///
    /// # Errors
    /// ENOENT: it is not staged.
    pub(super) fn of(node: &Arc<Node>, name: &str) -> Result<Place> {
        let dataset = node.datasets.get(name)?;
        Ok(Place { node: node.clone(), store: node.outputs.store(name), dataset })
    }

    /// Number of the node that keeps a path.
    pub(super) fn home(&self, path: &OutputPath) -> usize {
        path.home(self.dataset.stage.nodes.len())
    }

    /// This node keeps it.
    pub(super) fn is_mine(&self, path: &OutputPath) -> bool {
        self.home(path) == self.dataset.node
    }

    /// Nodes of the job but this one.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.dataset.stage.nodes.len()).filter(|n| *n != self.dataset.node)
    }

    /// Hash of the list of nodes.
    pub(super) fn nodes_hash(&self) -> u64 {
        xxh3_64(self.dataset.stage.nodes.join("\n").as_bytes())
    }

    /// Asks another node, until the answer is there. `id` is that of the request.
    ///
    /// # Errors
    /// What it answers. ESTALE: it has another list of nodes. Of the connection.
    pub(super) async fn ask_node(
        &self,
        n: usize,
        path: &OutputPath,
        id: u64,
        op: OutputOp,
    ) -> Result<Reply> {
        let peer = self.node.peers.get(&self.dataset.stage.nodes[n]);
        let request = OutputRequest {
            dataset: self.dataset.stage.name.clone(),
            path: path.as_bytes().to_vec(),
            nodes: self.nodes_hash(),
            id,
            op: Some(op),
        };
        loop {
            let reply = peer.call(Ask::Output(request.clone())).await?;
            if !reply.going_on {
                return Ok(reply);
            }
        }
    }
}

/// It is a directory.
pub(super) fn is_dir(info: &OutputInfo) -> bool {
    info.mode & libc::S_IFMT == libc::S_IFDIR
}
