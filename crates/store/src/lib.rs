//! saker-store
