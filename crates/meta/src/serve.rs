//! The process: one thread a worker, one for /metrics.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use saker_engine::{EngineSource, embedded};
use saker_rpc::bootstrap::{Start, cluster_id, join};
use saker_rpc::hello::{Hello, HelloPolicy, RoleKind};
use saker_rpc::mark;
use saker_rpc::node::{ConnMetrics, Shell, ShellConfig, StopHandle};
use saker_runtime::fs::{Dir, RealDir};
use saker_runtime::telemetry::{Registry, serve_http};
use saker_runtime::{net, thread};
use saker_types::{ClusterMap, NodeId, ShardNo};

use crate::metrics::Metrics;
use crate::recover::{self, ShardOptions};
use crate::service::ShardWorker;
use crate::{Config, ShardLimits};

/// Runs an MNode until `stop`.
///
/// # Errors
/// What keeps it from starting: an address in use, another cluster's data, a newer format.
pub fn serve(config: Config, stop: &StopHandle) -> io::Result<()> {
    let listeners: Vec<TcpListener> =
        config.listen.iter().map(|addr| net::listen(*addr)).collect::<io::Result<_>>()?;
    let dir: Arc<dyn Dir> = Arc::new(RealDir::open(&config.data_dir)?);
    let start = Start { role: RoleKind::Shard, n: config.n, coordinator: config.coordinator };
    let map = Arc::new(join(&*dir, &start)?);
    let shards = shards_of(&map, config.n);
    if shards.len() != listeners.len() {
        return Err(io::Error::other(format!(
            "mnode {} has {} workers in the cluster map and {} addresses in its settings",
            config.n,
            shards.len(),
            listeners.len()
        )));
    }
    let registry = Registry::new();
    let metrics = Metrics::new(&registry);
    let connections = ConnMetrics::new(&registry);
    serve_http(config.http, registry)?;
    let workers: Vec<_> = shards
        .into_iter()
        .zip(listeners)
        .map(|(no, listener)| {
            let (config, dir, map) = (config.clone(), dir.clone(), map.clone());
            let (metrics, connections) = (metrics.clone(), connections.clone());
            let stop = stop.clone();
            thread::spawn(&format!("shard-{no}"), move || {
                let ended =
                    run_worker(&config, &*dir, map, no, listener, (metrics, connections), &stop);
                if ended.is_err() {
                    // The others end, too: a part of a node must not look like all of it.
                    stop.stop();
                }
                ended
            })
        })
        .collect::<io::Result<_>>()?;
    for worker in workers {
        worker.join().map_err(|_| io::Error::other("a worker panicked"))??;
    }
    Ok(())
}

fn run_worker(
    config: &Config,
    dir: &dyn Dir,
    map: Arc<ClusterMap>,
    no: ShardNo,
    listener: TcpListener,
    (metrics, connections): (Metrics, ConnMetrics),
    stop: &StopHandle,
) -> io::Result<()> {
    let name = format!("shard-{no}");
    let dir = dir.sub_dir(&name)?;
    let limits = ShardLimits {
        overlay_bytes: config.overlay_bytes,
        inodes: config.inodes,
        replica: config.replica,
        coalesce_prefixes: config.coalesce_prefixes,
        lazy_replication: config.lazy_replication,
        tells_ids: true,
        ..ShardLimits::default()
    };
    let engine = embedded::EmbeddedOptions::in_dir(&*dir, limits.sizes(), config.row_cache_bytes);
    let source = EngineSource::Embedded(engine.map_err(io::Error::other)?);
    let home = ShardOptions { source, no, limits, metrics };
    let cluster = cluster_id(&map);
    let shard = recover::open(home, map).map_err(io::Error::other)?;
    let start = Start { role: RoleKind::Shard, n: config.n, coordinator: config.coordinator };
    // What it holds must not be seen if it is a copy. While the coordinator is down it may be: but
    // no id is given out before that has said that it is not.
    let mark = shard.borrow().mark_to_compare();
    if !mark::compare(&start, &mark)? {
        tracing::warn!("shard {no}: the coordinator does not answer; new ids wait for it");
    }
    shard.borrow_mut().reserve_ids().map_err(io::Error::other)?;
    let node = saker_rpc::NodeNumber(NodeId::Shard(no).to_u32());
    let policy = HelloPolicy { cluster, allow_unknown_cluster: true, ..Default::default() };
    let hello = Hello::new(RoleKind::Shard, node, cluster);
    let mut shell = ShellConfig::new(hello, policy);
    shell.group_commit = config.group_commit;
    shell.bounds.payload_bytes_max = 0;
    shell.metrics = connections;
    if !config.merge_requests {
        shell.batch_inputs_max = 1;
    }
    tracing::info!("shard {no} serves at {}", listener.local_addr()?);
    Shell::new(ShardWorker::new(shard), listener, shell)?.run(stop)
}

fn shards_of(map: &ClusterMap, mnode: u32) -> Vec<ShardNo> {
    let all = map.shards.iter().enumerate();
    all.filter(|(_, s)| s.mnode == mnode).map(|(no, _)| no as ShardNo).collect()
}
