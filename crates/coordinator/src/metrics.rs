//! Counters of the coordinator.

use saker_runtime::telemetry::{Counter, OpCounters, Registry};
use saker_types::wire::Op;

/// The counters.
#[derive(Clone)]
pub struct Metrics {
    /// Requests served, by operation.
    pub requests: OpCounters,
    /// Times that changes of directories waited for mounts which kept the names.
    pub kept: Counter,
    /// Flushes of the journal.
    pub flushes: Counter,
    /// Sessions refused.
    pub sessions_refused: Counter,
}

impl Metrics {
    /// Declares them.
    pub fn new(registry: &Registry) -> Metrics {
        let ops: Vec<(u16, &'static str)> =
            Op::ALL.iter().map(|op| (*op as u16, op.name())).collect();
        Metrics {
            requests: registry.op_counters(
                "saker_coordinator_requests_total",
                "Requests served, by operation",
                &[],
                "op",
                &ops,
            ),
            kept: registry.counter(
                "saker_coordinator_name_waits_total",
                "Times that changes of directories waited for mounts which kept the names",
            ),
            sessions_refused: registry.counter(
                "saker_sessions_refused_total",
                "Sessions of clients that were refused, because there are as many as may be",
            ),
            flushes: registry.counter("saker_wal_flushes_total", "Flushes of the journals"),
        }
    }
}
