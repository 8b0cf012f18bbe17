//! saker-coordinator
