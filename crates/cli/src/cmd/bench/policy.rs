//! `saker bench policy`: what the mechanisms of a policy cost (Cudele section 5).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use saker_client::{Caller, ClientOptions, Fs};
use saker_runtime::{rand, time};
use saker_types::policy::{Durability, Policy};
use saker_types::wire::At;

use super::cpu::{self, Watched};
use super::finish;
use super::libfs::LibFs;
use super::load::{self, Load, Measured, Operation, Share, Until};
use super::report::{Phase, Report};
use super::target::Target;
use crate::cmd::policy::written::{self, GivenKeys};
use crate::fail::{Context, Failure, Outcome};
use crate::layout::ClusterDir;
use crate::session::{self, ClusterArg};
use crate::signals;

/// Measure a policy: one client makes files in one directory that has it, through LibFS.
///
/// Phases, as far as the policy has them: `create`; `persist`: what the policy keeps is made durable
/// (fsync of the directory); `list`: all names are read by the same client; `merge`: others see them.
/// Each is told in seconds and for each file. A round has a directory of its own.
///
/// With --into it creates in directories that are there, as somebody else's client does, and counts how
/// often it was refused.
///
/// Examples:
///   saker bench policy --consistency weak --durability none --files 100000
///   saker bench policy policy.yaml --journal-dir /nvme/journals --rounds 20 --json
///   saker bench policy --into /run-1,/run-2 --seconds 10
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArg,
    /// The policy in YAML or JSON; none: strong and global, and nothing is set.
    #[arg(value_name = "FILE", conflicts_with = "keys")]
    file: Option<PathBuf>,
    #[command(flatten)]
    keys: GivenKeys,
    /// Files of a round.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    files: u64,
    /// Rounds.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Operations under way.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    inflight: u32,
    /// Where the client keeps its journals, for durability local.
    #[arg(long, value_name = "DIR")]
    journal_dir: Option<PathBuf>,
    /// Name of the directory, in the root, which is made (default: a new one), for those who work --into it.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Leave the directories behind.
    #[arg(long)]
    keep: bool,
    /// Create in these directories of the root instead, in turn, until --seconds are over.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', requires = "seconds")]
    #[arg(conflicts_with_all = ["keys", "file", "rounds", "name", "journal_dir"])]
    into: Vec<String>,
    /// Seconds of creating at most.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Processes whose CPU time is counted (default: those of the cluster's directory).
    #[arg(long, value_name = "NAME:PID,..", value_delimiter = ',', value_parser = cpu::parse_pid)]
    pids: Vec<Watched>,
    /// One JSON document instead of a table.
    #[arg(long)]
    json: bool,
}

/// Creates files, in one directory or in several in turn.
#[derive(Clone)]
struct Creates {
    dirs: Arc<Vec<At>>,
    /// Tells this process's files from others'.
    mark: u32,
}

impl Operation<LibFs> for Creates {
    async fn run(&self, target: &LibFs, worker: usize, n: u64) -> io::Result<()> {
        let mut place = self.dirs[n as usize % self.dirs.len()].clone();
        place.path.push(format!("f{:x}-{worker}-{n}", self.mark).into());
        target.create(&place).await
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    signals::catch_interrupt();
    let policy = match (args.keys.policy()?, &args.file) {
        (None, Some(file)) => Some(written::read(file)?),
        (policy, _) => policy,
    };
    let name = args.cluster.name();
    let pids = match args.pids.is_empty() {
        true => cpu::of_servers(&ClusterDir::new(name.as_ref())?),
        false => args.pids.clone(),
    };
    let options =
        ClientOptions { journal_dir: args.journal_dir.clone(), ..ClientOptions::default() };
    let session = session::connect(&name, options)?;
    let seconds = args.seconds.map(Duration::try_from_secs_f64).transpose();
    let mut bench = PolicyBench {
        args,
        policy,
        time: seconds.map_err(|why| Failure::usage("--seconds", why))?,
        pids,
        fs: session.fs.clone(),
        who: session.who.clone(),
        target: LibFs::new(session, String::new()),
        made: Vec::new(),
        report: Report::begin("saker".to_owned(), false, None, args.json),
    };
    if !args.into.is_empty() {
        bench.create(args.into.clone(), None)?;
        bench.report.end()?;
        return Ok(0);
    }
    let measured = (0..args.rounds).try_for_each(|round| match signals::interrupted() {
        true => Ok(()),
        false => bench.round(round),
    });
    if !args.keep {
        for dir in &bench.made {
            bench.target.based(dir).remove_base().about("bench: removing its directory")?;
        }
    }
    bench.fs.close().about("bench: merging")?;
    measured?;
    finish(&bench.report)
}

/// What is measured, and what came of it.
struct PolicyBench<'a> {
    args: &'a Args,
    policy: Option<Policy>,
    time: Option<Duration>,
    pids: Vec<Watched>,
    fs: Fs,
    who: Caller,
    target: LibFs,
    /// Names of directories.
    made: Vec<String>,
    report: Report,
}

impl PolicyBench<'_> {
    fn round(&mut self, round: u32) -> Outcome {
        let name = match &self.args.name {
            Some(name) if round == 0 => name.clone(),
            Some(name) => format!("{name}-{round}"),
            None => format!("saker-bench-{:08x}", rand::u64() as u32),
        };
        let base = self.target.based(&name);
        base.make_base().about("bench: making its directory")?;
        self.made.push(name.clone());
        let (at, who) = (base.base_place(), self.who.clone());
        if let Some(policy) = &self.policy {
            self.fs.block_on(self.fs.set_policy(&who, &at, policy)).about("bench: the policy")?;
        }
        let made = self.create(vec![name], Some(self.args.files))?;
        let fs = self.fs.clone();
        let is_decoupled = self.policy.as_ref().is_some_and(Policy::is_decoupled);
        let persists =
            self.policy.as_ref().is_none_or(|policy| policy.durability() != Durability::None);
        if persists || !is_decoupled {
            self.once("persist", made, async || {
                let loc = fs.lookup(&who, &at).await?.loc;
                fs.fsync_dir(&who, &loc).await
            })?;
        }
        let listed = self.once("list", made, async || count(&fs, &who, &at).await)?;
        if is_decoupled {
            self.once("merge", made, async || {
                let report = fs.merge_subtree(&who, &at, false).await?;
                Ok(report.names)
            })?;
        }
        // Others may have made some, too.
        if listed < made {
            let text = format!("{made} files were made, and {listed} are listed");
            return Err(Failure::new("bench policy", text));
        }
        Ok(())
    }

    /// Returns how many files were made.
    fn create(&mut self, dirs: Vec<String>, files: Option<u64>) -> Outcome<u64> {
        let load = Load { threads: 1, inflight: self.args.inflight as usize };
        let until = Until { ops: files, time: self.time };
        // By a handle, as programs do that work in a directory: a path from the root is asked for anew each time.
        // Whom a policy keeps out has no handle.
        let place = |name: &String| {
            let at = self.target.based(name).base_place();
            let found = self.fs.block_on(self.fs.lookup(&self.who, &at));
            found.map_or(at, |found| At::handle(found.loc))
        };
        let dirs = Arc::new(dirs.iter().map(place).collect());
        let operation = Creates { dirs, mark: rand::u64() as u32 };
        let before = cpu::sample(&self.pids);
        let measured = load::run(&self.target, load, until, Share::Open, &operation)?;
        self.note("create", load, &measured, before);
        Ok(measured.done.iter().sum())
    }

    /// Measures what is done once for all `files`.
    fn once<T>(
        &mut self,
        name: &str,
        files: u64,
        run: impl AsyncFnOnce() -> saker_types::Result<T>,
    ) -> Outcome<T> {
        let before = cpu::sample(&self.pids);
        let began = time::now();
        let done = self.fs.block_on(run()).about(format!("bench: {name}"))?;
        let took = time::now() - began;
        let mut latency_ns = Histogram::new(3).about("latencies")?;
        latency_ns.saturating_record((took.as_nanos() as u64).max(1));
        let measured =
            Measured { done: vec![files], errors: 0, first_error: None, time: took, latency_ns };
        self.note(name, Load { threads: 1, inflight: 1 }, &measured, before);
        Ok(done)
    }

    fn note(
        &mut self,
        name: &str,
        load: Load,
        measured: &Measured,
        before: Vec<(String, Duration)>,
    ) {
        let used = cpu::used(before, cpu::sample(&self.pids));
        self.report.add(Phase::new(name, load, measured, 0, used));
    }
}

/// Reads a directory to the end.
async fn count(fs: &Fs, who: &Caller, at: &At) -> saker_types::Result<u64> {
    let loc = fs.lookup(who, at).await?.loc;
    let mut stream = fs.readdir(who, &loc, 0);
    let mut names = 0;
    while stream.next().await?.is_some() {
        names += 1;
    }
    Ok(names)
}
