//! Attempts at one write. A client that gets no answer sends its write again, on another
//! connection; the first attempt may be executed after the second, and then after later writes of
//! the same bytes. So a retry lets attempts that run end first, and bars those that come later.
//!
//! In memory only: an attempt does not outlive the process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};

use saker_types::{Errno, Error, Result};

use crate::wait::{WaitPolicy, locked, would_wait};

/// Writes whose earlier attempts are remembered as barred; retries are rare, and an attempt is
/// not late by more than a connection lives, or a disk takes for what is before it.
const BARRED_MAX: usize = 1 << 16;

/// Writer, and number of the write.
type Write = (u64, u64);

/// The attempts of all writers.
#[derive(Default)]
pub struct Attempts {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    running: BTreeSet<(Write, u32)>,
    /// Attempts below this number are refused.
    barred: BTreeMap<Write, u32>,
    /// `barred`, oldest first.
    order: VecDeque<Write>,
}

impl State {
    fn bar(&mut self, write: Write, attempt: u32) {
        let below = self.barred.entry(write).or_insert_with(|| {
            self.order.push_back(write);
            attempt
        });
        *below = attempt.max(*below);
        if self.barred.len() > BARRED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.barred.remove(&oldest);
        }
    }

    fn is_barred(&self, write: Write, attempt: u32) -> bool {
        self.barred.get(&write).is_some_and(|below| attempt < *below)
    }

    fn runs_below(&self, write: Write, attempt: u32) -> bool {
        self.running.range((write, 0)..(write, attempt)).next().is_some()
    }
}

/// An attempt that runs, until it is dropped.
pub struct Running<'a> {
    attempts: &'a Attempts,
    id: (Write, u32),
}

impl Attempts {
    /// Begins an attempt, once no earlier one of the same write runs.
    ///
    /// # Errors
    /// EALREADY when a later one has come; nobody waits for the answer. EAGAIN.
    pub fn begin(&self, write: Write, attempt: u32, wait: WaitPolicy) -> Result<Running<'_>> {
        let mut state = locked(&self.state);
        if attempt > 0 {
            state.bar(write, attempt);
        }
        while state.runs_below(write, attempt) {
            if wait == WaitPolicy::Never {
                return Err(would_wait());
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_barred(write, attempt) {
            let text = format!("attempt {attempt} comes after a later one");
            return Err(Error::new(Errno::EALREADY).with_text(text));
        }
        state.running.insert((write, attempt));
        Ok(Running { attempts: self, id: (write, attempt) })
    }

    /// Is a later attempt known than this?
    #[cfg(test)]
    pub fn is_barred(&self, write: Write, attempt: u32) -> bool {
        locked(&self.state).is_barred(write, attempt)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        locked(&self.attempts.state).running.remove(&self.id);
        // Only a retry waits, and of those there are few.
        self.attempts.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn an_attempt_after_a_later_one_is_refused() {
        let attempts = Attempts::default();
        drop(attempts.begin((1, 1), 2, WaitPolicy::May).unwrap());
        for early in [0, 1] {
            assert_eq!(
                attempts.begin((1, 1), early, WaitPolicy::May).err().unwrap().errno(),
                Errno::EALREADY
            );
        }
        drop(attempts.begin((1, 1), 3, WaitPolicy::May).unwrap());
        drop(attempts.begin((1, 2), 0, WaitPolicy::May).unwrap());
        drop(attempts.begin((2, 1), 0, WaitPolicy::May).unwrap());
        assert!(attempts.begin((1, 1), 2, WaitPolicy::May).is_err());
    }

    #[test]
    fn a_retry_waits_for_an_attempt_that_runs() {
        let attempts = Attempts::default();
        let ended = AtomicBool::new(false);
        let first = attempts.begin((1, 1), 0, WaitPolicy::May).unwrap();
        std::thread::scope(|scope| {
            let retry = scope.spawn(|| {
                drop(attempts.begin((1, 1), 1, WaitPolicy::May).unwrap());
                assert!(ended.load(Ordering::SeqCst), "it did not wait");
            });
            while !attempts.is_barred((1, 1), 0) {
                std::thread::yield_now();
            }
            // One that does not wait is through by now.
            (0..1_000).for_each(|_| std::thread::yield_now());
            ended.store(true, Ordering::SeqCst);
            drop(first);
            retry.join().unwrap();
        });
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let attempts = Attempts::default();
        for seq in 0..BARRED_MAX as u64 + 10 {
            drop(attempts.begin((1, seq), 1, WaitPolicy::May).unwrap());
        }
        let state = locked(&attempts.state);
        assert_eq!((state.barred.len(), state.order.len()), (BARRED_MAX, BARRED_MAX));
        assert!(state.running.is_empty());
        assert!(state.is_barred((1, BARRED_MAX as u64), 0));
    }
}
