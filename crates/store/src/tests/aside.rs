//! Inodes that are set aside.

use bytes::Bytes;
use prost::Message;
use saker_rpc::{Frame, Service};
use saker_types::wire::{
    ChunkListReply, ChunkListReq, ChunkQuarantineReq, ChunkReadReq, ChunkWriteReq, Op,
};
use saker_types::{Errno, InodeId};

use crate::backend::segments::tests::disk::Machine;
use crate::quarantine::QUARANTINE;
use crate::service::StoreService;

const DAY_NS: i64 = QUARANTINE.as_nanos() as i64;

fn ask(store: &StoreService, op: Op, body: &impl Message, payload: Bytes) -> Frame {
    store.handle(Frame::request(op as u16, 0, body.encode_to_vec().into(), payload))
}

/// The status of the answer.
fn put(store: &StoreService, id: InodeId) -> u16 {
    let data = vec![id as u8; 5_000];
    let req = ChunkWriteReq { id, crc: crc32c::crc32c(&data), ..ChunkWriteReq::default() };
    ask(store, Op::ChunkWrite, &req, data.into()).status
}

fn is_there(store: &StoreService, id: InodeId) -> bool {
    let req = ChunkReadReq { id, len: 5_000, ..ChunkReadReq::default() };
    ask(store, Op::ChunkRead, &req, Bytes::new()).payload[..] == [id as u8; 5_000]
}

#[test]
fn what_is_set_aside_is_there_until_it_is_deleted() {
    let machine = Machine::new();
    let store = machine.serve();
    assert!((1..=4).all(|id| put(&store, id) == 0));
    let aside = ChunkQuarantineReq { aside: vec![1, 2, 3], ..Default::default() };
    store.quarantine(&aside, 5).unwrap();
    let listed = |store: &StoreService| {
        let all = ChunkListReq { limit: 10, ..ChunkListReq::default() };
        let reply = ask(store, Op::ChunkList, &all, Bytes::new());
        let chunks = ChunkListReply::decode(reply.body).unwrap().chunks;
        chunks.iter().map(|chunk| (chunk.id, chunk.aside_ns)).collect::<Vec<_>>()
    };
    assert_eq!(listed(&store), [(1, 5), (2, 5), (3, 5), (4, 0)]);
    // Readers and writers know it.
    assert!(is_there(&store, 2));
    assert_eq!(put(&store, 3), 0);
    store.upkeep().unwrap();
    drop(store);
    let store = machine.serve();
    assert_eq!(listed(&store), [(1, 5), (2, 0), (3, 0), (4, 0)]);
    let delete = ChunkQuarantineReq { delete: vec![1, 2, 3, 4], ..Default::default() };
    assert_eq!(store.quarantine(&delete, DAY_NS).unwrap().deleted, []);
    assert_eq!(store.quarantine(&delete, DAY_NS + 5).unwrap().deleted, [1]);
    assert!(!is_there(&store, 1) && (2..=4).all(|id| is_there(&store, id)));
    assert_eq!(put(&store, 1), Errno::ESTALE.0);
}
