//! Messages: sent, lost, doubled, late; calls, from their beginning to their end.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use saker_rpc::client::CallPromise;
use saker_rpc::frame::Frame;
use saker_rpc::{CallError, CallId, Input, Outgoing, RoleKind};
use saker_runtime::sim;
use saker_runtime::time::Time;
use saker_types::NodeId;
use saker_types::wire::{At, ChunkWriteReq, Ctx, Op, OpenReq};

use super::super::net::{Who, WorldConn};
use super::super::transport::NewCall;
use super::{Event, Key, OBSERVER, Pending, World};
use crate::node::roles::{self, Machine, node_at};
use crate::node::{Node, frame_bytes};

impl World {
    pub(super) fn client_calls(&mut self, call: NewCall) {
        let NewCall { client, to, mut frame, deadline, promise } = call;
        self.calls += 1;
        frame.call = self.calls;
        let to = (to.0, Some(to.1));
        self.send(Who::Client(client), 0, to, frame, deadline, Some(promise));
    }

    /// Nobody is on no machine, as [`saker_rpc::Shell`] has it.
    pub(super) fn send(
        &mut self,
        from: Who,
        life: u64,
        (to, machine): (NodeId, Option<Machine>),
        frame: Frame,
        deadline: Time,
        promise: Option<CallPromise>,
    ) {
        let key = (from, life, frame.call);
        self.log.event(self.now, "asks", &frame_bytes(&frame), || {
            format!("{from:?} -> {to} {} #{}", describe(&frame), frame.call)
        });
        let is_there = |node: &&Node| node.is_up() && Some(node.machine) == machine;
        let node = self.nodes.get(&to).filter(is_there);
        let to_life = node.map(|node| node.life);
        self.schedule(deadline, Event::Fails(key, CallError::Timeout));
        let Some(to_life) = to_life else {
            self.pending.insert(key, Pending { conn: None, promise });
            let at = self.after_us(100, 2_000);
            return self.schedule(at, Event::Fails(key, CallError::Unreachable));
        };
        let conn = self.net.connect(from, life, to, to_life);
        self.pending.insert(key, Pending { conn: Some(conn), promise });
        if let Some(head) = Head::of(&frame) {
            if let Some(mutation) = head.mutation(&frame) {
                self.asked.insert((conn, frame.call), mutation);
            }
            if let (Some(at), Who::Client(_), NodeId::Shard(_)) = (&head.at, from, to) {
                self.routed.insert((conn, frame.call), self.cluster.map.route(at));
            }
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

    pub(super) fn arrives(&mut self, conn: usize, frame: Frame, late: bool) {
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
            // In any order (decision 57): now and then one waits for a disk or for others.
            let slowness = node.slowness;
            let at = match self.rng.below(8) {
                0 => self.after_us(100, 5_000 * slowness),
                _ => self.after_us(0, 50 * slowness),
            };
            return self.schedule(at, Event::Executes { conn, frame });
        }
        self.node_mut(to).receive(conn as u64, peer, frame);
        self.step_soon(to);
    }

    pub(super) fn executes(&mut self, conn: usize, frame: Frame) {
        let c = &self.net.conns[conn];
        let node = &self.nodes[&c.to];
        if node.life != c.to_life {
            return;
        }
        let (to, slowness) = (c.to, node.slowness);
        let answer = match unheard(&frame, to) {
            Some(reply) => Ok(Some(frame.reply(0, reply, Bytes::new()))),
            None => node.answer(frame),
        };
        match answer {
            Err(why) => self.node_dies(to, &why),
            Ok(None) => {}
            Ok(Some(reply)) => {
                let at = self.after_us(20 * slowness, 100);
                self.schedule(at, Event::Answers { conn, frame: reply });
            }
        }
    }

    pub(super) fn answers(&mut self, conn: usize, frame: Frame) {
        let c = &self.net.conns[conn];
        if !c.open {
            return;
        }
        let key = (c.from, c.from_life, frame.call);
        self.end_call(key, Ok(frame));
    }

    pub(super) fn end_call(&mut self, key: Key, result: Result<Frame, CallError>) {
        let Some(Pending { promise, .. }) = self.pending.remove(&key) else { return };
        let bytes = result.as_ref().map_or_else(|_| Bytes::new(), frame_bytes);
        self.log.event(self.now, "ends", &bytes, || {
            let result = result.as_ref().map(|f| (f.status, describe(f)));
            format!("#{} of {:?}: {result:?}", key.2, key.0)
        });
        if let Some(promise) = promise {
            promise.complete(result);
            return self.clients_may_run();
        }
        let (Who::Node(id), life, call) = key else { return };
        let node = self.node_mut(id);
        if node.is_up() && node.life == life {
            node.inputs.push_back(Input::Reply { call: CallId(call), result });
            self.step_soon(id);
        }
    }

    pub(super) fn break_conn(&mut self, conn: usize) {
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

    pub(super) fn break_all(&mut self, id: NodeId) {
        let of = |c: &WorldConn| c.open && (c.to == id || c.from == Who::Node(id));
        let conns: Vec<usize> =
            (0..self.net.conns.len()).filter(|i| of(&self.net.conns[*i])).collect();
        conns.into_iter().for_each(|conn| self.break_conn(conn));
    }

    pub(super) fn say(&mut self, id: NodeId, life: u64, said: Outgoing) {
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
                let at = self.node_mut(id).address(to);
                let node = NodeId::from_u32(to.0).expect("roles call nodes");
                let to = (node, at.map(|addr| node_at(addr).1));
                self.send(Who::Node(id), life, to, frame, deadline, None);
            }
        }
    }

    /// All answers to one mutation are equal, whoever gives them.
    pub(super) fn note_result(&mut self, conn: usize, frame: &Frame) {
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
}

/// The answer to a request that a store does not get to hear, where a rule is broken on purpose.
fn unheard(frame: &Frame, to: NodeId) -> Option<Bytes> {
    let is_second = || {
        let request = ChunkWriteReq::decode(frame.body.clone()).unwrap_or_default();
        request.replicas.get(1).is_some_and(|no| NodeId::Store(*no as u16) == to)
    };
    let is_unheard = match op_of(frame)? {
        Op::ChunkSync => sim::mutation("an fsync that stores do not hear of"),
        Op::ChunkTruncate => sim::mutation("a truncation that stores do not hear of"),
        Op::ChunkWrite => sim::mutation("a write that a replica does not get") && is_second(),
        _ => false,
    };
    // Of each, the answer that says nothing.
    is_unheard.then(Bytes::new)
}

fn op_of(frame: &Frame) -> Option<Op> {
    Op::from_u16(frame.op)
}

/// Operations that are sent again when there is no answer in time.
fn is_retried(op: Op) -> bool {
    let between = [Op::Decide, Op::Invalidate, Op::Fetch, Op::Collect, Op::Outcome];
    op.mutates() || between.contains(&op)
}

/// How requests about names begin.
#[derive(Clone, PartialEq, prost::Message)]
struct Head {
    #[prost(message, required, tag = "1")]
    ctx: Ctx,
    /// Decides who owns it.
    #[prost(message, optional, tag = "2")]
    at: Option<At>,
}

impl Head {
    /// Of a request to an owner, or of another one that changes something.
    fn of(frame: &Frame) -> Option<Head> {
        let op = op_of(frame)?;
        let is_owners = op.mutates() || matches!(op, Op::Lookup | Op::Getattr | Op::Open);
        if is_owners { Head::decode(frame.body.clone()).ok() } else { None }
    }

    /// Session and number of a mutation.
    fn mutation(&self, frame: &Frame) -> Option<(u64, u64)> {
        let truncates = || OpenReq::decode(frame.body.clone()).is_ok_and(|open| open.truncate);
        let op = op_of(frame)?;
        let is_mutation = op.mutates() || (op == Op::Open && truncates());
        (is_mutation && self.ctx.seq > 0).then_some((self.ctx.session, self.ctx.seq))
    }
}

fn describe(frame: &Frame) -> String {
    op_of(frame).map_or_else(|| "?".to_owned(), |op| op.name().to_owned())
}
