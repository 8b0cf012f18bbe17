//! The coordinator: cluster map, and the changes of directories that namespace replicas must
//! hear of before they happen: rmdir, chmod and chown of a directory, rename of a directory
//! (FalconFS §4.3; docs/protocol.md, rules 5 to 7). Ordinary operations never come here.
//!
//! ```text
//! frame -> service::Worker -> ops::<operation> -> rpc::txn (prepare) -> invalidate -> commit
//! ```

pub mod config;
pub mod metrics;
mod ops;
mod policies;
mod serve;
pub mod service;
pub mod state;
#[cfg(test)]
mod testing;

pub use config::Config;
pub use serve::serve;
