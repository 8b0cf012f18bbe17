//! Calls over TCP, driven by the threads that wait for them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use mio::{Events, Registry, Token};
use rustix::event::epoll;
use saker_runtime::time;

use super::alarms::{Alarm, Alarms};
use super::busy_poll::BusyPoll;
use super::conn::{Conn, Effects, Io};
use super::seat::{Seats, Waiter};
use super::{Call, Sleep, Transport};
use crate::CallError;
use crate::frame::Frame;
use crate::hello::{Hello, HelloReply};

const TOKEN_WAKER: Token = Token(usize::MAX);
/// Of the first source; the others go down from there.
const TOKEN_SOURCE: Token = Token(usize::MAX - 1);
/// Files that a reactor can look at beside its sockets.
const SOURCES: usize = 2;
const EVENTS_MAX: usize = 256;
/// The driver looks around at least this often, so that calls with longer deadlines, which is
/// nearly all of them, need not wake it to tell about them.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// The client side of any number of connections, one for each server address, made when first
/// called. It has no thread: sockets make progress while some thread is in [`Reactor::block_on`].
///
/// A call only encodes its request; requests are written when a thread would wait, so that many
/// futures on one thread share one write.
///
/// A thread that is always in `block_on` can have a [`Reactor::sibling`] of its own: then it
/// shares neither connections nor locks with others.
pub struct Reactor {
    registry: Registry,
    waker: Arc<mio::Waker>,
    /// Shared by siblings, which are known by it.
    hello: Arc<Mutex<Hello>>,
    conns: RwLock<Conns>,
    sources: [PollSource; SOURCES],
    dirty: Mutex<Vec<Arc<Conn>>>,
    /// Calls under way.
    calls: Arc<AtomicUsize>,
    alarms: Alarms,
    seats: Seats<Driver>,
}

/// A file that is looked at beside the sockets.
#[derive(Default)]
struct PollSource {
    ready: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Default)]
struct Conns {
    by_addr: HashMap<SocketAddr, Arc<Conn>>,
    by_token: Vec<Arc<Conn>>,
}

/// What the thread in the driver's seat works with.
struct Driver {
    poll: mio::Poll,
    events: Events,
    due: Vec<Alarm>,
    /// Connections whose turn ended with more to read.
    again: Vec<Arc<Conn>>,
    effects: Effects,
    busy_poll: BusyPoll,
}

/// A call that is under way in this process.
pub(crate) struct LocalCall(Arc<AtomicUsize>);

impl Drop for LocalCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

thread_local! {
    /// The reactor whose `block_on` this thread is in.
    static DRIVEN: RefCell<Option<Arc<Reactor>>> = const { RefCell::new(None) };
}

/// Marks the thread as being in `block_on`.
struct Blocking;

impl Blocking {
    fn enter(reactor: &Arc<Reactor>) -> Blocking {
        let outer = DRIVEN.replace(Some(reactor.clone()));
        assert!(outer.is_none(), "block_on inside of block_on would never end");
        Blocking
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        DRIVEN.take();
    }
}

impl Reactor {
    /// A reactor that says `hello` on its connections.
    ///
    /// # Errors
    /// When the system has no room for another poll.
    pub fn new(hello: Hello) -> io::Result<Arc<Reactor>> {
        Reactor::with_hello(Arc::new(Mutex::new(hello)))
    }

    /// Another reactor of the same client, with connections of its own, for one thread.
    ///
    /// # Errors
    /// When the system has no room for another poll.
    pub fn sibling(&self) -> io::Result<Arc<Reactor>> {
        Reactor::with_hello(self.hello.clone())
    }

    fn with_hello(hello: Arc<Mutex<Hello>>) -> io::Result<Arc<Reactor>> {
        let poll = mio::Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Arc::new(mio::Waker::new(&registry, TOKEN_WAKER)?);
        let driver = Driver {
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            due: Vec::new(),
            again: Vec::new(),
            effects: Effects::default(),
            busy_poll: BusyPoll::default(),
        };
        Ok(Arc::new(Reactor {
            registry,
            waker,
            hello,
            conns: RwLock::default(),
            sources: Default::default(),
            dirty: Mutex::default(),
            calls: Arc::default(),
            alarms: Alarms::default(),
            seats: Seats::new(driver),
        }))
    }

    /// From now on say `hello` on new connections (a session, a new epoch).
    pub fn set_hello(&self, hello: Hello) {
        *lock(&self.hello) = hello;
    }

    /// The last answer to a hello from the server at `addr`, be it a refusal.
    pub fn hello_reply(&self, addr: SocketAddr) -> Option<HelloReply> {
        let conns = self.conns.read().unwrap_or_else(PoisonError::into_inner);
        conns.by_addr.get(&addr)?.hello_reply()
    }

    /// A call begins that is answered in this process, and not over a socket of this reactor. Until what
    /// this returns is dropped, who waits in `block_on` looks for its end before it sleeps.
    pub(crate) fn begin_local_call(&self) -> LocalCall {
        self.calls.fetch_add(1, Ordering::Relaxed);
        LocalCall(self.calls.clone())
    }

    /// Calls `f` with the sibling that the calling thread is in `block_on` of, or else with this
    /// reactor.
    pub fn with_local<T>(&self, f: impl FnOnce(&Reactor) -> T) -> T {
        DRIVEN.with_borrow(|driven| match driven {
            Some(local) if Arc::ptr_eq(&local.hello, &self.hello) => f(local),
            _ => f(self),
        })
    }

    /// From now on `fd` is looked at together with the sockets, for [`Reactor::poll_source`] of
    /// the same `source` (0 or 1); one at a time for each. Of several reactors that watch the same
    /// file only one is woken when it can be read (EPOLLEXCLUSIVE of epoll_ctl(2)).
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn watch(&self, source: usize, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.add(source, fd, epoll::EventFlags::EXCLUSIVE)
    }

    /// The same for an eventfd(2), which nobody has to read: the source is ready whenever it was
    /// written to.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn watch_signals(&self, source: usize, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.add(source, eventfd, epoll::EventFlags::ET)
    }

    fn add(&self, source: usize, fd: BorrowedFd<'_>, how: epoll::EventFlags) -> io::Result<()> {
        debug_assert!(source < SOURCES);
        let token = epoll::EventData::new_u64((TOKEN_SOURCE.0 - source) as u64);
        Ok(epoll::add(self.epoll(), fd, token, epoll::EventFlags::IN | how)?)
    }

    /// Ends a [`Reactor::watch`].
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn unwatch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(self.epoll(), fd)?)
    }

    /// mio has no word for EPOLLEXCLUSIVE.
    fn epoll(&self) -> BorrowedFd<'_> {
        // SAFETY: the poll is open as long as its registry, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(self.registry.as_raw_fd()) }
    }

    /// Ready when the file watched as `source` could be read since this was ready last. Who does
    /// not read all that is there gets it ready again.
    pub fn poll_source(&self, source: usize, cx: &mut Context<'_>) -> Poll<()> {
        let source = &self.sources[source];
        source.waker.register(cx.waker());
        if source.ready.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Runs `future` on the calling thread, and drives the sockets while it waits.
    ///
    /// # Panics
    /// Inside of another `block_on` on the same thread.
    pub fn block_on<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let _blocking = Blocking::enter(self);
        let drive = |driver: &mut Driver, waiter: &Waiter| self.drive(driver, waiter);
        self.seats.block_on(self.waker.clone(), future, || self.flush(), drive)
    }

    /// Is the calling thread in the `block_on` of a reactor?
    pub fn is_blocking() -> bool {
        DRIVEN.with_borrow(Option::is_some)
    }

    /// Writes all requests that have been made and not been written yet. Waiting in `block_on`
    /// does it, too.
    pub fn flush(&self) {
        let mut dirty = std::mem::take(&mut *lock(&self.dirty));
        let mut effects = Effects::default();
        for conn in dirty.drain(..) {
            conn.flush(&self.io(), &mut effects);
        }
        self.apply(&mut effects);
        let mut kept = lock(&self.dirty);
        if kept.capacity() == 0 {
            *kept = dirty;
        }
    }

    /// Drives until the waiter's future is woken; at least looks at the sockets once.
    fn drive(&self, driver: &mut Driver, waiter: &Waiter) {
        loop {
            match self.wait(driver, waiter) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    panic!("the system's poll fails: {error}")
                }
                // After an interruption there are no events.
                _ => self.handle(driver),
            }
            if waiter.is_notified() {
                return;
            }
            self.flush();
        }
    }

    /// Waits for sockets, alarms and the waiter's future.
    fn wait(&self, driver: &mut Driver, waiter: &Waiter) -> io::Result<()> {
        let Driver { poll, events, again, busy_poll, .. } = driver;
        let mut idle = again.is_empty();
        if idle && busy_poll.is_due(self.calls.load(Ordering::Relaxed)) {
            let found = busy_poll.run(|| {
                if waiter.is_notified() {
                    return Ok(true);
                }
                poll.poll(events, Some(Duration::ZERO))?;
                Ok(!events.is_empty())
            })?;
            if found {
                return Ok(());
            }
        }
        let now = time::now();
        let until = self.alarms.before_wait(now + LOOK_AROUND);
        idle &= waiter.begin_poll();
        let patience = if idle { until - now } else { Duration::ZERO };
        let polled = poll.poll(events, Some(patience));
        waiter.end_poll();
        polled
    }

    fn handle(&self, driver: &mut Driver) {
        let Driver { events, due, again, effects, .. } = driver;
        self.alarms.after_wait(time::now(), due);
        let turn = std::mem::take(again);
        for conn in turn {
            if conn.read_on(&self.io(), effects) {
                again.push(conn);
            }
        }
        for event in events.iter() {
            let source = TOKEN_SOURCE.0.wrapping_sub(event.token().0);
            if let Some(source) = self.sources.get(source) {
                source.ready.store(true, Ordering::Release);
                source.waker.wake();
                continue;
            }
            let conns = self.conns.read().unwrap_or_else(PoisonError::into_inner);
            let Some(conn) = conns.by_token.get(event.token().0).cloned() else { continue };
            drop(conns);
            if conn.on_event(&self.io(), event, effects) {
                again.push(conn);
            }
        }
        for alarm in due.drain(..) {
            self.ring(alarm, effects);
        }
        self.apply(effects);
    }

    fn ring(&self, alarm: Alarm, effects: &mut Effects) {
        match alarm {
            Alarm::Call(conn, call) => {
                if let Some(promise) = conn.take_call(call) {
                    effects.done.push((promise, Err(CallError::Timeout)));
                }
            }
            Alarm::Sleep(promise) => promise.complete(),
            Alarm::Dial(conn, attempt) => conn.on_dial_alarm(&self.io(), attempt, effects),
            Alarm::Redial(conn) => conn.on_redial_alarm(&self.io(), effects),
        }
    }

    /// Sets alarms, then ends calls, which wakes their futures.
    fn apply(&self, effects: &mut Effects) {
        let mut wake = false;
        for (at, alarm) in effects.alarms.drain(..) {
            wake |= self.alarms.set(at, alarm);
        }
        if wake {
            self.wake_driver();
        }
        self.calls.fetch_sub(effects.done.len(), Ordering::Relaxed);
        for (promise, result) in effects.done.drain(..) {
            promise.complete(result);
        }
    }

    fn wake_driver(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!("the driver could not be woken: {error}");
        }
    }

    fn io(&self) -> Io<'_> {
        Io { registry: &self.registry, hello: &self.hello, dirty: &self.dirty }
    }

    fn conn(&self, addr: SocketAddr) -> Arc<Conn> {
        let conns = self.conns.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(conn) = conns.by_addr.get(&addr) {
            return conn.clone();
        }
        drop(conns);
        let mut conns = self.conns.write().unwrap_or_else(PoisonError::into_inner);
        let Conns { by_addr, by_token } = &mut *conns;
        let made = by_addr.entry(addr).or_insert_with(|| {
            let conn = Arc::new(Conn::new(addr, Token(by_token.len()), lock(&self.hello).clone()));
            by_token.push(conn.clone());
            conn
        });
        made.clone()
    }
}

impl Transport for Reactor {
    fn call(
        &self,
        to: SocketAddr,
        op: u16,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        timeout: Duration,
    ) -> Call {
        let (promise, call) = Call::new();
        self.calls.fetch_add(1, Ordering::Relaxed);
        let frame = Frame::request(op, trace, body, payload);
        let conn = self.conn(to);
        let mut effects = Effects::default();
        let deadline = time::now() + timeout;
        conn.submit(&self.io(), frame, promise, deadline, &mut effects);
        self.apply(&mut effects);
        call
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let (promise, sleep) = Sleep::new();
        if self.alarms.set(time::now() + time, Alarm::Sleep(promise)) {
            self.wake_driver();
        }
        sleep
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
