//! Results of retries (docs/protocol.md, rule 15): each mutation of a session is executed at most
//! once on a node, and every copy of it gets the same answer.
//!
//! Pure state. The node journals the results of mutations that changed something in the record
//! of the change itself; refusals live in memory only, since running them again does no harm.
//!
//! **What clients can make a node keep is bounded**, and a result is never dropped that a client
//! with a live session may ask for ([decision 42](../../../docs/decisions/0042-bounds-of-servers.md)):
//! a session that keeps too much is told to acknowledge first, a client too many is told to come
//! back later, and a session ends when its client has not been heard of for a lease.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use saker_runtime::time::Time;
use saker_types::change::{StoredResult, What};
use saker_types::placement::Slot;
use saker_types::wire::Ctx;
use saker_types::{Class, Errno, Error, limits};

/// Sessions that a node remembers; beyond it new ones are refused until old ones end.
pub const SESSIONS_MAX: usize = 65_536;
/// The same for one address, so that one machine cannot keep out all others.
pub const SESSIONS_PER_ADDRESS_MAX: usize = SESSIONS_MAX / 4;
/// Bytes of results of all sessions of a node: above it a session may keep
/// [`SESSION_SHARE_BYTES`] only.
pub const RESULTS_BYTES_MAX: usize = 256 << 20;
/// What each session may keep however much others do: those that keep little go on.
pub const SESSION_SHARE_BYTES: usize = 16 << 10;
/// What a result takes besides its body, bytes (an estimate).
const RESULT_OVERHEAD_BYTES: usize = 64;
/// What a mutation that runs will keep, bytes: most answers have less.
const RESULT_BYTES_EXPECTED: usize = 512;
/// A session that was opened and in which nothing was asked for ends after this.
pub const SESSION_UNUSED_LEASE: Duration = Duration::from_secs(60);
/// How often sessions are looked through for those that end.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);

const _: () = {
    assert!(limits::SESSION_RESULTS_BYTES_MAX * 4 <= RESULTS_BYTES_MAX);
    assert!(SESSION_SHARE_BYTES >= 2 * RESULT_BYTES_EXPECTED);
    assert!(SESSION_UNUSED_LEASE.as_nanos() < limits::SESSION_LEASE.as_nanos());
};

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
    results: BTreeMap<u64, Kept>,
    /// Of the results.
    bytes: usize,
    running: BTreeMap<u64, Running<W>>,
    /// Of what was sent away unexecuted, the last attempt that was. An earlier one may still
    /// arrive, over a connection that broke: the client has its answer from elsewhere by then. In
    /// memory only: such connections do not outlive the process.
    sent_away: BTreeMap<u64, u32>,
    /// When its client was heard of last.
    heard: Time,
    /// Whether a mutation was ever asked for in it.
    is_used: bool,
    /// Whose it is, as far as this process knows.
    from: Option<IpAddr>,
}

/// A result.
struct Kept {
    status: u16,
    body: Bytes,
    /// With which it goes; `None`: it stays.
    slot: Option<Slot>,
}

/// A mutation that is being executed.
struct Running<W> {
    /// Latest attempt.
    attempt: u32,
    waiters: Vec<W>,
}

fn result_bytes(body: &Bytes) -> usize {
    RESULT_OVERHEAD_BYTES + body.len()
}

impl<W> Session<W> {
    /// The client has the answers of everything below. Returns the bytes that this frees.
    fn acknowledge(&mut self, ack: u64) -> usize {
        if ack <= self.ack {
            return 0;
        }
        self.ack = ack;
        drop_below(&mut self.sent_away, ack, |_| {});
        let mut freed = 0;
        drop_below(&mut self.results, ack, |kept| freed += result_bytes(&kept.body));
        self.bytes -= freed;
        freed
    }

    /// Keeps a result. Returns the bytes that it takes more than before.
    fn keep(&mut self, seq: u64, kept: Kept) -> usize {
        let bytes = result_bytes(&kept.body);
        if self.results.insert(seq, kept).is_some() {
            // A replay has it twice, and it is the same.
            return 0;
        }
        self.bytes += bytes;
        bytes
    }

    /// What it keeps, and will when all has run that does.
    fn bytes_expected(&self) -> usize {
        self.bytes + self.running.len() * RESULT_BYTES_EXPECTED
    }

    /// Its results, as `restore` takes them. Refusals are kept in memory only.
    fn stored(&self, session: u64) -> impl Iterator<Item = StoredResult> {
        let good = self.results.iter().filter(|(_, kept)| kept.status == 0);
        good.map(move |(&seq, kept)| StoredResult {
            session,
            seq,
            ack: self.ack,
            status: kept.status.into(),
            body: kept.body.clone(),
            slot: kept.slot.map(Into::into),
        })
    }

    fn ends_at(&self) -> Time {
        self.heard + if self.is_used { limits::SESSION_LEASE } else { SESSION_UNUSED_LEASE }
    }
}

fn drop_below<T>(map: &mut BTreeMap<u64, T>, end: u64, mut dropped: impl FnMut(T)) {
    while let Some(first) = map.first_entry().filter(|first| *first.key() < end) {
        dropped(first.remove());
    }
}

/// The sessions of one node; `W` is whom to answer.
pub struct Sessions<W> {
    sessions: FxHashMap<u64, Session<W>>,
    /// How many of them each address has.
    addresses: FxHashMap<IpAddr, usize>,
    /// Of all results.
    bytes: usize,
    now: Time,
    expire_at: Time,
}

impl<W> Default for Sessions<W> {
    fn default() -> Self {
        let (sessions, addresses) = Default::default();
        Sessions { sessions, addresses, bytes: 0, now: Time::ZERO, expire_at: Time::ZERO }
    }
}

impl<W> Sessions<W> {
    /// The node begins to serve, after a replay: all leases begin anew.
    pub fn begin_serving(&mut self, now: Time) {
        self.now = now;
        self.expire_at = now + EXPIRE_EVERY;
        for session in self.sessions.values_mut() {
            (session.heard, session.is_used) = (now, true);
        }
    }

    /// Time goes on. What must be journaled: the ends of sessions whose clients are gone. `now`
    /// should stand still while the node does not serve.
    pub fn step(&mut self, now: Time) -> Vec<What> {
        self.now = now;
        if now < self.expire_at { Vec::new() } else { self.expire() }
    }

    fn expire(&mut self) -> Vec<What> {
        self.expire_at = self.now + EXPIRE_EVERY;
        let over = |s: &Session<W>| s.running.is_empty() && s.ends_at() <= self.now;
        let ended = self.sessions.iter().filter(|(_, s)| over(s)).map(|(id, _)| *id);
        let mut ended: Vec<u64> = ended.collect();
        ended.sort_unstable();
        ended.iter().for_each(|id| self.close(*id));
        ended.into_iter().map(What::SessionClose).collect()
    }

    /// A client begins a session. What of that must be journaled.
    ///
    /// # Errors
    /// EBUSY, to be tried again: there are too many, of the client's address or of all. No live
    /// one is ended to make room.
    pub fn admit(&mut self, session: u64, from: Option<IpAddr>) -> Result<Option<What>, Error> {
        if let Some(known) = self.sessions.get_mut(&session) {
            known.heard = self.now;
            return Ok(None);
        }
        let busy = |text| Err(Error::of_class(Class::Retry, Errno::EBUSY).with_text(text));
        if self.sessions.len() >= SESSIONS_MAX {
            return busy("this node has as many sessions as it may");
        }
        let of_address = from.and_then(|from| self.addresses.get(&from)).copied().unwrap_or(0);
        if of_address >= SESSIONS_PER_ADDRESS_MAX {
            return busy("the clients of this address have as many sessions as they may");
        }
        self.insert(session, from);
        Ok(Some(What::SessionOpen(session)))
    }

    /// Begins a session, as a replay does; `false` if it was known.
    pub fn open(&mut self, session: u64) -> bool {
        let is_new = !self.knows(session);
        if is_new {
            self.insert(session, None);
        }
        is_new
    }

    fn insert(&mut self, session: u64, from: Option<IpAddr>) {
        let fresh = Session {
            ack: 0,
            results: BTreeMap::new(),
            bytes: 0,
            running: BTreeMap::new(),
            sent_away: BTreeMap::new(),
            heard: self.now,
            is_used: false,
            from,
        };
        if let Some(from) = from {
            *self.addresses.entry(from).or_default() += 1;
        }
        self.sessions.insert(session, fresh);
    }

    /// Ends a session and drops its results.
    pub fn close(&mut self, session: u64) {
        let Some(session) = self.sessions.remove(&session) else { return };
        self.bytes -= session.bytes;
        if let Some(from) = session.from
            && let Some(count) = self.addresses.get_mut(&from)
        {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&from);
            }
        }
    }

    /// A mutation has arrived; the waiter is kept until `finish` or `send_away`.
    pub fn begin(&mut self, ctx: &Ctx, waiter: W) -> Verdict {
        let Some(session) = self.sessions.get_mut(&ctx.session) else {
            return Verdict::Refuse(Error::of_class(Class::SessionLost, Errno::EIO));
        };
        (session.heard, session.is_used) = (self.now, true);
        self.bytes -= session.acknowledge(ctx.ack);
        if ctx.seq == 0 || ctx.seq < session.ack {
            return Verdict::Refuse(Error::of_class(Class::Fatal, Errno::EINVAL));
        }
        if let Some(kept) = session.results.get(&ctx.seq) {
            return Verdict::Answer(kept.status, kept.body.clone());
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
        let is_full = self.bytes >= RESULTS_BYTES_MAX;
        let room = if is_full { SESSION_SHARE_BYTES } else { limits::SESSION_RESULTS_BYTES_MAX };
        if session.bytes_expected() >= room {
            let text = "the session must acknowledge answers before it asks for more";
            return Verdict::Refuse(Error::retry(text));
        }
        let running = Running { attempt: ctx.attempt, waiters: vec![waiter] };
        session.running.insert(ctx.seq, running);
        Verdict::Run
    }

    /// It was executed with this answer, which goes with the slot: who waits for it.
    pub fn finish(
        &mut self,
        session: u64,
        seq: u64,
        slot: Option<Slot>,
        status: u16,
        body: Bytes,
    ) -> Vec<W> {
        let Some(session) = self.sessions.get_mut(&session) else { return Vec::new() };
        if seq >= session.ack {
            self.bytes += session.keep(seq, Kept { status, body, slot });
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
        session.is_used = true;
        self.bytes -= session.acknowledge(result.ack);
        // seq 0 carries a watermark without a result (snapshots).
        if result.seq >= session.ack && result.seq > 0 {
            let StoredResult { seq, status, body, slot, .. } = result;
            let slot = slot.map(Slot::from_wire);
            self.bytes += session.keep(seq, Kept { status: status as u16, body, slot });
        }
    }

    /// Everything that must survive, as results to `restore`; a session without results appears
    /// with seq 0.
    pub fn snapshot(&self) -> impl Iterator<Item = StoredResult> {
        self.sorted().into_iter().flat_map(|(id, session)| {
            let known = StoredResult { session: id, ack: session.ack, ..Default::default() };
            std::iter::once(known).chain(session.stored(id))
        })
    }

    /// Results that go with a slot, to `restore` where that goes.
    pub fn of_slot(&self, slot: Slot) -> impl Iterator<Item = StoredResult> {
        let all = self.sorted().into_iter().flat_map(|(id, session)| session.stored(id));
        all.filter(move |result| result.slot == Some(slot.into()))
    }

    /// The slot has gone, and its results with it.
    pub fn drop_slot(&mut self, slot: Slot) {
        for session in self.sessions.values_mut() {
            let Session { results, bytes, .. } = session;
            results.retain(|_, kept| {
                let stays = kept.slot != Some(slot);
                if !stays {
                    *bytes -= result_bytes(&kept.body);
                    self.bytes -= result_bytes(&kept.body);
                }
                stays
            });
        }
    }

    /// In order of their ids.
    fn sorted(&self) -> Vec<(u64, &Session<W>)> {
        let mut sessions: Vec<_> = self.sessions.iter().map(|(id, s)| (*id, s)).collect();
        sessions.sort_unstable_by_key(|(id, _)| *id);
        sessions
    }

    /// Bytes of all results (an estimate).
    pub fn bytes(&self) -> usize {
        self.bytes
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
        assert_eq!(s.finish(9, 1, None, 0, Bytes::from_static(b"x")), vec!['a', 'b']);
        assert_eq!(s.begin(&ctx(1, 0), 'c'), Verdict::Answer(0, Bytes::from_static(b"x")));
    }

    fn is_busy(result: Result<Option<What>, Error>) -> bool {
        result.is_err_and(|e| e.is(Class::Retry) && e.errno() == Errno::EBUSY)
    }

    fn from(n: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, n]))
    }

    #[test]
    fn a_flood_of_new_sessions_ends_no_live_one() {
        let mut s = Sessions::default();
        let live = 1 << 40;
        assert_eq!(s.admit(live, from(1)), Ok(Some(What::SessionOpen(live))));
        assert_eq!(s.admit(live, from(1)), Ok(None), "it is known");
        let of_live = |seq| Ctx { session: live, ..ctx(seq, 0) };
        assert_eq!(s.begin(&of_live(1), ()), Verdict::Run);
        s.finish(live, 1, None, 0, Bytes::new());
        let mut next = 1;
        for address in 2..=5 {
            while s.admit(next, from(address)).is_ok() {
                next += 1;
            }
        }
        assert_eq!(s.len(), SESSIONS_MAX, "none of those that are there has ended");
        assert!(is_busy(s.admit(next, from(6))));
        assert_eq!(s.begin(&of_live(1), ()), Verdict::Answer(0, Bytes::new()));
        // A replay forgets none but those that it is told of.
        (0..9).for_each(|id| assert!(s.open((1 << 41) + id)));
        assert_eq!(s.len(), SESSIONS_MAX + 9);
        // The flood was never used: it ends soon, and who waits comes in.
        let (soon, all) = (Time::ZERO + SESSION_UNUSED_LEASE, SESSIONS_MAX + 9);
        assert_eq!(s.step(soon).len(), all - 1);
        assert!(s.knows(live) && s.admit(next, from(2)).is_ok());
    }

    #[test]
    fn one_address_has_a_part_of_the_sessions() {
        let mut s = Sessions::<()>::default();
        let ids = 1..=SESSIONS_PER_ADDRESS_MAX as u64;
        assert!(ids.clone().all(|id| s.admit(id, from(1)).is_ok()));
        let next = ids.end() + 1;
        assert!(is_busy(s.admit(next, from(1))));
        assert!(s.admit(next, from(2)).is_ok());
        s.close(7);
        assert!(s.admit(7, from(1)).is_ok() && is_busy(s.admit(8 << 20, from(1))));
    }

    #[test]
    fn a_session_ends_a_lease_after_its_client_was_heard_of() {
        let mut s = Sessions::default();
        s.begin_serving(Time::ZERO + EXPIRE_EVERY);
        let mut now = Time::ZERO + EXPIRE_EVERY;
        s.open(8);
        s.open(9);
        let of = |session, seq| Ctx { session, ..ctx(seq, 0) };
        for session in [8, 9] {
            assert_eq!(s.begin(&of(session, 1), ()), Verdict::Run);
        }
        s.finish(9, 1, None, 0, Bytes::new());
        now += limits::SESSION_LEASE / 2;
        assert!(s.step(now).is_empty());
        assert_eq!(s.begin(&of(9, 2), ()), Verdict::Run);
        s.finish(9, 2, None, 0, Bytes::new());
        now += limits::SESSION_LEASE / 2;
        assert!(s.step(now).is_empty(), "one is asked in, one has a mutation that runs");
        now += limits::SESSION_LEASE / 2;
        assert_eq!(s.step(now), [What::SessionClose(9)]);
        assert_eq!((s.bytes(), s.knows(8)), (0, true));
    }

    /// Answers of 4,000 bytes until one is refused; how many.
    fn hoard(s: &mut Sessions<()>, session: u64, ack: u64) -> u64 {
        let start = ack.max(1);
        for seq in start.. {
            match s.begin(&Ctx { session, ..ctx(seq, ack) }, ()) {
                Verdict::Run => {}
                Verdict::Refuse(e) if e.is(Class::Retry) => return seq - start,
                other => panic!("{other:?}"),
            }
            s.finish(session, seq, None, 0, vec![7; 4000].into());
        }
        0
    }

    #[test]
    fn a_session_that_keeps_too_much_acknowledges_first() {
        let mut s = Sessions::default();
        s.open(9);
        let kept = hoard(&mut s, 9, 0);
        let bytes = kept as usize * (4000 + RESULT_OVERHEAD_BYTES);
        assert_eq!(s.bytes(), bytes);
        assert!(bytes.abs_diff(limits::SESSION_RESULTS_BYTES_MAX) < 8192, "{bytes}");
        // What was answered is answered again: nothing that may be asked for was dropped.
        let first = Verdict::Answer(0, vec![7; 4000].into());
        assert_eq!(s.begin(&ctx(1, 0), ()), first);
        assert_eq!(hoard(&mut s, 9, kept + 1), kept, "all were acknowledged");
        s.close(9);
        assert_eq!(s.bytes(), 0);
    }

    #[test]
    fn all_sessions_together_are_bounded_and_small_ones_go_on() {
        let mut s = Sessions::default();
        let mut session = 1;
        while s.bytes() < RESULTS_BYTES_MAX {
            s.open(session);
            assert!(hoard(&mut s, session, 0) > 0);
            session += 1;
        }
        assert!(s.bytes() < RESULTS_BYTES_MAX + limits::SESSION_RESULTS_BYTES_MAX);
        s.open(session);
        let few = hoard(&mut s, session, 0);
        assert!(few > 0 && few as usize * 4000 <= SESSION_SHARE_BYTES + 4000, "{few}");
    }

    #[test]
    fn the_watermark_prunes_and_refuses() {
        let mut s = Sessions::default();
        s.open(9);
        for seq in 1..=3 {
            assert_eq!(s.begin(&ctx(seq, 0), ()), Verdict::Run);
            s.finish(9, seq, None, 0, Bytes::new());
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
        assert_eq!(s.finish(9, 1, None, 0, Bytes::new()), vec!['c', 'd']);
        assert_eq!(s.begin(&attempt(1), 'e'), Verdict::Answer(0, Bytes::new()));
        // Forgotten with the client's acknowledgement, which refuses it for good.
        assert_eq!(s.begin(&Ctx { attempt: 1, ..ctx(2, 2) }, 'f'), Verdict::Run);
        assert!(matches!(s.begin(&attempt(1), 'g'), Verdict::Refuse(e) if e.is(Class::Fatal)));
    }

    #[test]
    fn results_go_with_their_slots() {
        let mut s = Sessions::default();
        for (session, seq, slot) in
            [(9, 1, Some(4)), (9, 2, Some(5)), (8, 1, Some(4)), (8, 2, None)]
        {
            s.open(session);
            let ctx = Ctx { session, ..ctx(seq, 0) };
            assert_eq!(s.begin(&ctx, ()), Verdict::Run);
            s.finish(session, seq, slot.map(Slot), 0, Bytes::from_static(b"abc"));
        }
        let of = |s: &Sessions<()>, slot| {
            s.of_slot(Slot(slot)).map(|r| (r.session, r.seq)).collect::<Vec<_>>()
        };
        assert_eq!(of(&s, 4), [(8, 1), (9, 1)]);
        let mut there = Sessions::default();
        s.of_slot(Slot(4)).for_each(|result| there.restore(result));
        assert_eq!(there.begin(&ctx(1, 0), ()), Verdict::Answer(0, Bytes::from_static(b"abc")));
        s.drop_slot(Slot(4));
        assert_eq!((of(&s, 4), of(&s, 5)), (vec![], vec![(9, 2)]));
        assert_eq!(s.bytes(), 2 * (RESULT_OVERHEAD_BYTES + 3));
        assert_eq!(s.snapshot().count(), 4);
    }

    #[test]
    fn a_snapshot_restores_results_and_watermarks_but_no_refusals() {
        let mut s = Sessions::default();
        s.open(9);
        s.open(10);
        for seq in 5..=6 {
            assert_eq!(s.begin(&ctx(seq, 5), ()), Verdict::Run);
        }
        s.finish(9, 5, None, 0, Bytes::from_static(b"five"));
        s.finish(9, 6, None, 17, Bytes::new());
        let mut again = Sessions::default();
        s.snapshot().for_each(|r| again.restore(r));
        assert_eq!(again.bytes(), RESULT_OVERHEAD_BYTES + 4);
        assert_eq!(again.begin(&ctx(5, 0), ()), Verdict::Answer(0, Bytes::from_static(b"five")));
        assert_eq!(again.begin(&ctx(6, 0), ()), Verdict::Run);
        assert!(matches!(again.begin(&ctx(4, 0), ()), Verdict::Refuse(_)));
        assert!(!again.open(10));
    }
}
