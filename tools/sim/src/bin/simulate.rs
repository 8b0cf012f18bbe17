//! Runs seeds of the simulation, and says what it found.
//!
//! ```text
//! simulate --seeds A..B [--mutation NAME] [--no-faults]   runs them; stops at the first failure
//! simulate --seed N                                       runs one, with its log if it fails
//! simulate --seeds A..B --changes KIND[,KIND...]          members come, go and move in each
//! simulate --mounts ...                                   mounts below kernels, instead of clients
//! ```

// The figures are of the machine's own clock.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use saker_sim::mounts;
use saker_sim::seeds::SeedRun;
use saker_sim::world::{WorldConfig, WorldReport, changes, points};

/// Seeds between two lines of progress.
const PROGRESS: u64 = 500;

struct Options {
    seeds: std::ops::Range<u64>,
    mutation: Option<&'static str>,
    no_faults: bool,
    go_on: bool,
    mounts: bool,
    changes: Option<Vec<changes::MemberChangeKind>>,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!(
                "{why}\nusage: simulate [--mounts] --seeds A..B | --seed N [--mutation NAME] [--no-faults] [--go-on] [--changes KINDS]"
            );
            return ExitCode::from(2);
        }
    };
    match options.mounts {
        true => run_mounts(&options),
        false => run_clusters(&options),
    }
}

fn run_clusters(options: &Options) -> ExitCode {
    let mut sums = Sums::default();
    let of_seed = |seed| {
        let config = WorldConfig::of_seed(seed);
        let config = if options.no_faults { config.without_faults() } else { config };
        match &options.changes {
            Some(kinds) => config.with_changes(kinds),
            None => config,
        }
    };
    let played = run_all(options, of_seed, |report: WorldReport| sums.add(&report));
    if let Some((failures, seconds)) = played {
        sums.print(seconds, failures);
        if failures == 0 {
            return ExitCode::SUCCESS;
        }
    }
    ExitCode::FAILURE
}

fn run_mounts(options: &Options) -> ExitCode {
    let (mut calls, mut good, mut steps, mut steps_max) = (0, 0, 0, 0);
    let played = run_all(options, mounts::MountsConfig::of_seed, |report: mounts::MountsReport| {
        calls += report.calls;
        good += report.good;
        steps += report.steps;
        steps_max = steps_max.max(report.steps);
    });
    let Some((failures, seconds)) = played else { return ExitCode::FAILURE };
    let count = options.seeds.end - options.seeds.start;
    println!(
        "{count} seeds, {failures} with a violation, in {seconds:.1} s: {calls} calls, {good} of \
         them done; {steps} steps of the judge, {steps_max} at most"
    );
    if failures > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs all seeds: how many failed, and the seconds that it took; `None` if it stopped at the
/// first failure.
fn run_all<R: SeedRun>(
    options: &Options,
    of_seed: impl Fn(u64) -> R,
    mut add: impl FnMut(R::Report),
) -> Option<(u64, f64)> {
    let start = Instant::now();
    let count = options.seeds.end - options.seeds.start;
    let mut failures = 0;
    for (seed, number) in options.seeds.clone().zip(1..) {
        let run = of_seed(seed).with_mutation(options.mutation);
        match if options.go_on { run.run() } else { run.run_and_explain() } {
            Ok(report) => add(report),
            Err(failure) if options.go_on => {
                failures += 1;
                println!("seed {seed}: {}", failure.head(4));
            }
            Err(failure) => {
                println!("{failure}\nseed {seed}, the {number}. of {count}");
                return None;
            }
        }
        if number % PROGRESS == 0 {
            let rate = number as f64 / start.elapsed().as_secs_f64();
            println!("{number} of {count} seeds, {rate:.1} a second, {failures} failed");
        }
    }
    Some((failures, start.elapsed().as_secs_f64()))
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        seeds: 0..2_000,
        mutation: None,
        no_faults: false,
        go_on: false,
        mounts: false,
        changes: None,
    };
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
            "--changes" => {
                let text = value()?;
                let kind = |name| {
                    let found =
                        changes::MemberChangeKind::ALL.into_iter().find(|kind| kind.name() == name);
                    found.ok_or_else(|| {
                        let names = changes::MemberChangeKind::ALL
                            .map(changes::MemberChangeKind::name)
                            .join(", ");
                        format!("{name} is none of {names}")
                    })
                };
                options.changes = Some(text.split(',').map(kind).collect::<Result<_, _>>()?);
            }
            "--no-faults" => options.no_faults = true,
            "--mounts" => options.mounts = true,
            "--go-on" => options.go_on = true,
            _ => return Err(format!("what is {arg}?")),
        }
    }
    Ok(options)
}

#[derive(Default)]
struct Sums {
    seeds: u64,
    calls: usize,
    events: u64,
    faults: usize,
    crashes: u64,
    power_losses: usize,
    told_of_losses: usize,
    hits: BTreeMap<&'static str, u64>,
    tally: BTreeMap<String, (u64, u64)>,
}

impl Sums {
    fn add(&mut self, report: &WorldReport) {
        self.seeds += 1;
        self.calls += report.calls;
        self.events += report.events;
        self.faults += report.faults;
        self.crashes += report.crashes;
        self.power_losses += report.power_losses;
        self.told_of_losses += report.told_of_losses;
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
             ({:.1} a second): {} calls, {} events, {} faults, {} crashes, {} losses \
             of power of stores, which {} calls were told of; {} of {} failpoints hit",
            self.seeds,
            self.seeds as f64 / seconds,
            self.calls,
            self.events,
            self.faults,
            self.crashes,
            self.power_losses,
            self.told_of_losses,
            points::ALL.iter().filter(|name| self.hits.contains_key(*name)).count(),
            points::ALL.len(),
        );
    }
}
