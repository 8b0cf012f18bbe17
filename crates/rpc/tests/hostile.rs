//! Peers that do not speak the protocol: each loses its own connection, and nobody else notices.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Raw, config, hello, listen, watchdog};
use prost::Message;
use saker_rpc::frame::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX};
use saker_rpc::hello::{
    HELLO_BYTES_MAX, REFUSED_CLUSTER, REFUSED_MALFORMED, REFUSED_PROTOCOL, REFUSED_ROLE,
};
use saker_rpc::node::Bounds;
use saker_rpc::{
    Blocked, Bytes, Frame, FrameKind, Hello, HelloReply, RoleKind, Service, ServiceConfig,
    ServiceOutcome, ShellConfig, StopHandle, serve,
};
use saker_runtime::rand::Rng;

struct Echo;

impl Service for Echo {
    fn attempt(&self, frame: Frame) -> Result<ServiceOutcome, Blocked> {
        Ok(self.execute(frame))
    }

    fn execute(&self, frame: Frame) -> ServiceOutcome {
        ServiceOutcome::Reply(frame.reply(0, frame.body.clone(), frame.payload.clone()))
    }

    fn flush(&self) -> saker_types::Result<()> {
        Ok(())
    }
}

/// Runs `test` against an echo service on one thread, so that all its connections are together.
fn with_echo(test: impl FnOnce(SocketAddr)) {
    with_bounded_echo(Bounds::default(), test);
}

fn with_bounded_echo(bounds: Bounds, test: impl FnOnce(SocketAddr)) {
    let (listener, addr) = listen();
    let config = ShellConfig { bounds, ..config(1) };
    let stop = StopHandle::new();
    let service: Arc<dyn Service> = Arc::new(Echo);
    std::thread::scope(|scope| {
        let serving =
            scope.spawn(|| serve(&listener, &service, &config, &ServiceConfig::default(), &stop));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(addr)));
        stop.stop();
        serving.join().unwrap().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn check(good: &mut Raw, call: u64) {
    good.request(call, 1, b"still here");
    let reply = good.receive().expect("the good connection was closed");
    assert_eq!((reply.call, &reply.body[..]), (call, &b"still here"[..]));
}

/// A header as it stands on the wire (the layout of `frame`), with lengths that no frame has.
fn header(body: u32, payload: u32) -> Vec<u8> {
    let frame = Frame::request(1, 0, Bytes::new(), Bytes::new());
    let mut bytes = frame.to_bytes().to_vec();
    bytes[8..12].copy_from_slice(&body.to_le_bytes());
    bytes[12..16].copy_from_slice(&payload.to_le_bytes());
    bytes
}

/// What no peer should send, and a name for it.
fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    let request = Frame::request(1, 0, Bytes::from_static(b"x"), Bytes::new()).to_bytes().to_vec();
    let of_kind = |kind| Frame { kind, ..Frame::request(1, 0, Bytes::new(), Bytes::new()) };
    let mut flags = request.clone();
    flags[33] = 1;
    let mut version = request.clone();
    version[2] = 9;
    let mut kind = request.clone();
    kind[3] = 77;
    let mut noise = vec![0; 10_000];
    Rng::seeded(1).fill(&mut noise);
    vec![
        ("http", b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n\r\n\r\n".to_vec()),
        ("zeros", vec![0; 4_096]),
        ("noise", noise),
        ("flags", flags),
        ("version", version),
        ("kind", kind),
        ("long body", header(BODY_BYTES_MAX as u32 + 1, 0)),
        ("long payload", header(0, PAYLOAD_BYTES_MAX as u32 + 1)),
        ("longest", header(u32::MAX, u32::MAX)),
        ("reply", of_kind(FrameKind::Reply).to_bytes().to_vec()),
        ("second hello", of_kind(FrameKind::Hello).to_bytes().to_vec()),
        ("hello reply", of_kind(FrameKind::HelloReply).to_bytes().to_vec()),
        ("goodbye", of_kind(FrameKind::Goodbye).to_bytes().to_vec()),
    ]
}

#[test]
fn garbage_closes_its_own_connection_only() {
    let _watchdog = watchdog(60);
    with_echo(|addr| {
        let mut good = Raw::client(addr);
        for (n, (name, bytes)) in garbage().into_iter().enumerate() {
            let n = n as u64;
            // After the hello.
            let mut bad = Raw::client(addr);
            // A failure means that it was closed while we were still writing.
            let _ = bad.stream.write_all(&bytes);
            assert!(bad.receive().is_none(), "{name} was answered");
            check(&mut good, 2 * n + 1);
            // Instead of the hello: closed, perhaps after a refusal.
            let mut bad = Raw::dial(addr);
            let _ = bad.stream.write_all(&bytes);
            if let Some(refusal) = bad.receive() {
                assert_eq!(refusal.kind, FrameKind::HelloReply);
                // An empty hello can be read, but speaks no protocol.
                let expected =
                    if name == "second hello" { REFUSED_PROTOCOL } else { REFUSED_MALFORMED };
                assert_eq!(refusal.status, expected, "{name}");
                assert!(bad.receive().is_none(), "{name} was answered");
            }
            check(&mut good, 2 * n + 2);
        }
    });
}

/// Frames cut off anywhere, and then the end.
#[test]
fn truncated_frames_are_not_answered() {
    let _watchdog = watchdog(60);
    with_echo(|addr| {
        let mut good = Raw::client(addr);
        let body = Bytes::from(vec![3; 100]);
        let whole = Frame::request(1, 0, body.clone(), body).to_bytes();
        for len in [1, 2, 39, 40, 41, 139, 140, 239] {
            let mut bad = Raw::client(addr);
            bad.stream.write_all(&whole[..len]).unwrap();
            bad.stream.shutdown(Shutdown::Write).unwrap();
            assert!(bad.receive().is_none(), "{len} bytes were answered");
            check(&mut good, len as u64);
        }
    });
}

/// A frame that comes byte by byte is one frame, and one that claims to be long but never comes
/// keeps nobody waiting.
#[test]
fn slow_frames_hold_up_nobody() {
    let _watchdog = watchdog(60);
    with_echo(|addr| {
        let (mut good, mut slow) = (Raw::client(addr), Raw::client(addr));
        let mut claims = Raw::client(addr);
        claims.stream.write_all(&header(1_000, PAYLOAD_BYTES_MAX as u32)).unwrap();
        let body = Bytes::from_static(b"at last");
        let frame = Frame { call: 5, ..Frame::request(1, 0, body.clone(), Bytes::new()) };
        for (n, byte) in frame.to_bytes().iter().enumerate() {
            slow.stream.write_all(&[*byte]).unwrap();
            if n % 10 == 0 {
                check(&mut good, n as u64 + 1);
            }
        }
        let reply = slow.receive().unwrap();
        assert_eq!((reply.call, reply.body), (5, body));
    });
}

#[test]
fn the_longest_frame_passes() {
    let _watchdog = watchdog(60);
    with_echo(|addr| {
        let mut raw = Raw::client(addr);
        let body = Bytes::from(vec![1; BODY_BYTES_MAX]);
        let payload = Bytes::from(vec![2; PAYLOAD_BYTES_MAX]);
        let request = Frame { call: 1, ..Frame::request(1, 9, body, payload) };
        let mut writer = raw.stream.try_clone().unwrap();
        let bytes = request.to_bytes();
        let writer = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
        let reply = raw.receive().unwrap();
        writer.join().unwrap();
        assert!(reply.body == request.body && reply.payload == request.payload);
    });
}

#[test]
fn refusals_say_why_and_close() {
    let _watchdog = watchdog(60);
    with_echo(|addr| {
        let ours = hello(RoleKind::Client, 0);
        let foreign = Hello { cluster: vec![9; 16].into(), ..ours.clone() };
        let unknown = Hello { cluster: Bytes::new(), ..ours.clone() };
        let newer = Hello { protocol_min: 90, protocol_max: 99, ..ours.clone() };
        let stranger = Hello { role: 1_000, ..ours };
        for (hello, status) in [
            (foreign, REFUSED_CLUSTER),
            (unknown, REFUSED_CLUSTER),
            (newer, REFUSED_PROTOCOL),
            (stranger, REFUSED_ROLE),
        ] {
            let mut raw = Raw::dial(addr);
            let refusal = raw.shake(&hello).expect("a refusal");
            assert_eq!((refusal.kind, refusal.status), (FrameKind::HelloReply, status));
            assert!(!HelloReply::decode(refusal.body).unwrap().text.is_empty());
            assert!(raw.receive().is_none());
        }
        check(&mut Raw::client(addr), 1);
    });
}

/// A connection without a hello is closed after a while, and not one that has said hello and is quiet.
#[test]
fn silence_instead_of_a_hello_is_closed() {
    let _watchdog = watchdog(60);
    with_echo(|addr| {
        let mut quiet = Raw::client(addr);
        let mut silent = Raw::dial(addr);
        let start = Instant::now();
        assert!(silent.receive().is_none());
        // Real time: how long a handshake may take is what is tested.
        let took = start.elapsed();
        assert!(took > Duration::from_secs(3) && took < Duration::from_secs(20), "{took:?}");
        check(&mut quiet, 1);
    });
}

/// A frame must end some time after it began, also if its sender adds a byte now and then.
#[test]
fn a_frame_that_does_not_end_is_given_up() {
    let _watchdog = watchdog(60);
    let frame_time_max = Duration::from_millis(300);
    with_bounded_echo(Bounds { frame_time_max, ..Bounds::default() }, |addr| {
        let mut quiet = Raw::client(addr);
        let mut slow = Raw::client(addr);
        slow.stream.write_all(&header(1 << 20, 0)).unwrap();
        while slow.stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        check(&mut quiet, 1);
    });
}

/// Frames that are promised and do not come take the memory of nobody for long, and many large
/// ones at once come through one after the other.
#[test]
fn large_frames_take_turns() {
    let _watchdog = watchdog(60);
    let (unfinished_bytes_max, stall_max) = (4 << 20, Duration::from_millis(200));
    let bounds = Bounds { unfinished_bytes_max, stall_max, ..Bounds::default() };
    with_bounded_echo(bounds, |addr| {
        let stalled: Vec<Raw> = (0..6)
            .map(|_| {
                let mut raw = Raw::client(addr);
                raw.stream.write_all(&header(1 << 20, 0)).unwrap();
                raw.stream.write_all(&vec![0; 200 << 10]).unwrap();
                raw
            })
            .collect();
        let body = Bytes::from(vec![7; 1 << 20]);
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    let mut raw = Raw::client(addr);
                    raw.request(5, 1, &body);
                    assert!(raw.receive().expect("it was closed").body == body);
                });
            }
        });
        drop(stalled);
    });
}

/// A connection without a hello is closed when a new one needs its place.
#[test]
fn a_flood_without_hellos_keeps_nobody_out() {
    let _watchdog = watchdog(60);
    with_bounded_echo(Bounds { greetings_max: 8, ..Bounds::default() }, |addr| {
        let flood: Vec<Raw> = (0..100).map(|_| Raw::dial(addr)).collect();
        check(&mut Raw::client(addr), 1);
        drop(flood);
    });
}

/// Before the hello a peer may not even promise much.
#[test]
fn a_long_hello_is_refused() {
    let _watchdog = watchdog(60);
    with_echo(|addr| {
        let mut raw = Raw::dial(addr);
        raw.stream.write_all(&header(HELLO_BYTES_MAX as u32 + 1, 0)).unwrap();
        assert!(raw.is_closed());
    });
}
