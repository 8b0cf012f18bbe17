//! Two copies of each chunk: with any one store dead everything is read; what is written meanwhile
//! waits, and is whole on both when the store is back.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use bytes::Bytes;
use rustix::process::Signal;
use saker_client::{Caller, Fallocate, File, Fs, OpenFlags, Seek};
use saker_sim::cluster::{ClusterShape, RunningCluster};
use saker_types::Locator;
use saker_types::wire::At;

const STORES: u32 = 3;
const FILES: usize = 6;
/// Three chunks.
const SIZE: usize = (9 << 20) + 77;

fn content(file: usize) -> Vec<u8> {
    (0..SIZE).map(|i| (i / 5 + file * 31) as u8).collect()
}

fn at(file: usize) -> At {
    At::below(Locator::root(), vec![Bytes::from(format!("f{file}"))])
}

fn open(fs: &Fs, file: usize) -> File {
    let flags = OpenFlags::from_linux(2);
    fs.block_on(fs.create(&Caller::root(), &at(file), 0o644, flags)).unwrap().0
}

/// Reads all files through a client that has nothing cached.
fn assert_read(cluster: &RunningCluster, changed: &[u8]) {
    let fs = cluster.connect();
    for n in 0..FILES {
        let file = open(&fs, n);
        let mut want = content(n);
        want[..changed.len()].copy_from_slice(changed);
        assert!(fs.block_on(file.read(0, SIZE + 1)).unwrap() == want, "file {n}");
        assert_eq!(fs.block_on(file.seek(Seek::Hole, 0)).unwrap(), SIZE as u64);
    }
    fs.close().unwrap();
}

#[test]
fn a_dead_store_of_two_copies_costs_nothing() {
    let shape = ClusterShape { stores: STORES, replicas: 2, mnodes: 2, ..ClusterShape::default() };
    let cluster = RunningCluster::start(shape);
    let fs = cluster.connect();
    for n in 0..FILES {
        let file = open(&fs, n);
        fs.block_on(file.write(0, &content(n))).unwrap();
        fs.block_on(file.fsync()).unwrap();
    }
    assert_read(&cluster, b"");
    for dead in 0..STORES {
        let store = format!("store-{dead}");
        cluster.signal(&store, Signal::KILL);
        let before = if dead == 0 { Vec::new() } else { vec![dead as u8 - 1; 3_000] };
        assert_read(&cluster, &before);
        // Some of these have a copy on the dead store: they wait for it.
        std::thread::scope(|scope| {
            let (fs, data) = (cluster.connect(), vec![dead as u8; 3_000]);
            let writer = scope.spawn(move || {
                for n in 0..FILES {
                    let file = open(&fs, n);
                    fs.block_on(file.fallocate(Fallocate::Punch, 0, 3_000)).unwrap();
                    fs.block_on(file.write(0, &data)).unwrap();
                    fs.block_on(file.fsync()).unwrap();
                }
                fs.close().unwrap();
            });
            cluster.up();
            writer.join().unwrap();
        });
        assert_read(&cluster, &vec![dead as u8; 3_000]);
    }
    fs.close().unwrap();
    let said = cluster.json(&["fsck"]);
    assert_eq!(said["problems"].as_array().map(Vec::len), Some(0), "{said:#}");
    // Copies are counted once, and the disk that all stores share.
    let capacity = fs.block_on(fs.statfs()).unwrap().capacity_bytes;
    let disk = rustix::fs::statvfs(cluster.dir()).unwrap();
    assert_eq!(capacity, disk.f_blocks * disk.f_frsize / 2);
}
