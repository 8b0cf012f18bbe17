//! The chunk store.
pub mod format;
