//! saker-types
