//! A service whose handlers block.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Raw, config, hello, listen, watchdog};
use saker_rpc::{
    Bytes, CallError, Frame, PeerHello, Reactor, RoleKind, Service, Stop, Transport, serve,
};

const SLEEP: u16 = 1;
const FAST: u16 = 2;
const LOAD: u16 = 3;
const PANIC: u16 = 4;

const NAP: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Disk {
    handled: AtomicU64,
    busy: AtomicU64,
    busy_max: AtomicU64,
    /// What was announced, and (negative) what was handled, in this order.
    calls: Mutex<Vec<i64>>,
}

impl Service for Disk {
    fn announce(&self, frame: &Frame) {
        self.calls.lock().unwrap().push(frame.call as i64);
    }

    fn handle(&self, peer: &PeerHello, frame: Frame) -> Frame {
        assert_eq!(peer.role, RoleKind::Client);
        self.calls.lock().unwrap().push(-(frame.call as i64));
        let busy = self.busy.fetch_add(1, SeqCst) + 1;
        self.busy_max.fetch_max(busy, SeqCst);
        let payload = match frame.op {
            SLEEP => {
                std::thread::sleep(NAP);
                Bytes::new()
            }
            LOAD => vec![8; 1 << 20].into(),
            PANIC => panic!("a handler's bug"),
            _ => Bytes::new(),
        };
        self.busy.fetch_sub(1, SeqCst);
        self.handled.fetch_add(1, SeqCst);
        frame.reply(0, frame.body.clone(), payload)
    }
}

fn reactor() -> Arc<Reactor> {
    Reactor::new(hello(RoleKind::Client, 0)).unwrap()
}

fn with_disk(threads: usize, test: impl FnOnce(std::net::SocketAddr, &Disk)) {
    let (listener, addr) = listen();
    let stop = Stop::new();
    let disk = Arc::new(Disk::default());
    let service: Arc<dyn Service> = disk.clone();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&listener, &service, &config(1), threads, &stop));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(addr, &disk)));
        stop.stop();
        serving.join().unwrap().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Connections spread over the threads, so that handlers of different clients block together.
#[test]
fn handlers_of_several_connections_block_at_the_same_time() {
    let _watchdog = watchdog(60);
    with_disk(4, |addr, disk| {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut raw = Raw::client(addr);
                    for call in 1..=10 {
                        raw.request(call, SLEEP, &call.to_le_bytes());
                        let reply = raw.receive().unwrap();
                        assert_eq!((reply.call, &reply.body[..]), (call, &call.to_le_bytes()[..]));
                    }
                });
            }
        });
        assert_eq!(disk.handled.load(SeqCst), 80);
        let together = disk.busy_max.load(SeqCst);
        assert!((3..=4).contains(&together), "{together} handlers at once");
    });
}

/// Many requests on one connection: the first reply does not wait for the last handler.
#[test]
fn replies_leave_while_the_batch_goes_on() {
    let _watchdog = watchdog(60);
    with_disk(1, |addr, _| {
        let mut raw = Raw::client(addr);
        let start = Instant::now();
        (1..=40).for_each(|call| raw.request(call, SLEEP, b""));
        assert_eq!(raw.receive().unwrap().call, 1);
        let first = start.elapsed();
        (2..=40).for_each(|call| assert_eq!(raw.receive().unwrap().call, call));
        assert!(start.elapsed() >= NAP * 40);
        assert!(first < start.elapsed() / 2, "the first reply came after {first:?}");
    });
}

/// What waits behind another is announced, once, while that one is still to be handled.
#[test]
fn what_has_to_wait_is_announced() {
    let _watchdog = watchdog(60);
    with_disk(1, |addr, disk| {
        let mut raw = Raw::client(addr);
        (1..=40).for_each(|call| raw.request(call, SLEEP, b""));
        (1..=40).for_each(|call| assert_eq!(raw.receive().unwrap().call, call));
        raw.request(41, FAST, b"");
        raw.receive().unwrap();
        let calls = disk.calls.lock().unwrap();
        let at = |call| calls.iter().position(|found| *found == call);
        for call in 1..=41 {
            let announced = calls.iter().filter(|found| **found == call).count();
            assert!(announced <= 1, "{call}: {announced} times");
            assert!(at(call) < at(-call), "{call}");
        }
        assert_eq!((at(1), at(41)), (None, None), "nothing was before them");
        assert!((2..=40).filter(|call| at(*call).is_some()).count() > 20, "{calls:?}");
    });
}

#[test]
fn large_replies_come_complete() {
    let _watchdog = watchdog(60);
    with_disk(2, |addr, _| {
        let reactor = reactor();
        let ask = |_| reactor.call(addr, LOAD, 0, Bytes::new(), Bytes::new(), NAP * 1_000);
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
    let serving =
        std::thread::spawn(move || serve(&listener, &service, &config(1), 3, &Stop::new()));
    let reactor = reactor();
    let call = |op| {
        let call = reactor.call(addr, op, 0, Bytes::new(), Bytes::new(), NAP * 500);
        reactor.block_on(call)
    };
    assert!(call(FAST).is_ok());
    assert_eq!(call(PANIC), Err(CallError::Disconnected));
    assert!(serving.join().unwrap().unwrap_err().to_string().contains("panicked"));
    assert!(call(FAST).is_err());
}
