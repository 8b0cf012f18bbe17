//! What owners know of the clients that have their files open (rule 16). Each open has a number. When a file is
//! closed its owner is told so, soon and together with others, as: all that was opened by lower numbers
//! than this is closed. Only numbers of which none is under way are given up: what such an open will
//! open is not known yet.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use saker_runtime::rand;
use saker_types::Locator;
use saker_types::wire::Hold;

/// Most closed files that are kept to be told; the leases of others end by time.
const CLOSED_MAX: usize = 1 << 16;

/// The numbers of a client's opens, and what it has closed.
pub(crate) struct ClientHolds {
    /// This client as owners know it.
    client: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Opens so far.
    last: u64,
    /// Opens that were not answered, or whose answer nobody has heeded yet.
    under_way: BTreeSet<u64>,
    closed: Vec<Closed>,
}

/// A file that this client has not open any more.
struct Closed {
    /// Where it was.
    loc: Locator,
    /// The last open that had begun then, of whatever file.
    number: u64,
}

/// An open that is under way; ends with this, after what was opened is in the table of open inodes.
pub(crate) struct Opening<'a> {
    holds: &'a ClientHolds,
    number: u64,
}

impl Opening<'_> {
    /// What the owner is told.
    pub(crate) fn hold(&self) -> Hold {
        Hold { client: self.holds.client, number: self.number }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.holds.lock().under_way.remove(&self.number);
    }
}

impl Default for ClientHolds {
    fn default() -> ClientHolds {
        ClientHolds { client: rand::u64().max(1), state: Mutex::default() }
    }
}

impl ClientHolds {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An open begins.
    pub(crate) fn begin(&self) -> Opening<'_> {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.under_way.insert(number);
        Opening { holds: self, number }
    }

    /// The file's last handle is gone, and nothing of it is left to be written.
    pub(crate) fn close(&self, loc: Locator) {
        let mut state = self.lock();
        if state.closed.len() < CLOSED_MAX {
            let number = state.last;
            state.closed.push(Closed { loc, number });
        }
    }

    /// Is there something to tell?
    pub(crate) fn any_closed(&self) -> bool {
        !self.lock().closed.is_empty()
    }

    /// Files that were closed, and a number below which nothing is under way; an open that began
    /// before a file was closed may be of that file. Those of them that are open again must be left
    /// out: they will be closed again.
    pub(crate) fn take(&self) -> (Hold, Vec<Locator>) {
        let mut state = self.lock();
        let below = state.under_way.first().copied().unwrap_or(state.last + 1);
        let (later, ready): (Vec<_>, Vec<_>) = std::mem::take(&mut state.closed)
            .into_iter()
            .partition(|closed| closed.number >= below);
        state.closed = later;
        let files = ready.into_iter().map(|closed| closed.loc).collect();
        (Hold { client: self.client, number: below }, files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_not_given_up() {
        let holds = ClientHolds::default();
        let loc = |id| Locator { id, ..Locator::default() };
        let [first, second] = [holds.begin(), holds.begin()];
        let hold = first.hold();
        assert_eq!((first.hold().number, second.hold().number), (1, 2));
        drop(second);
        holds.close(loc(9));
        let third = holds.begin();
        let (below, ready) = holds.take();
        assert_eq!(
            (below, ready.len()),
            (Hold { number: 1, ..hold }, 0),
            "it may be of the same file"
        );
        drop(first);
        let (below, ready) = holds.take();
        assert_eq!((below.number, ready), (3, vec![loc(9)]), "what begins later is not ended");
        assert!(!holds.any_closed());
        drop(third);
        assert_eq!(holds.take().0.number, 4);
        (0..=CLOSED_MAX as u64).for_each(|id| holds.close(loc(id)));
        assert_eq!(holds.take().1.len(), CLOSED_MAX);
    }
}
