//! What an agent counts.

use saker_agent_api::Count;
use saker_runtime::telemetry::{Counter, Gauge, Registry};

/// Declares the metrics: field, kind, name, help.
macro_rules! counters {
    ($($field:ident: $make:ident($name:literal, $help:literal)),* $(,)?) => {
        /// The metrics of an agent.
        pub(crate) struct Counters {
            $(pub(crate) $field: counters!(@type $make),)*
        }

        impl Counters {
            pub(crate) fn new(registry: &Registry) -> Counters {
                Counters { $($field: registry.$make($name, $help),)* }
            }

            /// All of them, as they are now.
            pub(crate) fn list(&self) -> Vec<Count> {
                vec![$(Count { name: $name.to_owned(), value: self.$field.get() as u64 },)*]
            }
        }
    };
    (@type counter) => { Counter };
    (@type gauge) => { Gauge };
}

counters! {
    opens: counter("saker_agent_opens_total", "Files that processes of the node asked for"),
    open_failures: counter("saker_agent_open_failures_total", "Opens that failed: no source had the file"),
    hits: counter("saker_agent_cache_hits_total", "Opens of files that were in memory or on their way"),
    local_reads: counter("saker_agent_local_reads_total", "Reads of partitions on this node for its own processes"),
    local_bytes: counter("saker_agent_local_read_bytes_total", "Bytes of these reads"),
    peer_reads: counter("saker_agent_peer_reads_total", "Reads from other agents"),
    peer_bytes: counter("saker_agent_peer_read_bytes_total", "Bytes of these reads"),
    origin_reads: counter("saker_agent_origin_reads_total", "Reads from origins of datasets"),
    origin_bytes: counter("saker_agent_origin_read_bytes_total", "Bytes of these reads"),
    served_reads: counter("saker_agent_served_reads_total", "Reads that were answered to other agents"),
    served_bytes: counter("saker_agent_served_read_bytes_total", "Bytes of these reads"),
    staged_bytes: counter("saker_agent_staged_bytes_total", "Bytes of datasets written to this node's disk"),
    read_failures: counter("saker_agent_read_failures_total", "Reads from a peer, an origin or the disk that failed: the next copy was read"),
    damaged: counter("saker_agent_damaged_reads_total", "Reads whose data did not match its checksums: the next copy was read"),
    refused: counter("saker_agent_refused_connections_total", "Connections that were not let in: too many, or a wrong key"),
    outputs: counter("saker_agent_outputs_total", "Output files that came from this node to their homes"),
    output_bytes: counter("saker_agent_output_bytes_total", "Bytes of these files"),
    output_failures: counter("saker_agent_output_failures_total", "Attempts to bring an output file to its home that failed: it is tried again"),
    outputs_outgoing: gauge("saker_agent_outputs_outgoing", "Output files on this node that are to go to their homes"),
    open_files: gauge("saker_agent_open_files", "Files that processes have open by this agent"),
    open_bytes: gauge("saker_agent_open_bytes", "Bytes of these files, in memory"),
    connections: gauge("saker_agent_connections", "Connections of processes and agents"),
    datasets: gauge("saker_agent_datasets", "Staged datasets"),
}
