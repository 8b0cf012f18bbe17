//! Sessions: which mutation is the first and which a retry (docs/protocol.md, rule 15).
//!
//! Each mutation has a number in the client's session. Nodes keep its result until the client
//! says that it has the answer, by the watermark that every request carries: the lowest number
//! without an answer. A node that does not know the session refuses; then a new session begins
//! for all later mutations, and the old one lives on for those that it has begun.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use saker_runtime::time::Time;
use saker_types::{NodeId, limits};

/// A session on all nodes.
pub(crate) struct Session {
    /// Its number, random.
    pub(crate) id: u64,
    state: Mutex<State>,
}

struct State {
    window: Window,
    /// Nodes that know the session, and when that was asked which they have answered last.
    open_on: Vec<(NodeId, Time)>,
}

/// What a node knows of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing.
    No,
    /// That it goes on.
    Yes,
    /// It was not heard of for so long that it may be about to end there.
    Once,
}

/// A mutation that has begun. When it is dropped, its number counts as answered: nobody will
/// send it again.
pub(crate) struct Ticket {
    pub(crate) session: Arc<Session>,
    pub(crate) seq: u64,
    /// Of the answer, if there is one: so many bytes the node keeps until it is acknowledged.
    pub(crate) answer_bytes: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.session.lock().window.finish(self.seq, self.answer_bytes);
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
    pub(crate) fn standing(&self, node: NodeId, now: Time) -> (u64, Known) {
        let state = self.lock();
        let heard = state.open_on.iter().find(|(known, _)| *known == node);
        let known = match heard {
            None => Known::No,
            Some((_, at)) if now.since(*at) < limits::SESSION_FRESH => Known::Yes,
            Some(_) => Known::Once,
        };
        (state.window.low, known)
    }

    /// `node` has answered what was asked in the session at `asked`, or that it knows it.
    pub(crate) fn heard(&self, node: NodeId, asked: Time) {
        let mut state = self.lock();
        match state.open_on.iter_mut().find(|(known, _)| *known == node) {
            Some((_, at)) => *at = asked.max(*at),
            None => state.open_on.push((node, asked)),
        }
    }
}

/// Sessions in which a mutation goes on, at most, beside the one in use.
const RETIRED_MAX: usize = 64;

/// The session in use and those before it.
pub(crate) struct ClientSessions(Mutex<All>);

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

impl ClientSessions {
    pub(crate) fn new() -> ClientSessions {
        ClientSessions(Mutex::new(All { current: Session::new(), retired: Vec::new() }))
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
                return Some(Ticket { session, seq, answer_bytes: 0 });
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

    /// A node has lost this session, or may soon: others begin after it in a new one.
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
        s.lock().open_on.iter().map(|(node, _)| (s.id, *node)).collect()
    };
    sessions.iter().flat_map(of_one).collect()
}

/// The numbers given out, from the lowest without an answer.
#[derive(Debug)]
struct Window {
    /// All below have been answered.
    low: u64,
    /// Of `low`, `low + 1`, … the bytes of the answers that have come.
    answered: VecDeque<Option<usize>>,
    /// Of these answers.
    bytes: usize,
}

impl Default for Window {
    fn default() -> Window {
        Window { low: 1, answered: VecDeque::new(), bytes: 0 }
    }
}

impl Window {
    fn begin(&mut self) -> Option<u64> {
        if self.answered.len() >= limits::SESSION_RESULTS_MAX
            || self.bytes >= limits::SESSION_ANSWERS_BYTES_MAX
        {
            return None;
        }
        self.answered.push_back(None);
        Some(self.low + self.answered.len() as u64 - 1)
    }

    fn finish(&mut self, seq: u64, answer_bytes: usize) {
        let answer = seq.checked_sub(self.low).and_then(|i| self.answered.get_mut(i as usize));
        debug_assert!(answer.is_some(), "{seq} is not under way");
        if let Some(answer) = answer {
            *answer = Some(answer_bytes);
            self.bytes += answer_bytes;
        }
        while let Some(&Some(bytes)) = self.answered.front() {
            self.answered.pop_front();
            self.bytes -= bytes;
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
            window.finish(answered, 0);
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
        window.finish(2, 0);
        assert_eq!(window.begin(), None);
        window.finish(1, 0);
        assert_eq!(window.begin(), Some(limits::SESSION_RESULTS_MAX as u64 + 1));
    }

    #[test]
    fn the_window_is_bounded_in_bytes() {
        let mut window = Window::default();
        let waits = window.begin().unwrap();
        let half = limits::SESSION_ANSWERS_BYTES_MAX / 2;
        for _ in 0..2 {
            let seq = window.begin().unwrap();
            window.finish(seq, half);
        }
        assert_eq!(window.begin(), None, "the nodes keep these answers");
        window.finish(waits, 10);
        assert!(window.begin().is_some() && window.bytes == 0);
    }

    #[test]
    fn a_node_that_was_silent_may_have_ended_a_session() {
        let session = Session::new();
        let (node, later) = (NodeId::Shard(1), Time::ZERO + limits::SESSION_FRESH);
        assert_eq!(session.standing(node, later).1, Known::No);
        session.heard(node, Time::ZERO);
        assert_eq!(session.standing(node, Time::from_ns(5)).1, Known::Yes);
        assert_eq!(session.standing(node, later).1, Known::Once);
        session.heard(node, Time::from_ns(1));
        session.heard(node, Time::ZERO);
        assert_eq!(session.standing(node, later).1, Known::Yes);
    }

    #[test]
    fn a_lost_session_is_replaced_once_and_ended_with_the_others() {
        let sessions = ClientSessions::new();
        let ticket = sessions.begin().unwrap();
        let old = ticket.session.clone();
        old.heard(NodeId::Shard(1), Time::ZERO);
        old.heard(NodeId::Shard(1), Time::ZERO);
        sessions.lost(&old);
        sessions.lost(&old);
        let new = sessions.begin().unwrap();
        assert_ne!(new.session.id, old.id);
        assert_eq!(new.seq, 1);
        new.session.heard(NodeId::Coordinator, Time::ZERO);
        let expected = vec![(old.id, NodeId::Shard(1)), (new.session.id, NodeId::Coordinator)];
        assert_eq!(sessions.end(), expected);
    }

    #[test]
    fn one_that_waits_does_not_keep_others_from_beginning() {
        let sessions = ClientSessions::new();
        let waits = sessions.begin().unwrap();
        waits.session.heard(NodeId::Coordinator, Time::ZERO);
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
        let sessions = ClientSessions::new();
        let (first, second) = (sessions.begin().unwrap(), sessions.begin().unwrap());
        drop(first);
        let standing = second.session.standing(NodeId::Coordinator, Time::ZERO);
        assert_eq!(standing, (2, Known::No));
    }
}
