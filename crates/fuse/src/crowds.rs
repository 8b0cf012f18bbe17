//! Directories in which threads wait for one another to create files.
//!
//! The kernel locks a directory until a CREATE is answered, which is when the file is on disk. Where
//! that is what threads wait for, it is better to answer before (`ops::create_apart`), though one file
//! by itself takes a request more then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saker_runtime::time::{self, Time};

use crate::nodes::NodeId;

/// Directories that are watched at a time; those with the same place here disturb each other.
const PLACES: usize = 64;
/// Another thread's CREATE that comes so soon after an answer has waited for it.
const SOON: Duration = Duration::from_millis(1);
/// So many more CREATEs have waited than have not.
const CROWD: u32 = 64;

/// The directories.
pub(crate) struct Crowds {
    places: [Mutex<Place>; PLACES],
    /// There was a crowd: no CREATE is answered any more.
    seen: AtomicBool,
}

#[derive(Clone, Copy, Default)]
struct Place {
    dir: NodeId,
    /// The last one.
    tid: u32,
    left: Option<Time>,
    waited: u32,
}

/// A CREATE, until it is answered.
pub(crate) struct Turn<'a> {
    place: &'a Mutex<Place>,
    is_crowded: bool,
}

impl Default for Crowds {
    fn default() -> Crowds {
        Crowds { places: std::array::from_fn(|_| Mutex::default()), seen: AtomicBool::new(false) }
    }
}

impl Crowds {
    /// A thread creates a file in a directory.
    pub(crate) fn enter(&self, dir: NodeId, tid: u32) -> Turn<'_> {
        let place = &self.places[dir as usize % PLACES];
        let mut it = lock(place);
        if it.dir != dir {
            *it = Place { dir, ..Place::default() };
        }
        let waited = it.tid != tid && it.left.take().is_some_and(|left| time::now() < left + SOON);
        it.waited = if waited { it.waited + 1 } else { it.waited.saturating_sub(1) };
        it.tid = tid;
        Turn { place, is_crowded: it.waited >= CROWD }
    }

    /// A crowd is seen; true if it is the first.
    pub(crate) fn see(&self) -> bool {
        !self.seen.swap(true, Ordering::Relaxed)
    }

    /// Was one seen?
    pub(crate) fn seen(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Turn<'_> {
    /// Do threads wait for one another there?
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(self.place).left = Some(time::now());
    }
}

fn lock(place: &Mutex<Place>) -> MutexGuard<'_, Place> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter_all(crowds: &Crowds, turns: impl Iterator<Item = (NodeId, u32)>) -> bool {
        turns.fold(false, |_, (dir, tid)| crowds.enter(dir, tid).is_crowded())
    }

    #[test]
    fn threads_that_wait_for_one_another_are_a_crowd() {
        let crowds = Crowds::default();
        assert!(!enter_all(&crowds, (0..40).map(|n| (7, n % 2))), "not yet");
        assert!(enter_all(&crowds, (0..200).map(|n| (7, n % 2))));
    }

    #[test]
    fn who_is_alone_in_a_directory_is_none() {
        let crowds = Crowds::default();
        assert!(!enter_all(&crowds, (0..500).map(|_| (7, 1))));
        assert!(!enter_all(&crowds, (0..500).map(|n| (n % 2, n as u32 % 2))), "each its own");
    }

    #[test]
    fn who_comes_later_has_not_waited() {
        let crowds = Crowds::default();
        let slow = (0..CROWD * 2).map(|n| {
            time::sleep(SOON);
            (7, n % 2)
        });
        assert!(!enter_all(&crowds, slow));
    }
}
