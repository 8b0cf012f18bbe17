//! The client library against servers in this process: file data.
#![allow(clippy::unwrap_used)]

mod client_support;

use client_support::{Cluster, path};
use saker_client::{File, Fs, OpenFlags, SetAttr};
use saker_runtime::rand::Rng;
use saker_sim::wait::until;
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::At;

const RW: OpenFlags = OpenFlags::READ_WRITE;
const APPEND: OpenFlags = OpenFlags { append: true, ..RW };
const TRUNC: OpenFlags = OpenFlags { truncate: true, ..RW };

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::seeded(seed).fill(&mut bytes);
    bytes
}

fn open(fs: &Fs, flags: OpenFlags) -> File {
    fs.block_on(fs.open(&saker_client::Caller::root(), &path("/f"), flags)).unwrap().0
}

fn read_all(fs: &Fs) -> Vec<u8> {
    let file = open(fs, RW);
    let mut data = Vec::new();
    loop {
        let part = fs.block_on(file.read(data.len() as u64, 100_000)).unwrap();
        if part.is_empty() {
            return data;
        }
        data.extend_from_slice(&part);
    }
}

#[test]
fn a_large_file_goes_over_several_stores_and_back() {
    let t = Cluster::start(2, 3);
    let other = t.connect();
    let data = pattern(3 * CHUNK_BYTES as usize + 777, 1);
    t.run(async {
        let (file, _) = t.fs.create(&t.root, &path("/f"), 0o644, RW).await.unwrap();
        for (i, part) in data.chunks(128 << 10).enumerate() {
            file.write((i * (128 << 10)) as u64, part).await.unwrap();
        }
        file.fsync().await.unwrap();
        file.release().await;
    });
    assert!(read_all(&other) == data);
    let file = open(&other, RW);
    assert!(other.block_on(file.read(0, data.len())).unwrap() == data);
    let stat = t.run(t.fs.statfs()).unwrap();
    assert!(stat.free_bytes > 0 && stat.free_bytes <= stat.capacity_bytes);
}

#[test]
fn the_owner_knows_what_is_not_flushed() {
    let t = Cluster::start(2, 2);
    let other = t.connect();
    let entry = || other.block_on(other.getattr(&t.root, &path("/f"))).unwrap();
    let unflushed = || entry().unflushed;
    let stores = || unflushed().iter().map(|w| (w.store, w.epoch, w.more)).collect::<Vec<_>>();
    let (file, _) = t.run(t.fs.create(&t.root, &path("/f"), 0o644, RW)).unwrap();
    t.run(file.write(0, &pattern(600_000, 1))).unwrap();
    t.run(file.fsync()).unwrap();
    assert_eq!(stores(), [], "flushed before the owner heard");
    t.run(file.write(0, &pattern(60_000, 2))).unwrap();
    t.run(file.flush()).unwrap();
    assert_eq!(stores().len(), 2, "on both replicas");
    let changed = entry().attr.mtime_ns;
    let theirs = open(&other, RW);
    other.block_on(theirs.fsync()).unwrap();
    let after = entry();
    assert_eq!((after.unflushed.len(), after.attr.mtime_ns), (0, changed));
    let appends = open(&t.fs, APPEND);
    (0..2).for_each(|_| _ = t.run(appends.write(0, &pattern(60_000, 3))).unwrap());
    assert_eq!(stores().len(), 2, "the first of them");
    let first = unflushed()[0];
    t.run(appends.flush()).unwrap();
    assert_eq!((unflushed()[0].first, unflushed()[0].more), (first.first, first.more + 1));
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    t.run(t.fs.setattr(&t.root, &path("/f"), &empty)).unwrap();
    assert_eq!(stores(), []);
}

#[test]
fn what_is_never_synced_is_seen_by_others() {
    let t = Cluster::start(2, 2);
    let other = t.connect();
    let (file, _) = t.run(t.fs.create(&t.root, &path("/f"), 0o644, RW)).unwrap();
    for len in [300, 10_001] {
        t.run(file.write(0, &pattern(len, 1))).unwrap();
        until(&format!("others see {len} bytes"), || read_all(&other) == pattern(len, 1));
    }
}

#[test]
fn appends_of_two_clients_never_overlap() {
    let t = Cluster::start(2, 2);
    let other = t.connect();
    t.run(t.fs.create(&t.root, &path("/f"), 0o644, RW)).unwrap();
    let records = 300;
    std::thread::scope(|scope| {
        for (fs, letter) in [(&t.fs, b'a'), (&other, b'b'), (&t.fs, b'c')] {
            scope.spawn(move || {
                let file = open(fs, APPEND);
                for i in 0..records {
                    let record = vec![letter; 10 + i % 90];
                    fs.block_on(file.write(0, &record)).unwrap();
                }
                fs.block_on(file.flush()).unwrap();
            });
        }
    });
    let data = read_all(&other);
    let bytes: usize = (0..records).map(|i| 10 + i % 90).sum();
    assert_eq!(data.len(), 3 * bytes);
    for letter in *b"abc" {
        assert_eq!(data.iter().filter(|b| **b == letter).count(), bytes);
    }
}

/// Two clients take turns with one file; each turn begins with an open and ends with a close, so
/// that each must see all that the other has done.
#[test]
fn turns_of_two_clients_agree_with_a_byte_vector() {
    let t = Cluster::start(2, 2);
    let clients = [t.connect(), t.connect()];
    t.run(t.fs.create(&t.root, &path("/f"), 0o644, RW)).unwrap();
    for seed in 0..6 {
        let mut rng = Rng::seeded(seed);
        let mut model = Vec::new();
        open(&t.fs, TRUNC);
        for turn in 0..40 {
            let fs = &clients[rng.below(2) as usize];
            let truncates = rng.chance(1, 12);
            if truncates {
                model.clear();
            }
            let file = open(fs, if truncates { TRUNC } else { RW });
            for _ in 0..rng.below(6) {
                step(fs, &file, &mut rng, &mut model);
            }
            fs.block_on(file.flush()).unwrap();
            assert_eq!(file.entry().attr.size, model.len() as u64, "seed {seed} turn {turn}");
        }
        assert!(read_all(&t.fs) == model, "seed {seed}");
    }
}

fn step(fs: &Fs, file: &File, rng: &mut Rng, model: &mut Vec<u8>) {
    let spread = [100, 5_000, 300_000, 5_000_000][rng.below(4) as usize];
    let offset = rng.below(spread) as usize;
    match rng.below(8) {
        0..4 => {
            let data = pattern(1 + rng.below(spread / 2) as usize, rng.u64());
            fs.block_on(file.write(offset as u64, &data)).unwrap();
            model.resize(model.len().max(offset + data.len()), 0);
            model[offset..offset + data.len()].copy_from_slice(&data);
        }
        4 => {
            let change = SetAttr { size: Some(offset as u64), ..SetAttr::default() };
            let at = At::handle(file.locator());
            fs.block_on(fs.setattr(&saker_client::Caller::root(), &at, &change)).unwrap();
            model.resize(offset, 0);
        }
        5 => fs.block_on(file.fsync()).unwrap(),
        _ => {
            let len = rng.below(spread) as usize;
            let data = fs.block_on(file.read(offset as u64, len)).unwrap();
            let end = (offset + len).min(model.len());
            assert!(data == model[offset.min(end)..end], "{len} bytes at {offset}");
        }
    }
}

#[test]
fn writers_of_disjoint_ranges_and_readers_share_a_file() {
    let t = Cluster::start(1, 2);
    let other = t.connect();
    t.run(t.fs.create(&t.root, &path("/f"), 0o644, RW)).unwrap();
    let (part, writers) = (700_001usize, 6u64);
    std::thread::scope(|scope| {
        for n in 0..writers {
            let fs = if n % 2 == 0 { &t.fs } else { &other };
            scope.spawn(move || {
                let file = open(fs, RW);
                let data = pattern(part, n);
                for (i, piece) in data.chunks(50_000).enumerate() {
                    let at = n * part as u64 + i as u64 * 50_000;
                    fs.block_on(file.write(at, piece)).unwrap();
                    let back = fs.block_on(file.read(at, piece.len())).unwrap();
                    assert!(back == piece, "what was written is read");
                }
                fs.block_on(file.flush()).unwrap();
            });
        }
    });
    let expected: Vec<u8> = (0..writers).flat_map(|n| pattern(part, n)).collect();
    assert!(read_all(&t.fs) == expected);
}
