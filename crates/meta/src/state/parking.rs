//! Requests that wait for something, and run again from the root when it is over. Their number and
//! their bytes are bounded.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use saker_runtime::time::Time;

use crate::request::{Rq, Wait};

/// Requests that may wait at a time; the next is told to try again.
pub const PARKED_MAX: usize = 65_536;
/// Bytes of the requests that may wait.
pub const PARKED_BYTES_MAX: usize = 64 << 20;

/// What waits, and what need not wait any more.
pub(crate) struct Parking<R = Rc<Rq>> {
    waiting: BTreeMap<Wait, Vec<R>>,
    count: usize,
    bytes: usize,
    ready: VecDeque<R>,
}

/// What is parked.
pub(crate) trait Parkable {
    /// Bytes that it holds.
    fn bytes(&self) -> usize;
    /// When it has waited for too long.
    fn deadline(&self) -> Time;
}

impl Parkable for Rc<Rq> {
    fn bytes(&self) -> usize {
        self.raw.len()
    }

    fn deadline(&self) -> Time {
        self.deadline
    }
}

impl<R> Default for Parking<R> {
    fn default() -> Parking<R> {
        Parking { waiting: BTreeMap::new(), count: 0, bytes: 0, ready: VecDeque::new() }
    }
}

impl<R: Parkable> Parking<R> {
    /// Lets a request wait.
    ///
    /// # Errors
    /// Too many wait: gives it back.
    pub(crate) fn park(&mut self, wait: Wait, request: R) -> Result<(), R> {
        let bytes = self.bytes + request.bytes();
        if self.count >= PARKED_MAX || bytes > PARKED_BYTES_MAX {
            return Err(request);
        }
        self.count += 1;
        self.bytes = bytes;
        self.waiting.entry(wait).or_default().push(request);
        Ok(())
    }

    /// What they wait for is over, and they are not to run again.
    pub(crate) fn take(&mut self, wait: &Wait) -> Vec<R> {
        let requests = self.waiting.remove(wait).unwrap_or_default();
        self.forget(&requests);
        requests
    }

    /// What they wait for is over: they are ready.
    pub(crate) fn wake(&mut self, wait: &Wait) {
        let requests = self.take(wait);
        self.ready.extend(requests);
    }

    /// Those that have waited for too long.
    pub(crate) fn take_late(&mut self, now: Time) -> Vec<R> {
        let mut late = Vec::new();
        self.waiting.retain(|_, requests| {
            late.extend(requests.extract_if(.., |request| request.deadline() <= now));
            !requests.is_empty()
        });
        self.forget(&late);
        late
    }

    fn forget(&mut self, requests: &[R]) {
        self.count -= requests.len();
        self.bytes -= requests.iter().map(Parkable::bytes).sum::<usize>();
    }

    /// The next that may run again.
    pub(crate) fn next_ready(&mut self) -> Option<R> {
        self.ready.pop_front()
    }

    /// Those that wait for this.
    pub(crate) fn waiting_for(&self, wait: &Wait) -> &[R] {
        self.waiting.get(wait).map_or(&[], Vec::as_slice)
    }

    /// Does none wait?
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    impl Parkable for (u32, usize) {
        fn bytes(&self) -> usize {
            self.1
        }

        fn deadline(&self) -> Time {
            Time::default() + Duration::from_secs(self.0.into())
        }
    }

    #[test]
    fn what_leaves_makes_room() {
        let mut parking = Parking::default();
        let large = PARKED_BYTES_MAX / 2;
        // Woken, taken, late: each way out.
        for n in 0..9 {
            parking.park(Wait::Busy(n), (5, large)).unwrap();
            parking.park(Wait::Lock(n), (5, large)).unwrap();
            assert_eq!(parking.park(Wait::Busy(99), (5, 1)), Err((5, 1)), "it is full");
            match n % 3 {
                0 => [Wait::Busy(n), Wait::Lock(n)].iter().for_each(|wait| parking.wake(wait)),
                1 => assert_eq!(parking.take(&Wait::Busy(n)).len(), 1),
                _ => assert_eq!(parking.take_late(Time::default()), vec![]),
            }
            let at = Time::default() + Duration::from_secs(5);
            assert_eq!(parking.take_late(at).len(), [0, 1, 2][n as usize % 3]);
            assert!(parking.is_empty() && parking.bytes == 0);
            while parking.next_ready().is_some() {}
        }
        for n in 0..PARKED_MAX {
            parking.park(Wait::Busy(n as u64), (5, 0)).unwrap();
        }
        assert_eq!(parking.park(Wait::Busy(0), (5, 0)), Err((5, 0)));
    }

    #[test]
    fn what_is_woken_runs_in_the_order_in_which_it_came() {
        let mut parking = Parking::default();
        for n in 0..3 {
            parking.park(Wait::Busy(1), (n, 1)).unwrap();
        }
        parking.park(Wait::Busy(2), (9, 1)).unwrap();
        assert_eq!(parking.waiting_for(&Wait::Busy(1)).len(), 3);
        parking.wake(&Wait::Busy(1));
        parking.wake(&Wait::Busy(3));
        assert_eq!(parking.waiting_for(&Wait::Busy(1)), &[]);
        let order: Vec<u32> = std::iter::from_fn(|| parking.next_ready()).map(|r| r.0).collect();
        assert_eq!(order, [0, 1, 2]);
        assert!(!parking.is_empty());
    }
}
