//! A whole cluster in one thread: the real coordinator, shards, stores and clients over a
//! simulated network, clock and disk. Everything follows from a seed; a run can be replayed.
//!
//! [`WorldConfig::run`] plays one seed: clients make calls while things go wrong, then all is repaired, the
//! clients look at everything, and the checkers judge ([`linear`] the answers, [`content`] what was
//! read of files, [`quiet`] the rows).

// Fields of plain records of a test tool.
#![allow(missing_docs)]

pub mod changes;
pub mod content;
mod engine;
pub mod faults;
pub mod history;
pub mod linear;
pub mod log;
pub mod net;
pub mod ownership;
pub mod points;
pub mod quiet;
pub mod script;
pub mod spec;
pub mod transport;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use saker_client::{ClientOptions, Fs};
use saker_meta::ShardLimits;
use saker_rpc::Transport as _;
use saker_runtime::rand::Rng;
use saker_runtime::sim;
use saker_runtime::task::Spawner;
use saker_types::wire::At;
use saker_types::{Locator, NodeId};

pub use engine::World;
use faults::{TimedFault, WorldFault, WorldSize};
use script::{SharedWorld, WorldClient, WorldState};
use transport::WorldTransport;

use crate::node::Death;
use crate::seeds::{SeedFailure, SeedRun};

/// A policy by which answers may leave before they are durable.
pub const STRONG_NONE: &[(&str, &str)] = &[("consistency", "strong"), ("durability", "none")];

/// How often a client that comes later looks whether it is time.
const LOOK: Duration = Duration::from_millis(5);

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    pub seed: u64,
    pub shards: u16,
    pub stores: u16,
    /// Copies of each chunk.
    pub replicas: u32,
    pub clients: usize,
    /// Calls of all clients together.
    pub calls: usize,
    pub faults: Vec<TimedFault>,
    /// Members that come, go and move.
    pub changes: Vec<changes::TimedChange>,
    pub limits: ShardLimits,
    /// Journal bytes after which the coordinator compacts.
    pub segment_bytes: u64,
    /// Largest file that stays in its row, bytes.
    pub inline_max: u64,
    /// Everything is under a policy that is strong without durability. Then no shard loses its power, and
    /// no disk of a shard fails: whatever else happens must lose nothing.
    pub delays_flush: bool,
    /// A rule that is broken on purpose.
    pub mutation: Option<&'static str>,
    /// The machine that dies with this operation of its disk, counted from 1.
    pub dies_at: Option<(NodeId, u64)>,
    /// Keep lines that can be read.
    pub readable: bool,
}

impl WorldConfig {
    /// The same run with changes of these kinds, whatever it had before.
    pub fn with_changes(mut self, kinds: &[changes::MemberChangeKind]) -> WorldConfig {
        let mut rng = Rng::seeded(self.seed ^ 0x6d65_6d62_6572);
        let size = WorldSize { shards: self.shards, stores: self.stores };
        self.changes = changes::draw(&mut rng, kinds, size, self.calls);
        self
    }

    /// The same run under a policy that is strong without durability, and without faults that may lose
    /// what is not durable.
    pub fn delaying_flush(mut self) -> WorldConfig {
        for (_, fault) in &mut self.faults {
            match fault {
                WorldFault::Crash(NodeId::Shard(_), death, _) => *death = Death::Killed,
                WorldFault::Disk(id @ NodeId::Shard(_), ..) => *fault = WorldFault::Reset(*id),
                _ => {}
            }
        }
        WorldConfig { delays_flush: true, ..self }
    }

    /// The same run without faults and changes.
    pub fn without_faults(self) -> WorldConfig {
        WorldConfig { faults: Vec::new(), changes: Vec::new(), ..self }
    }
}

/// What a run showed.
#[derive(Debug)]
pub struct WorldReport {
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
    /// Of stores.
    pub power_losses: usize,
    /// Calls that were told that a store had lost data.
    pub told_of_losses: usize,
    /// Operations of each machine's disk.
    pub disk_ops: BTreeMap<NodeId, u64>,
    /// How often each failpoint was passed.
    pub hits: BTreeMap<&'static str, u64>,
    /// Simulated time.
    pub time: Duration,
}

impl SeedRun for WorldConfig {
    type Report = WorldReport;

    /// A run of full size: 4 or 5 clients, 300 calls, at least 5 faults and 1 crash.
    fn of_seed(seed: u64) -> WorldConfig {
        let mut rng = Rng::seeded(seed ^ 0x5a6b_e12d);
        let (shards, stores) = (4, 2 + rng.below(3) as u16);
        let calls = 300;
        let faults = faults::draw(&mut rng, WorldSize { shards, stores }, calls);
        let limits = ShardLimits {
            // Some checkpoint all the time, some never.
            overlay_bytes: [4 << 10, 40 << 10, 64 << 20][rng.below(3) as usize],
            segment_bytes: 32 << 10,
            inodes: [8, 65_536][rng.below(2) as usize],
            // Some forget directories all the time.
            replica: [3, 64, 1 << 20][rng.below(3) as usize],
            coalesce_prefixes: !seed.is_multiple_of(3),
            lazy_replication: !seed.is_multiple_of(8),
            tells_ids: seed.is_multiple_of(2),
            private: false,
        };
        let config = WorldConfig {
            seed,
            shards,
            stores,
            replicas: 1 + rng.below(2) as u32,
            clients: 4 + rng.below(2) as usize,
            calls,
            faults,
            changes: Vec::new(),
            limits,
            segment_bytes: [2 << 10, 8 << 20][rng.below(2) as usize],
            inline_max: [64, 4096][rng.below(2) as usize],
            delays_flush: false,
            mutation: None,
            dies_at: None,
            readable: false,
        };
        let config = if seed % 5 == 4 { config.delaying_flush() } else { config };
        // In every other run members change, in one way.
        let kind = changes::TODAY[(seed / 2) as usize % changes::TODAY.len()];
        if seed.is_multiple_of(2) { config } else { config.with_changes(&[kind]) }
    }

    fn with_mutation(self, mutation: Option<&'static str>) -> WorldConfig {
        WorldConfig { mutation, ..self }
    }

    fn readable(self) -> WorldConfig {
        WorldConfig { readable: true, ..self }
    }

    fn run(&self) -> Result<WorldReport, SeedFailure> {
        let report = |world: &mut World| {
            let Played { entries, states, told_of_losses } = play(self, world)?;
            let tally = linear::tally(&entries);
            let mut tally: Vec<(String, u64, u64)> =
                tally.into_iter().map(|(name, (good, bad))| (name, good, bad)).collect();
            tally.sort();
            Ok(WorldReport {
                seed: self.seed,
                digest: world.log.digest(),
                events: world.log.len(),
                calls: entries.len(),
                tally,
                states,
                faults: self.faults.len(),
                crashes: world.crashes,
                power_losses: world.power_losses.len(),
                told_of_losses,
                disk_ops: world.disk_ops(),
                hits: sim::hits(),
                time: Duration::from_nanos(world.now.as_ns()),
            })
        };
        let log = |world: &World| format!("{:#?}\n{:#?}\n{}", self.faults, self.changes, world.log);
        simulate(self, report, log)
    }
}

/// Plays something in a world of its own; `log` says what happened, if it goes wrong.
///
/// # Errors
/// What was found.
pub fn simulate<T>(
    config: &WorldConfig,
    play: impl FnOnce(&mut World) -> Result<T, String>,
    log: impl FnOnce(&World) -> String,
) -> Result<T, SeedFailure> {
    sim::start(config.seed);
    sim::mutate(config.mutation);
    let mut world = World::new(config.clone());
    let outcome = play(&mut world);
    let failed = |what| SeedFailure { seed: config.seed, what, log: log(&world) };
    let outcome = outcome.map_err(failed);
    drop(world);
    sim::stop();
    outcome
}

/// A client of the library, which keeps its leases. It tries until it is connected, each time at
/// the coordinator's address of then.
pub async fn connect(
    sender: WorldTransport,
    coordinator: &Cell<SocketAddr>,
    spawner: &Spawner,
) -> Fs {
    let fs = loop {
        let (own, at) = (Arc::new(sender.clone()), [coordinator.get()]);
        match Fs::over(own, &at, ClientOptions::default()).await {
            Ok(fs) => break fs,
            Err(_) => sender.sleep(LOOK).await,
        }
    };
    let leases = fs.clone();
    spawner.spawn(async move { leases.keep_leases().await });
    fs
}

/// What a run that all is well with shows.
struct Played {
    entries: Vec<history::WorldEntry>,
    states: usize,
    told_of_losses: usize,
}

fn play(config: &WorldConfig, world: &mut World) -> Result<Played, String> {
    let mut shared = WorldState::new(world.progress.clone(), world.moments.clone());
    shared.clocks_are_near = faults::clocks_stay_near(&config.faults);
    let shared = Rc::new(RefCell::new(shared));
    let calls = config.calls;
    if config.delays_flush {
        world.set_policy(&At::below(Locator::root(), Vec::new()), STRONG_NONE)?;
    }
    // If something changes, the last client comes when it has.
    let change = config.changes.first().map_or(0, |(at, _)| *at);
    for number in 0..config.clients {
        let after = if number + 1 == config.clients { change } else { 0 };
        spawn(world, number, &shared, after, move |client| client.run(calls));
    }
    let finished = |count: usize| {
        let shared = shared.clone();
        move |_: &World| shared.borrow().finished >= count
    };
    world.run_until(Duration::from_secs(300), finished(config.clients))?;
    world.repair();
    world.run_for(Duration::from_secs(20))?;
    quiet::check_replicas(world)?;
    spawn(world, config.clients, &shared, 0, WorldClient::look_at_all);
    world.run_until(Duration::from_secs(60), finished(config.clients + 1))?;
    // Longer than any lease.
    world.run_for(Duration::from_secs(200))?;
    let mut all = std::mem::take(&mut shared.borrow_mut().history.entries);
    let entries = linear::relevant(&all);
    let states = linear::check(&entries).map_err(|violation| violation.explain(&entries))?;
    let tree = quiet::check(world)?;
    all.extend(quiet::read_replicas(world, &tree, config.inline_max * 2)?);
    let map = world.cluster().map.clone();
    let stores_of = |id, chunk| map.stores_of_chunk(id, chunk);
    let told_of_losses = content::check(&all, &world.power_losses, stores_of)?;
    world.check_retries()?;
    Ok(Played { entries, states, told_of_losses })
}

/// Connects a client after so many calls of others, and lets it do something.
fn spawn<F: Future<Output = ()> + 'static>(
    world: &mut World,
    number: usize,
    shared: &SharedWorld,
    after: usize,
    work: impl FnOnce(WorldClient) -> F + 'static,
) {
    let (sender, coordinator) = (world.sender(number), world.coordinator());
    let (shared, seed, size_max) = (shared.clone(), world.rng.u64(), world.config().inline_max * 2);
    let spawner = world.executor.spawner();
    world.executor.spawn(async move {
        while shared.borrow().calls.get() < after {
            sender.sleep(LOOK).await;
        }
        let fs = connect(sender, &coordinator, &spawner).await;
        work(WorldClient::new(number, fs, seed, shared, size_max)).await;
    });
    world.clients_may_run();
}
