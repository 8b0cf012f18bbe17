//! Sessions: which mutation is the first and which a retry (protocols.md, rule 15).
//!
//! Each mutation has a number in the client's session. Nodes keep its result until the client
//! says that it has the answer, by the watermark that every request carries: the lowest number
//! without an answer. A node that does not know the session refuses; then a new session begins
//! for all later mutations, and the old one lives on for those that it has begun.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use saker_types::{NodeId, limits};

/// A session on all nodes.
pub(crate) struct Session {
    /// Its number, random.
    pub(crate) id: u64,
    state: Mutex<State>,
}

struct State {
    window: Window,
    /// Nodes that know the session.
    open_on: Vec<NodeId>,
}

/// A mutation that has begun. When it is dropped, its number counts as answered: nobody will
/// send it again.
pub(crate) struct Ticket {
    pub(crate) session: Arc<Session>,
    pub(crate) seq: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.session.lock().window.finish(self.seq);
    }
}

impl Session {
    fn new() -> Arc<Session> {
        let state = State { window: Window::default(), open_on: Vec::new() };
        Arc::new(Session { id: saker_runtime::rand::u64().max(1), state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lowest number without an answer, and whether `node` knows the session.
    pub(crate) fn standing(&self, node: NodeId) -> (u64, bool) {
        let state = self.lock();
        (state.window.low, state.open_on.contains(&node))
    }

    /// `node` knows the session now.
    pub(crate) fn opened(&self, node: NodeId) {
        let mut state = self.lock();
        if !state.open_on.contains(&node) {
            state.open_on.push(node);
        }
    }
}

/// Sessions in which a mutation goes on, at most, beside the one in use.
const RETIRED_MAX: usize = 64;

/// The session in use and those before it.
pub(crate) struct Sessions(Mutex<All>);

struct All {
    current: Arc<Session>,
    /// Lost by one node, or full because one mutation waits for a node that is down. Nodes know
    /// them until they are told that they have ended.
    retired: Vec<Arc<Session>>,
}

impl All {
    fn retire(&mut self) {
        let old = std::mem::replace(&mut self.current, Session::new());
        self.retired.push(old);
    }
}

impl Sessions {
    pub(crate) fn new() -> Sessions {
        Sessions(Mutex::new(All { current: Session::new(), retired: Vec::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers a mutation; `None` while too many are unanswered.
    pub(crate) fn begin(&self) -> Option<Ticket> {
        loop {
            let session = self.lock().current.clone();
            let seq = session.lock().window.begin();
            if let Some(seq) = seq {
                return Some(Ticket { session, seq });
            }
            // One that waits must not keep all others from beginning.
            let mut all = self.lock();
            if all.retired.len() >= RETIRED_MAX {
                return None;
            }
            if Arc::ptr_eq(&all.current, &session) {
                all.retire();
            }
        }
    }

    /// A node has lost this session: others begin after it in a new one.
    pub(crate) fn lost(&self, session: &Arc<Session>) {
        let mut all = self.lock();
        if Arc::ptr_eq(&all.current, session) {
            all.retire();
        }
    }

    /// Takes those out that will never be used again, and gives all (session, node) that should be
    /// told of the end.
    pub(crate) fn over(&self) -> Vec<(u64, NodeId)> {
        let is_over = |session: &mut Arc<Session>| {
            // A mutation that is about to begin in it holds it.
            Arc::strong_count(session) == 1 && session.lock().window.answered.is_empty()
        };
        let over: Vec<_> = self.lock().retired.extract_if(.., is_over).collect();
        known_to(&over)
    }

    /// Begins a new session, and gives all (session, node) that should be told of the end.
    pub(crate) fn end(&self) -> Vec<(u64, NodeId)> {
        let mut all = self.lock();
        all.retire();
        known_to(&std::mem::take(&mut all.retired))
    }
}

/// Each of the sessions with each node that knows it.
fn known_to(sessions: &[Arc<Session>]) -> Vec<(u64, NodeId)> {
    let of_one = |s: &Arc<Session>| -> Vec<_> {
        s.lock().open_on.iter().map(|node| (s.id, *node)).collect()
    };
    sessions.iter().flat_map(of_one).collect()
}

/// The numbers given out, from the lowest without an answer.
#[derive(Debug)]
struct Window {
    /// All below have been answered.
    low: u64,
    /// Whether `low`, `low + 1`, … have been answered.
    answered: VecDeque<bool>,
}

impl Default for Window {
    fn default() -> Window {
        Window { low: 1, answered: VecDeque::new() }
    }
}

impl Window {
    fn begin(&mut self) -> Option<u64> {
        if self.answered.len() >= limits::SESSION_RESULTS_MAX {
            return None;
        }
        self.answered.push_back(false);
        Some(self.low + self.answered.len() as u64 - 1)
    }

    fn finish(&mut self, seq: u64) {
        let slot = seq.checked_sub(self.low).and_then(|i| self.answered.get_mut(i as usize));
        debug_assert!(slot.is_some(), "{seq} is not under way");
        if let Some(slot) = slot {
            *slot = true;
        }
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.low += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_is_the_lowest_unanswered() {
        let mut window = Window::default();
        let seqs: Vec<u64> = (0..4).filter_map(|_| window.begin()).collect();
        assert_eq!(seqs, [1, 2, 3, 4]);
        for (answered, low) in [(2, 1), (4, 1), (1, 3), (3, 5)] {
            window.finish(answered);
            assert_eq!(window.low, low, "after {answered}");
        }
        assert_eq!(window.begin(), Some(5));
    }

    #[test]
    fn the_window_is_bounded() {
        let mut window = Window::default();
        for _ in 0..limits::SESSION_RESULTS_MAX {
            assert!(window.begin().is_some());
        }
        assert_eq!(window.begin(), None);
        window.finish(2);
        assert_eq!(window.begin(), None);
        window.finish(1);
        assert_eq!(window.begin(), Some(limits::SESSION_RESULTS_MAX as u64 + 1));
    }

    #[test]
    fn a_lost_session_is_replaced_once_and_ended_with_the_others() {
        let sessions = Sessions::new();
        let ticket = sessions.begin().unwrap();
        let old = ticket.session.clone();
        old.opened(NodeId::Shard(1));
        old.opened(NodeId::Shard(1));
        sessions.lost(&old);
        sessions.lost(&old);
        let new = sessions.begin().unwrap();
        assert_ne!(new.session.id, old.id);
        assert_eq!(new.seq, 1);
        new.session.opened(NodeId::Coordinator);
        let expected = vec![(old.id, NodeId::Shard(1)), (new.session.id, NodeId::Coordinator)];
        assert_eq!(sessions.end(), expected);
    }

    #[test]
    fn one_that_waits_does_not_keep_others_from_beginning() {
        let sessions = Sessions::new();
        let waits = sessions.begin().unwrap();
        waits.session.opened(NodeId::Coordinator);
        for _ in 0..3 * limits::SESSION_RESULTS_MAX {
            assert!(sessions.begin().is_some());
        }
        assert_ne!(sessions.begin().unwrap().session.id, waits.session.id);
        assert!(sessions.over().is_empty(), "it goes on");
        let id = waits.session.id;
        drop(waits);
        assert_eq!(sessions.over(), [(id, NodeId::Coordinator)]);
        assert!(sessions.over().is_empty() && sessions.end().is_empty());
    }

    #[test]
    fn a_dropped_mutation_counts_as_answered() {
        let sessions = Sessions::new();
        let (first, second) = (sessions.begin().unwrap(), sessions.begin().unwrap());
        drop(first);
        assert_eq!(second.session.standing(NodeId::Coordinator), (2, false));
    }
}
