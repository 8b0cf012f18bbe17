//! Two-phase commit as `rpc::txn` (driver) and `meta::txn::participant` do it, with flushes,
//! crashes, and clients that send again.
//!
//! Each operation has a driver, perhaps a row of the driver's own that it locks in memory, and
//! rows at other shards that it prepares one after the other. What a step changes is in memory;
//! its messages wait until it is flushed (`rpc::node::gate`); a crash loses what is not flushed.
//!
//! | action | code |
//! |---|---|
//! | `Send` | `client::request`: the same number until there is an answer |
//! | `Deliver(Request)`, `Rerun` | `meta::service::Worker::{admit, run}`, `engine::sessions`, `txn::begin` |
//! | `Deliver(Prepare)`, `Deliver(Vote)` | `participant::{prepare_insert, vote_for}`, `Transaction::{prepare, commit}` |
//! | `Timeout` | `PREPARE_TIMEOUT`, `Transaction::abort` |
//! | `Tell`, `Deliver(Decide)`, `Deliver(Ack)` | `txn::deliver`, `participant::end_prepared` |
//! | `Ask`, `Deliver(Ask)`, `Deliver(Told)` | `participant::in_doubt`, `Ledger::outcome` |
//! | `Flush` | `rpc::node::shell`; a step that changed nothing has nothing to wait for |
//! | `Crash` | `meta::recover::open` |
//!
//! A request or call arrives at most once (TCP, and nobody writes a frame twice), in any order,
//! however late; a lost one never arrives. An answer belongs to a call, and is nobody's when the
//! call has ended. Numbers of transactions are never used again, whatever crashes
//! (`new_number`: their reservation is flushed before the first message that names them).

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

/// A known fault, put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The decision is sent, and then logged.
    DecisionSentFirst,
    /// The result is stored after the transaction, not in its record.
    ResultOutside,
    /// Messages leave before the flush.
    ReplyBeforeFlush,
    /// A prepare that meets a locked row waits for it.
    HolderWaits,
    /// Readers do not mind prepared rows.
    ReadIgnoresPrepared,
    /// The decision is forgotten when the first participant has acknowledged.
    ForgottenEarly,
    /// Participants never ask what became of a transaction.
    NobodyAsks,
    /// The network delivers a prepare twice.
    PrepareTwice,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The shard that drives it.
    pub driver: usize,
    /// The driver's own row that it takes away, if any.
    pub own: Option<u8>,
    /// Rows that it sets, with their shards, all different.
    pub parts: Vec<(usize, u8)>,
}

/// What to explore.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Number of shards.
    pub shards: usize,
    /// Operations, each of a client of its own.
    pub operations: Vec<Operation>,
    /// Rows that are there at first.
    pub rows: Vec<(usize, u8)>,
    /// How often a client sends its request.
    pub sends: u8,
    /// Crashes, at most.
    pub crashes: u8,
    /// Transactions that time out at their driver, at most.
    pub timeouts: u8,
    /// Is a fault in?
    pub fault: Option<Fault>,
}

/// Transaction: the operation, and a number never used before.
type Txn = (u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Request { op: u8 },
    Reply { op: u8, ok: bool },
    Prepare { txn: Txn, part: u8 },
    Vote { txn: Txn, part: u8, yes: bool },
    Decide { txn: Txn, part: u8, commit: bool },
    Ack { txn: Txn, part: u8 },
    Ask { txn: Txn, part: u8 },
    Told { txn: Txn, part: u8, commit: bool },
}

impl Message {
    fn as_prepare(&self) -> Option<(Txn, u8)> {
        match *self {
            Message::Prepare { txn, part } => Some((txn, part)),
            _ => None,
        }
    }
}

/// What the journal says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Journal {
    rows: BTreeSet<u8>,
    /// Votes without an outcome (transaction, part).
    prepared: BTreeSet<(Txn, u8)>,
    /// Decided to commit; not all have acknowledged.
    decisions: BTreeSet<Txn>,
    /// Operations with a result.
    results: BTreeSet<u8>,
    /// What became of transactions here; no code has this, the properties need it.
    outcomes: BTreeSet<(Txn, bool)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    disk: Journal,
    memory: Journal,
    /// Waits for the flush.
    outbox: BTreeSet<Message>,
    /// Transactions in progress, and the part whose vote they wait for.
    driving: BTreeMap<Txn, u8>,
    /// Decisions being told, and the part that is told now.
    telling: BTreeMap<Txn, u8>,
    /// Operations that wait for a lock; they hold nothing.
    parked: BTreeSet<u8>,
    /// Prepares that wait for a lock: only with the fault.
    waiting: BTreeSet<(Txn, u8)>,
    /// Operations that were refused; in memory only.
    refused: BTreeSet<u8>,
    /// Decisions sent and not logged, results not stored: only with the faults.
    unlogged: BTreeSet<Txn>,
    unstored: BTreeSet<u8>,
}

/// A state of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: Vec<Node>,
    net: BTreeSet<Message>,
    /// By operation: how often its request was sent, and the answer.
    clients: Vec<(u8, Option<bool>)>,
    /// By operation: transactions begun.
    begun: Vec<u8>,
    crashes: u8,
    timeouts: u8,
    /// A prepare was delivered a second time (only with the fault).
    doubled: bool,
}

/// What can happen.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Send(u8),
    DeliverNth(usize),
    DoubleNth(usize),
    Rerun(u8),
    RerunPrepare(Txn, u8),
    Timeout(Txn),
    Tell(Txn),
    Ask(Txn, u8),
    Flush(usize),
    Crash(usize),
    Log(Txn),
    Store(u8),
}

impl Commit {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn op(&self, op: u8) -> &Operation {
        &self.operations[usize::from(op)]
    }

    fn driver(&self, txn: Txn) -> usize {
        self.op(txn.0).driver
    }

    fn part(&self, txn: Txn, part: u8) -> (usize, u8) {
        self.op(txn.0).parts[usize::from(part)]
    }

    /// Who has locked a row.
    fn locked_by(&self, node: &Node, at: usize, row: u8) -> Option<Txn> {
        let own = |txn: &Txn| self.driver(*txn) == at && self.op(txn.0).own == Some(row);
        let prepared = node.memory.prepared.iter().find(|(t, p)| self.part(*t, *p).1 == row);
        prepared.map(|(txn, _)| *txn).or_else(|| node.driving.keys().copied().find(own))
    }

    // ---- the driver -----------------------------------------------------------------------

    fn request(&self, s: &mut State, op: u8) {
        let at = self.op(op).driver;
        let node = &mut s.nodes[at];
        if node.memory.results.contains(&op) {
            node.outbox.insert(Message::Reply { op, ok: true });
        } else if node.refused.contains(&op) {
            node.outbox.insert(Message::Reply { op, ok: false });
        } else if !node.driving.keys().any(|txn| txn.0 == op) && !node.parked.contains(&op) {
            self.run(s, op);
        }
    }

    fn run(&self, s: &mut State, op: u8) {
        let Operation { driver: at, own, .. } = *self.op(op);
        let node = &s.nodes[at];
        if let Some(row) = own {
            if self.locked_by(node, at, row).is_some() {
                s.nodes[at].parked.insert(op);
                return;
            }
            if !node.memory.rows.contains(&row) {
                s.nodes[at].refused.insert(op);
                s.nodes[at].outbox.insert(Message::Reply { op, ok: false });
                return;
            }
        }
        let begun = &mut s.begun[usize::from(op)];
        *begun += 1;
        let txn = (op, *begun);
        s.nodes[at].driving.insert(txn, 0);
        s.nodes[at].outbox.insert(Message::Prepare { txn, part: 0 });
    }

    fn voted(&self, s: &mut State, txn: Txn, part: u8, yes: bool) {
        let at = self.driver(txn);
        if s.nodes[at].driving.get(&txn) != Some(&part) {
            return;
        }
        if !yes {
            return self.abort(s, txn);
        }
        let next = part + 1;
        if usize::from(next) < self.op(txn.0).parts.len() {
            s.nodes[at].driving.insert(txn, next);
            s.nodes[at].outbox.insert(Message::Prepare { txn, part: next });
            return;
        }
        s.nodes[at].telling.insert(txn, 0);
        s.nodes[at].outbox.insert(Message::Decide { txn, part: 0, commit: true });
        if self.has(Fault::DecisionSentFirst) {
            s.nodes[at].unlogged.insert(txn);
        } else {
            self.log(s, txn);
        }
    }

    /// Decision, own row and result: one record.
    fn log(&self, s: &mut State, txn: Txn) {
        let Operation { driver: at, own, .. } = *self.op(txn.0);
        let node = &mut s.nodes[at];
        node.driving.remove(&txn);
        node.unlogged.remove(&txn);
        if let Some(row) = own {
            node.memory.rows.remove(&row);
        }
        node.memory.decisions.insert(txn);
        node.memory.outcomes.insert((txn, true));
        if self.has(Fault::ResultOutside) {
            node.unstored.insert(txn.0);
        } else {
            node.memory.results.insert(txn.0);
        }
        node.outbox.insert(Message::Reply { op: txn.0, ok: true });
    }

    fn abort(&self, s: &mut State, txn: Txn) {
        let node = &mut s.nodes[self.driver(txn)];
        let Some(last) = node.driving.remove(&txn) else { return };
        node.outbox.extend((0..=last).map(|part| Message::Decide { txn, part, commit: false }));
    }

    fn acked(&self, s: &mut State, txn: Txn, part: u8) {
        let node = &mut s.nodes[self.driver(txn)];
        if node.telling.get(&txn) != Some(&part) {
            return;
        }
        let next = part + 1;
        let is_last = usize::from(next) == self.op(txn.0).parts.len();
        if is_last || self.has(Fault::ForgottenEarly) {
            node.telling.remove(&txn);
            node.memory.decisions.remove(&txn);
        } else {
            node.telling.insert(txn, next);
            node.outbox.insert(Message::Decide { txn, part: next, commit: true });
        }
    }

    fn asked(&self, s: &mut State, txn: Txn, part: u8) {
        let node = &mut s.nodes[self.driver(txn)];
        let commit = node.memory.decisions.contains(&txn);
        // Undecided: it asks again.
        if commit || !node.driving.contains_key(&txn) {
            node.outbox.insert(Message::Told { txn, part, commit });
        }
    }

    // ---- the participant ------------------------------------------------------------------

    fn prepare(&self, s: &mut State, txn: Txn, part: u8) {
        let (at, row) = self.part(txn, part);
        let holder = self.locked_by(&s.nodes[at], at, row);
        let node = &mut s.nodes[at];
        let free = holder.is_none_or(|holder| holder == txn);
        if !free && self.has(Fault::HolderWaits) {
            node.waiting.insert((txn, part));
            return;
        }
        if free {
            node.memory.prepared.insert((txn, part));
        }
        node.outbox.insert(Message::Vote { txn, part, yes: free });
    }

    fn end(&self, s: &mut State, txn: Txn, part: u8, commit: bool) {
        let (at, row) = self.part(txn, part);
        let memory = &mut s.nodes[at].memory;
        if memory.prepared.remove(&(txn, part)) {
            memory.outcomes.insert((txn, commit));
            if commit {
                memory.rows.insert(row);
            }
        }
    }

    // ---- steps ----------------------------------------------------------------------------

    fn deliver(&self, s: &mut State, message: Message) {
        match message {
            Message::Request { op } => self.request(s, op),
            Message::Reply { op, ok } => {
                s.clients[usize::from(op)].1.get_or_insert(ok);
            }
            Message::Prepare { txn, part } => self.prepare(s, txn, part),
            Message::Vote { txn, part, yes } => self.voted(s, txn, part, yes),
            Message::Decide { txn, part, commit } => {
                self.end(s, txn, part, commit);
                if commit {
                    let at = self.part(txn, part).0;
                    s.nodes[at].outbox.insert(Message::Ack { txn, part });
                }
            }
            Message::Ack { txn, part } => self.acked(s, txn, part),
            Message::Ask { txn, part } => self.asked(s, txn, part),
            Message::Told { txn, part, commit } => self.end(s, txn, part, commit),
        }
    }

    /// The step ends: what has nothing to wait for leaves, and answers to nobody go nowhere.
    fn settle(&self, s: &mut State) {
        for node in &mut s.nodes {
            if node.memory == node.disk || self.has(Fault::ReplyBeforeFlush) {
                s.net.append(&mut node.outbox);
            }
        }
        let (nodes, clients) = (&s.nodes, &s.clients);
        let late: BTreeSet<(Txn, u8)> = s.net.iter().filter_map(Message::as_prepare).collect();
        s.net.retain(|message| match *message {
            Message::Vote { txn, part, .. } => {
                nodes[self.driver(txn)].driving.get(&txn) == Some(&part)
            }
            Message::Ack { txn, part } => nodes[self.driver(txn)].telling.get(&txn) == Some(&part),
            Message::Ask { txn, part } | Message::Told { txn, part, .. } => {
                nodes[self.part(txn, part).0].memory.prepared.contains(&(txn, part))
            }
            Message::Reply { op, .. } | Message::Request { op } => {
                // A request that comes after its answer is a retry, too: it may stay.
                clients[usize::from(op)].1.is_none() || matches!(message, Message::Request { .. })
            }
            // One that finds nothing, and will find nothing, only asks for an ack.
            Message::Decide { txn, part, .. } => {
                let votes = &nodes[self.part(txn, part).0];
                votes.memory.prepared.contains(&(txn, part))
                    || votes.disk.prepared.contains(&(txn, part))
                    || late.contains(&(txn, part))
                    || nodes[self.driver(txn)].telling.get(&txn) == Some(&part)
            }
            Message::Prepare { .. } => true,
        });
    }

    fn crash(&self, s: &mut State, at: usize) {
        s.crashes += 1;
        let disk = std::mem::take(&mut s.nodes[at].disk);
        let telling = disk.decisions.iter().map(|txn| (*txn, 0)).collect();
        s.nodes[at] = Node { memory: disk.clone(), disk, telling, ..Node::default() };
        // A client's connection breaks with what was sent on it. A peer may still have its
        // request in a queue.
        s.net.retain(|m| !matches!(m, Message::Request { op } if self.op(*op).driver == at));
    }

    fn is_asked(&self, s: &State, txn: Txn, part: u8) -> bool {
        s.net.iter().any(|message| match *message {
            Message::Ask { txn: t, part: p } | Message::Told { txn: t, part: p, .. } => {
                (t, p) == (txn, part)
            }
            _ => false,
        })
    }

    fn node_actions(&self, s: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &s.nodes[at];
        for op in &node.parked {
            let row = self.op(*op).own;
            if row.is_none_or(|row| self.locked_by(node, at, row).is_none()) {
                actions.push(Action::Rerun(*op));
            }
        }
        for (txn, part) in &node.waiting {
            if self.locked_by(node, at, self.part(*txn, *part).1).is_none() {
                actions.push(Action::RerunPrepare(*txn, *part));
            }
        }
        if s.timeouts < self.timeouts && !self.has(Fault::HolderWaits) {
            let undecided = node.driving.keys().filter(|txn| !node.unlogged.contains(txn));
            actions.extend(undecided.map(|txn| Action::Timeout(*txn)));
        }
        actions.extend(node.telling.keys().map(|txn| Action::Tell(*txn)));
        if !self.has(Fault::NobodyAsks) {
            let in_doubt = node.memory.prepared.iter().filter(|(t, p)| !self.is_asked(s, *t, *p));
            actions.extend(in_doubt.map(|(txn, part)| Action::Ask(*txn, *part)));
        }
        if node.memory != node.disk || !node.outbox.is_empty() {
            actions.push(Action::Flush(at));
        }
        actions.extend(node.unlogged.iter().map(|txn| Action::Log(*txn)));
        actions.extend(node.unstored.iter().map(|op| Action::Store(*op)));
        if s.crashes < self.crashes {
            actions.push(Action::Crash(at));
        }
    }
}

impl Model for Commit {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut nodes = vec![Node::default(); self.shards];
        for (at, row) in &self.rows {
            nodes[*at].disk.rows.insert(*row);
            nodes[*at].memory.rows.insert(*row);
        }
        vec![State {
            nodes,
            net: BTreeSet::new(),
            clients: vec![(0, None); self.operations.len()],
            begun: vec![0; self.operations.len()],
            crashes: 0,
            timeouts: 0,
            doubled: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for (op, (sent, answer)) in s.clients.iter().enumerate() {
            if *sent < self.sends && answer.is_none() {
                actions.push(Action::Send(op as u8));
            }
        }
        for (n, message) in s.net.iter().enumerate() {
            actions.push(Action::DeliverNth(n));
            let is_prepare = matches!(message, Message::Prepare { .. });
            if is_prepare && self.has(Fault::PrepareTwice) && !s.doubled {
                actions.push(Action::DoubleNth(n));
            }
        }
        (0..self.shards).for_each(|at| self.node_actions(s, at, actions));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Send(op) => {
                s.clients[usize::from(op)].0 += 1;
                s.net.insert(Message::Request { op });
            }
            Action::DeliverNth(n) => {
                let message = *s.net.iter().nth(n)?;
                s.net.remove(&message);
                self.deliver(&mut s, message);
            }
            Action::DoubleNth(n) => {
                s.doubled = true;
                let message = *s.net.iter().nth(n)?;
                self.deliver(&mut s, message);
            }
            Action::Rerun(op) => {
                s.nodes[self.op(op).driver].parked.remove(&op);
                self.run(&mut s, op);
            }
            Action::RerunPrepare(txn, part) => {
                s.nodes[self.part(txn, part).0].waiting.remove(&(txn, part));
                self.prepare(&mut s, txn, part);
            }
            Action::Timeout(txn) => {
                s.timeouts += 1;
                self.abort(&mut s, txn);
            }
            Action::Tell(txn) => {
                let node = &mut s.nodes[self.driver(txn)];
                let part = *node.telling.get(&txn)?;
                node.outbox.insert(Message::Decide { txn, part, commit: true });
            }
            Action::Ask(txn, part) => {
                s.nodes[self.part(txn, part).0].outbox.insert(Message::Ask { txn, part });
            }
            Action::Flush(at) => {
                let node = &mut s.nodes[at];
                node.disk = node.memory.clone();
            }
            Action::Crash(at) => self.crash(&mut s, at),
            Action::Log(txn) => self.log(&mut s, txn),
            Action::Store(op) => {
                let node = &mut s.nodes[self.op(op).driver];
                node.unstored.remove(&op);
                node.memory.results.insert(op);
            }
        }
        self.settle(&mut s);
        (s != *last).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody decides differently", |_, s: &State| {
                let outcomes = || s.nodes.iter().flat_map(|node| &node.memory.outcomes);
                outcomes().all(|(txn, commit)| outcomes().all(|o| *o != (*txn, !commit)))
            }),
            Property::always("an answer is durable", |m: &Commit, s: &State| {
                s.answered(true).all(|op| m.commits(&s.nodes[m.op(op).driver].disk, op) > 0)
            }),
            Property::always("a refusal is true", |m: &Commit, s: &State| {
                s.answered(false).all(|op| m.commits(&s.nodes[m.op(op).driver].memory, op) == 0)
            }),
            Property::always("at most one execution", |m: &Commit, s: &State| {
                (0..m.operations.len() as u8)
                    .all(|op| m.commits(&s.nodes[m.op(op).driver].memory, op) <= 1)
            }),
            Property::always("no holder waits for a lock", |_, s: &State| {
                s.nodes.iter().all(|node| node.waiting.is_empty())
            }),
            Property::always("who reads sees what was answered", |m: &Commit, s: &State| {
                s.answered(true).all(|op| m.is_seen(s, op))
            }),
            Property::always("a row is set once", |_, s: &State| {
                s.nodes.iter().all(|node| node.set_once())
            }),
            Property::sometimes("all are answered", |_, s: &State| {
                s.clients.iter().all(|(_, answer)| answer.is_some()) && s.is_quiet()
            }),
            Property::sometimes("a row is in doubt", |m: &Commit, s: &State| {
                (s.crashes > 0 || m.crashes == 0)
                    && s.nodes.iter().any(|node| {
                        let prepared = &node.memory.prepared;
                        prepared.iter().any(|(t, _)| !s.nodes[m.driver(*t)].driving.contains_key(t))
                    })
            }),
        ]
    }
}

impl Commit {
    /// How often an operation was committed, by a driver's journal.
    fn commits(&self, journal: &Journal, op: u8) -> usize {
        let outcomes = journal.outcomes.iter();
        outcomes.filter(|((of, _), commit)| *of == op && *commit).count()
    }

    /// Whoever reads a row of the operation now waits, or sees its effect (rule 14).
    fn is_seen(&self, s: &State, op: u8) -> bool {
        self.op(op).parts.iter().all(|(at, row)| {
            let node = &s.nodes[*at];
            let waits = self.locked_by(node, *at, *row).is_some();
            (waits && !self.has(Fault::ReadIgnoresPrepared)) || self.commits(&node.memory, op) > 0
        })
    }
}

impl Node {
    /// No transaction is prepared again after its end.
    fn set_once(&self) -> bool {
        let ended = |txn: &Txn| self.memory.outcomes.contains(&(*txn, true));
        self.memory.prepared.iter().all(|(txn, _)| !ended(txn))
    }
}

impl State {
    fn answered(&self, ok: bool) -> impl Iterator<Item = u8> {
        let answers = self.clients.iter().enumerate();
        answers.filter(move |(_, (_, a))| *a == Some(ok)).map(|(op, _)| op as u8)
    }

    /// Nothing is prepared, locked, parked or to be told.
    pub fn is_quiet(&self) -> bool {
        self.nodes.iter().all(|node| {
            node.driving.is_empty()
                && node.parked.is_empty()
                && node.waiting.is_empty()
                && node.memory.prepared.is_empty()
                && node.memory.decisions.is_empty()
        })
    }
}
