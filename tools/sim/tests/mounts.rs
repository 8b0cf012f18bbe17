//! Mounts below a model of the kernel, on the simulated cluster: thousands of seeds, and the rules broken on
//! purpose.
//!
//! `SAKER_SIM_SEEDS` says how many seeds; `simulate --mounts` (a binary of this crate) runs any number.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use saker_sim::mounts::{Config, run, run_and_explain};
use saker_sim::world::Failure;

/// Lines of a failing run's log that are printed.
const LINES_MAX: usize = 300;
/// Seeds that are run, and within which each broken rule must be found.
const SEEDS: u64 = 2_000;

/// Fails, and says what happened.
fn tell(failure: &Failure) -> ! {
    let lines: Vec<&str> = failure.log.lines().collect();
    for line in lines.iter().skip(lines.len().saturating_sub(LINES_MAX)) {
        println!("{line}");
    }
    panic!("seed {}: {}", failure.seed, failure.what);
}

/// Calls `f` with each number, on all processors, until it says no.
fn on_all(numbers: std::ops::Range<u64>, f: impl Fn(u64) -> bool + Sync) {
    let (next, ended) = (AtomicU64::new(numbers.start), AtomicBool::new(false));
    let work = || {
        while !ended.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return;
            }
            if !f(number) {
                ended.store(true, Ordering::Relaxed);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().expect("a seed failed");
        }
    });
}

#[test]
fn no_seed_breaks_a_rule() {
    let seeds = std::env::var("SAKER_SIM_SEEDS").ok().and_then(|n| n.parse().ok());
    let start = std::time::Instant::now();
    on_all(0..seeds.unwrap_or(SEEDS), |seed| {
        let report = run_and_explain(&Config::of_seed(seed)).unwrap_or_else(|f| tell(&f));
        assert!(report.calls > 30 && report.good > 5, "{report:?}");
        true
    });
    // Real time: printed only.
    println!("{:.0} s", start.elapsed().as_secs_f64());
}

#[test]
fn a_seed_gives_the_same_log_each_time() {
    for seed in 0..20 {
        let runs = [0, 1].map(|_| run(&Config::of_seed(seed)).unwrap_or_else(|f| tell(&f)));
        let [first, again] = runs.map(|report| (report.digest, report.events, report.steps));
        assert_eq!(first, again, "seed {seed}");
    }
}

/// Rules of the mount that can be switched off (`simulate --mounts --mutation NAME`), and are found within
/// [`SEEDS`].
const MUTATIONS: [&str; 5] = [
    "a call acts where another has walked",
    "older attributes than are known",
    "what went is not walked to again",
    "attributes that are not heeded",
    "a second walk expects",
];

/// The same of rules that few seeds need: one in some ten thousand.
const RARE: [&str; 5] = [
    "one directory by two names",
    "a place by a locked name",
    "a directory that is taken for removed",
    "a rename by what its names lead to",
    "a lookup of what is to be made is stale",
];
/// Within so many seeds each of those is found.
const RARE_SEEDS: u64 = 50_000;

fn is_found(mutation: &'static str, seeds: u64) {
    let found: Mutex<Option<Failure>> = Mutex::default();
    on_all(0..seeds, |seed| {
        let broken = run(&Config { mutation: Some(mutation), ..Config::of_seed(seed) });
        let Err(failure) = broken else { return true };
        *found.lock().unwrap() = Some(failure);
        false
    });
    let found = found.into_inner().unwrap();
    let Some(failure) = found else { panic!("{mutation}: not found in {seeds} seeds") };
    let what: Vec<&str> = failure.what.lines().take(2).collect();
    println!("{mutation}: found with seed {}: {}", failure.seed, what.join(" "));
}

#[test]
fn each_broken_rule_is_found() {
    MUTATIONS.into_iter().for_each(|mutation| is_found(mutation, SEEDS));
}

/// Where `SAKER_SIM_SEEDS` asks for more than usual.
#[test]
fn each_broken_rule_that_few_seeds_need_is_found() {
    if std::env::var("SAKER_SIM_SEEDS").is_err() {
        println!("not run: see make test-long");
        return;
    }
    RARE.into_iter().for_each(|mutation| is_found(mutation, RARE_SEEDS));
}
