//! The process: threads that serve, one for upkeep, one for /metrics.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use saker_engine::{EmbeddedConfig, EmbeddedTable};
use saker_rpc::bootstrap::{Start, cluster_id, join};
use saker_rpc::hello::{Hello, HelloPolicy, RoleKind};
use saker_rpc::mark::Mark;
use saker_rpc::node::{ConnMetrics, ShellConfig, StopHandle};
use saker_rpc::service::{self, Service, ServiceConfig, ServiceLimits, ServiceMetrics};
use saker_runtime::fs::{Dir, RealDir};
use saker_runtime::telemetry::{Registry, serve_http};
use saker_runtime::{net, thread, time};
use saker_types::NodeId;

use crate::service::StoreService;
use crate::{Config, DELETED_MAX, Options, SegmentStore, Space, SpaceFn, StoreIdentity};

/// Bytes of a segment.
const SEGMENT_BYTES: u32 = 64 << 20;
/// Bytes of index rows kept in memory.
const INDEX_CACHE_BYTES: usize = 64 << 20;

/// A store to which something was written raises its mark this often.
const MARK_EVERY: Duration = Duration::from_secs(60);
/// And looks this often whether it must.
const LOOK: Duration = Duration::from_millis(500);

/// Runs a store until `stop`.
///
/// # Errors
/// What keeps it from starting: the address in use, another cluster's data, a newer format.
pub fn serve(config: Config, stop: &StopHandle) -> io::Result<()> {
    let addr = config.listen;
    let listener = net::listen(addr)?;
    let dir = RealDir::open(&config.data_dir)?;
    let cached_since = dir.cached_since();
    let dir: Arc<dyn Dir> = Arc::new(dir);
    let start =
        Start { role: RoleKind::Store, n: config.n.into(), coordinator: config.coordinator };
    let map = Arc::new(join(&*dir, &start)?);
    let mut mark = Mark::load(dir.clone(), start)?;
    let told = mark.raise()?;
    let cluster = cluster_id(&map).ok_or_else(|| io::Error::other("the cluster has no uuid"))?;
    let registry = Registry::new();
    let options = Options {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: config.capacity_bytes.unwrap_or(u64::MAX),
        cache_bytes: INDEX_CACHE_BYTES,
        deleted_max: DELETED_MAX,
        space: space_of(&config.data_dir),
        disk: disk_of(&config.data_dir, addr.ip())?,
        cached_since,
        registry: registry.clone(),
    };
    let table = EmbeddedTable::open_in(dir.sub_dir("index")?, &EmbeddedConfig::default());
    let table = Arc::new(table.map_err(io::Error::other)?);
    let identity = StoreIdentity { cluster, store: config.n };
    let (metrics, counts) = (ConnMetrics::new(&registry), ServiceMetrics::new(&registry));
    let store = SegmentStore::open(dir.clone(), table, identity, options);
    let store = store.map_err(io::Error::other)?;
    store.start().map_err(io::Error::other)?;
    keep_marking(Arc::downgrade(&store), mark, told, stop.clone())?;
    let service = Arc::new(StoreService::new(dir, store).map_err(io::Error::other)?);
    keep_up(Arc::downgrade(&service), stop.clone())?;
    if let Some(http) = config.http {
        serve_http(http, registry)?;
    }
    let node = saker_rpc::NodeNumber(NodeId::Store(config.n).to_u32());
    let hello = Hello::new(RoleKind::Store, node, Some(cluster));
    let cluster = Some(cluster);
    let policy = HelloPolicy { cluster, allow_unknown_cluster: true, ..Default::default() };
    tracing::info!("store {} serves at {addr}", config.n);
    let service: Arc<dyn Service> = service;
    let shell = ShellConfig { metrics, ..ShellConfig::new(hello, policy) };
    let config =
        ServiceConfig { shells: config.threads, limits: ServiceLimits::default(), metrics: counts };
    service::serve(&listener, &service, &shell, &config, stop)
}

/// Raises the store's mark from time to time, so that a copy of its directory is known for one; ends
/// the store if it is.
fn keep_marking(
    store: Weak<SegmentStore>,
    mut mark: Mark,
    mut told: bool,
    stop: StopHandle,
) -> io::Result<()> {
    let (mut marked, mut at) = (0, time::now());
    let run = move || {
        while !stop.is_stopped() {
            time::sleep(LOOK);
            let Some(seq) = store.upgrade().map(|store| store.next_seq()) else { return };
            if told && (seq == marked || time::now().since(at) < MARK_EVERY) {
                continue;
            }
            match mark.raise() {
                Ok(answers) => told = answers,
                Err(error) => {
                    tracing::error!("{error}");
                    return stop.stop();
                }
            }
            (marked, at) = (seq, time::now());
        }
    };
    thread::spawn("store-mark", run).map(drop)
}

/// Does what a service has to do from time to time.
fn keep_up(service: Weak<StoreService>, stop: StopHandle) -> io::Result<()> {
    let mut logged = String::new();
    let run = move || {
        while !stop.is_stopped() {
            time::sleep(LOOK);
            let Some(service) = service.upgrade() else { return };
            let failed = service.upkeep().err().map(|error| error.to_string());
            let failed = failed.unwrap_or_default();
            if failed != logged && !failed.is_empty() {
                tracing::error!("background work failed: {failed}");
            }
            logged = failed;
        }
    };
    thread::spawn("store-upkeep", run).map(drop)
}

/// Number of the file system that holds the data. Those of different machines may have the same
/// number, but not the same address as well.
fn disk_of(path: &Path, ip: IpAddr) -> io::Result<u64> {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let machine = (ip as u64 ^ (ip >> 64) as u64).rotate_left(32);
    Ok((rustix::fs::statvfs(path)?.f_fsid ^ machine).max(1))
}

/// Space of the file system that holds the data.
fn space_of(path: &Path) -> SpaceFn {
    let path = path.to_owned();
    Arc::new(move || {
        let stat = rustix::fs::statvfs(&path)?;
        Ok(Space {
            capacity_bytes: stat.f_blocks * stat.f_frsize,
            free_bytes: stat.f_bavail * stat.f_frsize,
            unused_bytes: stat.f_bfree * stat.f_frsize,
        })
    })
}
