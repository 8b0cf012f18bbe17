//! The loop: wait, read, step, flush, write.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mio::Waker;
use saker_runtime::time::{self, Time};

use super::bounds::{Bounds, ConnMetrics};
use super::gate::Gate;
use super::lag::Lag;
use super::net::Net;
use super::spread::{ShellPoll, Spread};
use super::{Conditions, FlushDone, Outbox, Outgoing, StateMachine};
use crate::NodeNumber;
use crate::hello::{Hello, HelloPolicy, PeerHello};

/// Default bound of a batch, inputs. Not more: while a batch is worked on, those who sent the one
/// before go on, and its flush runs. With all that is under way in one batch, each waits for the
/// others in turn (docs/lab/performance.md).
pub const BATCH_INPUTS_MAX: usize = 64;
/// Default bound of what waits to be written to one connection, bytes. Requests are not read
/// from long before that, but those that were may have large replies.
pub const OUT_BYTES_MAX: usize = 512 << 20;

/// How a node presents itself, and its bounds.
#[derive(Clone)]
pub struct ShellConfig {
    /// This node: calls to it are looped back.
    pub node: NodeNumber,
    /// What it says on connections that it makes, and answers on those it accepts.
    pub hello: Hello,
    /// Whom it lets in.
    pub policy: HelloPolicy,
    /// What peers may make it hold.
    pub bounds: Bounds,
    /// What it counts of that.
    pub metrics: ConnMetrics,
    /// Requests taken for one step. Their replies all wait in memory at worst.
    pub batch_inputs_max: usize,
    /// A peer that does not read is closed when this many bytes wait for it.
    pub out_bytes_max: usize,
    /// A flush may go on in the background, and is for all steps before it; else each step that
    /// changed something is flushed before the next.
    pub group_commit: bool,
}

impl ShellConfig {
    /// A configuration with default bounds; the node is the hello's.
    pub fn new(hello: Hello, policy: HelloPolicy) -> ShellConfig {
        ShellConfig {
            node: NodeNumber(hello.node),
            hello,
            policy,
            bounds: Bounds::default(),
            metrics: ConnMetrics::default(),
            batch_inputs_max: BATCH_INPUTS_MAX,
            out_bytes_max: OUT_BYTES_MAX,
            group_commit: true,
        }
    }

    /// Who a looped-back request comes from.
    pub(super) fn own_peer(&self) -> io::Result<PeerHello> {
        let lenient = HelloPolicy { allow_unknown_cluster: true, ..HelloPolicy::default() };
        let refused = |refusal: crate::hello::Refusal| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("own hello: {}", refusal.text))
        };
        lenient.check(&self.hello.to_frame()).map_err(refused)
    }
}

/// Stops running [`Shell`]s, from any thread. Clones stop the same ones.
#[derive(Clone, Default)]
pub struct StopHandle {
    inner: Arc<StopInner>,
}

#[derive(Default)]
struct StopInner {
    stopped: AtomicBool,
    wakers: Mutex<Vec<Arc<Waker>>>,
}

impl StopHandle {
    /// A handle for one run of one or several shells.
    pub fn new() -> StopHandle {
        StopHandle::default()
    }

    /// Ends the run, soon; before a run, ends it as it begins.
    pub fn stop(&self) {
        self.inner.stopped.store(true, Ordering::SeqCst);
        let wakers = self.inner.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.iter().for_each(|waker| wake(waker));
    }

    /// Whether `stop` was called.
    pub fn is_stopped(&self) -> bool {
        self.inner.stopped.load(Ordering::SeqCst)
    }

    fn attach(&self, waker: Arc<Waker>) {
        self.inner.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }
}

fn wake(waker: &Waker) {
    if let Err(error) = waker.wake() {
        tracing::error!("a poll could not be woken: {error}");
    }
}

/// Drives a [`StateMachine`] over sockets, on the thread that calls [`Shell::run`].
pub struct Shell<R> {
    role: R,
    net: Net,
    outbox: Outbox,
    gate: Gate<Outgoing>,
    group_commit: bool,
    lag: Lag,
    /// A background flush is under way.
    flushing: bool,
    /// It has ended.
    flushed: Arc<AtomicBool>,
}

impl<R: StateMachine> Shell<R> {
    /// A shell that accepts on `listener`.
    ///
    /// # Errors
    /// When the poll cannot be made, or the configured hello is not valid.
    pub fn new(role: R, listener: TcpListener, config: ShellConfig) -> io::Result<Shell<R>> {
        Shell::shared(role, ShellPoll::new(&Spread::default())?, Some(listener), config)
    }

    /// One of several shells that share the connections of one listener; only one of them has
    /// the listener.
    pub(crate) fn shared(
        role: R,
        place: ShellPoll,
        listener: Option<TcpListener>,
        config: ShellConfig,
    ) -> io::Result<Shell<R>> {
        let group_commit = config.group_commit;
        let net = Net::new(place, listener, config)?;
        let (outbox, gate) = (Outbox::new(), Gate::new());
        let (lag, flushing, flushed) = Default::default();
        Ok(Shell { role, net, outbox, gate, group_commit, lag, flushing, flushed })
    }

    /// Runs until `stop`, then flushes what is appended, sends what that releases, says goodbye.
    ///
    /// # Errors
    /// When the poll fails. A failed flush aborts the process instead: what the journal holds
    /// is unknown then, and a second flush would lie.
    pub fn run(&mut self, stop: &StopHandle) -> io::Result<()> {
        stop.attach(self.net.waker());
        // The first step: a role may have something to do or say before anybody asks.
        self.step(time::now());
        while !stop.is_stopped() {
            self.turn()?;
        }
        self.finish()
    }

    /// The role, after a run.
    pub fn into_role(self) -> R {
        self.role
    }

    fn turn(&mut self) -> io::Result<()> {
        self.write();
        self.flush()?;
        self.release();
        self.net.write_all();
        self.net.poll(self.patience())?;
        if self.finish_flush() {
            // Now, not after the next step and perhaps its flush.
            self.release();
            self.net.write_all();
        }
        let now = time::now();
        self.net.ring(now);
        self.net.receive(now);
        // Not earlier than what was just read was sent: leases count from the step's time.
        let now = time::now();
        if !self.net.inputs.is_empty() || self.role.next_deadline().is_some_and(|at| at <= now) {
            self.step(now);
        }
        Ok(())
    }

    /// How long to wait for sockets; `None` for as long as it takes.
    fn patience(&self) -> Option<Duration> {
        if self.net.has_input() {
            return Some(Duration::ZERO);
        }
        let flush_due = self.lag.flush_due().filter(|_| !self.flushing);
        let deadlines = [self.role.next_deadline(), self.net.next_alarm(), flush_due];
        let next: Time = deadlines.into_iter().flatten().min()?;
        Some(next - time::now())
    }

    fn step(&mut self, now: Time) {
        self.role.step(now, time::wall_ns(), &mut self.net.inputs, &mut self.outbox);
        if let Some(hello) = self.outbox.take_hello() {
            self.net.set_hello(hello);
        }
        for (conn, paused) in self.outbox.take_paused() {
            self.net.set_paused(conn, paused);
        }
        let (durable, written) = (self.role.conditions(), self.role.conditions_when_written());
        for (after, message) in self.outbox.drain(durable, written) {
            if let Outgoing::Call { call, to, deadline, .. } = &message {
                self.net.begin_call(*call, *to, *deadline);
            }
            self.gate.push(after, message);
        }
        self.lag.look(now, self.is_durable());
    }

    fn is_durable(&self) -> bool {
        self.role.durable() >= self.role.appended()
    }

    /// How far things have come, for messages. Where the disk has not kept up, what was written does
    /// not count.
    fn reached(&self) -> Conditions {
        let reached = self.role.reached();
        let is_over = self.lag.is_over(time::now());
        Conditions { written: if is_over { reached.durable } else { reached.written }, ..reached }
    }

    /// Has records survive this process, if that is all that a message waits for.
    fn write(&mut self) {
        if self.gate.waits_for_write(&self.reached()) {
            self.role.write().unwrap_or_else(|error| poison(&error));
        }
    }

    /// Makes the journal durable: here if nothing else is to be done and somebody waits for it, else in
    /// the background.
    fn flush(&mut self) -> io::Result<()> {
        if self.flushing || self.is_durable() {
            return Ok(());
        }
        let is_awaited = self.role.durable() < self.role.flushed_at_once()
            || self.gate.waits_for_flush(&self.role.reached());
        if !is_awaited && self.lag.flush_due().is_some_and(|due| time::now() < due) {
            return Ok(());
        }
        if self.group_commit && is_awaited && !self.net.has_input() {
            self.net.poll(Some(Duration::ZERO))?;
        }
        if !self.group_commit || is_awaited && !self.net.has_input() {
            // What need not wait for this flush should not.
            self.release();
            self.net.write_all();
            self.role.flush().unwrap_or_else(|error| poison(&error));
            self.lag.look(time::now(), self.is_durable());
            return Ok(());
        }
        self.flushing = true;
        self.lag.flush_begins(time::now());
        let (flushed, waker) = (self.flushed.clone(), self.net.waker());
        let done = FlushDone::new(move || {
            flushed.store(true, Ordering::Release);
            wake(&waker);
        });
        self.role.flush_begin(done).unwrap_or_else(|error| poison(&error));
        Ok(())
    }

    /// Takes the end of a background flush, if there is one.
    fn finish_flush(&mut self) -> bool {
        let ended = self.flushing && self.flushed.swap(false, Ordering::Acquire);
        if ended {
            self.flushing = false;
            self.role.flush_finish().unwrap_or_else(|error| poison(&error));
            self.lag.flush_ends(time::now(), self.is_durable());
        }
        ended
    }

    /// Sends what need not wait any more.
    fn release(&mut self) {
        let reached = self.reached();
        while let Some(message) = self.gate.pop(&reached) {
            self.net.send(message, &self.role);
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        while self.flushing {
            self.net.poll(None)?;
            self.finish_flush();
        }
        if self.role.durable() < self.role.appended() {
            self.role.flush().unwrap_or_else(|error| poison(&error));
        }
        self.release();
        self.net.write_all();
        self.net.say_goodbye();
        Ok(())
    }
}

/// After a failed flush nothing that is said would be true.
fn poison(error: &io::Error) -> ! {
    tracing::error!("the journal could not be flushed: {error}; aborting");
    std::process::abort()
}
