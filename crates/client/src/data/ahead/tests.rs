#![allow(clippy::unwrap_used)]
use super::*;
use saker_runtime::telemetry::Gauge;
use std::cell::RefCell;
use std::task::{Context, Poll, Waker};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the data is here"),
    }
}

fn memory() -> MemoryBudget {
    MemoryBudget::new(Gauge::default(), usize::MAX)
}

/// The file's byte at an offset.
fn byte(at: u64) -> u8 {
    (at / 997) as u8
}

fn content(range: &Range<u64>) -> Bytes {
    range.clone().map(byte).collect::<Vec<u8>>().into()
}

#[test]
fn windows_double_for_sequential_readers_only() {
    let max = 4 << 20;
    let mut window = 0;
    let mut at = 0;
    let mut seen = Vec::new();
    for _ in 0..7 {
        window = next_window(at, window, at, 64 << 10, max);
        seen.push(window >> 10);
        at += 64 * K;
    }
    assert_eq!(seen, [128, 256, 512, 1_024, 2_048, 4_096, 4_096]);
    assert!(next_window(at, window, at + 128 * K, 4096, max) > 0, "the kernel reorders");
    assert_eq!(next_window(at, window, at + 2 * M, 4096, max), 0);
    // Of two reads of a megabyte the second came first.
    assert!(next_window(at + 2 * M, window, at, M as usize, max) > 0);
    assert_eq!(next_window(0, 0, 8 * K, 4096, max), 0);
    assert_eq!(next_window(0, 0, 0, 4096, 0), 0, "turned off");
}

#[test]
fn a_sequential_reader_gets_what_was_fetched_ahead() {
    let size = 9 * M + 5;
    let fetched = RefCell::new(Vec::new());
    let mut ahead = Ahead::default();
    let mut at = 0;
    while at < size {
        let wanted = at..(at + 100 * K).min(size);
        ahead.extend(&wanted, 2 << 20, size, &memory(), |range| {
            fetched.borrow_mut().push(range.clone());
            Box::pin(async move { Ok(content(&range)) })
        });
        assert_eq!(run(ahead.take(&wanted)).unwrap(), content(&wanted), "{wanted:?}");
        at = wanted.end;
    }
    let fetched = fetched.into_inner();
    assert_eq!(fetched.iter().map(|r| r.end - r.start).sum::<u64>(), size, "each byte once");
    assert!(fetched.windows(2).all(|pair| pair[0].end == pair[1].start));
    assert!(fetched.len() < 20, "{} requests", fetched.len());
    assert!(ahead.segments.len() < 8, "what was read is forgotten");
}

#[test]
fn a_failure_or_a_change_makes_the_reader_ask_itself() {
    let mut ahead = Ahead::default();
    let age_max = Duration::from_secs(1);
    let at = |s: u64| Time::from_ns(s * 1_000_000_000);
    ahead.validate(1, at(5), age_max);
    let mut calls = 0;
    ahead.extend(&(0..4096), 128 << 10, M, &memory(), |_| {
        calls += 1;
        Box::pin(async { Err(saker_types::Errno::EIO.into()) })
    });
    run(ahead.nudge());
    assert_eq!(run(ahead.take(&(0..4096))), None);
    assert!(ahead.segments.is_empty());
    ahead.extend(&(0..4096), 128 << 10, M, &memory(), |range| {
        Box::pin(async move { Ok(content(&range)) })
    });
    assert!(run(ahead.take(&(0..4096))).is_some());
    ahead.validate(1, at(6), age_max);
    assert!(run(ahead.take(&(0..4096))).is_some());
    ahead.validate(2, at(6), age_max);
    assert_eq!(run(ahead.take(&(0..4096))), None, "of another generation");
    ahead.extend(&(0..4096), 128 << 10, M, &memory(), |range| {
        Box::pin(async move { Ok(content(&range)) })
    });
    ahead.validate(2, at(8), age_max);
    assert_eq!(run(ahead.take(&(0..4096))), None, "too old");
    assert_eq!(calls, 1);
}

#[test]
fn a_jump_begins_anew() {
    let mut ahead = Ahead::default();
    for wanted in [0..4 * K, 6 * M..6 * M + 4 * K, 2 * M..2 * M + 4 * K] {
        ahead.extend(&wanted, 128 << 10, 16 * M, &memory(), |range| {
            Box::pin(async move { Ok(content(&range)) })
        });
        assert_eq!(run(ahead.take(&wanted)).unwrap(), content(&wanted));
        assert_eq!(ahead.covered().start, wanted.start);
    }
}

#[test]
fn what_is_held_is_counted_until_it_is_forgotten() {
    let memory = MemoryBudget::new(Gauge::default(), 3 << 20);
    let fetch = |range: Range<u64>| -> Fetch { Box::pin(async move { Ok(content(&range)) }) };
    let mut files = [Ahead::default(), Ahead::default()];
    for ahead in &mut files {
        ahead.extend(&(0..64 * K), 1 << 20, 16 * M, &memory, fetch);
    }
    assert_eq!(memory.left() as u64, 3 * M - 2 * (M + 64 * K));
    let [first, second] = &mut files;
    first.forget_before(M);
    assert_eq!(memory.left() as u64, 3 * M - (M + 64 * K) - 64 * K, "only what lies behind");
    assert_eq!(run(first.take(&(M..M + 64 * K))).unwrap(), content(&(M..M + 64 * K)));
    second.validate(1, Time::from_ns(0), Duration::ZERO);
    assert_eq!(memory.left() as u64, 3 * M - 64 * K, "nothing of another generation");
    drop(files);
    assert_eq!(memory.left() as u64, 3 * M);
}
