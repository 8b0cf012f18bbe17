//! Simulated machines: a disk and a table that die together, at a chosen change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use saker_engine::table::{MemoryTable, OnRow, RowChange, Table, TableError};
use saker_runtime::fs::{Dir, Fault, FaultDir, MemDir};
use saker_runtime::telemetry::Registry;

use crate::format::Identity;
use crate::log::Space;
use crate::store::{Options, Store};

pub const SEGMENT_BYTES: u32 = 128 << 10;
pub const IDENTITY: Identity = Identity { cluster: [7; 16], store: 2 };

pub fn options() -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: 1 << 40,
        cache_bytes: 64 << 10,
        space: Arc::new(|| Ok(Space { capacity_bytes: 1 << 40, free_bytes: 1 << 39 })),
        disk: 0,
        registry: Registry::new(),
    }
}

/// What survives a process: disk and table.
#[derive(Clone)]
pub struct Machine {
    pub dir: MemDir,
    pub table: Arc<MemoryTable>,
}

impl Machine {
    pub fn new() -> Machine {
        Machine { dir: MemDir::new(), table: Arc::new(MemoryTable::new()) }
    }

    pub fn open(&self) -> Arc<Store> {
        self.open_with(options()).unwrap()
    }

    pub fn open_with(&self, options: Options) -> saker_types::Result<Arc<Store>> {
        Store::open(Arc::new(self.dir.clone()), self.table.clone(), IDENTITY, options)
    }

    /// After power was lost and came back.
    pub fn power_loss(&self, seed: u64) -> Machine {
        Machine { dir: self.dir.crash(seed), table: Arc::new(self.table.crash(seed)) }
    }

    /// Opens the store so that the change number `count` is the last thing it does.
    pub fn open_dying(&self, count: i64) -> saker_types::Result<Arc<Store>> {
        let fuse = Fuse(Arc::new(AtomicI64::new(count)));
        let script_fuse = fuse.clone();
        let script = move |op: &saker_runtime::fs::Op<'_>| match script_fuse.burn(op.kind.mutates())
        {
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
        let table = Arc::new(DyingTable { inner: self.table.clone(), fuse });
        Store::open(dir, table, IDENTITY, options())
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

struct DyingTable {
    inner: Arc<MemoryTable>,
    fuse: Fuse,
}

fn dead() -> TableError {
    TableError::Io(std::io::Error::from_raw_os_error(libc::EIO))
}

impl Table for DyingTable {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        match self.fuse.burn(false) {
            Burn::Dead => Err(dead()),
            _ => self.inner.get(key),
        }
    }

    fn scan(&self, start: &[u8], end: &[u8], f: &mut OnRow<'_>) -> Result<(), TableError> {
        match self.fuse.burn(false) {
            Burn::Dead => Err(dead()),
            _ => self.inner.scan(start, end, f),
        }
    }

    fn write(&self, rows: &mut dyn Iterator<Item = RowChange>) -> Result<(), TableError> {
        for row in rows {
            match self.fuse.burn(true) {
                Burn::Alive => self.inner.write(&mut std::iter::once(row))?,
                Burn::Last | Burn::Dead => return Err(dead()),
            }
        }
        Ok(())
    }

    fn persist(&self) -> Result<(), TableError> {
        match self.fuse.burn(true) {
            Burn::Alive => self.inner.persist(),
            Burn::Last => self.inner.persist().and(Err(dead())),
            Burn::Dead => Err(dead()),
        }
    }
}

/// Checks what a store counts against all that its index refers to.
pub fn audit(store: &Store) {
    let (mut live, mut chunks, mut after) = (BTreeMap::new(), 0, (0, 0));
    loop {
        let (found, end) = store.index.list(after, 5).unwrap();
        for (key, _) in &found {
            chunks += 1;
            for (segment, extent) in store.index.lookup(*key, 0, 4 << 20).unwrap().0 {
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
