//! Moves requests from the kernel to a [`Dispatch`] and its replies back, and nothing else.
//!
//! A few threads serve a mount. Each has a channel to the kernel (a clone of `/dev/fuse`, and with
//! io_uring a ring) and a reactor, thus connections to servers, of its own, so that one thread
//! reads a request, asks the servers and answers, and none hands anything to another. A request is
//! a future: one that waits keeps nobody waiting.

mod buffer;
mod caller;
mod device;
mod server;
mod uring;

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};
use std::time::Duration;

use saker_runtime::thread::{self, JoinHandle};
use saker_types::{Errno, Error, Result};

pub use device::Device;
pub(crate) use uring::RingEntry;
#[cfg(test)]
pub(crate) use uring::entry_of;
pub use uring::{LONG_WAITS_MAX, Shape};

use crate::abi::{Opcode, init};
use crate::reply::Reply;
use crate::request::Request;
use buffer::Buffer;
use device::Read;
use server::Server;
use uring::Ring;

/// Most bytes of data in one READ or WRITE: 256 pages, the kernel's default bound.
pub const MAX_WRITE_BYTES: usize = 1 << 20;

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// What has measured better: through `/dev/fuse`, so far.
    #[default]
    Auto,
    /// By io_uring if the kernel offers that, else through `/dev/fuse`.
    Uring,
    /// Through `/dev/fuse`.
    Dev,
}

/// What it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportInUse {
    /// By io_uring.
    Uring {
        /// How many there are.
        queues: usize,
        /// Entries of each.
        depth: usize,
    },
    /// Through `/dev/fuse`, and why.
    Dev(String),
}

impl fmt::Display for TransportInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportInUse::Uring { queues, depth } => {
                write!(f, "io_uring ({queues} queues of {depth} entries)")
            }
            TransportInUse::Dev(why) => write!(f, "cloned /dev/fuse ({why})"),
        }
    }
}

/// Answers requests.
pub trait Dispatch: Send + Sync + 'static {
    /// Answers INIT, asking for the flags `extra`, too; with the flags agreed on, unless the
    /// kernel must ask again.
    fn init(&self, request: &Request, extra: u64) -> (Reply, Option<u64>);

    /// It has been settled how requests come.
    fn serving(&self, how: &TransportInUse);

    /// Answers any other request. Called from many threads at once, none of which it may block.
    fn handle(&self, request: &Request) -> impl Future<Output = Reply>;

    /// Whoever waited for this answer was killed, and the kernel was told so instead: what the answer
    /// gives it (nodes, handles, locks) it does not have.
    fn undo(&self, request: &Request, reply: &Reply) -> impl Future<Output = ()>;

    /// The kernel takes no more answers: what waits for something that may never come ends.
    fn end(&self);
}

/// Waits for what a thread serves, and for whatever its answers need.
pub trait EventLoop: Send + 'static {
    /// From now on `fd` is looked at, for [`EventLoop::poll_source`] of the same `source` (0 or 1). Of
    /// several reactors that watch the same file only one is woken when it can be read.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    fn watch(&self, source: usize, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// The same for an eventfd(2), which nobody has to read: the source is ready whenever it was
    /// written to.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    fn watch_signals(&self, source: usize, eventfd: BorrowedFd<'_>) -> io::Result<()>;

    /// Ends a [`EventLoop::watch`].
    ///
    /// # Errors
    /// As epoll_ctl(2).
    fn unwatch(&self, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// Ready when the file watched as `source` could be read since this was ready last. Who does
    /// not read all that is there gets it ready again.
    fn poll_source(&self, source: usize, cx: &mut Context<'_>) -> Poll<()>;

    /// Is done after so long.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + 'static;

    /// Runs `future` on the calling thread, until it is done.
    fn block_on(&self, future: impl Future<Output = ()>);
}

/// What serves one mount.
pub struct FuseTransport<D, R> {
    device: Device,
    dispatch: Arc<D>,
    reactors: Vec<R>,
    mode: Mode,
    shape: Shape,
}

/// What a thread starts with, once it is known.
struct Orders {
    ring: Option<Ring>,
    /// Hears how it went with the ring.
    done: Sender<io::Result<()>>,
}

/// A thread that waits for its orders.
struct Thread {
    orders: Sender<Orders>,
    handle: JoinHandle<()>,
    /// The connection, for a ring.
    device: Device,
}

impl<D: Dispatch, R: EventLoop> FuseTransport<D, R> {
    /// Serves the connection of `device` with a thread for each of `reactors`.
    pub fn new(
        device: Device,
        dispatch: Arc<D>,
        reactors: Vec<R>,
        mode: Mode,
    ) -> FuseTransport<D, R> {
        FuseTransport { device, dispatch, reactors, mode, shape: Shape::default() }
    }

    /// With rings of another shape.
    pub fn shaped(self, shape: Shape) -> FuseTransport<D, R> {
        FuseTransport { shape, ..self }
    }

    /// Serves until the file system is unmounted or its connection aborted.
    ///
    /// # Errors
    /// When not even one thread can serve.
    pub fn run(mut self) -> Result<()> {
        let (mut threads, mut failure) = (Vec::new(), None);
        for reactor in std::mem::take(&mut self.reactors) {
            match self.start(reactor) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    tracing::warn!("one FUSE thread less: {error}");
                    failure = Some(error);
                }
            }
        }
        if let (true, Some(error)) = (threads.is_empty(), failure) {
            return Err(Error::new(Errno::EAGAIN).with_text(format!("FUSE thread: {error}")));
        }
        let rings = self.rings(&threads);
        if let Some(agreed) = self.handshake(rings.is_ok()) {
            let offered = agreed & init::OVER_IO_URING != 0;
            let how = self.begin(&threads, rings.and_then(|rings| if_offered(rings, offered)));
            self.dispatch.serving(&how);
        }
        // From now on the threads' channels are all there are.
        drop(self.device);
        for Thread { orders, handle, .. } in threads {
            drop(orders);
            if handle.join().is_err() {
                tracing::error!("a FUSE thread panicked");
            }
        }
        self.dispatch.end();
        Ok(())
    }

    fn start(&self, reactor: R) -> io::Result<Thread> {
        let (orders, receiver) = channel();
        let device = self.device.clone_channel()?;
        let server = Server::new(device.share(), Arc::clone(&self.dispatch), reactor)?;
        let handle = thread::spawn("saker-fuse", move || obey(server, &receiver))?;
        Ok(Thread { orders, handle, device })
    }

    /// A ring for each thread; all queues are divided among them.
    fn rings(&self, threads: &[Thread]) -> std::result::Result<Vec<Ring>, String> {
        if self.mode == Mode::Dev {
            return Err("as asked for".into());
        }
        let queues = uring::queues().map_err(|e| e.to_string())?;
        let part = |n: usize| (0..queues).skip(n).step_by(threads.len()).collect::<Vec<_>>();
        let ring = |(n, thread): (usize, &Thread)| {
            Ring::new(thread.device.share(), part(n), self.shape).map_err(|e| format!("rings: {e}"))
        };
        threads.iter().enumerate().take(usize::from(queues)).map(ring).collect()
    }

    /// Answers INIT, which is the first request. The flags agreed on, if it was not unmounted
    /// before that.
    fn handshake(&self, rings: bool) -> Option<u64> {
        let extra = if rings { init::OVER_IO_URING } else { 0 };
        let mut buffer = Buffer::default();
        loop {
            // This channel blocks.
            match self.device.read(&mut buffer) {
                Read::Request(request) => {
                    let first = request.header.opcode == Opcode::Init as u32;
                    let (reply, agreed) = match first {
                        true => self.dispatch.init(&request, extra),
                        false => (Reply::error(Errno::EIO), None),
                    };
                    self.device.reply(&reply, request.header.unique);
                    if agreed.is_some() {
                        return agreed;
                    }
                }
                Read::Nothing => {}
                Read::End => return None,
            }
        }
    }

    /// Lets the threads serve, with rings or without.
    fn begin(
        &self,
        threads: &[Thread],
        rings: std::result::Result<Vec<Ring>, String>,
    ) -> TransportInUse {
        let (done, heard) = channel();
        let (mut rings, why) = match rings {
            Ok(rings) => (rings, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let queues = rings.iter().map(Ring::queues).sum();
        rings.reverse();
        for thread in threads {
            // A thread that is gone is seen when it is joined.
            let _ = thread.orders.send(Orders { ring: rings.pop(), done: done.clone() });
        }
        drop(done);
        match (why, heard.iter().find_map(io::Result::err)) {
            (Some(why), _) => TransportInUse::Dev(why),
            (None, Some(error)) => {
                TransportInUse::Dev(format!("the kernel refuses rings: {error}"))
            }
            (None, None) => TransportInUse::Uring { queues, depth: self.shape.depth },
        }
    }
}

fn if_offered(rings: Vec<Ring>, offered: bool) -> std::result::Result<Vec<Ring>, String> {
    let why = "the kernel does not offer io_uring: before 6.14, or fuse.enable_uring is off";
    if offered { Ok(rings) } else { Err(why.into()) }
}

/// A thread's work.
fn obey<D: Dispatch, R: EventLoop>(server: Server<D, R>, orders: &Receiver<Orders>) {
    // Without orders there is nothing to serve.
    if let Ok(Orders { ring, done }) = orders.recv() {
        server.run(ring, done);
    }
}
