//! A server whose handlers may block on disks: several shells share one listening socket, each
//! on a thread of its own that reads, executes and answers what its connections ask.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use saker_runtime::thread::{self, JoinHandle};
use saker_runtime::time::Time;

use crate::frame::Frame;
use crate::hello::PeerHello;
use crate::node::{FlushDone, Input, Outbox, Role, Shell, ShellConfig, Stop};
use crate::NodeId;

/// Answers requests; called from several threads at once.
pub trait Service: Send + Sync + 'static {
    /// Executes one request; `frame.reply(..)` makes the answer.
    fn handle(&self, peer: &PeerHello, frame: Frame) -> Frame;
}

/// Serves until `stop` is called on the handle that comes back.
///
/// # Errors
/// When a thread or a poll cannot be made.
pub fn serve(
    listener: TcpListener,
    service: Arc<dyn Service>,
    config: &ShellConfig,
    threads: usize,
) -> io::Result<ServiceHandle> {
    let mut handle = ServiceHandle { stops: Vec::new(), threads: Vec::new() };
    for n in 0..threads.max(1) {
        let (listener, service) = (listener.try_clone()?, service.clone());
        let (config, stop) = (config.clone(), Stop::new());
        handle.stops.push(stop.clone());
        handle.threads.push(thread::spawn(&format!("service-{n}"), move || {
            Shell::new(Adapter(service), listener, config)?.run(&stop)
        })?);
    }
    Ok(handle)
}

/// The threads of a running service.
pub struct ServiceHandle {
    stops: Vec<Stop>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl ServiceHandle {
    /// Asks all threads to end after what they are doing.
    pub fn stop(&self) {
        self.stops.iter().for_each(Stop::stop);
    }

    /// Waits for the threads.
    ///
    /// # Errors
    /// The first that a thread ended with.
    pub fn join(self) -> io::Result<()> {
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("a service thread panicked"))??;
        }
        Ok(())
    }
}

/// A service as a role without a journal.
struct Adapter(Arc<dyn Service>);

impl Role for Adapter {
    fn step(&mut self, _: Time, _: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        for input in inputs.drain(..) {
            if let Input::Request { conn, peer, frame } = input {
                out.reply(conn, self.0.handle(&peer, frame));
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

