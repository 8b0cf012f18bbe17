//! The agent of a node: keeps partitions of staged datasets on the node's disk, serves them to
//! other agents, and gives processes of the node what it does not keep (FanStore §5.4).
//!
//! ```text
//! process ──open──> agent.sock ─ local ─ files (single flight, memfd) ─ read ─┬─ local disk
//!                                                                            ├─ peers::pool ──> agents
//! agents ──read───> TCP ─ peers::server ─ stored                             └─ origin
//! outputs: what processes write, kept by the nodes of the job
//! stage: fetch (partitions, table, manifest), broadcast ─────────────────────┘
//! ```

// Works on real files, sockets and time: nothing that a simulation holds.
#![allow(clippy::disallowed_methods)]

mod config;
mod connections;
mod control;
mod counters;
mod datasets;
mod dir;
mod error;
mod files;
mod local;
mod memfd;
mod node;
pub mod origin;
mod outputs;
mod peers;
mod read;
mod serve;
mod sources;
mod stage;
mod staged;
mod stored;
mod wire;

pub use config::{Config, dir_default};
pub use dir::make_own as make_own_dir;
pub use error::{Error, Result};
pub use serve::{Stop, serve};
