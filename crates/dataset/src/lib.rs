//! Frozen datasets: files packed into partitions, found by a table (FanStore §5.2 to §5.4).
//!
//! ```text
//! files ──pack──> part-00000.saker … part-NNNNN.saker, table.saker, dataset.json
//!                 [header | data of files | table of these files | footer]
//! dataset ──stage──> on each node of a job: the table, some of the partitions, stage.json
//! ```
//!
//! table.saker is the table of all files; every process of a node maps it.
//!
//! The fields of the paper's Table 3 (name, stat, compressed size, data) are all here, names of any
//! length, links, owners and extended attributes besides. What is no data stands together at the end
//! of a partition, in the form in which it is mapped: opening one parses nothing.
//!
//! This crate is pure: bytes in files and in memory, no network, no threads but those of [`pack`].

// Formats and tools on files of the machine: nothing that a simulation holds.
#![allow(clippy::disallowed_methods)]

mod block;
mod codec;
mod dataset;
mod digest;
mod error;
mod export;
mod format;
mod inode;
pub mod pack;
mod partition;
mod staged;
pub mod table;

pub use codec::Codec;
pub use dataset::{Dataset, MANIFEST, Manifest, PartitionInfo, Problem, TABLE};
pub use dataset::{partition_name, sync_dir, write_whole};
pub use digest::Digest;
pub use error::{Error, Result};
pub use inode::{BLOCK_BYTES, FileData, InodeRecord, Meta, PARTITIONS_MAX};
pub use partition::Partition;
pub use staged::{Broadcast, Local, Stage, Staged};
pub use table::{Ino, Table};

#[cfg(test)]
mod tests;
