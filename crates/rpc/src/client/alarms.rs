//! Deadlines of calls, sleeps and connections.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use saker_runtime::time::Time;

use super::conn::Conn;
use super::promise::SleepPromise;

/// Settled alarms that may lie in the heap beyond as many as live ones.
const SETTLED_SLACK: usize = 4096;

/// What is due.
pub(super) enum Alarm {
    /// The call with this number ends.
    Call(Arc<Conn>, u64),
    /// A sleeper wakes.
    Sleep(SleepPromise),
    /// The attempt with this number to connect has taken long enough.
    Dial(Arc<Conn>, u64),
    /// The server may be tried again.
    Redial(Arc<Conn>),
}

impl Alarm {
    fn matters(&self) -> bool {
        match self {
            Alarm::Call(conn, id) => conn.is_open(*id),
            Alarm::Sleep(promise) => !promise.is_abandoned(),
            Alarm::Dial(..) | Alarm::Redial(_) => true,
        }
    }
}

struct Entry {
    at: Time,
    order: u64,
    alarm: Alarm,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Default)]
struct Heap {
    entries: BinaryHeap<Reverse<Entry>>,
    made: u64,
    /// Sweep when the heap is as long as this.
    sweep_at: usize,
    /// When the driver will look again by itself; `ZERO` while it does not wait.
    driver_wakes_at: Time,
}

/// All alarms of a reactor. No connection may be locked by whoever locks them.
#[derive(Default)]
pub(super) struct Alarms(Mutex<Heap>);

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, Heap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an alarm. Returns whether the driver sleeps past it, and must be woken.
    pub fn set(&self, at: Time, alarm: Alarm) -> bool {
        let mut heap = self.lock();
        heap.made += 1;
        let order = heap.made;
        heap.entries.push(Reverse(Entry { at, order, alarm }));
        at < heap.driver_wakes_at
    }

    /// Before the driver waits: when to look again, at `latest` if nothing is due before.
    pub fn before_wait(&self, latest: Time) -> Time {
        let mut heap = self.lock();
        let next = heap.entries.peek().map_or(latest, |Reverse(entry)| entry.at.min(latest));
        heap.driver_wakes_at = next;
        next
    }

    /// After the driver has waited: moves what is due at `now` to `due`.
    pub fn after_wait(&self, now: Time, due: &mut Vec<Alarm>) {
        let mut heap = self.lock();
        heap.driver_wakes_at = Time::ZERO;
        while heap.entries.peek().is_some_and(|Reverse(entry)| entry.at <= now) {
            due.extend(heap.entries.pop().map(|Reverse(entry)| entry.alarm));
        }
        if heap.entries.len() >= heap.sweep_at.max(SETTLED_SLACK) {
            heap.entries.retain(|Reverse(entry)| entry.alarm.matters());
            heap.sweep_at = 2 * heap.entries.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::promise::Sleep;
    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    #[test]
    fn wakes_the_driver_only_when_it_would_be_late() {
        let alarms = Alarms::default();
        let (early, _a) = Sleep::new();
        let (late, _b) = Sleep::new();
        assert!(!alarms.set(at(50), Alarm::Sleep(late)), "nobody waits");
        assert_eq!(alarms.before_wait(at(100)), at(50));
        assert!(alarms.set(at(40), Alarm::Sleep(early)));
        let (later, _c) = Sleep::new();
        assert!(!alarms.set(at(60), Alarm::Sleep(later)));
        let mut due = Vec::new();
        alarms.after_wait(at(50), &mut due);
        assert_eq!(due.len(), 2);
        assert_eq!(alarms.before_wait(at(55)), at(55));
    }

    #[test]
    fn settled_alarms_do_not_pile_up() {
        let alarms = Alarms::default();
        let (kept, _sleep) = Sleep::new();
        alarms.set(at(1_000_000), Alarm::Sleep(kept));
        for ns in 0..10 * SETTLED_SLACK as u64 {
            let (promise, sleep) = Sleep::new();
            alarms.set(at(1_000_000 + ns), Alarm::Sleep(promise));
            drop(sleep);
            alarms.after_wait(at(0), &mut Vec::new());
        }
        let left = alarms.lock().entries.len();
        assert!((1..=SETTLED_SLACK).contains(&left), "{left}");
    }
}
