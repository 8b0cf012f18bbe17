//! The places that a file is staged from, one after the other.
//!
//! The first is the node before this one, the last the origin. A place is kept as long as it makes
//! progress; one that makes none for some time is passed over.

use std::time::Duration;

use rustix::io::Errno;
use saker_agent_api::Stored;
use saker_runtime::time::{self, Time};

use crate::node::Node;
use crate::sources::{Place, ask_peer};
use crate::staged::StagedDataset;

/// Between two questions whether there is more.
const POLL: Duration = Duration::from_millis(100);

/// Which file of a dataset.
pub(super) type Of = (Stored, u32);

/// Places, the nearest first.
pub(super) struct Chain {
    peers: std::vec::IntoIter<usize>,
    place: Place,
    /// When the place was last seen to make progress.
    moved: Time,
    progress: u64,
    had: u64,
}

impl Chain {
    /// Of peers in this order, and the origin.
    pub(super) fn new(peers: Vec<usize>) -> Chain {
        let mut peers = peers.into_iter();
        let place = peers.next().map_or(Place::Origin, Place::Peer);
        Chain { peers, place, moved: time::now(), progress: 0, had: 0 }
    }

    /// The next place, for good.
    pub(super) fn pass_over(&mut self) {
        self.place = self.peers.next().map_or(Place::Origin, Place::Peer);
        (self.moved, self.progress) = (time::now(), 0);
    }

    /// There is no other place left.
    pub(super) fn is_at_origin(&self) -> bool {
        self.place == Place::Origin
    }

    /// After a failure: the place may still be the right one.
    pub(super) async fn pause(&self) {
        tokio::time::sleep(POLL).await;
    }

    /// Waits until a place has more than `have` bytes of a file: it, and how many. The origin has
    /// all: `u64::MAX`.
    pub(super) async fn wait(
        &mut self,
        node: &Node,
        dataset: &StagedDataset,
        of: Of,
        have: u64,
    ) -> (Place, u64) {
        if have > self.had {
            (self.had, self.moved) = (have, time::now());
        }
        let mut first = true;
        loop {
            let Place::Peer(peer) = self.place else { return (Place::Origin, u64::MAX) };
            if !first {
                tokio::time::sleep(POLL).await;
            }
            first = false;
            if self.is_stuck(node, dataset, peer) {
                tracing::info!("{}: {} is passed over", dataset.stage.name, self.name(dataset));
                self.pass_over();
                first = true;
                continue;
            }
            match ask_peer(node, dataset, peer, of, have..have).await {
                Ok(reply) if reply.available > have => return (self.place, reply.available),
                Ok(reply) if reply.progress != self.progress => {
                    (self.progress, self.moved) = (reply.progress, time::now());
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!("{}: {error}", dataset.stage.name);
                    if error.errno == Errno::STALE.raw_os_error() {
                        self.pass_over();
                        first = true;
                    }
                }
            }
        }
    }

    fn is_stuck(&self, node: &Node, dataset: &StagedDataset, peer: usize) -> bool {
        let patience = node.config.patience();
        let peer = node.peers.get(&dataset.stage.nodes[peer]);
        let is_dead = peer.is_left_alone() && peer.failing_for() > patience;
        is_dead || time::now().since(self.moved) > patience
    }

    fn name<'d>(&self, dataset: &'d StagedDataset) -> &'d str {
        match self.place {
            Place::Peer(peer) => &dataset.stage.nodes[peer],
            Place::Origin => &dataset.stage.origin,
        }
    }
}

/// The peers of a chain for what every node keeps: a tree, so that no node serves more than two.
pub(super) fn tree(dataset: &StagedDataset) -> Vec<usize> {
    let above = |n: &usize| n.checked_sub(1).map(|n| n / 2);
    std::iter::successors(above(&dataset.node), above).collect()
}
