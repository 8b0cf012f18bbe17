//! saker-client
