//! Connections to all peers, and which peers fail.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use saker_agent_api::{Ask, Reply};
use saker_runtime::time::{self, Time};
use tokio::sync::Semaphore;

use super::client::Connection;
use crate::error::{Error, Result};

/// Connections to a peer, and so requests under way.
const CONNECTIONS_MAX: usize = 8;
/// A peer that failed is left alone for so long at first, and at most.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Part of the timeout that a peer has which fails already.
const TRY_SHARE: u32 = 10;

/// The other agents, by address.
pub(crate) struct Peers {
    peers: Mutex<BTreeMap<String, Arc<Peer>>>,
    key: Arc<[u8]>,
    timeout: Duration,
}

impl Peers {
    pub(crate) fn new(key: Arc<[u8]>, timeout: Duration) -> Peers {
        Peers { peers: Mutex::default(), key, timeout }
    }

    /// The peer at `host:port`.
    pub(crate) fn get(&self, addr: &str) -> Arc<Peer> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Arc::new(Peer::new(addr, self.key.clone(), self.timeout));
        peers.entry(addr.to_owned()).or_insert_with(make).clone()
    }
}

/// What is known of a peer's failures.
#[derive(Clone, Copy, Default)]
struct Health {
    /// It has not answered since.
    failing_since: Option<Time>,
    /// It is left alone until.
    retry_at: Time,
    /// Failures in a row.
    failures: u32,
}

/// Another agent.
pub(crate) struct Peer {
    addr: String,
    key: Arc<[u8]>,
    timeout: Duration,
    idle: Mutex<Vec<Connection>>,
    slots: Semaphore,
    health: Mutex<Health>,
}

impl Peer {
    fn new(addr: &str, key: Arc<[u8]>, timeout: Duration) -> Peer {
        Peer {
            addr: addr.to_owned(),
            key,
            timeout,
            idle: Mutex::default(),
            slots: Semaphore::new(CONNECTIONS_MAX),
            health: Mutex::default(),
        }
    }

    /// Asks the peer.
    ///
    /// # Errors
    /// What it answers, with its name; of the connection.
    pub(crate) async fn call(&self, ask: Ask) -> Result<Reply> {
        // Whoever waits for a connection is told of the failures meanwhile.
        let _slot = self.slots.acquire().await.map_err(|e| Error::new(Errno::IO, e))?;
        let (within, failures) = self.begin();
        let reply = self.exchange(ask, within).await;
        self.note(reply.is_ok(), failures);
        let reply = reply.map_err(|error| Error::io(format_args!("peer {}", self.addr), error))?;
        match reply.errno {
            0 => Ok(reply),
            _ => Err(Error::of_peer(&self.addr, &reply)),
        }
    }

    /// How long the peer may take, and its failures in a row so far. One that fails is tried by a
    /// single request, which waits for a short time only: a peer that hangs must not keep readers
    /// waiting again and again.
    fn begin(&self) -> (Duration, u32) {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if health.failing_since.is_none() {
            return (self.timeout, health.failures);
        }
        let within = self.timeout / TRY_SHARE;
        health.retry_at = health.retry_at.max(time::now() + within);
        (within, health.failures)
    }

    async fn exchange(&self, ask: Ask, within: Duration) -> io::Result<Reply> {
        if let Some(mut connection) = self.take() {
            // It may have been closed, or its agent started anew, since it was used.
            match connection.call(ask.clone(), within).await {
                Ok(reply) => {
                    self.give(connection);
                    return Ok(reply);
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                Err(_) => self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear(),
            }
        }
        let mut connection = Connection::open(&self.addr, &self.key, within).await?;
        let reply = connection.call(ask, within).await?;
        self.give(connection);
        Ok(reply)
    }

    fn take(&self) -> Option<Connection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    /// Notes how a request ended that began after `failures`. Requests that were under way together
    /// are one failure: an agent that is started again must not be left alone for long.
    fn note(&self, answered: bool, failures: u32) {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            *health = Health::default();
            return;
        }
        if health.failures != failures {
            return;
        }
        let now = time::now();
        health.failing_since.get_or_insert(now);
        let backoff = BACKOFF_MIN * 2u32.saturating_pow(health.failures);
        health.retry_at = now + backoff.min(BACKOFF_MAX);
        health.failures = (health.failures + 1).min(16);
    }

    fn health(&self) -> Health {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It failed of late, and is left alone for now.
    pub(crate) fn is_left_alone(&self) -> bool {
        let health = self.health();
        health.failing_since.is_some() && time::now() < health.retry_at
    }

    /// For how long it has not answered.
    pub(crate) fn failing_for(&self) -> Duration {
        self.health().failing_since.map_or(Duration::ZERO, |since| time::now().since(since))
    }
}

#[cfg(test)]
mod tests {
    use saker_agent_api::Named;

    use super::*;

    #[tokio::test]
    async fn requests_that_fail_together_are_one_failure() {
        // Nobody listens there any more.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        drop(listener);
        let peer = Peer::new(&addr, Arc::from([]), Duration::from_secs(5));
        let ask = || peer.call(Ask::Status(Named { dataset: String::new() }));
        let all: [_; CONNECTIONS_MAX] = std::array::from_fn(|_| ask());
        assert!(futures_util::future::join_all(all).await.iter().all(Result::is_err));
        let health = peer.health();
        assert_eq!(health.failures, 1);
        assert!(health.retry_at <= time::now() + BACKOFF_MIN);
        // The next one is another failure.
        ask().await.unwrap_err();
        assert_eq!(peer.health().failures, 2);
    }
}
