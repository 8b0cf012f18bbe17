//! What is shared between threads. Of the protocols nothing is: a shard is one thread, and its
//! guard one step of it (decision 1); `rpc::hub` and `runtime::task::oneshot` are `Rc`. Left are
//! the client's reactor, whose threads hand each other the seat of the one that polls
//! (`rpc::client::{seat, slot}`), and the executor's queue of wakes, which wakers of other
//! threads may push to (`runtime::task::executor`).
//!
//! Their source files are compiled here once more, with [`crate::sync`] in place of the standard
//! library's types; shuttle runs the scenarios under many schedules, and reports a deadlock when
//! a wake-up is lost: nothing here has a timeout that would hide it.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::CallError;
use crate::frame::Frame;
use crate::sync::{AtomicBool, Mutex, Ordering, PollWaker};

#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../../crates/runtime/src/task/executor.rs"]
mod executor;
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../../crates/rpc/src/client/promise.rs"]
mod promise;
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../../crates/rpc/src/client/seat.rs"]
mod seat;

use promise::{Call, CallPromise};
use seat::{Seats, Waiter};

/// A reactor without sockets: what arrives for a token ends the call of that number.
struct Reactor {
    poll: Arc<PollWaker>,
    seats: Seats<()>,
    calls: Mutex<Vec<Option<CallPromise>>>,
    /// The fault: the driver does not say that it is about to wait.
    polls_silently: bool,
}

impl Reactor {
    fn new(calls: Vec<Option<CallPromise>>, polls_silently: bool) -> Reactor {
        let calls = Mutex::new(calls);
        Reactor { poll: Arc::default(), seats: Seats::new(()), calls, polls_silently }
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let drive = |(): &mut (), waiter: &Waiter| self.drive(waiter);
        self.seats.block_on(self.poll.clone(), future, || {}, drive)
    }

    /// As `rpc::client::reactor` does.
    fn drive(&self, waiter: &Waiter) {
        loop {
            let may_wait = self.polls_silently || waiter.begin_poll();
            let events = self.poll.poll(may_wait);
            waiter.end_poll();
            events.into_iter().for_each(|token| self.end(token));
            if waiter.is_notified() {
                return;
            }
        }
    }

    fn end(&self, token: usize) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = calls[token].take();
        drop(calls);
        if let Some(slot) = slot {
            slot.complete(Err(CallError::Timeout));
        }
    }
}

/// Threads call a server and wait, each for its own answer; whoever waits drives for the others.
/// One answer comes from another thread, not from a socket.
///
/// # Panics
/// If a schedule is found in which somebody waits for ever: always, with the fault.
pub fn seat_is_handed_over(callers: usize, polls_silently: bool) {
    let (slots, calls): (Vec<_>, Vec<_>) =
        (0..callers).map(|_| Call::new()).map(|(slot, call)| (Some(slot), call)).unzip();
    let reactor = Arc::new(Reactor::new(slots, polls_silently));
    let mut threads: Vec<_> = calls
        .into_iter()
        .map(|call| {
            let reactor = reactor.clone();
            shuttle::thread::spawn(move || {
                assert_eq!(reactor.block_on(call), Err(CallError::Timeout));
            })
        })
        .collect();
    threads.push({
        let reactor = reactor.clone();
        shuttle::thread::spawn(move || {
            (1..callers).for_each(|token| reactor.poll.event(token));
            reactor.end(0);
        })
    });
    for thread in threads {
        assert!(thread.join().is_ok());
    }
}

/// Counts wakes.
#[derive(Default)]
struct Wakes(AtomicBool);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A slot is filled by one thread while another polls it: the value comes once, and whoever was
/// told to wait is woken.
///
/// # Panics
/// If not.
pub fn slot_is_filled_once() {
    let (slot, call) = Call::new();
    let filler = shuttle::thread::spawn(move || slot.complete(Err(CallError::Timeout)));
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let mut call = std::pin::pin!(call);
    let mut poll = || call.as_mut().poll(&mut Context::from_waker(&waker));
    let first: Poll<Result<Frame, CallError>> = poll();
    assert!(filler.join().is_ok());
    if first.is_pending() {
        assert!(wakes.0.load(Ordering::SeqCst), "a wake was lost");
        assert_eq!(poll(), Poll::Ready(Err(CallError::Timeout)));
    } else {
        assert_eq!(first, Poll::Ready(Err(CallError::Timeout)));
    }
}

/// Two threads wake a task while the executor polls it: after them it is polled once more, and
/// sees what they did before.
///
/// # Panics
/// If not.
pub fn executor_hears_every_wake() {
    let executor = executor::Executor::new();
    let flags: Arc<[AtomicBool; 2]> = Arc::default();
    let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
    let polls = Rc::new(Cell::new(0));
    let (seen, keep, count) = (flags.clone(), waker.clone(), polls.clone());
    executor.spawn(poll_fn(move |cx| {
        count.set(count.get() + 1);
        *keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        let is_done = seen.iter().all(|flag| flag.load(Ordering::SeqCst));
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    }));
    executor.run_until_stalled();
    let threads = [0, 1].map(|n| {
        let (flags, waker) = (flags.clone(), waker.clone());
        shuttle::thread::spawn(move || {
            flags[n].store(true, Ordering::SeqCst);
            let waker = waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
            waker.into_iter().for_each(Waker::wake);
        })
    });
    executor.run_until_stalled();
    for thread in threads {
        assert!(thread.join().is_ok());
    }
    executor.run_until_stalled();
    assert!(executor.is_empty(), "a wake was lost");
    assert!(polls.get() <= 3, "polled without a wake");
}
