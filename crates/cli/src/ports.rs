//! Which ports a new cluster takes: the contract's where they are free, else the next ones.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::time::Duration;

use saker_runtime::time;

use crate::fail::{Failure, Outcome};

/// All roles of `saker up` listen here only.
pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// First port of a cluster, unless the user says otherwise (contract.md, "Ports").
pub const BASE: u16 = 7400;
/// Largest first port: below the kernel's ephemeral ports, with room for a cluster.
pub const BASE_MAX: u16 = 31_000;
/// No cluster's ports go beyond: below the kernel's ephemeral ports.
const END: u16 = 32_000;

/// What a port is for: each role has its own range above the cluster's first port.
#[derive(Clone, Copy)]
pub enum Range {
    /// The coordinator.
    Coordinator,
    /// Workers of MNodes.
    Mnode,
    /// Stores.
    Store,
    /// Metrics of all roles.
    Http,
    /// What finds no port in its range, or only one that somebody else has taken.
    Others,
}

impl Range {
    fn ports(self, base: u16) -> std::ops::Range<u16> {
        let (from, to) = match self {
            Range::Coordinator => (0, 10),
            Range::Mnode => (10, 30),
            Range::Store => (30, 50),
            Range::Http => (80, 100),
            Range::Others => return base + 100..END,
        };
        base + from..base + to
    }
}

/// Hands out ports, each once.
pub struct Ports {
    base: u16,
    given: HashSet<u16>,
}

impl Ports {
    /// Of a cluster whose first port is `base`, at most [`BASE_MAX`]; hands out none of `given`.
    pub fn new(base: u16, given: impl IntoIterator<Item = u16>) -> Ports {
        Ports { base, given: given.into_iter().collect() }
    }

    /// The next free port of a range.
    pub fn take(&mut self, range: Range) -> Outcome<SocketAddr> {
        let mut candidates = range.ports(self.base).chain(Range::Others.ports(self.base));
        let port = candidates
            .find(|port| !self.given.contains(port) && is_free(*port))
            .ok_or_else(|| Failure::new("ports", format!("none is free up to {END}")))?;
        self.given.insert(port);
        Ok(SocketAddr::new(LOOPBACK, port))
    }
}

/// Can somebody listen on this port of the loopback now?
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((LOOPBACK, port)).is_ok()
}

/// Does somebody accept connections there?
pub fn accepts(addr: SocketAddr) -> bool {
    TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
}

/// Two `saker up` on one machine choose and bind their ports one after the other. The lock goes
/// with the process, and belongs to no user.
pub struct PortLock(#[allow(dead_code)] Option<UnixListener>);

impl PortLock {
    /// Waits for the others, but not for ever for one that is stuck.
    pub fn wait() -> PortLock {
        let deadline = time::now() + Duration::from_secs(15);
        loop {
            let bound = UnixAddr::from_abstract_name("saker-up-ports")
                .and_then(|name| UnixListener::bind_addr(&name));
            if bound.is_ok() || time::now() > deadline {
                return PortLock(bound.ok());
            }
            time::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_given_once_and_taken_ones_are_passed_over() {
        let mut ports = Ports::new(BASE, []);
        let first = ports.take(Range::Http).unwrap();
        let second = ports.take(Range::Http).unwrap();
        assert_ne!(first, second);
        let _holder = TcpListener::bind((LOOPBACK, second.port() + 1));
        let third = ports.take(Range::Http).unwrap();
        assert!(third.port() > second.port() + 1, "{third}");
    }

    #[test]
    fn a_full_range_overflows() {
        let mut ports = Ports::new(20_000, 20_030..20_050);
        assert!(ports.take(Range::Store).unwrap().port() >= 20_100);
    }
}
