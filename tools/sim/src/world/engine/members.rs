//! Members come, go and move.

use std::sync::Arc;
use std::time::Duration;

use saker_coordinator::config::ShardMember;
use saker_types::placement::{ShardInfo, StoreInfo};
use saker_types::wire::{ChunkListReply, ChunkListReq, Op};
use saker_types::{ClusterMap, NodeId};

use super::super::changes::MemberChange;
use super::{Event, World};
use crate::node::roles::{self, addr_of};
use crate::node::{Death, Node};

/// How long the coordinator is down that is told of a change.
const TOLD_DOWN: Duration = Duration::from_millis(20);

impl World {
    /// A change of the script.
    pub(super) fn change(&mut self, at: usize) {
        let change = self.config.changes[at].1;
        self.log.event(self.now, "change", &[], || format!("{change:?}"));
        match change {
            MemberChange::AddShard => self.add_shard(),
            MemberChange::AddStore => self.add_store(),
            MemberChange::Replace(id, down) => self.replace(id, down),
            MemberChange::RemoveShard => {
                let last = self.cluster.map.shards.len() as u16 - 1;
                self.remove(NodeId::Shard(last));
            }
            MemberChange::RemoveStore => {
                let last = self.cluster.map.stores.len() as u16 - 1;
                self.remove(NodeId::Store(last));
            }
        }
    }

    fn add_shard(&mut self) {
        let no = self.cluster.map.shards.len() as u16;
        let (id, mnode) = (NodeId::Shard(no), u32::from(no));
        let addr = addr_of(id, 0);
        self.cluster.members.shards.push(ShardMember { mnode, addr });
        let info = ShardInfo { mnode, addr: addr.to_string(), allocator: mnode + 1 };
        self.install(|map| map.shards.push(info));
        self.begin(id);
    }

    fn add_store(&mut self) {
        let id = NodeId::Store(self.cluster.map.stores.len() as u16);
        let addr = addr_of(id, 0);
        self.cluster.members.stores.push(addr);
        self.install(|map| map.stores.push(StoreInfo { addr: addr.to_string() }));
        self.begin(id);
    }

    /// A node that was never there.
    fn begin(&mut self, id: NodeId) {
        let node = Node::new(id, &self.cluster);
        let before = self.nodes.insert(id, node);
        assert!(before.is_none(), "{id} was there before: numbers are never used again");
        self.start(id);
    }

    fn replace(&mut self, id: NodeId, down: Duration) {
        if self.node(id).is_up() {
            self.crash(id, Death::Killed, down);
        }
        let node = self.node_mut(id);
        node.machine += 1;
        let addr = addr_of(id, node.machine);
        let members = &mut self.cluster.members;
        match id {
            NodeId::Coordinator => self.coordinator.set(addr),
            NodeId::Shard(no) => members.shards[usize::from(no)].addr = addr,
            NodeId::Store(no) => members.stores[usize::from(no)] = addr,
        }
        let addr = addr.to_string();
        self.install(|map| match id {
            NodeId::Coordinator => map.coordinator = addr,
            NodeId::Shard(no) => map.shards[usize::from(no)].addr = addr,
            NodeId::Store(no) => map.stores[usize::from(no)].addr = addr,
        });
    }

    /// The last of its kind leaves, if nothing is lost with it and one is left.
    fn remove(&mut self, id: NodeId) {
        let map = self.cluster.map.clone();
        let may_go = match id {
            NodeId::Coordinator => false,
            NodeId::Shard(no) => {
                let (slots, _) = map.slots.as_chunks::<2>();
                slots.iter().all(|owner| u16::from_le_bytes(*owner) != no)
            }
            NodeId::Store(_) => map.stores.len() > 1 && self.is_empty(id),
        };
        if !may_go {
            return;
        }
        match id {
            NodeId::Coordinator => {}
            NodeId::Shard(_) => drop(self.cluster.members.shards.pop()),
            NodeId::Store(_) => drop(self.cluster.members.stores.pop()),
        }
        self.install(|map| match id {
            NodeId::Coordinator => {}
            NodeId::Shard(_) => drop(map.shards.pop()),
            NodeId::Store(_) => drop(map.stores.pop()),
        });
        self.crash(id, Death::Killed, Duration::ZERO);
        self.node_mut(id).is_gone = true;
    }

    /// Has a store no chunks?
    fn is_empty(&self, store: NodeId) -> bool {
        let request = ChunkListReq { limit: 1, ..ChunkListReq::default() };
        let list: Option<ChunkListReply> = self.node(store).look(Op::ChunkList, &request);
        list.is_some_and(|list| list.chunks.is_empty())
    }

    /// A newer map: the coordinator starts again with it.
    fn install(&mut self, change: impl FnOnce(&mut ClusterMap)) {
        let mut map = (*self.cluster.map).clone();
        change(&mut map);
        map.version += 1;
        self.cluster.map = Arc::new(map);
        let coordinator = NodeId::Coordinator;
        if self.node(coordinator).is_up() {
            self.crash(coordinator, Death::Killed, TOLD_DOWN);
        }
        roles::write_map(self.node(coordinator).disk.plain(), &self.cluster.map);
    }

    pub(super) fn changes_due(&mut self) {
        while self.config.changes.get(self.changed).is_some_and(|c| c.0 <= self.progress.get()) {
            let at = self.after_us(0, 3_000);
            self.schedule(at, Event::Change(self.changed));
            self.changed += 1;
        }
    }
}
