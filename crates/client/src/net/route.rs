//! Where requests go: the cluster map with what is derived from it.

use std::net::SocketAddr;
use std::sync::Arc;

use saker_runtime::telemetry::{OpCounters, Registry};
use saker_types::wire::Op;
use saker_types::{ClusterMap, NodeId, Result};

/// Everybody whom a client may call, under one version of the map.
pub(crate) struct Routes {
    pub(crate) map: Arc<ClusterMap>,
    coordinator: Peer,
    shards: Vec<Peer>,
    stores: Vec<Peer>,
}

/// A node: where it listens, and what was sent to it.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) addr: SocketAddr,
    pub(crate) sent: OpCounters,
}

/// Name of a node in the label `to`.
pub(crate) fn label(node: NodeId) -> String {
    match node {
        NodeId::Coordinator => "coordinator".to_owned(),
        NodeId::Shard(n) => format!("shard-{n}"),
        NodeId::Store(n) => format!("store-{n}"),
    }
}

/// The counters of what is sent to a node.
pub(crate) fn counters(registry: &Registry, node: NodeId) -> OpCounters {
    let table: Vec<(u16, &'static str)> =
        Op::ALL.iter().map(|op| (*op as u16, op.name())).collect();
    let to = label(node);
    registry.op_counters(
        "saker_client_requests_total",
        "Requests sent by this client, retries included",
        &[("to", &to)],
        "op",
        &table,
    )
}

impl Routes {
    /// From a map, which is checked.
    pub(crate) fn new(map: ClusterMap, registry: &Registry) -> Result<Routes> {
        map.check()?;
        let peer = |node| {
            let addr = map.addr(node).ok_or(saker_types::Errno::EPROTO)?;
            Ok(Peer { addr, sent: counters(registry, node) })
        };
        let shards = (0..map.shards.len()).map(|n| peer(NodeId::Shard(n as u16)));
        let stores = (0..map.stores.len()).map(|n| peer(NodeId::Store(n as u16)));
        Ok(Routes {
            coordinator: peer(NodeId::Coordinator)?,
            shards: shards.collect::<Result<_>>()?,
            stores: stores.collect::<Result<_>>()?,
            map: Arc::new(map),
        })
    }

    /// The node, if the map has it.
    pub(crate) fn peer(&self, node: NodeId) -> Option<&Peer> {
        match node {
            NodeId::Coordinator => Some(&self.coordinator),
            NodeId::Shard(n) => self.shards.get(usize::from(n)),
            NodeId::Store(n) => self.stores.get(usize::from(n)),
        }
    }

    /// All nodes with what was sent to them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (NodeId, &Peer)> {
        let shards = self.shards.iter().enumerate().map(|(n, p)| (NodeId::Shard(n as u16), p));
        let stores = self.stores.iter().enumerate().map(|(n, p)| (NodeId::Store(n as u16), p));
        std::iter::once((NodeId::Coordinator, &self.coordinator)).chain(shards).chain(stores)
    }
}
