//! What a store counts.

use saker_runtime::telemetry::{Counter, Gauge, Registry};

/// The metrics of a store.
pub struct Metrics {
    #[allow(missing_docs)]
    pub reads: Counter,
    #[allow(missing_docs)]
    pub read_bytes: Counter,
    #[allow(missing_docs)]
    pub located_bytes: Counter,
    #[allow(missing_docs)]
    pub writes: Counter,
    #[allow(missing_docs)]
    pub write_bytes: Counter,
    #[allow(missing_docs)]
    pub flushes: Counter,
    #[allow(missing_docs)]
    pub corrupt_blocks: Counter,
    #[allow(missing_docs)]
    pub compacted_bytes: Counter,
    #[allow(missing_docs)]
    pub checkpoints: Counter,
    #[allow(missing_docs)]
    pub chunks: Gauge,
    #[allow(missing_docs)]
    pub data_bytes: Gauge,
    #[allow(missing_docs)]
    pub segments: Gauge,
}

impl Metrics {
    /// Declares them.
    pub fn new(registry: &Registry) -> Metrics {
        let counter = |name, help| registry.counter(name, help);
        Metrics {
            reads: counter("saker_store_reads_total", "Chunk reads"),
            read_bytes: counter("saker_store_read_bytes_total", "Bytes of chunks read"),
            located_bytes: counter(
                "saker_store_located_bytes_total",
                "Bytes of them that a client of the same machine was told the place of",
            ),
            writes: counter("saker_store_writes_total", "Chunk writes"),
            write_bytes: counter("saker_store_write_bytes_total", "Bytes of chunks written"),
            flushes: counter("saker_store_flushes_total", "Flushes of segment files"),
            corrupt_blocks: counter(
                "saker_store_corrupt_blocks_total",
                "Reads that met a block whose checksum does not match",
            ),
            compacted_bytes: counter(
                "saker_store_compacted_bytes_total",
                "Bytes of file data copied to free segments or to join extents",
            ),
            checkpoints: counter("saker_store_checkpoints_total", "Checkpoints of the index"),
            chunks: registry.gauge("saker_store_chunks", "Chunks that hold data"),
            data_bytes: registry.gauge("saker_store_data_bytes", "Bytes of live file data"),
            segments: registry.gauge("saker_store_segments", "Segment files"),
        }
    }
}
