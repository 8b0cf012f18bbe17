//! Shards and a coordinator on a testbed: the real roles, driven by hand, with no socket, no clock
//! and no thread. Messages lie on a wire until the test delivers, holds or drops them; a node
//! can crash and start again from its simulated disk at any point; time moves when the test says so.
//!
//! A step is flushed at once, so that what a role has said is durable: a crash before a message
//! is delivered stands for a crash before its effects were flushed. There is one store, which
//! never crashes, and a list of what it was asked.

mod check;
mod client;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use saker_meta::ShardLimits;
use saker_rpc::frame::Frame;
use saker_rpc::{CallError, CallId, ConnId, Input, Outgoing, RoleKind};
use saker_runtime::time::Time;
use saker_types::limits::{self, NAME_LEASE_MAX};
use saker_types::wire::{ChunkReadReq, Op};
use saker_types::{ClusterMap, Error, InodeId, NodeId, ROOT};

use crate::node::disk::SimDisk;
use crate::node::table::Unreadable;
use crate::node::{Death, Node, NodeConfig, roles};

pub use check::TestbedTree;
pub use client::{RequestResult, at, below, errno, shard, with_dir};

/// Largest file that stays in its row, bytes.
const INLINE_MAX: u64 = 4096;
/// Journal bytes after which the coordinator compacts.
const SEGMENT_BYTES: u64 = 8 << 20;

/// Who sends and gets messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TestbedPeer {
    /// The test.
    Client,
    /// A role or a store.
    Node(NodeId),
}

/// A message on the wire.
#[derive(Clone, Debug)]
pub struct Message {
    /// Who sent it.
    pub from: TestbedPeer,
    /// For whom it is.
    pub to: TestbedPeer,
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
        self.to == TestbedPeer::Node(node)
    }

    /// Is it from this node?
    pub fn is_from(&self, node: NodeId) -> bool {
        self.from == TestbedPeer::Node(node)
    }
}

/// A call of a role that has no answer yet.
struct Pending {
    to: NodeId,
    deadline: Time,
}

/// The testbed.
pub struct Testbed {
    now: Time,
    cluster: NodeConfig,
    nodes: BTreeMap<NodeId, Node>,
    wire: Vec<Message>,
    /// Connections, by number: who is at the other end.
    conns: Vec<(TestbedPeer, u64)>,
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
}

impl Testbed {
    /// A new cluster of some shards and one store, with the client's session open everywhere.
    pub fn new(shards: u16) -> Testbed {
        Testbed::with_limits(
            shards,
            ShardLimits { segment_bytes: 64 << 10, ..ShardLimits::default() },
        )
    }

    /// The same with bounds for the shards.
    pub fn with_limits(shards: u16, limits: ShardLimits) -> Testbed {
        let unreadable = Unreadable::default();
        let members = roles::members(shards, 1, 1, INLINE_MAX);
        let cluster = NodeConfig {
            unreadable: Some(unreadable.clone()),
            ..NodeConfig::new(members, limits, SEGMENT_BYTES)
        };
        let mut testbed = Testbed {
            now: Time::from_ns(1_000_000_000),
            cluster,
            nodes: BTreeMap::new(),
            wire: Vec::new(),
            conns: Vec::new(),
            pending: BTreeMap::new(),
            answers: BTreeMap::new(),
            trailer: Bytes::new(),
            asked: BTreeMap::new(),
            calls: 0,
            seq: 0,
            unreadable,
            stored: Vec::new(),
        };
        for id in testbed.cluster.nodes() {
            testbed.nodes.insert(id, Node::new(id, &testbed.cluster));
            testbed.start(id);
        }
        testbed.open_session();
        // From here on nobody has a lease of an earlier life.
        testbed.advance(NAME_LEASE_MAX);
        testbed
    }

    /// What the clock says.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The cluster map.
    pub fn map(&self) -> &ClusterMap {
        &self.cluster.map
    }

    /// All shards.
    pub fn shards(&self) -> Vec<NodeId> {
        self.cluster.shards()
    }

    /// The shard that owns a name in the root directory.
    pub fn owner(&self, name: &str) -> NodeId {
        NodeId::Shard(self.map().owner(ROOT, name.as_bytes()))
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
        let node = self.nodes.get_mut(&id).expect("a node of the testbed");
        node.start(&self.cluster, self.now).expect("the node starts");
        self.step(id, None);
    }

    /// The machine of a node loses power: what was not flushed is gone, messages to it are lost,
    /// and calls to it end.
    pub fn crash(&mut self, id: NodeId) {
        let seed = self.calls;
        let node = self.nodes.get_mut(&id).expect("a node of the testbed");
        node.die(Death::Powerless(seed));
        self.wire.retain(|m| m.to != TestbedPeer::Node(id));
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
    pub fn copy_of(&self, id: NodeId) -> SimDisk {
        self.nodes[&id].disk.copy()
    }

    /// A node that has crashed finds another directory in the place of its own.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn put_back(&mut self, id: NodeId, copy: SimDisk) {
        self.nodes.get_mut(&id).expect("a node of the testbed").disk = copy;
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
        let due = |node: &mut Node| node.next_deadline().is_some_and(|at| at <= now);
        let due: Vec<_> =
            self.nodes.iter_mut().filter_map(|(id, node)| due(node).then_some(*id)).collect();
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
            TestbedPeer::Client => {
                self.asked.remove(&frame.call);
                self.answers.insert(frame.call, Some(frame));
            }
            TestbedPeer::Node(asker) if is_reply => {
                self.end_call(asker, life, frame.call, Ok(frame));
            }
            TestbedPeer::Node(NodeId::Store(_)) => {
                self.stored.push((op, frame.body.clone()));
                let reply = self.store_answers(frame);
                self.wire.push(Message {
                    from: to,
                    to: from,
                    op,
                    is_reply: true,
                    life,
                    frame: reply,
                });
            }
            TestbedPeer::Node(node) => {
                let (conn, peer) = (self.conn(from, life), Rc::new(hello_of(from)));
                self.step(node, Some(Input::Request { conn, peer, frame }));
            }
        }
    }

    /// The store's answer to a request.
    fn store_answers(&self, frame: Frame) -> Frame {
        let answer = self.nodes[&NodeId::Store(0)].answer(frame);
        answer.ok().flatten().expect("the store never dies")
    }

    /// What the store holds of the first chunk of an inode, up to the last byte written.
    pub fn first_chunk(&self, id: InodeId) -> Bytes {
        let request = ChunkReadReq { id, len: limits::CHUNK_BYTES, ..ChunkReadReq::default() };
        let body = request.encode_to_vec().into();
        self.store_answers(Frame::request(Op::ChunkRead as u16, 0, body, Bytes::new())).payload
    }

    fn conn(&mut self, peer: TestbedPeer, life: u64) -> ConnId {
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
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if !node.is_up() {
            return;
        }
        node.inputs.extend(input);
        let done = node.step(self.now).and_then(|()| node.flush());
        done.expect("a disk in memory");
        node.answered.clear();
        let (life, said) = (node.life, node.said(self.now));
        said.into_iter().for_each(|said| self.send(id, life, said));
    }

    fn send(&mut self, id: NodeId, life: u64, said: Outgoing) {
        let from = TestbedPeer::Node(id);
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
                let is_down = self.nodes.get(&to).is_some_and(|node| !node.is_up());
                if is_down {
                    // Told at the next move of time, as a connection that cannot be made.
                    self.pending.insert((id, life, call.0), Pending { to, deadline: self.now });
                    return;
                }
                let to = TestbedPeer::Node(to);
                self.wire.push(Message { from, to, op, is_reply: false, life, frame });
            }
        }
    }
}

fn hello_of(from: TestbedPeer) -> saker_rpc::PeerHello {
    match from {
        TestbedPeer::Client => roles::hello(RoleKind::Tool, None),
        TestbedPeer::Node(node) => roles::hello_of(node),
    }
}
