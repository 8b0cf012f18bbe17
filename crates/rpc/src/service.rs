//! A server whose handlers may wait for disks (stores): requests of one connection hold up
//! neither each other nor those of other connections.
//!
//! ```text
//! shells (threads with connections) ── attempt ──> answered on the spot: nothing to wait for
//!        │                                └──────> lanes: threads that wait, for reads and changes
//!        └<── ready replies, in any order ─────────── flush: one for all who wait for one
//! ```
//!
//! What is under way is bounded in number and bytes, for each connection and in all. A connection
//! above its bound is not read until half of that has been answered
//! ([decision 57](../../../docs/decisions/0057-stores-answer-in-any-order.md)).

mod adapter;
mod lane;
mod pool;
mod replies;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use saker_runtime::telemetry::{Counter, Gauge, Registry};
use saker_runtime::thread::{self, JoinHandle};
use saker_types::Error;

use crate::frame::Frame;
use crate::node::{Shell, ShellConfig, ShellPoll, Spread, StopHandle};
use adapter::Adapter;
use pool::Pool;
use replies::ReplyBox;

/// Requests taken at once: their replies may be chunks, and wait in memory if the peer is slow.
const BATCH_INPUTS_MAX: usize = 16;
/// A batch ends, and its replies are sent, when handlers have worked for this long.
const BATCH_TIME_MAX: Duration = Duration::from_micros(500);
/// A batch ends when its replies have this many bytes.
const BATCH_REPLY_BYTES_MAX: usize = 1 << 20;

/// Answers requests; called from several threads at once, in no order.
pub trait Service: Send + Sync + 'static {
    /// Carries out a request on the thread of its connection, which must not wait: neither for a
    /// disk nor for another request.
    ///
    /// # Errors
    /// The request, if it would have to wait. Nothing was done.
    fn attempt(&self, frame: Frame) -> Result<ServiceOutcome, Blocked>;

    /// Carries out a request on a thread that may wait, but for a flush.
    fn execute(&self, frame: Frame) -> ServiceOutcome;

    /// Makes durable what was carried out before.
    ///
    /// # Errors
    /// Some of it may not be.
    fn flush(&self) -> saker_types::Result<()>;

    /// Carries out a request on this thread, however long that takes. [`Frame::reply`] makes the
    /// answer.
    fn handle(&self, frame: Frame) -> Frame {
        match self.execute(frame) {
            ServiceOutcome::Reply(reply) => reply,
            ServiceOutcome::AfterFlush(reply) => reply(self.flush().err().as_ref()),
        }
    }
}

/// What became of a request.
pub enum ServiceOutcome {
    /// The answer.
    Reply(Frame),
    /// The answer must wait for a flush that begins now or later.
    AfterFlush(AfterFlush),
}

/// Makes the answer when the flush has ended, or failed with this.
pub type AfterFlush = Box<dyn FnOnce(Option<&Error>) -> Frame + Send>;

/// A request that has to wait.
pub struct Blocked {
    /// The request.
    pub frame: Frame,
    /// Whom it may wait behind.
    pub lane: Lane,
    /// What its answer may take, bytes.
    pub reply_bytes: usize,
}

/// Threads that wait. Those of one lane do not hold up the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Reads only.
    Read,
    /// May change something.
    Change,
}

/// What may be under way of requests that could not be answered on the spot.
#[derive(Clone, Copy, Debug)]
pub struct ServiceLimits {
    /// Threads that wait for reads: as many as a disk may serve at once.
    pub read_threads: usize,
    /// Threads that wait for changes. These wait for each other rather than for a disk.
    pub change_threads: usize,
    /// Requests of one connection; above, it is not read. (Those are more that were read
    /// together.)
    pub conn_requests: usize,
    /// Bytes of them and of their answers.
    pub conn_bytes: usize,
    /// Requests of all connections; above, those are not read which send another.
    pub requests: usize,
    /// Bytes of them and of their answers.
    pub bytes: usize,
}

impl Default for ServiceLimits {
    fn default() -> ServiceLimits {
        ServiceLimits {
            read_threads: 64,
            change_threads: 16,
            conn_requests: 256,
            conn_bytes: 64 << 20,
            requests: 16 << 10,
            bytes: 1 << 30,
        }
    }
}

/// What a service counts.
#[derive(Clone, Default)]
pub struct ServiceMetrics {
    /// Could not be answered on the spot.
    pub blocked: Counter,
    /// No thread was free for them yet.
    pub queued: Gauge,
    /// Connections that are not read for the bounds' sake.
    pub paused: Gauge,
}

impl ServiceMetrics {
    /// Declares them.
    pub fn new(registry: &Registry) -> ServiceMetrics {
        ServiceMetrics {
            blocked: registry.counter(
                "saker_service_blocked_total",
                "Requests that could not be answered on the spot: they wait for a disk, a flush or \
                 another request",
            ),
            queued: registry.gauge(
                "saker_service_queued",
                "Requests that wait for one of the threads that wait for disks: all are busy",
            ),
            paused: registry.gauge(
                "saker_service_paused",
                "Connections that are not read, because too much that came by them is under way",
            ),
        }
    }
}

/// How a service runs.
#[derive(Clone, Default)]
pub struct ServiceConfig {
    /// Threads that read, execute and answer; each has its share of the connections.
    pub shells: usize,
    #[allow(missing_docs)]
    pub limits: ServiceLimits,
    #[allow(missing_docs)]
    pub metrics: ServiceMetrics,
}

/// Serves until `stop`. Each connection goes to the shell that has the fewest, and stays there.
/// Requests are carried out, and answered, in any order.
///
/// # Errors
/// When a thread or a poll cannot be made, or a thread breaks: then all are stopped.
pub fn serve(
    listener: &TcpListener,
    service: &Arc<dyn Service>,
    shell: &ShellConfig,
    config: &ServiceConfig,
    stop: &StopHandle,
) -> io::Result<()> {
    let spread = Spread::default();
    let polls = (0..config.shells.max(1)).map(|_| ShellPoll::new(&spread));
    let polls = polls.collect::<io::Result<Vec<ShellPoll>>>()?;
    let boxes: Vec<_> = polls.iter().map(|poll| ReplyBox::new(poll.waker())).collect();
    let pool = Pool::new(service.clone(), config, boxes.clone(), stop.clone());
    let start = |n, poll, replies: Arc<ReplyBox>| -> io::Result<JoinHandle<io::Result<()>>> {
        let listener = if n == 0 { Some(listener.try_clone()?) } else { None };
        let batch_inputs_max = shell.batch_inputs_max.min(BATCH_INPUTS_MAX);
        let shell = ShellConfig { batch_inputs_max, ..shell.clone() };
        let (service, pool, stop) = (service.clone(), pool.clone(), stop.clone());
        thread::spawn(&format!("service-{n}"), move || {
            let together = Together(stop);
            let adapter = Adapter::new(service, pool, replies);
            Shell::shared(adapter, poll, listener, shell)?.run(&together.0)
        })
    };
    let mut running = Vec::new();
    let mut outcome = Ok(());
    for (n, (poll, replies)) in polls.into_iter().zip(boxes).enumerate() {
        match start(n, poll, replies) {
            Ok(thread) => running.push(thread),
            Err(error) => {
                stop.stop();
                outcome = Err(error);
                break;
            }
        }
    }
    for thread in running {
        outcome = outcome.and(joined(thread).and_then(|ended| ended));
    }
    outcome.and(pool.end())
}

fn joined<T>(thread: JoinHandle<T>) -> io::Result<T> {
    thread.join().map_err(|_| io::Error::other("a service thread panicked"))
}

/// Stops all threads of a service when one ends, for whatever reason: with the others going on,
/// a part of the requests would never be served.
struct Together(StopHandle);

impl Drop for Together {
    fn drop(&mut self) {
        self.0.stop();
    }
}
