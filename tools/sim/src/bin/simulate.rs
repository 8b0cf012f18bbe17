//! Runs seeds of the simulation, and says what it found.
//!
//! ```text
//! simulate --seeds A..B [--mutation NAME] [--no-faults]   runs them; stops at the first failure
//! simulate --seed N                                       runs one, with its log if it fails
//! simulate --mounts ...                                   mounts below kernels, instead of clients
//! ```

// The figures are of the machine's own clock.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use saker_sim::mounts;
use saker_sim::world::{Config, Failure, Report, points, run, run_and_explain};

/// Lines of a failing run's log that are printed.
const LINES_MAX: usize = 400;

struct Options {
    seeds: std::ops::Range<u64>,
    mutation: Option<&'static str>,
    no_faults: bool,
    go_on: bool,
    mounts: bool,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!(
                "{why}\nusage: simulate [--mounts] --seeds A..B | --seed N [--mutation NAME] [--no-faults] [--go-on]"
            );
            return ExitCode::from(2);
        }
    };
    if options.mounts {
        return run_mounts(&options);
    }
    let start = Instant::now();
    let mut sums = Sums::default();
    let count = options.seeds.end - options.seeds.start;
    let mut failures = 0;
    for seed in options.seeds.clone() {
        let mut config = Config { mutation: options.mutation, ..Config::of_seed(seed) };
        if options.no_faults {
            config = config.without_faults();
        }
        let outcome = if options.go_on { run(&config) } else { run_and_explain(&config) };
        match outcome {
            Ok(report) => sums.add(&report),
            Err(failure) => {
                failures += 1;
                if options.go_on {
                    let lines: Vec<&str> = failure.what.lines().take(4).collect();
                    println!("seed {seed}: {}", lines.join(" "));
                } else {
                    tell(&failure);
                    println!("seed {seed}, the {}. of {count}", seed - options.seeds.start + 1);
                    return ExitCode::FAILURE;
                }
            }
        }
        let done = seed - options.seeds.start + 1;
        if done % 500 == 0 {
            let rate = done as f64 / start.elapsed().as_secs_f64();
            println!("{done} of {count} seeds, {rate:.1} a second, {failures} failed");
        }
    }
    sums.print(start.elapsed().as_secs_f64(), failures);
    if failures > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Seeds of `mounts`.
fn run_mounts(options: &Options) -> ExitCode {
    let start = Instant::now();
    let count = options.seeds.end - options.seeds.start;
    let (mut failures, mut calls, mut good, mut steps, mut steps_max) = (0, 0, 0, 0, 0);
    for seed in options.seeds.clone() {
        let config = mounts::Config { mutation: options.mutation, ..mounts::Config::of_seed(seed) };
        let outcome = match options.go_on {
            true => mounts::run(&config),
            false => mounts::run_and_explain(&config),
        };
        match outcome {
            Ok(report) => {
                calls += report.calls;
                good += report.good;
                steps += report.steps;
                steps_max = steps_max.max(report.steps);
            }
            Err(failure) => {
                failures += 1;
                if !options.go_on {
                    println!("{}\nseed {seed}: {}", failure.log, failure.what);
                    return ExitCode::FAILURE;
                }
                let lines: Vec<&str> = failure.what.lines().take(4).collect();
                println!("seed {seed}: {}", lines.join(" "));
            }
        }
        let done = seed - options.seeds.start + 1;
        if done.is_multiple_of(500) {
            let rate = done as f64 / start.elapsed().as_secs_f64();
            println!("{done} of {count} seeds, {rate:.1} a second, {failures} failed");
        }
    }
    println!(
        "{count} seeds, {failures} with a violation, in {:.1} s: {calls} calls, {good} of them done; \
         {steps} steps of the judge, {steps_max} at most",
        start.elapsed().as_secs_f64(),
    );
    if failures > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options =
        Options { seeds: 0..2_000, mutation: None, no_faults: false, go_on: false, mounts: false };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        match arg.as_str() {
            "--seeds" => {
                let text = value()?;
                let (from, to) = text.split_once("..").ok_or("--seeds A..B")?;
                options.seeds = number(from)?..number(to)?;
            }
            "--seed" => {
                let seed = number(&value()?)?;
                options.seeds = seed..seed + 1;
            }
            "--mutation" => options.mutation = Some(value()?.leak()),
            "--no-faults" => options.no_faults = true,
            "--mounts" => options.mounts = true,
            "--go-on" => options.go_on = true,
            _ => return Err(format!("what is {arg}?")),
        }
    }
    Ok(options)
}

fn tell(failure: &Failure) {
    let lines: Vec<&str> = failure.log.lines().collect();
    for line in lines.iter().skip(lines.len().saturating_sub(LINES_MAX)) {
        println!("{line}");
    }
    println!("seed {}: {}", failure.seed, failure.what);
}

#[derive(Default)]
struct Sums {
    seeds: u64,
    calls: usize,
    events: u64,
    faults: usize,
    crashes: u64,
    hits: BTreeMap<&'static str, u64>,
    tally: BTreeMap<String, (u64, u64)>,
}

impl Sums {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.calls += report.calls;
        self.events += report.events;
        self.faults += report.faults;
        self.crashes += report.crashes;
        for (name, hits) in &report.hits {
            *self.hits.entry(name).or_default() += hits;
        }
        for (name, good, bad) in &report.tally {
            let sum = self.tally.entry(name.clone()).or_default();
            *sum = (sum.0 + good, sum.1 + bad);
        }
    }

    fn print(&self, seconds: f64, failures: u64) {
        println!("calls (good, failed): {:?}", self.tally);
        for name in points::ALL {
            let hits = self.hits.get(name).copied().unwrap_or_default();
            println!("failpoint {name:40} {hits:10}");
        }
        println!(
            "{} seeds without a violation, {failures} with one, in {seconds:.1} s \
             ({:.1} a second): {} calls, {} events, {} faults, {} crashes; {} of {} failpoints hit",
            self.seeds,
            self.seeds as f64 / seconds,
            self.calls,
            self.events,
            self.faults,
            self.crashes,
            points::ALL.iter().filter(|name| self.hits.contains_key(*name)).count(),
            points::ALL.len(),
        );
    }
}
