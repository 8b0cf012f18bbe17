//! The chunk store: file data in segment files, with a checksum for every block.
//!
//! ```text
//! write ──> log (one append, page cache) ──> index in memory ──> acknowledged
//! sync  ──> one flush for all who wait
//! background: index ──checkpoint──> table;  segments with little live data ──compaction──> log
//! start: table + the log's records since its marker = the state at the crash
//! ```
//!
//! Invariants, each checked by a test: what was acknowledged survives the death of the process,
//! what was synced the loss of power, and a flush never succeeds for what that took; the table is never ahead of the log's durable part; a
//! block whose checksum does not match is an error, never data; a segment's file is removed only
//! when neither the index nor the table refers to it.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod attempts;
mod compact;
pub mod config;
pub mod epochs;
pub mod extent;
mod fetches;
pub mod format;
pub mod index;
pub mod log;
pub mod maintain;
pub mod metrics;
pub mod quarantine;
pub mod read;
pub mod recover;
pub mod scan;
pub mod segment;
mod serve;
pub mod service;
pub mod store;
pub mod wait;

pub use config::Config;
pub use format::Identity;
pub use log::{Space, SpaceFn};
pub use serve::serve;
pub use service::StoreService;
pub use store::{Options, Store};

#[cfg(test)]
mod tests;
