//! The real roles on simulated disks: how they are started, and where they listen.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use saker_coordinator::config::{Members, ShardMember};
use saker_engine::embedded::{EmbeddedOptions, Sizes};
use saker_engine::{EmbeddedConfig, EmbeddedTable, Engine, EngineSource, Identity, Table};
use saker_meta::{ShardLimits, recover};
use saker_rpc::RoleKind;
use saker_rpc::hello::PeerHello;
use saker_runtime::fs::Dir;
use saker_runtime::telemetry::Registry;
use saker_runtime::time::Time;
use saker_store::{DELETED_MAX, Options, SegmentStore, Space, StoreService};
use saker_types::change::{Change, Record, What};
use saker_types::placement::{FORMAT, ShardInfo, StoreInfo, initial_slots};
use saker_types::{ClusterMap, NodeId};

/// The simulated cluster's uuid.
pub const UUID: [u8; 16] = *b"bench of saker!!";
/// Wall clock when the monotonic clock is 0, ns.
pub const START_WALL_NS: i64 = 1_700_000_000_000_000_000;

const COORDINATOR_PORT: u16 = 1;
const SHARD_PORT: u16 = 1_000;
const STORE_PORT: u16 = 2_000;

/// Number of a machine that a node runs on: the first is 0, and each that takes its place is the
/// next, at an address of its own.
pub type Machine = u8;

/// Where a node listens while it is on this machine.
pub fn addr_of(node: NodeId, machine: Machine) -> SocketAddr {
    let port = match node {
        NodeId::Coordinator => COORDINATOR_PORT,
        NodeId::Shard(n) => SHARD_PORT + n,
        NodeId::Store(n) => STORE_PORT + n,
    };
    SocketAddr::from(([127, 0, machine, 1], port))
}

/// Who listens there.
///
/// # Panics
/// If nobody ever does.
pub fn node_at(addr: SocketAddr) -> (NodeId, Machine) {
    let node = match addr.port() {
        COORDINATOR_PORT => NodeId::Coordinator,
        port if (SHARD_PORT..STORE_PORT).contains(&port) => NodeId::Shard(port - SHARD_PORT),
        port if port >= STORE_PORT => NodeId::Store(port - STORE_PORT),
        port => panic!("nobody listens on port {port}"),
    };
    let IpAddr::V4(ip) = addr.ip() else { panic!("nobody listens at {addr}") };
    (node, ip.octets()[2])
}

/// A cluster of some shards and stores.
pub fn members(shards: u16, stores: u16, replicas: u32, inline_max: u64) -> Members {
    let shard = |n| ShardMember { mnode: u32::from(n), addr: addr_of(NodeId::Shard(n), 0) };
    Members {
        name: "simulated".into(),
        shards: (0..shards).map(shard).collect(),
        stores: (0..stores).map(|n| addr_of(NodeId::Store(n), 0)).collect(),
        replicas,
        inline_max,
    }
}

/// Its first map, without the random seed that a coordinator would draw.
pub fn first_map(members: &Members) -> ClusterMap {
    let shards = members.shards.iter().map(|member| ShardInfo {
        mnode: member.mnode,
        addr: member.addr.to_string(),
        allocator: member.mnode + 1,
    });
    let stores = members.stores.iter().map(|addr| StoreInfo { addr: addr.to_string() });
    ClusterMap {
        version: 1,
        uuid: Bytes::copy_from_slice(&UUID),
        hash_seed: 7,
        shards: shards.collect(),
        stores: stores.collect(),
        slots: initial_slots(members.shards.len()),
        coordinator: addr_of(NodeId::Coordinator, 0).to_string(),
        replicas: members.replicas,
        inline_max: members.inline_max,
        name: members.name.clone(),
        format: FORMAT,
        slots_version: 1,
    }
}

fn coordinators(disk: Arc<dyn Dir>, segment_bytes: u64) -> EngineSource {
    let sizes = Sizes::of_facts(segment_bytes);
    EngineSource::Embedded(EmbeddedOptions { journal: disk, table: None, sizes })
}

/// Writes a map into the coordinator's records.
///
/// # Panics
/// If the disk fails.
pub fn write_map(disk: Arc<dyn Dir>, map: &ClusterMap) {
    let identity = Identity { cluster: UUID, shard: u32::MAX };
    let engine = coordinators(disk, 1 << 18).open(identity, &mut |_| Ok(()));
    let mut engine = engine.expect("a disk in memory");
    let what = Some(What::Map(map.encode_to_vec().into()));
    engine.commit(&Record { changes: vec![Change { what }] });
    engine.flush().expect("a disk in memory");
}

/// Starts the coordinator from its disk; its journal is compacted after so many bytes.
///
/// # Errors
/// What keeps it from starting.
pub fn start_coordinator(
    disk: Arc<dyn Dir>,
    members: &Members,
    listen: SocketAddr,
    segment_bytes: u64,
) -> Result<saker_coordinator::service::CoordinatorWorker, String> {
    let metrics = saker_coordinator::metrics::Metrics::new(&Registry::new());
    let listen = listen.to_string();
    let source = coordinators(disk, segment_bytes);
    let state = saker_coordinator::state::open(source, members, &listen, metrics);
    state.map(saker_coordinator::service::CoordinatorWorker::new).map_err(|e| e.to_string())
}

/// So small that blocks take the place of others.
const TABLE_CACHE_BYTES: usize = 64 << 10;

/// The table on a disk. What it merges it merges while it is written.
///
/// # Errors
/// What keeps it from being opened.
pub fn open_table(disk: &dyn Dir) -> Result<Arc<dyn Table>, String> {
    let dir = disk.sub_dir("table").map_err(|e| e.to_string())?;
    let table = EmbeddedTable::open_in(
        dir,
        &EmbeddedConfig { merge_threads: 0, cache_bytes: TABLE_CACHE_BYTES },
    );
    Ok(Arc::new(table.map_err(|e| e.to_string())?))
}

/// Starts a shard from its disk.
///
/// # Errors
/// What keeps it from starting.
pub fn start_shard(
    no: u16,
    disk: Arc<dyn Dir>,
    table: Arc<dyn Table>,
    limits: &ShardLimits,
    map: &Arc<ClusterMap>,
    now: Time,
    wall_ns: i64,
) -> Result<saker_meta::service::ShardWorker, String> {
    let journal = disk.sub_dir("journal").map_err(|e| e.to_string())?;
    let sizes = limits.sizes();
    let home = recover::ShardOptions {
        source: EngineSource::Embedded(EmbeddedOptions { journal, table: Some(table), sizes }),
        no,
        limits: limits.clone(),
        metrics: saker_meta::metrics::Metrics::new(&Registry::new()),
    };
    let shard = recover::open_at(home, map.clone(), now, wall_ns);
    shard.map(saker_meta::service::ShardWorker::new).map_err(|e| e.to_string())
}

/// Bytes of a store's disk, of which half are free.
const STORE_DISK_BYTES: u64 = 1 << 30;
/// So small that segments are filled.
const STORE_SEGMENT_BYTES: u32 = 256 << 10;

/// Starts a store from its disk, whose page cache lives since `cached_since`.
///
/// # Errors
/// What keeps it from starting.
pub fn start_store(no: u16, disk: Arc<dyn Dir>, cached_since: u64) -> Result<StoreService, String> {
    let (capacity_bytes, free_bytes) = (STORE_DISK_BYTES, STORE_DISK_BYTES / 2);
    let space = Space { capacity_bytes, free_bytes, unused_bytes: free_bytes };
    let options = Options {
        segment_bytes: STORE_SEGMENT_BYTES,
        capacity_bytes,
        cache_bytes: 1 << 20,
        deleted_max: DELETED_MAX,
        space: Arc::new(move || Ok(space)),
        disk: 0,
        cached_since,
        registry: Registry::new(),
    };
    let identity = saker_store::StoreIdentity { cluster: UUID, store: no };
    let table = open_table(&*disk)?;
    let store = SegmentStore::open(disk.clone(), table, identity, options);
    store.and_then(|store| StoreService::new(disk, store)).map_err(|e| e.to_string())
}

/// What a node says of itself.
pub fn hello_of(node: NodeId) -> PeerHello {
    let role = match node {
        NodeId::Coordinator => RoleKind::Coordinator,
        NodeId::Shard(_) => RoleKind::Shard,
        NodeId::Store(_) => RoleKind::Store,
    };
    hello(role, Some(node))
}

/// What a peer says of itself.
pub fn hello(role: RoleKind, node: Option<NodeId>) -> PeerHello {
    PeerHello {
        protocol: 1,
        cluster: Some(UUID),
        role,
        node: node.map_or(saker_rpc::NodeNumber::NONE, |node| saker_rpc::NodeNumber(node.to_u32())),
        session: 0,
        map_version: 0,
        features: 0,
        ip: None,
    }
}
