//! saker-sim
