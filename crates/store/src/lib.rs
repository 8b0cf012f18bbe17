//! The chunk store: keeps file data for clients.
//!
//! - [`service`]: requests, retries, what is set aside; who may wait.
//! - [`backend`]: where the chunks are. [`backend::segments`] is the one there is.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod attempts;
pub mod backend;
pub mod config;
mod quarantine;
mod serve;
pub mod service;
pub mod wait;

pub use backend::ChunkBackend;
pub use backend::segments::format::StoreIdentity;
pub use backend::segments::log::{Space, SpaceFn};
pub use backend::segments::{DELETED_MAX, Options, SegmentStore};
pub use config::Config;
pub use serve::serve;
pub use service::StoreService;

#[cfg(test)]
mod tests;
