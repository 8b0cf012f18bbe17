//! The process: one thread for the coordinator, one for /metrics.

use std::io;
use std::sync::Arc;

use saker_engine::EngineSource;
use saker_engine::embedded::{self, Sizes};
use saker_rpc::bootstrap::cluster_id;
use saker_rpc::hello::{Hello, HelloPolicy, RoleKind};
use saker_rpc::node::{ConnMetrics, Shell, ShellConfig, StopHandle};
use saker_runtime::fs::{Dir, RealDir};
use saker_runtime::net;
use saker_runtime::telemetry::{Registry, serve_http};
use saker_types::NodeId;
use saker_types::id::hex;

use crate::Config;
use crate::metrics::Metrics;
use crate::service::CoordinatorWorker;
use crate::state;

/// Runs the coordinator until `stop`.
///
/// # Errors
/// What keeps it from starting: the address in use, a foreign or newer journal.
pub fn serve(config: Config, stop: &StopHandle) -> io::Result<()> {
    let listener = net::listen(config.listen)?;
    let dir: Arc<dyn Dir> = Arc::new(RealDir::open(&config.data_dir)?);
    let registry = Registry::new();
    let metrics = Metrics::new(&registry);
    let listen = listener.local_addr()?.to_string();
    let journal = dir.sub_dir("journal")?;
    let label = journal.label();
    let sizes = Sizes::of_facts(state::SEGMENT_BYTES);
    let source = EngineSource::Embedded(embedded::EmbeddedOptions { journal, table: None, sizes });
    if let Some(uuid) = &config.uuid {
        must_be(&source, &label, uuid)?;
    }
    let h = state::open(source, &config.cluster, &listen, metrics).map_err(io::Error::other)?;
    let connections = ConnMetrics::new(&registry);
    serve_http(config.http, registry)?;
    let cluster = cluster_id(&h.state().map);
    let node = saker_rpc::NodeNumber(NodeId::Coordinator.to_u32());
    let policy = HelloPolicy { cluster, allow_unknown_cluster: true, ..Default::default() };
    let hello = Hello::new(RoleKind::Coordinator, node, cluster);
    tracing::info!("coordinator serves at {listen}");
    let mut shell = ShellConfig::new(hello, policy);
    shell.bounds.payload_bytes_max = 0;
    shell.metrics = connections;
    Shell::new(CoordinatorWorker::new(h), listener, shell)?.run(stop)
}

/// Refuses a directory that is not that cluster's.
fn must_be(source: &EngineSource, label: &str, uuid: &str) -> io::Result<()> {
    let found = source.cluster().map_err(io::Error::other)?.map(|found| hex(&found));
    let text = match found {
        Some(found) if found.eq_ignore_ascii_case(uuid) => return Ok(()),
        Some(found) => format!("belongs to cluster {found}, not to {uuid}"),
        None => {
            format!("cluster {uuid} had its data in another directory; is a disk not mounted?")
        }
    };
    Err(io::Error::other(format!("{label}: {text}")))
}
