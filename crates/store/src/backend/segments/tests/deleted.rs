//! What a store remembers of deletions, and what fsck has it set aside.

use saker_types::Errno;
use saker_types::wire::{
    ChunkDeleteReq, ChunkListReq, ChunkQuarantineReq, ChunkReadReq, ChunkWriteReq,
};

use super::disk::{Machine, Now, options};
use crate::index::DELETED;
use crate::quarantine::QUARANTINE;
use crate::store::{Options, Store};

const DAY_NS: i64 = QUARANTINE.as_nanos() as i64;

fn put(store: &Store, id: u64) -> saker_types::Result<()> {
    let data = [id as u8; 5_000];
    let crc = crc32c::crc32c(&data);
    store.write_now(&ChunkWriteReq { id, crc, ..ChunkWriteReq::default() }, &data).map(|_| ())
}

fn is_there(store: &Store, id: u64) -> bool {
    let req = ChunkReadReq { id, len: 5_000, ..ChunkReadReq::default() };
    store.read_now(&req).unwrap().0[..] == [id as u8; 5_000]
}

#[test]
fn the_last_deletions_are_remembered() {
    const KEPT: u64 = 100;
    let machine = Machine::new();
    let open = || machine.open_with(Options { deleted_max: KEPT, ..options() }).unwrap();
    let mut store = open();
    for id in 1..=400 {
        put(&store, id).unwrap();
        store.delete(&ChunkDeleteReq { ids: vec![id] }).unwrap();
        if id % 30 == 0 {
            store.checkpoint().unwrap();
            // What goes with one checkpoint is out of the table with the next.
            store.checkpoint().unwrap();
        }
        if id % 70 == 0 {
            drop(store);
            store = open();
        }
        for old in id.saturating_sub(KEPT - 1).max(1)..=id {
            assert_eq!(store.index.truncate_gen(old).unwrap(), DELETED, "{old} of {id}");
        }
    }
    store.checkpoint().unwrap();
    let known = (1..=400).filter(|id| store.index.truncate_gen(*id).unwrap() == DELETED);
    assert_eq!(known.collect::<Vec<u64>>(), (301..=400).collect::<Vec<_>>());
    assert_eq!(put(&store, 400).unwrap_err().errno(), Errno::ESTALE);
    drop(store);
    let machine = machine.power_loss(1);
    let store = machine.open_with(Options { deleted_max: KEPT, ..options() }).unwrap();
    assert_eq!(put(&store, 400).unwrap_err().errno(), Errno::ESTALE);
    put(&store, 300).unwrap();
}

#[test]
fn what_is_set_aside_is_there_until_it_is_deleted() {
    let machine = Machine::new();
    let store = machine.open();
    (1..=4).for_each(|id| put(&store, id).unwrap());
    let aside = ChunkQuarantineReq { aside: vec![1, 2, 3], ..Default::default() };
    store.quarantine_at(&aside, 5).unwrap();
    let listed = |store: &Store| {
        let all = ChunkListReq { limit: 10, ..ChunkListReq::default() };
        let chunks = store.list(&all).unwrap().chunks;
        chunks.iter().map(|chunk| (chunk.id, chunk.aside_ns)).collect::<Vec<_>>()
    };
    assert_eq!(listed(&store), [(1, 5), (2, 5), (3, 5), (4, 0)]);
    // Who reads or writes knows it.
    assert!(is_there(&store, 2));
    put(&store, 3).unwrap();
    store.maintain();
    drop(store);
    let store = machine.open();
    assert_eq!(listed(&store), [(1, 5), (2, 0), (3, 0), (4, 0)]);
    let delete = ChunkQuarantineReq { delete: vec![1, 2, 3, 4], ..Default::default() };
    assert_eq!(store.quarantine_at(&delete, DAY_NS).unwrap().deleted, []);
    assert_eq!(store.quarantine_at(&delete, DAY_NS + 5).unwrap().deleted, [1]);
    assert!(!is_there(&store, 1) && (2..=4).all(|id| is_there(&store, id)));
    assert_eq!(put(&store, 1).unwrap_err().errno(), Errno::ESTALE);
}
