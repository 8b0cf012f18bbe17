//! Durable state of a shard, or of the coordinator: records, and the rows that they change.
//!
//! [`api`] says what an engine is, and `conformance` (a feature) tests it. There are two: [`embedded`], a
//! write-ahead log and a table on a disk of the machine, and [`memory`]. Who has one knows
//! neither log nor table.
//!
//! The one invariant of `embedded`: the table never holds an effect that the durable journal does not
//! have. So a checkpoint starts only when everything appended is durable; see `db`.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod any;
pub mod api;
pub mod bench;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod db;
pub mod embedded;
mod journal;
pub mod lease_clock;
pub mod memory;
mod room;
pub mod sessions;
pub mod snapshot;
pub mod table;

pub use any::{AnyEngine, EngineSource};
pub use api::{Engine, EngineError, Identity, Level, Position, Reads, Recovered, RowRead};
pub use crc32c::crc32c;
pub use journal::{format as journal_format, salvage};
pub use table::{EmbeddedConfig, EmbeddedTable, Table, TableError};
