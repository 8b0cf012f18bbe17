//! Moves requests from the kernel to a [`Dispatch`] and its replies back, and nothing else.
//!
//! A few threads serve a mount. Each has a channel to the kernel (a clone of `/dev/fuse`) and a
//! reactor, thus connections to servers, of its own, so that one thread reads a request, asks the
//! servers and answers, and none hands anything to another. A request is a future: one that waits
//! keeps nobody waiting. Another transport (io_uring) needs only to call [`Dispatch::handle`] the
//! same way.

mod buffer;
mod device;

use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use saker_client::Reactor;
use saker_runtime::thread;
use saker_types::{Errno, Error, Result};

pub(crate) use device::Device;

use crate::abi::Opcode;
use crate::reply::Reply;
use crate::request::Request;
use buffer::Buffer;
use device::Read;

/// Most bytes of data in one READ or WRITE: 256 pages, the kernel's default bound.
pub(crate) const MAX_WRITE_BYTES: usize = 1 << 20;
/// Requests read in a row, before sockets get a turn.
const TURN_REQUESTS: usize = 16;
/// Requests under way in one thread; beyond that others take them, or they wait in the kernel.
const REQUESTS_MAX: usize = 4096;

/// Answers requests.
pub(crate) trait Dispatch: Send + Sync + 'static {
    /// Answers one request. Called from many threads at once, none of which it may block.
    fn handle(&self, request: &Request) -> impl Future<Output = Reply>;

    /// The kernel takes no more answers: what waits for something that may never come ends.
    fn end(&self);
}

/// What serves one mount.
pub(crate) struct Transport<D> {
    device: Device,
    dispatch: Arc<D>,
    reactors: Vec<Arc<Reactor>>,
}

impl<D: Dispatch> Transport<D> {
    /// Serves the connection of `device` with a thread for each of `reactors`.
    pub(crate) fn new(
        device: Device,
        dispatch: Arc<D>,
        reactors: Vec<Arc<Reactor>>,
    ) -> Transport<D> {
        Transport { device, dispatch, reactors }
    }

    /// Serves until the file system is unmounted or its connection aborted.
    ///
    /// # Errors
    /// When not even one thread can serve.
    pub(crate) fn run(self) -> Result<()> {
        let Transport { device, dispatch, reactors } = self;
        let started: Vec<_> = reactors
            .into_iter()
            .map(|reactor| {
                let (dispatch, device) = (Arc::clone(&dispatch), device.clone_channel()?);
                reactor.watch(device.as_fd())?;
                let server = Server { device, dispatch, reactor };
                thread::spawn("saker-fuse", move || server.run())
            })
            .collect();
        // From now on the servers' channels are all there are.
        drop(device);
        let (mut served, mut failure) = (false, None);
        for thread in started {
            match thread {
                Ok(thread) => served |= thread.join().is_ok(),
                Err(error) => {
                    tracing::warn!("one FUSE thread less: {error}");
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) if !served => {
                Err(Error::new(Errno::EAGAIN).with_text(format!("FUSE thread: {error}")))
            }
            _ => Ok(()),
        }
    }
}

/// One thread's part.
struct Server<D> {
    device: Device,
    dispatch: Arc<D>,
    reactor: Arc<Reactor>,
}

/// What a server has to do: the requests under way, and reading others.
struct Work<F> {
    requests: FuturesUnordered<F>,
    buffer: Buffer,
    /// No more requests will come.
    ended: bool,
    /// The device is not watched: there are enough requests.
    full: bool,
}

impl<D: Dispatch> Server<D> {
    fn run(self) {
        let mut work = Work {
            requests: FuturesUnordered::new(),
            buffer: Buffer::default(),
            ended: false,
            full: false,
        };
        let start = |request| self.answer(request);
        self.reactor.block_on(poll_fn(|cx| self.poll(&mut work, cx, start)));
    }

    /// Lets requests proceed and takes new ones, as long as there are any.
    fn poll<F: Future<Output = ()>>(
        &self,
        work: &mut Work<F>,
        cx: &mut Context<'_>,
        start: impl Fn(Request) -> F,
    ) -> Poll<()> {
        loop {
            while let Poll::Ready(Some(())) = work.requests.poll_next_unpin(cx) {}
            if work.ended && work.requests.is_empty() {
                return Poll::Ready(());
            }
            self.watch_unless(work.requests.len() >= REQUESTS_MAX, &mut work.full);
            if work.ended || work.full || self.reactor.poll_source(cx).is_pending() {
                return Poll::Pending;
            }
            for _ in 0..TURN_REQUESTS {
                match self.device.read(&mut work.buffer) {
                    Read::Request(request) if is_brief(&request) => {
                        // It is ready at once.
                        let _ = start(request).now_or_never();
                    }
                    Read::Request(request) => work.requests.push(start(request)),
                    Read::Nothing => break,
                    Read::End => {
                        work.ended = true;
                        self.dispatch.end();
                        break;
                    }
                }
            }
        }
    }

    fn watch_unless(&self, full: bool, was: &mut bool) {
        if full == std::mem::replace(was, full) {
            return;
        }
        let device = self.device.as_fd();
        let changed = if full { self.reactor.unwatch(device) } else { self.reactor.watch(device) };
        if let Err(error) = changed {
            tracing::error!("watching /dev/fuse: {error}");
        }
    }

    /// A defect in a handler must not hang the caller.
    async fn answer(&self, request: Request) {
        let handled = AssertUnwindSafe(self.dispatch.handle(&request)).catch_unwind();
        let reply = handled.await.unwrap_or_else(|_| {
            let opcode = request.header.opcode;
            tracing::error!("panic while handling FUSE operation {opcode}");
            Reply::error(Errno::EIO)
        });
        if !reply.silent {
            self.device.reply(&reply, request.header.unique);
        }
    }
}

/// Forgetting never waits, and comes in crowds.
fn is_brief(request: &Request) -> bool {
    matches!(
        Opcode::from_u32(request.header.opcode),
        Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt)
    )
}
