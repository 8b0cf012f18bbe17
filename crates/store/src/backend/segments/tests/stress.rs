//! Many threads on real files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use saker_engine::table::{EmbeddedConfig, EmbeddedTable};
use saker_runtime::fs::RealDir;
use saker_runtime::rand::Rng;
use saker_types::Errno;
use saker_types::wire::{ChunkReadReq, ChunkTruncateReq, ChunkWriteReq};

use super::disk::{IDENTITY, Now, audit, options};
use crate::backend::segments::{Options, SegmentStore};

const THREADS: u64 = 6;
const BLOCK: usize = 3_000;
const BLOCKS: u64 = 40;

pub fn open(path: &std::path::Path) -> Arc<SegmentStore> {
    let dir = Arc::new(RealDir::open(path).unwrap());
    let table = EmbeddedTable::open(path.join("index"), &EmbeddedConfig::default()).unwrap();
    let options = Options { segment_bytes: 1 << 20, ..options() };
    SegmentStore::open(dir, Arc::new(table), IDENTITY, options).unwrap()
}

fn block(id: u64, number: u64, round: u64) -> Vec<u8> {
    (0..BLOCK as u64).map(|i| (id * 3 + number * 5 + round * 7 + i) as u8).collect()
}

fn write(
    store: &SegmentStore,
    id: u64,
    number: u64,
    round: u64,
    truncate_gen: u64,
) -> saker_types::Result<()> {
    let data = block(id, number, round);
    let req = ChunkWriteReq {
        id,
        index: number % 2,
        offset: number / 2 * BLOCK as u64,
        truncate_gen,
        replicas: vec![0],
        sync: round.is_multiple_of(7),
        crc: crc32c::crc32c(&data),
        ..ChunkWriteReq::default()
    };
    store.write_now(&req, &data).map(|_| ())
}

fn read(store: &SegmentStore, id: u64, number: u64) -> Vec<u8> {
    let (index, offset) = (number % 2, number / 2 * BLOCK as u64);
    let req = ChunkReadReq { id, index, offset, len: BLOCK as u64, ..Default::default() };
    let (data, reply) = store.read_now(&req).unwrap();
    assert_eq!(crc32c::crc32c(&data), reply.crc);
    data.to_vec()
}

/// Writes every block of its own file, over and over, and reads it back.
fn worker(store: &SegmentStore, id: u64, stop: &AtomicBool) -> Vec<u64> {
    let mut rng = Rng::seeded(id);
    let mut rounds = vec![0; BLOCKS as usize];
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let number = rng.below(BLOCKS);
        write(store, id, number, round, 0).unwrap();
        rounds[number as usize] = round;
        let number = rng.below(BLOCKS);
        let data = read(store, id, number);
        if rounds[number as usize] > 0 {
            assert_eq!(data, block(id, number, rounds[number as usize]), "file {id}");
        }
        // One file for all: whole blocks of somebody, or nothing.
        let truncate_gen = store.index.truncate_gen(1_000).unwrap();
        match write(store, 1_000, number, round, truncate_gen) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.errno(), Errno::ESTALE),
        }
        let seen = read(store, 1_000, number);
        if seen.len() == BLOCK && seen.iter().any(|b| *b != 0) {
            let steps = seen.windows(2).all(|w| w[1] == w[0].wrapping_add(1));
            assert!(steps, "a block of two writes");
        }
        if rng.chance(1, 50) {
            let req = ChunkTruncateReq { id: 1_000, truncate_gen: truncate_gen + 1, cut: 0 };
            store.truncate_now(&req).unwrap();
        }
        if rng.chance(1, 100) {
            let ids = vec![2_000 + rng.below(10), 2_000 + rng.below(10)];
            let _ = write(store, ids[0], number, round, 0);
            store.delete(&ids).unwrap();
        }
    }
    rounds
}

#[test]
fn threads_see_their_own_writes_through_compaction_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.start().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (1..=THREADS)
        .map(|id| {
            let (store, stop) = (store.clone(), stop.clone());
            std::thread::spawn(move || worker(&store, id, &stop))
        })
        .collect();
    // Real time: the workers work meanwhile.
    std::thread::sleep(std::time::Duration::from_secs(4));
    stop.store(true, Ordering::Relaxed);
    let rounds: Vec<Vec<u64>> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    store.stop();
    let check = |store: &SegmentStore| {
        for (id, rounds) in (1..).zip(&rounds) {
            for (number, round) in rounds.iter().enumerate().filter(|(_, round)| **round > 0) {
                assert_eq!(read(store, id, number as u64), block(id, number as u64, *round));
            }
        }
        audit(store);
    };
    check(&store);
    assert!(rounds.iter().flatten().max().unwrap() > &20, "too slow to mean anything");
    assert!(store.metrics.checkpoints.get() > 1 && store.metrics.compacted_bytes.get() > 0);
    drop(store);
    let store = open(dir.path());
    check(&store);
    store.checkpoint().unwrap();
    check(&store);
}
