#![allow(clippy::unwrap_used)]

use super::*;
use crate::frame::{Frame, FrameKind};
use crate::node::{CallId, Conditions, Outbox, Outgoing};
use saker_runtime::time::Time;
use saker_types::{Class, Errno};

/// A driver with nothing but its transactions.
struct Bare {
    hub: Hub,
    map: Arc<ClusterMap>,
    ledger: Ledger,
    logged: Vec<What>,
    numbers: u64,
}

impl Driver for Bare {
    fn hub(&self) -> &Hub {
        &self.hub
    }
    fn node(&self) -> NodeId {
        NodeId::Coordinator
    }
    fn map(&self) -> &Arc<ClusterMap> {
        &self.map
    }
    fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }
    fn log(&mut self, what: What) {
        self.logged.push(what);
    }
    fn new_number(&mut self) -> Result<u64, Error> {
        self.numbers += 1;
        Ok(self.numbers)
    }
    fn released(&mut self, _: TxnId, _: Option<&Key>) {}
}

fn bare() -> Rc<RefCell<Bare>> {
    Rc::new(RefCell::new(Bare {
        hub: Hub::default(),
        map: Arc::default(),
        ledger: Ledger::default(),
        logged: Vec::new(),
        numbers: 0,
    }))
}

/// Runs a step; the decisions that were sent.
fn step(hub: &Hub, now: Time, out: &mut Outbox) -> Vec<(CallId, DecideReq)> {
    hub.begin(now, 0);
    while hub.run() > 0 {}
    hub.end(out);
    let sent = out
        .drain(Conditions::NONE, Conditions::NONE)
        .map(|(_, message)| message)
        .collect::<Vec<_>>();
    let decisions = sent.into_iter().filter_map(|message| match message {
        Outgoing::Call { call, frame, .. } => {
            Some((call, prost::Message::decode(frame.body).unwrap()))
        }
        Outgoing::Reply { .. } => None,
    });
    decisions.collect()
}

#[test]
fn a_transaction_that_is_dropped_is_aborted() {
    let driver = bare();
    let id = begin(&mut *driver.borrow_mut()).unwrap();
    let mut txn = Transaction::new(driver.clone(), id, None);
    txn.participants.push(Participant::Node(NodeId::Shard(0)));
    assert_eq!(driver.borrow().ledger.outcome(id.number).outcome, i32::from(TxnOutcome::Undecided));
    drop(txn);
    assert_eq!(driver.borrow().ledger.outcome(id.number).outcome, i32::from(TxnOutcome::Aborted));
    let hub = driver.borrow().hub.clone();
    let sent = step(&hub, Time::ZERO, &mut Outbox::new());
    assert!(matches!(sent[..], [(_, DecideReq { commit: false, .. })]), "{sent:?}");
}

#[test]
fn a_decision_that_is_refused_is_told_again() {
    let driver = bare();
    let hub = driver.borrow().hub.clone();
    let mut out = Outbox::new();
    let decision = Decision { number: 7, participants: vec![NodeId::Shard(0).to_u32()] };
    driver.borrow_mut().ledger.decisions.insert(7, decision.clone());
    deliver(&driver, decision);
    let mut now = Time::ZERO;
    for attempt in 0..3 {
        let sent = step(&hub, now, &mut out);
        let [(call, DecideReq { commit: true, number: 7, .. })] = sent[..] else {
            panic!("attempt {attempt}: {sent:?}")
        };
        let refusal = Error::from(Errno::EIO);
        assert!(refusal.is(Class::Final));
        let (status, body) = match attempt {
            2 => (0, Bytes::new()),
            _ => (refusal.errno().0, prost::Message::encode_to_vec(&refusal).into()),
        };
        let request = Frame::request(Op::Decide as u16, 0, Bytes::new(), Bytes::new());
        let reply = Frame { kind: FrameKind::Reply, status, body, ..request };
        hub.begin(now, 0);
        hub.replied(call, Ok(reply));
        assert!(step(&hub, now, &mut out).is_empty());
        let is_kept = driver.borrow().ledger.decisions.contains_key(&7);
        assert_eq!(is_kept, attempt < 2, "until all have acknowledged");
        now += REFUSED_PAUSE;
    }
    assert!(matches!(driver.borrow().logged[..], [What::DecisionEnd(7)]));
}
