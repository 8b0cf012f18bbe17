//! What goes wrong in a run, drawn from its seed.

use std::time::Duration;

use saker_runtime::fs::OpKind;
use saker_runtime::rand::Rng;
use saker_types::NodeId;
use saker_types::limits::CLOCK_SKEW_NS_MAX;

use super::net::Who;
use super::points;
use crate::node::Death;

/// Something that goes wrong, and how long.
#[derive(Clone, Debug)]
pub enum WorldFault {
    /// A machine dies, and starts again after a while.
    Crash(NodeId, Death, Duration),
    /// The machine that passes this failpoint for the nth time from now dies there.
    CrashAt(&'static str, u64),
    /// Nothing passes between a machine and everybody else, from it, or to it.
    Cut { node: NodeId, out: bool, back: bool, lasts: Duration },
    /// Nothing passes from one to the other.
    OneWay { from: Who, to: Who, lasts: Duration },
    /// All connections of a machine break.
    Reset(NodeId),
    /// Everything takes a machine this many times longer.
    Slow(NodeId, u64, Duration),
    /// So many messages of a million get lost.
    Loss(u64, Duration),
    /// So many requests of a million arrive twice.
    Double(u64, Duration),
    /// So many messages of a million take long.
    Spikes(u64, Duration),
    /// A wall clock jumps.
    Clock(NodeId, i64),
    /// An operation of a disk fails, with or without effect.
    Disk(NodeId, OpKind, i32, bool),
}

/// With which of the clients' calls something goes wrong, so that they are there to see it.
pub type TimedFault = (usize, WorldFault);

/// Do clocks stay so near each other that times are kept in order for each client?
pub fn clocks_stay_near(faults: &[TimedFault]) -> bool {
    let jumps = faults.iter().map(|(_, fault)| match fault {
        WorldFault::Clock(_, by) => by.unsigned_abs(),
        _ => 0,
    });
    jumps.sum::<u64>() < CLOCK_SKEW_NS_MAX
}

/// How many nodes there are at the start.
#[derive(Clone, Copy, Debug)]
pub struct WorldSize {
    pub shards: u16,
    pub stores: u16,
}

/// Draws at least five faults, one of them a crash.
pub fn draw(rng: &mut Rng, size: WorldSize, calls: usize) -> Vec<TimedFault> {
    let count = 5 + rng.below(4);
    let mut faults = Vec::new();
    for n in 0..=count {
        let at = rng.below(calls as u64) as usize;
        let fault = match n {
            0 => crash(rng, size),
            1 => crash_at(rng),
            _ => any(rng, size),
        };
        faults.push((at, fault));
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// Any failpoint, but more often one of those that are seldom passed.
fn crash_at(rng: &mut Rng) -> WorldFault {
    let seldom = |name: &&&str| {
        ["truncate.", "spill.", "recover."].iter().any(|protocol| name.starts_with(protocol))
    };
    let seldom: Vec<&str> = points::ALL.iter().filter(seldom).copied().collect();
    if rng.chance(1, 2) {
        return WorldFault::CrashAt(seldom[rng.below(seldom.len() as u64) as usize], 1);
    }
    let at = rng.below(points::ALL.len() as u64) as usize;
    WorldFault::CrashAt(points::ALL[at], 1 + rng.below(4))
}

/// Twice as often a shard as a store.
fn node(rng: &mut Rng, WorldSize { shards, stores }: WorldSize) -> NodeId {
    let (shards, stores) = (u64::from(shards), u64::from(stores));
    match rng.below(4 + 2 * shards + stores) {
        0..4 => NodeId::Coordinator,
        n if n < 4 + 2 * shards => NodeId::Shard(((n - 4) / 2) as u16),
        n => NodeId::Store((n - 4 - 2 * shards) as u16),
    }
}

/// Mostly short, sometimes long.
fn lasts(rng: &mut Rng, usual_ms: u64) -> Duration {
    let factor = match rng.below(8) {
        0 => 10,
        1 => 4,
        _ => 1,
    };
    Duration::from_micros(1 + rng.below(usual_ms * 1_000) * factor)
}

fn crash(rng: &mut Rng, size: WorldSize) -> WorldFault {
    let death = match rng.below(4) {
        0 => Death::Killed,
        _ => Death::Powerless(rng.u64()),
    };
    let down = lasts(rng, 300);
    WorldFault::Crash(node(rng, size), death, down)
}

fn any(rng: &mut Rng, size: WorldSize) -> WorldFault {
    let node = node(rng, size);
    match rng.below(16) {
        0..=2 => crash(rng, size),
        3 => WorldFault::Cut { node, out: true, back: true, lasts: lasts(rng, 400) },
        4 => {
            let out = rng.chance(1, 2);
            WorldFault::Cut { node, out, back: !out, lasts: lasts(rng, 400) }
        }
        5 => {
            let to = Who::Node(self::node(rng, size));
            WorldFault::OneWay { from: Who::Node(node), to, lasts: lasts(rng, 800) }
        }
        6 | 7 => WorldFault::Reset(node),
        8 => WorldFault::Slow(node, 10 + rng.below(200), lasts(rng, 400)),
        9 => WorldFault::Loss(1_000 + rng.below(80_000), lasts(rng, 200)),
        10 | 11 => WorldFault::Double(10_000 + rng.below(300_000), lasts(rng, 500)),
        12 | 13 => WorldFault::Spikes(10_000 + rng.below(200_000), lasts(rng, 500)),
        14 => {
            let far = rng.below(7_200_000_000_000) as i64 - 3_600_000_000_000;
            // Every other jump is one that clients' times are kept in order for.
            let by = if far % 2 == 0 { far } else { far % (CLOCK_SKEW_NS_MAX as i64 / 2) };
            WorldFault::Clock(node, by)
        }
        _ => {
            let kinds = [OpKind::Sync, OpKind::Write, OpKind::Preallocate, OpKind::SyncDir];
            let kind = kinds[rng.below(4) as usize];
            let full = kind != OpKind::Sync && rng.chance(1, 2);
            let errno = if full { libc::ENOSPC } else { libc::EIO };
            // A store whose disk fails is for somebody to start again: it has tests of its own.
            match node {
                NodeId::Store(_) => WorldFault::Reset(node),
                _ => WorldFault::Disk(node, kind, errno, rng.chance(1, 2)),
            }
        }
    }
}
