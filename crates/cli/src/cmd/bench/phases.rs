//! What all benchmarks of a file system share: the target, its directory, the phases one after the
//! other, and the clean-up.

use std::sync::Arc;

use saker_runtime::rand;

use super::counters::Counts;
use super::cpu::{self, Watched};
use super::libfs::LibFs;
use super::load::{self, Load, Measured, Operation, Share, Until};
use super::posix::{self, Posix};
use super::report::{Phase, Report};
use super::spin::Spinners;
use super::target::{DirPath, Target};
use super::{Common, finish};
use crate::fail::{Context, Failure, Outcome};
use crate::layout::{ClusterDir, ClusterLayout};
use crate::{mountpoint, session, signals};

/// A benchmark: what it does, whatever it is done to.
pub trait Program {
    /// Its options that all have.
    fn common(&self) -> &Common;

    /// Runs its phases in [`Bench`]'s directory.
    fn phases<T: Target>(&self, bench: &mut Bench<T>) -> Outcome;

    /// Name of a directory that outlives the program; by default it has one of its own, which is
    /// made before the phases and removed after them.
    fn kept_dir(&self) -> Option<&'static str> {
        None
    }
}

/// A target under a load, and what was measured so far.
pub struct Bench<T> {
    /// The file system.
    pub target: T,
    /// Operations under way.
    pub load: Load,
    /// When a phase ends that has no reason to end otherwise.
    pub until: Until,
    pids: Vec<Watched>,
    cluster: Option<ClusterLayout>,
    depth: u32,
    report: Report,
    _spinners: Option<Spinners>,
}

/// Runs a benchmark on the target that the command line names.
pub fn run(program: &impl Program) -> Outcome<u8> {
    let common = program.common();
    let name = match program.kept_dir() {
        Some(name) => name.to_owned(),
        None => format!("saker-bench-{:08x}", rand::u64() as u32),
    };
    match common.path.first() {
        Some(path) => {
            let system = posix::fstype(path);
            let mounted = mountpoint::inside(path)?;
            let dir = mounted.and_then(|inside| ClusterDir::new(inside.source.as_ref()).ok());
            let pids = dir.as_ref().map(cpu::of_cluster).unwrap_or_default();
            let dirs = common.path.iter().map(|path| path.join(&name));
            let target = Posix::new(dirs.collect(), common.sync_dirs);
            Bench::new(common, target, system, pids, dir)?.run(program)
        }
        None => {
            let cluster = common.cluster.name();
            let dir = ClusterDir::new(cluster.as_ref())?;
            let pids = cpu::of_servers(&dir);
            let session = session::connect(&cluster, saker_client::ClientOptions::default())?;
            let target = LibFs::new(session, name);
            Bench::new(common, target, "saker".to_owned(), pids, Some(dir))?.run(program)
        }
    }
}

impl<T: Target> Bench<T> {
    fn new(
        common: &Common,
        target: T,
        system: String,
        found: Vec<Watched>,
        dir: Option<ClusterDir>,
    ) -> Outcome<Bench<T>> {
        let pids = if common.pids.is_empty() { found } else { common.pids.clone() };
        Ok(Bench {
            target,
            load: common.load(),
            until: common.until()?,
            pids,
            cluster: dir.and_then(|dir| dir.load().ok()),
            depth: common.depth,
            report: Report::begin(system, common.spin, Some(common.depth), common.json),
            _spinners: common.spin.then(Spinners::start).transpose()?,
        })
    }

    /// Makes the directory, runs the phases, removes everything, prints.
    fn run(mut self, program: &impl Program) -> Outcome<u8> {
        signals::catch_interrupt();
        if program.kept_dir().is_some() {
            program.phases(&mut self)?;
        } else {
            self.target.make_base().about("bench: making its directory")?;
            let ran = program.phases(&mut self);
            self.target.remove_base().about("bench: removing its directory")?;
            ran?;
        }
        finish(&self.report)
    }

    /// Makes directories at the depth that was asked for, one below each of so many names.
    pub fn make_dirs(&self, prefix: &str, count: usize) -> Outcome<Arc<Vec<DirPath>>> {
        let dir = |n: usize| {
            let below = (1..self.depth).map(|level| format!("l{level}"));
            std::iter::once(format!("{prefix}{n}")).chain(below).collect()
        };
        let dirs: Vec<DirPath> = (0..count).map(dir).collect();
        for dir in &dirs {
            for depth in 0..dir.len() {
                let place = self.target.place(&dir[..depth].to_vec(), &dir[depth]);
                let made = self.target.block_on(self.target.mkdir(&place));
                made.about("bench: making its directories")?;
            }
        }
        Ok(Arc::new(dirs))
    }

    /// A directory for each worker, in which nobody else works.
    pub fn private_dirs(&self) -> Outcome<Arc<Vec<DirPath>>> {
        self.make_dirs("w", self.load.workers())
    }

    /// Runs one phase; returns how many operations of each worker succeeded. `bytes`: file data of
    /// one operation.
    pub fn phase<O: Operation<T>>(
        &mut self,
        name: &str,
        until: Until,
        share: Share,
        bytes: u64,
        operation: &O,
    ) -> Outcome<Vec<u64>> {
        let before = (self.counts(), cpu::sample(&self.pids));
        let measured = self.unreported(name, until, share, operation)?;
        let used = cpu::used(before.1, cpu::sample(&self.pids));
        let mut phase = Phase::new(name, self.load, &measured, bytes, used);
        if let (Some(before), Some(after)) = (before.0, self.counts()) {
            phase.count(&after.since(&before));
        }
        self.report.add(phase);
        Ok(measured.done)
    }

    /// The same for what is no result but makes one possible.
    pub fn unreported<O: Operation<T>>(
        &self,
        name: &str,
        until: Until,
        share: Share,
        operation: &O,
    ) -> Outcome<Measured> {
        let until = match signals::interrupted() {
            true => Until { ops: Some(0), time: None },
            false => until,
        };
        let measured = load::run(&self.target, self.load, until, share, operation)?;
        if let Some(error) = &measured.first_error {
            let failure = Failure::new(format!("bench {name}"), error);
            eprintln!("saker: {failure} ({} operations failed)", measured.errors);
        }
        Ok(measured)
    }

    /// Compares the throughput of two phases of this run.
    pub fn ratio(&mut self, of: &str, to: &str) {
        self.report.ratio(of, to);
    }

    fn counts(&self) -> Option<Counts> {
        Counts::of(self.cluster.as_ref()?).ok()
    }
}
