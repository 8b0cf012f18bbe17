//! Busy polling: looking for answers for a moment before sleeping.
//!
//! To put a thread to sleep and to wake it again takes as long as the answer of a server nearby,
//! and on a virtual machine, whose idle processors go back to the host, more processor time than
//! looking for the answer meanwhile. So who waits for a call or two looks first, as long as such
//! looks find something; waits for disks and for people cost what they did. Of many calls under way
//! one wake-up takes several answers, a look would only take them in smaller pieces, and callers may
//! want the processor that it keeps busy. KVM does the same for idle guests (`halt_poll_ns`), Linux
//! for sockets (`SO_BUSY_POLL` of socket(7)).

use std::io;
use std::time::Duration;

use saker_runtime::time;

/// Looks at most so long: about the time of going to sleep and being woken.
const LOOK_TIME: Duration = Duration::from_micros(60);
/// With more calls under way there are no looks, nor in the waits right after.
const CALLS_MAX: usize = 2;
/// After more calls than that, or when looks have been in vain for long, this many waits pass before
/// the next one.
const PAUSE_MAX: u32 = 64;

/// What a thread has learned about its waits.
#[derive(Default)]
pub(crate) struct BusyPoll {
    /// Waits without a look after the last one: a look in vain doubles it, another halves it.
    pause: u32,
    /// Waits without a look that are still to come.
    left: u32,
}

impl BusyPoll {
    /// Whether this wait, with so many calls under way, should begin with a look.
    pub fn is_due(&mut self, calls: usize) -> bool {
        if calls > CALLS_MAX {
            self.left = PAUSE_MAX;
        }
        let due = calls > 0 && self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }

    /// Calls `look` until it has found something or it is time to sleep. Returns which: true if
    /// something was found.
    ///
    /// # Errors
    /// Those of `look`.
    pub fn run(&mut self, mut look: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
        let end = time::now() + LOOK_TIME;
        let found = loop {
            let found = look()?;
            if found || time::now() >= end {
                break found;
            }
        };
        self.pause = if found { self.pause / 2 } else { (2 * self.pause).clamp(1, PAUSE_MAX) };
        self.left = self.pause;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks among the next `waits` for one call, each of which finds something or not.
    fn looks(busy_poll: &mut BusyPoll, waits: u32, found: bool) -> u32 {
        let mut looks = 0;
        for _ in 0..waits {
            if busy_poll.is_due(1) {
                assert_eq!(busy_poll.run(|| Ok(found)).ok(), Some(found));
                looks += 1;
            }
        }
        looks
    }

    #[test]
    fn looks_while_that_finds_something() {
        let mut busy_poll = BusyPoll::default();
        assert_eq!(looks(&mut busy_poll, 100, true), 100);
        let vain = looks(&mut busy_poll, 10_000, false);
        assert!((150..170).contains(&vain), "one wait in 65, and more often at first: {vain}");
        let again = looks(&mut busy_poll, 1000, true);
        assert!(again > 800, "a few that find something, and it looks always: {again}");
    }

    #[test]
    fn sleeps_at_once_for_no_call_and_for_many() {
        let mut busy_poll = BusyPoll::default();
        assert!(!busy_poll.is_due(0));
        assert!(busy_poll.is_due(CALLS_MAX));
        assert!(!busy_poll.is_due(CALLS_MAX + 1));
        assert_eq!(looks(&mut busy_poll, PAUSE_MAX - 1, true), 0);
        assert_eq!(looks(&mut busy_poll, 100, true), 100);
    }

    #[test]
    fn a_look_ends_as_soon_as_it_finds_something() {
        let mut polls = 0;
        let found = BusyPoll::default().run(|| {
            polls += 1;
            Ok(polls == 3)
        });
        assert!(matches!(found, Ok(true)));
        assert_eq!(polls, 3);
    }

    #[test]
    fn a_failed_poll_is_told() {
        let failed = BusyPoll::default().run(|| Err(io::ErrorKind::InvalidInput.into()));
        assert!(failed.is_err());
    }
}
