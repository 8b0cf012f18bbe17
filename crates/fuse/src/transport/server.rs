//! One thread that serves requests.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use saker_types::Errno;

use super::buffer::Buffer;
use super::device::{Device, Read};
use super::uring::{Entry, Ring};
use super::{Dispatch, Reactor};
use crate::abi::Opcode;
use crate::reply::Reply;
use crate::request::Request;

/// Requests read in a row, before sockets get a turn.
const TURN_REQUESTS: usize = 16;
/// Requests of `/dev/fuse` under way in one thread; beyond that others take them, or they wait in
/// the kernel. (With a ring only those come that never wait.)
const REQUESTS_MAX: usize = 4096;
/// Sources of the reactor.
const DEVICE: usize = 0;
const RING: usize = 1;

/// One thread's part.
pub(super) struct Server<D, R> {
    device: Device,
    dispatch: Arc<D>,
    reactor: R,
    ring: Option<RefCell<Ring>>,
}

/// What a server has to do: the requests under way, and reading others.
struct Work<F> {
    requests: FuturesUnordered<Pin<Box<F>>>,
    buffer: Buffer,
    /// No more requests will come.
    ended: bool,
    /// The device is not watched: there are enough requests.
    full: bool,
}

impl<F: Future<Output = ()>> Work<F> {
    /// Most requests ask no server, and end here.
    fn begin(&mut self, request: F, cx: &mut Context<'_>) {
        let mut request = Box::pin(request);
        if request.as_mut().poll(cx).is_pending() {
            self.requests.push(request);
        }
    }
}

impl<D: Dispatch, R: Reactor> Server<D, R> {
    /// Will serve what comes through `device`.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub(super) fn new(device: Device, dispatch: Arc<D>, reactor: R) -> io::Result<Server<D, R>> {
        reactor.watch(DEVICE, device.as_fd())?;
        Ok(Server { device, dispatch, reactor, ring: None })
    }

    /// Serves, on the calling thread, until the file system is unmounted or its connection
    /// aborted; also what comes through `ring`. How it went with that is told to `done`.
    pub(super) fn run(mut self, ring: Option<Ring>, done: Sender<io::Result<()>>) {
        if let Some(mut ring) = ring {
            // Nobody listens when another ring has failed already.
            let _ = done.send(self.begin(&mut ring));
            self.ring = Some(RefCell::new(ring));
        }
        drop(done);
        let mut work = Work {
            requests: FuturesUnordered::new(),
            buffer: Buffer::default(),
            ended: false,
            full: false,
        };
        let start = |request| self.answer(request);
        self.reactor.block_on(poll_fn(|cx| self.poll(&mut work, cx, start)));
    }

    /// Lets the kernel use the ring; if that fails, go on without any.
    fn begin(&self, ring: &mut Ring) -> io::Result<()> {
        let begun = self.reactor.watch_signals(RING, ring.signal()).and_then(|()| ring.register());
        match &begun {
            Ok(()) => ring.stay_near(),
            Err(_) => ring.give_up(),
        }
        begun
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
            let from_ring = self.turn_ring(work, cx, &start);
            let from_device = self.turn_device(work, cx, &start);
            if !from_ring && !from_device {
                return Poll::Pending;
            }
        }
    }

    /// Sends what was answered to the ring and takes what has come there, if anything.
    fn turn_ring<F: Future<Output = ()>>(
        &self,
        work: &mut Work<F>,
        cx: &mut Context<'_>,
        start: impl Fn(Request) -> F,
    ) -> bool {
        let Some(ring) = &self.ring else { return false };
        let mut ring = ring.borrow_mut();
        let came = self.reactor.poll_source(RING, cx).is_ready();
        if !came && !ring.is_due() {
            return false;
        }
        let arrived = ring.turn();
        // Answers need it.
        drop(ring);
        let any = !arrived.is_empty();
        for entry in arrived {
            match Request::apart(entry) {
                Ok(request) => work.begin(start(request), cx),
                Err(entry) => {
                    tracing::error!("a request in a ring makes no sense");
                    let unique = entry.commit_id();
                    self.answer_by_ring(entry, &Reply::error(Errno::EIO), unique);
                }
            }
        }
        any
    }

    /// Takes what has come through the device, if anything.
    fn turn_device<F: Future<Output = ()>>(
        &self,
        work: &mut Work<F>,
        cx: &mut Context<'_>,
        start: impl Fn(Request) -> F,
    ) -> bool {
        let full = self.ring.is_none() && work.requests.len() >= REQUESTS_MAX;
        self.watch_unless(full, &mut work.full);
        if work.ended || full || self.reactor.poll_source(DEVICE, cx).is_pending() {
            return false;
        }
        for _ in 0..TURN_REQUESTS {
            match self.device.read(&mut work.buffer) {
                Read::Request(request) if is_brief(&request) => {
                    // It is ready at once.
                    let _ = start(request).now_or_never();
                }
                Read::Request(request) => work.begin(start(request), cx),
                Read::Nothing => break,
                Read::End => {
                    work.ended = true;
                    self.dispatch.end();
                    break;
                }
            }
        }
        true
    }

    fn watch_unless(&self, full: bool, was: &mut bool) {
        if full == std::mem::replace(was, full) {
            return;
        }
        let device = self.device.as_fd();
        let changed =
            if full { self.reactor.unwatch(device) } else { self.reactor.watch(DEVICE, device) };
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
        let unique = request.header.unique;
        match request.into_entry() {
            Some(entry) => self.answer_by_ring(entry, &reply, unique),
            None if reply.silent => {}
            None => self.device.reply(&reply, unique),
        }
    }

    /// Answers what came through the ring.
    fn answer_by_ring(&self, entry: Entry, reply: &Reply, unique: u64) {
        if let Some(ring) = &self.ring {
            ring.borrow_mut().answer(entry, reply, unique);
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
