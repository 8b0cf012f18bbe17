//! Simulated machines that die at a chosen change of their disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use saker_engine::{EmbeddedConfig, EmbeddedTable, TableError};
use saker_runtime::fs::{Dir, Fault, FaultDir, MemDir};
use saker_runtime::telemetry::Registry;
use saker_types::wire::{
    ChunkReadReply, ChunkReadReq, ChunkTruncateReq, ChunkWriteReply, ChunkWriteReq,
};
use saker_types::{Errno, Error, Result, Unflushed};

use crate::backend::segments::format::StoreIdentity;
use crate::backend::segments::log::Space;
use crate::backend::segments::{Options, SegmentStore};
use crate::service::StoreService;
use crate::wait::WaitPolicy;

pub const SEGMENT_BYTES: u32 = 128 << 10;
pub const IDENTITY: StoreIdentity = StoreIdentity { cluster: [7; 16], store: 2 };

pub fn space(capacity_bytes: u64, free_bytes: u64) -> Space {
    Space { capacity_bytes, free_bytes, unused_bytes: free_bytes }
}

pub fn options() -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: 1 << 40,
        cache_bytes: 64 << 10,
        deleted_max: crate::backend::segments::DELETED_MAX,
        space: Arc::new(|| Ok(space(1 << 40, 1 << 39))),
        disk: 0,
        cached_since: 0,
        registry: Registry::new(),
    }
}

/// What survives a process.
#[derive(Clone)]
pub struct Machine {
    pub dir: MemDir,
}

impl Machine {
    pub fn new() -> Machine {
        Machine { dir: MemDir::new() }
    }

    pub fn open(&self) -> Arc<SegmentStore> {
        self.open_with(options()).unwrap()
    }

    pub fn open_with(&self, options: Options) -> Result<Arc<SegmentStore>> {
        open_in(Arc::new(self.dir.clone()), IDENTITY, options)
    }

    /// The same behind its service.
    pub fn serve(&self) -> StoreService {
        StoreService::new(Arc::new(self.dir.clone()), self.open()).unwrap()
    }

    /// After power was lost and came back.
    pub fn power_loss(&self, seed: u64) -> Machine {
        Machine { dir: self.dir.crash(seed) }
    }

    /// Opens the store so that the change number `count` is the last thing it does.
    pub fn open_dying(&self, count: i64) -> Result<Arc<SegmentStore>> {
        let fuse = Fuse(Arc::new(AtomicI64::new(count)));
        let script = move |op: &saker_runtime::fs::FileOp<'_>| match fuse.burn(op.kind.mutates()) {
            Burn::Alive => Fault::None,
            // Of a write that dies, a part is done.
            Burn::Last => match op.kind {
                saker_runtime::fs::OpKind::Write => Fault::Short(op.len / 2, libc::EIO),
                _ => Fault::FailAfter(libc::EIO),
            },
            Burn::Dead => Fault::Fail(libc::EIO),
        };
        let dir: Arc<dyn Dir> =
            Arc::new(FaultDir::new(Arc::new(self.dir.clone()), Box::new(script)));
        open_in(dir, IDENTITY, options())
    }
}

/// Opens the store in a directory, with its index in another beneath.
pub fn open_in(
    dir: Arc<dyn Dir>,
    identity: StoreIdentity,
    options: Options,
) -> Result<Arc<SegmentStore>> {
    let failed = |error: TableError| Error::new(Errno::EIO).with_text(error.to_string());
    let index = dir.sub_dir("index").map_err(TableError::from).map_err(failed)?;
    let table =
        EmbeddedTable::open_in(index, &EmbeddedConfig { merge_threads: 0, cache_bytes: 64 << 10 });
    SegmentStore::open(dir, Arc::new(table.map_err(failed)?), identity, options)
}

/// Calls that wait for all that they need, also for the flush.
pub trait Now {
    fn write_now(&self, req: &ChunkWriteReq, data: &[u8]) -> Result<ChunkWriteReply>;
    fn read_now(&self, req: &ChunkReadReq) -> Result<(Bytes, ChunkReadReply)>;
    fn locate_now(&self, req: &ChunkReadReq) -> Result<Option<ChunkReadReply>>;
    fn truncate_now(&self, req: &ChunkTruncateReq) -> Result<()>;
    fn sync(&self, unflushed: &[Unflushed]) -> Result<bool>;
}

impl Now for SegmentStore {
    fn write_now(&self, req: &ChunkWriteReq, data: &[u8]) -> Result<ChunkWriteReply> {
        let written = self.write(req, data, WaitPolicy::May)?;
        if req.sync { self.flush().map(|()| ChunkWriteReply::default()) } else { Ok(written) }
    }

    fn read_now(&self, req: &ChunkReadReq) -> Result<(Bytes, ChunkReadReply)> {
        self.read(req, WaitPolicy::May)
    }

    fn locate_now(&self, req: &ChunkReadReq) -> Result<Option<ChunkReadReply>> {
        self.locate(req, WaitPolicy::May)
    }

    fn truncate_now(&self, req: &ChunkTruncateReq) -> Result<()> {
        self.truncate(req).and_then(|_| self.flush())
    }

    fn sync(&self, unflushed: &[Unflushed]) -> Result<bool> {
        self.flush().map(|()| self.lost(unflushed))
    }
}

#[derive(Clone)]
struct Fuse(Arc<AtomicI64>);

enum Burn {
    Alive,
    Last,
    Dead,
}

impl Fuse {
    fn burn(&self, mutates: bool) -> Burn {
        let left = if mutates {
            self.0.fetch_sub(1, Ordering::Relaxed)
        } else {
            self.0.load(Ordering::Relaxed)
        };
        match left {
            1.. => Burn::Alive,
            0 if mutates => Burn::Last,
            0 => Burn::Alive,
            _ => Burn::Dead,
        }
    }
}

/// Checks what a store counts against all that its index refers to.
pub fn audit(store: &SegmentStore) {
    let (mut live, mut chunks, mut after) = (BTreeMap::new(), 0, (0, 0));
    loop {
        let (found, end) = store.index.list(after, 5).unwrap();
        for (key, _) in &found {
            chunks += 1;
            for (segment, extent) in
                store.index.lookup(*key, 0, 4 << 20, WaitPolicy::May).unwrap().0
            {
                *live.entry(segment.no).or_insert(0u64) += u64::from(extent.len);
            }
            assert!(*key > after, "{key:?} is listed after {after:?}");
            after = *key;
        }
        if end {
            break;
        }
    }
    assert_eq!(store.index.chunks(), chunks, "chunks");
    for segment in store.segments.all() {
        let counted = live.remove(&segment.no).unwrap_or(0);
        assert_eq!(segment.live_bytes(), counted, "live bytes of {}", segment.name());
    }
    assert!(live.is_empty(), "segments that are gone: {live:?}");
}
