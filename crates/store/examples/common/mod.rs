//! What the benches of a store have in common.

use std::path::Path;
use std::sync::Arc;

use saker_engine::table::{EmbeddedConfig, EmbeddedTable};
use saker_runtime::fs::RealDir;
use saker_runtime::telemetry::Registry;
use saker_store::{Options, SegmentStore, Space, StoreIdentity};

/// Of the store.
pub const CLUSTER: [u8; 16] = [1; 16];

/// Why a bench ends.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Opens the store in a directory, which is made.
pub fn open(path: &Path) -> Result<Arc<SegmentStore>, Failure> {
    let dir = RealDir::open(path)?;
    let table = EmbeddedTable::open(path.join("index"), &EmbeddedConfig::default())?;
    let options = Options {
        segment_bytes: 64 << 20,
        capacity_bytes: u64::MAX,
        cache_bytes: 64 << 20,
        deleted_max: saker_store::DELETED_MAX,
        space: Arc::new(|| {
            Ok(Space { capacity_bytes: 1 << 50, free_bytes: 1 << 50, unused_bytes: 1 << 50 })
        }),
        disk: 0,
        cached_since: 0,
        registry: Registry::new(),
    };
    let identity = StoreIdentity { cluster: CLUSTER, store: 0 };
    Ok(SegmentStore::open(Arc::new(dir), Arc::new(table), identity, options)?)
}
