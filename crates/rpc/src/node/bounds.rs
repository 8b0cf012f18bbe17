//! What peers may make a node hold: connections, unfinished frames, unread replies
//! ([decision 42](../../../../docs/decisions/0042-bounds-of-servers.md)).
//!
//! Clients are bounded by their address and in all; idle connections make room for new ones. Members
//! of the cluster have room of their own, so that clients keep no node from another.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use saker_runtime::telemetry::{Counter, Registry, Throttle};
use saker_types::NodeId;

use crate::frame::PAYLOAD_BYTES_MAX;

/// Connections of clients and tools.
pub const CLIENTS_MAX: usize = 4096;
/// The same from one address. A mount has one for each of its threads.
pub const CLIENTS_PER_ADDRESS_MAX: usize = CLIENTS_MAX / 2;
/// Connections of the cluster's own nodes, beside those of clients.
pub const MEMBERS_MAX: usize = 1024;
/// The same of one node: it needs one, and a few may not have been missed yet.
pub(super) const CONNECTIONS_PER_MEMBER_MAX: usize = 8;
/// Connections whose hello has not come.
pub const GREETINGS_MAX: usize = 512;
/// A client's connection on which nothing is asked for so long is closed.
pub const IDLE_MAX: Duration = Duration::from_secs(600);
/// One that was idle for so long is closed if another one needs its place.
pub const IDLE_MIN: Duration = Duration::from_secs(1);
/// A frame that has begun must end, and replies that wait must be read, within this time.
pub const FRAME_TIME_MAX: Duration = Duration::from_secs(60);
/// The same while others wait for the memory: of one whose peer sends nothing.
pub const STALL_MAX: Duration = Duration::from_secs(5);
/// Bytes of large frames that are being read; others wait in their senders for their turn.
pub const UNFINISHED_BYTES_MAX: usize = 128 << 20;
/// With so many bytes of a frame it is a large one. (A read may bring four times more.)
pub(super) const LARGE_FRAME_BYTES: usize = 16 << 10;
/// Bytes that wait to be written, of all connections together.
pub const UNREAD_BYTES_MAX: usize = 1 << 30;
/// How often all this is looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The bounds of one node.
#[derive(Clone, Debug)]
pub struct Bounds {
    #[allow(missing_docs)]
    pub clients_max: usize,
    #[allow(missing_docs)]
    pub clients_per_address_max: usize,
    #[allow(missing_docs)]
    pub members_max: usize,
    #[allow(missing_docs)]
    pub greetings_max: usize,
    #[allow(missing_docs)]
    pub idle_max: Duration,
    #[allow(missing_docs)]
    pub idle_min: Duration,
    #[allow(missing_docs)]
    pub frame_time_max: Duration,
    #[allow(missing_docs)]
    pub stall_max: Duration,
    #[allow(missing_docs)]
    pub unfinished_bytes_max: usize,
    #[allow(missing_docs)]
    pub unread_bytes_max: usize,
    /// Of the payload of a request; 0 where only stores have any.
    pub payload_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            clients_max: CLIENTS_MAX,
            clients_per_address_max: CLIENTS_PER_ADDRESS_MAX,
            members_max: MEMBERS_MAX,
            greetings_max: GREETINGS_MAX,
            idle_max: IDLE_MAX,
            idle_min: IDLE_MIN,
            frame_time_max: FRAME_TIME_MAX,
            stall_max: STALL_MAX,
            unfinished_bytes_max: UNFINISHED_BYTES_MAX,
            unread_bytes_max: UNREAD_BYTES_MAX,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
        }
    }
}

/// Counters of connections.
#[derive(Clone, Default)]
pub struct ConnMetrics {
    /// Not let in.
    pub refused: Counter,
    /// Closed because of the bounds.
    pub ended: Counter,
}

impl ConnMetrics {
    /// Declares them.
    pub fn new(registry: &Registry) -> ConnMetrics {
        ConnMetrics {
            refused: registry.counter(
                "saker_connections_refused_total",
                "Connections that were not let in: too many, or a hello that was refused",
            ),
            ended: registry.counter(
                "saker_connections_ended_total",
                "Connections that were closed: idle while others came or for long, in the middle \
                 of a frame, not reading",
            ),
        }
    }
}

/// What an accepted connection counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guest {
    /// Connections that have said nothing yet, or are being refused.
    Greeting,
    /// A client or tool.
    Client,
    /// A node of the cluster.
    Member(NodeId),
}

/// What one address has.
#[derive(Default)]
struct Address {
    clients: usize,
    granted: usize,
}

/// What all connections have together.
#[derive(Default)]
pub(super) struct Usage {
    pub greetings: usize,
    pub clients: usize,
    pub members: usize,
    /// Memory that frames were given.
    granted: usize,
    addresses: HashMap<IpAddr, Address>,
    /// For lines about refused connections.
    pub refusals: Throttle,
    /// For lines about ended ones.
    pub ends: Throttle,
}

impl Usage {
    /// A connection counts from now on, or, with -1, no longer.
    pub fn count(&mut self, guest: Guest, ip: Option<IpAddr>, by: isize) {
        let add = |n: &mut usize| *n = n.saturating_add_signed(by);
        match guest {
            Guest::Greeting => add(&mut self.greetings),
            Guest::Member(_) => add(&mut self.members),
            Guest::Client => {
                add(&mut self.clients);
                self.change(ip, |address| add(&mut address.clients));
            }
        }
    }

    /// A large frame gets its memory, if there is some: one address gets half of it, and each
    /// enough for one frame.
    pub fn grant(&mut self, bounds: &Bounds, ip: Option<IpAddr>, bytes: usize) -> bool {
        let address = ip.and_then(|ip| self.addresses.get(&ip));
        let of_address = address.map_or(0, |address| address.granted);
        let fits = self.granted + bytes <= bounds.unfinished_bytes_max
            && of_address + bytes <= bounds.unfinished_bytes_max / 2;
        let granted = fits || of_address == 0;
        if granted {
            self.granted += bytes;
            self.change(ip, |address| address.granted += bytes);
        }
        granted
    }

    /// It is there, or its connection is gone.
    pub fn give_back(&mut self, ip: Option<IpAddr>, bytes: usize) {
        self.granted -= bytes;
        self.change(ip, |address| address.granted -= bytes);
    }

    fn change(&mut self, ip: Option<IpAddr>, change: impl FnOnce(&mut Address)) {
        let Some(ip) = ip else { return };
        let address = self.addresses.entry(ip).or_default();
        change(address);
        if address.clients == 0 && address.granted == 0 {
            self.addresses.remove(&ip);
        }
    }

    pub fn clients_of(&self, ip: Option<IpAddr>) -> usize {
        ip.and_then(|ip| self.addresses.get(&ip)).map_or(0, |address| address.clients)
    }

    /// The address with the most clients.
    pub fn largest(&self) -> Option<IpAddr> {
        let largest = self.addresses.iter().max_by_key(|(ip, address)| (address.clients, **ip));
        largest.map(|(ip, _)| *ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_gets_all_of_the_memory() {
        let bounds = Bounds { unfinished_bytes_max: 100, ..Bounds::default() };
        let mut usage = Usage::default();
        let ip = |n| Some(IpAddr::from([10, 0, 0, n]));
        assert!(usage.grant(&bounds, ip(1), 30) && usage.grant(&bounds, ip(1), 20));
        assert!(!usage.grant(&bounds, ip(1), 1), "it has half");
        assert!(usage.grant(&bounds, ip(2), 50));
        assert!(usage.grant(&bounds, ip(3), 70), "one frame of each goes on");
        assert!(!usage.grant(&bounds, ip(3), 1));
        usage.give_back(ip(1), 30);
        assert!(!usage.grant(&bounds, ip(1), 30), "others take it");
        usage.give_back(ip(3), 70);
        assert!(usage.grant(&bounds, ip(1), 30));
        [(1, 20), (1, 30), (2, 50)].iter().for_each(|(n, bytes)| usage.give_back(ip(*n), *bytes));
        assert!(usage.addresses.is_empty() && usage.granted == 0);
    }

    #[test]
    fn the_address_with_the_most_clients_makes_room() {
        let mut usage = Usage::default();
        let ip = |n| Some(IpAddr::from([10, 0, 0, n]));
        for n in [1, 2, 2, 3] {
            usage.count(Guest::Greeting, ip(n), 1);
            usage.count(Guest::Greeting, ip(n), -1);
            usage.count(Guest::Client, ip(n), 1);
        }
        assert_eq!((usage.largest(), usage.clients_of(ip(2))), (ip(2), 2));
        assert_eq!((usage.greetings, usage.clients, usage.members), (0, 4, 0));
        usage.count(Guest::Client, ip(3), -1);
        assert_eq!((usage.clients_of(ip(3)), usage.addresses.len()), (0, 2));
    }
}
