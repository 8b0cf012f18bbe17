//! `saker bench raw`: what this machine could do if the rest of Saker cost nothing.

use std::path::PathBuf;
use std::time::Duration;

use saker_engine::bench::{self, Figure};
use saker_runtime::rand;

use super::echo;
use super::report::{Phase, Report};
use super::spin::Spinners;
use crate::fail::{Context, Failure, Outcome};

/// Measure what is below everything: journal and tables of one shard on this disk, and frames
/// over the loopback.
#[derive(clap::Args)]
pub struct Args {
    /// On which disk: a directory of its own is made in this one.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Seconds of each phase.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// Keep all cores awake with idle-priority loops. Stated in the output.
    #[arg(long)]
    spin: bool,
    /// One JSON document instead of a table.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome<u8> {
    let time = Duration::try_from_secs_f64(args.seconds)
        .map_err(|why| Failure::usage("--seconds", why))?;
    let _spinners = args.spin.then(Spinners::start).transpose()?;
    let dir = args.dir.join(format!("saker-bench-{:08x}", rand::u64() as u32));
    std::fs::create_dir_all(&dir).about(dir.display())?;
    let figures = bench::raw(&dir, args.seconds);
    std::fs::remove_dir_all(&dir).about(dir.display())?;
    let figures = figures.about("bench raw")?;
    let mut report = Report::begin("raw".to_owned(), args.spin, None, args.json);
    for (name, figure) in [
        ("write, 256 to a flush", &figures.write_256),
        ("write, 1 to a flush", &figures.write_1),
        ("read, from overlay", &figures.read_overlay),
        ("read, from table", &figures.read_table),
        ("read, absent row", &figures.read_absent),
    ] {
        report.add(of_engine(name, figure));
    }
    echo::measure(time)?.into_iter().for_each(|phase| report.add(phase));
    report.end()?;
    Ok(0)
}

/// The engine gives sums; each operation takes its turn, so the mean follows from them.
fn of_engine(name: &str, figure: &Figure) -> Phase {
    let mean_us = figure.time.as_secs_f64() * 1e6 / figure.ops.max(1) as f64;
    Phase {
        phase: name.to_owned(),
        threads: 1,
        inflight: 1,
        ops: figure.ops,
        seconds: figure.time.as_secs_f64(),
        ops_per_s: figure.per_s(),
        mib_per_s: 0.0,
        mean_us,
        p50_us: None,
        p99_us: None,
        max_us: None,
        errors: 0,
        cpu_us_per_op: [("client".to_owned(), figure.cpu_us())].into(),
        requests_per_op: Default::default(),
        store_read_bytes: None,
    }
}
