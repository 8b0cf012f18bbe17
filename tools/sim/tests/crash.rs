//! `kill -9` of each process in turn during a copy: nothing that was acknowledged is lost, and
//! service is back in seconds. Needs root and /dev/fuse. `SAKER_CRASH_ROUNDS` repeats.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::Signal;
use saker_client::{Caller, Fs, OpenFlags};
use saker_sim::cluster::{ClusterShape, RunningCluster, can_mount};
use saker_sim::copier::{Copier, is_mounted};
use saker_sim::wait::until;
use saker_types::Locator;
use saker_types::wire::At;

/// Service is back after a kill within this.
const OUTAGE_MAX: Duration = Duration::from_secs(3);

/// Uses the whole cluster through the library: the coordinator (mkdir, rmdir), every shard
/// (names hash over all of them) and both stores (chunks of several files). No error may come.
fn probe(fs: &Fs, n: usize) {
    let who = Caller::root();
    let at = |path: &[String]| {
        At::below(Locator::root(), path.iter().map(|name| Bytes::from(name.clone())).collect())
    };
    let dir = format!("probe-{n}");
    fs.block_on(async {
        fs.mkdir(&who, &at(std::slice::from_ref(&dir)), 0o755).await.unwrap();
        for i in 0..12 {
            let place = at(&[dir.clone(), format!("name-{i}")]);
            let (file, _) =
                fs.create(&who, &place, 0o644, OpenFlags::from_linux(0o102)).await.unwrap();
            file.write(0, &[i; 5000]).await.unwrap();
            file.flush().await.unwrap();
            assert_eq!(file.read(0, 6000).await.unwrap().as_ref(), [i; 5000]);
            file.release().await;
            fs.unlink(&who, &place).await.unwrap();
        }
        fs.rmdir(&who, &at(&[dir])).await.unwrap();
    });
}

/// Kills a process and measures how long it takes until everything is served again.
fn kill(cluster: &RunningCluster, fs: &Fs, role: &str, n: usize) -> Duration {
    let old = cluster.pid(role);
    let start = Instant::now();
    cluster.signal(role, Signal::KILL);
    if role == "mount-0" {
        let is_new = || cluster.pid(role) != old && is_mounted(&cluster.mount());
        until("the mount", is_new);
    }
    probe(fs, n);
    // Real time: how long an outage may last is promised.
    let outage = start.elapsed();
    if role == "supervisor" {
        cluster.up();
    }
    until(role, || ![None, old].contains(&cluster.pid(role)));
    outage
}

fn wait_for_progress(copier: &Copier) {
    let before = copier.acknowledged();
    until("progress of the copy", || copier.acknowledged() >= before + 20);
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    if !can_mount("nothing_acknowledged_is_lost_by_kill_9") {
        return;
    }
    let rounds = std::env::var("SAKER_CRASH_ROUNDS").ok().and_then(|n| n.parse().ok());
    let cluster = RunningCluster::start(ClusterShape {
        mount: true,
        supervise: true,
        ..ClusterShape::default()
    });
    let fs = cluster.connect();
    probe(&fs, 0);
    let mut copier = Copier::start(&cluster.mount().join("copy"), 2);
    let roles = [
        "coordinator-0",
        "mnode-0",
        "mnode-1",
        "mnode-2",
        "mnode-3",
        "store-0",
        "store-1",
        "mount-0",
        "supervisor",
    ];
    let mut late = Vec::new();
    let mut kills = 0;
    for round in 0..rounds.unwrap_or(1) {
        for role in roles {
            wait_for_progress(&copier);
            kills += 1;
            let outage = kill(&cluster, &fs, role, kills);
            eprintln!("round {round}: {role} killed, all served after {outage:?}");
            if outage > OUTAGE_MAX {
                late.push(format!("{role}: {outage:?}"));
            }
        }
    }
    wait_for_progress(&copier);
    copier.stop();
    let files = copier.acknowledged();
    eprintln!("{files} acknowledged, {} unknown, {kills} kills", copier.failures());
    assert_kept(&copier);
    fs.close().unwrap();
    cluster.fsck();
    cluster.down();
    cluster.up();
    assert_kept(&copier);
    assert!(late.is_empty(), "service came back late: {late:?}");
}

/// What is written while a mount is away must fail: in the directory below nobody would see it.
#[test]
fn nothing_is_written_below_a_killed_mount() {
    if !can_mount("nothing_is_written_below_a_killed_mount") {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape {
        mount: true,
        supervise: true,
        ..ClusterShape::default()
    });
    let (mount, written, stop) = (cluster.mount(), AtomicU32::new(0), AtomicBool::new(false));
    let write = |writer: usize| {
        let (dir, start) = (mount.join(format!("writer-{writer}")), Instant::now());
        // Real time: not for ever, should the other thread panic.
        while !stop.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(120) {
            let made = std::fs::create_dir_all(&dir);
            if made.and_then(|()| std::fs::write(dir.join("file"), "")).is_ok() {
                written.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let write = &write;
        for writer in 0..2 {
            scope.spawn(move || write(writer));
        }
        for _ in 0..10 {
            let old = cluster.pid("mount-0");
            cluster.signal("mount-0", Signal::KILL);
            let before = written.load(Ordering::Relaxed);
            until("the mount", || {
                ![None, old].contains(&cluster.pid("mount-0"))
                    && written.load(Ordering::Relaxed) >= before + 100
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    cluster.down();
    let below: Vec<_> =
        std::fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(below.is_empty(), "{below:?}");
}

fn assert_kept(copier: &Copier) {
    let (wrong, compared) = copier.verify();
    assert!(wrong.is_empty(), "{} of {compared} are wrong: {wrong:#?}", wrong.len());
}
