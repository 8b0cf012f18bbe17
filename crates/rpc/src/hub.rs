//! What a sans-io role needs to run operations of more than one step as async functions: calls
//! to peers, timers and tasks, all on the role's own thread and in a reproducible order.
//!
//! The role calls [`Hub::begin`] when a step begins, hands replies to [`Hub::replied`], and ends
//! with [`Hub::end`], which passes what was queued to the outbox.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use rustc_hash::FxHashMap;
use saker_runtime::task::{Executor, Timers, oneshot};
use saker_runtime::time::Time;
use saker_types::limits::{CLOCK_BEHIND_NS_MAX, CLOCK_SKEW_NS_MAX};
use saker_types::time::stamp_of_unix_ns;
use saker_types::wire::{Ctx, Op};
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
    ReplyWhenWritten(ConnId, Frame),
}

/// Shared by the role and its tasks; cheap to clone.
#[derive(Clone, Default)]
pub struct Hub(Rc<Inner>);

#[derive(Default)]
struct Inner {
    executor: Executor,
    timers: Timers,
    now: Cell<Time>,
    /// As the machine's clock says.
    own_ns: Cell<Stamp>,
    /// The same, but never less than before, nor than what askers have seen.
    wall_ns: Cell<Stamp>,
    asker: Cell<Asker>,
    out: RefCell<Vec<Out>>,
    waiting: RefCell<FxHashMap<CallId, oneshot::Sender<Answer>>>,
}

/// Whose request is served, as far as times are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// How far its clock is behind this one's, or its request has come.
    behind_ns: u64,
    /// The newest time that it has seen.
    seen_ns: Stamp,
}

/// First pause between attempts of a call that must succeed.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// Longest pause.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);

impl Hub {
    /// A step begins: what time it is; `wall_ns` since 1970.
    pub fn begin(&self, now: Time, wall_ns: i64) {
        self.0.now.set(now);
        let wall_ns = stamp_of_unix_ns(wall_ns);
        self.0.own_ns.set(wall_ns);
        // The wall clock may jump back; stamps given out here never do.
        self.0.wall_ns.set(wall_ns.max(self.0.wall_ns.get()));
        self.0.timers.fire(now);
    }

    /// Monotonic time of this step.
    pub fn now(&self) -> Time {
        self.0.now.get()
    }

    /// Wall clock of this step; never goes back. For an asker's request: not ahead of its
    /// clock, so that it sees no change of its own in the future, and later than what it has seen, whichever
    /// server told it that.
    pub fn wall_ns(&self) -> Stamp {
        let Asker { behind_ns, seen_ns } = self.0.asker.get();
        match behind_ns {
            0 => self.0.wall_ns.get(),
            behind => self.0.own_ns.get().saturating_sub(behind).max(seen_ns.saturating_add(1)),
        }
    }

    /// Who asks, by the context of a request that has just come.
    pub fn asker(&self, ctx: &Ctx) -> Asker {
        let own_ns = self.0.own_ns.get();
        let behind_ns = own_ns.saturating_sub(ctx.now_ns);
        let is_near = ctx.seen_ns <= own_ns.saturating_add(CLOCK_SKEW_NS_MAX);
        let seen_ns = if is_near { ctx.seen_ns } else { 0 };
        self.0.wall_ns.set(self.0.wall_ns.get().max(seen_ns.saturating_add(1)));
        Asker { behind_ns: if behind_ns <= CLOCK_BEHIND_NS_MAX { behind_ns } else { 0 }, seen_ns }
    }

    /// Runs what this asker's request does in one step.
    pub fn serve<T>(&self, asker: Asker, step: impl FnOnce() -> T) -> T {
        let before = self.0.asker.replace(asker);
        let result = step();
        self.0.asker.set(before);
        result
    }

    /// The same of a task.
    pub fn serve_task<F: Future>(
        &self,
        asker: Asker,
        task: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let (hub, mut task) = (self.clone(), Box::pin(task));
        poll_fn(move |cx| hub.serve(asker, || task.as_mut().poll(cx)))
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

    /// The same before what the answer depends on is durable ([`Outbox::reply_when_written`]).
    pub fn reply_when_written(&self, conn: ConnId, frame: Frame) {
        self.0.out.borrow_mut().push(Out::ReplyWhenWritten(conn, frame));
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
                Out::ReplyWhenWritten(conn, frame) => out.reply_when_written(conn, frame),
                Out::Call { to, op, trace, body, payload, deadline, answer } => {
                    let to = crate::NodeNumber(to.to_u32());
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_UNIX: i64 = 1_800_000_000_000_000_000;
    const NOW: Stamp = 3_947_483_648_000_000_000;
    const MS: Stamp = 1_000_000;

    fn ctx(now_ns: Stamp, seen_ns: Stamp) -> Ctx {
        Ctx { now_ns, seen_ns, ..Ctx::default() }
    }

    /// The time that a request of this client is given by a server whose clock says [`NOW`].
    fn given(hub: &Hub, now_ns: Stamp, seen_ns: Stamp) -> Stamp {
        hub.serve(hub.asker(&ctx(now_ns, seen_ns)), || hub.wall_ns())
    }

    #[test]
    fn a_change_is_later_than_what_its_client_has_seen() {
        let hub = Hub::default();
        hub.begin(Time::ZERO, NOW_UNIX);
        assert_eq!(given(&hub, 0, 0), NOW, "who says nothing");
        assert_eq!(
            given(&hub, NOW + 5 * MS, 0),
            NOW,
            "clocks of clients do not count that are ahead"
        );
        assert_eq!(given(&hub, NOW - 5 * MS, 0), NOW - 5 * MS, "nothing is in its client's future");
        assert_eq!(given(&hub, NOW - 5 * MS, NOW - MS), NOW - MS + 1);
        assert_eq!(given(&hub, NOW - 2 * CLOCK_BEHIND_NS_MAX, 0), NOW, "too far behind");
        assert_eq!(given(&hub, NOW, NOW + 2 * CLOCK_SKEW_NS_MAX), NOW, "too far ahead");
        assert_eq!(hub.wall_ns(), NOW);
        assert_eq!(given(&hub, NOW, NOW + MS), NOW + MS + 1);
        assert_eq!(hub.wall_ns(), NOW + MS + 1, "from now on for all");
        hub.begin(Time::ZERO, NOW_UNIX - MS as i64);
        assert_eq!(hub.wall_ns(), NOW + MS + 1, "and it does not go back");
    }

    #[test]
    fn a_task_serves_its_own_asker_whenever_it_runs() {
        let hub = Hub::default();
        hub.begin(Time::ZERO, NOW_UNIX);
        let (sender, receiver) = oneshot();
        let told = Rc::new(Cell::new(0));
        let (task, seen) = ((hub.clone(), told.clone()), hub.asker(&ctx(NOW - MS, 0)));
        hub.spawn(hub.serve_task(seen, async move {
            receiver.await.unwrap_or(());
            task.1.set(task.0.wall_ns());
        }));
        hub.run();
        assert!(sender.send(()).is_ok());
        hub.run();
        assert_eq!((told.get(), hub.wall_ns()), (NOW - MS, NOW));
    }
}
