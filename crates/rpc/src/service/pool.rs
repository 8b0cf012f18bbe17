//! Requests that wait for a disk, for a flush or for each other, on threads of their own.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use saker_runtime::thread::{self, JoinHandle};

use super::replies::ReplyBox;
use super::{
    AfterFlush, Blocked, Service, ServiceConfig, ServiceLimits, ServiceMetrics, ServiceOutcome,
    Together, joined, lane,
};
use crate::frame::{Frame, HEADER_BYTES};
use crate::node::{ConnId, StopHandle};

/// Where an answer goes, and what its request counts for until then.
#[derive(Clone)]
pub(super) struct Address {
    pub replies: Arc<ReplyBox>,
    pub conn: ConnId,
    pub bytes: usize,
}

struct Job {
    frame: Frame,
    to: Address,
}

struct Waiter {
    reply: AfterFlush,
    to: Address,
}

/// The threads of a service that may wait.
pub(super) struct Pool {
    service: Arc<dyn Service>,
    pub limits: ServiceLimits,
    pub metrics: ServiceMetrics,
    reads: lane::Lane<Job>,
    changes: lane::Lane<Job>,
    flushes: lane::Lane<Waiter>,
    /// What is under way.
    requests: AtomicUsize,
    bytes: AtomicUsize,
    /// That was too much, and half of it is still.
    full: AtomicBool,
    /// Of all shells.
    boxes: Vec<Arc<ReplyBox>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stop: StopHandle,
}

impl Pool {
    /// Threads are started when they are needed.
    pub fn new(
        service: Arc<dyn Service>,
        config: &ServiceConfig,
        boxes: Vec<Arc<ReplyBox>>,
        stop: StopHandle,
    ) -> Arc<Pool> {
        let limits = config.limits;
        Arc::new(Pool {
            service,
            limits,
            metrics: config.metrics.clone(),
            reads: lane::Lane::new(limits.read_threads),
            changes: lane::Lane::new(limits.change_threads),
            flushes: lane::Lane::new(1),
            requests: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            full: AtomicBool::new(false),
            boxes,
            threads: Mutex::default(),
            stop,
        })
    }

    /// Carries out a request that has to wait. Returns what it counts for until it is answered.
    pub fn execute(
        self: &Arc<Self>,
        conn: ConnId,
        replies: &Arc<ReplyBox>,
        blocked: Blocked,
    ) -> usize {
        let Blocked { frame, lane, reply_bytes } = blocked;
        let bytes = frame.wire_len() + reply_bytes;
        let to = self.begin(conn, replies, bytes);
        self.metrics.queued.add(1);
        let job = Job { frame, to };
        let (lane, name): (fn(&Pool) -> &lane::Lane<Job>, _) = match lane {
            super::Lane::Read => (|pool| &pool.reads, "service-read"),
            super::Lane::Change => (|pool| &pool.changes, "service-change"),
        };
        if lane(self).push(job) {
            let pool = self.clone();
            self.start(name, move || pool.work(lane(&pool)));
        }
        bytes
    }

    /// Answers after a flush. Returns what the request counts for until then.
    pub fn flush(
        self: &Arc<Self>,
        conn: ConnId,
        replies: &Arc<ReplyBox>,
        reply: AfterFlush,
    ) -> usize {
        let to = self.begin(conn, replies, HEADER_BYTES);
        self.wait_for_flush(Waiter { reply, to });
        HEADER_BYTES
    }

    fn wait_for_flush(self: &Arc<Self>, waiter: Waiter) {
        if self.flushes.push(waiter) {
            let pool = self.clone();
            self.start("service-flush", move || pool.flush_for_all());
        }
    }

    /// Whether too much is under way.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    fn begin(&self, conn: ConnId, replies: &Arc<ReplyBox>, bytes: usize) -> Address {
        self.metrics.blocked.inc();
        let requests = self.requests.fetch_add(1, Ordering::AcqRel) + 1;
        let all = self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        if requests >= self.limits.requests || all >= self.limits.bytes {
            self.full.store(true, Ordering::Release);
        }
        Address { replies: replies.clone(), conn, bytes }
    }

    fn end_one(&self, to: &Address, reply: Frame) {
        to.replies.put(to.conn, to.bytes, reply);
        let requests = self.requests.fetch_sub(1, Ordering::AcqRel) - 1;
        let bytes = self.bytes.fetch_sub(to.bytes, Ordering::AcqRel) - to.bytes;
        let is_half = requests <= self.limits.requests / 2 && bytes <= self.limits.bytes / 2;
        if is_half && self.full.load(Ordering::Acquire) && self.full.swap(false, Ordering::AcqRel) {
            self.boxes.iter().for_each(|replies| replies.wake());
        }
    }

    /// What a thread of a lane does.
    fn work(self: &Arc<Self>, lane: &lane::Lane<Job>) {
        while let Some(jobs) = lane.take(1) {
            for Job { frame, to } in jobs {
                self.metrics.queued.add(-1);
                match self.service.execute(frame) {
                    ServiceOutcome::Reply(reply) => self.end_one(&to, reply),
                    ServiceOutcome::AfterFlush(reply) => self.wait_for_flush(Waiter { reply, to }),
                }
            }
        }
    }

    /// One flush is for all who wait when it begins.
    fn flush_for_all(&self) {
        while let Some(waiters) = self.flushes.take(usize::MAX) {
            let failed = self.service.flush().err();
            for Waiter { reply, to } in waiters {
                self.end_one(&to, reply(failed.as_ref()));
            }
        }
    }

    fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) {
        let stop = self.stop.clone();
        let run = move || {
            let panics = PanicStops(stop);
            work();
            std::mem::forget(panics);
        };
        match thread::spawn(name, run) {
            Ok(thread) => self.threads().push(thread),
            Err(error) => {
                // Nobody may be there to take the job.
                tracing::error!("{name}: {error}; the service ends");
                drop(Together(self.stop.clone()));
            }
        }
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all threads, after the requests that they work on.
    ///
    /// # Errors
    /// When one has panicked.
    pub fn end(&self) -> io::Result<()> {
        self.reads.end();
        self.changes.end();
        self.flushes.end();
        let mut outcome = Ok(());
        loop {
            // One that works on a change may start the one that flushes.
            let Some(thread) = self.threads().pop() else { return outcome };
            outcome = outcome.and(joined(thread));
        }
    }
}

/// Stops the service unless it is forgotten.
struct PanicStops(StopHandle);

impl Drop for PanicStops {
    fn drop(&mut self) {
        self.0.stop();
    }
}
