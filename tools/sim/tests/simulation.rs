//! The simulated cluster: thousands of seeds, replay, the rules broken on purpose, every failpoint,
//! a crash after every operation of a disk.
//!
//! `SAKER_SIM_SEEDS` says how many seeds; `simulate` (a binary of this crate) runs any number.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

use saker_sim::seeds::{SeedFailure, SeedRun, must_find, on_all};
use saker_sim::world::changes::MemberChangeKind;
use saker_sim::world::{WorldConfig, points};
use saker_types::NodeId;

/// Seeds within which each broken rule must be found.
const SEEDS_TO_FIND: u64 = 1_000;

/// Fails, and says what happened.
fn tell(failure: &SeedFailure) -> ! {
    panic!("{failure}");
}

#[test]
fn no_seed_breaks_a_rule_and_every_failpoint_is_hit() {
    let seeds = std::env::var("SAKER_SIM_SEEDS").ok().and_then(|n| n.parse().ok());
    let hits: Mutex<BTreeMap<&str, u64>> = Mutex::default();
    let losses: Mutex<(usize, usize)> = Mutex::default();
    let start = std::time::Instant::now();
    on_all(0..seeds.unwrap_or(2_000), |seed| {
        let report = WorldConfig::of_seed(seed).run_and_explain().unwrap_or_else(|f| tell(&f));
        assert!(report.calls >= 300 && report.faults >= 5 && report.crashes >= 1, "{report:?}");
        let mut losses = losses.lock().unwrap();
        *losses = (losses.0 + report.power_losses, losses.1 + report.told_of_losses);
        let mut hits = hits.lock().unwrap();
        for (name, count) in report.hits {
            *hits.entry(name).or_default() += count;
        }
        true
    });
    let hits = hits.into_inner().unwrap();
    for (name, count) in &hits {
        println!("{name:30} {count:9}");
    }
    println!(
        "{:.0} s, {} of {} failpoints",
        // Real time: printed only.
        start.elapsed().as_secs_f64(),
        hits.len(),
        points::ALL.len()
    );
    let (lost, told) = losses.into_inner().unwrap();
    println!("{lost} losses of power of stores, which {told} calls were told of");
    assert!(lost > 0 && told > 0, "no store loses data");
    let missed: Vec<_> = points::ALL.iter().filter(|name| !hits.contains_key(*name)).collect();
    assert!(missed.is_empty(), "never hit: {missed:?}");
}

#[test]
fn a_seed_gives_the_same_logs_each_time() {
    let mut digests = BTreeSet::new();
    for seed in 0..20 {
        let first = WorldConfig::of_seed(seed).run().unwrap_or_else(|f| tell(&f));
        let again = WorldConfig::of_seed(seed).run().unwrap_or_else(|f| tell(&f));
        assert_eq!((first.digest, first.events), (again.digest, again.events), "seed {seed}");
        digests.insert(first.digest);
    }
    assert_eq!(digests.len(), 20, "seeds differ");
}

fn is_found(mutation: &'static str) {
    must_find::<WorldConfig>(mutation, SEEDS_TO_FIND);
}

#[test]
fn a_reply_before_the_flush_is_found() {
    is_found("reply before flush");
}

#[test]
fn records_that_are_not_written_are_found() {
    is_found("records are not written");
}

#[test]
fn a_decision_sent_before_it_is_logged_is_found() {
    is_found("decision sent before it is logged");
}

#[test]
fn an_invalidation_acknowledged_without_the_guard_pass_is_found() {
    is_found("invalidation acknowledged without the guard pass");
}

#[test]
fn a_late_lookup_reply_that_is_accepted_is_found() {
    is_found("late lookup reply accepted");
}

#[test]
fn a_result_stored_outside_the_transaction_is_found() {
    is_found("result stored outside the transaction");
}

#[test]
fn a_prepare_that_carries_a_resolved_pid_is_found() {
    is_found("prepare carrying a resolved pid");
}

#[test]
fn a_scan_that_ignores_prepared_rows_is_found() {
    is_found("scan ignoring prepared rows");
}

#[test]
fn an_fsync_that_stores_do_not_hear_of_is_found() {
    is_found("an fsync that stores do not hear of");
}

#[test]
fn a_truncation_that_stores_do_not_hear_of_is_found() {
    is_found("a truncation that stores do not hear of");
}

#[test]
fn a_write_that_a_replica_does_not_get_is_found() {
    is_found("a write that a replica does not get");
}

#[test]
fn a_walk_that_outlives_an_invalidation_is_found() {
    is_found("a walk that outlives an invalidation");
}

/// Nobody moves chunks to a store that comes: what others have of its share cannot be read.
#[test]
fn a_store_that_comes_without_its_chunks_is_found() {
    let found: Mutex<Option<SeedFailure>> = Mutex::default();
    on_all(0..SEEDS_TO_FIND, |seed| {
        match WorldConfig::of_seed(seed).with_changes(&[MemberChangeKind::AddStore]).run() {
            Err(failure) if failure.what.contains("cannot be") => {
                *found.lock().unwrap() = Some(failure);
                false
            }
            _ => true,
        }
    });
    let failure = found.into_inner().unwrap().expect("a byte that is missing");
    println!("seed {}: {}", failure.seed, failure.head(2));
}

/// 200 calls of one client, without other faults.
fn scripted() -> WorldConfig {
    WorldConfig {
        clients: 1,
        calls: 200,
        inline_max: 64,
        ..WorldConfig::of_seed(7).without_faults()
    }
}

#[test]
fn a_crash_after_any_operation_of_a_disk_is_survived() {
    let whole = scripted().run().unwrap_or_else(|f| tell(&f));
    let mut deaths: Vec<(NodeId, u64)> = Vec::new();
    for (node, operations) in &whole.disk_ops {
        deaths.extend((1..=*operations).map(|at| (*node, at)));
    }
    println!("{} crashes", deaths.len());
    assert!(deaths.len() > 250, "the script hardly writes: {:?}", whole.disk_ops);
    on_all(0..deaths.len() as u64, |number| {
        let (node, at) = deaths[number as usize];
        let config = WorldConfig { dies_at: Some((node, at)), ..scripted() };
        let report = config.run_and_explain().unwrap_or_else(|failure| {
            println!("{node} died with operation {at} of its disk");
            tell(&failure)
        });
        assert!(report.crashes > 0, "{node} did not die with operation {at}");
        true
    });
}

#[test]
fn the_list_of_failpoints_is_that_of_the_sources() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let mut found = BTreeSet::new();
    let mut dirs = vec![crates];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let names = text.split("failpoint!(\"").skip(1);
                found.extend(names.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
            }
        }
    }
    let listed: BTreeSet<String> = points::ALL.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found, listed);
}
