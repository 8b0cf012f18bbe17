//! What is sent, sent again and given up, and in which session.
#![allow(clippy::unwrap_used)]

use saker_types::wire::Op;
use saker_types::{Class, Errno, Error};

use crate::fake::setup::{APPEND, RW, at, pattern, setup};
use crate::fake::{RequestFault, start};
use crate::{Caller, ClientOptions, OpenFlags};

#[test]
fn replies_that_are_lost_are_asked_for_again_and_nothing_is_done_twice() {
    let t = setup();
    let file = t.create("f");
    let append = t.open("f", APPEND);
    for op in [Op::Append, Op::Close, Op::Create] {
        t.fake.fault(op, RequestFault::AnswerLost);
    }
    t.fake.fault(Op::Create, RequestFault::Lost);
    assert_eq!(t.run(append.write(0, b"abc")).unwrap(), 0);
    t.write(&file, 3, b"d");
    t.flush(&file);
    let exclusive = OpenFlags { exclusive: true, ..RW };
    let made = t.run(t.fs.create(&t.root, &at("g"), 0o600, exclusive));
    assert!(made.unwrap().1.created, "its own first attempt is no EEXIST");
    assert_eq!(t.content("f"), b"abcd");
    assert!(t.fs.stats().retries >= 4);
}

#[test]
fn the_watermark_lets_results_go() {
    let t = setup();
    for _ in 0..3 {
        t.run(t.fs.create(&t.root, &at("f"), 0o644, RW)).unwrap();
    }
    t.run(async {
        // Dropped before it is sent or answered: its number counts as answered.
        let place = at("f");
        let mut future = Box::pin(t.fs.unlink(&t.root, &place));
        t.fake.fault(Op::Unlink, RequestFault::Hang);
        std::future::poll_fn(|cx| {
            _ = future.as_mut().poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
    });
    let ticket = t.fs.core.cluster.sessions.begin().unwrap();
    assert_eq!(
        ticket.session.standing(saker_types::NodeId::Coordinator, saker_runtime::time::now()).0,
        ticket.seq
    );
}

#[test]
fn a_lost_session_is_opened_anew_unless_the_outcome_is_unknown() {
    let t = setup();
    let lost = || Error::of_class(Class::SessionLost, Errno::EIO);
    t.create("f");
    t.fake.fault(Op::Create, RequestFault::Answer(lost()));
    t.create("g");
    t.fake.fault(Op::Create, RequestFault::AnswerLost);
    t.fake.fault(Op::Create, RequestFault::Answer(lost()));
    let unknown = t.run(t.fs.create(&t.root, &at("h"), 0o644, RW));
    assert_eq!(unknown.err().unwrap().errno(), Errno::EIO);
    t.create("i");
}

#[test]
fn a_dead_node_is_given_up_at_the_deadline() {
    let timeout = std::time::Duration::from_millis(60);
    let (fake, fs) = start(ClientOptions { timeout, ..ClientOptions::default() });
    for _ in 0..100_000 {
        fake.fault(Op::Lookup, RequestFault::Lost);
    }
    let error = fs.block_on(fs.lookup(&Caller::root(), &at("f"))).unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT);
    assert!(error.text.contains("lookup to shard"), "{error}");
    let answered = RequestFault::Answer(Error::retry("busy"));
    fake.model().clear_faults();
    fake.fault(Op::Lookup, answered);
    assert_eq!(
        fs.block_on(fs.lookup(&Caller::root(), &at("f"))).unwrap_err().errno(),
        Errno::ENOENT
    );
}

#[test]
fn requests_are_counted_by_receiver() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, &pattern(6_000, 1));
    t.flush(&file);
    let stats = t.fs.stats();
    let count = |op: &str, to: &str| {
        let found = stats.requests.iter().find(|(name, node, _)| *name == op && node == to);
        found.map_or(0, |(_, _, n)| *n)
    };
    assert_eq!(count("create", "shard-0") + count("create", "shard-1"), 1);
    assert_eq!((count("chunk_write", "store-0"), count("chunk_write", "store-1")), (1, 1));
    assert_eq!(count("map", "coordinator"), 1);
    let text = t.fs.metrics().encode();
    let line = "saker_client_requests_total{op=\"chunk_write\",to=\"store-1\"} 1";
    assert!(text.lines().any(|l| l == line), "{text}");
}
