//! saker-engine
