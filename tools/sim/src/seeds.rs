//! Runs that follow from a seed, of a [cluster](crate::world) or of [mounts](crate::mounts): many
//! of them, on all processors, and what is said of one that fails.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A run that went wrong.
#[derive(Debug)]
pub struct SeedFailure {
    /// Of the run.
    pub seed: u64,
    /// What the checkers found.
    pub what: String,
    /// The schedule and the last events, if the run was readable.
    pub log: String,
}

impl SeedFailure {
    /// The first lines of what was found.
    pub fn head(&self, lines: usize) -> String {
        self.what.lines().take(lines).collect::<Vec<_>>().join(" ")
    }
}

/// The seed, so many lines of the log, and what was found.
impl fmt::Display for SeedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&str> = self.log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LINES_MAX)..] {
            writeln!(f, "{line}")?;
        }
        write!(f, "seed {}: {}", self.seed, self.what)
    }
}

/// Lines of a failing run's log that are printed.
const LINES_MAX: usize = 400;

/// A run that follows from a seed.
pub trait SeedRun: Clone + Sync {
    /// What a run shows.
    type Report: fmt::Debug;

    /// The run of a seed.
    fn of_seed(seed: u64) -> Self;

    /// The same with a rule that is broken on purpose.
    fn with_mutation(self, mutation: Option<&'static str>) -> Self;

    /// The same with lines that can be read.
    fn readable(self) -> Self;

    /// Plays it and judges it.
    ///
    /// # Errors
    /// What the checkers found.
    fn run(&self) -> Result<Self::Report, SeedFailure>;

    /// As [`SeedRun::run`]; a run that fails is played again to say what happened.
    ///
    /// # Errors
    /// What the checkers found, with the schedule and the last events.
    fn run_and_explain(&self) -> Result<Self::Report, SeedFailure> {
        self.run().or_else(|_| self.clone().readable().run())
    }
}

/// Calls `f` with each number, on all processors, until it says no.
///
/// # Panics
/// If `f` does.
pub fn on_all(numbers: Range<u64>, f: impl Fn(u64) -> bool + Sync) {
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

/// The failure of one of the first seeds with a rule broken, which it does not have without.
pub fn find<R: SeedRun>(mutation: &'static str, seeds: u64) -> Option<SeedFailure> {
    let found: Mutex<Option<SeedFailure>> = Mutex::default();
    on_all(0..seeds, |seed| match R::of_seed(seed).with_mutation(Some(mutation)).run() {
        Ok(_) => true,
        Err(_) if R::of_seed(seed).run().is_err() => true,
        Err(failure) => {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            if found.as_ref().is_none_or(|other| other.seed > failure.seed) {
                *found = Some(failure);
            }
            false
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// [`find`], for a test that demands it.
///
/// # Panics
/// If no seed finds it.
pub fn must_find<R: SeedRun>(mutation: &'static str, seeds: u64) {
    let found = find::<R>(mutation, seeds);
    let failure = found.unwrap_or_else(|| panic!("{mutation}: not found in {seeds} seeds"));
    println!("{mutation}: found with seed {}: {}", failure.seed, failure.head(2));
}
