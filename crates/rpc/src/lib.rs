//! saker-rpc
