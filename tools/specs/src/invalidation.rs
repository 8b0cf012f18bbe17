//! Directory changes (rmdir, chmod, rename of a directory) against creates and prepares that
//! resolve the directory in replicas: FalconFS §4.3 as Saker does it.
//!
//! One directory, inode 1, that begins as the name `D` of shard 0. A rename moves it to `E`,
//! which is shard 1's. Each shard has a replica of both names, fetches what it misses, drops
//! cold entries at any moment, and may crash. A request makes an entry in the directory through
//! one of the two names on some shard: in one step (create), or as the participant of a rename
//! of a file (prepare, later the outcome). The changes come one after the other.
//!
//! | action | code |
//! |---|---|
//! | `Arrive`, `Run`, `Hold`, `Release` | `meta::service::Worker::{admit, run}`, `namespace::resolve` |
//! | `AtOwner`, `Answer`, `FetchTimeout` | `namespace::fetch`: the owner's side, the asker's, its loop |
//! | `Evict` | the bounded cache in `namespace::replica` |
//! | `Begin`, `Deliver(Prepare)`, `Voted`, `PrepareTimeout` | `coordinator::ops`, `rpc::txn::Transaction::prepare`, `txn::participant::prepare_directory` |
//! | `Deliver(Invalidate)`, `Acked`, `Resend` | `namespace::invalidate`, `coordinator::ops::invalidate`, `Hub::ask_until` |
//! | `Decide`, `InDoubt` | `rpc::txn::deliver`, `participant::{end_prepared, in_doubt}` |
//! | `EndInsert` | `participant::end_prepared` of a file rename's part |
//! | `Crash`, `CrashCoordinator` | `meta::recover`, `coordinator::state::open` |
//!
//! A step is flushed when it ends (rule 3 is [`crate::commit`]'s); a request or answer that is
//! lost is one that is never delivered, and what sends again does so while it waits.

use std::collections::BTreeSet;

use stateright::{Model, Property};

/// Shards: 0 owns `D`, 1 owns `E`.
pub const SHARDS: usize = 2;
/// Names that the directory can have.
const NAMES: usize = 2;
const D: usize = 0;
const E: usize = 1;

/// A known fault, put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A shard acknowledges an invalidation without dropping the entry.
    AckWithoutDrop,
    /// An answer to a fetch that an invalidation overtook is used.
    LateAnswerAccepted,
    /// A parked request uses what a fetch told it before an invalidation.
    FoundKeptTooLong,
    /// The owner answers fetches of a prepared row instead of parking them.
    PreparedRowAnswered,
    /// The prepare of a file rename carries the directory's id, resolved by its driver.
    ResolvedPid,
    /// The emptiness of a directory does not count prepared rows.
    ScanIgnoresPrepared,
    /// The coordinator decides before the last shard has acknowledged.
    CommitsBeforeAcks,
}

/// A change of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// rmdir D.
    Rmdir,
    /// chmod D.
    Chmod,
    /// rename D to E.
    Rename,
}

impl Change {
    /// Names whose rows it prepares, at their owners.
    fn names(self) -> &'static [usize] {
        match self {
            Change::Rmdir | Change::Chmod => &[D],
            Change::Rename => &[D, E],
        }
    }
}

/// A request that makes an entry in the directory.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Name by which it reaches the directory: 0 is D, 1 is E.
    pub name: usize,
    /// Shard that owns the new entry.
    pub shard: usize,
    /// The part of a rename of a file that somebody else drives, not a create.
    pub prepares: bool,
}

/// What to explore.
#[derive(Clone, Debug)]
pub struct Invalidation {
    /// Changes, one after the other.
    pub changes: Vec<Change>,
    /// Requests, at any time.
    pub asks: Vec<Ask>,
    /// Crashes of shards, at most.
    pub crashes: u8,
    /// Crashes of the coordinator, at most.
    pub coordinator_crashes: u8,
    /// Transactions that the coordinator may begin.
    pub attempts: u8,
    /// Is a fault in?
    pub fault: Option<Fault>,
}

/// A directory's row: which version of its mode. That the name is absent is `None`.
type Row = Option<u8>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// On its way to the owner, or parked there.
    Asked,
    /// The answer is on its way.
    Answered(Row),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Fetch {
    stale: bool,
    phase: Phase,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Shard {
    replica: [Row; NAMES],
    fetches: [Option<Fetch>; NAMES],
    /// Requests whose entry is here, as bits; durable.
    entries: u8,
    /// Requests whose entry is prepared here, as bits; durable.
    prepared: u8,
}

/// An answer that a parked request keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Found {
    row: Row,
    /// No invalidation was served since.
    fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    /// With its client, or on its way. The driver of a prepare may have resolved it already.
    Sent,
    /// May run.
    Ready(Option<Found>),
    /// Waits for the fetch of its name; it began to wait before the question was asked.
    Fetching { early: bool },
    /// Waits for the transaction that holds the row; it is on the owner.
    Locked,
    /// Waits for something else (a freeze, an inode).
    Held(Option<Found>),
    /// Voted for: its entry is prepared.
    Prepared,
    /// Answered.
    Done,
}

/// Where the coordinator is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Coordinator {
    Idle,
    /// Waits for a vote about the `part`th name.
    Preparing {
        part: usize,
    },
    /// Waits for shards; bits of those that have acknowledged, and what they said.
    Invalidating {
        acked: u8,
        full: bool,
        undecided: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Prepare { txn: u8, change: usize, name: usize },
    Vote { txn: u8, name: usize, yes: bool },
    Invalidate { txn: u8, change: usize, shard: usize },
    Ack { txn: u8, shard: usize, full: bool, undecided: bool },
}

/// A prepared row of the directory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lock {
    txn: u8,
    change: usize,
}

/// A state of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    rows: [Row; NAMES],
    locks: [Option<Lock>; NAMES],
    shards: [Shard; SHARDS],
    requests: Vec<Request>,
    coordinator: Coordinator,
    /// The last transaction begun.
    txn: u8,
    /// Changes that are over for their client.
    changed: usize,
    /// Committed transactions, with names whose owners have not heard, as bits; durable.
    decisions: Vec<(u8, u8)>,
    net: BTreeSet<Message>,
    crashes: u8,
    coordinator_crashes: u8,
    /// What the directory's rows are, counting decided changes as applied.
    truth: [Row; NAMES],
    /// A request that ran used a row that was not true.
    stale_use: bool,
}

/// What can happen.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Arrive(usize),
    Run(usize),
    Hold(usize),
    Release(usize),
    EndInsert { request: usize, commit: bool },
    AtOwner { shard: usize, name: usize },
    Answer { shard: usize, name: usize },
    FetchTimeout { shard: usize, name: usize },
    Evict { shard: usize, name: usize },
    Begin,
    PrepareTimeout,
    Resend { shard: usize },
    DeliverNth(usize),
    Decide { txn: u8, name: usize },
    InDoubt { name: usize },
    Crash(usize),
    CrashCoordinator,
}

/// The shard that owns a name.
fn owner(name: usize) -> usize {
    name
}

impl Invalidation {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The row after a change.
    fn after(&self, change: usize, name: usize, rows: &[Row; NAMES]) -> Row {
        match (self.changes[change], name) {
            (Change::Chmod, _) => rows[name].map(|mode| mode + 1),
            (Change::Rename, E) => rows[D],
            (Change::Rmdir | Change::Rename, _) => None,
        }
    }

    // ---- requests -------------------------------------------------------------------------

    fn run(&self, s: &mut State, i: usize, found: Option<Found>) {
        let Ask { name, shard, prepares } = self.asks[i];
        if prepares && self.has(Fault::ResolvedPid) {
            return self.make(s, i);
        }
        if let Some(mode) = s.shards[shard].replica[name] {
            return self.use_row(s, i, Some(mode));
        }
        if shard == owner(name) {
            if s.locks[name].is_some() {
                s.requests[i] = if prepares { Request::Done } else { Request::Locked };
                return;
            }
            s.shards[shard].replica[name] = s.rows[name];
            return self.use_row(s, i, s.rows[name]);
        }
        if let Some(found) = found
            && (found.fresh || self.has(Fault::FoundKeptTooLong))
        {
            return self.use_row(s, i, found.row);
        }
        let fetch = &mut s.shards[shard].fetches[name];
        let starts = fetch.is_none();
        if starts {
            *fetch = Some(Fetch { stale: false, phase: Phase::Asked });
        }
        s.requests[i] = Request::Fetching { early: starts };
    }

    /// The path is resolved: in the same step the entry is made, or prepared.
    fn use_row(&self, s: &mut State, i: usize, row: Row) {
        s.stale_use |= row != s.truth[self.asks[i].name];
        match row {
            Some(_) => self.make(s, i),
            None => s.requests[i] = Request::Done,
        }
    }

    fn make(&self, s: &mut State, i: usize) {
        let Ask { shard, prepares, .. } = self.asks[i];
        if prepares {
            s.shards[shard].prepared |= 1 << i;
            s.requests[i] = Request::Prepared;
        } else {
            s.shards[shard].entries |= 1 << i;
            s.requests[i] = Request::Done;
        }
    }

    /// Requests that wait for the row's lock on its owner run again.
    fn unlock(&self, s: &mut State, name: usize) {
        s.locks[name] = None;
        for (i, ask) in self.asks.iter().enumerate() {
            if ask.name == name && s.requests[i] == Request::Locked {
                s.requests[i] = Request::Ready(None);
            }
        }
    }

    // ---- fetches --------------------------------------------------------------------------

    /// The question is asked (again): who waits now began before.
    fn ask_again(&self, s: &mut State, shard: usize, name: usize) {
        s.shards[shard].fetches[name] = Some(Fetch { stale: false, phase: Phase::Asked });
        self.waiting(s, shard, name, |request| *request = Request::Fetching { early: true });
    }

    fn waiting(&self, s: &mut State, shard: usize, name: usize, f: impl Fn(&mut Request)) {
        for (ask, request) in self.asks.iter().zip(&mut s.requests) {
            let waits = matches!(request, Request::Fetching { .. });
            if waits && ask.shard == shard && ask.name == name {
                f(request);
            }
        }
    }

    fn answered(&self, s: &mut State, shard: usize, name: usize, fetch: Fetch, row: Row) {
        if fetch.stale && !self.has(Fault::LateAnswerAccepted) {
            return self.ask_again(s, shard, name);
        }
        s.shards[shard].fetches[name] = None;
        if row.is_some() {
            s.shards[shard].replica[name] = row;
        }
        self.waiting(s, shard, name, |request| {
            let early = *request == Request::Fetching { early: true };
            *request = Request::Ready(early.then_some(Found { row, fresh: true }));
        });
    }

    // ---- the coordinator ------------------------------------------------------------------

    fn begin(&self, s: &mut State) {
        s.txn += 1;
        s.coordinator = Coordinator::Preparing { part: 0 };
        let name = self.changes[s.changed].names()[0];
        s.net.insert(Message::Prepare { txn: s.txn, change: s.changed, name });
    }

    /// Not in progress any more; answers to its calls are nobody's.
    fn stop(&self, s: &mut State) {
        s.coordinator = Coordinator::Idle;
        s.net.retain(|m| !matches!(m, Message::Vote { .. } | Message::Ack { .. }));
    }

    fn prepare(&self, s: &mut State, txn: u8, change: usize, name: usize) {
        let exists = s.rows[name].is_some();
        let busy = s.locks[name].is_some_and(|lock| lock.txn != txn);
        let wanted = !(name == E && self.changes[change] == Change::Rename);
        let yes = !busy && exists == wanted;
        if yes {
            s.locks[name] = Some(Lock { txn, change });
        }
        if txn == s.txn && matches!(s.coordinator, Coordinator::Preparing { .. }) {
            s.net.insert(Message::Vote { txn, name, yes });
        }
    }

    fn voted(&self, s: &mut State, yes: bool) {
        let Coordinator::Preparing { part } = s.coordinator else { return };
        let names = self.changes[s.changed].names();
        let (txn, change) = (s.txn, s.changed);
        if !yes {
            return self.stop(s);
        }
        if part + 1 < names.len() {
            s.coordinator = Coordinator::Preparing { part: part + 1 };
            s.net.insert(Message::Prepare { txn, change, name: names[part + 1] });
            return;
        }
        s.coordinator = Coordinator::Invalidating { acked: 0, full: false, undecided: false };
        s.net.extend((0..SHARDS).map(|shard| Message::Invalidate { txn, change, shard }));
        if self.has(Fault::CommitsBeforeAcks) {
            self.decide(s);
        }
    }

    fn invalidate(&self, s: &mut State, txn: u8, change: usize, shard: usize) {
        let asks = &self.asks;
        let here = &mut s.shards[shard];
        for &name in self.changes[change].names() {
            if !self.has(Fault::AckWithoutDrop) {
                here.replica[name] = None;
                if let Some(fetch) = &mut here.fetches[name] {
                    fetch.stale = true;
                }
            }
        }
        for (ask, request) in asks.iter().zip(&mut s.requests) {
            if let Request::Ready(Some(found)) | Request::Held(Some(found)) = request
                && ask.shard == shard
            {
                found.fresh = false;
            }
        }
        let counts = self.changes[change] == Change::Rmdir;
        let full = counts && here.entries != 0;
        let undecided = counts && here.prepared != 0 && !self.has(Fault::ScanIgnoresPrepared);
        if txn == s.txn && matches!(s.coordinator, Coordinator::Invalidating { .. }) {
            s.net.insert(Message::Ack { txn, shard, full, undecided });
        }
    }

    fn acked(&self, s: &mut State, shard: usize, is_full: bool, is_undecided: bool) {
        let Coordinator::Invalidating { acked, full, undecided } = &mut s.coordinator else {
            return;
        };
        *acked |= 1 << shard;
        *full |= is_full;
        *undecided |= is_undecided;
        let (full, undecided) = (*full, *undecided);
        if *acked != (1 << SHARDS) - 1 {
            return;
        }
        match (full, undecided) {
            (false, false) => self.decide(s),
            // ENOTEMPTY is the answer.
            (true, _) => {
                s.changed += 1;
                self.stop(s);
            }
            // The client tries again.
            (false, true) => self.stop(s),
        }
    }

    /// Decision and result are one record; the reply leaves with it.
    fn decide(&self, s: &mut State) {
        let names = self.changes[s.changed].names();
        let before = s.truth;
        for &name in names {
            s.truth[name] = self.after(s.changed, name, &before);
        }
        s.decisions.push((s.txn, names.iter().fold(0, |bits, name| bits | 1 << name)));
        s.changed += 1;
        self.stop(s);
    }

    fn is_driving(&self, s: &State, txn: u8) -> bool {
        txn == s.txn && s.coordinator != Coordinator::Idle
    }

    fn apply(&self, s: &mut State, txn: u8, name: usize) {
        // A decided change is the truth already; the row that moves comes with its prepare.
        if s.locks[name].is_some_and(|lock| lock.txn == txn) {
            s.rows[name] = s.truth[name];
            self.unlock(s, name);
        }
        for decision in &mut s.decisions {
            if decision.0 == txn {
                decision.1 &= !(1 << name);
            }
        }
        s.decisions.retain(|(_, names)| *names != 0);
    }

    // ---- crashes --------------------------------------------------------------------------

    fn crash(&self, s: &mut State, shard: usize) {
        s.crashes += 1;
        s.shards[shard].replica = Default::default();
        s.shards[shard].fetches = Default::default();
        for (i, request) in s.requests.iter_mut().enumerate() {
            if self.asks[i].shard != shard {
                continue;
            }
            match request {
                // The client sends a create again; the driver of a prepare has given up.
                Request::Ready(_)
                | Request::Fetching { .. }
                | Request::Locked
                | Request::Held(_) => {
                    *request = if self.asks[i].prepares { Request::Done } else { Request::Sent };
                }
                Request::Sent | Request::Prepared | Request::Done => {}
            }
        }
        // Connections to it break; what its askers send again they send again.
        s.net.retain(|m| match *m {
            Message::Prepare { name, .. } | Message::Vote { name, .. } => owner(name) != shard,
            Message::Invalidate { shard: to, .. } | Message::Ack { shard: to, .. } => to != shard,
        });
    }
}

impl Model for Invalidation {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            rows: [Some(0), None],
            locks: [None; NAMES],
            shards: Default::default(),
            requests: vec![Request::Sent; self.asks.len()],
            coordinator: Coordinator::Idle,
            txn: 0,
            changed: 0,
            decisions: Vec::new(),
            net: BTreeSet::new(),
            crashes: 0,
            coordinator_crashes: 0,
            truth: [Some(0), None],
            stale_use: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for (i, request) in s.requests.iter().enumerate() {
            match request {
                Request::Sent => actions.push(Action::Arrive(i)),
                Request::Ready(_) => actions.extend([Action::Run(i), Action::Hold(i)]),
                Request::Held(_) => actions.push(Action::Release(i)),
                Request::Prepared => actions
                    .extend([true, false].map(|commit| Action::EndInsert { request: i, commit })),
                Request::Fetching { .. } | Request::Locked | Request::Done => {}
            }
        }
        for shard in 0..SHARDS {
            for name in 0..NAMES {
                match s.shards[shard].fetches[name].map(|fetch| fetch.phase) {
                    Some(Phase::Asked) => actions.push(Action::AtOwner { shard, name }),
                    Some(Phase::Answered(_)) => {
                        actions.push(Action::Answer { shard, name });
                        actions.push(Action::FetchTimeout { shard, name });
                    }
                    None => {}
                }
                if s.shards[shard].replica[name].is_some() {
                    actions.push(Action::Evict { shard, name });
                }
            }
            if s.crashes < self.crashes {
                actions.push(Action::Crash(shard));
            }
        }
        match s.coordinator {
            Coordinator::Idle if s.changed < self.changes.len() && s.txn < self.attempts => {
                actions.push(Action::Begin);
            }
            Coordinator::Idle => {}
            Coordinator::Preparing { .. } => actions.push(Action::PrepareTimeout),
            Coordinator::Invalidating { acked, .. } => actions.extend(
                (0..SHARDS)
                    .filter(|shard| acked & 1 << shard == 0)
                    .map(|shard| Action::Resend { shard }),
            ),
        }
        actions.extend((0..s.net.len()).map(Action::DeliverNth));
        for (txn, names) in &s.decisions {
            let names = (0..NAMES).filter(|name| names & 1 << name != 0);
            actions.extend(names.map(|name| Action::Decide { txn: *txn, name }));
        }
        let locked = (0..NAMES).filter(|name| s.locks[*name].is_some());
        actions.extend(locked.map(|name| Action::InDoubt { name }));
        if s.coordinator_crashes < self.coordinator_crashes {
            actions.push(Action::CrashCoordinator);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Arrive(i) => s.requests[i] = Request::Ready(None),
            Action::Run(i) => {
                let Request::Ready(found) = s.requests[i] else { return None };
                self.run(&mut s, i, found);
            }
            Action::Hold(i) => {
                // It waits for something else only after it has resolved its directory.
                let Request::Ready(Some(found)) = s.requests[i] else { return None };
                s.requests[i] = Request::Held(Some(found));
            }
            Action::Release(i) => {
                let Request::Held(found) = s.requests[i] else { return None };
                s.requests[i] = Request::Ready(found);
            }
            Action::EndInsert { request, commit } => {
                let shard = &mut s.shards[self.asks[request].shard];
                shard.prepared &= !(1 << request);
                shard.entries |= u8::from(commit) << request;
                s.requests[request] = Request::Done;
            }
            Action::AtOwner { shard, name } => {
                if s.locks[name].is_some() && !self.has(Fault::PreparedRowAnswered) {
                    return None;
                }
                let fetch = s.shards[shard].fetches[name].as_mut()?;
                fetch.phase = Phase::Answered(s.rows[name]);
            }
            Action::Answer { shard, name } => {
                let fetch = s.shards[shard].fetches[name]?;
                let Phase::Answered(row) = fetch.phase else { return None };
                self.answered(&mut s, shard, name, fetch, row);
            }
            Action::FetchTimeout { shard, name } => self.ask_again(&mut s, shard, name),
            Action::Evict { shard, name } => s.shards[shard].replica[name] = None,
            Action::Begin => self.begin(&mut s),
            Action::PrepareTimeout => self.stop(&mut s),
            Action::Resend { shard } => {
                let message = Message::Invalidate { txn: s.txn, change: s.changed, shard };
                s.net.insert(message);
            }
            Action::DeliverNth(n) => {
                let message = *s.net.iter().nth(n)?;
                s.net.remove(&message);
                match message {
                    Message::Prepare { txn, change, name } => {
                        self.prepare(&mut s, txn, change, name);
                    }
                    Message::Vote { yes, .. } => self.voted(&mut s, yes),
                    Message::Invalidate { txn, change, shard } => {
                        self.invalidate(&mut s, txn, change, shard);
                    }
                    Message::Ack { shard, full, undecided, .. } => {
                        self.acked(&mut s, shard, full, undecided);
                    }
                }
            }
            Action::Decide { txn, name } => self.apply(&mut s, txn, name),
            Action::InDoubt { name } => {
                let Lock { txn, .. } = s.locks[name]?;
                if s.decisions.iter().any(|(decided, _)| *decided == txn) {
                    self.apply(&mut s, txn, name);
                } else if self.is_driving(&s, txn) {
                    return None;
                } else {
                    self.unlock(&mut s, name);
                }
            }
            Action::Crash(shard) => self.crash(&mut s, shard),
            Action::CrashCoordinator => {
                s.coordinator_crashes += 1;
                self.stop(&mut s);
            }
        }
        (s != *last).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no batch uses an old value", |_, s: &State| !s.stale_use),
            Property::always("entries are their owners' rows", |_, s: &State| {
                s.is_changing() || s.shards.iter().all(|shard| s.agrees(shard))
            }),
            Property::always("nothing is in a removed directory", |_, s: &State| {
                s.truth != [None; NAMES]
                    || s.shards.iter().all(|shard| (shard.entries, shard.prepared) == (0, 0))
            }),
            Property::sometimes("a request waits at the owner", |_, s: &State| {
                s.requests.iter().any(|r| matches!(r, Request::Fetching { .. }))
                    && s.locks[D].is_some()
                    && s.coordinator == Coordinator::Idle
            }),
            Property::sometimes("all changes are made", |model: &Invalidation, s: &State| {
                s.changed == model.changes.len() && s.is_quiet()
            }),
        ]
    }
}

impl State {
    fn is_changing(&self) -> bool {
        self.coordinator != Coordinator::Idle
            || !self.decisions.is_empty()
            || self.locks.iter().any(Option::is_some)
    }

    fn agrees(&self, shard: &Shard) -> bool {
        (0..NAMES).all(|name| shard.replica[name].is_none_or(|row| Some(row) == self.rows[name]))
    }

    /// Nobody waits, nothing is prepared.
    pub fn is_quiet(&self) -> bool {
        !self.is_changing() && self.requests.iter().all(|request| *request == Request::Done)
    }
}
