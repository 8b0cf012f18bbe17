//! The mount inside the simulator: real mounts, each below a model of the kernel ([`kernel`]), on the
//! simulated cluster ([`crate::world`]), and a judge of what programs saw ([`judge`]).
//!
//! Programs on two or three mounts, two threads each, and a client of the library make short calls on
//! few names: they move, exchange, replace and remove directories, and write files. Everything
//! follows from a seed.

// Fields of plain records of a test tool.
#![allow(missing_docs)]

pub mod data;
pub mod history;
pub mod judge;
pub mod kernel;
mod script;
mod seam;
pub mod spec;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use saker_mount::{Leases, MountOptions, Shortcut};
use saker_runtime::rand::Rng;

use crate::seeds::{SeedFailure, SeedRun};
use crate::world::linear::Violation;
use crate::world::{self, World};
use kernel::{Kernel, KernelSetup, SimHints};
use script::{Draw, Library, Mix, MountProgram, MountsState, SharedMounts};

/// The cluster's bounds are drawn from the run's seed and this.
const BOUNDS: u64 = 0x626f_756e_6473;

/// Threads of each mount's program.
const THREADS: usize = 2;

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct MountsConfig {
    pub seed: u64,
    pub mounts: usize,
    /// Calls of each thread.
    pub calls: usize,
    /// Calls of the library's client.
    pub library_calls: usize,
    pub options: MountOptions,
    /// Bytes of the largest file that stays in its row.
    pub inline_max: u64,
    pub mix: Mix,
    /// Now and then the kernel gives no hint.
    pub hints_lost: bool,
    pub mutation: Option<&'static str>,
    pub readable: bool,
}

/// What a run showed.
#[derive(Debug)]
pub struct MountsReport {
    pub seed: u64,
    /// Hash of the cluster's log.
    pub digest: u64,
    pub events: u64,
    pub calls: usize,
    /// Calls that succeeded.
    pub good: usize,
    /// Steps of the judge's search.
    pub steps: usize,
}

impl SeedRun for MountsConfig {
    type Report = MountsReport;

    fn of_seed(seed: u64) -> MountsConfig {
        let mut rng = Rng::seeded(seed ^ 0x6d6f_756e_7473);
        let options = MountOptions {
            shortcut: if rng.chance(5, 6) { Shortcut::Bpf } else { Shortcut::Off },
            leases: [Leases::Hot, Leases::All, Leases::Off][rng.below(3) as usize],
            attr_timeout: Duration::from_millis([0, 5, 5][rng.below(3) as usize]),
            ..MountOptions::default()
        };
        let mix = Mix {
            data: [0, 0, 30, 80][rng.below(4) as usize],
            moves: [0, 15, 50][rng.below(3) as usize],
            names: [2, 4, 4][rng.below(3) as usize],
            size_max: [60, 5_000, 10_000][rng.below(3) as usize],
        };
        let mounts = 2 + rng.below(2) as usize;
        MountsConfig {
            seed,
            mounts,
            calls: 24 / mounts / THREADS * 2,
            library_calls: rng.below(8) as usize,
            options,
            inline_max: [64, 4096][rng.below(2) as usize],
            mix,
            hints_lost: rng.chance(1, 4),
            mutation: None,
            readable: false,
        }
    }

    fn with_mutation(self, mutation: Option<&'static str>) -> MountsConfig {
        MountsConfig { mutation, ..self }
    }

    fn readable(self) -> MountsConfig {
        MountsConfig { readable: true, ..self }
    }

    fn run(&self) -> Result<MountsReport, SeedFailure> {
        let log = Rc::new(RefCell::new(Vec::new()));
        let report = |world: &mut World| {
            let (calls, good, steps) = play(self, world, &log)?;
            let (digest, events) = (world.log.digest(), world.log.len());
            Ok(MountsReport { seed: self.seed, digest, events, calls, good, steps })
        };
        let told = |_: &World| format!("{self:#?}\n{}", log.borrow().join("\n"));
        world::simulate(&cluster(self), report, told)
    }
}

fn cluster(config: &MountsConfig) -> world::WorldConfig {
    world::WorldConfig {
        shards: 2,
        clients: config.mounts + 2,
        calls: usize::MAX,
        inline_max: config.inline_max,
        delays_flush: false,
        mutation: config.mutation,
        seed: config.seed,
        ..world::WorldConfig::of_seed(config.seed ^ BOUNDS).without_faults()
    }
}

fn play(
    config: &MountsConfig,
    world: &mut World,
    log: &Rc<RefCell<Vec<String>>>,
) -> Result<(usize, usize, usize), String> {
    let shared: SharedMounts = Rc::new(RefCell::new(MountsState::default()));
    let draw = |world: &mut World| Draw { rng: Rng::seeded(world.rng.u64()), mix: config.mix };
    let begun = Rc::new(RefCell::new(false));
    let coordinator = world.coordinator();
    {
        let sender = world.sender(0);
        let (shared, draw, begun) = (shared.clone(), draw(world), begun.clone());
        let coordinator = coordinator.clone();
        let (spawner, calls) = (world.executor.spawner(), config.library_calls);
        world.executor.spawn(async move {
            let fs = world::connect(sender.clone(), &coordinator, &spawner).await;
            let mut library = Library { fs, draw, shared, sender, thread: 0 };
            library.begin().await;
            *begun.borrow_mut() = true;
            library.run(calls).await;
        });
    }
    let has_begun = begun.clone();
    world.run_until(Duration::from_secs(60), move |_| *has_begun.borrow())?;
    for mount in 0..config.mounts {
        let programs: Vec<Draw> = (0..THREADS).map(|_| draw(world)).collect();
        let (sender, spawner) = (world.sender(1 + mount), world.executor.spawner());
        let (shared, seed, config) = (shared.clone(), world.rng.u64(), config.clone());
        let (log, coordinator) = (log.clone(), coordinator.clone());
        world.executor.spawn(async move {
            let fs = world::connect(sender.clone(), &coordinator, &spawner).await;
            let hints = SimHints::default();
            let (served, notices) = seam::mount(fs, &config.options, hints.clone());
            let kernel = Kernel::new(KernelSetup {
                number: mount,
                served: Box::new(served),
                hints,
                sender: sender.clone(),
                spawner: spawner.clone(),
                seed,
                hints_lost: config.hints_lost,
                log,
                readable: config.readable,
            });
            for notices in notices {
                let kernel = kernel.clone();
                spawner.spawn(async move { seam::heed(&notices, &kernel).await });
            }
            for (thread, draw) in programs.into_iter().enumerate() {
                let program = MountProgram {
                    mount,
                    tid: (100 * (mount + 1) + thread) as u32,
                    kernel: kernel.clone(),
                    draw,
                    shared: shared.clone(),
                    sender: sender.clone(),
                    plus: !config.options.entry_timeout.is_zero(),
                    files: Vec::new(),
                    dirs: Vec::new(),
                };
                spawner.spawn(program.run(config.calls));
            }
        });
    }
    let all = config.mounts * THREADS + 1;
    let finished = shared.clone();
    world
        .run_until(Duration::from_secs(120), move |_| finished.borrow().finished >= all)
        .map_err(|why| why + &unfinished(&shared))?;
    let entries = std::mem::take(&mut shared.borrow_mut().history.entries);
    let good =
        entries.iter().filter(|entry| !matches!(entry.answer, history::SyscallAnswer::Failed(_)));
    let good = good.count();
    let why = |violation: Violation| violation.explain(&entries);
    let steps = judge::check(&entries).map_err(why)? + data::check(&entries).map_err(why)?;
    Ok((entries.len(), good, steps))
}

fn unfinished(shared: &SharedMounts) -> String {
    let shared = shared.borrow();
    let entries = shared.history.entries.iter();
    let open = entries.filter(|entry| entry.returned == u64::MAX);
    open.map(|entry| format!("\n  {entry}")).collect()
}
