//! A simulated machine with one role on it, driven as [`saker_rpc::Shell`] drives it, but that
//! whoever drives it (the [world](crate::world), or a test by the [testbed](crate::testbed)) decides
//! how long a flush takes, and what happens before it ends.

// Fields of plain records of a test tool.
#![allow(missing_docs)]

pub mod disk;
pub mod roles;
pub mod table;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use saker_coordinator::config::Members;
use saker_meta::ShardLimits;
use saker_rpc::frame::Frame;
use saker_rpc::node::Gate;
use saker_rpc::node::lag::Lag;
use saker_rpc::{Conditions, FlushDone, Input, Outbox, Outgoing, PeerHello, Service, StateMachine};
use saker_runtime::sim;
use saker_runtime::time::Time;
use saker_store::StoreService;
use saker_types::wire::Op;
use saker_types::{ClusterMap, NodeId};

use disk::SimDisk;
use roles::{Machine, START_WALL_NS, addr_of};
use table::{BadPlace, Unreadable};

/// What a node runs.
enum Running {
    Coordinator(saker_coordinator::service::CoordinatorWorker),
    Shard(saker_meta::service::ShardWorker),
    Store(StoreService),
}

/// What all nodes are started with.
pub struct NodeConfig {
    pub members: Members,
    /// The newest map.
    pub map: Arc<ClusterMap>,
    pub limits: ShardLimits,
    /// Journal bytes after which the coordinator compacts.
    pub segment_bytes: u64,
    /// A row that no shard's table can read; `None`: their disks have no bad places.
    pub unreadable: Option<Unreadable>,
}

impl NodeConfig {
    /// A new cluster.
    pub fn new(members: Members, limits: ShardLimits, segment_bytes: u64) -> NodeConfig {
        let map = Arc::new(roles::first_map(&members));
        NodeConfig { members, map, limits, segment_bytes, unreadable: None }
    }

    /// All nodes of the map.
    pub fn nodes(&self) -> Vec<NodeId> {
        [NodeId::Coordinator].into_iter().chain(self.shards()).chain(self.stores()).collect()
    }

    /// All shards of the map.
    pub fn shards(&self) -> Vec<NodeId> {
        (0..self.map.shards.len()).map(|n| NodeId::Shard(n as u16)).collect()
    }

    /// All stores of the map.
    pub fn stores(&self) -> Vec<NodeId> {
        (0..self.map.stores.len()).map(|n| NodeId::Store(n as u16)).collect()
    }
}

/// How a machine dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// `kill -9`: what was written is there.
    Killed,
    /// What was not synced may be there, or parts of it.
    Powerless(u64),
}

/// A machine.
pub struct Node {
    id: NodeId,
    running: Option<Running>,
    outbox: Outbox,
    gate: Gate<Outgoing>,
    /// What has arrived since the last step.
    pub inputs: VecDeque<Input>,
    /// Connection, call and status of what the last step has answered.
    pub answered: Vec<(u64, u64, u16)>,
    lag: Lag,
    /// A flush is under way.
    pub flushing: bool,
    /// A step is due.
    pub stepping: bool,
    /// When a step is due for the role's own sake.
    pub wake_at: Option<Time>,
    /// Where it is.
    pub machine: Machine,
    /// It is no member of the cluster any more.
    pub is_gone: bool,
    /// Counts starts.
    pub life: u64,
    /// How far the wall clock is off.
    pub skew_ns: i64,
    /// Everything takes so many times longer.
    pub slowness: u64,
    pub disk: SimDisk,
}

impl Node {
    /// A machine that is off. A coordinator's disk has the cluster's map, all others are empty.
    pub fn new(id: NodeId, cluster: &NodeConfig) -> Node {
        let disk = SimDisk::new();
        if id == NodeId::Coordinator {
            roles::write_map(disk.dir(), &cluster.map);
            disk.plan().done = 0;
        }
        Node {
            id,
            machine: 0,
            is_gone: false,
            running: None,
            outbox: Outbox::new(),
            gate: Gate::new(),
            inputs: VecDeque::new(),
            answered: Vec::new(),
            lag: Lag::default(),
            flushing: false,
            stepping: false,
            wake_at: None,
            life: 0,
            skew_ns: 0,
            slowness: 1,
            disk,
        }
    }

    /// Does it run?
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// The machine's wall clock.
    pub fn wall_ns(&self, now: Time) -> i64 {
        START_WALL_NS + now.as_ns() as i64 + self.skew_ns
    }

    /// Starts the role from its disk.
    ///
    /// # Errors
    /// What keeps it from starting.
    pub fn start(&mut self, cluster: &NodeConfig, now: Time) -> Result<(), String> {
        let disk = self.disk.dir();
        let running = match self.id {
            NodeId::Coordinator => Running::Coordinator(roles::start_coordinator(
                disk,
                &cluster.members,
                addr_of(self.id, self.machine),
                cluster.segment_bytes,
            )?),
            NodeId::Shard(no) => {
                let (limits, map) = (&cluster.limits, &cluster.map);
                let wall_ns = self.wall_ns(now);
                let mut table = roles::open_table(&*disk)?;
                if let Some(unreadable) = &cluster.unreadable {
                    let unreadable = unreadable.clone();
                    table = Arc::new(BadPlace { inner: table, unreadable });
                }
                let shard = roles::start_shard(no, disk, table, limits, map, now, wall_ns);
                Running::Shard(shard?)
            }
            NodeId::Store(no) => {
                Running::Store(roles::start_store(no, disk, self.disk.cached_since())?)
            }
        };
        if let Some(why) = sim::take_crash() {
            return Err(why);
        }
        self.running = Some(running);
        self.life += 1;
        Ok(())
    }

    /// It dies.
    pub fn die(&mut self, death: Death) {
        self.running = None;
        self.outbox = Outbox::new();
        self.gate = Gate::new();
        self.lag = Lag::default();
        self.inputs.clear();
        self.answered.clear();
        (self.flushing, self.stepping, self.wake_at) = (false, false, None);
        if let Death::Powerless(seed) = death {
            self.disk.lose_power(seed);
        }
    }

    fn role(&mut self) -> Option<&mut dyn StateMachine> {
        match &mut self.running {
            Some(Running::Coordinator(role)) => Some(role),
            Some(Running::Shard(role)) => Some(role),
            _ => None,
        }
    }

    /// The shard, for checkers.
    pub fn shard(&self) -> Option<&saker_meta::service::ShardWorker> {
        match &self.running {
            Some(Running::Shard(role)) => Some(role),
            _ => None,
        }
    }

    /// A store's answer.
    ///
    /// # Errors
    /// Why the node must die.
    pub fn answer(&self, frame: Frame) -> Result<Option<Frame>, String> {
        let Some(Running::Store(service)) = &self.running else { return Ok(None) };
        let reply = service.handle(frame);
        match self.disk.is_dead() {
            true => Err("the machine has died".into()),
            false => Ok(Some(reply)),
        }
    }

    /// What a store answers to somebody who stands beside it.
    pub fn look<A: Message + Default>(&self, op: Op, body: &impl Message) -> Option<A> {
        let Some(Running::Store(service)) = &self.running else { return None };
        let frame = Frame::request(op as u16, 0, body.encode_to_vec().into(), Bytes::new());
        A::decode(service.handle(frame).body).ok()
    }

    /// Runs a step on what has arrived.
    ///
    /// # Errors
    /// Why the node must die.
    pub fn step(&mut self, now: Time) -> Result<(), String> {
        let (wall_ns, mut inputs) = (self.wall_ns(now), std::mem::take(&mut self.inputs));
        let mut outbox = std::mem::take(&mut self.outbox);
        let Some(role) = self.role() else { return Ok(()) };
        role.step(now, wall_ns, &mut inputs, &mut outbox);
        let (durable, written) = (role.conditions(), role.conditions_when_written());
        let is_durable = role.durable() >= role.appended();
        if let Some(why) = sim::take_crash() {
            return Err(why);
        }
        for (after, said) in outbox.drain(durable, written) {
            if let Outgoing::Reply { conn, frame } = &said {
                self.answered.push((conn.0, frame.call, frame.status));
            }
            self.gate.push(after, said);
        }
        (self.inputs, self.outbox) = (inputs, outbox);
        self.lag.look(now, is_durable);
        Ok(())
    }

    /// Flushes at once.
    ///
    /// # Errors
    /// Why the node must die.
    pub fn flush(&mut self) -> Result<(), String> {
        self.lag = Lag::default();
        self.role().map_or(Ok(()), |role| role.flush().map_err(|e| e.to_string()))
    }

    /// Has records survive the role, if that is all that a message waits for.
    ///
    /// # Errors
    /// Why the node must die.
    pub fn write(&mut self, now: Time) -> Result<(), String> {
        let waits = self.reached(now).is_some_and(|reached| self.gate.waits_for_write(&reached));
        let Some(role) = self.role().filter(|_| waits) else { return Ok(()) };
        role.write().map_err(|e| e.to_string())
    }

    /// Begins a flush if somebody waits for it or it is due; true if it did.
    ///
    /// # Errors
    /// Why the node must die.
    pub fn begin_flush(&mut self, now: Time) -> Result<bool, String> {
        let is_due = self.lag.flush_due().is_none_or(|due| due <= now);
        let reached = self.role().map(|role| role.reached());
        let is_awaited = reached.is_some_and(|reached| self.gate.waits_for_flush(&reached));
        if self.flushing {
            return Ok(false);
        }
        let Some(role) = self.role() else { return Ok(false) };
        let is_awaited = is_awaited || role.durable() < role.flushed_at_once();
        if role.durable() >= role.appended() || !is_awaited && !is_due {
            return Ok(false);
        }
        role.flush_begin(FlushDone::new(|| {})).map_err(|e| e.to_string())?;
        self.lag.flush_begins(now);
        self.flushing = true;
        Ok(true)
    }

    /// Ends it.
    ///
    /// # Errors
    /// Why the node must die.
    pub fn end_flush(&mut self, now: Time) -> Result<(), String> {
        self.flushing = false;
        let Some(role) = self.role() else { return Ok(()) };
        role.flush_finish().map_err(|e| e.to_string())?;
        let is_durable = role.durable() >= role.appended();
        self.lag.flush_ends(now, is_durable);
        Ok(())
    }

    /// How far things have come, for messages.
    fn reached(&mut self, now: Time) -> Option<Conditions> {
        let reached = self.role()?.reached();
        let written = if self.lag.is_over(now) { reached.durable } else { reached.written };
        Some(Conditions { written, ..reached })
    }

    /// What may leave now.
    pub fn said(&mut self, now: Time) -> Vec<Outgoing> {
        let Some(reached) = self.reached(now) else { return Vec::new() };
        std::iter::from_fn(|| self.gate.pop(&reached)).collect()
    }

    /// When the role wants to run, whatever arrives, or must flush.
    pub fn next_deadline(&mut self) -> Option<Time> {
        let flush_due = self.lag.flush_due().filter(|_| !self.flushing);
        self.role()?.next_deadline().into_iter().chain(flush_due).min()
    }

    /// Where the role believes that a peer listens.
    pub fn address(&mut self, to: saker_rpc::NodeNumber) -> Option<SocketAddr> {
        self.role()?.address(to)
    }

    /// A request has arrived.
    pub fn receive(&mut self, conn: u64, peer: PeerHello, frame: Frame) {
        let (conn, peer) = (saker_rpc::ConnId(conn), Rc::new(peer));
        self.inputs.push_back(Input::Request { conn, peer, frame });
    }
}

/// Bytes that say everything of a frame.
pub fn frame_bytes(frame: &Frame) -> Bytes {
    let mut bytes = Vec::with_capacity(frame.body.len() + frame.payload.len() + 20);
    bytes.extend_from_slice(&frame.op.to_le_bytes());
    bytes.extend_from_slice(&frame.status.to_le_bytes());
    bytes.extend_from_slice(&frame.call.to_le_bytes());
    bytes.extend_from_slice(&frame.map_version.to_le_bytes());
    bytes.extend_from_slice(&frame.body);
    bytes.extend_from_slice(&frame.payload);
    bytes.into()
}
