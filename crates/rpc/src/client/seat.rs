//! The driver's seat: which of the threads that wait polls the sockets for all of them.
//!
//! A thread whose future is pending takes the seat if it is free, and drives until its own
//! future is ready; then it gives the seat to one of those that parked meanwhile. So a lone
//! thread never hands anything to another one, and a reactor needs no thread of its own.
//!
//! # Why no wake-up is lost
//!
//! A thread is in one of five states, kept in [`Waiter::state`]:
//!
//! - RUNNING: it polls its future, or works as the driver outside the system's poll;
//! - POLLING: it is the driver, and waits for sockets, or is just about to;
//! - PARKED: it waits, without the seat; OFFERED: it did, and was asked to take the seat;
//! - NOTIFIED: its future's waker was called since RUNNING was last set.
//!
//! *Wakes of futures.* The waker swaps in NOTIFIED and acts on what was there before. RUNNING: the
//! thread gets to POLLING or PARKED only by a compare-and-swap from RUNNING, which fails now, and
//! then it polls its future again. POLLING: the poll's own waker is called; that is a counter in
//! the kernel, so the poll returns even if it has not begun. PARKED: `unpark` is called; its token
//! makes a `park` that has not begun return at once. OFFERED: the thread is being unparked
//! already, and looks at its state afterwards. Only the thread itself sets RUNNING, and always
//! before it polls the future, which then sees everything that came before the wake (the swap
//! releases, the store that sets RUNNING is a swap that acquires).
//!
//! *The seat.* `Inner` is only touched under its lock. Invariant: whenever the seat is free, no
//! thread is in `parked`, or a thread that was taken out of `parked` is on its way to the lock and
//! will take the seat there if it is still free.
//!
//! - A thread joins `parked` only while the seat is taken.
//! - The seat becomes free only in `Hold::drop`, which takes one thread, if there is any, out of
//!   `parked` under the same lock, and offers it the seat.
//! - A thread that was in `parked` takes the lock whenever it wakes, for whatever reason. If it is
//!   not in `parked` any more, it was offered the seat, and takes it if it is free, even if it was
//!   notified, too. (It gives it up, with a new offer, as soon as its future is ready.) If the seat
//!   is not free, somebody else drives and will make the next offer when it leaves.
//! - If it is still in `parked`, it was only notified; it leaves `parked` and no offer is lost.
//!
//! So as long as any thread is parked, some thread drives, or is about to: sockets and deadlines
//! are looked at. What a thread wants to send it flushes itself, before it parks.
//!
//! *Deadlines.* The driver says under the alarms' lock when it will look again. Whoever adds an
//! earlier one sees that under the same lock, and calls the poll's waker.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::{AtomicU8, Mutex, MutexGuard, Ordering, PollWaker, Thread, current, park};

const RUNNING: u8 = 0;
const POLLING: u8 = 1;
const PARKED: u8 = 2;
const OFFERED: u8 = 3;
const NOTIFIED: u8 = 4;

/// A future that wakes itself is polled this often before sockets get a turn.
const SELF_WAKES_MAX: u32 = 128;

/// A thread that waits for a future; also that future's waker.
pub(super) struct Waiter {
    state: AtomicU8,
    thread: Thread,
    poll_waker: Arc<PollWaker>,
}

impl Waiter {
    /// The calling thread.
    fn new(poll_waker: Arc<PollWaker>) -> Arc<Waiter> {
        Arc::new(Waiter { state: AtomicU8::new(RUNNING), thread: current(), poll_waker })
    }

    fn change(&self, from: u8, to: u8) -> bool {
        let (ok, failed) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(from, to, ok, failed).is_ok()
    }

    /// The future is about to be polled.
    fn run(&self) {
        self.state.swap(RUNNING, Ordering::AcqRel);
    }

    /// Whether the future was woken since.
    pub fn is_notified(&self) -> bool {
        self.state.load(Ordering::Acquire) == NOTIFIED
    }

    /// Before the system's poll; false if the future was woken.
    pub fn begin_poll(&self) -> bool {
        self.change(RUNNING, POLLING)
    }

    /// After the system's poll.
    pub fn end_poll(&self) {
        self.change(POLLING, RUNNING);
    }

    fn park(&self) {
        while self.state.load(Ordering::Acquire) == PARKED {
            park();
        }
    }

    fn offer(&self) {
        if self.change(PARKED, OFFERED) {
            self.thread.unpark();
        }
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            PARKED => self.thread.unpark(),
            POLLING => {
                if let Err(error) = self.poll_waker.wake() {
                    tracing::error!("a poll could not be woken: {error}");
                }
            }
            _ => {}
        }
    }
}

struct Inner<D> {
    /// What the driver needs; `None` while the seat is taken.
    seat: Option<D>,
    /// Threads that wait for their futures, or for the seat.
    parked: VecDeque<Arc<Waiter>>,
}

/// The seat of one reactor.
pub(super) struct Seats<D>(Mutex<Inner<D>>);

impl<D> Seats<D> {
    pub fn new(driver: D) -> Seats<D> {
        Seats(Mutex::new(Inner { seat: Some(driver), parked: VecDeque::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner<D>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a future on the calling thread. Before that waits, `flush` sends what was asked for;
    /// in the seat, `drive` looks at the sockets, at least once, until the waiter is notified.
    pub fn block_on<F: Future>(
        &self,
        poll_waker: Arc<PollWaker>,
        future: F,
        flush: impl Fn(),
        drive: impl Fn(&mut D, &Waiter),
    ) -> F::Output {
        let waiter = Waiter::new(poll_waker);
        let waker = Waker::from(waiter.clone());
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        // The seat is kept while the future runs: it is only handed on when that is ready.
        let mut hold = SeatClaim { seats: self, driver: None };
        let mut self_wakes = 0;
        loop {
            waiter.run();
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            if waiter.is_notified() && self_wakes < SELF_WAKES_MAX {
                self_wakes += 1;
                continue;
            }
            self_wakes = 0;
            flush();
            if hold.driver.is_none() {
                hold.wait(&waiter);
            }
            if let Some(driver) = &mut hold.driver {
                drive(driver, &waiter);
            }
        }
    }
}

/// A thread's relation to the seat; gives it up when dropped.
struct SeatClaim<'a, D> {
    seats: &'a Seats<D>,
    driver: Option<D>,
}

impl<D> SeatClaim<'_, D> {
    /// Returns when this thread has the seat, or its future was woken, or both.
    fn wait(&mut self, waiter: &Arc<Waiter>) {
        let mut inner = self.seats.lock();
        loop {
            self.driver = inner.seat.take();
            if self.driver.is_some() {
                // Only the offer may go; NOTIFIED stays.
                waiter.change(OFFERED, RUNNING);
                return;
            }
            // Somebody else took the seat that was offered: wait on.
            waiter.change(OFFERED, RUNNING);
            if !waiter.change(RUNNING, PARKED) {
                return;
            }
            inner.parked.push_back(waiter.clone());
            drop(inner);
            waiter.park();
            inner = self.seats.lock();
            let before = inner.parked.len();
            inner.parked.retain(|other| !Arc::ptr_eq(other, waiter));
            let offered = inner.parked.len() == before;
            if !offered {
                return;
            }
        }
    }
}

impl<D> Drop for SeatClaim<'_, D> {
    fn drop(&mut self) {
        let Some(driver) = self.driver.take() else { return };
        let mut inner = self.seats.lock();
        inner.seat = Some(driver);
        let next = inner.parked.pop_front();
        drop(inner);
        if let Some(next) = next {
            next.offer();
        }
    }
}
