//! The client library against processes that are killed and start again.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Signal;
use saker_client::{Caller, Fs, OpenFlags};
use saker_sim::cluster::{Cluster, Shape};
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
    let cluster = Cluster::start(Shape { mnodes: 2, supervise: true, ..Shape::default() });
    let (fs, who) = (&cluster.connect(), &Caller::root());
    for dir in ["/a", "/b", "/sub"] {
        fs.block_on(fs.mkdir(who, &path(dir), 0o755)).unwrap();
    }
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|n| {
                let done = &done;
                scope.spawn(move || {
                    let mut round = 0;
                    while !done.load(Ordering::Relaxed) || round == 0 {
                        one_round(fs, who, &format!("{n}-{round}"));
                        round += 1;
                    }
                    round
                })
            })
            .collect();
        for role in ["mnode-0", "mnode-1", "store-0", "coordinator-0", "mnode-0", "store-1"] {
            std::thread::sleep(Duration::from_millis(300));
            cluster.signal(role, Signal::KILL);
        }
        std::thread::sleep(Duration::from_secs(2));
        done.store(true, Ordering::Relaxed);
        workers.into_iter().map(|w| w.join().unwrap()).sum::<u64>()
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

/// Each step fails if an earlier attempt of it, or of the step before, counts as another
/// operation: EEXIST, ENOENT.
fn one_round(fs: &Fs, who: &Caller, name: &str) {
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
        let dir = path(&format!("/sub/{name}"));
        fs.mkdir(who, &dir, 0o700).await.unwrap();
        fs.rmdir(who, &dir).await.unwrap();
    });
}
