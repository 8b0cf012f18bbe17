//! `saker bench meta` and what it shares with `small`: the directories of the workers, the
//! phases, one after the other, and the clean-up.

use std::io;
use std::sync::Arc;

use saker_runtime::{rand, thread};

use super::cpu::{self, Watched};
use super::libfs::LibFs;
use super::load::{self, Load, Operation, Share, Until};
use super::posix::{self, Posix};
use super::report::{Phase, Report};
use super::spin::Spinners;
use super::target::{Dir, Target};
use super::{Common, finish};
use crate::fail::{Context, Failure, Outcome};
use crate::layout::ClusterDir;
use crate::{mountpoint, session, signals};

/// Measure metadata: mkdir, create, getattr, open, unlink, rmdir.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

/// What a worker does to its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Create,
    Getattr,
    Open,
    Unlink,
    Mkdir,
    Rmdir,
}

#[derive(Clone)]
struct MetaOp {
    what: What,
    dirs: Arc<Vec<Dir>>,
    /// Entries of each worker; operations on what is there go round and round.
    there: Arc<Vec<u64>>,
}

impl<T: Target> Operation<T> for MetaOp {
    async fn run(&self, target: &T, worker: usize, n: u64) -> io::Result<()> {
        let dir = &self.dirs[worker];
        let there = || self.there[worker].max(1);
        let place = |prefix: &str, n: u64| target.place(dir, &format!("{prefix}{worker}-{n}"));
        match self.what {
            What::Create => target.create(&place("f", n)).await,
            What::Getattr => target.getattr(&place("f", n % there())).await,
            What::Open => target.open(&place("f", n % there())).await,
            What::Unlink => target.unlink(&place("f", n)).await,
            What::Mkdir => target.mkdir(&place("d", n)).await,
            What::Rmdir => target.rmdir(&place("d", n)).await,
        }
    }
}

pub fn run(args: &Args) -> Outcome<u8> {
    match Bench::<LibFs>::prepare(&args.common)? {
        Prepared::LibFs(bench) => bench.run(&args.common, phases),
        Prepared::Posix(bench) => bench.run(&args.common, phases),
    }
}

fn phases<T: Target>(bench: &mut Bench<T>) -> Outcome {
    let all = bench.until;
    let dirs = bench.meta(What::Mkdir, all, Share::Open, None)?;
    let files = bench.meta(What::Create, all, Share::Open, None)?;
    if files.iter().all(|n| *n == 0) {
        return Ok(());
    }
    // Workers that made none have nothing to look at.
    let busy: Vec<u64> = files.iter().map(|n| if *n > 0 { u64::MAX } else { 0 }).collect();
    let busy = Share::Each(Arc::new(busy));
    bench.meta(What::Getattr, all, busy.clone(), Some(&files))?;
    bench.meta(What::Open, all, busy, Some(&files))?;
    // All that was made is removed, however long it takes.
    let gone = Until { ops: None, time: None };
    bench.meta(What::Unlink, gone, Share::Each(Arc::new(files)), None)?;
    bench.meta(What::Rmdir, gone, Share::Each(Arc::new(dirs)), None)?;
    Ok(())
}

/// A benchmark of one target.
pub struct Bench<T> {
    target: T,
    load: Load,
    pub until: Until,
    pids: Vec<Watched>,
    dirs: Arc<Vec<Dir>>,
    report: Report,
    _spinners: Option<Spinners>,
}

/// Which target the command line asks for.
pub enum Prepared {
    LibFs(Bench<LibFs>),
    Posix(Bench<Posix>),
}

impl<T> Bench<T> {
    /// Connects, or looks at the path; makes nothing yet.
    pub fn prepare(common: &Common) -> Outcome<Prepared> {
        let name = format!("saker-bench-{:08x}", rand::u64() as u32);
        match &common.path {
            Some(path) => {
                let system = posix::fstype(path);
                let mounted = mountpoint::inside(path)?;
                let dir = mounted.and_then(|inside| ClusterDir::new(inside.source.as_ref()).ok());
                let pids = dir.map(|dir| cpu::of_cluster(&dir)).unwrap_or_default();
                Ok(Prepared::Posix(Bench::new(common, Posix::new(path.join(name)), system, pids)?))
            }
            None => {
                let cluster = common.cluster.name();
                let dir = ClusterDir::new(cluster.as_ref())?;
                let pids = cpu::of_servers(&dir);
                let session = session::connect(&cluster, saker_client::ClientOptions::default())?;
                let target = LibFs::new(session, name);
                Ok(Prepared::LibFs(Bench::new(common, target, "saker".to_owned(), pids)?))
            }
        }
    }
}

impl<T: Target> Bench<T> {
    fn new(common: &Common, target: T, system: String, found: Vec<Watched>) -> Outcome<Bench<T>> {
        let load = common.load();
        let dir = |worker: usize| {
            let below = (1..common.depth).map(|level| format!("l{level}"));
            std::iter::once(format!("w{worker}")).chain(below).collect()
        };
        let dirs = Arc::new((0..load.workers()).map(dir).collect());
        let pids = if common.pids.is_empty() { found } else { common.pids.clone() };
        let (cores, depth, phases) = (thread::parallelism(), Some(common.depth), Vec::new());
        let report = Report { system, cores, spin: common.spin, depth, phases };
        let until = common.until()?;
        let _spinners = common.spin.then(Spinners::start).transpose()?;
        Ok(Bench { target, load, until, pids, dirs, report, _spinners })
    }

    /// Makes the workers' directories, runs the phases, removes everything, prints.
    pub fn run(
        mut self,
        common: &Common,
        phases: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome<u8> {
        signals::catch_interrupt();
        self.target.make_base().about("bench: making its directory")?;
        let ran = self.make_dirs().and_then(|()| phases(&mut self));
        self.target.remove_base().about("bench: removing its directory")?;
        ran?;
        finish(common, &self.report)
    }

    fn make_dirs(&self) -> Outcome {
        for dir in self.dirs.iter() {
            for depth in 0..dir.len() {
                let place = self.target.place(&dir[..depth].to_vec(), &dir[depth]);
                let made = self.target.block_on(self.target.mkdir(&place));
                made.about("bench: making its directories")?;
            }
        }
        Ok(())
    }

    fn meta(
        &mut self,
        what: What,
        until: Until,
        share: Share,
        there: Option<&[u64]>,
    ) -> Outcome<Vec<u64>> {
        let name = format!("{what:?}").to_lowercase();
        let there = there.map_or_else(|| vec![0; self.load.workers()], <[u64]>::to_vec);
        let operation = MetaOp { what, dirs: Arc::clone(&self.dirs), there: Arc::new(there) };
        self.phase(&name, until, share, 0, &operation)
    }

    /// The directory of each worker.
    pub fn dirs(&self) -> Arc<Vec<Dir>> {
        Arc::clone(&self.dirs)
    }

    /// Runs one phase; returns how many operations of each worker succeeded.
    pub fn phase<O: Operation<T>>(
        &mut self,
        name: &str,
        until: Until,
        share: Share,
        bytes: u64,
        operation: &O,
    ) -> Outcome<Vec<u64>> {
        if signals::interrupted() {
            return Ok(vec![0; self.load.workers()]);
        }
        let before = cpu::sample(&self.pids);
        let measured = load::run(&self.target, self.load, until, share, operation)?;
        let used = cpu::used(before, cpu::sample(&self.pids));
        if let Some(error) = &measured.first_error {
            let failure = Failure::new(format!("bench {name}"), error);
            eprintln!("saker: {failure} ({} operations failed)", measured.errors);
        }
        self.report.phases.push(Phase::new(name, self.load, &measured, bytes, used));
        Ok(measured.done)
    }
}
