//! The shell around a single-threaded, sans-io role.
//!
//! A [`StateMachine`] gets batches of [`Input`]s and answers through an [`Outbox`]; it sees no socket, no
//! clock and no thread, so that a simulator can drive it just as [`Shell`] does. The shell owns
//! the sockets, and sees to two promises:
//!
//! - **Nothing leaves before what it depends on is durable.** Every message waits for the
//!   [`Conditions`] of its role when its step ended (or for those that the role named with
//!   [`Outbox::after`]): that records up to the last one are durable, and whatever else there is.
//!   A reply that promises less ([`Outbox::reply_when_written`]) waits until the death of the process
//!   cannot lose what it depends on; the flush follows within [`lag::LAG_MAX`].
//! - **A lone request is never handed to another thread.** Its flush runs inline; only when more
//!   input is ready does the flush run in the background, while the next batch is executed.

mod alarms;
pub mod bounds;
mod conns;
mod gate;
pub mod lag;
mod net;
mod outbox;
mod peers;
mod shell;
mod spread;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use saker_runtime::time::Time;
use saker_types::wire::Op;

pub(crate) use peers::ReconnectBackoff;
pub(crate) use spread::{ShellPoll, Spread};

pub use bounds::{Bounds, ConnMetrics};
pub use gate::{Conditions, Gate};
pub use outbox::{Outbox, Outgoing};
pub use shell::{Shell, ShellConfig, StopHandle};

use crate::frame::Frame;
use crate::hello::PeerHello;
use crate::{CallError, NodeNumber};

/// An accepted connection, for as long as the process lives: ids are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl ConnId {
    /// The connection of a role to itself.
    pub const LOOPBACK: ConnId = ConnId(u64::MAX);
}

/// Where the reply to a request goes, and what it repeats of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// Connection of the request.
    pub conn: ConnId,
    /// Its call number.
    pub call: u64,
    /// Its trace id.
    pub trace: u64,
    /// Its operation.
    pub op: Op,
}

/// An outgoing call, unique within its [`Outbox`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// What a role reacts to.
#[derive(Debug)]
pub enum Input {
    /// A peer asks; the role answers with [`Outbox::reply`], exactly once, now or later.
    Request {
        /// Where the reply goes.
        conn: ConnId,
        /// Who asks.
        peer: Rc<PeerHello>,
        /// What.
        frame: Frame,
    },
    /// A call of this role has ended. Comes exactly once for each [`Outbox::call`].
    Reply {
        /// Which call.
        call: CallId,
        /// The reply, whatever its status, or why there is none.
        result: Result<Frame, CallError>,
    },
    /// A connection from which requests came is gone. Replies to it go nowhere.
    Closed {
        /// Which connection.
        conn: ConnId,
    },
}

/// A single-threaded state machine with records.
pub trait StateMachine {
    /// Runs one batch. `now` is monotonic, `wall_ns` since 1970. Inputs that it leaves come
    /// first in the next step, which follows at once, after what was said has been sent.
    fn step(&mut self, now: Time, wall_ns: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox);

    /// When `step` must run even without inputs. After that step it must be later, or `None`.
    fn next_deadline(&self) -> Option<Time>;

    /// Where a peer listens now.
    fn address(&self, to: NodeNumber) -> Option<SocketAddr>;

    /// The position of the last record. Only grows.
    fn appended(&self) -> u64;

    /// Up to where records are durable: at most [`StateMachine::appended`]. Only grows, and only in
    /// `flush` and `flush_finish`.
    fn durable(&self) -> u64;

    /// Up to where the death of the process loses no records, but a loss of power may: at least
    /// [`StateMachine::durable`]. Only grows, and only in `write`, `flush` and `flush_finish`.
    fn written(&self) -> u64 {
        self.durable()
    }

    /// Records up to here are flushed at once. The flush of later ones may be delayed, for
    /// [`lag::LAG_MAX`] at most, unless a message waits for it. Only grows.
    fn flushed_at_once(&self) -> u64 {
        self.appended()
    }

    /// What the messages of the step that has just ended wait for. Each position only grows.
    fn conditions(&self) -> Conditions {
        Conditions::durable(self.appended())
    }

    /// The same of replies that may leave before what they depend on is durable: records whose flush
    /// may be delayed must be written, all others durable.
    fn conditions_when_written(&self) -> Conditions {
        Conditions { written: self.appended(), ..Conditions::durable(self.flushed_at_once()) }
    }

    /// How far things have come. Each position only grows: `durable` and `written` as
    /// [`StateMachine::durable`] and [`StateMachine::written`], others in `step`.
    fn reached(&self) -> Conditions {
        Conditions { written: self.written(), ..Conditions::durable(self.durable()) }
    }

    /// Can it go on? What the last step has done may not be known to be right.
    ///
    /// # Errors
    /// As [`StateMachine::flush`].
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// Has everything appended survive the death of the process, without waiting for a disk. During a
    /// flush it may do nothing: it is called again.
    ///
    /// # Errors
    /// As [`StateMachine::flush`].
    fn write(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Makes everything appended durable, on this thread.
    ///
    /// # Errors
    /// Any error is fatal: the shell logs it and aborts the process.
    fn flush(&mut self) -> io::Result<()>;

    /// Starts to make everything appended until now durable, on another thread. When that is
    /// done, or has failed, `done` must be notified; `flush_finish` is called then. Until then
    /// neither `flush` nor `flush_begin` is called; `step` is.
    ///
    /// # Errors
    /// As [`StateMachine::flush`].
    fn flush_begin(&mut self, done: FlushDone) -> io::Result<()>;

    /// Takes the result of the flush that `flush_begin` started: `durable` moves on.
    ///
    /// # Errors
    /// As [`StateMachine::flush`].
    fn flush_finish(&mut self) -> io::Result<()>;
}

/// Tells the shell, from any thread, that a background flush has ended. Dropping it tells the
/// same, so that a flusher that dies cannot be waited for forever.
pub struct FlushDone(Option<Box<dyn FnOnce() + Send>>);

impl FlushDone {
    /// Calls `notify` when the flush has ended.
    pub fn new(notify: impl FnOnce() + Send + 'static) -> FlushDone {
        FlushDone(Some(Box::new(notify)))
    }

    /// The flush has ended.
    pub fn notify(self) {
        // Dropping notifies.
    }
}

impl Drop for FlushDone {
    fn drop(&mut self) {
        if let Some(notify) = self.0.take() {
            notify();
        }
    }
}
