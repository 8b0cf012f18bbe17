//! The output files of a dataset as one node sees them: which node is whose home, and asking it.

use std::sync::Arc;

use rustix::io::Errno;
use saker_agent_api::{Ask, Nothing, OutputInfo, OutputOp, OutputRequest, Reply};
use xxhash_rust::xxh3::xxh3_64;

use super::home;
use super::path::OutputPath;
use super::store::{Store, root_info};
use crate::error::{Error, Result};
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

    /// Asks the home of a path, which may be this node.
    ///
    /// # Errors
    /// What it answers. Of the connection.
    pub(super) async fn ask_home(&self, path: &OutputPath, op: OutputOp) -> Result<Reply> {
        let (home, id) = (self.home(path), saker_runtime::rand::u64());
        match home == self.dataset.node {
            true => home::execute(self, path, id, op).await,
            false => self.ask_node(home, path, id, op).await,
        }
    }

    /// Attributes of a path.
    ///
    /// # Errors
    /// ENOENT. As of [`Place::ask_home`].
    pub(super) async fn look(&self, path: &OutputPath) -> Result<OutputInfo> {
        if path.is_root() {
            return Ok(root_info());
        }
        let reply = self.ask_home(path, OutputOp::Look(Nothing {})).await?;
        reply.output.ok_or_else(|| Error::new(Errno::IO, "an answer without attributes"))
    }

    /// The same, if it is there.
    ///
    /// # Errors
    /// As of [`Place::ask_home`].
    pub(super) async fn find(&self, path: &OutputPath) -> Result<Option<OutputInfo>> {
        match self.look(path).await {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.errno == libc::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The directory that a path is in must be there.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR. As of [`Place::ask_home`].
    pub(super) async fn check_parent(&self, path: &OutputPath) -> Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        match is_dir(&self.look(&parent).await?) {
            true => Ok(()),
            false => Err(Error::new(Errno::NOTDIR, parent)),
        }
    }

    /// Makes the directories that a new name is in, if somebody has removed them meanwhile: who
    /// removes one looks for names after he has begun.
    ///
    /// # Errors
    /// ENOTDIR. As of [`Place::ask_home`].
    pub(super) async fn ensure_parents(&self, path: &OutputPath) -> Result<()> {
        let mut parent = path.parent();
        while let Some(dir) = parent.filter(|dir| !dir.is_root()) {
            if !self.ask_home(&dir, OutputOp::EnsureDir(0o755)).await?.made {
                break;
            }
            parent = dir.parent();
        }
        Ok(())
    }
}

/// It is a directory.
pub(super) fn is_dir(info: &OutputInfo) -> bool {
    info.mode & libc::S_IFMT == libc::S_IFDIR
}
