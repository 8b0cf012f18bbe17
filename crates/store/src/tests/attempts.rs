//! Writes that arrive more than once, and late.

use saker_types::wire::{ChunkReadReq, ChunkWriteReq};
use saker_types::{Errno, Result};

use super::disk::{Machine, Now};
use crate::store::Store;

const WRITER: u64 = 9;
const LEN: usize = 5_000;

fn put(store: &Store, seq: u64, attempt: u32, value: u8) -> Result<()> {
    let data = [value; LEN];
    let crc = crc32c::crc32c(&data);
    let req =
        ChunkWriteReq { id: 1, crc, writer: WRITER, seq, attempt, ..ChunkWriteReq::default() };
    store.write_now(&req, &data).map(|_| ())
}

fn hole(store: &Store, seq: u64, attempt: u32) -> Result<()> {
    let hole = LEN as u64;
    let req =
        ChunkWriteReq { id: 1, hole, writer: WRITER, seq, attempt, ..ChunkWriteReq::default() };
    store.write_now(&req, &[]).map(|_| ())
}

fn get(store: &Store) -> Vec<u8> {
    let len = LEN as u64;
    store
        .read_now(&ChunkReadReq { id: 1, index: 0, offset: 0, len, ..Default::default() })
        .unwrap()
        .0
        .to_vec()
}

#[test]
fn a_late_attempt_does_not_undo_later_writes() {
    let machine = Machine::new();
    let store = machine.open();
    put(&store, 1, 1, 1).unwrap();
    put(&store, 2, 0, 2).unwrap();
    assert_eq!(put(&store, 1, 0, 1).unwrap_err().errno(), Errno::EALREADY);
    hole(&store, 3, 1).unwrap();
    put(&store, 4, 0, 4).unwrap();
    assert_eq!(hole(&store, 3, 0).unwrap_err().errno(), Errno::EALREADY);
    assert_eq!(get(&store), [4; LEN]);
}
