//! The client library against processes that are killed and start again.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Signal;
use saker_client::{Caller, Fs, OpenFlags};
use saker_sim::cluster::{ClusterShape, RunningCluster};
use saker_types::Locator;
use saker_types::wire::At;

const EXCLUSIVE: OpenFlags = OpenFlags {
    read: true,
    write: true,
    append: false,
    truncate: false,
    exclusive: true,
    execute: false,
};

fn path(text: &str) -> At {
    let names = text.split('/').filter(|name| !name.is_empty());
    let path = names.map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
    At::below(Locator::root(), path)
}

#[test]
fn operations_survive_kills_and_happen_once() {
    let cluster = RunningCluster::start(ClusterShape {
        mnodes: 2,
        supervise: true,
        ..ClusterShape::default()
    });
    let (fs, who) = (&cluster.connect(), &Caller::root());
    for dir in ["/a", "/b", "/sub"] {
        fs.block_on(fs.mkdir(who, &path(dir), 0o755)).unwrap();
    }
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let done = &done;
        let files: Vec<_> = (0..4)
            .map(|n| scope.spawn(move || until(done, |i| file_round(fs, who, &format!("{n}-{i}")))))
            .collect();
        // On its own, because after each start of an MNode it waits for leases that the one
        // before may have given, and during that no kill interrupts it.
        let dirs = scope.spawn(move || until(done, |i| dir_round(fs, who, &format!("/sub/{i}"))));
        for role in ["mnode-0", "mnode-1", "store-0", "coordinator-0", "mnode-0", "store-1"] {
            // Real time: the clients work meanwhile.
            std::thread::sleep(Duration::from_millis(300));
            cluster.signal(role, Signal::KILL);
        }
        // Real time: the clients work meanwhile.
        std::thread::sleep(Duration::from_secs(2));
        done.store(true, Ordering::Relaxed);
        dirs.join().unwrap();
        files.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>()
    });
    assert!(fs.stats().retries > 0, "nothing was interrupted in {rounds} rounds");
    let dir = fs.block_on(fs.lookup(who, &path("/b"))).unwrap().loc;
    let mut left = fs.readdir(who, &dir, 0);
    let mut files = 0;
    while let Some(item) = fs.block_on(left.next()).unwrap() {
        assert_eq!(item.attr.size, 6_003);
        files += 1;
    }
    assert_eq!(files, rounds);
}

/// Repeats `round` until it is `done`, at least once. Returns how often.
fn until(done: &AtomicBool, round: impl Fn(u64)) -> u64 {
    let mut rounds = 0;
    while !done.load(Ordering::Relaxed) || rounds == 0 {
        round(rounds);
        rounds += 1;
    }
    rounds
}

/// Each step fails if an earlier attempt of it, or of the step before, counts as another
/// operation: EEXIST, ENOENT.
fn file_round(fs: &Fs, who: &Caller, name: &str) {
    fs.block_on(async {
        let (from, to) = (path(&format!("/a/{name}")), path(&format!("/b/{name}")));
        let (file, entry) = fs.create(who, &from, 0o644, EXCLUSIVE).await.unwrap();
        assert!(entry.created);
        file.write(0, b"abc").await.unwrap();
        file.flush().await.unwrap();
        let append = OpenFlags { append: true, exclusive: false, ..EXCLUSIVE };
        let (log, _) = fs.open(who, &from, append).await.unwrap();
        assert_eq!(log.write(0, &[7; 3_000]).await.unwrap(), 3);
        assert_eq!(log.write(0, &[8; 3_000]).await.unwrap(), 3_003);
        fs.rename(who, &from, &to, false, &[]).await.unwrap();
        log.fsync().await.unwrap();
        let mut expected = b"abc".to_vec();
        expected.extend_from_slice(&[7; 3_000]);
        expected.extend_from_slice(&[8; 3_000]);
        assert!(file.read(0, 10_000).await.unwrap() == expected, "{name}");
    });
}

/// The same for a directory.
fn dir_round(fs: &Fs, who: &Caller, dir: &str) {
    fs.block_on(async {
        let dir = path(dir);
        fs.mkdir(who, &dir, 0o700).await.unwrap();
        fs.rmdir(who, &dir).await.unwrap();
    });
}
