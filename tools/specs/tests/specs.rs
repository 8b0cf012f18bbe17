//! The models hold, and each known fault that is put back is found.

use saker_specs::commit::{self, Commit, Operation};
use saker_specs::invalidation::{self, Ask, Change, Invalidation};
use saker_specs::trap;
use stateright::{Checker, HasDiscoveries, Model};

/// Explores everything: each property holds, and what should be possible is.
fn holds<M>(model: M, name: &str)
where
    M: Model + Send + Sync + 'static,
    M::State: std::hash::Hash + PartialEq + std::fmt::Debug + Clone + Send + Sync + 'static,
    M::Action: std::fmt::Debug + Clone + PartialEq,
{
    let checker = model.checker().threads(2).spawn_dfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// The fault breaks this property.
fn finds<M>(model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: std::hash::Hash + PartialEq + std::fmt::Debug + Clone + Send + Sync + 'static,
    M::Action: std::fmt::Debug + Clone + PartialEq,
{
    let found = HasDiscoveries::AnyFailures;
    let checker = model.checker().threads(2).finish_when(found).spawn_bfs().join();
    let path = checker.discovery(property);
    let path = path.unwrap_or_else(|| panic!("{property}: not broken"));
    println!("{property}: {:?}", path.into_actions());
}

// ---- invalidation ---------------------------------------------------------------------------

fn ask(name: usize, shard: usize) -> Ask {
    Ask { name, shard, prepares: false }
}

fn prepare(name: usize, shard: usize) -> Ask {
    Ask { prepares: true, ..ask(name, shard) }
}

fn directory(changes: &[Change], asks: &[Ask]) -> Invalidation {
    Invalidation {
        changes: changes.to_vec(),
        asks: asks.to_vec(),
        crashes: 1,
        coordinator_crashes: 1,
        attempts: changes.len() as u8 + 1,
        fault: None,
    }
}

#[test]
fn rmdir_leaves_nothing_behind() {
    holds(directory(&[Change::Rmdir], &[ask(0, 1), prepare(0, 1)]), "rmdir");
    holds(directory(&[Change::Rmdir], &[ask(0, 0), prepare(0, 1)]), "rmdir at the owner");
}

#[test]
fn chmod_is_seen_by_all() {
    holds(directory(&[Change::Chmod], &[ask(0, 1), ask(0, 0)]), "chmod");
    holds(directory(&[Change::Chmod, Change::Chmod], &[ask(0, 1)]), "chmod twice");
}

#[test]
fn rename_moves_the_directory_for_all() {
    holds(directory(&[Change::Rename], &[ask(0, 1), ask(1, 0)]), "rename");
    holds(directory(&[Change::Chmod, Change::Rename], &[ask(0, 1)]), "chmod, rename");
}

#[test]
fn parked_requests_run_in_the_end() {
    for change in [Change::Rmdir, Change::Chmod, Change::Rename] {
        let model = directory(&[change], &[ask(0, 1), prepare(0, 1)]);
        let (stuck, states) = trap(&model, invalidation::State::is_quiet);
        assert!(stuck.is_none(), "{stuck:#?}");
        println!("{change:?}: quiet can be reached from each of {states} states");
    }
}

#[test]
fn faults_of_invalidation_are_found() {
    use invalidation::Fault::*;
    let old = "no batch uses an old value";
    let removed = "nothing is in a removed directory";
    for (fault, changes, asks, property) in [
        (AckWithoutDrop, &[Change::Chmod][..], &[ask(0, 1)][..], old),
        (LateAnswerAccepted, &[Change::Chmod], &[ask(0, 1)], old),
        (FoundKeptTooLong, &[Change::Rmdir], &[ask(0, 1)], old),
        (PreparedRowAnswered, &[Change::Chmod], &[ask(0, 1)], old),
        (ResolvedPid, &[Change::Rmdir], &[prepare(0, 1)], removed),
        (ScanIgnoresPrepared, &[Change::Rmdir], &[prepare(0, 1)], removed),
        (CommitsBeforeAcks, &[Change::Rename], &[ask(0, 1)], old),
    ] {
        println!("{fault:?}");
        finds(Invalidation { fault: Some(fault), ..directory(changes, asks) }, property);
    }
}

// ---- two-phase commit -----------------------------------------------------------------------

/// A link: no row of the driver's own, two participants.
fn link() -> Commit {
    Commit {
        shards: 3,
        operations: vec![Operation { driver: 0, own: None, parts: vec![(1, 1), (2, 2)] }],
        rows: vec![],
        sends: 2,
        crashes: 2,
        timeouts: 1,
        fault: None,
    }
}

/// Two renames of files that meet head on: x to y and y to x.
fn head_on() -> Commit {
    Commit {
        shards: 2,
        operations: vec![
            Operation { driver: 0, own: Some(0), parts: vec![(1, 1)] },
            Operation { driver: 1, own: Some(1), parts: vec![(0, 0)] },
        ],
        rows: vec![(0, 0), (1, 1)],
        sends: 1,
        crashes: 1,
        timeouts: 1,
        fault: None,
    }
}

#[test]
fn a_transaction_of_three_shards_holds() {
    holds(link(), "link");
}

#[test]
fn two_transactions_head_on_hold() {
    holds(head_on(), "head on");
    holds(Commit { sends: 2, crashes: 0, ..head_on() }, "head on, sent twice");
    holds(Commit { sends: 2, timeouts: 0, ..head_on() }, "head on, sent twice, with a crash");
}

#[test]
fn every_transaction_ends() {
    for model in [link(), head_on()] {
        // Whoever waits for a vote gives up some time.
        let model = Commit { crashes: 1, timeouts: u8::MAX, ..model };
        let (stuck, states) = trap(&model, commit::State::is_quiet);
        assert!(stuck.is_none(), "{stuck:#?}");
        println!("quiet can be reached from each of {states} states");
    }
    let silent = Commit { fault: Some(commit::Fault::NobodyAsks), crashes: 1, ..link() };
    assert!(trap(&silent, commit::State::is_quiet).0.is_some());
    let waits = Commit { fault: Some(commit::Fault::HolderWaits), crashes: 0, ..head_on() };
    assert!(trap(&waits, commit::State::is_quiet).0.is_some(), "a deadlock");
}

#[test]
fn faults_of_two_phase_commit_are_found() {
    use commit::Fault::*;
    for (fault, model, property) in [
        (DecisionSentFirst, link(), "nobody decides differently"),
        (ForgottenEarly, link(), "nobody decides differently"),
        (ReplyBeforeFlush, link(), "an answer is durable"),
        (ResultOutside, link(), "at most one execution"),
        (HolderWaits, head_on(), "no holder waits for a lock"),
        (ReadIgnoresPrepared, link(), "who reads sees what was answered"),
        (PrepareTwice, link(), "a row is set once"),
    ] {
        println!("{fault:?}");
        finds(Commit { fault: Some(fault), ..model }, property);
    }
}
