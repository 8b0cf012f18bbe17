//! Writing, against a cluster in memory.

mod appends;
mod fsync;
mod memory;
mod writes;
