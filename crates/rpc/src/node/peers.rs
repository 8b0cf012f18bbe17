//! The calling side: one connection for each peer that is called.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use saker_runtime::time::Time;

use super::{CallId, ConnId};
use crate::NodeNumber;
use crate::frame::Frame;

/// Bounds of the pause between attempts to connect; it doubles with each failure.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(5);
pub(crate) const BACKOFF_MAX: Duration = Duration::from_millis(640);

/// When a peer that could not be reached may be tried again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReconnectBackoff {
    failures: u32,
    not_before: Time,
}

impl ReconnectBackoff {
    /// Counts a failure at `now`.
    pub fn fail(&mut self, now: Time) {
        let pause = BACKOFF_MIN * (1 << self.failures.min(7));
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + pause.min(BACKOFF_MAX);
    }

    /// The peer has shown that it works.
    pub fn succeed(&mut self) {
        *self = ReconnectBackoff::default();
    }

    /// The earliest time of the next attempt.
    pub fn not_before(&self) -> Time {
        self.not_before
    }
}

/// A peer that was called.
#[derive(Default)]
pub(super) struct Peer {
    pub addr: Option<SocketAddr>,
    pub conn: Option<ConnId>,
    /// Whether `conn` has shaken hands.
    pub ready: bool,
    pub backoff: ReconnectBackoff,
    /// An alarm for the next attempt is set.
    pub redial_set: bool,
    /// Requests for when the connection is ready.
    pub queue: VecDeque<Frame>,
    pub queue_bytes: usize,
}

impl Peer {
    pub fn enqueue(&mut self, frame: Frame) {
        self.queue_bytes += frame.wire_len();
        self.queue.push_back(frame);
    }

    pub fn take_queue(&mut self) -> VecDeque<Frame> {
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }
}

/// A call without a result.
pub(super) struct Pending {
    pub to: NodeNumber,
    /// It has passed the gate: it is queued, or sent.
    pub released: bool,
}

/// Peers, and the calls that have no result yet.
#[derive(Default)]
pub(super) struct Peers {
    pub peers: BTreeMap<NodeNumber, Peer>,
    /// Ordered, so that broken connections fail calls in their order.
    pub calls: BTreeMap<CallId, Pending>,
}

impl Peers {
    pub fn peer(&mut self, node: NodeNumber) -> &mut Peer {
        self.peers.entry(node).or_default()
    }

    /// Ends all calls to `node` that are queued or sent, and gives their ids.
    pub fn take_calls(&mut self, node: NodeNumber) -> Vec<CallId> {
        let hit = |call: &Pending| call.to == node && call.released;
        let ids = self.calls.iter().filter(|(_, call)| hit(call)).map(|(id, _)| *id).collect();
        self.calls.retain(|_, call| !hit(call));
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_bound() {
        let mut backoff = ReconnectBackoff::default();
        let now = Time::from_ns(1_000);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            backoff.fail(now);
            pauses.push(backoff.not_before() - now);
        }
        assert_eq!(pauses[..3], [BACKOFF_MIN, BACKOFF_MIN * 2, BACKOFF_MIN * 4]);
        assert_eq!(pauses[39], BACKOFF_MAX);
        backoff.succeed();
        assert_eq!(backoff.not_before(), Time::ZERO);
    }
}
