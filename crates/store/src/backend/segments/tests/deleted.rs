//! What a store remembers of deletions.

use saker_types::Errno;
use saker_types::wire::ChunkWriteReq;

use super::disk::{Machine, Now, options};
use crate::backend::segments::index::DELETED;
use crate::backend::segments::{Options, SegmentStore};

fn put(store: &SegmentStore, id: u64) -> saker_types::Result<()> {
    let data = [id as u8; 5_000];
    let crc = crc32c::crc32c(&data);
    store.write_now(&ChunkWriteReq { id, crc, ..ChunkWriteReq::default() }, &data).map(|_| ())
}

#[test]
fn the_last_deletions_are_remembered() {
    const KEPT: u64 = 100;
    let machine = Machine::new();
    let open = || machine.open_with(Options { deleted_max: KEPT, ..options() }).unwrap();
    let mut store = open();
    for id in 1..=400 {
        put(&store, id).unwrap();
        store.delete(&[id]).unwrap();
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
