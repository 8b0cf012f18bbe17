//! Roles without sockets, on one thread of the process that asks them.
//!
//! [`LocalServers`] drives a few [`StateMachine`]s as [`Shell`](crate::Shell) does: it steps them with
//! batches of inputs, holds their messages back by a [`Gate`] each, flushes inline when there is nothing
//! else to do and somebody waits for it, else within [`LAG_MAX`](crate::node::lag::LAG_MAX) in the
//! background, and keeps their deadlines. Requests come through a queue from [`LocalTransport`], calls
//! among the roles are put from one to the other, and calls to other nodes go over sockets. Frames are
//! handed over as they are: nothing is encoded.
//!
//! The thread has a reactor of its own, and waits in its `block_on`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use rustc_hash::{FxHashMap, FxHashSet};
use saker_runtime::thread::{self, JoinHandle};
use saker_runtime::time::{self, Time};

use crate::client::busy_poll::BusyPoll;
use crate::client::{Call, CallPromise, LocalAnswer, LocalCall, Reactor, Sleep, Transport};
use crate::frame::Frame;
use crate::hello::{ClusterId, PROTOCOL_MAX, PeerHello, RoleKind};
use crate::node::lag::Lag;
use crate::node::{
    CallId, Conditions, ConnId, FlushDone, Gate, Input, Outbox, Outgoing, StateMachine,
};
use crate::{CallError, NodeNumber};

/// Inputs that a role is given in one step.
const BATCH_INPUTS_MAX: usize = 64;
/// Requests that wait for their turn; with more, callers are told to try again.
const QUEUE_MAX: usize = 64 << 10;
/// How often requests are looked through for those whose callers have given up.
const LOOK: Duration = Duration::from_secs(1);
/// The connection of clients. That of a role to the others is its index behind this.
const CLIENTS: ConnId = ConnId(0);

/// A role and how it is reached.
pub struct LocalNode {
    /// Its number: calls of the others to it come here.
    pub node: NodeNumber,
    /// What it is for them.
    pub role: RoleKind,
    /// Where clients of this process ask for it. Nothing listens there.
    pub addr: SocketAddr,
    /// The role.
    pub machine: Box<dyn StateMachine>,
}

/// When the records of roles are flushed.
#[derive(Clone, Copy, Debug)]
pub enum Flushes {
    /// As the roles say: at once, or within [`LAG_MAX`](crate::node::lag::LAG_MAX).
    Roles,
    /// Later. Until then records are in the memory of this process, and replies to clients and among the
    /// roles wait for nothing.
    Later(Later),
}

/// When records are flushed that are in memory only.
#[derive(Clone, Copy, Debug)]
pub struct Later {
    /// After this time, and durable within [`LAG_MAX`](crate::node::lag::LAG_MAX): where that is not so,
    /// replies wait.
    pub after: Option<Duration>,
    /// When there are so many bytes of them.
    pub bytes_max: u64,
    /// Operations of clients whose replies wait until all is durable.
    pub durable_ops: &'static [u16],
}

/// What is to be said when something was done.
type Say = Box<dyn FnOnce()>;
type Does<S> = Box<dyn FnOnce(&mut S) -> Say + Send>;

/// Something that is done on the roles' thread.
struct Work<S> {
    does: Does<S>,
    /// It is not said before it is durable.
    is_durable: bool,
}

/// A request of a client.
struct LocalRequest {
    to: usize,
    frame: Frame,
    asked: Asked,
}

/// Who waits for a reply.
struct Asked {
    promise: CallPromise,
    deadline: Time,
    /// Lets its thread look for the reply.
    _busy: LocalCall,
}

struct Queue<S> {
    requests: VecDeque<LocalRequest>,
    works: Vec<Work<S>>,
    /// Requests are not taken.
    is_paused: bool,
    /// To be told when all that were taken are answered.
    when_idle: Vec<Box<dyn FnOnce() + Send>>,
    /// The thread is to end.
    stops: bool,
    /// The thread takes no more.
    is_closed: bool,
    /// To be called, with the reason, when it has ended by itself.
    when_dead: Option<WhenDead>,
}

type WhenDead = Box<dyn FnOnce(&str) + Send>;

/// What the thread and those who ask it share.
struct Inbox<S> {
    queue: Mutex<Queue<S>>,
    /// Something was put there, or a flush has ended.
    has_news: AtomicBool,
    waker: AtomicWaker,
}

impl<S> Inbox<S> {
    fn lock(&self) -> MutexGuard<'_, Queue<S>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        if !self.has_news.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        let (requests, works) =
            (std::mem::take(&mut queue.requests), std::mem::take(&mut queue.works));
        let when_idle = std::mem::take(&mut queue.when_idle);
        drop(queue);
        drop((works, when_idle));
        for LocalRequest { asked, .. } in requests {
            asked.promise.complete(Err(CallError::Ended));
        }
    }
}

/// Roles on a thread, with a state of `S` beside them that [`LocalServers::run`] works with. Dropping it
/// ends the thread, after what the roles have appended is durable and said.
pub struct LocalServers<S: 'static> {
    inbox: Arc<Inbox<S>>,
    addrs: Arc<[SocketAddr]>,
    thread: Option<JoinHandle<()>>,
}

impl<S: 'static> LocalServers<S> {
    /// Starts a thread, on which `begin` makes the roles and the state; returns when it has. Calls to
    /// other nodes go over a sibling of `reactor`.
    ///
    /// # Errors
    /// That of `begin`; the system's, when it has no room for a thread or a poll.
    pub fn start<F>(
        name: &str,
        reactor: &Arc<Reactor>,
        cluster: ClusterId,
        begin: F,
    ) -> io::Result<LocalServers<S>>
    where
        F: FnOnce() -> io::Result<(Vec<LocalNode>, S)> + Send + 'static,
    {
        LocalServers::start_flushing(name, reactor, cluster, Flushes::Roles, begin)
    }

    /// The same, with records that are flushed as `flushes` says.
    ///
    /// # Errors
    /// As [`LocalServers::start`].
    pub fn start_flushing<F>(
        name: &str,
        reactor: &Arc<Reactor>,
        cluster: ClusterId,
        flushes: Flushes,
        begin: F,
    ) -> io::Result<LocalServers<S>>
    where
        F: FnOnce() -> io::Result<(Vec<LocalNode>, S)> + Send + 'static,
    {
        let reactor = reactor.sibling()?;
        let queue = Queue {
            requests: VecDeque::new(),
            works: Vec::new(),
            is_paused: false,
            when_idle: Vec::new(),
            stops: false,
            is_closed: false,
            when_dead: None,
        };
        let inbox = Arc::new(Inbox {
            queue: Mutex::new(queue),
            has_news: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        let (begun, started) = std::sync::mpsc::channel();
        let shared = inbox.clone();
        let thread = thread::spawn(name, move || {
            let mut closes =
                CloseAtEnd { inbox: &shared, why: "their thread has panicked".to_owned() };
            match begin() {
                Err(error) => _ = begun.send(Err(error)),
                Ok((nodes, state)) => {
                    let addrs: Arc<[SocketAddr]> = nodes.iter().map(|node| node.addr).collect();
                    _ = begun.send(Ok(addrs));
                    let mut local = Local::new(&shared, &reactor, cluster, nodes, state);
                    local.flushes = flushes;
                    let served = reactor.block_on(local.run());
                    closes.why.clear();
                    if let Err(error) = served {
                        tracing::error!("servers in this process have ended: {error}");
                        closes.why = error.to_string();
                    }
                }
            }
            drop(closes);
        })?;
        let died = |_| io::Error::other("the thread of the servers has died");
        let addrs = started.recv().map_err(died)??;
        Ok(LocalServers { inbox, addrs, thread: Some(thread) })
    }

    /// How clients of this process ask these roles; what is for others they send by `reactor`.
    pub fn transport(&self, reactor: Arc<Reactor>) -> LocalTransport<S> {
        LocalTransport { inbox: self.inbox.clone(), addrs: self.addrs.clone(), reactor }
    }

    /// Requests wait from now on, and are not looked at, until [`LocalServers::resume`]. Ends when all that were
    /// looked at before are answered. Works are done.
    pub fn pause(&self) -> LocalAnswer<()> {
        let (promise, answer) = LocalAnswer::new();
        let mut queue = self.inbox.lock();
        if !queue.is_closed {
            queue.is_paused = true;
            queue.when_idle.push(Box::new(move || promise.complete(())));
            drop(queue);
            self.inbox.tell();
        }
        answer
    }

    /// Those that wait have their turn.
    pub fn resume(&self) {
        self.inbox.lock().is_paused = false;
        self.inbox.tell();
    }

    /// Ends the thread as dropping this does, without waiting for it. Whoever waits, or asks from now on, is
    /// told that nobody is there.
    pub fn end(&self) {
        self.inbox.lock().stops = true;
        self.inbox.close();
        self.inbox.tell();
    }

    /// Calls this when the thread ends although nobody has said that it shall, with the reason.
    pub fn when_dead(&self, call: impl FnOnce(&str) + Send + 'static) {
        let mut queue = self.inbox.lock();
        if !queue.is_closed {
            queue.when_dead = Some(Box::new(call));
        } else if !queue.stops {
            drop(queue);
            call("their thread has ended");
        }
    }

    /// Does something on the thread, between two steps. Ends when what it has appended to journals is
    /// durable; with `None` if the thread has died.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> LocalAnswer<T> {
        self.put(work, true)
    }

    /// The same, but that it does not wait for records that are flushed later.
    pub fn run_early<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> LocalAnswer<T> {
        self.put(work, false)
    }

    fn put<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> T + Send + 'static,
        is_durable: bool,
    ) -> LocalAnswer<T> {
        let (promise, answer) = LocalAnswer::new();
        let does: Does<S> = Box::new(move |state| {
            let result = work(state);
            Box::new(move || promise.complete(result))
        });
        let work = Work { does, is_durable };
        let mut queue = self.inbox.lock();
        if !queue.is_closed {
            queue.works.push(work);
            drop(queue);
            self.inbox.tell();
        }
        answer
    }
}

impl<S: 'static> Drop for LocalServers<S> {
    fn drop(&mut self) {
        self.inbox.lock().stops = true;
        self.inbox.tell();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of servers in this process has panicked");
        }
    }
}

/// Nobody waits for a thread that has ended, whatever ended it.
struct CloseAtEnd<'a, S> {
    inbox: &'a Inbox<S>,
    /// Why it ends; empty: it was told to.
    why: String,
}

impl<S> Drop for CloseAtEnd<'_, S> {
    fn drop(&mut self) {
        self.inbox.close();
        let when_dead = self.inbox.lock().when_dead.take();
        if let Some(when_dead) = when_dead.filter(|_| !self.why.is_empty()) {
            when_dead(&self.why);
        }
    }
}

/// Asks roles of this process, and others over sockets.
pub struct LocalTransport<S: 'static> {
    inbox: Arc<Inbox<S>>,
    addrs: Arc<[SocketAddr]>,
    reactor: Arc<Reactor>,
}

impl<S: 'static> LocalTransport<S> {
    fn ask(&self, to: usize, frame: Frame, timeout: Duration) -> Call {
        let (promise, call) = Call::new();
        if !frame.fits() {
            promise.complete(Err(CallError::TooLarge));
            return call;
        }
        let busy = self.reactor.with_local(Reactor::begin_local_call);
        let asked = Asked { promise, deadline: time::now() + timeout, _busy: busy };
        let mut queue = self.inbox.lock();
        if queue.is_closed || queue.requests.len() >= QUEUE_MAX {
            let error = match queue.is_closed {
                true => CallError::Ended,
                false => CallError::Overloaded,
            };
            drop(queue);
            asked.promise.complete(Err(error));
            return call;
        }
        queue.requests.push_back(LocalRequest { to, frame, asked });
        drop(queue);
        self.inbox.tell();
        call
    }
}

impl<S: 'static> Transport for LocalTransport<S> {
    fn call(
        &self,
        to: SocketAddr,
        op: u16,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        timeout: Duration,
    ) -> Call {
        match self.addrs.iter().position(|addr| *addr == to) {
            Some(node) => self.ask(node, Frame::request(op, trace, body, payload), timeout),
            None => {
                self.reactor.with_local(|local| local.call(to, op, trace, body, payload, timeout))
            }
        }
    }

    fn sleep(&self, time: Duration) -> Sleep {
        self.reactor.with_local(|local| local.sleep(time))
    }
}

/// A role that is driven.
struct Driven {
    node: NodeNumber,
    machine: Box<dyn StateMachine>,
    /// Who it is for the others.
    peer: Rc<PeerHello>,
    inputs: VecDeque<Input>,
    outbox: Outbox,
    gate: Gate<Outgoing>,
    lag: Lag,
    flushing: bool,
    flushed: Arc<AtomicBool>,
}

impl Driven {
    fn is_durable(&self) -> bool {
        self.machine.durable() >= self.machine.appended()
    }

    /// How far things have come, for messages. Where the disk has not kept up, what was written does
    /// not count.
    fn reached(&self) -> Conditions {
        let reached = self.machine.reached();
        let is_over = self.lag.is_over(time::now());
        Conditions { written: if is_over { reached.durable } else { reached.written }, ..reached }
    }

    /// When records must be flushed that nobody waits for, unless that is under way.
    fn flush_due(&self, flushes: &Flushes) -> Option<Time> {
        let due = match flushes {
            Flushes::Roles => self.lag.flush_due(),
            Flushes::Later(Later { after, .. }) => self.lag.due_after((*after)?),
        };
        due.filter(|_| !self.flushing)
    }
}

impl Later {
    /// Does a message wait until what it depends on is durable? What others do on the word of a role they do
    /// not undo. And no more is answered than what is soon durable, if it is to be.
    fn waits(&self, message: &Outgoing, here: &[NodeNumber], lag: Lag, now: Time) -> bool {
        match message {
            Outgoing::Reply { conn: CLIENTS, frame } => {
                let is_late = self.after.is_some() && lag.is_over(now);
                is_late || self.durable_ops.contains(&frame.op)
            }
            Outgoing::Reply { .. } => false,
            Outgoing::Call { to, .. } => !here.contains(to),
        }
    }
}

/// A call of a role to a node elsewhere.
struct OutsideCall {
    of: usize,
    call: CallId,
    reply: Call,
}

/// The loop.
struct Local<'a, S> {
    inbox: &'a Arc<Inbox<S>>,
    reactor: &'a Arc<Reactor>,
    client: Rc<PeerHello>,
    nodes: Vec<Driven>,
    /// Their numbers.
    here: Vec<NodeNumber>,
    flushes: Flushes,
    /// What waits until records up to these are durable.
    unsaid: Vec<(Vec<u64>, Say)>,
    state: S,
    /// Requests of clients, by their numbers.
    asked: FxHashMap<u64, Asked>,
    requests: u64,
    /// Calls of roles that have not ended, and when they do at the latest.
    calls: FxHashSet<(usize, CallId)>,
    deadlines: BinaryHeap<Reverse<(Time, usize, CallId)>>,
    outside: Vec<OutsideCall>,
    /// Ends at this time.
    sleep: Option<(Time, Sleep)>,
    looked: Time,
    busy_poll: BusyPoll,
}

fn peer(role: RoleKind, node: NodeNumber, cluster: ClusterId) -> Rc<PeerHello> {
    Rc::new(PeerHello {
        protocol: PROTOCOL_MAX,
        cluster: Some(cluster),
        role,
        node,
        session: 0,
        map_version: 0,
        features: 0,
        ip: None,
    })
}

impl<'a, S: 'static> Local<'a, S> {
    fn new(
        inbox: &'a Arc<Inbox<S>>,
        reactor: &'a Arc<Reactor>,
        cluster: ClusterId,
        nodes: Vec<LocalNode>,
        state: S,
    ) -> Local<'a, S> {
        let nodes = nodes.into_iter().map(|LocalNode { node, role, machine, .. }| Driven {
            node,
            machine,
            peer: peer(role, node, cluster),
            inputs: VecDeque::new(),
            outbox: Outbox::new(),
            gate: Gate::new(),
            lag: Lag::default(),
            flushing: false,
            flushed: Arc::default(),
        });
        let nodes: Vec<Driven> = nodes.collect();
        Local {
            inbox,
            reactor,
            client: peer(RoleKind::Client, NodeNumber::NONE, cluster),
            here: nodes.iter().map(|node| node.node).collect(),
            nodes,
            flushes: Flushes::Roles,
            unsaid: Vec::new(),
            state,
            asked: FxHashMap::default(),
            requests: 0,
            calls: FxHashSet::default(),
            deadlines: BinaryHeap::new(),
            outside: Vec::new(),
            sleep: None,
            looked: time::now(),
            busy_poll: BusyPoll::default(),
        }
    }

    async fn run(mut self) -> io::Result<()> {
        let now = time::now();
        // The first step: a role may have something to do or say before anybody asks.
        (0..self.nodes.len()).for_each(|node| self.step(node, now));
        loop {
            self.write()?;
            self.flush()?;
            if !self.unsaid.is_empty() {
                self.say();
            }
            if !self.outside.is_empty() {
                self.look_outside().await;
            }
            if !self.has_input() {
                self.wait().await;
            }
            self.finish_flushes()?;
            if self.take()? {
                return self.finish();
            }
            let now = time::now();
            self.ring(now);
            for node in 0..self.nodes.len() {
                let Driven { machine, inputs, .. } = &self.nodes[node];
                if !inputs.is_empty() || machine.next_deadline().is_some_and(|at| at <= now) {
                    self.step(node, now);
                    self.nodes[node].machine.check()?;
                }
            }
        }
    }

    /// Is there something to do without waiting?
    fn has_input(&self) -> bool {
        self.inbox.has_news.load(Ordering::Acquire)
            || self.nodes.iter().any(|node| !node.inputs.is_empty())
    }

    /// Takes what was asked, as much as one step may have, and does what is to be done between steps. True:
    /// the thread is to end.
    fn take(&mut self) -> io::Result<bool> {
        if !self.inbox.has_news.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        let mut queue = self.inbox.lock();
        let (works, stops) = (std::mem::take(&mut queue.works), queue.stops);
        let count = if queue.is_paused { 0 } else { queue.requests.len().min(BATCH_INPUTS_MAX) };
        for LocalRequest { to, frame, asked } in queue.requests.drain(..count) {
            self.requests += 1;
            let frame = Frame { call: self.requests, ..frame };
            self.asked.insert(self.requests, asked);
            let peer = self.client.clone();
            self.nodes[to].inputs.push_back(Input::Request { conn: CLIENTS, peer, frame });
        }
        if !queue.requests.is_empty() && !queue.is_paused {
            self.inbox.has_news.store(true, Ordering::Release);
        }
        let is_idle = queue.is_paused && self.asked.is_empty();
        let idle = if is_idle { std::mem::take(&mut queue.when_idle) } else { Vec::new() };
        drop(queue);
        idle.into_iter().for_each(|tell| tell());
        if !works.is_empty() {
            let said: Vec<(bool, Say)> = works
                .into_iter()
                .map(|Work { does, is_durable }| (is_durable, does(&mut self.state)))
                .collect();
            let (now, is_later) = (time::now(), matches!(self.flushes, Flushes::Later(_)));
            for node in 0..self.nodes.len() {
                self.step(node, now);
                self.nodes[node].machine.check()?;
                if !is_later {
                    self.flush_now(node)?;
                }
            }
            let appended: Vec<u64> =
                self.nodes.iter().map(|node| node.machine.appended()).collect();
            for (is_durable, say) in said {
                match is_later && is_durable {
                    true => self.unsaid.push((appended.clone(), say)),
                    false => say(),
                }
            }
        }
        Ok(stops)
    }

    fn step(&mut self, node: usize, now: Time) {
        let driven = &mut self.nodes[node];
        let Driven { machine, inputs, outbox, gate, lag, .. } = driven;
        machine.step(now, time::wall_ns(), inputs, outbox);
        // Nobody says hello here, and clients are held back by the queue.
        _ = outbox.take_hello();
        outbox.take_paused().for_each(drop);
        let (durable, written) = (machine.conditions(), machine.conditions_when_written());
        for (after, message) in outbox.drain(durable, written) {
            let waits = match self.flushes {
                Flushes::Roles => true,
                Flushes::Later(later) => later.waits(&message, &self.here, *lag, now),
            };
            let after = if waits { after } else { Conditions::NONE };
            if let Outgoing::Call { call, deadline, .. } = &message {
                self.calls.insert((node, *call));
                self.deadlines.push(Reverse((*deadline, node, *call)));
            }
            gate.push(after, message);
        }
        driven.lag.look(now, driven.is_durable());
        self.release(node);
    }

    /// Has records survive this process, if that is all that a message waits for.
    fn write(&mut self) -> io::Result<()> {
        for node in 0..self.nodes.len() {
            let driven = &mut self.nodes[node];
            if driven.gate.waits_for_write(&driven.reached()) {
                driven.machine.write()?;
                self.release(node);
            }
        }
        Ok(())
    }

    /// Makes journals durable: here if nothing else is to be done and somebody waits for it, else in the
    /// background. What is flushed later is always so in the background.
    fn flush(&mut self) -> io::Result<()> {
        for node in 0..self.nodes.len() {
            let driven = &self.nodes[node];
            if driven.flushing || driven.is_durable() {
                continue;
            }
            let Driven { machine, gate, .. } = driven;
            let waits = gate.waits_for_flush(&machine.reached());
            let (is_awaited, is_here) = match self.flushes {
                Flushes::Roles => {
                    let is_awaited = waits || machine.durable() < machine.flushed_at_once();
                    (is_awaited, !self.has_input())
                }
                Flushes::Later(Later { bytes_max, .. }) => {
                    let is_full = machine.appended() - machine.durable() >= bytes_max;
                    (waits || is_full || !self.unsaid.is_empty(), false)
                }
            };
            let due = driven.flush_due(&self.flushes);
            if !is_awaited && due.is_none_or(|due| time::now() < due) {
                continue;
            }
            if is_awaited && is_here {
                self.flush_now(node)?;
                continue;
            }
            let inbox = self.inbox.clone();
            let Driven { machine, lag, flushing, flushed, .. } = &mut self.nodes[node];
            *flushing = true;
            lag.flush_begins(time::now());
            let flushed = flushed.clone();
            machine.flush_begin(FlushDone::new(move || {
                flushed.store(true, Ordering::Release);
                inbox.tell();
            }))?;
        }
        Ok(())
    }

    fn flush_now(&mut self, node: usize) -> io::Result<()> {
        let driven = &mut self.nodes[node];
        if driven.flushing {
            driven.machine.flush_finish()?;
            driven.flushing = false;
            // That one may yet tell its end.
            driven.flushed = Arc::default();
        }
        if !driven.is_durable() {
            driven.machine.flush()?;
        }
        driven.lag.flush_ends(time::now(), true);
        self.release(node);
        Ok(())
    }

    fn finish_flushes(&mut self) -> io::Result<()> {
        for node in 0..self.nodes.len() {
            let driven = &mut self.nodes[node];
            if driven.flushing && driven.flushed.swap(false, Ordering::Acquire) {
                driven.flushing = false;
                driven.machine.flush_finish()?;
                driven.lag.flush_ends(time::now(), driven.is_durable());
                self.release(node);
            }
        }
        Ok(())
    }

    /// Says what is durable by now.
    fn say(&mut self) {
        let durable: Vec<u64> = self.nodes.iter().map(|node| node.machine.durable()).collect();
        let is_durable = |(until, _): &mut (Vec<u64>, Say)| {
            until.iter().zip(&durable).all(|(until, durable)| until <= durable)
        };
        let said: Vec<_> = self.unsaid.extract_if(.., is_durable).collect();
        said.into_iter().for_each(|(_, say)| say());
    }

    /// Sends what need not wait any more.
    fn release(&mut self, node: usize) {
        let reached = self.nodes[node].reached();
        while let Some(message) = self.nodes[node].gate.pop(&reached) {
            match message {
                Outgoing::Reply { conn: CLIENTS, frame } => {
                    if let Some(asked) = self.asked.remove(&frame.call) {
                        asked.promise.complete(Ok(frame));
                    }
                    if self.asked.is_empty() && self.inbox.lock().is_paused {
                        self.inbox.tell();
                    }
                }
                Outgoing::Reply { conn, frame } => {
                    self.end_call(conn.0 as usize - 1, CallId(frame.call), Ok(frame));
                }
                Outgoing::Call { call, to, frame, deadline } => {
                    self.send_call(node, call, to, frame, deadline);
                }
            }
        }
    }

    fn send_call(&mut self, of: usize, call: CallId, to: NodeNumber, frame: Frame, deadline: Time) {
        if !self.calls.contains(&(of, call)) {
            return; // It has timed out while it waited for the journal.
        }
        if !frame.fits() {
            return self.end_call(of, call, Err(CallError::TooLarge));
        }
        if let Some(at) = self.nodes.iter().position(|node| node.node == to) {
            let (conn, peer) = (ConnId(of as u64 + 1), self.nodes[of].peer.clone());
            return self.nodes[at].inputs.push_back(Input::Request { conn, peer, frame });
        }
        let Some(addr) = self.nodes[of].machine.address(to) else {
            return self.end_call(of, call, Err(CallError::Unreachable));
        };
        let Frame { op, trace, body, payload, .. } = frame;
        let reply = self.reactor.call(addr, op, trace, body, payload, deadline - time::now());
        self.outside.push(OutsideCall { of, call, reply });
    }

    fn end_call(&mut self, of: usize, call: CallId, result: Result<Frame, CallError>) {
        if self.calls.remove(&(of, call)) {
            self.nodes[of].inputs.push_back(Input::Reply { call, result });
        }
    }

    /// Ends calls and requests whose time is over.
    fn ring(&mut self, now: Time) {
        while let Some(Reverse((at, of, call))) = self.deadlines.peek().copied()
            && at <= now
        {
            self.deadlines.pop();
            self.end_call(of, call, Err(CallError::Timeout));
        }
        if self.calls.is_empty() {
            self.deadlines.clear();
        }
        if now.since(self.looked) >= LOOK {
            self.looked = now;
            let late: Vec<u64> = self
                .asked
                .iter()
                .filter(|(_, asked)| asked.deadline <= now)
                .map(|(request, _)| *request)
                .collect();
            for asked in late.iter().filter_map(|request| self.asked.remove(request)) {
                asked.promise.complete(Err(CallError::Timeout));
            }
            if self.asked.is_empty() {
                self.inbox.tell();
            }
        }
    }

    /// Takes replies from elsewhere, and lets sockets have a turn.
    async fn look_outside(&mut self) {
        let mut has_yielded = false;
        poll_fn(|cx| {
            let any = self.poll_outside(cx);
            if any || std::mem::replace(&mut has_yielded, true) || !self.has_input() {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Takes replies from elsewhere; were there any?
    fn poll_outside(&mut self, cx: &mut Context<'_>) -> bool {
        let mut ended = Vec::new();
        let mut at = 0;
        while let Some(OutsideCall { reply, .. }) = self.outside.get_mut(at) {
            match Pin::new(reply).poll(cx) {
                Poll::Ready(result) => {
                    let OutsideCall { of, call, .. } = self.outside.swap_remove(at);
                    ended.push((of, call, result));
                }
                Poll::Pending => at += 1,
            }
        }
        let any = !ended.is_empty();
        ended.into_iter().for_each(|(of, call, result)| self.end_call(of, call, result));
        any
    }

    /// Waits until there is something to do.
    async fn wait(&mut self) {
        if self.busy_poll.is_due(1) {
            let looks = || Ok(self.inbox.has_news.load(Ordering::Acquire));
            if self.outside.is_empty() && matches!(self.busy_poll.run(looks), Ok(true)) {
                return;
            }
        }
        let roles = self.nodes.iter().filter_map(|node| node.machine.next_deadline());
        let flushes = self.nodes.iter().filter_map(|node| node.flush_due(&self.flushes));
        let calls = self.deadlines.peek().map(|Reverse((at, ..))| *at);
        let looks = (!self.asked.is_empty()).then(|| self.looked + LOOK);
        let until = roles.chain(flushes).chain(calls).chain(looks).min();
        if let Some(until) = until
            && self.sleep.as_ref().is_none_or(|(at, _)| until < *at)
        {
            self.sleep = Some((until, self.reactor.sleep(until - time::now())));
        }
        poll_fn(|cx| {
            self.inbox.waker.register(cx.waker());
            let replied = self.poll_outside(cx);
            let rung = match &mut self.sleep {
                Some((_, sleep)) => Pin::new(sleep).poll(cx).is_ready(),
                None => false,
            };
            if rung {
                self.sleep = None;
            }
            if replied || rung || self.has_input() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The thread ends: what was appended becomes durable and is said, unless it is to be flushed later:
    /// nobody has asked for that yet.
    fn finish(mut self) -> io::Result<()> {
        if matches!(self.flushes, Flushes::Later(_)) {
            return Ok(());
        }
        (0..self.nodes.len()).try_for_each(|node| self.flush_now(node))
    }
}

#[cfg(test)]
mod tests;
