//! Jobs that wait for a thread, and a bounded number of threads that take them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// A queue of jobs and how many threads work on it.
pub(super) struct Lane<J> {
    state: Mutex<State<J>>,
    threads_max: usize,
}

struct State<J> {
    queue: VecDeque<J>,
    threads: usize,
    /// Threads that wait for jobs. Who came last goes first: its caches are warm.
    idle: Vec<Thread>,
    ended: bool,
}

impl<J> Lane<J> {
    pub fn new(threads_max: usize) -> Lane<J> {
        let state = State { queue: VecDeque::new(), threads: 0, idle: Vec::new(), ended: false };
        Lane { state: Mutex::new(state), threads_max: threads_max.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job. True: it needs another thread, which the caller is to start.
    pub fn push(&self, job: J) -> bool {
        let mut state = self.lock();
        state.queue.push_back(job);
        if let Some(thread) = state.idle.pop() {
            drop(state);
            thread.unpark();
            return false;
        }
        let is_short = state.threads < self.threads_max;
        state.threads += usize::from(is_short);
        is_short
    }

    /// Waits for jobs and takes up to `count`; `None` when no more will be done.
    pub fn take(&self, count: usize) -> Option<VecDeque<J>> {
        let mut state = self.lock();
        while state.queue.is_empty() && !state.ended {
            let me = thread::current();
            let id = me.id();
            state.idle.push(me);
            drop(state);
            thread::park();
            state = self.lock();
            // Woken by somebody else than a push.
            state.idle.retain(|thread| thread.id() != id);
        }
        if state.ended {
            return None;
        }
        if count >= state.queue.len() {
            return Some(std::mem::take(&mut state.queue));
        }
        Some(state.queue.drain(..count).collect())
    }

    /// What waits is not done any more; threads end after what they work on.
    pub fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let (left, idle) = (std::mem::take(&mut state.queue), std::mem::take(&mut state.idle));
        drop(state);
        drop(left);
        idle.iter().for_each(Thread::unpark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_started_while_there_is_work_for_them() {
        let lane = Lane::new(2);
        assert!(lane.push(1) && lane.push(2), "nobody is idle");
        assert!(!lane.push(3), "there are two");
        assert_eq!(lane.take(1), Some([1].into()));
        assert_eq!(lane.take(usize::MAX), Some([2, 3].into()));
        lane.push(4);
        lane.end();
        assert_eq!(lane.take(1), None);
    }
}
