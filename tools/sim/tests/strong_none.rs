//! Under a policy that is strong without durability no death of a process loses what was answered; a
//! loss of power takes what was answered last, at most the work of [`LAG_MAX`], and nothing from before an
//! fsync.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Signal;
use saker_client::{Caller, Fs, OpenFlags};
use saker_rpc::node::lag::LAG_MAX;
use saker_runtime::rand::Rng;
use saker_runtime::time::{self, Time};
use saker_sim::cluster::{ClusterShape, RunningCluster};
use saker_sim::node::Death;
use saker_sim::seeds::{SeedFailure, SeedRun as _, on_all};
use saker_sim::world::{STRONG_NONE, World, WorldConfig, connect, simulate};
use saker_types::wire::At;
use saker_types::{Locator, NodeId, Result};

const CALLS: usize = 400;
const SEEDS: u64 = 100;
/// A step and a message later.
const MARGIN: Duration = Duration::from_millis(10);

/// A name was made (true) or removed, and that was answered.
type Told = (Bytes, bool, Time);

#[derive(Default)]
struct Story {
    told: Vec<Told>,
    /// So many of these an fsync came after.
    synced: usize,
    /// A call is under way on this name.
    current: Bytes,
    /// No more calls are made, and what becomes of the one under way does not matter.
    stops: bool,
    stopped: bool,
    found: Option<BTreeSet<Bytes>>,
}

type SharedStory = Rc<RefCell<Story>>;

async fn change(fs: &Fs, at: &At, makes: bool, writes: bool) -> Result<()> {
    let who = Caller::root();
    if !makes {
        return fs.unlink(&who, at).await.map(drop);
    }
    let (file, _) = fs.create(&who, at, 0o644, OpenFlags::from_linux(0o102)).await?;
    if writes {
        file.write(0, b"some data").await?;
        file.flush().await?;
    }
    file.release().await;
    Ok(())
}

/// Makes and removes files, one after the other, and calls fsync now and then.
async fn work(fs: Fs, dir: Locator, seed: u64, story: SharedStory) {
    let (mut rng, mut there) = (Rng::seeded(seed), BTreeSet::new());
    while story.borrow().told.len() < CALLS && !story.borrow().stops {
        let name = Bytes::from(format!("f{}", rng.below(CALLS as u64 / 2)));
        story.borrow_mut().current = name.clone();
        let makes = !there.contains(&name);
        let done = change(&fs, &At::child(dir.clone(), &name), makes, rng.chance(1, 8)).await;
        if story.borrow().stops {
            break;
        }
        done.unwrap();
        if makes {
            there.insert(name.clone())
        } else {
            there.remove(&name)
        };
        story.borrow_mut().told.push((name, makes, time::now()));
        if rng.chance(1, 40) {
            let count = story.borrow().told.len();
            fs.fsync_dir(&Caller::root(), &dir).await.unwrap();
            // One that was under way when the shard died counts for nothing: its answer is of the next life.
            if !story.borrow().stops {
                story.borrow_mut().synced = count;
            }
        }
        story.borrow_mut().current.clear();
    }
    story.borrow_mut().stopped = true;
}

async fn list(fs: Fs, dir: Locator, story: SharedStory) {
    let mut names = BTreeSet::new();
    let mut listing = fs.readdir(&Caller::root(), &dir, 0);
    while let Some(item) = listing.next().await.unwrap() {
        names.insert(item.name.clone());
    }
    story.borrow_mut().found = Some(names);
}

/// Connects a client and lets it do something.
fn spawn<F: Future<Output = ()> + 'static>(
    world: &mut World,
    number: usize,
    work: impl FnOnce(Fs) -> F + 'static,
) {
    let (sender, coordinator) = (world.sender(number), world.coordinator());
    let spawner = world.executor.spawner();
    world.executor.spawn(async move { work(connect(sender, &coordinator, &spawner).await).await });
    world.clients_may_run();
}

/// A directory under the policy.
fn make_dir(world: &mut World) -> std::result::Result<Locator, String> {
    let at = || At::child(Locator::root(), b"d");
    let made: Rc<RefCell<Option<Locator>>> = Rc::default();
    let kept = made.clone();
    spawn(world, 0, move |fs| async move {
        let entry = fs.mkdir(&Caller::root(), &at(), 0o755).await.unwrap();
        *kept.borrow_mut() = Some(entry.loc);
    });
    world.run_until(Duration::from_secs(10), |_| made.borrow().is_some())?;
    let policy = world.set_policy(&at(), STRONG_NONE)?;
    Ok(made.borrow_mut().take().unwrap().under(policy))
}

/// How much was lost of what a shard had answered: what is found must be as some of its answers, and all
/// before that, have left it.
fn lost(told: &[Told], kept_min: usize, found: &BTreeSet<Bytes>) -> Option<usize> {
    let is_as_after = |kept: usize| {
        let mut there = BTreeSet::new();
        for (name, makes, _) in &told[..kept] {
            if *makes {
                there.insert(name.clone())
            } else {
                there.remove(name)
            };
        }
        there == *found
    };
    (kept_min..=told.len()).rev().find(|kept| is_as_after(*kept)).map(|kept| told.len() - kept)
}

/// A shard dies so while a client works; how many of its answers are lost.
fn play(
    seed: u64,
    loses_power: bool,
    mutation: Option<&'static str>,
) -> std::result::Result<usize, SeedFailure> {
    let config = WorldConfig { shards: 2, stores: 2, clients: 3, ..WorldConfig::of_seed(seed) };
    let config = config.without_faults().with_mutation(mutation);
    let config = WorldConfig { delays_flush: false, ..config };
    let run = |world: &mut World| {
        let (story, mut rng) = (SharedStory::default(), Rng::seeded(seed));
        let dir = make_dir(world)?;
        let (told, place, work_seed) = (story.clone(), dir.clone(), rng.u64());
        spawn(world, 1, move |fs| work(fs, place, work_seed, told));
        let after = 20 + rng.below(CALLS as u64 / 2) as usize;
        world.run_until(Duration::from_secs(60), |_| story.borrow().told.len() >= after)?;
        world.run_for(Duration::from_micros(rng.below(30_000)))?;
        story.borrow_mut().stops = true;
        let (died, shard) = (world.now, rng.below(2) as u16);
        let death = if loses_power { Death::Powerless(rng.u64()) } else { Death::Killed };
        world.crash(NodeId::Shard(shard), death, Duration::from_millis(30));
        world.run_until(Duration::from_secs(60), |_| story.borrow().stopped)?;
        let (listed, place) = (story.clone(), dir.clone());
        spawn(world, 2, move |fs| list(fs, place, listed));
        world.run_until(Duration::from_secs(60), |_| story.borrow().found.is_some())?;
        let map = world.cluster().map.clone();
        let Story { told, synced, current, found, .. } = &*story.borrow();
        let mut lost_here = 0;
        for of in 0..2 {
            let is_its = |name: &Bytes| {
                name != current && map.shard_of_slot(map.slot_of(dir.id, name)) == of
            };
            let durable = |n: usize, at: Time| n < *synced || at + LAG_MAX + MARGIN <= died;
            let its = told.iter().enumerate().filter(|(_, (name, ..))| is_its(name));
            let kept_min = its.clone().filter(|(n, (.., at))| durable(*n, *at)).count();
            let its: Vec<Told> = its.map(|(_, told)| told.clone()).collect();
            let found = found.iter().flatten().filter(|name| is_its(name)).cloned().collect();
            let kept_min = if loses_power && of == shard { kept_min } else { its.len() };
            let lost = lost(&its, kept_min, &found).ok_or_else(|| {
                format!("shard {of} of {shard}, died at {died:?}: {its:?}, found {found:?}")
            });
            lost_here += lost?;
        }
        Ok(lost_here)
    };
    simulate(&config, run, |world| world.log.to_string())
}

/// All of these seeds; how many answers are lost.
fn play_all(loses_power: bool) -> usize {
    let sum = Mutex::new(0);
    on_all(0..SEEDS, |seed| {
        *sum.lock().unwrap() += play(seed, loses_power, None).unwrap_or_else(|f| panic!("{f}"));
        true
    });
    sum.into_inner().unwrap()
}

#[test]
fn who_is_killed_loses_nothing() {
    assert_eq!(play_all(false), 0);
}

#[test]
fn a_loss_of_power_takes_what_was_answered_last() {
    let lost = play_all(true);
    println!("{lost} answers lost");
    assert!(lost > 0, "nothing is answered before it is durable");
}

#[test]
fn records_that_are_not_written_are_missed_after_a_kill() {
    let found = Mutex::new(0);
    on_all(0..SEEDS, |seed| {
        *found.lock().unwrap() +=
            usize::from(play(seed, false, Some("records are not written")).is_err());
        true
    });
    let found = found.into_inner().unwrap();
    println!("{found} of {SEEDS} seeds find it");
    assert!(found > 0);
}

/// The names that threads have made, until they are told to stop.
fn storm(
    fs: &Fs,
    dir: &Locator,
    made: &Mutex<Vec<Bytes>>,
    enough: &(dyn Fn(usize) -> bool + Sync),
) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let who = Caller::root();
                let first = made.lock().unwrap().len();
                for n in first.. {
                    let name = Bytes::from(format!("t{thread}-{n}"));
                    let at = At::child(dir.clone(), &name);
                    fs.block_on(fs.mknod(&who, &at, 0o100_644, 0)).unwrap();
                    let mut made = made.lock().unwrap();
                    made.push(name);
                    if enough(made.len()) {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn kill_9_of_all_mnodes_loses_no_name_that_was_answered() {
    let shape = ClusterShape { mnodes: 4, stores: 1, supervise: true, ..ClusterShape::default() };
    let cluster = RunningCluster::start(shape);
    let fs = cluster.connect();
    let (who, at) = (Caller::root(), At::child(Locator::root(), b"d"));
    fs.block_on(fs.mkdir(&who, &at, 0o755)).unwrap();
    cluster.set_policy(&at, STRONG_NONE);
    let dir = fs.block_on(fs.lookup(&who, &at)).unwrap().loc;
    assert_ne!(dir.policy, 0);
    let made = Mutex::new(Vec::new());
    for round in 1..=5 {
        storm(&fs, &dir, &made, &|count| count >= round * 2_000);
        (0..4).for_each(|n| cluster.signal(&format!("mnode-{n}"), Signal::KILL));
        let other = cluster.connect();
        let mut found = BTreeSet::new();
        other.block_on(async {
            let mut listing = other.readdir(&who, &dir, 0);
            while let Some(item) = listing.next().await.unwrap() {
                found.insert(item.name.clone());
            }
        });
        other.close().unwrap();
        let made = made.lock().unwrap();
        let lost: Vec<&Bytes> = made.iter().filter(|name| !found.contains(*name)).collect();
        assert!(lost.is_empty(), "round {round}: {} of {} lost: {lost:?}", lost.len(), made.len());
    }
    let flushes = cluster.metric_of("mnode", "saker_wal_flushes_total");
    println!("{} names, {flushes} flushes since the last kill", made.lock().unwrap().len());
    fs.close().unwrap();
    cluster.fsck();
}
