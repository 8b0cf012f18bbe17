//! Full disks, damaged disks, failing flushes, foreign data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use saker_runtime::fs::{Dir, Fault, FaultDir, OpKind};
use saker_types::wire::{ChunkListReq, ChunkReadReq, ChunkTruncateReq, ChunkWriteReq};
use saker_types::{Class, Errno, Result};

use super::disk::{IDENTITY, Machine, Now, SEGMENT_BYTES, audit, open_in, options};
use crate::backend::segments::format::{self, RecordHeader, StoreIdentity};
use crate::backend::segments::index::Commit;
use crate::backend::segments::log::{Draft, Purpose};
use crate::backend::segments::{Options, SegmentStore};
use crate::wait::WaitPolicy;

fn put(store: &SegmentStore, id: u64, offset: u64, data: &[u8]) -> Result<()> {
    let crc = crc32c::crc32c(data);
    let req = ChunkWriteReq { id, offset, crc, ..ChunkWriteReq::default() };
    store.write_now(&req, data).map(|_| ())
}

fn get(store: &SegmentStore, id: u64, offset: u64, len: u64) -> Result<Vec<u8>> {
    store
        .read_now(&ChunkReadReq { id, index: 0, offset, len, ..Default::default() })
        .map(|(data, _)| data.to_vec())
}

fn pattern(id: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 31 + id * 7 + i / 251) as u8).collect()
}

/// Writes files of `len` bytes until there is no space; returns how many.
fn fill(store: &SegmentStore, len: usize) -> u64 {
    for id in 1.. {
        if let Err(error) = put(store, id, 0, &pattern(id, len)) {
            assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
            return id - 1;
        }
        assert!(id < 10_000, "it never gets full");
    }
    0
}

fn check_full_store(store: &SegmentStore) {
    let len = 20_000;
    let files = fill(store, len);
    assert!(files > 15, "only {files} files");
    for id in 1..=files {
        assert_eq!(get(store, id, 0, len as u64).unwrap(), pattern(id, len));
    }
    // Truncations and deletions work; so does writing, once they have freed something.
    store.truncate_now(&ChunkTruncateReq { id: 1, truncate_gen: 1, cut: 10 }).unwrap();
    assert_eq!(get(store, 1, 0, len as u64).unwrap(), pattern(1, 10));
    assert_eq!(put(store, 1, 0, &[1]).unwrap_err().errno(), Errno::ESTALE);
    let gone: Vec<u64> = (2..files).filter(|id| id % 4 != 0).collect();
    store.delete(&gone).unwrap();
    for _ in 0..20 {
        // Real time: chunks are deleted in the background, bit by bit.
        saker_runtime::time::sleep(std::time::Duration::from_millis(20));
        store.maintain();
    }
    let new = |id: u64| id + 1_000_000;
    for id in &gone {
        put(store, new(*id), 0, &pattern(*id, len / 2)).unwrap();
    }
    for id in 2..=files {
        let (of, len) = if gone.contains(&id) { (new(id), len / 2) } else { (id, len) };
        assert_eq!(get(store, of, 0, 1 << 20).unwrap(), pattern(id, len), "file {id}");
    }
    audit(store);
}

#[test]
fn a_store_at_its_capacity_refuses_data_and_goes_on() {
    let machine = Machine::new();
    let capacity_bytes = 8 * u64::from(SEGMENT_BYTES);
    let store = machine.open_with(Options { capacity_bytes, ..options() }).unwrap();
    check_full_store(&store);
    assert!(store.segments.disk_bytes() <= capacity_bytes);
    let stat = store.stat().unwrap();
    assert_eq!(stat.capacity_bytes, capacity_bytes);
    assert_eq!(stat.chunks, store.index.chunks());
    assert!(stat.free_bytes > 0 && stat.free_bytes < capacity_bytes / 2, "{stat:?}");
    // What it says is free can be written, but for the rest of a segment at its end.
    let files = stat.free_bytes.saturating_sub(u64::from(SEGMENT_BYTES)) / 1_024;
    (0..files).for_each(|i| put(&store, 50_000 + i, 0, &pattern(i, 800)).unwrap());
    let more = (files..files + 300).try_for_each(|i| put(&store, 50_000 + i, 0, &[1; 800]));
    assert_eq!(more.unwrap_err().errno(), Errno::ENOSPC);
    assert!(store.stat().unwrap().free_bytes <= u64::from(SEGMENT_BYTES));
}

/// A store on a disk that has room for 8 segments, of which statvfs knows or not.
fn on_small_disk(machine: &Machine, statvfs_knows: bool) -> Arc<SegmentStore> {
    let dir = machine.dir.sub_dir("segments").unwrap();
    let count = move || dir.list().map(|names| names.len() as u64);
    let counted = count.clone();
    let script = move |op: &saker_runtime::fs::FileOp<'_>| match op.kind {
        OpKind::Preallocate if counted().unwrap() > 8 => Fault::Fail(libc::ENOSPC),
        _ => Fault::None,
    };
    let space = move || {
        let free = 8u64.saturating_sub(count()?) * u64::from(SEGMENT_BYTES) + (16 << 20);
        let free_bytes = if statvfs_knows { free } else { 1 << 30 };
        Ok(super::disk::space(1 << 28, free_bytes))
    };
    let dir: Arc<dyn Dir> =
        Arc::new(FaultDir::new(Arc::new(machine.dir.clone()), Box::new(script)));
    let options = Options { space: Arc::new(space), ..options() };
    open_in(dir, IDENTITY, options).unwrap()
}

#[test]
fn a_full_disk_refuses_data_and_goes_on() {
    check_full_store(&on_small_disk(&Machine::new(), true));
}

#[test]
fn a_disk_that_is_full_all_of_a_sudden_loses_nothing() {
    let machine = Machine::new();
    let store = on_small_disk(&machine, false);
    let files = fill(&store, 20_000);
    store.sync(&[]).unwrap();
    store.delete(&(2..files).collect::<Vec<_>>()).unwrap();
    let new = files + 1;
    assert_eq!(put(&store, new, 0, &pattern(new, 20_000)).unwrap_err().errno(), Errno::ENOSPC);
    store.checkpoint().unwrap();
    put(&store, new, 0, &pattern(new, 20_000)).unwrap();
    for id in [1, new, files] {
        assert_eq!(get(&store, id, 0, 1 << 20).unwrap(), pattern(id, 20_000));
    }
    audit(&store);
    drop(store);
    let store = machine.open();
    assert_eq!(get(&store, files, 0, 1 << 20).unwrap(), pattern(files, 20_000));
}

#[test]
fn no_flipped_bit_becomes_data() {
    let machine = Machine::new();
    let store = machine.open();
    let expect = |id: u64| match id {
        1 => [pattern(1, 9_000), pattern(2, 4_000)].concat(),
        _ => pattern(id, 13_000),
    };
    put(&store, 1, 0, &pattern(9, 12_000)).unwrap();
    put(&store, 1, 9_000, &pattern(2, 4_000)).unwrap();
    put(&store, 1, 0, &pattern(1, 9_000)).unwrap();
    put(&store, 2, 0, &pattern(2, 13_000)).unwrap();
    store.sync(&[]).unwrap();
    store.checkpoint().unwrap();
    let segments = machine.dir.sub_dir("segments").unwrap();
    let name = &segments.list().unwrap()[0];
    let file = segments.open(name).unwrap();
    let end = 512 + 3 * 12_288 + 14_000;
    let mut caught = 0;
    for at in (512..end).step_by(61) {
        let mut byte = [0];
        file.read_at(at, &mut byte).unwrap();
        file.write_at(at, &[byte[0] ^ 1 << (at % 8)]).unwrap();
        let mut problems = 0;
        for id in 1..=2 {
            match get(&store, id, 0, 20_000) {
                Ok(data) => assert!(data == expect(id), "wrong data after a flip at {at}"),
                Err(error) => {
                    assert_eq!(error.errno(), Errno::EIO);
                    assert!(error.text.contains(name), "{error}");
                    problems += 1;
                }
            }
        }
        let list = store
            .list(&ChunkListReq { limit: 10, verify: true, ..ChunkListReq::default() })
            .unwrap();
        let listed = list.chunks.iter().filter(|c| !c.problem.is_empty()).count();
        assert_eq!((problems, list.chunks.len(), list.end), (listed, 2, true));
        caught += problems;
        file.write_at(at, &byte).unwrap();
    }
    // Live data is 26,000 of these bytes, and every flip in it was met.
    assert!(caught > 26_000 / 61, "{caught}");
    assert_eq!(store.metrics.corrupt_blocks.get(), 2 * caught as u64);
}

#[test]
fn damage_in_what_was_flushed_is_reported_after_a_restart_too() {
    let machine = Machine::new();
    let store = machine.open();
    put(&store, 1, 0, &pattern(1, 9_000)).unwrap();
    store.sync(&[]).unwrap();
    put(&store, 1, 0, &pattern(2, 9_000)).unwrap();
    store.sync(&[]).unwrap();
    // Says that the above is durable.
    put(&store, 2, 0, &pattern(2, 100)).unwrap();
    drop(store);
    let segments = machine.dir.sub_dir("segments").unwrap();
    let file = segments.open(&segments.list().unwrap()[0]).unwrap();
    let at = 512 + 9_216 + 4_000;
    file.write_at(at, b"damage").unwrap();
    let store = machine.open();
    assert_eq!(get(&store, 1, 0, 9_000).unwrap_err().errno(), Errno::EIO);
    assert_eq!(get(&store, 2, 0, 9_000).unwrap(), pattern(2, 100));
}

/// The kernel takes pages that a disk did not take for clean, and the next process knows nothing of
/// the flush that failed.
#[test]
fn a_flush_that_failed_before_a_kill_is_noticed() {
    let machine = Machine::new();
    let armed = Arc::new(AtomicBool::new(false));
    let trigger = armed.clone();
    let script = move |op: &saker_runtime::fs::FileOp<'_>| {
        let is_segment = op.kind == OpKind::Sync && op.name.starts_with("new-");
        match is_segment && trigger.swap(false, Ordering::SeqCst) {
            true => Fault::Lose(libc::EIO),
            false => Fault::None,
        }
    };
    let dir = FaultDir::new(Arc::new(machine.dir.clone()), Box::new(script));
    let store = open_in(Arc::new(dir), IDENTITY, options()).unwrap();
    put(&store, 1, 0, &pattern(1, 5_000)).unwrap();
    store.sync(&[]).unwrap();
    put(&store, 2, 0, &pattern(2, 5_000)).unwrap();
    armed.store(true, Ordering::SeqCst);
    assert_eq!(store.sync(&[]).unwrap_err().errno(), Errno::EIO);
    drop(store);
    let store = machine.open();
    assert_eq!(get(&store, 2, 0, 9_000).unwrap(), pattern(2, 5_000));
    store.sync(&[]).unwrap();
    audit(&store);
    for seed in 0..4 {
        let after = machine.power_loss(seed).open();
        for id in [1, 2] {
            assert_eq!(get(&after, id, 0, 9_000).unwrap(), pattern(id, 5_000), "file {id}");
        }
    }
}

#[test]
fn a_failed_flush_is_told_and_its_data_is_saved() {
    for kind in [OpKind::Sync, OpKind::Write] {
        let machine = Machine::new();
        let (armed, fired) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (trigger, count) = (armed.clone(), fired.clone());
        let script = move |op: &saker_runtime::fs::FileOp<'_>| {
            if op.kind == kind
                && op.name.starts_with("new-")
                && trigger.swap(false, Ordering::SeqCst)
            {
                count.fetch_add(1, Ordering::SeqCst);
                return Fault::Fail(libc::EIO);
            }
            Fault::None
        };
        let dir: Arc<dyn Dir> =
            Arc::new(FaultDir::new(Arc::new(machine.dir.clone()), Box::new(script)));
        let store = open_in(dir, IDENTITY, options()).unwrap();
        put(&store, 1, 0, &pattern(1, 5_000)).unwrap();
        let cut = ChunkTruncateReq { id: 1, truncate_gen: 3, cut: 4_000 };
        store.truncate_now(&cut).unwrap();
        put(&store, 2, 0, &pattern(2, 5_000)).unwrap();
        armed.store(true, Ordering::SeqCst);
        if kind == OpKind::Sync {
            assert_eq!(store.sync(&[]).unwrap_err().errno(), Errno::EIO);
        } else {
            assert_eq!(put(&store, 3, 0, &pattern(3, 5_000)).unwrap_err().errno(), Errno::EIO);
        }
        assert_eq!(fired.load(Ordering::SeqCst), 1);
        // Not durable, and nobody may be told that it is.
        assert_eq!(store.sync(&[]).unwrap_err().errno(), Errno::EIO);
        put(&store, 4, 0, &pattern(4, 5_000)).unwrap();
        assert_eq!(store.sync(&[]).unwrap_err().errno(), Errno::EIO);
        // The truncation is known in memory, but a repetition must not claim more.
        let again = ChunkTruncateReq { id: 2, truncate_gen: 1, cut: 100 };
        assert_eq!(store.truncate_now(&again).unwrap_err().errno(), Errno::EIO);
        assert_eq!(store.truncate_now(&again).unwrap_err().errno(), Errno::EIO);
        store.maintain();
        store.truncate_now(&again).unwrap();
        store.sync(&[]).unwrap();
        audit(&store);
        assert!(store.segments.all().iter().all(|s| !s.poisoned.load(Ordering::Relaxed)));
        let after = machine.power_loss(1).open();
        assert_eq!(get(&after, 1, 0, 9_000).unwrap(), pattern(1, 4_000));
        assert_eq!(get(&after, 2, 0, 9_000).unwrap(), pattern(2, 100));
        assert_eq!(get(&after, 4, 0, 9_000).unwrap(), pattern(4, 5_000));
        assert_eq!(after.index.truncate_gen(1).unwrap(), 3);
        assert!(get(&after, 3, 0, 9_000).unwrap().is_empty());
    }
}

#[test]
fn a_checkpoint_that_failed_is_taken_again() {
    for fault in [Fault::Fail(libc::ENOSPC), Fault::FailAfter(libc::EIO)] {
        for kind in [OpKind::Create, OpKind::Write, OpKind::Sync, OpKind::Rename] {
            let machine = Machine::new();
            let armed = Arc::new(AtomicBool::new(false));
            let trigger = armed.clone();
            let script = move |op: &saker_runtime::fs::FileOp<'_>| {
                let hit = op.kind == kind && op.name.ends_with(".run.new");
                if hit && trigger.swap(false, Ordering::SeqCst) { fault } else { Fault::None }
            };
            let dir = FaultDir::new(Arc::new(machine.dir.clone()), Box::new(script));
            let store = open_in(Arc::new(dir), IDENTITY, options()).unwrap();
            put(&store, 1, 0, &pattern(1, 5_000)).unwrap();
            store.checkpoint().unwrap();
            put(&store, 1, 2_000, &pattern(9, 1_000)).unwrap();
            put(&store, 2, 0, &pattern(2, 5_000)).unwrap();
            armed.store(true, Ordering::SeqCst);
            store.checkpoint().unwrap_err();
            assert!(!armed.load(Ordering::SeqCst), "{kind:?} never happened");
            put(&store, 3, 0, &pattern(3, 5_000)).unwrap();
            audit(&store);
            store.checkpoint().unwrap();
            audit(&store);
            let after = machine.power_loss(1).open();
            audit(&after);
            for (id, seed) in [(2, 2), (3, 3)] {
                assert_eq!(get(&after, id, 0, 9_000).unwrap(), pattern(seed, 5_000));
            }
            assert_eq!(get(&after, 1, 2_000, 1_000).unwrap(), pattern(9, 1_000));
        }
    }
}

#[test]
fn what_was_cut_stays_cut_when_it_is_written_in_the_middle_of_a_checkpoint() {
    // In one commit, and in several.
    for others in [0, 6_000] {
        let machine = Machine::new();
        let store = machine.open();
        put(&store, 1, 0, &pattern(1, 50_000)).unwrap();
        store.checkpoint().unwrap();
        store.truncate_now(&ChunkTruncateReq { id: 1, truncate_gen: 1, cut: 0 }).unwrap();
        (0..others).for_each(|id| put(&store, 100 + id, 0, &[1]).unwrap());
        let marker = store.log.low_water();
        store.index.begin_drain().unwrap();
        let req = ChunkWriteReq { id: 1, truncate_gen: 1, ..ChunkWriteReq::default() };
        let data = pattern(2, 4_000);
        store.write_now(&ChunkWriteReq { crc: crc32c::crc32c(&data), ..req }, &data).unwrap();
        let mut sync = || store.sync(&[]).map(|_| ());
        while store.index.commit(&marker, &mut sync).unwrap() == Commit::More {}
        audit(&store);
        assert_eq!(get(&store, 1, 0, 60_000).unwrap(), data);
        let after = machine.power_loss(1).open();
        assert!(get(&after, 1, 0, 60_000).unwrap() == data, "the old data is back");
        audit(&after);
    }
}

#[test]
fn a_segment_that_cannot_be_read_does_not_keep_others_from_being_emptied() {
    let machine = Machine::new();
    let broken = Arc::new(AtomicU64::new(u64::MAX));
    let bad = broken.clone();
    let script = move |op: &saker_runtime::fs::FileOp<'_>| {
        let name = crate::backend::segments::segment::name_of(bad.load(Ordering::SeqCst) as u32);
        match op.kind == OpKind::Read && op.name == name {
            true => Fault::Fail(libc::EIO),
            false => Fault::None,
        }
    };
    let dir: Arc<dyn Dir> =
        Arc::new(FaultDir::new(Arc::new(machine.dir.clone()), Box::new(script)));
    let files = 60;
    let store = machine.open();
    (1..files).for_each(|id| put(&store, id, 0, &pattern(id, 10_000)).unwrap());
    drop(store);
    // A tenth is live, of no segment less than of the first.
    let store = open_in(dir, IDENTITY, options()).unwrap();
    let is_kept = |id: &u64| id % 8 == 1 && *id != 9;
    let first = store.segments.all().iter().map(|s| s.no).min().unwrap();
    broken.store(u64::from(first), Ordering::SeqCst);
    let ids: Vec<u64> = (1..files).filter(|id| !is_kept(id)).collect();
    store.delete(&ids).unwrap();
    for _ in 0..10 {
        store.maintain();
    }
    let all = store.segments.all();
    let sparse = |s: &&Arc<crate::backend::segments::segment::Segment>| {
        s.is_sealed() && s.live_bytes() > 0 && s.live_bytes() < u64::from(SEGMENT_BYTES) / 4
    };
    let left: Vec<u32> = all.iter().filter(sparse).map(|s| s.no).collect();
    assert_eq!(left, [first]);
    broken.store(u64::MAX, Ordering::SeqCst);
    for id in (1..files).filter(is_kept) {
        assert_eq!(get(&store, id, 0, 20_000).unwrap(), pattern(id, 10_000));
    }
    audit(&store);
}

#[test]
fn foreign_data_is_refused() {
    let machine = Machine::new();
    let store = machine.open();
    put(&store, 1, 0, b"data").unwrap();
    drop(store);
    let open = |identity| open_in(Arc::new(machine.dir.clone()), identity, options());
    let text = |identity| open(identity).err().unwrap().text;
    let cluster = text(StoreIdentity { cluster: [8; 16], store: 2 });
    assert!(cluster.contains("another cluster (0707"), "{cluster}");
    let number = text(StoreIdentity { cluster: [7; 16], store: 3 });
    assert!(number.contains("belongs to store 2"), "{number}");
    assert_eq!(get(&open(IDENTITY).unwrap(), 1, 0, 9).unwrap(), b"data");
}

#[test]
fn impossible_requests_are_refused() {
    let machine = Machine::new();
    let store = machine.open();
    let errno = |req: ChunkWriteReq, data: &[u8]| store.write_now(&req, data).unwrap_err().errno();
    let crc = crc32c::crc32c(b"data");
    let good = ChunkWriteReq { id: 1, crc, ..ChunkWriteReq::default() };
    let offset = (4 << 20) - 3;
    assert_eq!(errno(ChunkWriteReq { offset, ..good.clone() }, b"data"), Errno::EINVAL);
    let offset = u64::MAX;
    assert_eq!(errno(ChunkWriteReq { offset, ..good.clone() }, b"data"), Errno::EINVAL);
    assert_eq!(errno(ChunkWriteReq { index: 1 << 22, ..good.clone() }, b"data"), Errno::EINVAL);
    let replicas = vec![0; 65];
    assert_eq!(errno(ChunkWriteReq { replicas, ..good.clone() }, b"data"), Errno::EINVAL);
    let replicas = vec![1 << 16];
    assert_eq!(errno(ChunkWriteReq { replicas, ..good.clone() }, b"data"), Errno::EINVAL);
    let large = vec![0; SEGMENT_BYTES as usize];
    let crc = crc32c::crc32c(&large);
    assert_eq!(errno(ChunkWriteReq { crc, ..good.clone() }, &large), Errno::EINVAL);
    let damaged = store.write_now(&good, b"dato").unwrap_err();
    assert!(damaged.is(Class::Retry), "{damaged}");
    assert_eq!(store.index.chunks(), 0);
    store.write_now(&good, b"data").unwrap();
    for (offset, len) in [(4, 10), (1 << 23, 10), (u64::MAX, u64::MAX), (0, 0)] {
        assert!(get(&store, 1, offset, len).unwrap().is_empty());
    }
    assert_eq!(get(&store, 1, 2, u64::MAX).unwrap(), b"ta");
}

#[test]
fn many_small_overwrites_become_few_extents() {
    let machine = Machine::new();
    let store = machine.open();
    // Backwards, so that each is a record of its own.
    for i in (0..512u64).rev() {
        put(&store, 1, i * 20, &pattern(i, 20)).unwrap();
    }
    let extents = || store.index.lookup((1, 0), 0, 1 << 20, WaitPolicy::May).unwrap().0.len();
    assert_eq!(extents(), 512);
    store.maintain();
    assert_eq!(extents(), 1);
    let expect: Vec<u8> = (0..512).flat_map(|i| pattern(i, 20)).collect();
    assert_eq!(get(&store, 1, 0, 1 << 20).unwrap(), expect);
    drop(store);
    assert_eq!(get(&machine.open(), 1, 0, 1 << 20).unwrap(), expect);
}

#[test]
fn space_of_deleted_and_overwritten_data_comes_back() {
    let machine = Machine::new();
    let store = machine.open();
    let round = |n: u64| {
        for id in 1..=40 {
            put(&store, id, 0, &pattern(id + n, 20_000)).unwrap();
        }
    };
    round(0);
    let segments = store.segments.count();
    for n in 1..10 {
        round(n);
        store.checkpoint().unwrap();
    }
    assert!(store.segments.count() <= segments + 3, "{} segments", store.segments.count());
    // Every tenth stays: the segments are a tenth full, and compaction must join them.
    let ids: Vec<u64> = (1..=40).filter(|id| id % 10 != 0).collect();
    store.delete(&ids).unwrap();
    for _ in 0..5 {
        store.maintain();
    }
    assert!(store.metrics.compacted_bytes.get() > 0);
    assert!(store.segments.count() <= 3, "{} segments", store.segments.count());
    for id in [10, 20, 30, 40] {
        assert_eq!(get(&store, id, 0, 1 << 20).unwrap(), pattern(id + 9, 20_000));
    }
    audit(&store);
    assert_eq!(store.stat().unwrap().data_bytes, 80_000);
}

#[test]
fn a_checkpoint_does_not_pass_a_record_in_flight() {
    let machine = Machine::new();
    let store = machine.open();
    let data = pattern(1, 5_000);
    let mut sums = Vec::new();
    let sum = format::block_sums(&data, &mut sums);
    let record = RecordHeader { id: 1, index: 0, ..RecordHeader::EMPTY };
    let draft = Draft { record, replicas: &[], sums: &sums, sum, payload: &data };
    // Written, and a crash comes before it is in the index.
    let appended = store.log.append(&draft, Purpose::Data, WaitPolicy::May).unwrap();
    put(&store, 2, 0, &pattern(2, 5_000)).unwrap();
    assert_eq!(store.log.low_water().place, appended.place);
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    drop(appended);
    drop(store);
    let store = machine.open();
    assert_eq!(get(&store, 1, 0, 1 << 20).unwrap(), data);
    assert_eq!(get(&store, 2, 0, 1 << 20).unwrap(), pattern(2, 5_000));
}

#[test]
fn a_segment_stays_while_the_table_refers_to_it() {
    let machine = Machine::new();
    let store = machine.open();
    (1..=12).for_each(|id| put(&store, id, 0, &pattern(id, 20_000)).unwrap());
    store.checkpoint().unwrap();
    // Only in memory, and not flushed.
    (1..=12).for_each(|id| put(&store, id, 0, &pattern(id + 1, 20_000)).unwrap());
    let dead = store.segments.all().iter().filter(|s| s.live_bytes() == 0).count();
    assert!(dead > 0);
    assert!(store.index.unreferenced().is_empty());
    store.checkpoint().unwrap();
    assert!(store.segments.all().iter().all(|s| s.live_bytes() > 0));
}

#[test]
fn memory_is_bounded_however_many_files_there_are() {
    let machine = Machine::new();
    let options = options();
    let bound = 4 * options.cache_bytes;
    let store = machine.open_with(options).unwrap();
    for id in 1..=3_000 {
        put(&store, id, id % 5_000, &pattern(id, 100)).unwrap();
        assert!(store.index.memory_bytes() < bound);
    }
    store.checkpoint().unwrap();
    for id in (1..=3_000).rev() {
        let data = get(&store, id, id % 5_000, 200).unwrap();
        assert_eq!(data, pattern(id, 100));
        assert!(store.index.memory_bytes() < bound);
    }
    store.delete(&(1..3_000).collect::<Vec<_>>()).unwrap();
    store.checkpoint().unwrap();
    audit(&store);
    assert_eq!(store.index.chunks(), 1);
    assert!(store.index.memory_bytes() < bound);
}
