//! What the real client sees of the simulated network and clock.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use saker_rpc::client::{CallPromise, SleepPromise};
use saker_rpc::{Call, Frame, Sleep, Transport};
use saker_runtime::time::{self, Time};
use saker_types::NodeId;

use crate::node::roles::{Machine, node_at};

/// A call that a client has begun.
pub struct NewCall {
    pub client: usize,
    pub to: (NodeId, Machine),
    pub frame: Frame,
    pub deadline: Time,
    pub promise: CallPromise,
}

/// What clients asked for since the world looked last.
#[derive(Default)]
pub struct Wanted {
    pub calls: Vec<NewCall>,
    pub sleeps: Vec<(Time, SleepPromise)>,
}

/// Where all clients put it.
#[derive(Clone, Default)]
pub struct Desk(Arc<Mutex<Wanted>>);

impl Desk {
    /// Everything asked for.
    pub fn take(&self) -> Wanted {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client's way to send.
#[derive(Clone)]
pub struct WorldTransport {
    pub client: usize,
    pub desk: Desk,
}

impl Transport for WorldTransport {
    fn call(
        &self,
        to: SocketAddr,
        op: u16,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        timeout: Duration,
    ) -> Call {
        let (promise, call) = Call::new();
        let (to, deadline) = (node_at(to), time::now() + timeout);
        let frame = Frame::request(op, trace, body, payload);
        let client = self.client;
        self.desk.lock().calls.push(NewCall { client, to, frame, deadline, promise });
        call
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let (promise, sleep) = Sleep::new();
        self.desk.lock().sleeps.push((time::now() + time, promise));
        sleep
    }
}
