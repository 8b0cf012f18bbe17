//! The bench's store: the real one, on a disk in memory that nothing happens to.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use saker_rpc::Service as _;
use saker_rpc::frame::Frame;
use saker_runtime::fs::MemDir;
use saker_runtime::telemetry::Registry;
use saker_store::{DELETED_MAX, Identity, Options, SegmentStore, Space, StoreService};
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
        deleted_max: DELETED_MAX,
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
    let store = SegmentStore::open(dir.clone(), table, identity, options);
    store.and_then(|store| StoreService::new(dir, store)).expect("a disk in memory")
}

impl Bench {
    /// What the store holds of the first chunk of an inode, up to the last byte written.
    pub fn first_chunk(&self, id: InodeId) -> Bytes {
        let request = ChunkReadReq { id, len: limits::CHUNK_BYTES, ..ChunkReadReq::default() };
        let body = request.encode_to_vec();
        let frame = Frame::request(Op::ChunkRead as u16, 0, body.into(), Bytes::new());
        self.store.handle(frame).payload
    }
}
