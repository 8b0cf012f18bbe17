//! Deadlines as futures. The owner says what time it is.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::time::Time;

/// Dead entries that the heap may hold beyond as many as live ones.
const DEAD_SLACK: usize = 64;

/// A set of deadlines. Clones share it.
#[derive(Clone, Default)]
pub struct Timers {
    shared: Rc<RefCell<Heap>>,
}

#[derive(Default)]
struct Heap {
    /// By time, then in the order of creation.
    entries: BinaryHeap<Reverse<Entry>>,
    made: u64,
    dead: usize,
}

struct Entry {
    at: Time,
    order: u64,
    state: Rc<RefCell<State>>,
}

enum State {
    Waiting(Option<Waker>),
    Fired,
    Dropped,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl Entry {
    fn is_dead(&self) -> bool {
        matches!(*self.state.borrow(), State::Dropped)
    }
}

impl Heap {
    /// Drops dead entries from the top, and all of them once they are the larger half.
    fn prune(&mut self) {
        if self.dead > self.entries.len() / 2 + DEAD_SLACK {
            self.entries.retain(|Reverse(entry)| !entry.is_dead());
            self.dead = 0;
        }
        while self.entries.peek().is_some_and(|Reverse(entry)| entry.is_dead()) {
            self.entries.pop();
            self.dead = self.dead.saturating_sub(1);
        }
    }
}

impl Timers {
    /// No deadlines.
    pub fn new() -> Timers {
        Timers::default()
    }

    /// A future that is ready once [`Timers::fire`] was called with `at` or later.
    pub fn sleep_until(&self, at: Time) -> SleepUntil {
        let mut heap = self.shared.borrow_mut();
        let state = Rc::new(RefCell::new(State::Waiting(None)));
        heap.made += 1;
        let order = heap.made;
        heap.entries.push(Reverse(Entry { at, order, state: state.clone() }));
        SleepUntil { state, timers: self.clone() }
    }

    /// Wakes everything due at `now`, earliest first. Returns how many were woken.
    pub fn fire(&self, now: Time) -> usize {
        let mut fired = 0;
        while let Some(entry) = self.pop_due(now) {
            let before = std::mem::replace(&mut *entry.state.borrow_mut(), State::Fired);
            if let State::Waiting(waker) = before {
                fired += 1;
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
        fired
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Time> {
        let mut heap = self.shared.borrow_mut();
        heap.prune();
        heap.entries.peek().map(|Reverse(entry)| entry.at)
    }

    fn pop_due(&self, now: Time) -> Option<Entry> {
        let mut heap = self.shared.borrow_mut();
        heap.prune();
        if heap.entries.peek()?.0.at > now {
            return None;
        }
        heap.entries.pop().map(|Reverse(entry)| entry)
    }
}

/// See [`Timers::sleep_until`]. Dropping it forgets the deadline.
pub struct SleepUntil {
    state: Rc<RefCell<State>>,
    timers: Timers,
}

impl Future for SleepUntil {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self.state.borrow_mut() {
            State::Waiting(Some(waker)) => waker.clone_from(cx.waker()),
            State::Waiting(none) => *none = Some(cx.waker().clone()),
            State::Fired | State::Dropped => return Poll::Ready(()),
        }
        Poll::Pending
    }
}

impl Drop for SleepUntil {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.state.borrow_mut(), State::Dropped);
        if matches!(before, State::Waiting(_)) {
            let mut heap = self.timers.shared.borrow_mut();
            heap.dead += 1;
            heap.prune();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Executor;

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    #[test]
    fn fires_in_order_and_not_early() {
        let (executor, timers) = (Executor::new(), Timers::new());
        let log = Rc::new(RefCell::new(Vec::new()));
        for (id, ns) in [(0, 30), (1, 10), (2, 20), (3, 10)] {
            let (timers, log) = (timers.clone(), log.clone());
            executor.spawn(async move {
                timers.sleep_until(at(ns)).await;
                log.borrow_mut().push(id);
            });
        }
        executor.run_until_stalled();
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.fire(at(9)), 0);
        assert_eq!(timers.fire(at(20)), 3);
        executor.run_until_stalled();
        assert_eq!(*log.borrow(), [1, 3, 2]);
        assert_eq!(timers.next(), Some(at(30)));
        timers.fire(at(99));
        executor.run_until_stalled();
        assert_eq!(*log.borrow(), [1, 3, 2, 0]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn dropped_sleeps_neither_count_nor_pile_up() {
        let timers = Timers::new();
        let kept = timers.sleep_until(at(1_000_000));
        let first = timers.sleep_until(at(1));
        assert_eq!(timers.next(), Some(at(1)));
        drop(first);
        assert_eq!(timers.next(), Some(at(1_000_000)));
        for ns in 0..100_000 {
            drop(timers.sleep_until(at(2_000_000 + ns)));
        }
        assert!(timers.shared.borrow().entries.len() <= 2 * DEAD_SLACK + 2);
        drop(kept);
        assert_eq!(timers.next(), None);
    }
}
