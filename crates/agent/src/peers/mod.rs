//! Agents among each other.

pub(crate) mod client;
pub(crate) mod pool;
pub(crate) mod server;
