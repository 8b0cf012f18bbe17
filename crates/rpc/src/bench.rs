//! What a round trip costs: a server that echoes and clients that ask it, in one process, over
//! the loopback interface. The floor under every figure of a real server.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use saker_runtime::thread;
use saker_runtime::time::{self, Time};

use crate::client::{Reactor, Transport};
use crate::hello::{Hello, HelloPolicy, RoleKind};
use crate::node::{FlushDone, Input, Outbox, Role, Shell, ShellConfig, Stop};
use crate::{CallError, NodeId};

/// Body of a request and of its reply, bytes: about what a metadata operation has.
pub const BODY_BYTES: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Calls between two looks at the clock.
const STRIDE: u64 = 16;

/// What [`echo`] measured.
#[derive(Clone, Copy, Debug)]
pub struct EchoFigures {
    /// Client threads; they share one reactor and one connection.
    pub threads: usize,
    /// Calls under way on each.
    pub in_flight: usize,
    /// Calls that were answered.
    pub ops: u64,
    /// From the first call to the last answer.
    pub time: Duration,
    /// CPU time of the client threads.
    pub client_cpu: Duration,
    /// CPU time of the server's one thread.
    pub server_cpu: Duration,
}

impl EchoFigures {
    /// Calls in a second.
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// Mean time of a call, us.
    pub fn mean_us(&self) -> f64 {
        let under_way = (self.threads * self.in_flight) as f64;
        under_way * 1e6 / self.ops_per_s().max(1e-9)
    }

    /// CPU time of the clients for a call, us.
    pub fn client_us_per_op(&self) -> f64 {
        per_op_us(self.client_cpu, self.ops)
    }

    /// CPU time of the server for a call, us.
    pub fn server_us_per_op(&self) -> f64 {
        per_op_us(self.server_cpu, self.ops)
    }
}

fn per_op_us(cpu: Duration, ops: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / ops.max(1) as f64
}

/// One thread keeps `in_flight` calls under way for so many seconds.
///
/// # Errors
/// When a socket or thread cannot be made, or a call fails.
pub fn echo(in_flight: usize, seconds: f64) -> io::Result<EchoFigures> {
    echo_on(1, in_flight, seconds)
}

/// As [`echo`], on several threads.
///
/// # Errors
/// As [`echo`].
pub fn echo_on(threads: usize, in_flight: usize, seconds: f64) -> io::Result<EchoFigures> {
    let time = Duration::try_from_secs_f64(seconds).map_err(io::Error::other)?;
    let (threads, in_flight) = (threads.max(1), in_flight.max(1));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    let stop = Stop::new();
    let its = stop.clone();
    let server = thread::spawn("echo-server", move || serve(listener, &its))?;
    let figures = measure(addr, threads, in_flight, time);
    stop.stop();
    let server_cpu = server.join().map_err(|_| io::Error::other("the server panicked"))??;
    Ok(EchoFigures { server_cpu, ..figures? })
}

/// Returns the CPU time of the calling thread.
fn serve(listener: TcpListener, stop: &Stop) -> io::Result<Duration> {
    let policy = HelloPolicy { allow_unknown_cluster: true, ..HelloPolicy::default() };
    let config = ShellConfig::new(Hello::new(RoleKind::Store, NodeId(1), None), policy);
    let before = time::thread_cpu();
    Shell::new(Echo, listener, config)?.run(stop)?;
    Ok(time::thread_cpu().saturating_sub(before))
}

fn measure(
    addr: SocketAddr,
    threads: usize,
    in_flight: usize,
    time: Duration,
) -> io::Result<EchoFigures> {
    let reactor = Reactor::new(Hello::new(RoleKind::Tool, NodeId::NONE, None))?;
    // The connection stands before the clock starts.
    reactor.block_on(ask(&reactor, addr)).map_err(io::Error::other)?;
    let start = time::now();
    let client = |n| {
        let reactor = reactor.clone();
        thread::spawn(&format!("echo-client-{n}"), move || {
            let before = time::thread_cpu();
            let ops = reactor.block_on(keep_asking(&reactor, addr, in_flight, start + time));
            (ops, time::thread_cpu().saturating_sub(before))
        })
    };
    let running = (0..threads).map(client).collect::<io::Result<Vec<_>>>()?;
    let (mut ops, mut client_cpu) = (0, Duration::ZERO);
    for thread in running {
        let ended = thread.join().map_err(|_| io::Error::other("a client panicked"))?;
        ops += ended.0.map_err(io::Error::other)?;
        client_cpu += ended.1;
    }
    let (time, server_cpu) = (time::now() - start, Duration::ZERO);
    Ok(EchoFigures { threads, in_flight, ops, time, client_cpu, server_cpu })
}

/// Returns how many calls were answered until `end`.
async fn keep_asking(
    reactor: &Arc<Reactor>,
    addr: SocketAddr,
    in_flight: usize,
    end: Time,
) -> Result<u64, CallError> {
    let mut under_way: FuturesUnordered<_> = (0..in_flight).map(|_| ask(reactor, addr)).collect();
    let mut ops = 0;
    let mut more = true;
    while let Some(answer) = under_way.next().await {
        answer?;
        ops += 1;
        if more && ops % STRIDE == 0 {
            more = time::now() < end;
        }
        if more {
            under_way.push(ask(reactor, addr));
        }
    }
    Ok(ops)
}

async fn ask(reactor: &Arc<Reactor>, addr: SocketAddr) -> Result<(), CallError> {
    let body = Bytes::from_static(&[7; BODY_BYTES]);
    reactor.call(addr, 1, 0, body, Bytes::new(), TIMEOUT).await.map(|_| ())
}

/// A role that has nothing to remember.
struct Echo;

impl Role for Echo {
    fn step(&mut self, _: Time, _: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        for input in inputs.drain(..) {
            if let Input::Request { conn, frame, .. } = input {
                out.reply(conn, frame.reply(0, frame.body.clone(), Bytes::new()));
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn address(&self, _: NodeId) -> Option<SocketAddr> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_consistent() {
        let figures = echo_on(2, 8, 0.1).unwrap();
        assert!(figures.ops > 100, "{figures:?}");
        assert!(figures.time >= Duration::from_millis(100));
        assert!(figures.client_cpu > Duration::ZERO && figures.server_cpu > Duration::ZERO);
        let mean_us = figures.time.as_secs_f64() * 1e6 * 16.0 / figures.ops as f64;
        assert!((figures.mean_us() - mean_us).abs() < 1e-6 * mean_us);
    }
}
