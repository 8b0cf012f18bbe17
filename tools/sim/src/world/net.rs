//! The simulated network: connections that keep their order, and everything that can go wrong with
//! them. What is in flight when a connection breaks is lost or, towards a server, may arrive late:
//! after the retry that was sent over another connection.

use std::collections::BTreeMap;
use std::time::Duration;

use saker_runtime::rand::Rng;
use saker_runtime::time::Time;
use saker_types::NodeId;

/// Who sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Client(usize),
    Node(NodeId),
}

/// One connection, from the caller to the server.
pub struct WorldConn {
    pub from: Who,
    /// Life of the asking node; 0 of a client.
    pub from_life: u64,
    pub to: NodeId,
    pub to_life: u64,
    pub open: bool,
    /// It is broken, and what was in flight to the server arrives nevertheless.
    pub lets_late: bool,
    last_request: Time,
    last_reply: Time,
}

/// The state of the network.
pub struct WorldNet {
    pub conns: Vec<WorldConn>,
    /// Directions that nothing passes, and until when.
    blocked: BTreeMap<(Who, Who), Time>,
    /// Messages lost, and sent twice, of a million.
    pub loss_ppm: u64,
    pub double_ppm: u64,
    /// Messages that take long, of a million.
    pub spikes_ppm: u64,
}

impl WorldNet {
    /// A network without faults.
    pub fn new() -> WorldNet {
        WorldNet {
            conns: Vec::new(),
            blocked: BTreeMap::new(),
            loss_ppm: 0,
            double_ppm: 0,
            spikes_ppm: 0,
        }
    }

    /// All is well again.
    pub fn heal(&mut self) {
        self.blocked.clear();
        (self.loss_ppm, self.double_ppm, self.spikes_ppm) = (0, 0, 0);
    }

    /// Nothing passes in this direction for a while.
    pub fn block(&mut self, from: Who, to: Who, until: Time) {
        self.blocked.insert((from, to), until);
    }

    /// Until when nothing passes.
    pub fn blocked(&self, from: Who, to: Who, now: Time) -> Option<Time> {
        self.blocked.get(&(from, to)).copied().filter(|until| *until > now)
    }

    /// The connection to use; a new one if there is none. The lives say who still lives.
    pub fn connect(&mut self, from: Who, from_life: u64, to: NodeId, to_life: u64) -> usize {
        let fits = |c: &WorldConn| {
            c.open && (c.from, c.from_life, c.to, c.to_life) == (from, from_life, to, to_life)
        };
        self.conns.iter().rposition(fits).unwrap_or_else(|| {
            let (last_request, last_reply) = (Time::ZERO, Time::ZERO);
            self.conns.push(WorldConn {
                from,
                from_life,
                to,
                to_life,
                open: true,
                lets_late: false,
                last_request,
                last_reply,
            });
            self.conns.len() - 1
        })
    }

    /// When a message that is sent now arrives.
    pub fn arrival(&mut self, conn: usize, is_reply: bool, now: Time, rng: &mut Rng) -> Time {
        let (client, server) = (self.conns[conn].from, Who::Node(self.conns[conn].to));
        let (from, to) = if is_reply { (server, client) } else { (client, server) };
        let mut at = now + self.latency(from == to, rng);
        if let Some(until) = self.blocked(from, to, now) {
            at = at.max(until + Duration::from_micros(rng.below(200_000)));
        }
        let c = &mut self.conns[conn];
        let last = if is_reply { &mut c.last_reply } else { &mut c.last_request };
        at = at.max(*last + Duration::from_nanos(1));
        *last = at;
        at
    }

    fn latency(&self, is_loop: bool, rng: &mut Rng) -> Duration {
        if is_loop {
            return Duration::from_micros(1);
        }
        let usual = 20 + rng.below(200);
        if rng.chance(self.spikes_ppm, 1_000_000) {
            return Duration::from_micros(usual + rng.below(300_000));
        }
        match rng.below(50) {
            0 => Duration::from_micros(usual * 20),
            _ => Duration::from_micros(usual),
        }
    }
}

impl Default for WorldNet {
    fn default() -> WorldNet {
        WorldNet::new()
    }
}
