//! A server whose handlers may block on disks: several shells share the connections of one
//! listening socket, each on a thread of its own that reads, executes and answers.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use saker_runtime::thread::{self, JoinHandle};
use saker_runtime::time::{self, Time};

use crate::NodeId;
use crate::frame::Frame;
use crate::hello::PeerHello;
use crate::node::{FlushDone, Input, Outbox, Role, Shell, ShellConfig, ShellPoll, Spread, Stop};

/// Answers requests; called from several threads at once.
pub trait Service: Send + Sync + 'static {
    /// This request will be handled when those before it are: what it needs of a disk can be
    /// fetched meanwhile.
    fn announce(&self, _frame: &Frame) {}
    /// Executes one request; `frame.reply(..)` makes the answer.
    fn handle(&self, peer: &PeerHello, frame: Frame) -> Frame;
}

/// Requests taken at once: their replies may be chunks, and wait in memory if the peer is slow.
const BATCH_INPUTS_MAX: usize = 16;
/// A batch ends, and its replies are sent, when handlers have worked for this long.
const BATCH_TIME_MAX: Duration = Duration::from_micros(500);
/// A batch ends when its replies have this many bytes.
const BATCH_REPLY_BYTES_MAX: usize = 1 << 20;

/// Serves on so many threads until `stop`. Each connection goes to the thread that has the
/// fewest, and stays there: requests of one connection are executed one after the other.
///
/// # Errors
/// When a thread or a poll cannot be made, or a thread breaks: then all are stopped.
pub fn serve(
    listener: &TcpListener,
    service: &Arc<dyn Service>,
    config: &ShellConfig,
    threads: usize,
    stop: &Stop,
) -> io::Result<()> {
    let spread = Spread::default();
    let places = (0..threads.max(1)).map(|_| ShellPoll::new(&spread));
    let places = places.collect::<io::Result<Vec<ShellPoll>>>()?;
    let start = |n, place| -> io::Result<JoinHandle<io::Result<()>>> {
        let listener = if n == 0 { Some(listener.try_clone()?) } else { None };
        let service = service.clone();
        let batch_inputs_max = config.batch_inputs_max.min(BATCH_INPUTS_MAX);
        let config = ShellConfig { batch_inputs_max, ..config.clone() };
        let stop = stop.clone();
        thread::spawn(&format!("service-{n}"), move || {
            let together = Together(stop);
            Shell::shared(Adapter { service, announced: 0 }, place, listener, config)?
                .run(&together.0)
        })
    };
    let mut running = Vec::new();
    let mut outcome = Ok(());
    for (n, place) in places.into_iter().enumerate() {
        match start(n, place) {
            Ok(thread) => running.push(thread),
            Err(error) => {
                stop.stop();
                outcome = Err(error);
                break;
            }
        }
    }
    for thread in running {
        let panicked = |_| Err(io::Error::other("a service thread panicked"));
        outcome = outcome.and(thread.join().unwrap_or_else(panicked));
    }
    outcome
}

/// Stops all threads of a service when one ends, for whatever reason: with the others going on,
/// a part of the connections would never be served.
struct Together(Stop);

impl Drop for Together {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A service as a role without a journal.
struct Adapter {
    service: Arc<dyn Service>,
    /// So many of the inputs that are there were announced.
    announced: usize,
}

impl Role for Adapter {
    fn step(&mut self, now: Time, _: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        let until = now + BATCH_TIME_MAX;
        let mut bytes = 0;
        // Its turn is now: the first needs no announcement.
        for input in inputs.range(self.announced.max(1).min(inputs.len())..) {
            if let Input::Request { frame, .. } = input {
                self.service.announce(frame);
            }
        }
        self.announced = inputs.len();
        while let Some(input) = inputs.pop_front() {
            self.announced -= 1;
            let Input::Request { conn, peer, frame } = input else { continue };
            let reply = self.service.handle(&peer, frame);
            bytes += reply.wire_len();
            out.reply(conn, reply);
            if bytes >= BATCH_REPLY_BYTES_MAX || time::now() >= until {
                return;
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
