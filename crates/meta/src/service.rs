//! The role: frames in, frames out. Decodes, looks up retries, routes, parks; the operations
//! are in [`crate::ops`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use saker_engine::Engine;
use saker_engine::sessions::Verdict;
use saker_rpc::CallError;
use saker_rpc::frame::Frame;
use saker_rpc::hello::{PeerHello, RoleKind};
use saker_rpc::hub::{Asker, Hub};
use saker_rpc::node::{ConnId, FlushDone, Input, Outbox, ReplyTo, StateMachine};
use saker_runtime::time::Time;
use saker_types::change::What;
use saker_types::placement::Slot;
use saker_types::wire::{Ctx, Empty, Op, SessionReq};
use saker_types::{Errno, Error, NodeId, limits};

use crate::namespace::dir::ResolvedDir;
use crate::request::{Attempt, Msg, Rq, Stage, Stop, Wait};
use crate::shard::{Shard, encoded};

/// How often waiting requests are looked through for deadlines that have passed.
const PARKED_TICK: Duration = Duration::from_millis(20);
/// A prepare holds locks at its driver: it is told soon that it cannot go on.
const PREPARE_WAIT: Duration = Duration::from_millis(500);
/// A request for a lock waits in the session of its client, whose other results are kept as long.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long the shard that a request is passed on to may take.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(10);

/// A shard as the shell drives it.
pub struct ShardWorker {
    shard: Rc<RefCell<Shard>>,
    hub: Hub,
    /// Why it cannot go on.
    failed: Option<String>,
}

impl ShardWorker {
    /// Wraps an opened shard.
    pub fn new(shard: Rc<RefCell<Shard>>) -> ShardWorker {
        let hub = shard.borrow().hub.clone();
        ShardWorker { shard, hub, failed: None }
    }

    /// What the shard remembers of directories, for checkers: parent, name, directory.
    pub fn replica(&self) -> Vec<(saker_types::InodeId, Bytes, ResolvedDir)> {
        self.shard.borrow().replica.all()
    }

    /// A shard reads one row after the other. As long as these reads wait for a disk, the rows of a
    /// batch are fetched together before.
    fn announce(&self, inputs: &VecDeque<Input>) {
        let mut s = self.shard.borrow_mut();
        if !s.waits_for_rows() || inputs.len() < 2 {
            return;
        }
        for input in inputs {
            if let Input::Request { frame, .. } = input
                && let Some(op) = Op::from_u16(frame.op)
                && let Ok(msg) = Msg::decode(op, &frame.body)
                && let Some((_, at)) = msg.target()
            {
                s.prefetch(at);
            }
        }
    }

    fn receive(&self, conn: ConnId, peer: &PeerHello, frame: Frame) {
        let (call, trace) = (frame.call, frame.trace);
        let Some(op) = Op::from_u16(frame.op) else {
            let error = Error::new(Errno::EPROTO).with_text("unknown operation");
            let reply = frame.reply(error.errno().0, encoded(&error), Bytes::new());
            return self.hub.reply(conn, reply);
        };
        let from = ReplyTo { conn, call, trace, op };
        let s = self.shard.borrow_mut();
        s.count(op);
        let msg = match Msg::decode(op, &frame.body) {
            Ok(msg) => msg,
            Err(e) => return s.send(from, &Err(e)),
        };
        if !msg.is_allowed(peer) {
            return s.send(from, &Err(Errno::EPERM.into()));
        }
        if msg.names().any(|name| name.len() > limits::NAME_BYTES_MAX) {
            return s.send(from, &Err(Errno::ENAMETOOLONG.into()));
        }
        let wait = match &msg {
            Msg::Prepare(_) => PREPARE_WAIT,
            Msg::Lock(m) => Duration::from_millis(m.wait_ms.into()).min(LOCK_WAIT_MAX),
            msg => msg.target().map_or_else(|| Ctx::default().wait(), |(ctx, _)| ctx.wait()),
        };
        let deadline = self.hub.now() + wait;
        let raw = frame.body;
        let (found, met, kept, policy) = Default::default();
        let asker = msg.target().map_or_else(Asker::default, |(ctx, _)| self.hub.asker(ctx));
        let slot = msg.target().map(|(_, at)| s.map.route(at));
        let (ip, stage) = (peer.ip, Cell::new(Stage::New));
        let rq = Rq { from, ip, msg, raw, slot, stage, deadline, asker, found, met, kept, policy };
        drop(s);
        self.admit(Rc::new(rq));
    }

    /// Hears of newer cluster maps.
    fn hear(&self, frame: &Frame) {
        self.shard.borrow_mut().heard_of_map(frame.map_version.into());
    }

    /// Passes on what is another shard's; answers retries; runs the rest.
    fn admit(&self, rq: Rc<Rq>) {
        let mut s = self.shard.borrow_mut();
        if let (Some((ctx, _)), Some(slot)) = (rq.msg.target(), rq.slot)
            && !matches!(rq.msg, Msg::Prepare(_))
        {
            s.heard_of_map(ctx.map_version);
            if !s.owns_slot(slot) {
                if ctx.map_version > s.map.version && rq.stage.get() == Stage::New {
                    rq.stage.set(Stage::AwaitsMap);
                    return s.park(Wait::Map, rq);
                }
                return forward(&mut s, rq.clone(), ctx, slot);
            }
        }
        rq.stage.set(Stage::Admitted);
        if (rq.mutation().is_some() || matches!(rq.msg, Msg::Prepare(_)))
            && let Err(full) = s.may_change_anything()
        {
            return s.send(rq.from, &Err(full));
        }
        if let Some(ctx) = rq.mutation() {
            match s.sessions.begin(ctx, rq.from) {
                Verdict::Run => {}
                Verdict::Answer(status, body) => {
                    if status == 0 {
                        s.note_answered(&rq, &body);
                    }
                    return s.send_raw(rq.from, status, body, Bytes::new());
                }
                Verdict::Joined => return,
                Verdict::Refuse(e) => return s.send(rq.from, &Err(e)),
            }
        }
        drop(s);
        self.run(rq);
    }

    fn run(&self, rq: Rc<Rq>) {
        let mut s = self.shard.borrow_mut();
        s.seal_if_large();
        if rq.deadline < s.hub.now() {
            // It has waited for so long that its client may have given up.
            return s.finish(&rq, Err(rq.too_late()));
        }
        if let Some(slot) = rq.slot
            && !matches!(rq.msg, Msg::Prepare(_))
            && let Err(Stop::Fail(e)) = s.must_own_slot(slot)
        {
            // The slot has moved while it waited.
            return s.finish(&rq, Err(e));
        }
        // Of an earlier attempt.
        rq.policy.set(0);
        let changes = s.changes_logged();
        match self.hub.serve(rq.asker, || s.execute(&rq)) {
            Ok(body) => s.finish_in_step(&rq, Ok(body), changes),
            Err(Stop::Fail(e)) => s.finish_in_step(&rq, Err(e), changes),
            Err(Stop::Wait(wait)) => {
                s.park(wait.clone(), rq);
                match wait {
                    Wait::Fetch(key, anchor_id) => s.start_fetch(&key, anchor_id),
                    Wait::Policy(policy) => s.ask_policy(policy),
                    _ => {}
                }
            }
            Err(Stop::Task(task)) => {
                let shard = self.shard.clone();
                let task = self.hub.serve_task(rq.asker, task);
                self.hub.spawn(async move {
                    let result = task.await;
                    let mut s = shard.borrow_mut();
                    if let Ok(body) = &result {
                        s.note_answered(&rq, body);
                    }
                    s.finish(&rq, result);
                });
            }
        }
    }

    /// Runs requests and tasks until none can go on, or the step is full.
    fn settle(&self) {
        while !self.shard.borrow().is_step_full() {
            let next = self.shard.borrow_mut().parking.next_ready();
            match next {
                Some(rq) if rq.stage.get() == Stage::Admitted => self.run(rq),
                Some(rq) => self.admit(rq),
                None if self.hub.run() == 0 => return,
                None => self.shard.borrow_mut().seal_if_large(),
            }
        }
    }
}

impl Drop for ShardWorker {
    /// Its tasks hold the shard, and the shard its tasks.
    fn drop(&mut self) {
        self.hub.drop_tasks();
    }
}

impl StateMachine for ShardWorker {
    fn step(&mut self, now: Time, wall_ns: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        self.hub.begin(now, wall_ns);
        self.shard.borrow_mut().begin_step(now);
        self.announce(inputs);
        for input in inputs.drain(..) {
            match input {
                Input::Request { conn, peer, frame } => {
                    // A client could name any version.
                    if !matches!(peer.role, RoleKind::Client | RoleKind::Tool) {
                        self.hear(&frame);
                    }
                    self.receive(conn, &peer, frame);
                }
                Input::Reply { call, result } => {
                    result.iter().for_each(|frame| self.hear(frame));
                    if let Err(CallError::Unreachable) = &result {
                        self.shard.borrow_mut().peer_is_unreachable();
                    }
                    self.hub.replied(call, result);
                }
                // Answers to it go nowhere; a retry comes on another connection.
                Input::Closed { .. } => {}
            }
        }
        self.settle();
        {
            let mut s = self.shard.borrow_mut();
            s.thaw();
            s.expire_parked();
            s.expire_gone();
            s.expire_locks();
        }
        self.settle();
        let mut s = self.shard.borrow_mut();
        s.seal();
        if let Err(e) = s.end_step() {
            // As after a failed flush: what is durable is no longer known (rule 3).
            let why = format!("the engine failed: {e}");
            match s.limits.private {
                // The process is a client's: its servers end, and not it.
                true => self.failed = Some(why),
                false => saker_runtime::sim::abort_process(&why),
            }
        }
        out.set_map_version(s.map.version);
        drop(s);
        self.hub.end(out);
    }

    fn next_deadline(&self) -> Option<Time> {
        let s = self.shard.borrow();
        let now = self.hub.now();
        let parked = (!s.parking.is_empty()).then(|| now + PARKED_TICK);
        let rest = s.is_step_full().then_some(now);
        let thaw = s.freezes.next();
        let later = |t: Time| t.max(now + Duration::from_millis(1));
        let all = [
            parked,
            s.engine.next_step(now),
            rest,
            thaw,
            s.leases.next().map(|at| s.lease_clock.step_for(at)),
            s.opened.next().map(|at| s.lease_clock.step_for(at)),
            s.lock_leases.next().map(|at| s.lease_clock.step_for(at)),
            self.hub.next_timer(),
        ];
        all.into_iter().flatten().map(later).min()
    }

    fn address(&self, to: saker_rpc::NodeNumber) -> Option<SocketAddr> {
        let s = self.shard.borrow();
        s.map.addr(NodeId::from_u32(to.0)?)
    }

    fn appended(&self) -> u64 {
        self.shard.borrow().engine.appended()
    }

    fn durable(&self) -> u64 {
        self.shard.borrow().engine.durable()
    }

    fn written(&self) -> u64 {
        self.shard.borrow().engine.written()
    }

    fn flushed_at_once(&self) -> u64 {
        self.shard.borrow().flushed_at_once()
    }

    fn check(&self) -> io::Result<()> {
        self.failed.clone().map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    fn write(&mut self) -> io::Result<()> {
        self.shard.borrow_mut().engine.write().map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut s = self.shard.borrow_mut();
        s.metrics.flushes.inc();
        s.engine.flush().map_err(io::Error::other)
    }

    fn flush_begin(&mut self, done: FlushDone) -> io::Result<()> {
        let mut s = self.shard.borrow_mut();
        s.metrics.flushes.inc();
        s.engine.flush_begin(move || done.notify()).map_err(io::Error::other)
    }

    fn flush_finish(&mut self) -> io::Result<()> {
        self.shard.borrow_mut().engine.flush_finish().map_err(io::Error::other)
    }
}

impl Shard {
    /// A client begins to change things here; durable before it is told.
    pub(crate) fn open_session(&mut self, rq: &Rq, msg: &SessionReq) -> Attempt<Bytes> {
        let admitted = self.sessions.admit(msg.session, rq.ip);
        let begun = admitted.inspect_err(|_| self.metrics.sessions_refused.inc())?;
        begun.into_iter().for_each(|what| self.log_change(what));
        Ok(encoded(&Empty {}))
    }

    /// A client says good-bye.
    pub(crate) fn close_session(&mut self, msg: &SessionReq) -> Attempt<Bytes> {
        self.sessions.close(msg.session);
        self.log_change(What::SessionClose(msg.session));
        Ok(encoded(&Empty {}))
    }
}

/// Passes a misdirected read on to the owner, once. What changes something goes there only from
/// its client, which opens its session there, and alone knows whether an attempt got lost
/// (rule 15): it is told to look at the map again.
fn forward(s: &mut Shard, rq: Rc<Rq>, ctx: &Ctx, slot: Slot) {
    if ctx.forwarded || rq.mutation().is_some() {
        // Or two shards disagree about the map: the client asks again when they agree.
        let error = Error::of_class(saker_types::Class::RefreshMap, Errno::EAGAIN);
        return s.send(rq.from, &Err(error));
    }
    s.metrics.forwards.inc();
    let (h, owner) = (s.handle(), s.map.shard_of_slot(slot));
    s.hub.spawn(async move {
        let body = rq.msg.encode_forwarded().unwrap_or_else(|| rq.raw.clone());
        let (ReplyTo { op, trace, .. }, to) = (rq.from, NodeId::Shard(owner));
        let answer = h.hub.call(to, op, trace, body, Bytes::new(), FORWARD_TIMEOUT).await;
        let s = h.shard();
        match answer {
            Ok(frame) => s.send_raw(rq.from, frame.status, frame.body, frame.payload),
            Err(e) => s.send(rq.from, &Err(Error::retry(&e.to_string()))),
        }
    });
}
