//! Shards and a coordinator on a bench: the real roles, driven by hand, with no socket, no clock
//! and no thread. Messages lie on a wire until the test delivers, holds or drops them; a node
//! can crash and start again from its simulated disk at any point; time moves when the test says so.
//!
//! A step is flushed at once, so that what a role has said is durable: a crash before a message
//! is delivered stands for a crash before its effects were flushed. There is one store, which
//! never crashes, and a list of what it was asked.

mod check;
mod client;
mod store;
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use saker_coordinator::config::Members;
use saker_engine::Table;
use saker_meta::Limits;
use saker_rpc::Service as _;
use saker_rpc::frame::Frame;
use saker_rpc::{CallError, CallId, ConnId, Input, Outbox, Outgoing, Role, RoleKind};
use saker_runtime::fs::{Dir, MemDir};
use saker_runtime::time::Time;
use saker_types::limits::NAME_LEASE_MAX;
use saker_types::wire::Op;
use saker_types::{ClusterMap, Error, NodeId, ROOT};

use crate::roles::{self, EPOCH_NS};

pub use check::Tree;
use table::{BadPlace, Unreadable};

pub use client::{Answer, at, below, errno, shard, with_dir};

/// Who sends and gets messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// The test.
    Client,
    /// A role or a store.
    Node(NodeId),
}

/// A message on the wire.
#[derive(Clone, Debug)]
pub struct Message {
    /// Who sent it.
    pub from: Peer,
    /// For whom it is.
    pub to: Peer,
    /// Operation.
    pub op: Op,
    /// An answer, not a request.
    pub is_reply: bool,
    /// Life of the asking node when it asked: a node that started again knows no answer.
    life: u64,
    frame: Frame,
}

impl Message {
    /// Is it a request of this operation?
    pub fn asks(&self, op: Op) -> bool {
        !self.is_reply && self.op == op
    }

    /// Is it an answer to this operation?
    pub fn answers(&self, op: Op) -> bool {
        self.is_reply && self.op == op
    }

    /// The answer that refuses this request.
    pub fn refused(self, error: &Error) -> Message {
        let body = prost::Message::encode_to_vec(error).into();
        let frame = self.frame.reply(error.errno().0, body, Bytes::new());
        Message { from: self.to, to: self.from, is_reply: true, frame, ..self }
    }

    /// Is it for this node?
    pub fn is_to(&self, node: NodeId) -> bool {
        self.to == Peer::Node(node)
    }

    /// Is it from this node?
    pub fn is_from(&self, node: NodeId) -> bool {
        self.from == Peer::Node(node)
    }
}

/// A role, and what survives it.
struct Node {
    role: Option<Box<dyn Role>>,
    outbox: Outbox,
    disk: MemDir,
    life: u64,
}

/// A call of a role that has no answer yet.
struct Pending {
    to: NodeId,
    deadline: Time,
}

/// The bench.
pub struct Bench {
    now: Time,
    map: Arc<ClusterMap>,
    members: Members,
    limits: Limits,
    nodes: BTreeMap<NodeId, Node>,
    wire: Vec<Message>,
    /// Connections, by number: who is at the other end.
    conns: Vec<(Peer, u64)>,
    pending: BTreeMap<(NodeId, u64, u64), Pending>,
    /// What the client's calls ended in; `None`: the connection broke.
    answers: BTreeMap<u64, Option<Frame>>,
    /// Of the last answer that was looked at.
    trailer: Bytes,
    asked: BTreeMap<u64, NodeId>,
    calls: u64,
    seq: u64,
    unreadable: Unreadable,
    /// What the store was asked, in order.
    pub stored: Vec<(Op, Bytes)>,
    store: saker_store::StoreService,
}

impl Bench {
    /// A new cluster of some shards and one store, with the client's session open everywhere.
    pub fn new(shards: u32) -> Bench {
        Bench::with_limits(shards, Limits { segment_bytes: 64 << 10, ..Limits::default() })
    }

    /// The same with bounds for the shards.
    pub fn with_limits(shards: u32, limits: Limits) -> Bench {
        let members = roles::members(shards, 1, 4096);
        let mut bench = Bench {
            now: Time::from_ns(1_000_000_000),
            map: Arc::new(roles::first_map(&members)),
            members,
            limits,
            nodes: BTreeMap::new(),
            wire: Vec::new(),
            conns: Vec::new(),
            pending: BTreeMap::new(),
            answers: BTreeMap::new(),
            trailer: Bytes::new(),
            asked: BTreeMap::new(),
            calls: 0,
            seq: 0,
            unreadable: Unreadable::default(),
            stored: Vec::new(),
            store: store::open(),
        };
        let disk = MemDir::new();
        roles::write_map(Arc::new(disk.clone()), &bench.map);
        bench.add(NodeId::Coordinator, disk);
        (0..shards).for_each(|n| bench.add(NodeId::Shard(n as u16), MemDir::new()));
        bench.open_session();
        // From here on nobody has a lease of an earlier life.
        bench.advance(NAME_LEASE_MAX);
        bench
    }

    fn add(&mut self, id: NodeId, disk: MemDir) {
        let node = Node { role: None, outbox: Outbox::new(), disk, life: 0 };
        self.nodes.insert(id, node);
        self.start(id);
    }

    /// What the clock says.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The cluster map.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// All shards.
    pub fn shards(&self) -> Vec<NodeId> {
        (0..self.map.shards.len()).map(|n| NodeId::Shard(n as u16)).collect()
    }

    /// The shard that owns a name in the root directory.
    pub fn owner(&self, name: &str) -> NodeId {
        NodeId::Shard(self.map.owner(ROOT, name.as_bytes()))
    }

    /// A name with this beginning that the shard owns.
    ///
    /// # Panics
    /// If there is none among the first thousand.
    pub fn name_on(&self, shard: NodeId, beginning: &str) -> String {
        let mut names = (0..1_000).map(|i| format!("{beginning}{i}"));
        names.find(|name| self.owner(name) == shard).expect("each shard owns its share of names")
    }

    // ---- life and death -------------------------------------------------------------------

    /// Starts a node from its disk.
    ///
    /// # Panics
    /// If it cannot.
    pub fn start(&mut self, id: NodeId) {
        let (map, limits) = (self.map.clone(), self.limits.clone());
        let node = self.nodes.get_mut(&id).expect("a node of the bench");
        let disk: Arc<dyn Dir> = Arc::new(node.disk.clone());
        let wall_ns = EPOCH_NS + self.now.as_ns() as i64;
        let role: Box<dyn Role> = match id {
            NodeId::Coordinator => Box::new(
                roles::start_coordinator(disk, &self.members, 8 << 20)
                    .expect("the coordinator starts"),
            ),
            NodeId::Shard(no) => {
                let inner = roles::open_table(&*disk).expect("the table opens");
                let unreadable = self.unreadable.clone();
                let table: Arc<dyn Table> = Arc::new(BadPlace { inner, unreadable });
                let shard = roles::start_shard(no, disk, table, &limits, &map, self.now, wall_ns);
                Box::new(shard.expect("the shard starts"))
            }
            NodeId::Store(_) => panic!("stores are no roles here"),
        };
        node.role = Some(role);
        node.outbox = Outbox::new();
        node.life += 1;
        self.step(id, None);
    }

    /// The machine of a node loses power: what was not flushed is gone, messages to it are lost,
    /// and calls to it end.
    pub fn crash(&mut self, id: NodeId) {
        let seed = self.calls;
        let node = self.nodes.get_mut(&id).expect("a node of the bench");
        node.role = None;
        node.disk = node.disk.crash(seed);
        self.wire.retain(|m| m.to != Peer::Node(id));
        self.pending.retain(|(asker, _, _), _| *asker != id);
        let broken: Vec<_> =
            self.pending.iter().filter(|(_, p)| p.to == id).map(|(key, _)| *key).collect();
        let lost: Vec<u64> =
            self.asked.iter().filter(|(_, to)| **to == id).map(|(call, _)| *call).collect();
        for call in lost {
            self.asked.remove(&call);
            self.answers.insert(call, None);
        }
        for (asker, life, call) in broken {
            self.end_call(asker, life, call, Err(CallError::Disconnected));
        }
    }

    /// Crash and start.
    pub fn restart(&mut self, id: NodeId) {
        self.crash(id);
        self.start(id);
    }

    /// A copy of what is durable of a node's directory.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn copy_of(&self, id: NodeId) -> MemDir {
        self.nodes[&id].disk.crash(0)
    }

    /// A node that has crashed finds another directory in the place of its own.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn put_back(&mut self, id: NodeId, copy: MemDir) {
        self.nodes.get_mut(&id).expect("a node of the bench").disk = copy;
    }

    /// From now on a row cannot be read from any shard's table; `None`: all can.
    pub fn set_unreadable(&self, key: Option<Bytes>) {
        *self.unreadable.lock().unwrap_or_else(PoisonError::into_inner) = key;
    }

    // ---- time -----------------------------------------------------------------------------

    /// Time goes on; what is due happens.
    pub fn advance(&mut self, by: Duration) {
        self.now += by;
        let now = self.now;
        let late: Vec<_> =
            self.pending.iter().filter(|(_, p)| p.deadline <= now).map(|(key, _)| *key).collect();
        for (asker, life, call) in late {
            self.end_call(asker, life, call, Err(CallError::Timeout));
        }
        let due = |node: &Node| {
            let deadline = node.role.as_ref().and_then(|role| role.next_deadline());
            deadline.is_some_and(|at| at <= now)
        };
        let due: Vec<_> = self.nodes.iter().filter(|(_, n)| due(n)).map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.step(id, None));
    }

    // ---- the wire -------------------------------------------------------------------------

    /// What is on the wire, in the order it was sent.
    pub fn wire(&self) -> &[Message] {
        &self.wire
    }

    /// Takes messages off the wire.
    pub fn take(&mut self, which: impl Fn(&Message) -> bool) -> Vec<Message> {
        self.wire.extract_if(.., |m| which(m)).collect()
    }

    /// Puts messages on the wire (again).
    pub fn put(&mut self, messages: Vec<Message>) {
        self.wire.extend(messages);
    }

    /// Delivers the first message that matches; `false` if there is none.
    pub fn deliver(&mut self, which: impl Fn(&Message) -> bool) -> bool {
        let Some(at) = self.wire.iter().position(which) else { return false };
        let message = self.wire.remove(at);
        self.arrive(message);
        true
    }

    /// Delivers one message, the `nth` of those that may come next: connections keep the order
    /// of what is sent over them.
    pub fn deliver_any(&mut self, nth: u64) {
        let mut seen = BTreeSet::new();
        let next: Vec<usize> = (0..self.wire.len())
            .filter(|i| seen.insert((self.wire[*i].from, self.wire[*i].to)))
            .collect();
        if !next.is_empty() {
            let message = self.wire.remove(next[(nth % next.len() as u64) as usize]);
            self.arrive(message);
        }
    }

    /// Delivers everything, in order, until nothing is on the wire.
    pub fn settle(&mut self) {
        self.settle_but(|_| false);
    }

    /// Delivers everything but what matches.
    pub fn settle_but(&mut self, held: impl Fn(&Message) -> bool) {
        while self.deliver(|m| !held(m)) {}
    }

    fn arrive(&mut self, message: Message) {
        let Message { from, to, is_reply, life, frame, op } = message;
        match to {
            Peer::Client => {
                self.asked.remove(&frame.call);
                self.answers.insert(frame.call, Some(frame));
            }
            Peer::Node(asker) if is_reply => {
                self.end_call(asker, life, frame.call, Ok(frame));
            }
            Peer::Node(NodeId::Store(_)) => {
                self.stored.push((op, frame.body.clone()));
                let reply = self.store.handle(frame);
                self.wire.push(Message {
                    from: to,
                    to: from,
                    op,
                    is_reply: true,
                    life,
                    frame: reply,
                });
            }
            Peer::Node(node) => {
                let conn = self.conn(from, life);
                self.step(
                    node,
                    Some(Input::Request { conn, peer: Rc::new(hello_of(from)), frame }),
                );
            }
        }
    }

    fn conn(&mut self, peer: Peer, life: u64) -> ConnId {
        let known = self.conns.iter().position(|c| *c == (peer, life));
        let at = known.unwrap_or_else(|| {
            self.conns.push((peer, life));
            self.conns.len() - 1
        });
        ConnId(at as u64)
    }

    fn end_call(&mut self, asker: NodeId, life: u64, call: u64, result: Result<Frame, CallError>) {
        if self.pending.remove(&(asker, life, call)).is_some() {
            self.step(asker, Some(Input::Reply { call: CallId(call), result }));
        }
    }

    fn step(&mut self, id: NodeId, input: Option<Input>) {
        let wall_ns = EPOCH_NS + self.now.as_ns() as i64;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(role) = &mut node.role else { return };
        let mut inputs: VecDeque<Input> = input.into_iter().collect();
        role.step(self.now, wall_ns, &mut inputs, &mut node.outbox);
        role.flush().expect("a disk in memory");
        let (life, conditions) = (node.life, role.conditions());
        let said: Vec<Outgoing> = node.outbox.drain(conditions).map(|(_, said)| said).collect();
        said.into_iter().for_each(|said| self.send(id, life, said));
    }

    fn send(&mut self, id: NodeId, life: u64, said: Outgoing) {
        let from = Peer::Node(id);
        match said {
            Outgoing::Reply { conn, frame } => {
                let (to, life) = self.conns[conn.0 as usize];
                let op = Op::from_u16(frame.op).expect("an operation");
                self.wire.push(Message { from, to, op, is_reply: true, life, frame });
            }
            Outgoing::Call { call, to, frame, deadline } => {
                let to = NodeId::from_u32(to.0).expect("a node");
                let op = Op::from_u16(frame.op).expect("an operation");
                self.pending.insert((id, life, call.0), Pending { to, deadline });
                let is_down = self.nodes.get(&to).is_some_and(|node| node.role.is_none());
                if is_down {
                    // Told at the next move of time, as a connection that cannot be made.
                    self.pending.insert((id, life, call.0), Pending { to, deadline: self.now });
                    return;
                }
                let to = Peer::Node(to);
                self.wire.push(Message { from, to, op, is_reply: false, life, frame });
            }
        }
    }
}

fn hello_of(from: Peer) -> saker_rpc::PeerHello {
    match from {
        Peer::Client => roles::hello(RoleKind::Tool, None),
        Peer::Node(node) => roles::hello_of(node),
    }
}
