//! A whole cluster in one thread: the real coordinator, shards, stores and clients over a
//! simulated network, clock and disk. Everything follows from a seed; a run can be replayed.
//!
//! [`run`] plays one seed: clients make calls while things go wrong, then all is repaired, the
//! clients look at everything, and the checkers judge ([`linear`] the answers, [`quiet`] the rows).

// Fields of plain records of a test tool.
#![allow(missing_docs)]

pub mod disk;
mod engine;
pub mod faults;
pub mod history;
pub mod linear;
pub mod log;
pub mod net;
pub mod node;
pub mod points;
pub mod quiet;
pub mod script;
pub mod spec;
pub mod transport;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use saker_client::{ClientOptions, Fs};
use saker_meta::Limits;
use saker_runtime::rand::Rng;
use saker_runtime::sim;
use saker_types::NodeId;

pub use engine::World;
use faults::Timed;
use script::{Client, Shared};
use transport::Sender;

use crate::roles::addr_of;

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub shards: u16,
    pub clients: usize,
    /// Calls of all clients together.
    pub calls: usize,
    pub faults: Vec<Timed>,
    pub limits: Limits,
    /// Journal bytes after which the coordinator compacts.
    pub segment_bytes: u64,
    /// Largest file that stays in its row, bytes.
    pub inline_max: u64,
    /// A rule that is broken on purpose.
    pub mutation: Option<&'static str>,
    /// The machine that dies with this operation of its disk, counted from 1.
    pub dies_at: Option<(NodeId, u64)>,
    /// Keep lines that can be read.
    pub readable: bool,
}

impl Config {
    /// A run of full size: 4 or 5 clients, 300 calls, at least 5 faults and 1 crash.
    pub fn of_seed(seed: u64) -> Config {
        let mut rng = Rng::seeded(seed ^ 0x5a6b_e12d);
        let shards = 4;
        let calls = 300;
        let faults = faults::draw(&mut rng, shards, calls);
        let limits = Limits {
            // Some checkpoint all the time, some never.
            overlay_bytes: [4 << 10, 40 << 10, 64 << 20][rng.below(3) as usize],
            segment_bytes: 32 << 10,
            inodes: [8, 65_536][rng.below(2) as usize],
            // Some forget directories all the time.
            replica: [3, 64, 1 << 20][rng.below(3) as usize],
            coalesce_prefixes: !seed.is_multiple_of(3),
            lazy_replication: !seed.is_multiple_of(8),
            tells_ids: seed.is_multiple_of(2),
        };
        Config {
            seed,
            shards,
            clients: 4 + rng.below(2) as usize,
            calls,
            faults,
            limits,
            segment_bytes: [2 << 10, 8 << 20][rng.below(2) as usize],
            inline_max: [64, 4096][rng.below(2) as usize],
            mutation: None,
            dies_at: None,
            readable: false,
        }
    }

    /// The same run without faults.
    pub fn without_faults(self) -> Config {
        Config { faults: Vec::new(), ..self }
    }
}

/// What a run showed.
#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    /// Hash of the logs of all roles and clients.
    pub digest: u64,
    pub events: u64,
    pub calls: usize,
    /// Calls by kind: answered, failed.
    pub tally: Vec<(String, u64, u64)>,
    /// States that the search for an order looked at.
    pub states: usize,
    pub faults: usize,
    pub crashes: u64,
    /// Operations of each machine's disk.
    pub disk_ops: BTreeMap<NodeId, u64>,
    /// How often each failpoint was passed.
    pub hits: BTreeMap<&'static str, u64>,
    /// Simulated time.
    pub time: Duration,
}

/// A run that went wrong.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
    /// The schedule and the last events, if the run was readable.
    pub log: String,
}

/// Plays a run and judges it.
///
/// # Errors
/// What the checkers found.
pub fn run(config: &Config) -> Result<Report, Failure> {
    sim::start(config.seed);
    sim::mutate(config.mutation);
    let mut world = World::new(config.clone());
    let outcome = play(config, &mut world);
    let report = outcome.map(|(entries, states)| {
        let tally = linear::tally(&entries);
        let mut tally: Vec<(String, u64, u64)> =
            tally.into_iter().map(|(name, (good, bad))| (name, good, bad)).collect();
        tally.sort();
        Report {
            seed: config.seed,
            digest: world.log.digest(),
            events: world.log.len(),
            calls: entries.len(),
            tally,
            states,
            faults: config.faults.len(),
            crashes: world.crashes,
            disk_ops: world.disk_ops(),
            hits: sim::hits(),
            time: Duration::from_nanos(world.now.as_ns()),
        }
    });
    let failure = report.map_err(|what| {
        let log = format!("{:#?}\n{}", config.faults, world.log);
        Failure { seed: config.seed, what, log }
    });
    drop(world);
    sim::stop();
    failure
}

/// As [`run`]; a run that fails is played again to say what happened.
///
/// # Errors
/// What the checkers found, with the schedule and the last events.
pub fn run_and_explain(config: &Config) -> Result<Report, Failure> {
    match run(config) {
        Err(_) if !config.readable => run(&Config { readable: true, ..config.clone() }),
        other => other,
    }
}

type Played = (Vec<history::Entry>, usize);

fn play(config: &Config, world: &mut World) -> Result<Played, String> {
    let calls = world.progress.clone();
    let clocks_are_near = faults::clocks_stay_near(&config.faults);
    let mut shared = Shared::new(calls);
    shared.clocks_are_near = clocks_are_near;
    let shared = Rc::new(RefCell::new(shared));
    let size_max = config.inline_max * 2;
    for number in 0..config.clients {
        let (shared, seed, calls) = (shared.clone(), world.rng.u64(), config.calls);
        let sender = Arc::new(Sender { client: number, desk: world.desk.clone() });
        let (spawner, kept) = (world.executor.spawner(), shared.clone());
        world.executor.spawn(async move {
            let options = ClientOptions::default();
            let fs = match Fs::over(sender, &[addr_of(NodeId::Coordinator)], options).await {
                Ok(fs) => fs,
                Err(error) => panic!("client {number} cannot connect: {error}"),
            };
            let leases = fs.clone();
            spawner.spawn(async move { leases.keep_leases().await });
            Client::new(number, fs, seed, shared, size_max).run(calls).await;
        });
        drop(kept);
    }
    let finished = |count: usize, shared: &Rc<RefCell<Shared>>| shared.borrow().finished >= count;
    let clients = config.clients;
    world.run_until(Duration::from_secs(300), |_| finished(clients, &shared))?;
    world.repair();
    world.run_for(Duration::from_secs(20))?;
    quiet::check_replicas(world)?;
    look_at_all(world, &shared, size_max)?;
    world.run_until(Duration::from_secs(60), |_| finished(clients + 1, &shared))?;
    // Longer than any lease.
    world.run_for(Duration::from_secs(200))?;
    let all = std::mem::take(&mut shared.borrow_mut().history.entries);
    let entries = linear::relevant(&all);
    let states = linear::check(&entries).map_err(|violation| explain(&entries, &violation))?;
    quiet::check(world)?;
    world.check_retries()?;
    Ok((entries, states))
}

fn look_at_all(
    world: &mut World,
    shared: &Rc<RefCell<Shared>>,
    size_max: u64,
) -> Result<(), String> {
    let number = world.config().clients;
    let sender = Arc::new(Sender { client: number, desk: world.desk.clone() });
    let (shared, seed) = (shared.clone(), world.rng.u64());
    world.executor.spawn(async move {
        let options = ClientOptions::default();
        match Fs::over(sender, &[addr_of(NodeId::Coordinator)], options).await {
            Ok(fs) => Client::new(number, fs, seed, shared, size_max).look_at_all().await,
            Err(error) => panic!("the observer cannot connect: {error}"),
        }
    });
    world.clients_may_run();
    Ok(())
}

fn explain(entries: &[history::Entry], violation: &linear::Violation) -> String {
    let mut text = match violation.undecided {
        true => "no order of the answers was found in time".to_owned(),
        false => "the answers fit no order".to_owned(),
    };
    text += &format!("; {} calls fit, then none of these does:\n", violation.placed);
    for call in &violation.stuck {
        text += &format!("  #{call} {}\n", entries[*call]);
    }
    let last = violation.stuck.iter().max().copied().unwrap_or_default();
    text += "before them:\n";
    for (at, entry) in entries.iter().enumerate().take(last) {
        text += &format!("  #{at} {entry}\n");
    }
    text
}
