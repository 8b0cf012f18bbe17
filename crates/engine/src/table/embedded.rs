//! Rows in fjall, an LSM tree.
//!
//! Rows reach it only in checkpoints, sorted, so they are ingested: written straight into sorted
//! files that are synced, and become visible, all at once. No write buffer, no second log. The
//! engine's own keys, a few bytes per checkpoint, go the ordinary way, into a keyspace of their
//! own: else each would be a sorted file.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use fjall::config::{
    BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, PinningPolicy,
};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use saker_runtime::time::sleep;

use super::{OnRow, RESERVED, RowChange, Table, TableError};

/// More sorted files than this that compaction has not taken yet, and a checkpoint waits for it:
/// every absent key costs a filter of each.
const L0_FILES_MAX: usize = 16;
const STALL_STEP: Duration = Duration::from_millis(5);
/// Then it goes on: compaction that is stuck has an error to report, and `write` will get it.
const STALL_STEPS_MAX: u32 = 12_000;

/// Memory and threads of an [`EmbeddedTable`].
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// Bytes of blocks (data, index and filter) kept in memory.
    pub cache_bytes: u64,
    /// Threads that compact.
    pub worker_threads: usize,
    /// Files kept open.
    pub open_files_max: usize,
}

impl Default for EmbeddedConfig {
    fn default() -> EmbeddedConfig {
        EmbeddedConfig { cache_bytes: 64 << 20, worker_threads: 1, open_files_max: 200 }
    }
}

/// A table in a directory of its own. A second process that opens it is refused.
pub struct EmbeddedTable {
    db: Database,
    rows: Keyspace,
    reserved: Keyspace,
}

impl EmbeddedTable {
    /// Opens the table in `path`, making it if it is missing.
    ///
    /// # Errors
    /// fjall's: I/O, a newer or foreign format, a lock held by another process.
    pub fn open(
        path: impl AsRef<Path>,
        config: &EmbeddedConfig,
    ) -> Result<EmbeddedTable, TableError> {
        let db = Database::builder(path)
            .cache_size(config.cache_bytes)
            .worker_threads(config.worker_threads.max(1))
            .max_cached_files(Some(config.open_files_max.max(10)))
            .manual_journal_persist(true)
            .open()?;
        let rows = db.keyspace("rows", row_options)?;
        let reserved = db.keyspace("reserved", || {
            KeyspaceCreateOptions::default().manual_journal_persist(true).max_memtable_size(1 << 20)
        })?;
        Ok(EmbeddedTable { db, rows, reserved })
    }

    /// Bytes of rows on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.rows.disk_space()
    }

    fn keyspace(&self, key: &[u8]) -> &Keyspace {
        if key.first() == Some(&RESERVED) { &self.reserved } else { &self.rows }
    }

    fn wait_for_compaction(&self) {
        for _ in 0..STALL_STEPS_MAX {
            if self.rows.l0_table_count() <= L0_FILES_MAX {
                return;
            }
            sleep(STALL_STEP);
        }
        tracing::warn!(files = self.rows.l0_table_count(), "compaction does not keep up");
    }
}

fn row_options() -> KeyspaceCreateOptions {
    let bloom = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
    KeyspaceCreateOptions::default()
        .manual_journal_persist(true)
        // At every level: creating a file asks for a row that is absent.
        .expect_point_read_hits(false)
        .filter_policy(FilterPolicy::all(bloom))
        // On the deep levels in parts that the cache holds or drops one by one: whole, a miss
        // would read a megabyte. On the upper two, a few MB in all, whole is 20% faster.
        .filter_block_partitioning_policy(PinningPolicy::new([false, false, true]))
        .index_block_partitioning_policy(PinningPolicy::new([false, false, true]))
        // Not compressed: LZ4 costs a read that misses the cache 1 us of 3.
        .data_block_compression_policy(CompressionPolicy::disabled())
}

impl Table for EmbeddedTable {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        let value = self.keyspace(key).get(key)?;
        // Copied: a slice would keep its whole block in memory.
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, start: &[u8], end: &[u8], f: &mut OnRow<'_>) -> Result<(), TableError> {
        if start >= end {
            return Ok(());
        }
        for row in self.rows.range(start..end) {
            let (key, value) = row.into_inner()?;
            if f(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, rows: &mut dyn Iterator<Item = RowChange>) -> Result<(), TableError> {
        self.wait_for_compaction();
        let mut ingestion = None;
        for (key, value) in rows {
            if key.first() == Some(&RESERVED) {
                match value {
                    Some(value) => self.reserved.insert(&key[..], &value[..])?,
                    None => self.reserved.remove(&key[..])?,
                }
                continue;
            }
            let into = match &mut ingestion {
                Some(into) => into,
                None => ingestion.insert(self.rows.start_ingestion()?),
            };
            match value {
                Some(value) => into.write(&key[..], &value[..])?,
                None => into.write_tombstone(&key[..])?,
            }
        }
        ingestion.map_or(Ok(()), |ingestion| Ok(ingestion.finish()?))
    }

    fn persist(&self) -> Result<(), TableError> {
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }
}
