//! Counters of an MNode; all its shards share them.

use saker_runtime::telemetry::{Counter, Gauge, OpCounters, Registry};
use saker_types::wire::Op;

/// The counters; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    /// Requests served, by operation.
    pub requests: OpCounters,
    /// Batches that changed something.
    pub batches: Counter,
    /// Misdirected requests passed on.
    pub forwards: Counter,
    /// Entries fetched from their owners.
    pub fetches: Counter,
    /// Invalidations served.
    pub invalidations: Counter,
    /// Components of paths that were found by the walk before.
    pub coalesced: Counter,
    /// Flushes of the journals.
    pub flushes: Counter,
    /// Rows that were found in blocks that are kept.
    pub rows_found: Counter,
    /// Rows that were read from a file.
    pub rows_missed: Counter,
    /// Rows that the disk was waited for.
    pub row_waits: Counter,
    /// Inodes that live here.
    pub inodes: Gauge,
    /// Sessions refused.
    pub sessions_refused: Counter,
    /// Shards whose disk is full.
    pub short_of_space: Gauge,
}

impl Metrics {
    /// Declares them.
    pub fn new(registry: &Registry) -> Metrics {
        let ops: Vec<(u16, &'static str)> =
            Op::ALL.iter().map(|op| (*op as u16, op.name())).collect();
        Metrics {
            requests: registry.op_counters(
                "saker_mnode_requests_total",
                "Requests served, by operation",
                &[],
                "op",
                &ops,
            ),
            batches: registry.counter(
                "saker_mnode_batches_total",
                "Batches that changed something: one journal record each",
            ),
            forwards: registry.counter(
                "saker_mnode_forwards_total",
                "Requests of clients with an old map, passed on to the owner",
            ),
            fetches: registry.counter(
                "saker_mnode_fetches_total",
                "Directory entries fetched from their owners into the namespace replica",
            ),
            invalidations: registry.counter(
                "saker_mnode_invalidations_total",
                "Invalidations of the coordinator served",
            ),
            coalesced: registry.counter(
                "saker_mnode_coalesced_components_total",
                "Components of paths that were found by the walk of the request before",
            ),
            flushes: registry.counter("saker_wal_flushes_total", "Flushes of the journals"),
            rows_found: registry.counter(
                "saker_mnode_row_cache_hits_total",
                "Looks at rows of the tables that found them in the row cache",
            ),
            rows_missed: registry.counter(
                "saker_mnode_row_cache_misses_total",
                "Looks at rows of the tables that read them from their file",
            ),
            row_waits: registry.counter(
                "saker_mnode_row_waits_total",
                "Rows that were not in memory when a request needed them",
            ),
            sessions_refused: registry.counter(
                "saker_sessions_refused_total",
                "Sessions of clients that were refused, because there are as many as may be",
            ),
            short_of_space: registry.gauge(
                "saker_mnode_full_workers",
                "Workers that take nothing new, because their disk is full",
            ),
            inodes: registry.gauge("saker_mnode_inodes", "Inodes that live here"),
        }
    }
}
