//! The `saker` binary.
fn main() {}
