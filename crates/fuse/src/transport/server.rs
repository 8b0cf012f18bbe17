//! One thread that serves requests.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use saker_types::Errno;

use super::buffer::Buffer;
use super::caller::is_killed;
use super::device::{Device, Read};
use super::uring::{Ring, RingEntry};
use super::{Dispatch, EventLoop};
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

/// How often it is looked whether those who wait were killed. (The kernel's INTERRUPT comes at the
/// first signal, whatever that is, and not for a FLUSH of a process that ends.)
const LOOK: Duration = Duration::from_millis(200);
/// A waiter for a lock is answered when its INTERRUPT is heeded: nobody may be given a lock after that.
/// Only if that takes longer than so many looks is it let go as others are.
const LOCK_LOOKS: u32 = 4;
/// Of so many at a time, in turn.
const LOOKS_MAX: usize = 256;
/// Threads remembered that were killed.
const GONE_MAX: usize = 16;

/// A thread that waits for an answer.
struct Waiter {
    unique: u64,
    tid: u32,
    /// Nobody does.
    nobody: bool,
    /// Where the request came from, if it does not need that any more.
    entry: RefCell<Option<RingEntry>>,
    /// It was killed, and has an answer.
    gone: Cell<bool>,
    /// Looks that do not concern it.
    spared: Cell<usize>,
    /// Looks that find it killed before it is let go.
    patience: Cell<u32>,
}

impl Waiter {
    fn of(request: &mut Request) -> Waiter {
        let entry = request.detach();
        Waiter {
            unique: request.header.unique,
            tid: request.header.pid,
            nobody: request.is_nobodys(),
            entry: RefCell::new(entry),
            gone: Cell::new(false),
            // It has only begun.
            spared: Cell::new(1),
            patience: Cell::new(if request.waits_for_lock() { LOCK_LOOKS } else { 1 }),
        }
    }
}

/// A request under way.
struct Answering<F> {
    waiter: Rc<Waiter>,
    answer: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Future for Answering<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.answer.as_mut().poll(cx)
    }
}

/// What a server has to do: the requests under way, and reading others.
struct Work<F> {
    requests: FuturesUnordered<Answering<F>>,
    /// When it is looked after them.
    look: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Threads that were let go last. One that ends closes its files, one after the other.
    gone: VecDeque<u32>,
    buffer: Buffer,
    /// No more requests will come.
    ended: bool,
    /// The device is not watched: there are enough requests.
    full: bool,
}

impl<F: Future<Output = ()>> Work<F> {
    /// Most requests ask no server, and end here. Else: who waits.
    fn begin(
        &mut self,
        mut request: Request,
        cx: &mut Context<'_>,
        start: impl Fn(Request, Rc<Waiter>) -> F,
    ) -> Option<Rc<Waiter>> {
        let waiter = Rc::new(Waiter::of(&mut request));
        let answer = Box::pin(start(request, Rc::clone(&waiter)));
        let mut answering = Answering { waiter, answer };
        if answering.poll_unpin(cx).is_ready() {
            return None;
        }
        let waiter = Rc::clone(&answering.waiter);
        self.requests.push(answering);
        Some(waiter)
    }
}

impl<D: Dispatch, R: EventLoop> Server<D, R> {
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
            let _ = done.send(self.begin_ring(&mut ring));
            self.ring = Some(RefCell::new(ring));
        }
        drop(done);
        let mut work = Work {
            requests: FuturesUnordered::new(),
            look: None,
            gone: VecDeque::with_capacity(GONE_MAX),
            buffer: Buffer::default(),
            ended: false,
            full: false,
        };
        let start = |request, waiter| self.answer(request, waiter);
        self.reactor.block_on(poll_fn(|cx| self.poll(&mut work, cx, start)));
    }

    /// Lets the kernel use the ring; if that fails, go on without any.
    fn begin_ring(&self, ring: &mut Ring) -> io::Result<()> {
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
        start: impl Fn(Request, Rc<Waiter>) -> F,
    ) -> Poll<()> {
        loop {
            while let Poll::Ready(Some(())) = work.requests.poll_next_unpin(cx) {}
            if work.ended && work.requests.is_empty() {
                return Poll::Ready(());
            }
            let from_ring = self.turn_ring(work, cx, &start);
            let from_device = self.turn_device(work, cx, &start);
            let looked = self.look_after(work, cx);
            if !from_ring && !from_device && !looked {
                return Poll::Pending;
            }
        }
    }

    /// Now and then: whoever was killed need not wait. What it has asked for goes on: servers may
    /// have heard of it, and what is half done here must not stay so.
    fn look_after<F: Future<Output = ()>>(&self, work: &mut Work<F>, cx: &mut Context<'_>) -> bool {
        if work.requests.is_empty() {
            return false;
        }
        let look = work.look.get_or_insert_with(|| Box::pin(self.reactor.sleep(LOOK)));
        if look.as_mut().poll(cx).is_pending() {
            return false;
        }
        work.look = None;
        let (mut looks, rounds) = (0, 1 + work.requests.len() / LOOKS_MAX);
        for waiter in work.requests.iter().map(|answering| &answering.waiter) {
            if waiter.nobody || waiter.gone.get() {
                continue;
            }
            if let Some(spared) = waiter.spared.get().checked_sub(1) {
                waiter.spared.set(spared);
            } else if looks < LOOKS_MAX {
                looks += 1;
                waiter.spared.set(rounds - 1);
                if is_killed(waiter.tid) {
                    waiter.patience.set(waiter.patience.get() - 1);
                    if waiter.patience.get() == 0 {
                        self.let_go(waiter);
                        work.gone.truncate(GONE_MAX - 1);
                        work.gone.push_front(waiter.tid);
                    }
                }
            }
        }
        true
    }

    /// A request has come.
    fn begin<F: Future<Output = ()>>(
        &self,
        work: &mut Work<F>,
        request: Request,
        cx: &mut Context<'_>,
        start: impl Fn(Request, Rc<Waiter>) -> F,
    ) {
        let waiter = work.begin(request, cx, start);
        let again = waiter.filter(|waiter| !waiter.nobody && work.gone.contains(&waiter.tid));
        if let Some(waiter) = again.filter(|waiter| is_killed(waiter.tid)) {
            self.let_go(&waiter);
        }
    }

    fn let_go(&self, waiter: &Waiter) {
        waiter.gone.set(true);
        let reply = Reply::error(Errno::EINTR);
        match waiter.entry.take() {
            Some(entry) => self.answer_by_ring(entry, &reply, waiter.unique),
            None => self.device.reply(&reply, waiter.unique),
        }
    }

    /// Sends what was answered to the ring and takes what has come there, if anything.
    fn turn_ring<F: Future<Output = ()>>(
        &self,
        work: &mut Work<F>,
        cx: &mut Context<'_>,
        start: impl Fn(Request, Rc<Waiter>) -> F,
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
                Ok(request) => self.begin(work, request, cx, &start),
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
        start: impl Fn(Request, Rc<Waiter>) -> F,
    ) -> bool {
        let full = self.ring.is_none() && work.requests.len() >= REQUESTS_MAX;
        self.watch_unless(full, &mut work.full);
        if work.ended || full || self.reactor.poll_source(DEVICE, cx).is_pending() {
            return false;
        }
        for _ in 0..TURN_REQUESTS {
            match self.device.read(&mut work.buffer) {
                Read::Request(mut request) if request.is_brief() => {
                    let waiter = Rc::new(Waiter::of(&mut request));
                    // It is ready at once.
                    let _ = start(request, waiter).now_or_never();
                }
                Read::Request(request) => self.begin(work, request, cx, &start),
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
    async fn answer(&self, request: Request, waiter: Rc<Waiter>) {
        let handled = AssertUnwindSafe(self.dispatch.handle(&request)).catch_unwind();
        let reply = handled.await.unwrap_or_else(|_| {
            let opcode = request.header.opcode;
            tracing::error!("panic while handling FUSE operation {opcode}");
            Reply::error(Errno::EIO)
        });
        if waiter.gone.get() {
            return self.dispatch.undo(&request, &reply).await;
        }
        let unique = request.header.unique;
        match waiter.entry.take().or_else(|| request.into_entry()) {
            Some(entry) => self.answer_by_ring(entry, &reply, unique),
            None if reply.silent => {}
            None => self.device.reply(&reply, unique),
        }
    }

    /// Answers what came through the ring.
    fn answer_by_ring(&self, entry: RingEntry, reply: &Reply, unique: u64) {
        if let Some(ring) = &self.ring {
            ring.borrow_mut().answer(entry, reply, unique);
        }
    }
}
