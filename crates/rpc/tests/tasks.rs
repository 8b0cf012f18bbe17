//! Tasks of a role: calls that must succeed over peers that die, and two-phase commit.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use common::{Running, config, listen, listen_at, watchdog};
use prost::Message;
use saker_rpc::hub::Hub;
use saker_rpc::txn::{self, Driver, Ledger, Transaction};
use saker_rpc::{
    CallError, CallId, Conditions, FlushDone, Frame, Input, Outbox, Outgoing, StateMachine,
};
use saker_runtime::time::Time;
use saker_types::change::What;
use saker_types::inode::Locator;
use saker_types::placement::initial_slots;
use saker_types::wire::{At, DecideReq, Empty, Op, PrepareReq, TxnOutcome, Vote};
use saker_types::{ClusterMap, Errno, Error, Key, NodeId, TxnId};

/// A request that a hub sent.
struct Asked {
    call: CallId,
    to: NodeId,
    op: u16,
    body: Bytes,
    frame: Frame,
}

/// A hub with the test as the rest of the world.
struct World {
    hub: Hub,
    out: Outbox,
    now: Time,
}

impl World {
    fn new() -> World {
        World { hub: Hub::default(), out: Outbox::new(), now: Time::from_ns(1) }
    }

    /// One step, `pause` after the last one, with these answers; what was asked in it.
    fn step(
        &mut self,
        pause: Duration,
        answers: Vec<(CallId, Result<Frame, CallError>)>,
    ) -> Vec<Asked> {
        self.now += pause;
        self.hub.begin(self.now, 0);
        answers.into_iter().for_each(|(call, answer)| self.hub.replied(call, answer));
        self.hub.run();
        self.hub.end(&mut self.out);
        let asked = |(_, message)| match message {
            Outgoing::Call { call, to, frame, .. } => {
                let (to, op) = (NodeId::from_u32(to.0).unwrap(), frame.op);
                Asked { call, to, op, body: frame.body.clone(), frame }
            }
            Outgoing::Reply { .. } => panic!("nobody asked"),
        };
        self.out.drain(Conditions::NONE, Conditions::NONE).map(asked).collect()
    }

    /// The same with one answer, or none.
    fn answer(&mut self, asked: &Asked, answer: Result<&dyn Encoded, CallError>) -> Vec<Asked> {
        let reply = answer.map(|message| asked.frame.reply(0, message.bytes(), Bytes::new()));
        self.step(Duration::ZERO, vec![(asked.call, reply)])
    }

    fn refuse(&mut self, asked: &Asked, error: &Error) -> Vec<Asked> {
        let body = error.encode_to_vec().into();
        let reply = asked.frame.reply(error.errno().0, body, Bytes::new());
        self.step(Duration::ZERO, vec![(asked.call, Ok(reply))])
    }
}

trait Encoded {
    fn bytes(&self) -> Bytes;
}

impl<M: Message> Encoded for M {
    fn bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }
}

/// Starts `ask_until` and keeps what comes out.
fn asking(world: &World, payload: Bytes) -> Rc<RefCell<Option<Result<Vote, Error>>>> {
    let outcome = Rc::new(RefCell::new(None));
    let (keep, hub) = (outcome.clone(), world.hub.clone());
    world.hub.spawn(async move {
        let to = NodeId::Shard(1);
        let answer = hub.ask_until::<Vote>(to, Op::Prepare, 7, &Empty {}, payload).await;
        *keep.borrow_mut() = Some(answer);
    });
    outcome
}

const LONG: Duration = Duration::from_secs(1);

#[test]
fn what_must_succeed_is_asked_again_after_growing_pauses() {
    let mut world = World::new();
    let outcome = asking(&world, Bytes::new());
    let mut asked = world.step(Duration::ZERO, vec![]);
    let mut pauses = Vec::new();
    for n in 0..12 {
        let one = &asked[0];
        assert_eq!((one.to, one.op, asked.len()), (NodeId::Shard(1), Op::Prepare as u16, 1));
        let none = match n % 3 {
            0 => world.answer(one, Err(CallError::Disconnected)),
            1 => world.answer(one, Err(CallError::Timeout)),
            _ => world.refuse(one, &Error::retry("busy")),
        };
        assert!(none.is_empty(), "asked again without a pause");
        let pause = world.hub.next_timer().unwrap() - world.now;
        pauses.push(pause);
        let early = world.step(pause - Duration::from_nanos(1), vec![]);
        assert!(early.is_empty());
        asked = world.step(Duration::from_nanos(1), vec![]);
    }
    assert!(pauses.windows(2).all(|two| two[1] >= two[0]) && pauses[11] < LONG, "{pauses:?}");
    let vote = Vote { same: true, ..Vote::default() };
    assert!(world.answer(&asked[0], Ok(&vote)).is_empty());
    assert_eq!(*outcome.borrow(), Some(Ok(vote)));
    assert_eq!(world.hub.next_timer(), None);
}

#[test]
fn what_cannot_succeed_is_not_asked_again() {
    for end in [Error::new(Errno::ENOENT), Error::new(Errno::EOVERFLOW)] {
        let mut world = World::new();
        let outcome = asking(&world, Bytes::new());
        let asked = world.step(Duration::ZERO, vec![]);
        if end.errno() == Errno::ENOENT {
            world.refuse(&asked[0], &end);
        } else {
            world.answer(&asked[0], Err(CallError::TooLarge));
        }
        let got = outcome.borrow().clone().unwrap().unwrap_err();
        assert_eq!(got.errno(), end.errno());
        assert!(world.step(LONG, vec![]).is_empty());
    }
}

/// Transactions of a node that keeps nothing but what they need.
struct Toy {
    hub: Hub,
    map: Arc<ClusterMap>,
    ledger: Ledger,
    log: Vec<What>,
    released: Vec<(TxnId, Option<Key>)>,
}

impl Driver for Toy {
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
        self.log.push(what);
    }

    fn new_number(&mut self) -> Result<u64, Error> {
        Ok(77)
    }

    fn released(&mut self, txn: TxnId, own: Option<&Key>) {
        self.released.push((txn, own.cloned()));
    }
}

fn toy(world: &World) -> Rc<RefCell<Toy>> {
    let map = ClusterMap { hash_seed: 5, slots: initial_slots(2), ..ClusterMap::default() };
    let (hub, ledger) = (world.hub.clone(), Ledger::default());
    let (log, released) = (Vec::new(), Vec::new());
    Rc::new(RefCell::new(Toy { hub, map: Arc::new(map), ledger, log, released }))
}

/// A name that shard `no` owns.
fn name_on(map: &ClusterMap, no: u16) -> Bytes {
    (0..).map(|n: u32| Bytes::from(n.to_string())).find(|n| map.owner(1, n) == no).unwrap()
}

type Kept = Rc<RefCell<Option<Result<Bytes, Error>>>>;

/// A transaction over a name on each of both shards, whose own part ends in `applied`.
fn move_file(driver: &Rc<RefCell<Toy>>, applied: Result<Bytes, Error>) -> Kept {
    let id = txn::begin(&mut *driver.borrow_mut()).unwrap();
    let map = driver.borrow().map.clone();
    let names = [name_on(&map, 0), name_on(&map, 1)];
    let (kept, driver) = (Kept::default(), driver.clone());
    let (keep, hub) = (kept.clone(), driver.borrow().hub.clone());
    hub.spawn(async move {
        let work = async {
            let mut txn = Transaction::new(driver, id, None);
            for name in names {
                let at = At::below(Locator::default(), vec![name]);
                txn.prepare(PrepareReq { at, ..PrepareReq::default() }).await?;
            }
            txn.commit(|_| applied)
        };
        let outcome = work.await;
        *keep.borrow_mut() = Some(outcome);
    });
    kept
}

fn decides(asked: &[Asked]) -> Vec<(NodeId, bool)> {
    let one = |asked: &Asked| {
        assert_eq!(asked.op, Op::Decide as u16);
        let request = DecideReq::decode(asked.body.clone()).unwrap();
        assert_eq!((request.driver, request.number), (NodeId::Coordinator.to_u32(), 77));
        (asked.to, request.commit)
    };
    asked.iter().map(one).collect()
}

fn outcome(driver: &Rc<RefCell<Toy>>) -> TxnOutcome {
    driver.borrow().ledger.outcome(77).outcome()
}

const SHARDS: [NodeId; 2] = [NodeId::Shard(0), NodeId::Shard(1)];

#[test]
fn a_commit_is_logged_then_told_until_all_have_heard() {
    let mut world = World::new();
    let driver = toy(&world);
    assert_eq!(outcome(&driver), TxnOutcome::Aborted);
    let kept = move_file(&driver, Ok(Bytes::from_static(b"moved")));
    let first = world.step(Duration::ZERO, vec![]);
    let request = PrepareReq::decode(first[0].body.clone()).unwrap();
    assert_eq!((first[0].to, request.number), (SHARDS[0], 77));
    assert_eq!(outcome(&driver), TxnOutcome::Undecided);
    let second = world.answer(&first[0], Ok(&Vote::default()));
    assert_eq!(second[0].to, SHARDS[1]);
    assert!(driver.borrow().log.is_empty() && kept.borrow().is_none());
    let told = world.answer(&second[0], Ok(&Vote::default()));
    assert_eq!(*kept.borrow(), Some(Ok(Bytes::from_static(b"moved"))));
    assert_eq!(outcome(&driver), TxnOutcome::Committed);
    assert!(matches!(&driver.borrow().log[..], [What::Decision(d)] if d.participants.len() == 2));
    assert_eq!(driver.borrow().released.len(), 1);
    assert_eq!(decides(&told), [(SHARDS[0], true)]);
    // The participant is away for a while.
    world.answer(&told[0], Err(CallError::Disconnected));
    let again = world.step(LONG, vec![]);
    assert_eq!(decides(&again), [(SHARDS[0], true)]);
    let other = world.answer(&again[0], Ok(&Empty {}));
    assert_eq!(decides(&other), [(SHARDS[1], true)]);
    assert_eq!(outcome(&driver), TxnOutcome::Committed, "one has not heard of it");
    assert!(world.answer(&other[0], Ok(&Empty {})).is_empty());
    assert!(matches!(&driver.borrow().log[1..], [What::DecisionEnd(77)]));
    assert!(driver.borrow().ledger.decisions.is_empty());
}

#[test]
fn a_no_or_no_answer_aborts() {
    for lost in [true, false] {
        let mut world = World::new();
        let driver = toy(&world);
        let kept = move_file(&driver, Ok(Bytes::new()));
        let first = world.step(Duration::ZERO, vec![]);
        let second = world.answer(&first[0], Ok(&Vote::default()));
        let told = if lost {
            world.answer(&second[0], Err(CallError::Timeout))
        } else {
            world.refuse(&second[0], &Error::new(Errno::EEXIST))
        };
        // Also who may have voted yes without our hearing it.
        assert_eq!(decides(&told), [(SHARDS[0], false), (SHARDS[1], false)]);
        let errno = if lost { Errno::EAGAIN } else { Errno::EEXIST };
        assert_eq!(kept.borrow().clone().unwrap().unwrap_err().errno(), errno);
        assert_eq!(outcome(&driver), TxnOutcome::Aborted);
        assert!(driver.borrow().log.is_empty(), "an abort needs no record");
        assert_eq!(driver.borrow().released.len(), 1);
        // They are told once; who misses it asks.
        let lost: Vec<_> = told.iter().map(|a| (a.call, Err(CallError::Timeout))).collect();
        assert!(world.step(Duration::ZERO, lost).is_empty());
        assert!(world.step(LONG, vec![]).is_empty());
    }
}

#[test]
fn a_commit_that_cannot_be_applied_aborts() {
    let mut world = World::new();
    let driver = toy(&world);
    let kept = move_file(&driver, Err(Errno::ENOSPC.into()));
    let first = world.step(Duration::ZERO, vec![]);
    let second = world.answer(&first[0], Ok(&Vote::default()));
    let told = world.answer(&second[0], Ok(&Vote::default()));
    assert_eq!(decides(&told), [(SHARDS[0], false), (SHARDS[1], false)]);
    assert_eq!(kept.borrow().clone().unwrap().unwrap_err().errno(), Errno::ENOSPC);
    assert!(driver.borrow().log.is_empty());
}

/// Answers every request; or asks one question, until there is an answer.
struct Hubbed {
    hub: Hub,
    peer: Option<SocketAddr>,
    answered: Arc<AtomicU64>,
    asks: Option<mpsc::Sender<Result<Empty, Error>>>,
}

impl StateMachine for Hubbed {
    fn step(&mut self, now: Time, wall_ns: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        self.hub.begin(now, wall_ns);
        for input in inputs.drain(..) {
            match input {
                Input::Request { conn, frame, .. } => {
                    // The first requests are too much for it: it never answers them.
                    if self.answered.fetch_add(1, SeqCst) >= 2 {
                        self.hub.reply(conn, frame.reply(0, Bytes::new(), Bytes::new()));
                    }
                }
                Input::Reply { call, result } => self.hub.replied(call, result),
                Input::Closed { .. } => {}
            }
        }
        if let Some(told) = self.asks.take() {
            let hub = self.hub.clone();
            self.hub.spawn(async move {
                let to = NodeId::Shard(2);
                let answer = hub.ask_until(to, Op::Decide, 0, &Empty {}, Bytes::new()).await;
                told.send(answer).unwrap();
            });
        }
        self.hub.run();
        self.hub.end(out);
    }

    fn next_deadline(&self) -> Option<Time> {
        self.hub.next_timer()
    }

    fn address(&self, _: saker_rpc::NodeNumber) -> Option<SocketAddr> {
        self.peer
    }

    fn appended(&self) -> u64 {
        0
    }

    fn durable(&self) -> u64 {
        0
    }

    fn flush(&mut self) -> io::Result<()> {
        unreachable!("nothing is appended")
    }

    fn flush_begin(&mut self, _: FlushDone) -> io::Result<()> {
        unreachable!("nothing is appended")
    }

    fn flush_finish(&mut self) -> io::Result<()> {
        unreachable!("nothing is appended")
    }
}

/// The peer is not there, comes, dies with the request unanswered, twice, and answers at last.
#[test]
fn a_question_survives_a_peer_that_dies() {
    let _watchdog = watchdog(60);
    let (listener, addr) = listen();
    drop(listener);
    let (told, answer) = mpsc::channel();
    let role =
        move |peer, answered, asks| move || Hubbed { hub: Hub::default(), peer, answered, asks };
    let (one, two) = (NodeId::Shard(1).to_u32(), NodeId::Shard(2).to_u32());
    let asker = role(Some(addr), Arc::default(), Some(told));
    let _asker = Running::start(listen().0, config(one), asker);
    let answered = Arc::new(AtomicU64::new(0));
    for life in 1..=3 {
        // Real time: no answer may come meanwhile.
        std::thread::sleep(Duration::from_millis(30));
        assert!(answer.try_recv().is_err());
        let peer = role(None, answered.clone(), None);
        let running = Running::start(listen_at(addr), config(two), peer);
        while answered.load(SeqCst) < life {
            std::thread::sleep(Duration::from_millis(1));
        }
        if life == 3 {
            assert_eq!(answer.recv().unwrap(), Ok(Empty {}));
        }
        drop(running);
    }
    assert_eq!(answered.load(SeqCst), 3);
}
