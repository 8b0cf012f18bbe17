//! Random operations on one file, through a mount, through the library, and by two writers on two
//! mounts. `SAKER_SEEDS` and `SAKER_OPS` run longer; `cargo run -p saker-sim --bin fsx` by hand.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use saker_client::ClientOptions;
use saker_sim::cluster::{ClusterShape, RunningCluster, can_mount};
use saker_sim::fsx::{LibFsFile, PosixFile, run, run_two};
use saker_sim::settings;
use saker_types::Locator;
use saker_types::wire::At;

#[test]
fn a_file_on_a_mount_agrees_with_memory() {
    if !can_mount("a_file_on_a_mount_agrees_with_memory") {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape { mount: true, ..ClusterShape::default() });
    let (seeds, ops) = settings::runs(3, 20_000);
    for seed in seeds {
        let mut file = PosixFile::create(&cluster.mount().join(format!("f{seed}"))).unwrap();
        let report = run(&mut file, seed, ops as u64).unwrap_or_else(|what| panic!("{what}"));
        eprintln!("seed {seed}: {report:?}");
        assert!(report.holes_seen > 0, "no hole was ever seen");
    }
    cluster.fsck();
}

#[test]
fn a_file_through_the_library_agrees_with_memory() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let fs = cluster.connect();
    let (seeds, ops) = settings::runs(2, 20_000);
    for seed in seeds {
        let at = At::child(Locator::root(), format!("f{seed}").as_bytes());
        let mut file = LibFsFile::create(&fs, &at).unwrap();
        let report = run(&mut file, seed, ops as u64).unwrap_or_else(|what| panic!("{what}"));
        eprintln!("seed {seed}: {report:?}");
    }
    fs.close().unwrap();
    cluster.fsck();
}

/// Most writes wait for the stores, and most reads get nothing ahead.
#[test]
fn a_file_of_a_client_with_little_memory_agrees_with_memory() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let fs = cluster.connect_with(ClientOptions {
        write_buffer_total_bytes: 0,
        read_ahead_total_bytes: 200 << 10,
        ..ClientOptions::default()
    });
    let (seeds, ops) = settings::runs(2, 10_000);
    for seed in seeds {
        let at = At::child(Locator::root(), format!("f{seed}").as_bytes());
        let mut file = LibFsFile::create(&fs, &at).unwrap();
        run(&mut file, seed, ops as u64).unwrap_or_else(|what| panic!("{what}"));
    }
    fs.close().unwrap();
    cluster.fsck();
}

#[test]
fn two_writers_on_two_mounts_keep_what_both_wrote() {
    if !can_mount("two_writers_on_two_mounts_keep_what_both_wrote") {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape { mount: true, ..ClusterShape::default() });
    let other = cluster.second_mount();
    let (seeds, ops) = settings::runs(2, 5_000);
    for seed in seeds {
        let name = format!("f{seed}");
        let first = PosixFile::create(&cluster.mount().join(&name)).unwrap();
        let mut both = [first, PosixFile::create(&other.path().join(&name)).unwrap()];
        run_two(&mut both, seed, ops as u64).unwrap_or_else(|what| panic!("{what}"));
    }
    cluster.fsck();
}
