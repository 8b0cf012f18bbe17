//! A service some of whose requests wait.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{Raw, config, hello, listen, watchdog};
use saker_rpc::service::ServiceLimits;
use saker_rpc::{
    Blocked, Bytes, CallError, Frame, Lane, Reactor, RoleKind, Service, ServiceConfig,
    ServiceOutcome, StopHandle, Transport, serve,
};
use saker_types::{Errno, Error};

/// Waits until the test opens the gate.
const READ: u16 = 1;
const FAST: u16 = 2;
const LOAD: u16 = 3;
const PANIC: u16 = 4;
/// As READ, in the other lane.
const CHANGE: u16 = 5;
/// Waits for a flush.
const SYNC: u16 = 6;

const LONG: Duration = Duration::from_secs(10);

/// Closed until the test opens it.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

#[derive(Default)]
struct Disk {
    gate: Gate,
    flush_gate: Gate,
    attempts: AtomicU64,
    /// At the gate now.
    busy: AtomicU64,
    flushes: AtomicU64,
    flush_fails: AtomicU64,
}

impl Disk {
    /// Waits until so many are at the gate.
    fn wait_for_busy(&self, count: u64) {
        while self.busy.load(SeqCst) < count {
            std::thread::yield_now();
        }
    }
}

impl Service for Disk {
    fn attempt(&self, frame: Frame) -> Result<ServiceOutcome, Blocked> {
        self.attempts.fetch_add(1, SeqCst);
        match frame.op {
            READ => Err(Blocked { frame, lane: Lane::Read, reply_bytes: 1_000 }),
            CHANGE | PANIC => Err(Blocked { frame, lane: Lane::Change, reply_bytes: 0 }),
            SYNC => Ok(self.execute(frame)),
            _ => Ok(ServiceOutcome::Reply(self.reply(&frame))),
        }
    }

    fn execute(&self, frame: Frame) -> ServiceOutcome {
        match frame.op {
            READ | CHANGE => {
                self.busy.fetch_add(1, SeqCst);
                self.gate.pass();
                self.busy.fetch_sub(1, SeqCst);
            }
            PANIC => panic!("a handler's bug"),
            _ => {}
        }
        let reply = self.reply(&frame);
        if frame.op != SYNC {
            return ServiceOutcome::Reply(reply);
        }
        ServiceOutcome::AfterFlush(Box::new(move |failed| match failed {
            None => reply,
            Some(error) => reply.reply(error.errno().0, Bytes::new(), Bytes::new()),
        }))
    }

    fn flush(&self) -> saker_types::Result<()> {
        self.flush_gate.pass();
        self.flushes.fetch_add(1, SeqCst);
        match self.flush_fails.load(SeqCst) {
            0 => Ok(()),
            _ => Err(Error::new(Errno::EIO)),
        }
    }
}

impl Disk {
    fn reply(&self, frame: &Frame) -> Frame {
        let payload = if frame.op == LOAD { vec![8; 1 << 20].into() } else { Bytes::new() };
        frame.reply(0, frame.body.clone(), payload)
    }
}

fn reactor() -> Arc<Reactor> {
    Reactor::new(hello(RoleKind::Client, 0)).unwrap()
}

fn with_limits(
    limits: ServiceLimits,
    test: impl FnOnce(std::net::SocketAddr, &Disk, &ServiceConfig),
) {
    let (listener, addr) = listen();
    let stop = StopHandle::new();
    let disk = Arc::new(Disk::default());
    let service: Arc<dyn Service> = disk.clone();
    let how = ServiceConfig { shells: 2, limits, ..ServiceConfig::default() };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&listener, &service, &config(1), &how, &stop));
        let test = || test(addr, &disk, &how);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
        disk.gate.open();
        disk.flush_gate.open();
        stop.stop();
        serving.join().unwrap().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn with_disk(test: impl FnOnce(std::net::SocketAddr, &Disk)) {
    with_limits(ServiceLimits::default(), |addr, disk, _| test(addr, disk));
}

/// What waits holds up nobody, also not on its own connection, and comes when it is ready.
#[test]
fn a_request_that_waits_is_overtaken() {
    let _watchdog = watchdog(60);
    with_disk(|addr, disk| {
        let mut raw = Raw::client(addr);
        raw.request(1, READ, b"");
        raw.request(2, CHANGE, b"");
        for call in 3..100 {
            raw.request(call, FAST, &call.to_le_bytes());
            let reply = raw.receive().unwrap();
            assert_eq!((reply.call, &reply.body[..]), (call, &call.to_le_bytes()[..]));
        }
        disk.wait_for_busy(2);
        disk.gate.open();
        let mut calls = [raw.receive().unwrap().call, raw.receive().unwrap().call];
        calls.sort_unstable();
        assert_eq!(calls, [1, 2]);
    });
}

/// With all threads busy what has to wait waits for one of them: in its lane only, and what need
/// not wait does not.
#[test]
fn more_wait_than_there_are_threads() {
    let _watchdog = watchdog(60);
    let limits = ServiceLimits { read_threads: 3, ..ServiceLimits::default() };
    with_limits(limits, |addr, disk, how| {
        let mut raw = Raw::client(addr);
        (1..=10).for_each(|call| raw.request(call, READ, b""));
        disk.wait_for_busy(3);
        raw.request(11, FAST, b"");
        assert_eq!(raw.receive().unwrap().call, 11);
        assert_eq!((how.metrics.queued.get(), how.metrics.blocked.get()), (7, 10));
        raw.request(12, CHANGE, b"");
        disk.wait_for_busy(4);
        disk.gate.open();
        let mut calls: Vec<u64> = (0..11).map(|_| raw.receive().unwrap().call).collect();
        calls.sort_unstable();
        assert!(calls.into_iter().eq((1..=10).chain([12])));
        assert_eq!(how.metrics.queued.get(), 0);
    });
}

/// Asks until the connection is not read any more; returns how many requests were.
fn fill(raw: &mut Raw, disk: &Disk, how: &ServiceConfig, op: u16) -> u64 {
    let before = disk.attempts.load(SeqCst);
    for call in 1.. {
        raw.request(call, op, b"");
        while disk.attempts.load(SeqCst) < before + call {
            if how.metrics.paused.get() > 0 {
                return call;
            }
            std::thread::yield_now();
        }
    }
    unreachable!()
}

#[test]
fn a_connection_with_too_much_under_way_is_not_read() {
    let _watchdog = watchdog(60);
    let by_number = ServiceLimits { conn_requests: 20, ..ServiceLimits::default() };
    let by_bytes = ServiceLimits { conn_bytes: 20_000, ..ServiceLimits::default() };
    for limits in [by_number, by_bytes] {
        with_limits(limits, |addr, disk, how| {
            let (mut raw, mut other) = (Raw::client(addr), Raw::client(addr));
            let asked = fill(&mut raw, disk, how, READ);
            assert!((19..=21).contains(&asked), "{asked}");
            raw.request(1_000, FAST, b"");
            // Another connection is.
            other.request(1, FAST, b"");
            assert_eq!(other.receive().unwrap().call, 1);
            disk.gate.open();
            let mut calls: Vec<u64> = (0..=asked).map(|_| raw.receive().unwrap().call).collect();
            calls.sort_unstable();
            assert!(
                calls.into_iter().eq((1..=asked).chain([1_000])),
                "all are answered in the end"
            );
            assert_eq!(how.metrics.paused.get(), 0);
        });
    }
}

/// A connection that sends one more when all have too much under way is not read until half is over,
/// also if it is by another shell's connections.
#[test]
fn with_too_much_under_way_in_all_who_sends_more_is_not_read() {
    let _watchdog = watchdog(60);
    let limits = ServiceLimits { requests: 20, ..ServiceLimits::default() };
    with_limits(limits, |addr, disk, how| {
        let (mut raw, mut other) = (Raw::client(addr), Raw::client(addr));
        let asked = fill(&mut raw, disk, how, READ);
        other.request(1, SYNC, b"");
        disk.flush_gate.open();
        assert_eq!(other.receive().unwrap().call, 1);
        other.request(2, FAST, b"");
        assert!(other.silent(Duration::from_millis(50)), "it is held");
        disk.gate.open();
        assert_eq!(other.receive().unwrap().call, 2);
        (0..asked).for_each(|_| _ = raw.receive().unwrap());
        raw.request(1_000, FAST, b"");
        assert_eq!(raw.receive().unwrap().call, 1_000);
        assert_eq!(how.metrics.paused.get(), 0);
    });
}

/// One flush is for all who wait when it begins, and its failure is told to all of them.
#[test]
fn flushes_are_grouped() {
    let _watchdog = watchdog(60);
    with_disk(|addr, disk| {
        let mut raw = Raw::client(addr);
        disk.flush_fails.store(1, SeqCst);
        (1..=50).for_each(|call| raw.request(call, SYNC, b""));
        raw.request(51, FAST, b"");
        assert_eq!(raw.receive().unwrap().call, 51, "all of the others wait");
        disk.flush_gate.open();
        for call in 1..=50 {
            let reply = raw.receive().unwrap();
            assert_eq!((reply.call, reply.status), (call, Errno::EIO.0));
        }
        // The first began before the others came.
        assert!(disk.flushes.load(SeqCst) <= 2, "{:?}", disk.flushes);
        disk.flush_fails.store(0, SeqCst);
        raw.request(52, SYNC, b"");
        assert_eq!(raw.receive().unwrap().status, 0);
    });
}

/// A connection that ends while something of it waits takes nothing along.
#[test]
fn who_goes_is_forgotten() {
    let _watchdog = watchdog(60);
    let limits = ServiceLimits { conn_requests: 20, ..ServiceLimits::default() };
    with_limits(limits, |addr, disk, how| {
        let mut raw = Raw::client(addr);
        fill(&mut raw, disk, how, READ);
        drop(raw);
        disk.gate.open();
        while how.metrics.paused.get() > 0 {
            std::thread::yield_now();
        }
        let mut other = Raw::client(addr);
        other.request(1, READ, b"");
        assert_eq!(other.receive().unwrap().call, 1);
    });
}

#[test]
fn large_replies_come_complete() {
    let _watchdog = watchdog(60);
    with_disk(|addr, _| {
        let reactor = reactor();
        let ask = |_| reactor.call(addr, LOAD, 0, Bytes::new(), Bytes::new(), LONG);
        let ends = reactor.block_on(futures_util::future::join_all((0..100).map(ask)));
        for end in ends {
            let payload = end.unwrap().payload;
            assert!(payload.len() == 1 << 20 && payload.iter().all(|byte| *byte == 8));
        }
    });
}

/// A thread that breaks ends the service, with an error; it does not go on with a part of it.
#[test]
fn a_broken_thread_ends_the_service() {
    let _watchdog = watchdog(60);
    let (listener, addr) = listen();
    let service: Arc<dyn Service> = Arc::new(Disk::default());
    let how = ServiceConfig { shells: 3, ..ServiceConfig::default() };
    let serving = std::thread::spawn(move || {
        serve(&listener, &service, &config(1), &how, &StopHandle::new())
    });
    let reactor = reactor();
    let call = |op| {
        let call = reactor.call(addr, op, 0, Bytes::new(), Bytes::new(), LONG);
        reactor.block_on(call)
    };
    assert!(call(FAST).is_ok());
    assert_eq!(call(PANIC), Err(CallError::Disconnected));
    assert!(serving.join().unwrap().unwrap_err().to_string().contains("panicked"));
    assert!(call(FAST).is_err());
}
