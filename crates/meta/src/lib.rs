//! saker-meta
