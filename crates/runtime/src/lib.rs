//! saker-runtime

pub mod fs;
