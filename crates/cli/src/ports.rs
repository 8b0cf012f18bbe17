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

/// Where each role's ports start, and the port they must stay below (contract.md, "Ports").
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
    /// Instead of a port that somebody else has taken.
    Moved,
}

/// Used when a role's own range is full; below the kernel's ephemeral ports.
const OVERFLOW: std::ops::Range<u16> = 7500..32_000;

impl Range {
    fn ports(self) -> std::ops::Range<u16> {
        match self {
            Range::Coordinator => 7400..7410,
            Range::Mnode => 7410..7430,
            Range::Store => 7430..7450,
            Range::Http => 7480..7500,
            Range::Moved => OVERFLOW,
        }
    }
}

/// Hands out ports, each once.
#[derive(Default)]
pub struct Ports {
    given: HashSet<u16>,
}

impl Ports {
    /// Hands out none of these.
    pub fn except(given: impl IntoIterator<Item = u16>) -> Ports {
        Ports { given: given.into_iter().collect() }
    }

    /// The next free port of a range.
    pub fn take(&mut self, range: Range) -> Outcome<SocketAddr> {
        let mut candidates = range.ports().chain(OVERFLOW);
        let port = candidates
            .find(|port| !self.given.contains(port) && is_free(*port))
            .ok_or_else(|| Failure::new("ports", "none is free between 7400 and 32000"))?;
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
pub struct Lock(#[allow(dead_code)] Option<UnixListener>);

impl Lock {
    /// Waits for the others, but not for ever for one that is stuck.
    pub fn wait() -> Lock {
        let deadline = time::now() + Duration::from_secs(15);
        loop {
            let bound = UnixAddr::from_abstract_name("saker-up-ports")
                .and_then(|name| UnixListener::bind_addr(&name));
            if bound.is_ok() || time::now() > deadline {
                return Lock(bound.ok());
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
        let mut ports = Ports::default();
        let first = ports.take(Range::Http).unwrap();
        let second = ports.take(Range::Http).unwrap();
        assert_ne!(first, second);
        let _holder = TcpListener::bind((LOOPBACK, second.port() + 1));
        let third = ports.take(Range::Http).unwrap();
        assert!(third.port() > second.port() + 1, "{third}");
    }

    #[test]
    fn a_full_range_overflows() {
        let mut ports = Ports::except(7430..7450);
        assert!(ports.take(Range::Store).unwrap().port() >= 7500);
    }
}
