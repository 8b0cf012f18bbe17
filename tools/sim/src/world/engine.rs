//! The loop: the next event in simulated time, what it does, what follows from it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use saker_rpc::client::{CallSlot, SleepSlot};
use saker_rpc::frame::Frame;
use saker_rpc::{CallError, CallId, Input, Outgoing, RoleKind};
use saker_runtime::rand::Rng;
use saker_runtime::sim;
use saker_runtime::task::Executor;
use saker_runtime::time::Time;
use saker_types::NodeId;
use saker_types::wire::{Ctx, Op, OpenReq};

use super::Config;
use super::faults::Fault;
use super::log::Log;
use super::net::{Net, Who};
use super::node::{Cluster, Death, Node, frame_bytes};
use super::transport::{Desk, NewCall};
use crate::roles::{self, EPOCH_NS};

/// Messages of the checkers' own client.
pub const OBSERVER: usize = usize::MAX;

/// Who asked, in which life, and the number of the call.
type Key = (Who, u64, u64);

/// A call without an answer.
struct Pending {
    conn: Option<usize>,
    slot: Option<CallSlot>,
}

enum Event {
    Arrives { conn: usize, frame: Frame, late: bool },
    Answers { conn: usize, frame: Frame },
    Fails(Key, CallError),
    Step(NodeId, u64),
    Flushed(NodeId, u64),
    Wake(NodeId, u64),
    Start(NodeId),
    Woken(SleepSlot),
    Fault(usize),
    Recover(NodeId),
    Calm,
}

/// The cluster, its clients, and everything between them.
pub struct World {
    pub now: Time,
    pub log: Log,
    pub rng: Rng,
    pub desk: Desk,
    pub executor: Executor,
    /// Calls that clients have made.
    pub progress: Rc<Cell<usize>>,
    /// Faults that have struck.
    struck: usize,
    pub crashes: u64,
    config: Config,
    cluster: Cluster,
    nodes: BTreeMap<NodeId, Node>,
    net: Net,
    queue: BTreeMap<(Time, u64), Event>,
    events: u64,
    pending: BTreeMap<Key, Pending>,
    calls: u64,
    /// Mutations that were executed with success: what was answered.
    results: BTreeMap<(u64, u64), Bytes>,
    /// (session, number) of mutations by (connection, call).
    asked: BTreeMap<(usize, u64), (u64, u64)>,
    /// A rule that was seen broken.
    broken: Option<String>,
}

impl World {
    /// A new cluster, all up.
    ///
    /// # Panics
    /// If a node does not start from an empty disk.
    pub fn new(config: Config) -> World {
        let members = roles::members(u32::from(config.shards), 1, config.inline_max);
        let map = Arc::new(roles::first_map(&members));
        let limits = config.limits.clone();
        let segment_bytes = config.segment_bytes;
        let mut world = World {
            now: Time::from_ns(1_000_000_000),
            log: Log::new(config.readable),
            rng: Rng::seeded(config.seed),
            desk: Desk::default(),
            executor: Executor::new(),
            progress: Rc::default(),
            struck: 0,
            crashes: 0,
            cluster: Cluster { members, map, limits, segment_bytes },
            nodes: BTreeMap::new(),
            net: Net::new(),
            queue: BTreeMap::new(),
            events: 0,
            pending: BTreeMap::new(),
            calls: 0,
            results: BTreeMap::new(),
            asked: BTreeMap::new(),
            broken: None,
            config,
        };
        world.set_clock();
        let shards = (0..world.config.shards).map(NodeId::Shard);
        let ids: Vec<NodeId> =
            [NodeId::Coordinator].into_iter().chain(shards).chain([NodeId::Store(0)]).collect();
        for id in ids {
            let node = Node::new(id);
            if id == NodeId::Coordinator {
                roles::write_map(node.disk.dir(), &world.cluster.map);
                node.disk.plan().done = 0;
            }
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
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All shards.
    pub fn shards(&self) -> Vec<NodeId> {
        (0..self.config.shards).map(NodeId::Shard).collect()
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
        sim::set_time(self.now, EPOCH_NS + self.now.as_ns() as i64);
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
            Event::Answers { conn, frame } => self.answers(conn, frame),
            Event::Fails(key, error) => self.end_call(key, Err(error)),
            Event::Step(id, life) => self.step(id, life),
            Event::Flushed(id, life) => self.flushed(id, life),
            Event::Wake(id, life) => self.wake(id, life),
            Event::Start(id) => self.start(id),
            Event::Woken(slot) => {
                if !slot.is_abandoned() {
                    slot.complete();
                    self.clients_may_run();
                }
            }
            Event::Fault(at) => self.strike(at),
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
        let wanted = self.desk.take();
        for (at, slot) in wanted.sleeps {
            self.schedule(at, Event::Woken(slot));
        }
        for call in wanted.calls {
            self.client_calls(call);
        }
    }

    // ---- the network ----------------------------------------------------------------------

    fn client_calls(&mut self, call: NewCall) {
        let NewCall { client, to, mut frame, deadline, slot } = call;
        self.calls += 1;
        frame.call = self.calls;
        self.send(Who::Client(client), 0, to, frame, deadline, Some(slot));
    }

    fn send(
        &mut self,
        from: Who,
        life: u64,
        to: NodeId,
        frame: Frame,
        deadline: Time,
        slot: Option<CallSlot>,
    ) {
        let key = (from, life, frame.call);
        self.log.event(self.now, "asks", &frame_bytes(&frame), || {
            format!("{from:?} -> {to} {} #{}", describe(&frame), frame.call)
        });
        let (is_up, to_life) = (self.nodes[&to].is_up(), self.nodes[&to].life);
        self.schedule(deadline, Event::Fails(key, CallError::Timeout));
        if !is_up {
            self.pending.insert(key, Pending { conn: None, slot });
            let at = self.after_us(100, 2_000);
            return self.schedule(at, Event::Fails(key, CallError::Unreachable));
        }
        let conn = self.net.connect(from, life, to, to_life);
        self.pending.insert(key, Pending { conn: Some(conn), slot });
        if let Some(mutation) = mutation(&frame) {
            self.asked.insert((conn, frame.call), mutation);
        }
        let is_loop = from == Who::Node(to);
        if !is_loop && self.rng.chance(self.net.loss_ppm, 1_000_000) {
            if self.rng.chance(1, 2) {
                self.break_conn(conn);
            }
            return;
        }
        let doubled = !is_loop && self.rng.chance(self.net.double_ppm, 1_000_000);
        let at = self.net.arrival(conn, false, self.now, &mut self.rng);
        if doubled && op_of(&frame).is_some_and(is_retried) {
            let late = at + Duration::from_micros(self.rng.below(400_000));
            self.schedule(late, Event::Arrives { conn, frame: frame.clone(), late: true });
        }
        self.schedule(at, Event::Arrives { conn, frame, late: false });
    }

    fn arrives(&mut self, conn: usize, frame: Frame, late: bool) {
        let c = &self.net.conns[conn];
        let (to, to_life, open, lets_late) = (c.to, c.to_life, c.open, c.lets_late);
        let node = &self.nodes[&to];
        if !node.is_up() || node.life != to_life {
            return;
        }
        if !open && !late {
            if lets_late {
                let at = self.after_us(0, 1_500_000);
                self.schedule(at, Event::Arrives { conn, frame, late: true });
            }
            return;
        }
        self.log.event(self.now, "arrives", &frame_bytes(&frame), || {
            let lateness = if late { " late" } else { "" };
            format!("at {to} {} #{}{lateness}", describe(&frame), frame.call)
        });
        let peer = match self.net.conns[conn].from {
            Who::Node(id) => roles::hello_of(id),
            Who::Client(OBSERVER) => roles::hello(RoleKind::Tool, None),
            Who::Client(_) => roles::hello(RoleKind::Client, None),
        };
        if let NodeId::Store(_) = to {
            let slowness = node.slowness;
            if let Some(reply) = node.answer(&peer, frame) {
                let at = self.after_us(20 * slowness, 100);
                self.schedule(at, Event::Answers { conn, frame: reply });
            }
            return;
        }
        self.node_mut(to).receive(conn as u64, peer, frame);
        self.step_soon(to);
    }

    fn answers(&mut self, conn: usize, frame: Frame) {
        let c = &self.net.conns[conn];
        if !c.open {
            return;
        }
        let key = (c.from, c.from_life, frame.call);
        self.end_call(key, Ok(frame));
    }

    fn end_call(&mut self, key: Key, result: Result<Frame, CallError>) {
        let Some(Pending { slot, .. }) = self.pending.remove(&key) else { return };
        let bytes = result.as_ref().map_or_else(|_| Bytes::new(), frame_bytes);
        self.log.event(self.now, "ends", &bytes, || {
            let result = result.as_ref().map(|f| (f.status, describe(f)));
            format!("#{} of {:?}: {result:?}", key.2, key.0)
        });
        if let Some(slot) = slot {
            slot.complete(result);
            return self.clients_may_run();
        }
        let (Who::Node(id), life, call) = key else { return };
        let node = self.node_mut(id);
        if node.is_up() && node.life == life {
            node.inputs.push_back(Input::Reply { call: CallId(call), result });
            self.step_soon(id);
        }
    }

    fn break_conn(&mut self, conn: usize) {
        let lets_late = self.rng.chance(1, 2);
        let c = &mut self.net.conns[conn];
        if !c.open {
            return;
        }
        (c.open, c.lets_late) = (false, lets_late);
        let (to, to_life) = (c.to, c.to_life);
        let lost: Vec<Key> =
            self.pending.iter().filter(|(_, p)| p.conn == Some(conn)).map(|(k, _)| *k).collect();
        for key in lost {
            let at = self.after_us(10, 500);
            self.schedule(at, Event::Fails(key, CallError::Disconnected));
        }
        let node = self.node_mut(to);
        if node.is_up() && node.life == to_life {
            node.inputs.push_back(Input::Closed { conn: saker_rpc::ConnId(conn as u64) });
            self.step_soon(to);
        }
    }

    fn break_all(&mut self, id: NodeId) {
        let of = |c: &super::net::Conn| c.open && (c.to == id || c.from == Who::Node(id));
        let conns: Vec<usize> =
            (0..self.net.conns.len()).filter(|i| of(&self.net.conns[*i])).collect();
        conns.into_iter().for_each(|conn| self.break_conn(conn));
    }

    // ---- nodes ----------------------------------------------------------------------------

    fn step_soon(&mut self, id: NodeId) {
        let slowness = self.nodes[&id].slowness;
        let at = self.after_us(3 * slowness, 20 * slowness);
        let node = self.node_mut(id);
        if !std::mem::replace(&mut node.stepping, true) {
            let life = node.life;
            self.schedule(at, Event::Step(id, life));
        }
    }

    fn step(&mut self, id: NodeId, life: u64) {
        let now = self.now;
        let node = self.node_mut(id);
        if !node.is_up() || node.life != life {
            return;
        }
        node.stepping = false;
        if let Err(why) = node.step(now) {
            return self.node_dies(id, &why);
        }
        self.after_step(id);
    }

    /// Sends what may leave, begins a flush, sees to the next step.
    fn after_step(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        let (life, slowness) = (node.life, node.slowness);
        let said = node.said();
        said.into_iter().for_each(|said| self.say(id, life, said));
        match self.node_mut(id).begin_flush() {
            Err(why) => return self.node_dies(id, &why),
            Ok(true) => {
                let at = match self.rng.below(12) {
                    0 => self.after_us(5_000 * slowness, 20_000),
                    _ => self.after_us(80 * slowness, 400),
                };
                self.schedule(at, Event::Flushed(id, life));
            }
            Ok(false) => {}
        }
        self.wake_later(id);
    }

    fn flushed(&mut self, id: NodeId, life: u64) {
        let node = self.node_mut(id);
        if !node.is_up() || node.life != life {
            return;
        }
        if let Err(why) = node.end_flush() {
            return self.node_dies(id, &why);
        }
        self.after_step(id);
    }

    fn wake_later(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        let Some(at) = node.next_deadline() else { return };
        if node.wake_at.is_none_or(|known| at < known) {
            node.wake_at = Some(at);
            let life = node.life;
            self.schedule(at, Event::Wake(id, life));
        }
    }

    fn wake(&mut self, id: NodeId, life: u64) {
        let now = self.now;
        let node = self.node_mut(id);
        if !node.is_up() || node.life != life || node.wake_at.is_none_or(|at| at > now) {
            return;
        }
        node.wake_at = None;
        if node.next_deadline().is_some_and(|at| at <= now) {
            return self.step(id, life);
        }
        self.wake_later(id);
    }

    fn say(&mut self, id: NodeId, life: u64, said: Outgoing) {
        match said {
            Outgoing::Reply { conn, frame } => {
                let conn = conn.0 as usize;
                self.log.event(self.now, "answers", &frame_bytes(&frame), || {
                    format!("{id} {} status {} #{}", describe(&frame), frame.status, frame.call)
                });
                self.note_result(conn, &frame);
                if !self.net.conns[conn].open {
                    return;
                }
                if self.rng.chance(self.net.loss_ppm, 1_000_000) {
                    return self.break_conn(conn);
                }
                let at = self.net.arrival(conn, true, self.now, &mut self.rng);
                self.schedule(at, Event::Answers { conn, frame });
            }
            Outgoing::Call { to, frame, deadline, .. } => {
                let to = NodeId::from_u32(to.0).expect("roles call nodes of the map");
                self.send(Who::Node(id), life, to, frame, deadline, None);
            }
        }
    }

    /// All answers to one mutation are equal, whoever gives them.
    fn note_result(&mut self, conn: usize, frame: &Frame) {
        let Some(mutation) = self.asked.get(&(conn, frame.call)) else { return };
        if frame.status != 0 || !matches!(self.net.conns[conn].from, Who::Client(_)) {
            return;
        }
        let first = self.results.entry(*mutation).or_insert_with(|| frame.body.clone());
        if *first != frame.body {
            let op = describe(frame);
            self.broken =
                Some(format!("two answers to one mutation, {mutation:x?} ({op}): executed twice"));
        }
    }

    /// Nothing is left to check of retries: what is wrong is told at once.
    pub fn check_retries(&mut self) -> Result<(), String> {
        self.broken.take().map_or(Ok(()), Err)
    }

    // ---- life and death -------------------------------------------------------------------

    fn start(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).expect("a node of the world");
        if node.is_up() {
            return;
        }
        let started = node.start(&self.cluster, now);
        self.log.event(now, "starts", &[], || format!("{id}: {started:?}"));
        match started {
            Ok(()) => self.step_soon(id),
            Err(why) => {
                // What the plan of faults does not explain is a failure of recovery.
                let planned = why.contains("os error") || why.starts_with("at ");
                if !planned {
                    self.broken = Some(format!("{id} does not start: {why}"));
                }
                self.node_dies(id, &why);
            }
        }
    }

    /// A node found that it cannot go on, or passed an armed failpoint.
    fn node_dies(&mut self, id: NodeId, why: &str) {
        let death = match self.rng.below(4) {
            0 => Death::Killed,
            _ => Death::Powerless(self.rng.u64()),
        };
        let down = Duration::from_micros(self.rng.below(300_000));
        self.log.event(self.now, "cannot go on", &[], || format!("{id}: {why}"));
        self.crash(id, death, down);
    }

    fn crash(&mut self, id: NodeId, death: Death, down: Duration) {
        // A death that the disk decides is a loss of power.
        let dying = self.nodes[&id].disk.plan().dies_at.is_some();
        let death = if dying { Death::Powerless(self.rng.u64()) } else { death };
        self.crashes += 1;
        self.log.event(self.now, "dies", &[], || format!("{id}: {death:?}, for {down:?}"));
        self.break_all(id);
        self.pending.retain(|(who, _, _), _| *who != Who::Node(id));
        self.node_mut(id).die(death);
        let at = self.now + down;
        self.schedule(at, Event::Start(id));
    }

    fn everybody(&self) -> Vec<Who> {
        let clients = (0..self.config.clients).map(Who::Client);
        clients.chain(self.nodes.keys().map(|id| Who::Node(*id))).collect()
    }

    fn strike(&mut self, at: usize) {
        let fault = self.config.faults[at].1.clone();
        self.log.event(self.now, "fault", &[], || format!("{fault:?}"));
        match fault {
            Fault::Crash(id, death, down) => self.crash(id, death, down),
            Fault::CrashAt(name, nth) => sim::arm(name, nth),
            Fault::Cut { node, out, back, lasts } => {
                let until = self.now + lasts;
                for who in self.everybody() {
                    if out {
                        self.net.block(Who::Node(node), who, until);
                    }
                    if back {
                        self.net.block(who, Who::Node(node), until);
                    }
                }
            }
            Fault::OneWay { from, to, lasts } => self.net.block(from, to, self.now + lasts),
            Fault::Reset(id) => self.break_all(id),
            Fault::Slow(id, times, lasts) => {
                self.node_mut(id).slowness = times;
                self.schedule(self.now + lasts, Event::Recover(id));
            }
            Fault::Loss(ppm, lasts) => {
                self.net.loss_ppm = ppm;
                self.schedule(self.now + lasts, Event::Calm);
            }
            Fault::Double(ppm, lasts) => {
                self.net.double_ppm = ppm;
                self.schedule(self.now + lasts, Event::Calm);
            }
            Fault::Spikes(ppm, lasts) => {
                self.net.spikes_ppm = ppm;
                self.schedule(self.now + lasts, Event::Calm);
            }
            Fault::Clock(id, by) => self.node_mut(id).skew_ns += by,
            Fault::Disk(id, kind, errno, effect) => {
                self.node_mut(id).disk.plan().errors.push((kind, errno, effect));
            }
        }
    }

    /// Ends all faults.
    pub fn repair(&mut self) {
        self.net.heal();
        sim::arm("", u64::MAX);
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            let node = self.node_mut(id);
            node.slowness = 1;
            node.disk.plan().errors.clear();
            self.start(id);
        }
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
        let (slot, call) = saker_rpc::Call::new();
        let frame = Frame::request(op as u16, 0, body.encode_to_vec().into(), Bytes::new());
        let answer = std::rc::Rc::new(std::cell::RefCell::new(None));
        let kept = answer.clone();
        self.executor.spawn(async move { *kept.borrow_mut() = Some(call.await) });
        let deadline = self.now + Duration::from_secs(5);
        self.client_calls(NewCall { client: OBSERVER, to, frame, deadline, slot });
        self.run_until(Duration::from_secs(10), |_| answer.borrow().is_some())?;
        let answer = answer.borrow_mut().take();
        let frame = answer.and_then(Result::ok).ok_or_else(|| format!("{to} does not answer"))?;
        A::decode(frame.body).map_err(|e| e.to_string())
    }
}

fn op_of(frame: &Frame) -> Option<Op> {
    Op::from_u16(frame.op)
}

/// Operations that are sent again when there is no answer in time.
fn is_retried(op: Op) -> bool {
    let between = [Op::Decide, Op::Invalidate, Op::Fetch, Op::Collect, Op::Outcome];
    op.mutates() || between.contains(&op)
}

/// Session and number of a mutation, from its context (field 1 of each request).
fn mutation(frame: &Frame) -> Option<(u64, u64)> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Head {
        #[prost(message, required, tag = "1")]
        ctx: Ctx,
    }
    let op = op_of(frame)?;
    let truncates = || OpenReq::decode(frame.body.clone()).is_ok_and(|open| open.truncate);
    let is_mutation = op.mutates() || (op == Op::Open && truncates());
    if !is_mutation {
        return None;
    }
    let ctx = Head::decode(frame.body.clone()).ok()?.ctx;
    (ctx.seq > 0).then_some((ctx.session, ctx.seq))
}

fn describe(frame: &Frame) -> String {
    op_of(frame).map_or_else(|| "?".to_owned(), |op| op.name().to_owned())
}
