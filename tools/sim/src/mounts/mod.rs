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
use std::sync::Arc;
use std::time::Duration;

use saker_client::{ClientOptions, Fs};
use saker_mount::{Leases, MountOptions, Shortcut};
use saker_runtime::rand::Rng;
use saker_runtime::sim;
use saker_types::NodeId;

use crate::roles::addr_of;
use crate::world::transport::Sender;
use crate::world::{self, Failure, World};
use kernel::{Hints, Kernel, Setup};
use script::{Draw, Library, Mix, Program, Share, Shared};

/// Threads of each mount's program.
const THREADS: usize = 2;

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Config {
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

impl Config {
    /// A run of a seed.
    pub fn of_seed(seed: u64) -> Config {
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
        Config {
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
}

/// What a run showed.
#[derive(Debug)]
pub struct Report {
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

/// Plays a run and judges it.
///
/// # Errors
/// What the judge found.
pub fn run(config: &Config) -> Result<Report, Failure> {
    sim::start(config.seed);
    sim::mutate(config.mutation);
    let mut world = World::new(cluster(config));
    let log = Rc::new(RefCell::new(Vec::new()));
    let outcome = play(config, &mut world, &log);
    let report = outcome.map(|(calls, good, steps)| {
        let (digest, events) = (world.log.digest(), world.log.len());
        Report { seed: config.seed, digest, events, calls, good, steps }
    });
    let failure = report.map_err(|what| {
        let log = format!("{config:#?}\n{}", log.borrow().join("\n"));
        Failure { seed: config.seed, what, log }
    });
    drop(world);
    sim::stop();
    failure
}

/// As [`run`]; a run that fails is played again to say what happened.
///
/// # Errors
/// What the judge found, with the kernels' requests.
pub fn run_and_explain(config: &Config) -> Result<Report, Failure> {
    match run(config) {
        Err(_) if !config.readable => run(&Config { readable: true, ..config.clone() }),
        other => other,
    }
}

fn cluster(config: &Config) -> world::Config {
    world::Config {
        shards: 2,
        clients: config.mounts + 2,
        calls: usize::MAX,
        inline_max: config.inline_max,
        mutation: config.mutation,
        ..world::Config::of_seed(config.seed).without_faults()
    }
}

fn play(
    config: &Config,
    world: &mut World,
    log: &Rc<RefCell<Vec<String>>>,
) -> Result<(usize, usize, usize), String> {
    let shared: Share = Rc::new(RefCell::new(Shared::default()));
    let draw = |world: &mut World| Draw { rng: Rng::seeded(world.rng.u64()), mix: config.mix };
    let begun = Rc::new(RefCell::new(false));
    {
        let sender = sender(world, 0);
        let (shared, draw, begun) = (shared.clone(), draw(world), begun.clone());
        let (spawner, calls) = (world.executor.spawner(), config.library_calls);
        world.executor.spawn(async move {
            let fs = connect(&sender).await;
            let leases = fs.clone();
            spawner.spawn(async move { leases.keep_leases().await });
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
        let (sender, spawner) = (sender(world, 1 + mount), world.executor.spawner());
        let (shared, seed, config) = (shared.clone(), world.rng.u64(), config.clone());
        let desk = world.desk.clone();
        let log = log.clone();
        world.executor.spawn(async move {
            let fs = connect(&sender).await;
            let leases = fs.clone();
            spawner.spawn(async move { leases.keep_leases().await });
            let hints = Hints::default();
            let (served, notices) = seam::mount(fs, &config.options, hints.clone());
            let other = || Sender { client: 1 + mount, desk: desk.clone() };
            let kernel = Kernel::new(Setup {
                number: mount,
                served: Box::new(served),
                hints,
                sender: other(),
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
                let program = Program {
                    mount,
                    tid: (100 * (mount + 1) + thread) as u32,
                    kernel: kernel.clone(),
                    draw,
                    shared: shared.clone(),
                    sender: other(),
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
    let good = entries.iter().filter(|entry| !matches!(entry.answer, history::Answer::Failed(_)));
    let good = good.count();
    let why = |violation| explain(&entries, &violation);
    let steps = judge::check(&entries).map_err(why)? + data::check(&entries).map_err(why)?;
    Ok((entries.len(), good, steps))
}

fn sender(world: &World, client: usize) -> Sender {
    Sender { client, desk: world.desk.clone() }
}

async fn connect(sender: &Sender) -> Fs {
    let own = Arc::new(Sender { client: sender.client, desk: sender.desk.clone() });
    match Fs::over(own, &[addr_of(NodeId::Coordinator)], ClientOptions::default()).await {
        Ok(fs) => fs,
        Err(error) => panic!("client {} cannot connect: {error}", sender.client),
    }
}

fn unfinished(shared: &Share) -> String {
    let shared = shared.borrow();
    let entries = shared.history.entries.iter();
    let open = entries.filter(|entry| entry.returned == u64::MAX);
    open.map(|entry| format!("\n  {entry}")).collect()
}

fn explain(entries: &[history::Entry], violation: &judge::Violation) -> String {
    let mut text = match violation.undecided {
        true => "no order of the answers was found in time".to_owned(),
        false => "the answers fit no order".to_owned(),
    };
    text += &format!("; {} calls fit, then none of these does:\n", violation.placed);
    for call in &violation.stuck {
        text += &format!("  #{call} {}\n", entries[*call]);
    }
    text += "all:\n";
    for (at, entry) in entries.iter().enumerate() {
        text += &format!("  #{at} {entry}\n");
    }
    text
}
