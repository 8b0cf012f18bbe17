//! A coordinator on an engine in memory, for tests of operations. The shards are the test's: a
//! function from what they are asked to what they answer. How real shards go on with it is tested
//! in tools/sim.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use prost::Message;
use saker_engine::{EngineSource, memory};
use saker_rpc::frame::Frame;
use saker_rpc::hello::{PeerHello, RoleKind};
use saker_rpc::hub::decode_reply;
use saker_rpc::node::{ConnId, Input, Outbox, Outgoing, StateMachine};
use saker_runtime::telemetry::Registry;
use saker_runtime::time::Time;
use saker_types::wire::*;
use saker_types::{Cred, Errno, Error, FileKind, Inode, InodeId, Locator, NodeId};

use crate::config::{Members, ShardMember};
use crate::metrics::Metrics;
use crate::service::CoordinatorWorker;

const WALL_NS: i64 = 1_800_000_000_000_000_000;
const SESSION: u64 = 7;
const CLIENT: ConnId = ConnId(1);
/// Shards of the cluster.
pub(crate) const SHARDS: u16 = 3;
/// Steps within which a request is answered.
const STEPS_MAX: usize = 1000;

/// A request to a shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardRequest {
    pub(crate) op: Op,
    body: Bytes,
}

impl ShardRequest {
    /// The request.
    pub(crate) fn body<M: Message + Default>(&self) -> M {
        M::decode(self.body.clone()).expect("a request of this kind")
    }
}

/// A shard's answer; `None`: there comes none, as if it were down.
pub(crate) type Answer = Option<Result<Vec<u8>, Error>>;

/// An answer.
pub(crate) fn yes(message: &impl Message) -> Answer {
    Some(Ok(message.encode_to_vec()))
}

/// A refusal.
pub(crate) fn no(error: impl Into<Error>) -> Answer {
    Some(Err(error.into()))
}

/// A path below the root.
pub(crate) fn at(path: &str) -> At {
    let names = path.split('/').filter(|name| !name.is_empty());
    let names = names.map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
    At::below(Locator::root(), names)
}

/// The row of a directory of the superuser.
pub(crate) fn dir(id: InodeId) -> Inode {
    let mut inode = Inode::default();
    (inode.attr.id, inode.attr.mode) = (id, FileKind::Directory.bits() | 0o755);
    inode
}

/// An entry in a directory.
pub(crate) fn entry(pid: InodeId, name: &'static str, id: InodeId) -> Locator {
    Locator::entry(pid, Bytes::from_static(name.as_bytes()), id)
}

/// What an owner says of a directory with this id.
pub(crate) fn dentry(id: InodeId) -> Dentry {
    Dentry { id, mode: FileKind::Directory.bits() | 0o755, ..Dentry::default() }
}

/// A vote for a row at a place.
pub(crate) fn vote(loc: Locator, row: Option<Inode>) -> Vote {
    Vote { loc, row, ..Vote::default() }
}

/// What every shard says that has nothing against a change; prepares are the test's own.
pub(crate) fn agreeing(asked: &ShardRequest) -> Answer {
    match asked.op {
        Op::Invalidate => yes(&InvalidateReply::default()),
        Op::Decide => yes(&Empty {}),
        op => panic!("{} is not expected", op.name()),
    }
}

/// The coordinator, and what it has asked shards.
pub(crate) struct CoordinatorTester {
    home: memory::MemoryStorage,
    worker: CoordinatorWorker,
    outbox: Outbox,
    now: Time,
    calls: u64,
    seq: u64,
    /// Who asks.
    pub(crate) cred: Cred,
    /// What shards were asked, in order.
    pub(crate) asked: Vec<(NodeId, ShardRequest)>,
}

impl CoordinatorTester {
    /// Of a new cluster.
    pub(crate) fn new() -> CoordinatorTester {
        let home = memory::MemoryStorage::new();
        let (worker, outbox) = (start(&home), Outbox::new());
        let (cred, asked, now) = (Cred::root(), Vec::new(), Time::from_ns(1_000_000_000));
        let mut t = CoordinatorTester { home, worker, outbox, now, calls: 0, seq: 0, cred, asked };
        let session = SessionReq { session: SESSION };
        t.ask::<Empty>(Op::OpenSession, &session, |_, _| None).expect("a session");
        t
    }

    /// It dies, and starts from what is durable. What it does at once is asked of `shards`.
    pub(crate) fn restart(&mut self, mut shards: impl FnMut(NodeId, &ShardRequest) -> Answer) {
        (self.worker, self.outbox) = (start(&self.home), Outbox::new());
        self.asked.clear();
        let mut inputs = VecDeque::new();
        self.step(&mut inputs, &mut shards);
        while !inputs.is_empty() {
            self.step(&mut inputs, &mut shards);
        }
    }

    /// The context of a new request.
    pub(crate) fn ctx(&mut self) -> Ctx {
        self.seq += 1;
        Ctx { cred: self.cred.clone(), session: SESSION, seq: self.seq, ack: 1, ..Ctx::default() }
    }

    /// Asks, with shards that answer so, and lets time go on until there is an answer, which is
    /// durable.
    pub(crate) fn ask<R: Message + Default>(
        &mut self,
        op: Op,
        body: &impl Message,
        mut shards: impl FnMut(NodeId, &ShardRequest) -> Answer,
    ) -> Result<R, Error> {
        let mut inputs = self.request(op, body);
        for _ in 0..STEPS_MAX {
            if let Some(answer) = self.step(&mut inputs, &mut shards) {
                // What it tells shards after its answer.
                while !inputs.is_empty() {
                    self.step(&mut inputs, &mut shards);
                }
                return decode_reply(Ok(answer));
            }
            if inputs.is_empty() {
                let next = self.worker.next_deadline();
                self.now = self.now.max(next.expect("something is waited for"));
            }
        }
        panic!("no answer to {}", op.name());
    }

    /// Asks, and goes on as far as shards answer.
    pub(crate) fn begin(
        &mut self,
        op: Op,
        body: &impl Message,
        mut shards: impl FnMut(NodeId, &ShardRequest) -> Answer,
    ) {
        let mut inputs = self.request(op, body);
        while !inputs.is_empty() {
            let answer = self.step(&mut inputs, &mut shards);
            assert!(answer.is_none(), "{} is over", op.name());
        }
    }

    fn request(&mut self, op: Op, body: &impl Message) -> VecDeque<Input> {
        self.calls += 1;
        let frame = Frame::request(op as u16, 0, body.encode_to_vec().into(), Bytes::new());
        let frame = Frame { call: self.calls, ..frame };
        VecDeque::from([Input::Request { conn: CLIENT, peer: Rc::new(client()), frame }])
    }

    fn step(
        &mut self,
        inputs: &mut VecDeque<Input>,
        shards: &mut impl FnMut(NodeId, &ShardRequest) -> Answer,
    ) -> Option<Frame> {
        let wall_ns = WALL_NS + self.now.as_ns() as i64;
        self.worker.step(self.now, wall_ns, inputs, &mut self.outbox);
        self.worker.flush().expect("memory");
        let conditions = self.worker.conditions();
        let said: Vec<_> = self.outbox.drain(conditions, conditions).collect();
        let mut answer = None;
        for (_, message) in said {
            match message {
                Outgoing::Reply { frame, .. } => answer = Some(frame),
                Outgoing::Call { call, to, frame, .. } => {
                    let to = NodeId::from_u32(to.0).expect("a node");
                    let op = Op::from_u16(frame.op).expect("an operation");
                    let asked = ShardRequest { op, body: frame.body.clone() };
                    self.asked.push((to, asked.clone()));
                    let Some(said) = shards(to, &asked) else { continue };
                    let reply = match said {
                        Ok(body) => frame.reply(0, body.into(), Bytes::new()),
                        Err(e) => frame.reply(e.errno().0, e.encode_to_vec().into(), Bytes::new()),
                    };
                    inputs.push_back(Input::Reply { call, result: Ok(reply) });
                }
            }
        }
        answer
    }

    /// The owner of an entry.
    pub(crate) fn owner(&self, loc: &Locator) -> NodeId {
        NodeId::Shard(self.worker.map().owner(loc.pid, &loc.name))
    }

    /// Operations that shards were asked, in order; of several in a row one.
    pub(crate) fn ops(&self) -> Vec<Op> {
        let mut ops: Vec<Op> = self.asked.iter().map(|(_, asked)| asked.op).collect();
        ops.dedup();
        ops
    }

    /// How the decisions that shards were told read: to commit, or not.
    pub(crate) fn decided(&self) -> Vec<bool> {
        let decides = self.asked.iter().filter(|(_, asked)| asked.op == Op::Decide);
        let mut said: Vec<bool> =
            decides.map(|(_, asked)| asked.body::<DecideReq>().commit).collect();
        said.dedup();
        said
    }

    /// Shards that were asked an operation, in order.
    pub(crate) fn asked_of(&self, op: Op) -> Vec<NodeId> {
        let all = self.asked.iter().filter(|(_, asked)| asked.op == op);
        all.map(|(to, _)| *to).collect()
    }
}

/// The error number of an answer that must be an error.
pub(crate) fn errno<T: std::fmt::Debug>(answer: Result<T, Error>) -> Errno {
    answer.unwrap_err().errno()
}

fn start(home: &memory::MemoryStorage) -> CoordinatorWorker {
    let addr = |n: u16| ([127, 0, 0, 1], n).into();
    let members = Members {
        name: "test".into(),
        shards: (0..SHARDS).map(|n| ShardMember { mnode: n.into(), addr: addr(10 + n) }).collect(),
        stores: vec![addr(30)],
        replicas: 1,
        inline_max: 4096,
    };
    let source = EngineSource::Memory(home.clone());
    let metrics = Metrics::new(&Registry::new());
    let state = crate::state::open(source, &members, "127.0.0.1:1", metrics).expect("it starts");
    CoordinatorWorker::new(state)
}

fn client() -> PeerHello {
    PeerHello {
        protocol: 1,
        cluster: None,
        role: RoleKind::Client,
        node: saker_rpc::NodeNumber::NONE,
        session: 0,
        map_version: 0,
        features: 0,
        ip: None,
    }
}
