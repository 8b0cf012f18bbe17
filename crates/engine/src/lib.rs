//! Durable state of a shard: a write-ahead log of opaque records, and rows of bytes.
//!
//! ```text
//! a batch ──> journal (append, flush) ──> replies may leave
//!        └──> Db overlay ──checkpoint──> Table        then the journal is trimmed
//! ```
//!
//! The one invariant: the table never holds an effect that the durable journal does not have.
//! So a checkpoint starts only when everything appended is durable; see [`db`].

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod bench;
pub mod db;
pub mod journal;
pub mod lease_clock;
pub mod room;
pub mod sessions;
pub mod snapshot;
pub mod table;

pub use crc32c::crc32c;

pub use db::{Checkpoint, Db};
pub use journal::{Journal, JournalConfig, JournalError, Kind, Lsn, ReplayFrom, SegmentNo};
pub use table::{EmbeddedConfig, EmbeddedTable, Table, TableError};
