//! Threads on two mounts of one tree do everything at once; then the checker finds nothing.
//! `SAKER_SEEDS` and `SAKER_OPS` run longer. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use saker_sim::cluster::{ClusterShape, RunningCluster, can_mount};
use saker_sim::{settings, stress};

const THREADS: u64 = 6;

#[test]
fn a_tree_that_two_mounts_work_on_stays_whole() {
    if !can_mount("a_tree_that_two_mounts_work_on_stays_whole") {
        return;
    }
    let (seeds, ops) = settings::runs(1, 2_000);
    for seed in seeds {
        let cluster =
            RunningCluster::start(ClusterShape { mount: true, ..ClusterShape::default() });
        let other = cluster.second_mount();
        let roots = [cluster.mount().join("tree"), other.path().join("tree")];
        std::fs::create_dir(&roots[0]).unwrap();
        let done: u64 = std::thread::scope(|scope| {
            let start = |n| {
                let root = &roots[n as usize % 2];
                scope.spawn(move || stress::run(root, seed * 1_000 + n, ops as u64))
            };
            let threads: Vec<_> = (0..THREADS).map(start).collect();
            threads.into_iter().map(|t| t.join().unwrap().unwrap_or_else(|e| panic!("{e}"))).sum()
        });
        let share = done as f64 / (THREADS as f64 * ops as f64);
        eprintln!("seed {seed}: {done} operations done, {:.0}%", share * 100.0);
        assert!(share > 0.2, "too few operations did anything");
        drop(other);
        cluster.fsck();
        // Everything that is there can be read.
        read_all(&roots[0]);
        std::fs::remove_dir_all(&roots[0]).unwrap();
        cluster.fsck();
    }
}

fn read_all(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            read_all(&entry.path());
        } else if kind.is_file() {
            std::fs::read(entry.path()).unwrap();
        }
    }
}
