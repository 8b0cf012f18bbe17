//! The namespace replica: path resolution, fetching from owners, invalidation
//! (FalconFS §4.3; docs/protocol.md, rules 2, 4, 5, 6).

pub mod dir;
pub(crate) mod eager;
pub mod fetch;
pub mod invalidate;
pub mod lease;
pub(crate) mod policy;
pub mod replica;
pub mod resolve;
pub mod walk;
