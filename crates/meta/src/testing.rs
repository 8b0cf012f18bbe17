//! Shards for unit tests.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use saker_engine::{EmbeddedConfig, EmbeddedTable};
use saker_runtime::fs::{Dir, MemDir};
use saker_runtime::telemetry::Registry;
use saker_runtime::time::Time;
use saker_types::placement::{FORMAT, ShardInfo};
use saker_types::{ClusterMap, ShardNo, limits};

use crate::metrics::Metrics;
use crate::recover::{Home, open_at};
use crate::shard::{Limits, Shard};

const WALL_NS: i64 = 1_800_000_000_000_000_000;

/// Two shards; all slots are the first one's.
pub(crate) fn map() -> ClusterMap {
    let addr = || "127.0.0.1:1".to_owned();
    let shard = |allocator| ShardInfo { mnode: 0, addr: addr(), allocator };
    ClusterMap {
        version: 1,
        uuid: Bytes::from_static(&[7; 16]),
        hash_seed: 42,
        shards: vec![shard(1), shard(2)],
        slots: vec![0; limits::SLOTS * 2].into(),
        coordinator: addr(),
        format: FORMAT,
        slots_version: 1,
        ..Default::default()
    }
}

/// A shard on a disk.
#[allow(clippy::unwrap_used)]
pub(crate) fn open(no: ShardNo, disk: &MemDir, map: &ClusterMap) -> Rc<RefCell<Shard>> {
    let config = EmbeddedConfig { merge_threads: 0, ..EmbeddedConfig::default() };
    let home = Home {
        journal: disk.sub_dir("journal").unwrap(),
        table: Arc::new(EmbeddedTable::open_in(disk.sub_dir("table").unwrap(), &config).unwrap()),
        no,
        limits: Limits { segment_bytes: 1 << 20, ..Limits::default() },
        metrics: Metrics::new(&Registry::new()),
    };
    open_at(home, Arc::new(map.clone()), Time::ZERO, WALL_NS).unwrap()
}
