//! saker-runtime
