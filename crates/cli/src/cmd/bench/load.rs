//! Many operations under way, counted and timed.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hdrhistogram::Histogram;
use saker_runtime::{thread, time};

use super::target::Runner;
use crate::fail::{Context, Failure, Outcome};
use crate::signals;

/// How many operations are under way.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Threads.
    pub threads: usize,
    /// Operations under way on each.
    pub inflight: usize,
}

impl Load {
    /// Workers, each of which has one operation under way.
    pub fn workers(self) -> usize {
        self.threads * self.inflight
    }
}

/// When a phase ends: whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// After so many operations of all workers together.
    pub ops: Option<u64>,
    /// After so long.
    pub time: Option<Duration>,
}

/// What a phase has come to.
pub struct Measured {
    /// Operations that succeeded, of each worker.
    pub done: Vec<u64>,
    /// Operations that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// From the start to the end of the last operation.
    pub time: Duration,
    /// Latencies of those that succeeded, ns.
    pub latency_ns: Histogram<u64>,
}

/// How many operations each worker may do.
#[derive(Clone)]
pub enum Share {
    /// Any number: workers draw from what [`Until::ops`] leaves.
    Open,
    /// This many of each worker.
    Each(Arc<Vec<u64>>),
}

impl Share {
    /// Round and round what each worker has, of which some may have none.
    pub fn round(there: &[u64]) -> Share {
        Share::Each(Arc::new(there.iter().map(|n| if *n > 0 { u64::MAX } else { 0 }).collect()))
    }
}

/// One operation: worker, its how-many-th, target.
pub trait Operation<T: Runner>: Clone + Send + 'static {
    /// Does it.
    fn run(&self, target: &T, worker: usize, n: u64) -> impl Future<Output = io::Result<()>>;
}

struct Limits {
    share: Share,
    left: AtomicU64,
    time: Option<Duration>,
}

impl Limits {
    /// May this worker begin its `n`-th operation?
    fn take(&self, worker: usize, n: u64, end: time::Time) -> bool {
        if signals::interrupted() || time::now() >= end {
            return false;
        }
        if let Share::Each(counts) = &self.share
            && n >= counts[worker]
        {
            return false;
        }
        let one_less = |left: u64| left.checked_sub(1);
        self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

/// Results of one thread; its workers share it.
struct Tally {
    latency_ns: RefCell<Histogram<u64>>,
    errors: Cell<u64>,
    first_error: RefCell<Option<String>>,
}

/// Largest latency that is told apart from larger ones, ns.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

fn histogram() -> Histogram<u64> {
    // Three digits. The bounds are constants that the library accepts.
    #[allow(clippy::unwrap_used)]
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).unwrap()
}

/// Runs one phase.
pub fn run<T: Runner, O: Operation<T>>(
    target: &T,
    load: Load,
    until: Until,
    share: Share,
    operation: &O,
) -> Outcome<Measured> {
    let barrier = Arc::new(Barrier::new(load.threads));
    let left = AtomicU64::new(until.ops.unwrap_or(u64::MAX));
    let limits = Arc::new(Limits { share, left, time: until.time });
    let mut threads = Vec::new();
    for n in 0..load.threads {
        let (target, operation) = (target.of_thread(n), operation.clone());
        let (limits, barrier) = (Arc::clone(&limits), Arc::clone(&barrier));
        let body = move || {
            barrier.wait();
            one_thread(&target, n * load.inflight, load.inflight, &limits, &operation)
        };
        threads.push(thread::spawn(&format!("bench-{n}"), body).about("threads")?);
    }
    // By the threads' own clocks: this one may sleep while they are at it.
    let (mut first, mut last) = (time::Time::MAX, None);
    let mut sum = Measured {
        done: Vec::new(),
        errors: 0,
        first_error: None,
        time: Duration::ZERO,
        latency_ns: histogram(),
    };
    for thread in threads {
        let of_thread = thread.join().map_err(|_| Failure::new("bench", "a thread panicked"))?;
        let (began, of_thread) = of_thread;
        first = first.min(began);
        last = last.max(Some(began + of_thread.time));
        sum.done.extend(of_thread.done);
        sum.errors += of_thread.errors;
        sum.first_error = sum.first_error.or(of_thread.first_error);
        sum.latency_ns.add(&of_thread.latency_ns).about("latencies")?;
    }
    sum.time = last.map_or(Duration::ZERO, |last| last - first);
    Ok(sum)
}

/// When it began, and what came of it.
fn one_thread<T: Runner, O: Operation<T>>(
    target: &T,
    first_worker: usize,
    workers: usize,
    limits: &Limits,
    operation: &O,
) -> (time::Time, Measured) {
    let began = time::now();
    let end = limits.time.map_or(time::Time::MAX, |time| began + time);
    let tally = Tally {
        latency_ns: RefCell::new(histogram()),
        errors: Cell::new(0),
        first_error: RefCell::new(None),
    };
    let mut done = vec![0; workers];
    target.block_on(async {
        let of_worker = async |i: usize| {
            let worker = first_worker + i;
            let mut n = 0;
            let mut good = 0;
            while limits.take(worker, n, end) {
                let began = time::now();
                let result = operation.run(target, worker, n).await;
                good += u64::from(result.is_ok());
                tally.note(result, time::now() - began);
                n += 1;
            }
            (i, good)
        };
        let mut all: FuturesUnordered<_> = (0..workers).map(of_worker).collect();
        while let Some((i, good)) = all.next().await {
            done[i] = good;
        }
    });
    let measured = Measured {
        done,
        errors: tally.errors.get(),
        first_error: tally.first_error.into_inner(),
        time: time::now() - began,
        latency_ns: tally.latency_ns.into_inner(),
    };
    (began, measured)
}

impl Tally {
    fn note(&self, result: io::Result<()>, took: Duration) {
        match result {
            Ok(()) => self.latency_ns.borrow_mut().saturating_record(took.as_nanos() as u64),
            Err(error) => {
                self.errors.set(self.errors.get() + 1);
                self.first_error.borrow_mut().get_or_insert_with(|| error.to_string());
            }
        }
    }
}
