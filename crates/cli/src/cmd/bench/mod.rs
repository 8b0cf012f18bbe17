//! `saker bench`: how fast a cluster, or any mounted file system, is.

mod burst;
mod content;
mod counters;
mod cpu;
mod echo;
mod libfs;
mod load;
mod meta;
mod phases;
mod policy;
mod posix;
mod raw;
mod report;
mod shared;
mod small;
mod spin;
mod target;
mod traverse;

use std::path::PathBuf;
use std::time::Duration;

use crate::fail::{Failure, Outcome};
use crate::session::ClusterArg;

use load::{Load, Until};
use report::Report;

/// Measure a cluster or a mounted file system.
///
/// With --path, any mounted file system is measured through system calls, so that others can be
/// compared; without it, the cluster is measured through LibFS, one public call per operation.
/// Works in a directory of its own, which it removes.
///
/// Examples:
///   saker bench meta --cluster .saker --threads 2 --inflight 64
///   saker bench meta --path /mnt/other --threads 32 --pids server:1234
///   saker bench small --path ./mnt --size 4096 --files 20000 --json
///   saker bench traverse --path ./mnt --depth 4 --files 100000
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Meta(meta::Args),
    Small(small::Args),
    Traverse(traverse::Args),
    Shared(shared::Args),
    Burst(burst::Args),
    Policy(policy::Args),
    Raw(raw::Args),
    #[command(hide = true)]
    Spinner(spin::Args),
    #[command(hide = true)]
    EchoServer(echo::ServerArgs),
}

/// What all benchmarks of a file system take.
#[derive(clap::Args)]
pub struct Common {
    #[command(flatten)]
    cluster: ClusterArg,
    /// Measure the file system mounted at this directory instead, through system calls. Several:
    /// mounts of one file system, as client machines have them; the threads take turns.
    #[arg(long, value_name = "DIR", conflicts_with = "cluster")]
    path: Vec<PathBuf>,
    /// Threads that send (default: 2, with --path 16).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Operations under way on each thread (default: 32); with --path it is 1.
    #[arg(long, value_name = "N", conflicts_with = "path")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    inflight: Option<u32>,
    /// Directories above each file.
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    depth: u32,
    /// Operations of a phase (default: as many as the time allows); with traverse, files of the tree.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    files: Option<u64>,
    /// Seconds of a phase (default: 20, with --files no limit).
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Flush the directory (fsync) after each operation that changes it, for file systems that
    /// acknowledge earlier. With --path only.
    #[arg(long, requires = "path")]
    sync_dirs: bool,
    /// Processes whose CPU time is counted (default: those of the cluster's directory).
    #[arg(long, value_name = "NAME:PID,..", value_delimiter = ',', value_parser = cpu::parse_pid)]
    pids: Vec<cpu::Watched>,
    /// Keep all cores awake with idle-priority loops, so that sleep states of an otherwise idle
    /// machine do not show up as latency. Stated in the output.
    #[arg(long)]
    spin: bool,
    /// One JSON document instead of a table.
    #[arg(long)]
    json: bool,
}

const TIME_DEFAULT: Duration = Duration::from_secs(20);

impl Common {
    /// Threads and operations under way on each.
    fn load(&self) -> Load {
        let (threads, inflight) = if self.path.is_empty() { (2, 32) } else { (16, 1) };
        Load {
            threads: self.threads.unwrap_or(threads) as usize,
            inflight: self.inflight.unwrap_or(inflight) as usize,
        }
    }

    /// When a phase ends.
    fn until(&self) -> Outcome<Until> {
        let time = match (self.time()?, self.files) {
            (None, None) => Some(TIME_DEFAULT),
            (given, _) => given,
        };
        Ok(Until { ops: self.files, time })
    }

    /// How long a phase may last at most, if that was said.
    fn time(&self) -> Outcome<Option<Duration>> {
        let time = self.seconds.map(Duration::try_from_secs_f64).transpose();
        time.map_err(|why| Failure::usage("--seconds", why))
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    match &args.command {
        Command::Meta(args) => phases::run(args),
        Command::Small(args) => phases::run(args),
        Command::Traverse(args) => phases::run(args),
        Command::Shared(args) => phases::run(args),
        Command::Burst(args) => phases::run(args),
        Command::Policy(args) => policy::run(args),
        Command::Raw(args) => raw::run(args),
        Command::Spinner(args) => spin::run(args),
        Command::EchoServer(args) => echo::run_server(args),
    }
}

/// Prints the result, also of a benchmark that was cut short.
fn finish(report: &Report) -> Outcome<u8> {
    report.end()?;
    if crate::signals::interrupted() {
        return Err(Failure::new("bench", "interrupted"));
    }
    let errors: u64 = report.phases.iter().map(|phase| phase.errors).sum();
    Ok(u8::from(errors > 0))
}
