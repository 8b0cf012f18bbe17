//! What a role says in one step.

use bytes::Bytes;
use saker_runtime::sim::mutation;
use saker_runtime::time::Time;
use saker_types::wire::Op;

use super::{CallId, Conditions, ConnId};
use crate::NodeNumber;
use crate::frame::{Frame, FrameKind};
use crate::hello::Hello;

/// A message that a role sends.
#[derive(Debug)]
pub enum Outgoing {
    /// The answer to a request.
    Reply {
        /// The connection that the request came from.
        conn: ConnId,
        /// The reply, with the request's call and op.
        frame: Frame,
    },
    /// A request of this role's own.
    Call {
        /// Names it in [`super::Input::Reply`]. Also the frame's `call`.
        call: CallId,
        /// To whom; may be this node itself.
        to: NodeNumber,
        /// The request.
        frame: Frame,
        /// When to give up.
        deadline: Time,
    },
}

/// When a message leaves.
#[derive(Clone, Copy, Debug)]
enum When {
    /// When the role's conditions are met.
    Durable,
    /// When its conditions for this kind are.
    Written,
    /// When these are.
    Met(Conditions),
}

/// Collects the messages of one step, each with what it must wait for.
#[derive(Debug, Default)]
pub struct Outbox {
    messages: Vec<(When, Outgoing)>,
    after: Option<Conditions>,
    calls: u64,
    hello: Option<Hello>,
    map_version: u32,
    /// Connections that are to be read no more (true), or again.
    paused: Vec<(ConnId, bool)>,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> Outbox {
        Outbox::default()
    }

    /// Answers a request; `frame` is made with [`Frame::reply`].
    pub fn reply(&mut self, conn: ConnId, frame: Frame) {
        self.push_reply(self.when(), conn, frame);
    }

    /// The same of an answer that may leave before what it depends on is durable: when
    /// [`super::StateMachine::conditions_when_written`] are met.
    pub fn reply_when_written(&mut self, conn: ConnId, frame: Frame) {
        self.push_reply(When::Written, conn, frame);
    }

    fn push_reply(&mut self, when: When, conn: ConnId, frame: Frame) {
        debug_assert_eq!(frame.kind, FrameKind::Reply);
        let frame = Frame { map_version: self.map_version, ..frame };
        self.messages.push((when, Outgoing::Reply { conn, frame }));
    }

    fn when(&self) -> When {
        self.after.map_or(When::Durable, When::Met)
    }

    /// Sends a request. Its end comes as [`super::Input::Reply`], at `deadline` at the latest.
    pub fn call(
        &mut self,
        to: NodeNumber,
        op: u16,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        deadline: Time,
    ) -> CallId {
        self.calls += 1;
        let call = CallId(self.calls);
        let map_version = self.map_version;
        let request = Frame::request(op, trace, body, payload);
        let frame = Frame { call: call.0, map_version, ..request };
        self.messages.push((self.when(), Outgoing::Call { call, to, frame, deadline }));
        call
    }

    /// What messages added from here on say of the newest cluster map that the role knows.
    pub fn set_map_version(&mut self, version: u64) {
        self.map_version = version.try_into().unwrap_or(u32::MAX);
    }

    /// Messages added from here on in this step leave when these are met, instead of
    /// [`super::StateMachine::conditions`] when the step returned.
    pub fn after(&mut self, conditions: Conditions) {
        self.after = Some(conditions);
    }

    /// From now on say `hello` on new connections, and answer hellos with it (a new epoch).
    pub fn set_hello(&mut self, hello: Hello) {
        self.hello = Some(hello);
    }

    /// From now on reads nothing from a connection, but what was read already comes.
    pub fn pause(&mut self, conn: ConnId) {
        self.paused.push((conn, true));
    }

    /// Reads again from a connection that is paused.
    pub fn resume(&mut self, conn: ConnId) {
        self.paused.push((conn, false));
    }

    /// For whoever drives the role: which connections to pause (true) or to resume, in order.
    pub fn take_paused(&mut self) -> impl Iterator<Item = (ConnId, bool)> + '_ {
        self.paused.drain(..)
    }

    /// For whoever drives the role: takes the step's messages in order, each with what must be
    /// met before it leaves. `durable` and `written` are what the role says after the step:
    /// [`super::StateMachine::conditions`] and [`super::StateMachine::conditions_when_written`].
    pub fn drain(
        &mut self,
        durable: Conditions,
        written: Conditions,
    ) -> impl Iterator<Item = (Conditions, Outgoing)> + '_ {
        self.after = None;
        self.messages.drain(..).map(move |(when, message)| {
            let after = match when {
                _ if is_early(&message) => Conditions::NONE,
                When::Durable => durable,
                When::Written => written,
                When::Met(conditions) => conditions,
            };
            (after, message)
        })
    }

    /// For whoever drives the role: the hello set in this step.
    pub fn take_hello(&mut self) -> Option<Hello> {
        self.hello.take()
    }
}

/// Does a simulation let it leave before its time, to see that this is found?
fn is_early(message: &Outgoing) -> bool {
    match message {
        Outgoing::Reply { .. } => mutation("reply before flush"),
        Outgoing::Call { frame, .. } => {
            frame.op == Op::Decide as u16 && mutation("decision sent before it is logged")
        }
    }
}
