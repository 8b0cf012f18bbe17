//! The servers of a cluster: where they are, and a request to a given one, sent until it is answered.

use std::future::{Future, ready};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_rpc::CallError;
use saker_runtime::telemetry::{Counter, Registry};
use saker_runtime::time::{self, Time};
use saker_types::wire::{Empty, MapReq, Op, SessionReq};
use saker_types::{Class, ClusterMap, Errno, Error, NodeId, Result};

use crate::ClientStats;
use crate::holds::table::SubtreeHolds;
use crate::net::route::{self, Routes};
use crate::net::seen::Seen;
use crate::net::session::{ClientSessions, Session};
use crate::net::{Net, ReplyFrame};

/// One attempt at a metadata request waits this long; a request that the node has parked is
/// answered before.
pub(crate) const ATTEMPT_MAX: Duration = Duration::from_secs(15);
/// The part of an attempt that is left for the answer's way back.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);
const BACKOFF_MIN: Duration = Duration::from_millis(2);
const BACKOFF_MAX: Duration = Duration::from_millis(200);
/// After this many failures to connect in a row, the node may have another address by now.
const REFRESH_AFTER: u32 = 8;

/// The servers, as one client knows them, and its sessions with them.
pub(crate) struct Cluster {
    pub(crate) net: Net,
    /// Of one operation, retries included.
    timeout: Duration,
    routes: RwLock<Arc<Routes>>,
    /// The newest version of the map that a server has told of.
    map_heard: AtomicU64,
    pub(crate) sessions: ClientSessions,
    pub(crate) seen: Seen,
    pub(crate) holds: SubtreeHolds,
    pub(crate) registry: Registry,
    retries: Counter,
    /// Trace ids are a random start and a count, mixed.
    trace_seed: u64,
    traces: AtomicU64,
}

/// Why one attempt brought no result.
pub(crate) enum Fail {
    /// There was no answer.
    Call(CallError),
    /// The answer is an error.
    Answer(Error),
}

impl std::fmt::Display for Fail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fail::Call(e) => write!(f, "{e}"),
            Fail::Answer(e) => write!(f, "{e}"),
        }
    }
}

/// Pauses between attempts: doubling, with jitter.
pub(crate) struct Backoff {
    pub(crate) attempts: u32,
    pub(crate) deadline: Time,
}

impl Backoff {
    pub(crate) fn until(deadline: Time) -> Backoff {
        Backoff { attempts: 0, deadline }
    }

    /// The next pause, from half of its nominal length to all of it.
    fn next(&mut self, random: u64) -> Duration {
        let nominal = BACKOFF_MIN.saturating_mul(1 << self.attempts.min(16)).min(BACKOFF_MAX);
        self.attempts += 1;
        let half = nominal / 2;
        half + Duration::from_nanos(random % (half.as_nanos() as u64 + 1))
    }
}

/// Decodes a reply's body.
pub(crate) fn decode<A: Message + Default>(op: Op, body: Bytes) -> Result<A> {
    A::decode(body).map_err(|e| {
        Error::of_class(Class::Fatal, Errno::EPROTO)
            .with_text(format!("reply to {}: {e}", op.name()))
    })
}

/// A reply that is no error.
pub(crate) fn judged(
    op: Op,
    reply: std::result::Result<ReplyFrame, CallError>,
) -> std::result::Result<ReplyFrame, Fail> {
    let reply = reply.map_err(Fail::Call)?;
    match reply.status {
        0 => Ok(reply),
        _ => Err(Fail::Answer(decode(op, reply.body).unwrap_or_else(|e| e))),
    }
}

impl Cluster {
    /// Takes the map from one of `coordinators`. `who`: this client in words, for messages.
    pub(crate) fn connect(
        net: Net,
        coordinators: &[SocketAddr],
        timeout: Duration,
        who: String,
    ) -> Result<Cluster> {
        let registry = Registry::new();
        let deadline = time::now() + timeout;
        let map = net.block_on(first_map(&net, &registry, coordinators, deadline))?;
        Cluster::with_map(net, registry, map, timeout, who)
    }

    /// The same, over a network that somebody else drives.
    pub(crate) async fn connect_driven(
        net: Net,
        coordinators: &[SocketAddr],
        timeout: Duration,
        who: String,
    ) -> Result<Cluster> {
        let registry = Registry::new();
        let deadline = time::now() + timeout;
        let map = first_map(&net, &registry, coordinators, deadline).await?;
        Cluster::with_map(net, registry, map, timeout, who)
    }

    fn with_map(
        net: Net,
        registry: Registry,
        map: ClusterMap,
        timeout: Duration,
        who: String,
    ) -> Result<Cluster> {
        net.know_cluster(&map)?;
        let routes = RwLock::new(Arc::new(Routes::new(map, &registry)?));
        let retries = registry.counter("saker_client_retries_total", "Requests sent again");
        Ok(Cluster {
            net,
            timeout,
            routes,
            map_heard: AtomicU64::new(0),
            sessions: ClientSessions::new(),
            seen: Seen::default(),
            holds: SubtreeHolds::new(who),
            registry,
            retries,
            trace_seed: saker_runtime::rand::u64(),
            traces: AtomicU64::new(0),
        })
    }

    /// The newest map known, with all that is derived from it.
    pub(crate) fn routes(&self) -> Arc<Routes> {
        self.routes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A trace id.
    pub(crate) fn trace(&self) -> u64 {
        mix(self.trace_seed.wrapping_add(self.traces.fetch_add(1, Ordering::Relaxed)))
    }

    /// When an operation that begins now gives up.
    pub(crate) fn deadline(&self) -> Time {
        time::now() + self.timeout
    }

    /// Sends a request once, and takes the reply as it is.
    pub(crate) async fn send_for_reply(
        &self,
        routes: &Routes,
        to: NodeId,
        op: Op,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        deadline: Time,
    ) -> std::result::Result<ReplyFrame, CallError> {
        let peer = routes.peer(to).ok_or(CallError::Unreachable)?;
        peer.sent.inc(op as u16);
        self.net.call(peer.addr, op, trace, body, payload, deadline).await
    }

    /// Sends a request once.
    pub(crate) async fn send(
        &self,
        routes: &Routes,
        to: NodeId,
        op: Op,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        deadline: Time,
    ) -> std::result::Result<ReplyFrame, Fail> {
        judged(op, self.send_for_reply(routes, to, op, trace, body, payload, deadline).await)
    }

    /// Sends a request to a node until it answers with a result or a final error. Only for what
    /// may be executed twice. `attempt_max` bounds one attempt.
    pub(crate) async fn call(
        &self,
        to: NodeId,
        op: Op,
        message: &impl Message,
        payload: Bytes,
        attempt_max: Duration,
        deadline: Time,
    ) -> Result<ReplyFrame> {
        let body = Bytes::from(message.encode_to_vec());
        let may_send = || ready(Ok(Time::MAX));
        self.call_while(to, op, |_| body.clone(), payload, attempt_max, deadline, may_send).await
    }

    /// As [`Cluster::call`], with a body of its own for each attempt, numbered from 0, and as long as `may_send` says
    /// until when an attempt may last.
    ///
    /// # Errors
    /// Also its.
    pub(crate) async fn call_while<F: Future<Output = Result<Time>>>(
        &self,
        to: NodeId,
        op: Op,
        body: impl Fn(u32) -> Bytes,
        payload: Bytes,
        attempt_max: Duration,
        deadline: Time,
        may_send: impl Fn() -> F,
    ) -> Result<ReplyFrame> {
        let (trace, mut backoff) = (self.trace(), Backoff::until(deadline));
        loop {
            let routes = self.routes();
            let until = deadline.min(time::now() + attempt_max).min(may_send().await?);
            let body = body(backoff.attempts);
            let sent = self.send(&routes, to, op, trace, body, payload.clone(), until);
            let fail = match sent.await {
                Ok(reply) => return Ok(reply),
                Err(fail) => fail,
            };
            match &fail {
                Fail::Answer(e) if e.is(Class::RefreshMap) => self.refresh_map(&routes).await,
                Fail::Answer(e) if !e.is(Class::Retry) => return Err(e.clone()),
                _ => {}
            }
            self.pause(&mut backoff, to, op, &routes, &fail).await?;
        }
    }

    /// Has all shards make durable what they have answered.
    ///
    /// # Errors
    /// ETIMEDOUT when one does not answer.
    pub(crate) async fn sync_journals(&self) -> Result<()> {
        let (deadline, shards) = (self.deadline(), self.routes().map.shards.len());
        let sync = |n| async move {
            let (to, op) = (NodeId::Shard(n as u16), Op::SyncJournal);
            self.call(to, op, &Empty {}, Bytes::new(), ATTEMPT_MAX, deadline).await
        };
        all((0..shards).map(sync)).await.map(drop)
    }

    /// How long a node may park a request whose attempt ends at `until`, in milliseconds.
    pub(crate) fn wait_ms(until: Time) -> u32 {
        let left = until - time::now();
        let wait = left.saturating_sub(ANSWER_MARGIN).max(left / 2);
        wait.as_millis() as u32
    }

    /// Waits before the next attempt, or gives up at the deadline with the reason.
    pub(crate) async fn pause(
        &self,
        backoff: &mut Backoff,
        to: NodeId,
        op: Op,
        routes: &Arc<Routes>,
        fail: &Fail,
    ) -> Result<()> {
        if let Fail::Call(CallError::TooLarge) = fail {
            return Err(Error::new(Errno::E2BIG).with_text(fail.to_string()));
        }
        if let Fail::Call(CallError::Ended) = fail {
            return Err(Error::new(Errno::EIO).with_text(fail.to_string()));
        }
        let unreachable = matches!(fail, Fail::Call(CallError::Unreachable | CallError::Refused));
        if unreachable && to != NodeId::Coordinator && backoff.attempts % REFRESH_AFTER == 7 {
            self.refresh_map(routes).await;
        }
        let until = time::now() + backoff.next(self.trace());
        if until >= backoff.deadline {
            let errno = match fail {
                // A server that answers so is there, and not the one that we want.
                Fail::Call(CallError::Refused) => Errno::EIO,
                Fail::Call(_) | Fail::Answer(_) => Errno::ETIMEDOUT,
            };
            let text = format!("{} to {to}, {} attempts: {fail}", op.name(), backoff.attempts);
            return Err(Error::new(errno).with_text(text));
        }
        self.retries.inc();
        self.net.sleep_until(until).await;
        Ok(())
    }

    /// Asks the coordinator once for a map newer than that of `old`, unless another operation
    /// has brought one. Failing is no harm: the caller tries again.
    pub(crate) async fn refresh_map(&self, old: &Arc<Routes>) {
        if !Arc::ptr_eq(old, &self.routes()) {
            return;
        }
        let body = Bytes::from(MapReq { newer_than: 0 }.encode_to_vec());
        let until = time::now() + ANSWER_MARGIN;
        let reply =
            self.send(old, NodeId::Coordinator, Op::Map, self.trace(), body, Bytes::new(), until);
        let map = match reply.await {
            Ok(reply) => decode::<ClusterMap>(Op::Map, reply.body),
            Err(Fail::Answer(e)) => Err(e),
            Err(Fail::Call(_)) => return,
        };
        match map.and_then(|map| Routes::new(map, &self.registry)) {
            Ok(new) => {
                let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
                if new.map.version > routes.map.version && new.map.uuid == routes.map.uuid {
                    *routes = Arc::new(new);
                }
            }
            Err(e) => tracing::warn!("the coordinator's map cannot be used: {e}"),
        }
    }

    /// A server knows a map of this version. If it is newer than that of `routes`, it is fetched
    /// soon: nobody waits for it.
    pub(crate) fn heard_of_map(&self, version: u64, routes: &Routes) {
        if version > routes.map.version {
            self.map_heard.fetch_max(version, Ordering::Relaxed);
        }
    }

    /// Was a newer map told of than there is?
    pub(crate) fn is_map_old(&self) -> bool {
        self.map_heard.load(Ordering::Relaxed) > self.routes().map.version
    }

    /// Fetches it.
    pub(crate) async fn follow_map(&self) {
        if self.is_map_old() {
            self.refresh_map(&self.routes()).await;
        }
    }

    /// Makes a session known to a node.
    pub(crate) async fn open_session(
        &self,
        session: &Session,
        node: NodeId,
        deadline: Time,
    ) -> Result<()> {
        let (message, asked) = (SessionReq { session: session.id }, time::now());
        self.call(node, Op::OpenSession, &message, Bytes::new(), ATTEMPT_MAX, deadline).await?;
        session.heard(node, asked);
        Ok(())
    }

    /// Tells all nodes that the client's sessions end.
    pub(crate) async fn end_sessions(&self) {
        self.tell_end(self.sessions.end()).await;
    }

    /// The same of sessions that are over while others go on.
    pub(crate) async fn end_old_sessions(&self) {
        self.tell_end(self.sessions.over()).await;
    }

    /// One attempt each: a session whose end a node does not hear costs it a little memory.
    async fn tell_end(&self, ended: Vec<(u64, NodeId)>) {
        let routes = self.routes();
        let until = time::now() + ANSWER_MARGIN;
        let tell = ended.into_iter().map(|(session, node)| {
            let body = Bytes::from(SessionReq { session }.encode_to_vec());
            self.send(&routes, node, Op::CloseSession, self.trace(), body, Bytes::new(), until)
        });
        futures_util::future::join_all(tell).await;
    }

    /// What was sent so far.
    pub(crate) fn stats(&self) -> ClientStats {
        let mut requests = Vec::new();
        for (node, peer) in self.routes().all() {
            for op in Op::ALL {
                match peer.sent.get(*op as u16) {
                    0 => {}
                    n => requests.push((op.name(), route::label(node), n)),
                }
            }
        }
        ClientStats { requests, retries: self.retries.get() }
    }
}

/// The first map, from whichever coordinator answers.
async fn first_map(
    net: &Net,
    registry: &Registry,
    coordinators: &[SocketAddr],
    deadline: Time,
) -> Result<ClusterMap> {
    let sent = route::counters(registry, NodeId::Coordinator);
    let body = Bytes::from(MapReq { newer_than: 0 }.encode_to_vec());
    let mut backoff = Backoff::until(deadline);
    loop {
        let mut fail = Fail::Call(CallError::Unreachable);
        for addr in coordinators {
            sent.inc(Op::Map as u16);
            let until = deadline.min(time::now() + ATTEMPT_MAX);
            let trace = saker_runtime::rand::u64();
            let call = net.call(*addr, Op::Map, trace, body.clone(), Bytes::new(), until);
            fail = match call.await {
                Ok(reply) if reply.status == 0 => return decode(Op::Map, reply.body),
                Ok(reply) => Fail::Answer(decode(Op::Map, reply.body)?),
                Err(e) => Fail::Call(e),
            };
        }
        let until = time::now() + backoff.next(saker_runtime::rand::u64());
        if until >= deadline {
            let text = format!("no coordinator at {coordinators:?}: {fail}");
            return Err(Error::new(Errno::ETIMEDOUT).with_text(text));
        }
        net.sleep_until(until).await;
    }
}

/// Mixes the bits of a number (the finalizer of SplitMix64): different in, different out.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

/// Drives `futures` all at once; their results in order, or the first error.
pub(crate) async fn all<T, F: Future<Output = Result<T>>>(
    futures: impl IntoIterator<Item = F>,
) -> Result<Vec<T>> {
    futures_util::future::try_join_all(futures).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let mut backoff = Backoff::until(Time::MAX);
        for ms in [2u64, 4, 8, 16, 32, 64, 128, 200, 200, 200] {
            let nominal = Duration::from_millis(ms);
            let attempts = backoff.attempts;
            assert_eq!(backoff.next(0), nominal / 2);
            backoff.attempts = attempts;
            let longest = backoff.next(nominal.as_nanos() as u64 / 2);
            assert_eq!(longest, nominal);
        }
    }

    #[test]
    fn a_node_answers_before_the_attempt_ends() {
        for (left, least, most) in [(15_000, 13_900, 14_000), (1_500, 700, 760), (10, 3, 5)] {
            let wait = Cluster::wait_ms(time::now() + Duration::from_millis(left));
            assert!((least..=most).contains(&wait), "{left}: {wait}");
        }
    }
}
