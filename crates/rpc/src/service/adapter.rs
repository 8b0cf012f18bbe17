//! A service as a role without a journal, whose replies may be ready in any order.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use saker_runtime::time::{self, Time};

use super::pool::Pool;
use super::replies::{Ready, ReplyBox};
use super::{BATCH_REPLY_BYTES_MAX, BATCH_TIME_MAX, Service, ServiceOutcome};
use crate::NodeNumber;
use crate::node::{ConnId, FlushDone, Input, Outbox, StateMachine};

/// What of a connection is under way in the pool.
#[derive(Default)]
struct Load {
    requests: usize,
    bytes: usize,
    /// The connection is not read.
    paused: bool,
}

/// The role of a shell whose requests a service answers.
pub(super) struct Adapter {
    service: Arc<dyn Service>,
    pool: Arc<Pool>,
    replies: Arc<ReplyBox>,
    /// Connections with requests in the pool.
    loads: FxHashMap<ConnId, Load>,
    /// How many of them are paused.
    paused: usize,
}

impl Adapter {
    pub fn new(service: Arc<dyn Service>, pool: Arc<Pool>, replies: Arc<ReplyBox>) -> Adapter {
        Adapter { service, pool, replies, loads: FxHashMap::default(), paused: 0 }
    }

    /// So many bytes of a connection went to the pool.
    fn add(&mut self, conn: ConnId, bytes: usize, out: &mut Outbox) {
        let load = self.loads.entry(conn).or_default();
        load.requests += 1;
        load.bytes += bytes;
        let limits = &self.pool.limits;
        let is_over = load.requests >= limits.conn_requests || load.bytes >= limits.conn_bytes;
        if !load.paused && (is_over || self.pool.is_full()) {
            load.paused = true;
            self.paused += 1;
            self.pool.metrics.paused.add(1);
            out.pause(conn);
        }
    }

    /// Takes what the pool has made.
    fn collect(&mut self, out: &mut Outbox) {
        for Ready { conn, bytes, reply } in self.replies.take() {
            out.reply(conn, reply);
            // Else it was closed meanwhile.
            if let Some(load) = self.loads.get_mut(&conn) {
                load.requests -= 1;
                load.bytes -= bytes;
                if load.requests == 0 && !load.paused {
                    self.loads.remove(&conn);
                }
            }
        }
        if self.paused > 0 && !self.pool.is_full() {
            self.release(out);
        }
    }

    /// Lets connections be read again of which no more than half of what may be is under way.
    fn release(&mut self, out: &mut Outbox) {
        let limits = &self.pool.limits;
        for (conn, load) in &mut self.loads {
            let is_half =
                load.requests <= limits.conn_requests / 2 && load.bytes <= limits.conn_bytes / 2;
            if load.paused && is_half {
                load.paused = false;
                self.paused -= 1;
                self.pool.metrics.paused.add(-1);
                out.resume(*conn);
            }
        }
        self.loads.retain(|_, load| load.requests > 0 || load.paused);
    }

    fn closed(&mut self, conn: ConnId) {
        if self.loads.remove(&conn).is_some_and(|load| load.paused) {
            self.paused -= 1;
            self.pool.metrics.paused.add(-1);
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.pool.metrics.paused.add(-(self.paused as i64));
    }
}

impl StateMachine for Adapter {
    fn step(&mut self, now: Time, _: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        if self.replies.is_woken() {
            self.collect(out);
        }
        let until = now + BATCH_TIME_MAX;
        let mut bytes = 0;
        while let Some(input) = inputs.pop_front() {
            let (conn, frame) = match input {
                Input::Request { conn, frame, .. } => (conn, frame),
                Input::Closed { conn } => {
                    self.closed(conn);
                    continue;
                }
                Input::Reply { .. } => continue,
            };
            match self.service.attempt(frame) {
                Ok(ServiceOutcome::Reply(reply)) => {
                    bytes += reply.wire_len();
                    out.reply(conn, reply);
                }
                Ok(ServiceOutcome::AfterFlush(reply)) => {
                    let bytes = self.pool.flush(conn, &self.replies, reply);
                    self.add(conn, bytes, out);
                }
                Err(blocked) => {
                    let bytes = self.pool.execute(conn, &self.replies, blocked);
                    self.add(conn, bytes, out);
                }
            }
            if bytes >= BATCH_REPLY_BYTES_MAX || time::now() >= until {
                return;
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        self.replies.is_woken().then_some(Time::from_ns(0))
    }

    fn address(&self, _: NodeNumber) -> Option<SocketAddr> {
        None
    }

    fn appended(&self) -> u64 {
        0
    }

    fn durable(&self) -> u64 {
        0
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn flush_begin(&mut self, done: FlushDone) -> io::Result<()> {
        done.notify();
        Ok(())
    }

    fn flush_finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}
