//! Tables: where rows (byte keys, byte values) live once they leave the overlay of a shard's engine.

use std::io;
use std::ops::ControlFlow;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

mod embedded;
#[cfg(test)]
mod tests;

pub use crate::api::{KEY_BYTES_MAX, RESERVED, Reads};
pub use embedded::{EmbeddedConfig, EmbeddedTable};

/// A row to write: its key, and its value or `None` to delete it.
pub type RowWrite = (Bytes, Option<Bytes>);

/// Called with each row of a scan: its key and value.
pub type OnRow<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A sorted map of rows. One thread writes, others may read meanwhile.
///
/// Keys have 1 to [`KEY_BYTES_MAX`] bytes. Keys that start with [`RESERVED`] are the engine's own
/// few: only `get` reads them, and no scan reaches past `[RESERVED]`.
pub trait Table: Send + Sync {
    /// The value of a row.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError>;

    /// The same, but does not wait for a disk: `None` if it would have to.
    fn get_cached(&self, key: &[u8]) -> Result<Option<Option<Bytes>>, TableError> {
        self.get(key).map(Some)
    }

    /// How looks at rows were served.
    fn reads(&self) -> Reads {
        Reads::default()
    }

    /// This row will be read soon: if it is on the disk only, it is fetched meanwhile.
    fn prefetch(&self, _key: &[u8]) {}

    /// Calls `f` with the rows from `start` (inclusive) to `end` (exclusive) in order of keys,
    /// until it breaks.
    fn scan(&self, start: &[u8], end: &[u8], f: &mut OnRow<'_>) -> Result<(), TableError>;

    /// Waits as long as a write would wait before it begins. For who holds a lock that others want
    /// while it writes.
    fn make_room(&self) {}

    /// Writes rows, whose keys must ascend strictly. On return they are readable and durable. When
    /// it fails or power does, all of them are, or none is; after an error none can be read until
    /// the table is opened again. Takes the rows one by one: they need not fit in memory.
    fn write(&self, rows: &mut dyn Iterator<Item = RowWrite>) -> Result<(), TableError>;
}

/// The hash that rows are found by. A constant of the format of embedded tables.
pub(crate) fn hash_of(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// A table failed. What it holds on disk is still what it held before.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TableError {
    #[error("table: {0}")]
    Damaged(String),
    #[error("table: another process has {0} open")]
    InUse(String),
    #[error("table: a key of over {KEY_BYTES_MAX} bytes, or a value of 4 GiB or more")]
    TooLong,
    #[error("table: {0}")]
    Io(#[from] io::Error),
}
