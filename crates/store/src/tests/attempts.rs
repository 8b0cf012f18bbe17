//! Writes that arrive more than once, and late.

use bytes::Bytes;
use prost::Message;
use saker_rpc::{Frame, Service};
use saker_types::Errno;
use saker_types::wire::{ChunkReadReq, ChunkWriteReq, Op};

use crate::backend::segments::tests::disk::Machine;
use crate::service::StoreService;

const WRITER: u64 = 9;
const LEN: usize = 5_000;

/// The status of the answer.
fn ask(store: &StoreService, req: ChunkWriteReq, data: &'static [u8]) -> u16 {
    let crc = crc32c::crc32c(data);
    let req = ChunkWriteReq { id: 1, crc, writer: WRITER, ..req };
    let (body, data) = (req.encode_to_vec().into(), Bytes::from_static(data));
    store.handle(Frame::request(Op::ChunkWrite as u16, 0, body, data)).status
}

fn put(store: &StoreService, seq: u64, attempt: u32, data: &'static [u8; LEN]) -> u16 {
    ask(store, ChunkWriteReq { seq, attempt, ..ChunkWriteReq::default() }, data)
}

fn hole(store: &StoreService, seq: u64, attempt: u32) -> u16 {
    let hole = LEN as u64;
    ask(store, ChunkWriteReq { seq, attempt, hole, ..ChunkWriteReq::default() }, &[])
}

#[test]
fn a_late_attempt_does_not_undo_later_writes() {
    let store = Machine::new().serve();
    assert_eq!(put(&store, 1, 1, &[1; LEN]), 0);
    assert_eq!(put(&store, 2, 0, &[2; LEN]), 0);
    assert_eq!(put(&store, 1, 0, &[1; LEN]), Errno::EALREADY.0);
    assert_eq!(hole(&store, 3, 1), 0);
    assert_eq!(put(&store, 4, 0, &[4; LEN]), 0);
    assert_eq!(hole(&store, 3, 0), Errno::EALREADY.0);
    let body = ChunkReadReq { id: 1, len: LEN as u64, ..ChunkReadReq::default() }.encode_to_vec();
    let read = Frame::request(Op::ChunkRead as u16, 0, body.into(), Bytes::new());
    assert_eq!(store.handle(read).payload[..], [4; LEN]);
}
