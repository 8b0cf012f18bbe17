//! The client side: calls as futures, from many threads, without a thread of its own.
//!
//! [`Transport`] is what callers see; [`Reactor`] is the one over TCP. [`Call`] and [`Sleep`] are
//! promises that somebody else fills, so that a simulated transport can hand out the same.

mod alarms;
pub(crate) mod busy_poll;
mod conn;
mod promise;
mod reactor;
mod seat;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::time::{self, Time};

pub use promise::{Call, CallPromise, LocalAnswer, LocalAnswerPromise, Sleep, SleepPromise};
pub(crate) use reactor::LocalCall;
pub use reactor::Reactor;

/// Sends requests and waits. All methods return at once.
pub trait Transport: Send + Sync {
    /// Asks the server at `to` for operation `op`. The call ends within `timeout`.
    fn call(
        &self,
        to: SocketAddr,
        op: u16,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        timeout: Duration,
    ) -> Call;

    /// A future that is ready after `time`.
    fn sleep(&self, time: Duration) -> Sleep;

    /// The clock that deadlines refer to.
    fn now(&self) -> Time {
        time::now()
    }
}
