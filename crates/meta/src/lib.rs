//! The MNode: owns a share of the inodes (FalconFS §4).
//!
//! ```text
//! frame -> service::ShardWorker -> ops::<operation> -> rows -> engine (tables, journal)
//!              |  parks, retries      |
//!              |                      +-> namespace (resolve, fetch, invalidate)
//!              |                      +-> totals (of directories)
//!              +-> tasks              +-> txn (two-phase commit)
//! ```
//! A shard is one worker: single-threaded, sans-io, with its own journal. An operation is a
//! function from a request to an answer, or to a reason to wait, after which it runs again from
//! the root; what takes several steps goes on as a task.

mod checkpoint;
pub mod config;
mod delay;
mod gone;
mod ids;
mod locks;
mod maps;
mod merge;
pub mod metrics;
mod namespace;
mod ops;
pub mod private;
pub mod recover;
mod request;
mod rows;
mod rules;
mod serve;
pub mod service;
mod shard;
pub mod slot;
mod state;
#[cfg(test)]
mod testing;
mod totals;
mod txn;

pub use config::Config;
pub use serve::serve;
pub use shard::{Shard, ShardLimits};
