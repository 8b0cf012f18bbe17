//! A server whose handlers may block on disks: several shells share one listening socket, each
//! on a thread of its own that reads, executes and answers what its connections ask.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use saker_runtime::thread;
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

/// Serves on so many threads until `stop`.
///
/// # Errors
/// When a thread or a poll cannot be made, or one breaks.
pub fn serve(
    listener: &TcpListener,
    service: &Arc<dyn Service>,
    config: &ShellConfig,
    threads: usize,
    stop: &Stop,
) -> io::Result<()> {
    let start = |n| {
        let (listener, service) = (listener.try_clone()?, service.clone());
        let (config, stop) = (config.clone(), stop.clone());
        thread::spawn(&format!("service-{n}"), move || {
            Shell::new(Adapter(service), listener, config)?.run(&stop)
        })
    };
    let running: Vec<_> = (0..threads.max(1)).map(start).collect::<io::Result<_>>()?;
    for thread in running {
        thread.join().map_err(|_| io::Error::other("a service thread panicked"))??;
    }
    Ok(())
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

