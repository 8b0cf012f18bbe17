//! The shell of a node, with a role whose journal is as slow as the test wants.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Raw, Running, config, hello, listen, listen_at, watchdog};
use saker_rpc::hello::REFUSED_BUSY;
use saker_rpc::{
    Bytes, CallError, CallId, Conditions, ConnId, FlushDone, Frame, Input, NodeNumber, Outbox,
    RoleKind, Shell, StateMachine, StopHandle,
};
use saker_runtime::time::{self, Time};

/// Appends one byte to the journal, answers with the journal's end.
const WRITE: u16 = 1;
/// Answers at once with the journal's end, without waiting for it.
const READ: u16 = 2;
/// Appends, then sends a WRITE to the node in the body; answers with the end of that.
const RELAY: u16 = 3;
/// Gets no answer.
const SWALLOW: u16 = 4;
/// As RELAY, with SWALLOW.
const RELAY_SWALLOW: u16 = 5;
/// Answers with as many bytes of payload as the body says.
const LOAD: u16 = 6;
/// As WRITE, but the answer waits until the journal is written only.
const DELAY: u16 = 7;

const RELAY_TIME: Duration = Duration::from_millis(300);

/// What a test knows about a node, and how it slows it down.
#[derive(Default)]
struct Journal {
    durable: AtomicU64,
    /// Flushes do not end while this is set.
    stuck: AtomicBool,
    flush_us: AtomicU64,
    writes: AtomicU64,
    inline: AtomicU64,
    background: AtomicU64,
    steps: AtomicU64,
    closed: AtomicU64,
    results: Mutex<Vec<Result<u16, CallError>>>,
}

impl Journal {
    fn work(&self, end: u64) {
        // Real time: a disk.
        std::thread::sleep(Duration::from_micros(self.flush_us.load(SeqCst)));
        while self.stuck.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.durable.store(end, SeqCst);
    }
}

type Addrs = Arc<Mutex<BTreeMap<NodeNumber, SocketAddr>>>;

struct Toy {
    journal: Arc<Journal>,
    addrs: Addrs,
    appended: u64,
    /// Up to the last WRITE.
    at_once: u64,
    written: u64,
    durable: u64,
    flushing: bool,
    relayed: BTreeMap<CallId, (ConnId, Frame)>,
}

fn number(n: u64) -> Bytes {
    Bytes::copy_from_slice(&n.to_le_bytes())
}

fn read(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

impl Toy {
    fn request(&mut self, conn: ConnId, frame: Frame, now: Time, out: &mut Outbox) {
        let head = frame.without_content();
        match frame.op {
            WRITE => {
                self.appended += 1;
                self.at_once = self.appended;
                out.reply(conn, frame.reply(0, number(self.appended), Bytes::new()));
            }
            DELAY => {
                self.appended += 1;
                let reply = frame.reply(0, number(self.appended), Bytes::new());
                out.reply_when_written(conn, reply);
            }
            // Last in its step, so that `after` concerns nothing else.
            READ => {
                out.after(Conditions::NONE);
                out.reply(conn, frame.reply(0, number(self.appended), Bytes::new()));
            }
            RELAY | RELAY_SWALLOW => {
                self.appended += 1;
                self.at_once = self.appended;
                let op = if frame.op == RELAY { WRITE } else { SWALLOW };
                let to = NodeNumber(read(&frame.body) as u32);
                let (body, deadline) = (number(self.appended), now + RELAY_TIME);
                let call = out.call(to, op, 0, body, Bytes::new(), deadline);
                self.relayed.insert(call, (conn, head));
            }
            LOAD => {
                let payload = vec![5; read(&frame.body) as usize];
                out.reply(conn, frame.reply(0, Bytes::new(), payload.into()));
            }
            _ => {}
        }
    }
}

impl StateMachine for Toy {
    fn step(&mut self, now: Time, _: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        self.journal.steps.fetch_add(1, SeqCst);
        for input in inputs.drain(..) {
            match input {
                Input::Request { conn, frame, .. } => self.request(conn, frame, now, out),
                Input::Reply { call, result } => {
                    let (conn, head) = self.relayed.remove(&call).expect("ends exactly once");
                    let status = u16::from(result.is_err());
                    let body = result.as_ref().map_or_else(|_| Bytes::new(), |f| f.body.clone());
                    self.journal.results.lock().unwrap().push(result.map(|f| f.status));
                    out.reply(conn, head.reply(status, body, Bytes::new()));
                }
                Input::Closed { .. } => {
                    self.journal.closed.fetch_add(1, SeqCst);
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn address(&self, to: NodeNumber) -> Option<SocketAddr> {
        self.addrs.lock().unwrap().get(&to).copied()
    }

    fn appended(&self) -> u64 {
        self.appended
    }

    fn durable(&self) -> u64 {
        self.durable
    }

    fn written(&self) -> u64 {
        self.written.max(self.durable)
    }

    fn flushed_at_once(&self) -> u64 {
        self.at_once
    }

    fn write(&mut self) -> io::Result<()> {
        self.journal.writes.fetch_add(1, SeqCst);
        self.written = self.appended;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        assert!(!self.flushing, "one flush at a time");
        self.journal.inline.fetch_add(1, SeqCst);
        self.journal.work(self.appended);
        self.durable = self.appended;
        Ok(())
    }

    fn flush_begin(&mut self, done: FlushDone) -> io::Result<()> {
        assert!(!std::mem::replace(&mut self.flushing, true), "one flush at a time");
        self.journal.background.fetch_add(1, SeqCst);
        let (journal, end) = (self.journal.clone(), self.appended);
        std::thread::spawn(move || {
            journal.work(end);
            done.notify();
        });
        Ok(())
    }

    fn flush_finish(&mut self) -> io::Result<()> {
        assert!(std::mem::replace(&mut self.flushing, false));
        self.durable = self.journal.durable.load(SeqCst);
        Ok(())
    }
}

/// A node that runs.
struct Node {
    journal: Arc<Journal>,
    addr: SocketAddr,
    running: Option<Running>,
}

impl Node {
    fn start(number: u32, addrs: &Addrs) -> Node {
        Node::start_with(number, addrs, |_| {})
    }

    fn start_with(
        number: u32,
        addrs: &Addrs,
        set: impl FnOnce(&mut saker_rpc::ShellConfig),
    ) -> Node {
        let (listener, addr) = match addrs.lock().unwrap().get(&NodeNumber(number)) {
            Some(addr) => (listen_at(*addr), *addr),
            None => listen(),
        };
        addrs.lock().unwrap().insert(NodeNumber(number), addr);
        let mut config = config(number);
        set(&mut config);
        let journal = Arc::new(Journal::default());
        let (its, addrs) = (journal.clone(), addrs.clone());
        let role = move || Toy {
            journal: its,
            addrs,
            appended: 0,
            at_once: 0,
            written: 0,
            durable: 0,
            flushing: false,
            relayed: BTreeMap::new(),
        };
        let running = Some(Running::start(listener, config, role));
        Node { journal, addr, running }
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_lone_request_is_flushed_inline_and_answered_after_it() {
    let _watchdog = watchdog(60);
    let node = Node::start(1, &Addrs::default());
    let mut raw = Raw::client(node.addr);
    for call in 1..=100 {
        raw.request(call, WRITE, b"");
        let reply = raw.receive().unwrap();
        assert_eq!((reply.call, read(&reply.body)), (call, call));
        assert!(node.journal.durable.load(SeqCst) >= call);
    }
    assert_eq!(node.journal.inline.load(SeqCst), 100);
    assert_eq!(node.journal.background.load(SeqCst), 0);
}

#[test]
fn nothing_leaves_while_the_flush_lasts() {
    let _watchdog = watchdog(60);
    let node = Node::start(1, &Addrs::default());
    let (mut raw, mut other) = (Raw::client(node.addr), Raw::client(node.addr));
    node.journal.stuck.store(true, SeqCst);
    raw.request(1, WRITE, b"");
    assert!(raw.silent(Duration::from_millis(100)), "an answer before the journal");
    other.request(1, WRITE, b"");
    assert!(other.silent(Duration::from_millis(100)), "an answer before the journal");
    node.journal.stuck.store(false, SeqCst);
    assert_eq!(read(&raw.receive().unwrap().body), 1);
    assert_eq!(read(&other.receive().unwrap().body), 2);
}

/// Many clients keep the node busy: flushes run behind the next batches, and no reply is early.
#[test]
fn a_busy_node_flushes_in_the_background() {
    let _watchdog = watchdog(120);
    let node = Node::start(1, &Addrs::default());
    node.journal.flush_us.store(2_000, SeqCst);
    let work = |addr, journal: Arc<Journal>| {
        std::thread::spawn(move || {
            let mut raw = Raw::client(addr);
            let (depth, total) = (32, 500);
            (1..=depth).for_each(|call| raw.request(call, WRITE, b""));
            let mut last = 0;
            for call in 1..=total {
                let reply = raw.receive().unwrap();
                assert_eq!(reply.call, call, "replies in the order of their positions");
                let position = read(&reply.body);
                assert!(position > last && journal.durable.load(SeqCst) >= position);
                last = position;
                if call + depth <= total {
                    raw.request(call + depth, WRITE, b"");
                }
            }
        })
    };
    let clients: Vec<_> = (0..4).map(|_| work(node.addr, node.journal.clone())).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let background = node.journal.background.load(SeqCst);
    assert!(background > 0, "never in the background");
    // 2000 writes in batches: far fewer flushes.
    let flushes = background + node.journal.inline.load(SeqCst);
    assert!(flushes < 1_000, "{flushes} flushes");
}

/// Nobody waits for the flush, and it comes all the same.
#[test]
fn what_need_only_be_written_is_answered_before_the_flush() {
    let _watchdog = watchdog(60);
    let node = Node::start(1, &Addrs::default());
    let mut raw = Raw::client(node.addr);
    node.journal.stuck.store(true, SeqCst);
    for call in 1..=3 {
        raw.request(call, DELAY, b"");
        assert_eq!(read(&raw.receive().unwrap().body), call);
    }
    assert_eq!(node.journal.durable.load(SeqCst), 0);
    assert!(node.journal.writes.load(SeqCst) >= 1);
    node.journal.stuck.store(false, SeqCst);
    wait_until("the flush", || node.journal.durable.load(SeqCst) == 3);
    // The node need not have been idle: others are served meanwhile.
    assert_eq!(node.journal.inline.load(SeqCst), 0);
}

#[test]
fn who_waits_for_the_flush_does_not_wait_for_the_delay() {
    let _watchdog = watchdog(60);
    let node = Node::start(1, &Addrs::default());
    let mut raw = Raw::client(node.addr);
    for call in 1..=20 {
        raw.request(call, if call % 2 == 0 { WRITE } else { DELAY }, b"");
        assert_eq!(read(&raw.receive().unwrap().body), call);
        if call % 2 == 0 {
            assert!(node.journal.durable.load(SeqCst) >= call);
        }
    }
    // A role that appends what must be flushed does not delay what comes after it either.
    let frames = [(21, WRITE), (22, DELAY)]
        .map(|(call, op)| Frame { call, ..Frame::request(op, 0, Bytes::new(), Bytes::new()) });
    let bytes: Vec<u8> = frames.iter().flat_map(|f| f.to_bytes().to_vec()).collect();
    node.journal.stuck.store(true, SeqCst);
    io::Write::write_all(&mut raw.stream, &bytes).unwrap();
    assert!(raw.silent(Duration::from_millis(50)), "it depends on what is not durable");
    node.journal.stuck.store(false, SeqCst);
    assert_eq!([raw.receive().unwrap().call, raw.receive().unwrap().call], [21, 22]);
}

/// A loss of power takes a bounded amount of work, however slow the disk.
#[test]
fn while_the_disk_does_not_keep_up_nothing_is_answered_before_the_flush() {
    let _watchdog = watchdog(60);
    let node = Node::start(1, &Addrs::default());
    let mut raw = Raw::client(node.addr);
    node.journal.stuck.store(true, SeqCst);
    raw.request(1, DELAY, b"");
    assert_eq!(raw.receive().unwrap().call, 1);
    wait_until("the flush", || node.journal.background.load(SeqCst) == 1);
    assert!(raw.silent(saker_rpc::node::lag::LAG_MAX));
    raw.request(2, DELAY, b"");
    assert!(raw.silent(Duration::from_millis(50)));
    node.journal.stuck.store(false, SeqCst);
    assert_eq!(raw.receive().unwrap().call, 2);
}

/// A reply that was said to depend on nothing does not wait for the flush that others wait for.
#[test]
fn what_depends_on_nothing_leaves_before_the_flush() {
    let _watchdog = watchdog(60);
    let node = Node::start(1, &Addrs::default());
    let mut raw = Raw::client(node.addr);
    node.journal.stuck.store(true, SeqCst);
    // One segment, so one batch: WRITE is answered when durable, READ before.
    let frames = [(1, WRITE), (2, READ)]
        .map(|(call, op)| Frame { call, ..Frame::request(op, 0, Bytes::new(), Bytes::new()) });
    let bytes: Vec<u8> = frames.iter().flat_map(|f| f.to_bytes().to_vec()).collect();
    io::Write::write_all(&mut raw.stream, &bytes).unwrap();
    assert_eq!(raw.receive().unwrap().call, 2);
    assert!(raw.silent(Duration::from_millis(50)));
    node.journal.stuck.store(false, SeqCst);
    assert_eq!(raw.receive().unwrap().call, 1);
}

#[test]
fn calls_to_others_and_to_oneself_wait_for_the_journal() {
    let _watchdog = watchdog(60);
    let addrs = Addrs::default();
    let (one, two) = (Node::start(1, &addrs), Node::start(2, &addrs));
    for to in [2, 1] {
        let target = if to == 1 { &one } else { &two };
        let mut raw = Raw::client(one.addr);
        raw.request(1, RELAY, &number(to));
        let first = read(&raw.receive().unwrap().body);
        let steps = target.journal.steps.load(SeqCst);
        one.journal.stuck.store(true, SeqCst);
        raw.request(2, RELAY, &number(to));
        assert!(raw.silent(Duration::from_millis(50)));
        if to == 2 {
            assert_eq!(two.journal.steps.load(SeqCst), steps, "the request has left too early");
        }
        one.journal.stuck.store(false, SeqCst);
        let reply = raw.receive().unwrap();
        assert_eq!(reply.status, 0);
        assert!(read(&reply.body) > first);
    }
    assert_eq!(*one.journal.results.lock().unwrap(), [Ok(0); 4]);
}

/// The call's time is up while it waits for the journal: it ends so, and once.
#[test]
fn a_call_that_waited_too_long_ends_all_the_same() {
    let _watchdog = watchdog(60);
    let addrs = Addrs::default();
    let (one, _two) = (Node::start(1, &addrs), Node::start(2, &addrs));
    let mut raw = Raw::client(one.addr);
    raw.request(1, RELAY, &number(2));
    assert_eq!(raw.receive().unwrap().status, 0);
    one.journal.flush_us.store(RELAY_TIME.as_micros() as u64 * 2, SeqCst);
    raw.request(2, RELAY, &number(2));
    assert_eq!(raw.receive().unwrap().status, 1);
    one.journal.flush_us.store(0, SeqCst);
    raw.request(3, RELAY, &number(2));
    assert_eq!(raw.receive().unwrap().status, 0);
    let expected = [Ok(0), Err(CallError::Timeout), Ok(0)];
    assert_eq!(*one.journal.results.lock().unwrap(), expected);
}

#[test]
fn calls_end_once_whatever_happens_to_the_peer() {
    let _watchdog = watchdog(60);
    let addrs = Addrs::default();
    let one = Node::start(1, &addrs);
    let mut two = Node::start(2, &addrs);
    let mut raw = Raw::client(one.addr);
    let mut relay = |call, op, to: u64| {
        raw.request(call, op, &number(to));
        raw.receive().unwrap().status
    };
    assert_eq!(relay(1, RELAY, 2), 0);
    // No answer in time; the connection goes on.
    assert_eq!(relay(2, RELAY_SWALLOW, 2), 1);
    assert_eq!(relay(3, RELAY, 2), 0);
    // Nobody has this number; and a node that answers with another number is not spoken to.
    assert_eq!(relay(4, RELAY, 8), 1);
    addrs.lock().unwrap().insert(NodeNumber(9), two.addr);
    assert_eq!(relay(5, RELAY, 9), 1);
    // The peer goes while the call is under way.
    let stop = two.running.as_ref().unwrap().stop.clone();
    let killer = std::thread::spawn(move || {
        // Real time: the call is under way.
        std::thread::sleep(RELAY_TIME / 6);
        stop.stop();
    });
    assert_eq!(relay(6, RELAY_SWALLOW, 2), 1);
    killer.join().unwrap();
    drop(two.running.take());
    assert_eq!(relay(7, RELAY, 2), 1);
    let expected = [
        Ok(0),
        Err(CallError::Timeout),
        Ok(0),
        Err(CallError::Unreachable),
        Err(CallError::Refused),
        Err(CallError::Disconnected),
        Err(CallError::Unreachable),
    ];
    assert_eq!(*one.journal.results.lock().unwrap(), expected);
    // It comes back, here and then elsewhere.
    let two = Node::start(2, &addrs);
    wait_until("a call after the restart", || relay(8, RELAY, 2) == 0);
    drop(two);
    addrs.lock().unwrap().remove(&NodeNumber(2));
    let _two = Node::start(2, &addrs);
    wait_until("a call after the move", || relay(9, RELAY, 2) == 0);
}

/// While a connection stands, the peer moves: the next call goes to the new place, and only there.
#[test]
fn a_call_follows_a_peer_that_moves() {
    let _watchdog = watchdog(60);
    let addrs = Addrs::default();
    let (one, old) = (Node::start(1, &addrs), Node::start(2, &addrs));
    let mut raw = Raw::client(one.addr);
    raw.request(1, RELAY, &number(2));
    assert_eq!(raw.receive().unwrap().status, 0);
    addrs.lock().unwrap().remove(&NodeNumber(2));
    let new = Node::start(2, &addrs);
    raw.request(2, RELAY, &number(2));
    assert_eq!(raw.receive().unwrap().status, 0);
    assert_eq!(*one.journal.results.lock().unwrap(), [Ok(0), Ok(0)]);
    assert_eq!(old.journal.durable.load(SeqCst), 1);
    assert_eq!(new.journal.durable.load(SeqCst), 1);
    wait_until("the old connection's end", || old.journal.closed.load(SeqCst) == 1);
}

/// A peer that asks for much and reads late gets all of it; others are served meanwhile.
#[test]
fn a_peer_that_reads_late_waits_for_itself() {
    let _watchdog = watchdog(60);
    let node = Node::start(1, &Addrs::default());
    let (mut late, mut other) = (Raw::client(node.addr), Raw::client(node.addr));
    let (calls, bytes) = (64, 1 << 20);
    (1..=calls).for_each(|call| late.request(call, LOAD, &number(bytes)));
    for call in 1..=50 {
        other.request(call, WRITE, b"");
        assert_eq!(other.receive().unwrap().call, call);
    }
    for call in 1..=calls {
        let reply = late.receive().expect("not closed");
        assert_eq!((reply.call, reply.payload.len() as u64), (call, bytes));
    }
}

/// It is not read while much waits for it, so what waits stays far below all it asks for.
#[test]
fn a_peer_that_reads_late_is_not_read() {
    let _watchdog = watchdog(60);
    let node = Node::start_with(1, &Addrs::default(), |c| {
        c.batch_inputs_max = 8;
        c.out_bytes_max = 24 << 20;
    });
    let mut late = Raw::client(node.addr);
    (1..=80).for_each(|call| late.request(call, LOAD, &number(1 << 20)));
    // Time enough to answer all of it.
    // Real time: enough to answer all of it; if not, that passes, too.
    std::thread::sleep(Duration::from_millis(200));
    (1..=80).for_each(|call| assert_eq!(late.receive().expect("not closed").call, call));
}

#[test]
fn a_peer_that_does_not_read_is_closed_at_the_bound() {
    let _watchdog = watchdog(60);
    let node = Node::start_with(1, &Addrs::default(), |c| c.out_bytes_max = 1 << 20);
    let mut deaf = Raw::client(node.addr);
    (1..=40).for_each(|call| deaf.request(call, LOAD, &number(1 << 20)));
    wait_until("the end of the connection", || node.journal.closed.load(SeqCst) == 1);
    let mut other = Raw::client(node.addr);
    other.request(1, WRITE, b"");
    assert_eq!(other.receive().unwrap().call, 1);
}

/// Asks for what gets no answer, and waits until the node has taken that.
fn swallowed(raw: &mut Raw) {
    raw.request(1, SWALLOW, b"");
    raw.request(2, READ, b"");
    assert_eq!(raw.receive().unwrap().call, 2);
}

#[test]
fn who_is_idle_makes_room_and_who_waits_does_not() {
    let _watchdog = watchdog(60);
    let node = Node::start_with(1, &Addrs::default(), |c| {
        (c.bounds.clients_max, c.bounds.idle_min) = (2, Duration::ZERO);
    });
    let (mut busy, mut idle) = (Raw::client(node.addr), Raw::client(node.addr));
    swallowed(&mut busy);
    let mut third = Raw::client(node.addr);
    assert!(idle.is_closed());
    swallowed(&mut third);
    let refusal = Raw::dial(node.addr).shake(&hello(RoleKind::Client, 0)).unwrap();
    assert_eq!(refusal.status, REFUSED_BUSY);
    // The cluster's own nodes have room of their own.
    let coordinator = hello(RoleKind::Coordinator, saker_types::NodeId::Coordinator.to_u32());
    assert_eq!(Raw::dial(node.addr).shake(&coordinator).unwrap().status, 0);
    drop(third);
    wait_until("room", || node.journal.closed.load(SeqCst) >= 2);
    Raw::client(node.addr);
    busy.request(3, WRITE, b"");
    assert_eq!(busy.receive().unwrap().call, 3);
}

#[test]
fn only_a_client_that_wants_nothing_is_idle() {
    let _watchdog = watchdog(60);
    let node = Node::start_with(1, &Addrs::default(), |c| c.bounds.idle_max = Duration::ZERO);
    let (mut busy, mut idle) = (Raw::client(node.addr), Raw::client(node.addr));
    swallowed(&mut busy);
    let mut member = Raw::dial(node.addr);
    let coordinator = hello(RoleKind::Coordinator, saker_types::NodeId::Coordinator.to_u32());
    assert_eq!(member.shake(&coordinator).unwrap().status, 0);
    assert!(idle.is_closed());
    for raw in [&mut busy, &mut member] {
        raw.request(3, READ, b"");
        assert_eq!(raw.receive().unwrap().call, 3);
    }
}

/// What a peer makes a node send, and does not read, is given up after a time.
#[test]
fn a_peer_that_does_not_read_is_closed_in_time() {
    let _watchdog = watchdog(60);
    let short = Duration::from_millis(10);
    let node = Node::start_with(1, &Addrs::default(), |c| c.bounds.frame_time_max = short);
    let mut deaf = Raw::client(node.addr);
    (1..=20).for_each(|call| deaf.request(call, LOAD, &number(1 << 20)));
    wait_until("the end of the connection", || node.journal.closed.load(SeqCst) == 1);
}

/// At its end a node flushes and answers what it has executed.
#[test]
fn stopping_flushes_answers_and_says_goodbye() {
    let _watchdog = watchdog(60);
    let mut node = Node::start(1, &Addrs::default());
    let mut raw = Raw::client(node.addr);
    node.journal.stuck.store(true, SeqCst);
    raw.request(1, WRITE, b"");
    wait_until("the flush", || node.journal.inline.load(SeqCst) == 1);
    let running = node.running.take().unwrap();
    running.stop.stop();
    assert!(raw.silent(Duration::from_millis(30)));
    node.journal.stuck.store(false, SeqCst);
    drop(running);
    assert_eq!(read(&raw.receive().unwrap().body), 1);
    assert_eq!(raw.receive().unwrap().kind, saker_rpc::FrameKind::Goodbye);
    assert!(raw.receive().is_none());
}

/// A role with nothing but a deadline.
struct Ticker {
    next: Time,
    ticks: u32,
    stop: StopHandle,
}

impl StateMachine for Ticker {
    fn step(&mut self, now: Time, _: i64, _: &mut VecDeque<Input>, _: &mut Outbox) {
        if now >= self.next {
            self.ticks += 1;
            self.next = now + Duration::from_millis(5);
        }
        if self.ticks == 10 {
            self.stop.stop();
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(self.next)
    }

    fn address(&self, _: NodeNumber) -> Option<SocketAddr> {
        None
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

/// One `StopHandle` ends several shells, those that begin later, too; deadlines run without input.
#[test]
fn one_stop_ends_several_shells() {
    let _watchdog = watchdog(60);
    let stop = StopHandle::new();
    let ticks = |first: Duration| {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let role = Ticker { next: time::now() + first, ticks: 0, stop: stop.clone() };
            let mut shell = Shell::new(role, listen().0, config(1)).unwrap();
            shell.run(&stop).unwrap();
            shell.into_role().ticks
        })
    };
    let never = Duration::from_secs(3600);
    let running = [ticks(never), ticks(never), ticks(Duration::ZERO)];
    assert_eq!(running.map(|thread| thread.join().unwrap()), [0, 0, 10]);
    assert_eq!(ticks(never).join().unwrap(), 0);
}
