//! The loop: the next event in simulated time, what it does, what follows from it.

mod life;
mod members;
mod traffic;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use saker_rpc::CallError;
use saker_rpc::client::{CallPromise, SleepPromise};
use saker_rpc::frame::Frame;
use saker_rpc::hub::decode_reply;
use saker_runtime::rand::Rng;
use saker_runtime::sim;
use saker_runtime::task::Executor;
use saker_runtime::time::Time;
use saker_types::placement::Slot;
use saker_types::policy::PolicyId;
use saker_types::wire::{At, Ctx, Empty, Op, PolicyPair, SessionReq, SetPolicyReply, SetPolicyReq};
use saker_types::{Cred, NodeId, StoreNo};

use super::WorldConfig;
use super::history::Moments;
use super::log::EventLog;
use super::net::{Who, WorldNet};
use super::ownership::Ownership;
use super::transport::{Desk, NewCall, WorldTransport};
use crate::node::roles::{self, START_WALL_NS, addr_of};
use crate::node::{Node, NodeConfig};

/// Attempts to set a policy, and the pause between two.
const POLICY_ATTEMPTS: usize = 20;
const POLICY_PAUSE: Duration = Duration::from_millis(200);

/// Messages of the checkers' own client.
pub const OBSERVER: usize = usize::MAX;

/// Who asked, in which life, and the number of the call.
type Key = (Who, u64, u64);

/// A call without an answer.
struct Pending {
    conn: Option<usize>,
    promise: Option<CallPromise>,
}

enum Event {
    Arrives {
        conn: usize,
        frame: Frame,
        late: bool,
    },
    /// A store carries out a request of this connection.
    Executes {
        conn: usize,
        frame: Frame,
    },
    Answers {
        conn: usize,
        frame: Frame,
    },
    Fails(Key, CallError),
    Step(NodeId, u64),
    Flushed(NodeId, u64),
    Wake(NodeId, u64),
    Start(NodeId),
    Woken(SleepPromise),
    Fault(usize),
    Change(usize),
    Recover(NodeId),
    Calm,
}

/// The cluster, its clients, and everything between them.
pub struct World {
    pub now: Time,
    pub log: EventLog,
    pub rng: Rng,
    pub desk: Desk,
    pub executor: Executor,
    /// Calls that clients have made.
    pub progress: Rc<Cell<usize>>,
    /// Faults that have struck, and changes that were made.
    struck: usize,
    changed: usize,
    pub crashes: u64,
    /// Moments of the clients' history.
    pub moments: Moments,
    /// Of stores, and after which of those moments.
    pub power_losses: Vec<(StoreNo, u64)>,
    config: WorldConfig,
    cluster: NodeConfig,
    nodes: BTreeMap<NodeId, Node>,
    net: WorldNet,
    queue: BTreeMap<(Time, u64), Event>,
    events: u64,
    pending: BTreeMap<Key, Pending>,
    calls: u64,
    /// Mutations that were executed with success: what was answered.
    results: BTreeMap<(u64, u64), Bytes>,
    /// A loss of power of a shard may take what it has answered, so that a mutation whose answer got lost is
    /// executed again.
    may_lose_answers: bool,
    /// (session, number) of mutations by (connection, call).
    asked: BTreeMap<(usize, u64), (u64, u64)>,
    /// Where new clients find it.
    coordinator: Rc<Cell<SocketAddr>>,
    ownership: Ownership,
    /// Slot of the name that a client asks a shard about, by (connection, call).
    routed: FxHashMap<(usize, u64), Slot>,
    /// A rule that was seen broken.
    broken: Option<String>,
}

impl World {
    /// A new cluster, all up.
    ///
    /// # Panics
    /// If a node does not start from an empty disk.
    pub fn new(config: WorldConfig) -> World {
        let WorldConfig { shards, stores, replicas, inline_max, .. } = config;
        let members = roles::members(shards, stores, replicas, inline_max);
        let cluster = NodeConfig::new(members, config.limits.clone(), config.segment_bytes);
        let mut world = World {
            now: Time::from_ns(1_000_000_000),
            log: EventLog::new(config.readable),
            rng: Rng::seeded(config.seed),
            desk: Desk::default(),
            executor: Executor::new(),
            progress: Rc::default(),
            struck: 0,
            changed: 0,
            crashes: 0,
            moments: Moments::default(),
            power_losses: Vec::new(),
            nodes: BTreeMap::new(),
            net: WorldNet::new(),
            queue: BTreeMap::new(),
            events: 0,
            pending: BTreeMap::new(),
            calls: 0,
            results: BTreeMap::new(),
            may_lose_answers: false,
            asked: BTreeMap::new(),
            coordinator: Rc::new(Cell::new(addr_of(NodeId::Coordinator, 0))),
            ownership: Ownership::new(cluster.map.clone()),
            routed: FxHashMap::default(),
            broken: None,
            cluster,
            config,
        };
        world.set_clock();
        for id in world.cluster.nodes() {
            let node = Node::new(id, &world.cluster);
            if let Some((dying, at)) = world.config.dies_at
                && dying == id
            {
                node.disk.plan().dies_at = Some(at);
            }
            world.nodes.insert(id, node);
            world.start(id);
        }
        world
    }

    /// What it was made of.
    pub fn config(&self) -> &WorldConfig {
        &self.config
    }

    /// The newest map, and who is in it.
    pub fn cluster(&self) -> &NodeConfig {
        &self.cluster
    }

    /// How a client sends.
    pub fn sender(&self, client: usize) -> WorldTransport {
        WorldTransport { client, desk: self.desk.clone() }
    }

    /// Where the coordinator is, whenever somebody looks.
    pub fn coordinator(&self) -> Rc<Cell<SocketAddr>> {
        self.coordinator.clone()
    }

    /// A machine.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[&id]
    }

    /// Operations of each machine's disk that changed it.
    pub fn disk_ops(&self) -> BTreeMap<NodeId, u64> {
        self.nodes.iter().map(|(id, node)| (*id, node.disk.plan().done)).collect()
    }

    fn set_clock(&self) {
        sim::set_time(self.now, START_WALL_NS + self.now.as_ns() as i64);
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.events += 1;
        self.queue.insert((at.max(self.now), self.events), event);
    }

    fn after_us(&mut self, usual: u64, spread: u64) -> Time {
        self.now + Duration::from_micros(usual + self.rng.below(spread))
    }

    // ---- the loop -------------------------------------------------------------------------

    /// Lets time go on until something is so.
    ///
    /// # Errors
    /// A rule that was broken, or that it did not come to pass in this time.
    pub fn run_until(
        &mut self,
        limit: Duration,
        done: impl Fn(&World) -> bool,
    ) -> Result<(), String> {
        let end = self.now + limit;
        self.clients_may_run();
        while !done(self) {
            if self.now > end || !self.turn() {
                return Err(format!("nothing came of it in {limit:?}: calls hang"));
            }
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
        }
        Ok(())
    }

    /// Lets time go on.
    ///
    /// # Errors
    /// A rule that was broken.
    pub fn run_for(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now + time;
        while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= end) {
            self.turn();
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
        }
        self.now = end;
        self.set_clock();
        Ok(())
    }

    /// The next event; false if there is none.
    fn turn(&mut self) -> bool {
        let Some(((at, _), event)) = self.queue.pop_first() else { return false };
        self.now = at;
        self.set_clock();
        match event {
            Event::Arrives { conn, frame, late } => self.arrives(conn, frame, late),
            Event::Executes { conn, frame } => self.executes(conn, frame),
            Event::Answers { conn, frame } => self.answers(conn, frame),
            Event::Fails(key, error) => self.end_call(key, Err(error)),
            Event::Step(id, life) => self.step(id, life),
            Event::Flushed(id, life) => self.flushed(id, life),
            Event::Wake(id, life) => self.wake(id, life),
            Event::Start(id) => self.start(id),
            Event::Woken(promise) => {
                if !promise.is_abandoned() {
                    promise.complete();
                    self.clients_may_run();
                }
            }
            Event::Fault(at) => self.strike(at),
            Event::Change(at) => self.change(at),
            Event::Recover(id) => self.node_mut(id).slowness = 1,
            Event::Calm => {
                self.net.loss_ppm = 0;
                self.net.double_ppm = 0;
                self.net.spikes_ppm = 0;
            }
        }
        true
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node of the world")
    }

    /// Polls the clients' tasks and takes what they ask for.
    pub fn clients_may_run(&mut self) {
        self.executor.run_until_stalled();
        while self.config.faults.get(self.struck).is_some_and(|f| f.0 <= self.progress.get()) {
            let at = self.after_us(0, 3_000);
            self.schedule(at, Event::Fault(self.struck));
            self.struck += 1;
        }
        self.changes_due();
        let wanted = self.desk.take();
        for (at, promise) in wanted.sleeps {
            self.schedule(at, Event::Woken(promise));
        }
        for call in wanted.calls {
            self.client_calls(call);
        }
    }

    /// Gives a directory a policy, before clients come, whatever goes wrong meanwhile.
    ///
    /// # Errors
    /// What the coordinator says against it.
    pub fn set_policy(&mut self, at: &At, pairs: &[(&str, &str)]) -> Result<u64, String> {
        // Clients draw theirs from the same seed: this must be none of them.
        let session = !(self.rng.u64() | 1);
        let mut outcome = Err(String::new());
        for _ in 0..POLICY_ATTEMPTS {
            outcome = self.try_set_policy(session, at, pairs);
            if outcome.is_ok() {
                break;
            }
            self.run_for(POLICY_PAUSE)?;
        }
        outcome
    }

    fn try_set_policy(
        &mut self,
        session: u64,
        at: &At,
        pairs: &[(&str, &str)],
    ) -> Result<u64, String> {
        let to = NodeId::Coordinator;
        self.ask::<Empty>(to, Op::OpenSession, &SessionReq { session })?;
        let ctx = Ctx { cred: Cred::root(), session, seq: 1, ack: 1, ..Ctx::default() };
        let pair = |(key, value): &(&str, &str)| PolicyPair {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        let pairs = pairs.iter().map(pair).collect();
        let answer =
            self.ask_raw(to, Op::SetPolicy, &SetPolicyReq { ctx, at: at.clone(), pairs })?;
        let reply: Result<SetPolicyReply, _> = decode_reply(Ok(answer));
        let policy = reply.map_err(|error| error.to_string())?.policy;
        self.may_lose_answers |= PolicyId(policy).may_delay_flush();
        Ok(policy)
    }

    // ---- checkers -------------------------------------------------------------------------

    /// Asks a node, as the checkers do, until it answers.
    ///
    /// # Errors
    /// If it does not.
    pub fn ask<A: prost::Message + Default>(
        &mut self,
        to: NodeId,
        op: Op,
        body: &impl prost::Message,
    ) -> Result<A, String> {
        A::decode(self.ask_raw(to, op, body)?.body).map_err(|e| e.to_string())
    }

    /// The same with the whole answer.
    ///
    /// # Errors
    /// If there is none.
    pub fn ask_raw(
        &mut self,
        to: NodeId,
        op: Op,
        body: &impl prost::Message,
    ) -> Result<Frame, String> {
        let (promise, call) = saker_rpc::Call::new();
        let frame = Frame::request(op as u16, 0, body.encode_to_vec().into(), Bytes::new());
        let answer = std::rc::Rc::new(std::cell::RefCell::new(None));
        let kept = answer.clone();
        self.executor.spawn(async move { *kept.borrow_mut() = Some(call.await) });
        let deadline = self.now + Duration::from_secs(5);
        let to = (to, self.nodes[&to].machine);
        self.client_calls(NewCall { client: OBSERVER, to, frame, deadline, promise });
        self.run_until(Duration::from_secs(10), |_| answer.borrow().is_some())?;
        let answer = answer.borrow_mut().take();
        answer.and_then(Result::ok).ok_or_else(|| format!("{} does not answer", to.0))
    }
}
