//! The shell's own deadlines.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use saker_runtime::time::Time;

use super::{CallId, ConnId};
use crate::NodeNumber;

/// What to look at when its time comes. Most alarms find their matter settled by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// A call ends.
    Call(CallId),
    /// A connection must have said hello, either way, by now.
    Hello(ConnId),
    /// A peer may be dialed again.
    Redial(NodeNumber),
    /// Connections may be accepted again.
    Accept,
    /// Connections are looked at for those that stand still.
    Look,
}

/// Settled alarms that may lie in the heap beyond as many as live ones.
const SETTLED_SLACK: usize = 1024;

#[derive(Default)]
pub(super) struct Alarms {
    heap: BinaryHeap<Reverse<(Time, Alarm)>>,
    settled: usize,
}

impl Alarms {
    pub fn set(&mut self, at: Time, alarm: Alarm) {
        self.heap.push(Reverse((at, alarm)));
    }

    /// One alarm does not matter any more. `live` tells which ones do, should it be time to
    /// sweep the others out.
    pub fn settle(&mut self, live: impl Fn(&Alarm) -> bool) {
        self.settled += 1;
        if self.settled > self.heap.len() / 2 + SETTLED_SLACK {
            self.heap.retain(|Reverse((_, alarm))| live(alarm));
            self.settled = 0;
        }
    }

    pub fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    pub fn pop(&mut self, now: Time) -> Option<Alarm> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, alarm))| alarm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_alarms_do_not_pile_up() {
        let mut alarms = Alarms::default();
        let at = |n: u64| Time::from_ns(n);
        alarms.set(at(7), Alarm::Redial(NodeNumber(1)));
        for n in 0..100_000 {
            alarms.set(at(1_000 + n), Alarm::Call(CallId(n)));
            alarms.settle(|alarm| matches!(alarm, Alarm::Redial(_)));
        }
        assert!(alarms.heap.len() < 3 * SETTLED_SLACK, "{}", alarms.heap.len());
        assert_eq!(alarms.pop(at(6)), None);
        assert_eq!(alarms.pop(at(7)), Some(Alarm::Redial(NodeNumber(1))));
    }
}
