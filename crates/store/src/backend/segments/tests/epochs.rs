//! A flush after a loss of power.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use saker_runtime::fs::{Dir, Fault, FaultDir, FileOp, OpKind};
use saker_types::wire::{ChunkReadReq, ChunkTruncateReq, ChunkWriteReply, ChunkWriteReq};
use saker_types::{InodeId, Unflushed};

use super::disk::{IDENTITY, Machine, Now, open_in, options};
use crate::backend::segments::{Options, SegmentStore};

fn put(store: &SegmentStore, id: InodeId) -> ChunkWriteReply {
    let data = [id as u8; 5_000];
    let crc = crc32c::crc32c(&data);
    store.write_now(&ChunkWriteReq { id, crc, ..ChunkWriteReq::default() }, &data).unwrap()
}

fn lost(store: &SegmentStore, writes: ChunkWriteReply) -> bool {
    let ChunkWriteReply { epoch, seq } = writes;
    store.sync(&[Unflushed { store: 2, epoch, first: seq, more: 0 }]).unwrap()
}

fn since(cached_since: u64) -> Options {
    Options { cached_since, ..options() }
}

#[test]
fn a_flush_does_not_succeed_for_what_a_loss_of_power_took() {
    let (mut torn, mut whole) = (0, 0);
    for seed in 0..40 {
        let machine = Machine::new();
        let store = machine.open_with(since(1)).unwrap();
        let flushed = put(&store, 1);
        assert!(!lost(&store, flushed));
        let checkpointed = put(&store, 2);
        store.checkpoint().unwrap();
        let unflushed: Vec<_> = (3..8).map(|id| (id, put(&store, id))).collect();
        drop(store);
        // The process alone dies: nothing is lost, and that is told.
        let store = machine.open_with(since(1)).unwrap();
        let later = put(&store, 8);
        drop(store);
        let machine = machine.power_loss(seed);
        let store = machine.open_with(since(2)).unwrap();
        assert!(!lost(&store, flushed) && !lost(&store, checkpointed));
        for (id, writes) in unflushed.into_iter().chain([(8, later)]) {
            let req = ChunkReadReq { id, len: 5_000, ..ChunkReadReq::default() };
            let is_there = store.read_now(&req).unwrap().0[..] == [id as u8; 5_000];
            assert_eq!(lost(&store, writes), !is_there, "seed {seed}, file {id}");
            *(if is_there { &mut whole } else { &mut torn }) += 1;
        }
        // Also after more that survives, and after more starts.
        let again = put(&store, 9);
        assert!(!lost(&store, again) && again.epoch == 2);
        drop(store);
        let store = machine.open_with(since(2)).unwrap();
        assert!(!lost(&store, again));
        assert!(lost(&store, ChunkWriteReply { epoch: 1, seq: 1_000 }));
    }
    assert!(torn > 20 && whole > 20, "{torn} lost, {whole} not");
}

#[test]
fn a_flush_does_not_succeed_for_what_a_disk_neither_took_nor_gives_back() {
    let machine = Machine::new();
    let fails = Arc::new(AtomicBool::new(false));
    let armed = fails.clone();
    let script = move |op: &FileOp<'_>| match op.kind {
        OpKind::Sync if op.name.starts_with("new-") && armed.swap(false, Relaxed) => {
            Fault::Fail(libc::EIO)
        }
        _ => Fault::None,
    };
    let dir = FaultDir::new(Arc::new(machine.dir.clone()), Box::new(script));
    let store = open_in(Arc::new(dir), IDENTITY, since(1)).unwrap();
    let (whole, broken) = (put(&store, 1), put(&store, 2));
    let segments = machine.dir.sub_dir("segments").unwrap();
    let file = segments.open(&segments.list().unwrap()[0]).unwrap();
    // In the second record.
    file.write_at(512 + 5_632 + 3_000, b"damage").unwrap();
    fails.store(true, Relaxed);
    store.sync(&[]).unwrap_err();
    store.maintain();
    assert!(!lost(&store, whole) && lost(&store, broken));
    drop(store);
    for boot in [1, 2] {
        let store = machine.open_with(since(boot)).unwrap();
        assert!(!lost(&store, whole) && lost(&store, broken), "boot {boot}");
    }
}

#[test]
fn a_store_on_a_full_disk_is_read_after_a_loss_of_power() {
    let machine = Machine::new();
    let store = machine.open_with(since(1)).unwrap();
    let flushed = put(&store, 1);
    assert!(!lost(&store, flushed));
    // Of these the loss of power leaves parts.
    let unflushed: Vec<_> = (2..30).map(|id| put(&store, id)).collect();
    drop(store);
    let full = Arc::new(AtomicBool::new(true));
    let is_full = full.clone();
    let script = move |op: &FileOp<'_>| match op.kind {
        OpKind::Write | OpKind::Preallocate if is_full.load(Relaxed) => Fault::Fail(libc::ENOSPC),
        _ => Fault::None,
    };
    let dir = FaultDir::new(Arc::new(machine.power_loss(1).dir), Box::new(script));
    let store = open_in(Arc::new(dir), IDENTITY, since(2)).unwrap();
    assert!(!lost(&store, flushed));
    assert!(unflushed.iter().any(|writes| lost(&store, *writes)));
    let read = ChunkReadReq { id: 1, len: 5_000, ..ChunkReadReq::default() };
    assert_eq!(store.read_now(&read).unwrap().0[..], [1; 5_000]);
    let cut = ChunkTruncateReq { id: 1, truncate_gen: 1, cut: 10 };
    assert!(store.truncate_now(&cut).unwrap_err().text.contains("No space left"));
    full.store(false, Relaxed);
    store.truncate_now(&cut).unwrap();
    assert_eq!(put(&store, 2).epoch, 2);
}

#[test]
fn a_death_of_the_process_loses_nothing_though_the_machine_starts_again() {
    let machine = Machine::new();
    let store = machine.open_with(since(1)).unwrap();
    let writes: Vec<_> = (1..20).map(|id| put(&store, id)).collect();
    drop(store);
    for boot in 1..5 {
        let store = machine.open_with(since(boot)).unwrap();
        assert!(writes.iter().all(|writes| !lost(&store, *writes)), "boot {boot}");
    }
}
