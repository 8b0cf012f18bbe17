//! The failpoints of all roles. A test keeps this list equal to the sources.

/// Their names, sorted.
pub const ALL: &[&str] = &[];
