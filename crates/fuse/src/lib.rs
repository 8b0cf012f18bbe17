//! saker-fuse
