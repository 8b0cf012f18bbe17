//! What a sans-io role needs to run operations of more than one step as async functions: calls
//! to peers, timers and tasks, all on the role's own thread and in a reproducible order.
//!
//! The role calls [`Hub::begin`] when a step begins, hands replies to [`Hub::replied`], and ends
//! with [`Hub::end`], which passes what was queued to the outbox.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use rustc_hash::FxHashMap;
use saker_runtime::task::{Executor, Timers, oneshot};
use saker_runtime::time::Time;
use saker_types::time::stamp_of_unix_ns;
use saker_types::wire::Op;
use saker_types::{Class, Errno, Error, NodeId, Stamp};

use crate::CallError;
use crate::frame::Frame;
use crate::node::{CallId, ConnId, Outbox};

type Answer = Result<Frame, CallError>;

enum Out {
    Call {
        to: NodeId,
        op: Op,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        deadline: Time,
        answer: oneshot::Sender<Answer>,
    },
    Reply(ConnId, Frame),
}

/// Shared by the role and its tasks; cheap to clone.
#[derive(Clone, Default)]
pub struct Hub(Rc<Inner>);

#[derive(Default)]
struct Inner {
    executor: Executor,
    timers: Timers,
    now: Cell<Time>,
    wall_ns: Cell<Stamp>,
    out: RefCell<Vec<Out>>,
    waiting: RefCell<FxHashMap<CallId, oneshot::Sender<Answer>>>,
}

/// First pause between attempts of a call that must succeed.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// Longest pause.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);

impl Hub {
    /// A step begins: what time it is; `wall_ns` since 1970.
    pub fn begin(&self, now: Time, wall_ns: i64) {
        self.0.now.set(now);
        // The wall clock may jump back; stamps given out here never do.
        let wall_ns = stamp_of_unix_ns(wall_ns);
        self.0.wall_ns.set(wall_ns.max(self.0.wall_ns.get()));
        self.0.timers.fire(now);
    }

    /// Monotonic time of this step.
    pub fn now(&self) -> Time {
        self.0.now.get()
    }

    /// Wall clock of this step; never goes back.
    pub fn wall_ns(&self) -> Stamp {
        self.0.wall_ns.get()
    }

    /// Starts a task; it runs before the step ends.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.executor.spawn(task);
    }

    /// Runs tasks until none can go on; how many polls that took.
    pub fn run(&self) -> usize {
        self.0.executor.run_until_stalled()
    }

    /// The role ends, and its tasks with it.
    pub fn drop_tasks(&self) {
        self.0.executor.clear();
    }

    /// Wakes after this long.
    pub fn sleep(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        self.0.timers.sleep_until(self.now() + time)
    }

    /// When the earliest timer is due.
    pub fn next_timer(&self) -> Option<Time> {
        self.0.timers.next()
    }

    /// Answers a request.
    pub fn reply(&self, conn: ConnId, frame: Frame) {
        self.0.out.borrow_mut().push(Out::Reply(conn, frame));
    }

    /// Calls a peer once.
    pub fn call(
        &self,
        to: NodeId,
        op: Op,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        timeout: Duration,
    ) -> impl Future<Output = Answer> + use<> {
        let (answer, receiver) = oneshot();
        let deadline = self.now() + timeout;
        let out = Out::Call { to, op, trace, body, payload, deadline, answer };
        self.0.out.borrow_mut().push(out);
        async move { receiver.await.unwrap_or(Err(CallError::Disconnected)) }
    }

    /// Calls a peer once and decodes; a broken call is an error of class `Retry` (its outcome is
    /// unknown).
    pub async fn ask<R: Message + Default>(
        &self,
        to: NodeId,
        op: Op,
        trace: u64,
        body: &impl Message,
        timeout: Duration,
    ) -> Result<R, Error> {
        let body = Bytes::from(body.encode_to_vec());
        decode_reply(self.call(to, op, trace, body, Bytes::new(), timeout).await)
    }

    /// Calls until there is an answer that is not "try again": for what must happen, whoever
    /// is down for however long.
    pub async fn ask_until<R: Message + Default>(
        &self,
        to: NodeId,
        op: Op,
        trace: u64,
        body: &impl Message,
        payload: Bytes,
    ) -> Result<R, Error> {
        let body = Bytes::from(body.encode_to_vec());
        let mut pause = RETRY_PAUSE;
        loop {
            let timeout = Duration::from_secs(5);
            let answer = self.call(to, op, trace, body.clone(), payload.clone(), timeout).await;
            match decode_reply(answer) {
                Err(e) if e.is(Class::Retry) || e.is(Class::RefreshMap) => {
                    self.sleep(pause).await;
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
                other => return other,
            }
        }
    }

    /// An answer has come.
    pub fn replied(&self, call: CallId, result: Answer) {
        if let Some(answer) = self.0.waiting.borrow_mut().remove(&call) {
            // A task that no longer listens has given up on the call.
            let _ = answer.send(result);
        }
    }

    /// The step ends: what was queued leaves by the outbox.
    pub fn end(&self, out: &mut Outbox) {
        for message in self.0.out.borrow_mut().drain(..) {
            match message {
                Out::Reply(conn, frame) => out.reply(conn, frame),
                Out::Call { to, op, trace, body, payload, deadline, answer } => {
                    let to = crate::NodeId(to.to_u32());
                    let id = out.call(to, op as u16, trace, body, payload, deadline);
                    self.0.waiting.borrow_mut().insert(id, answer);
                }
            }
        }
    }
}

/// Decodes the answer to a call: status 0 is the reply message, any other an error.
pub fn decode_reply<R: Message + Default>(answer: Answer) -> Result<R, Error> {
    let frame = answer.map_err(|e| match e {
        // The same request will never fit.
        CallError::TooLarge => Error::new(Errno::EOVERFLOW).with_text(e.to_string()),
        _ => Error::retry(&e.to_string()),
    })?;
    if frame.status == 0 {
        R::decode(frame.body).map_err(|e| Error::new(Errno::EPROTO).with_text(e.to_string()))
    } else {
        Err(decode_error(&frame))
    }
}

/// The error in a reply frame whose status is not 0.
pub fn decode_error(frame: &Frame) -> Error {
    Error::decode(&frame.body[..]).unwrap_or_else(|_| Error::new(Errno(frame.status)))
}
