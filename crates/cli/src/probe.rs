//! Does a process of the cluster serve?

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::layout::{Cluster, Role, RoleId};
use crate::mountpoint;

/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// State of a role, as `saker status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It serves.
    Up,
    /// There is no process.
    Down,
    /// There is a process that does not serve yet.
    Starting,
}

impl State {
    /// As in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            State::Up => "up",
            State::Down => "down",
            State::Starting => "starting",
        }
    }
}

/// Does the role answer now?
pub fn serves(cluster: &Cluster, id: RoleId) -> bool {
    let mounted = |point: &std::path::PathBuf| {
        mountpoint::is_mounted(point) && mountpoint::answers(point, ANSWER_WITHIN)
    };
    match id.role {
        Role::Mount => cluster.mount.as_ref().is_some_and(mounted),
        Role::Coordinator | Role::Mnode | Role::Store => cluster
            .addrs(id)
            .split_last()
            .is_some_and(|(http, listen)| healthy(*http) && listen.iter().all(|a| accepts(*a))),
    }
}

/// Does somebody accept connections there?
pub fn accepts(addr: SocketAddr) -> bool {
    TcpStream::connect_timeout(&addr, ANSWER_WITHIN).is_ok()
}

/// Does `/healthz` at this address say ok?
pub fn healthy(http: SocketAddr) -> bool {
    get(http, "/healthz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// The answer to an HTTP request, header and all; `None` when there is none.
fn get(http: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&http, ANSWER_WITHIN).ok()?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_asked_over_http() {
        let registry = saker_runtime::telemetry::Registry::new();
        let any = SocketAddr::new(crate::ports::LOOPBACK, 0);
        let addr = saker_runtime::telemetry::serve_http(any, registry).unwrap();
        assert!(healthy(addr) && accepts(addr));
        let silent = std::net::TcpListener::bind(any).unwrap();
        let nobody = silent.local_addr().unwrap();
        drop(silent);
        assert!(!healthy(nobody) && !accepts(nobody));
    }
}
