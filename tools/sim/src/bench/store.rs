//! The bench's store: the real one, on a disk in memory that nothing happens to.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use saker_rpc::frame::Frame;
use saker_runtime::fs::MemDir;
use saker_runtime::telemetry::Registry;
use saker_store::{Identity, Options, Space, Store, StoreService};
use saker_types::wire::{ChunkReadReq, Op};
use saker_types::{InodeId, limits};

use super::Bench;
use crate::roles::{UUID, open_table};

const DISK_BYTES: u64 = 1 << 40;

/// Opens an empty store.
pub(super) fn open() -> StoreService {
    let options = Options {
        segment_bytes: 1 << 20,
        capacity_bytes: DISK_BYTES,
        cache_bytes: 1 << 20,
        deleted_max: saker_store::store::DELETED_MAX,
        space: Arc::new(|| {
            let (capacity_bytes, free_bytes) = (DISK_BYTES, DISK_BYTES / 2);
            Ok(Space { capacity_bytes, free_bytes, unused_bytes: free_bytes })
        }),
        disk: 0,
        cached_since: 0,
        registry: Registry::new(),
    };
    let dir = Arc::new(MemDir::new());
    let table = open_table(&*dir).expect("a disk in memory");
    let identity = Identity { cluster: UUID, store: 0 };
    StoreService::new(Store::open(dir, table, identity, options).expect("a disk in memory"))
}

/// The store's answer to a request.
pub(super) fn answer(store: &StoreService, frame: &Frame) -> Frame {
    match store.answer(frame.op, &frame.body, &frame.payload) {
        Ok((body, payload)) => frame.clone().reply(0, body, payload),
        Err(error) => {
            let body = error.encode_to_vec().into();
            frame.clone().reply(error.errno().0, body, Bytes::new())
        }
    }
}

impl Bench {
    /// What the store holds of the first chunk of an inode, up to the last byte written.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn first_chunk(&self, id: InodeId) -> Bytes {
        let request = ChunkReadReq { id, len: limits::CHUNK_BYTES, ..ChunkReadReq::default() };
        let body = request.encode_to_vec();
        let answer = self.store.answer(Op::ChunkRead as u16, &body, &Bytes::new());
        answer.expect("a disk in memory").1
    }
}
