//! Results of retries (protocols.md, rule 15): each mutation of a session is executed at most
//! once on a node, and every copy of it gets the same answer.
//!
//! Pure state. The node journals the results of mutations that changed something in the record
//! of the change itself; refusals live in memory only, since running them again does no harm.

use std::collections::BTreeMap;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use saker_types::change::{StoredResult, What};
use saker_types::wire::Ctx;
use saker_types::{Class, Errno, Error, limits};

/// Sessions a node remembers; beyond it the one unused for longest is forgotten, and its client
/// is refused (never misled).
pub const SESSIONS_MAX: usize = 65_536;

/// What to do with a mutation that arrived.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// It is new: execute it and call [`Sessions::finish`] or [`Sessions::send_away`].
    Run,
    /// It was executed: this is the answer (status, body).
    Answer(u16, Bytes),
    /// It is being executed: the waiter will be handed out by `finish`.
    Joined,
    /// It cannot be executed any more.
    Refuse(Error),
}

struct Session<W> {
    ack: u64,
    results: BTreeMap<u64, (u16, Bytes)>,
    running: BTreeMap<u64, Running<W>>,
    /// Of what was sent away unexecuted, the last attempt that was. An earlier one may still
    /// arrive, over a connection that broke: the client has its answer from elsewhere by then. In
    /// memory only: such connections do not outlive the process.
    sent_away: BTreeMap<u64, u32>,
    used: u64,
}

/// A mutation that is being executed.
struct Running<W> {
    /// Latest attempt.
    attempt: u32,
    waiters: Vec<W>,
}

impl<W> Session<W> {
    /// The client has the answers of everything below.
    fn acknowledge(&mut self, ack: u64) {
        if ack > self.ack {
            self.ack = ack;
            drop_below(&mut self.results, ack);
            drop_below(&mut self.sent_away, ack);
        }
    }
}

fn drop_below<T>(map: &mut BTreeMap<u64, T>, end: u64) {
    while let Some(first) = map.first_entry().filter(|first| *first.key() < end) {
        first.remove();
    }
}

/// The sessions of one node; `W` is whom to answer.
pub struct Sessions<W> {
    sessions: FxHashMap<u64, Session<W>>,
    clock: u64,
}

impl<W> Default for Sessions<W> {
    fn default() -> Self {
        Sessions { sessions: FxHashMap::default(), clock: 0 }
    }
}

impl<W> Sessions<W> {
    /// A client begins a session. What of that must be journaled: the end of another, too, that made
    /// room for it, or a replay, which knows nothing of use, would forget another one.
    pub fn admit(&mut self, session: u64) -> impl Iterator<Item = What> + use<W> {
        let is_new = !self.knows(session);
        let ended = is_new.then(|| self.make_room()).flatten();
        self.open(session);
        let begun = is_new.then_some(What::SessionOpen(session));
        ended.map(What::SessionClose).into_iter().chain(begun)
    }

    /// Forgets the session that was unused for longest, if there are too many for one more.
    fn make_room(&mut self) -> Option<u64> {
        if self.sessions.len() < SESSIONS_MAX {
            return None;
        }
        let idle = self.sessions.iter().filter(|(_, s)| s.running.is_empty());
        let oldest = idle.min_by_key(|(id, s)| (s.used, **id)).map(|(id, _)| *id)?;
        self.sessions.remove(&oldest);
        Some(oldest)
    }

    /// Begins a session, as a replay does; `false` if it was known.
    pub fn open(&mut self, session: u64) -> bool {
        if self.sessions.contains_key(&session) {
            return false;
        }
        self.clock += 1;
        let fresh = Session {
            ack: 0,
            results: BTreeMap::new(),
            running: BTreeMap::new(),
            sent_away: BTreeMap::new(),
            used: self.clock,
        };
        self.sessions.insert(session, fresh);
        true
    }

    /// Ends a session and drops its results.
    pub fn close(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    /// A mutation has arrived; the waiter is kept until `finish` or `send_away`.
    pub fn begin(&mut self, ctx: &Ctx, waiter: W) -> Verdict {
        self.clock += 1;
        let Some(session) = self.sessions.get_mut(&ctx.session) else {
            return Verdict::Refuse(Error::of_class(Class::SessionLost, Errno::EIO));
        };
        session.used = self.clock;
        session.acknowledge(ctx.ack);
        if ctx.seq == 0 || ctx.seq < session.ack {
            return Verdict::Refuse(Error::of_class(Class::Fatal, Errno::EINVAL));
        }
        if let Some((status, body)) = session.results.get(&ctx.seq) {
            return Verdict::Answer(*status, body.clone());
        }
        if let Some(running) = session.running.get_mut(&ctx.seq) {
            running.attempt = running.attempt.max(ctx.attempt);
            running.waiters.push(waiter);
            return Verdict::Joined;
        }
        let sent_away = session.sent_away.get(&ctx.seq);
        if ctx.attempt > 0 && sent_away.is_some_and(|last| ctx.attempt <= *last) {
            return Verdict::Refuse(Error::retry("a later attempt was sent away"));
        }
        let kept = session.results.len() + session.running.len() + session.sent_away.len();
        if sent_away.is_none() && kept >= limits::SESSION_RESULTS_MAX {
            return Verdict::Refuse(Error::retry("too many unanswered requests in the session"));
        }
        let running = Running { attempt: ctx.attempt, waiters: vec![waiter] };
        session.running.insert(ctx.seq, running);
        Verdict::Run
    }

    /// It was executed with this answer: who waits for it.
    pub fn finish(&mut self, session: u64, seq: u64, status: u16, body: Bytes) -> Vec<W> {
        let Some(session) = self.sessions.get_mut(&session) else { return Vec::new() };
        if seq >= session.ack {
            session.results.insert(seq, (status, body));
        }
        session.sent_away.remove(&seq);
        session.running.remove(&seq).map_or_else(Vec::new, |running| running.waiters)
    }

    /// A mutation that a restart interrupted goes on: copies of it wait for its end.
    pub fn resume(&mut self, session: u64, seq: u64) {
        if let Some(session) = self.sessions.get_mut(&session)
            && seq >= session.ack
            && !session.results.contains_key(&seq)
        {
            session.running.entry(seq).or_insert(Running { attempt: 0, waiters: Vec::new() });
        }
    }

    /// Has the session begun here, and not ended?
    pub fn knows(&self, session: u64) -> bool {
        self.sessions.contains_key(&session)
    }

    /// It was not executed, and may be sent again, here or elsewhere: who waits. Attempts so far
    /// are refused from now on.
    pub fn send_away(&mut self, session: u64, seq: u64) -> Vec<W> {
        let Some(session) = self.sessions.get_mut(&session) else { return Vec::new() };
        let Some(running) = session.running.remove(&seq) else { return Vec::new() };
        if seq >= session.ack && running.attempt > 0 {
            session.sent_away.insert(seq, running.attempt);
        }
        running.waiters
    }

    /// The acknowledged watermark of a session.
    pub fn ack(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |s| s.ack)
    }

    /// Replays a journaled result.
    pub fn restore(&mut self, result: StoredResult) {
        self.open(result.session);
        let Some(session) = self.sessions.get_mut(&result.session) else { return };
        session.acknowledge(result.ack);
        // seq 0 carries a watermark without a result (snapshots).
        if result.seq >= session.ack && result.seq > 0 {
            session.results.insert(result.seq, (result.status as u16, result.body));
        }
    }

    /// Everything that must survive, as results to `restore`; a session without results appears
    /// with seq 0.
    pub fn snapshot(&self) -> Vec<StoredResult> {
        let mut out = Vec::new();
        for (&session, s) in &self.sessions {
            out.push(StoredResult { session, ack: s.ack, ..Default::default() });
            // Refusals are kept in memory only.
            for (&seq, (status, body)) in s.results.iter().filter(|(_, (status, _))| *status == 0) {
                let status = u32::from(*status);
                out.push(StoredResult { session, seq, ack: s.ack, status, body: body.clone() });
            }
        }
        out.sort_unstable_by_key(|r| (r.session, r.seq));
        out
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ctx(seq: u64, ack: u64) -> Ctx {
        Ctx { session: 9, seq, ack, ..Default::default() }
    }

    #[test]
    fn a_retry_gets_the_first_answer() {
        let mut s = Sessions::default();
        assert!(matches!(s.begin(&ctx(1, 0), 'a'), Verdict::Refuse(e) if e.is(Class::SessionLost)));
        assert!(s.open(9) && !s.open(9));
        assert_eq!(s.begin(&ctx(1, 0), 'a'), Verdict::Run);
        assert_eq!(s.begin(&ctx(1, 0), 'b'), Verdict::Joined);
        assert_eq!(s.finish(9, 1, 0, Bytes::from_static(b"x")), vec!['a', 'b']);
        assert_eq!(s.begin(&ctx(1, 0), 'c'), Verdict::Answer(0, Bytes::from_static(b"x")));
    }

    #[test]
    fn the_session_unused_for_longest_makes_room() {
        let mut s = Sessions::default();
        (1..SESSIONS_MAX as u64).for_each(|id| assert!(s.open(id)));
        let new = 1 << 40;
        assert!(s.admit(new).eq([What::SessionOpen(new)]));
        assert_eq!(s.admit(new).count(), 0, "it is known");
        // The first is in use, the second was of late.
        let of = |session| Ctx { session, seq: 1, ..Default::default() };
        assert_eq!(s.begin(&of(2), ()), Verdict::Run);
        s.finish(2, 1, 0, Bytes::new());
        assert_eq!(s.begin(&of(1), ()), Verdict::Run);
        assert!(s.admit(new + 1).eq([What::SessionClose(3), What::SessionOpen(new + 1)]));
        assert!(!s.knows(3) && s.knows(1) && s.knows(2));
        // A replay forgets none but those that it is told of.
        (0..9).for_each(|id| assert!(s.open((1 << 41) + id)));
        assert_eq!(s.len(), SESSIONS_MAX + 9);
    }

    #[test]
    fn the_watermark_prunes_and_refuses() {
        let mut s = Sessions::default();
        s.open(9);
        for seq in 1..=3 {
            assert_eq!(s.begin(&ctx(seq, 0), ()), Verdict::Run);
            s.finish(9, seq, 0, Bytes::new());
        }
        assert_eq!(s.begin(&ctx(4, 3), ()), Verdict::Run);
        assert!(matches!(s.begin(&ctx(2, 0), ()), Verdict::Refuse(e) if e.is(Class::Fatal)));
        assert_eq!(s.begin(&ctx(3, 0), ()), Verdict::Answer(0, Bytes::new()));
    }

    #[test]
    fn an_attempt_that_arrives_after_a_later_one_was_sent_away_is_refused() {
        let mut s = Sessions::default();
        s.open(9);
        let attempt = |attempt| Ctx { attempt, ..ctx(1, 1) };
        assert_eq!(s.begin(&attempt(2), 'a'), Verdict::Run);
        assert_eq!(s.send_away(9, 1), vec!['a']);
        for late in [1, 2] {
            assert!(
                matches!(s.begin(&attempt(late), 'b'), Verdict::Refuse(e) if e.is(Class::Retry))
            );
        }
        assert_eq!(s.begin(&attempt(3), 'c'), Verdict::Run);
        assert_eq!(s.begin(&attempt(1), 'd'), Verdict::Joined);
        assert_eq!(s.finish(9, 1, 0, Bytes::new()), vec!['c', 'd']);
        assert_eq!(s.begin(&attempt(1), 'e'), Verdict::Answer(0, Bytes::new()));
        // Forgotten with the client's acknowledgement, which refuses it for good.
        assert_eq!(s.begin(&Ctx { attempt: 1, ..ctx(2, 2) }, 'f'), Verdict::Run);
        assert!(matches!(s.begin(&attempt(1), 'g'), Verdict::Refuse(e) if e.is(Class::Fatal)));
    }

    #[test]
    fn a_snapshot_restores_results_and_watermarks_but_no_refusals() {
        let mut s = Sessions::default();
        s.open(9);
        s.open(10);
        for seq in 5..=6 {
            assert_eq!(s.begin(&ctx(seq, 5), ()), Verdict::Run);
        }
        s.finish(9, 5, 0, Bytes::from_static(b"five"));
        s.finish(9, 6, 17, Bytes::new());
        let mut again = Sessions::default();
        s.snapshot().into_iter().for_each(|r| again.restore(r));
        assert_eq!(again.begin(&ctx(5, 0), ()), Verdict::Answer(0, Bytes::from_static(b"five")));
        assert_eq!(again.begin(&ctx(6, 0), ()), Verdict::Run);
        assert!(matches!(again.begin(&ctx(4, 0), ()), Verdict::Refuse(_)));
        assert!(!again.open(10));
    }
}
