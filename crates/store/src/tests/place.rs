//! Where a range is, on real files: whoever reads there gets what the store would have sent.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use saker_engine::table::{EmbeddedConfig, EmbeddedTable, OnRow, RowChange, Table, TableError};
use saker_runtime::fs::{Dir as _, ForeignDir, RealDir, SharedMemory};
use saker_runtime::rand::Rng;
use saker_types::limits::{BLOCK_BYTES, CHUNK_BYTES};
use saker_types::places::{PlaceTable, RecordPlace, segment_name};
use saker_types::wire::{
    ChunkDeleteReq, ChunkPlace, ChunkReadReq, ChunkTruncateReq, ChunkWriteReq,
};

use super::disk::{IDENTITY, Machine, options};
use super::stress::open;
use crate::store::Store;

const CHUNK_USED: u64 = 200_000;

fn write(store: &Store, id: u64, truncate_gen: u64, offset: u64, data: &[u8]) {
    let (replicas, crc) = (vec![0], crc32c::crc32c(data));
    let req = ChunkWriteReq { id, offset, truncate_gen, replicas, crc, ..Default::default() };
    store.write(&req, data).unwrap();
}

fn at_place(dir: &ForeignDir, place: &ChunkPlace) -> Vec<u8> {
    let file = dir.file(&place.file).unwrap().unwrap();
    let data = file.read_cached(place.pos, place.bytes as usize).unwrap().unwrap();
    match place.sum {
        Some(sum) => assert!(crc32c::crc32c(&data) == sum && place.sums.is_empty()),
        None => {
            assert!(data.chunks(BLOCK_BYTES).map(crc32c::crc32c).eq(place.sums.iter().copied()))
        }
    }
    data[place.skip as usize..][..place.len as usize].to_vec()
}

#[test]
fn a_place_holds_what_a_read_returns() {
    let path = tempfile::tempdir().unwrap();
    let store = open(path.path());
    let finder = Finder::new(&store, path.path());
    let (mut found, mut holes) = (0, 0);
    let mut rng = Rng::seeded(1);
    let (mut told, mut several, mut whole, mut not) = (0, 0, 0, 0);
    for step in 0..3_000u64 {
        let (id, offset) = (1 + rng.below(4), rng.below(CHUNK_USED));
        let len = 1 + rng.below(CHUNK_USED - offset);
        match rng.below(20) {
            0 => {
                let req = ChunkTruncateReq { id, cut: offset, truncate_gen: step };
                // Older than what another step has set: refused, as it should be.
                let _ = store.truncate(&req);
            }
            1 => store.maintain(),
            2..8 => {
                // Some are all that there is of the chunk.
                let offset = if rng.chance(1, 6) { 0 } else { offset };
                let len = if offset == 0 { CHUNK_USED } else { len };
                let mut data = vec![0; len as usize];
                rng.fill(&mut data);
                write(&store, id, step, offset, &data);
            }
            _ => {
                let fetches = rng.chance(1, 2);
                let req = ChunkReadReq { id, index: 0, offset, len, machine: 1, fetches };
                let (data, reply) = store.read(&req).unwrap();
                holes += usize::from(reply.holes);
                assert!(!reply.holes || data.contains(&0));
                if let Some(place) = finder.place(id) {
                    let whole = ChunkReadReq { offset: 0, len: CHUNK_BYTES, ..req };
                    assert!(finder.data(place).unwrap() == store.read(&whole).unwrap().0);
                    found += 1;
                }
                let Some(located) = store.locate(&req).unwrap() else {
                    not += 1;
                    continue;
                };
                assert!(!reply.holes, "step {step}");
                let dir = ForeignDir::open(&located.dir.unwrap()).unwrap();
                let there: Vec<u8> =
                    located.places.iter().flat_map(|place| at_place(&dir, place)).collect();
                assert!(there == data, "step {step}");
                told += 1;
                several += usize::from(located.places.len() > 1);
                whole += located.places.iter().filter(|place| place.sum.is_some()).count();
            }
        }
    }
    let enough = told > 100 && several > 100 && whole > 100 && not > 50 && found > 50 && holes > 50;
    assert!(enough, "{told} {several} {whole} {not} {found} {holes}");
}

/// Finds places as a client does.
struct Finder {
    dir: ForeignDir,
    memory: SharedMemory,
}

impl Finder {
    fn new(store: &Store, path: &Path) -> Finder {
        let at = RealDir::open(path.join("segments")).unwrap().whereabouts().unwrap();
        let table = store.index.places().whereabouts().unwrap();
        let memory = SharedMemory::open(&table).unwrap();
        Finder { dir: ForeignDir::open(&at).unwrap(), memory }
    }

    fn place(&self, id: u64) -> Option<RecordPlace> {
        PlaceTable::open(self.memory.words()).unwrap().get((id, 0))
    }

    /// What is at a place; nothing if its segment is gone, or one would have to wait.
    fn data(&self, place: RecordPlace) -> Option<Vec<u8>> {
        let file = self.dir.file(&segment_name(place.segment)).ok()??;
        let data = file.read_cached(u64::from(place.pos), place.len as usize).unwrap()?;
        assert_eq!(crc32c::crc32c(&data), place.sum);
        Some(data)
    }
}

/// While chunks are written, cut, deleted and moved, with most of the index on disk only: no place is found that is
/// older than what was done before somebody looked for it.
#[test]
fn who_finds_a_place_finds_no_older_one() {
    const FILES: u64 = 2_000;
    let path = tempfile::tempdir().unwrap();
    let store = open(path.path());
    store.start().unwrap();
    // The last change of each one's beginning that was acknowledged; a write there begins with its number.
    let done: Vec<AtomicU64> = (0..FILES).map(|_| AtomicU64::new(0)).collect();
    let (stop, found) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (store, done, stop) = (&store, &done, &stop);
            scope.spawn(move || {
                let mut rng = Rng::seeded(thread);
                let mut truncate_gen = 0;
                for change in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // Each has its own files.
                    let id = 1 + rng.below(FILES / 2) * 2 + thread;
                    let offset = if rng.chance(1, 8) { 500 } else { 0 };
                    let mut data = vec![id as u8; 1_000 + rng.below(3_000) as usize];
                    if offset == 0 {
                        data[..8].copy_from_slice(&u64::to_le_bytes(change));
                    }
                    let is_at_start = match rng.below(20) {
                        0 => {
                            truncate_gen += 1;
                            let cut = rng.below(2) * 700;
                            store.truncate(&ChunkTruncateReq { id, cut, truncate_gen }).unwrap();
                            cut == 0
                        }
                        1 => {
                            store.delete(&ChunkDeleteReq { ids: vec![id] }).unwrap();
                            true
                        }
                        2 => {
                            let (hole, replicas) = (700, vec![0]);
                            let punch = ChunkWriteReq {
                                id,
                                hole,
                                replicas,
                                truncate_gen,
                                ..Default::default()
                            };
                            store.write(&punch, &[]).unwrap();
                            true
                        }
                        _ => {
                            write(store, id, truncate_gen, offset, &data);
                            offset == 0
                        }
                    };
                    if is_at_start {
                        done[id as usize - 1].store(change, Ordering::SeqCst);
                    }
                }
            });
        }
        for thread in 2..4 {
            let (store, done, stop, found, path) = (&store, &done, &stop, &found, path.path());
            scope.spawn(move || {
                let mut rng = Rng::seeded(thread);
                let mut finder = Finder::new(store, path);
                while !stop.load(Ordering::Relaxed) {
                    if PlaceTable::open(finder.memory.words()).unwrap().is_closed() {
                        finder = Finder::new(store, path);
                    }
                    let id = 1 + rng.below(FILES);
                    let before = done[id as usize - 1].load(Ordering::SeqCst);
                    let Some(data) = finder.place(id).and_then(|place| finder.data(place)) else {
                        // Who asks has it told again.
                        let (len, index) = (CHUNK_BYTES, 0);
                        store.read(&ChunkReadReq { id, index, len, ..Default::default() }).unwrap();
                        continue;
                    };
                    let change = u64::from_le_bytes(*data.first_chunk().unwrap());
                    assert!(
                        change >= before,
                        "change {change} of file {id}, which has had {before}"
                    );
                    assert!(data[8..].iter().all(|byte| *byte == id as u8));
                    found.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            std::thread::sleep(Duration::from_millis(300));
            store.checkpoint().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    store.stop();
    assert!(found.load(Ordering::Relaxed) > 1_000 && store.metrics.compacted_bytes.get() > 0);
    drop(store);
    // The next process tells what it finds.
    let store = open(path.path());
    let finder = Finder::new(&store, path.path());
    store.maintain();
    let told = (1..=FILES).filter_map(|id| Some((id, finder.data(finder.place(id)?)?)));
    let right = told.map(|(id, data)| {
        let req = ChunkReadReq { id, len: CHUNK_BYTES, ..Default::default() };
        assert!(store.read(&req).unwrap().0 == data);
    });
    let right = right.count();
    assert!(right > FILES as usize / 10, "{right}");
}

/// A table of rows that cannot be listed.
struct Unlisted {
    table: EmbeddedTable,
    broken: AtomicBool,
}

impl Table for Unlisted {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        self.table.get(key)
    }

    fn scan(&self, start: &[u8], end: &[u8], f: &mut OnRow<'_>) -> Result<(), TableError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("broken").into());
        }
        self.table.scan(start, end, f)
    }

    fn write(&self, rows: &mut dyn Iterator<Item = RowChange>) -> Result<(), TableError> {
        self.table.write(rows)
    }
}

/// What is cut is not found, also when it is not known which chunks that are.
#[test]
fn a_failed_cut_leaves_no_place() {
    let path = tempfile::tempdir().unwrap();
    let dir = Arc::new(RealDir::open(path.path()).unwrap());
    let table = EmbeddedTable::open(path.path().join("index"), &EmbeddedConfig::default()).unwrap();
    let table = Arc::new(Unlisted { table, broken: AtomicBool::new(false) });
    let store = Store::open(dir, table.clone(), IDENTITY, options()).unwrap();
    for id in 1..1_000 {
        write(&store, id, 0, 0, &[7; 1_000]);
    }
    store.checkpoint().unwrap();
    let finder = Finder::new(&store, path.path());
    let known = (1..500).filter(|id| finder.place(*id).is_some()).count();
    assert!(known > 450, "{known}");
    table.broken.store(true, Ordering::Relaxed);
    let failed = (1..500).filter(|id| {
        store.truncate(&ChunkTruncateReq { id: *id, cut: 0, truncate_gen: 1 }).is_err()
    });
    assert!(failed.count() > 100, "their rows are not in memory any more");
    assert!((1..500).all(|id| finder.place(id).is_none()));
}

#[test]
fn what_nobody_else_can_open_has_no_place() {
    let store = Machine::new().open();
    write(&store, 1, 0, 0, &[7; 20_000]);
    let req =
        ChunkReadReq { id: 1, index: 0, offset: 0, len: CHUNK_BYTES, machine: 1, fetches: true };
    assert!(store.locate(&req).unwrap().is_none());
    assert_eq!(store.read(&req).unwrap().0.len(), 20_000);
}
