//! A table one of whose rows cannot be read for a while.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use saker_engine::table::{OnRow, RowWrite, Table, TableError};

/// The key of the row that cannot be read, if there is one.
pub type Unreadable = Arc<Mutex<Option<Bytes>>>;

/// A table, behind a bad place of its disk.
pub struct BadPlace {
    /// What it holds.
    pub inner: Arc<dyn Table>,
    /// Where it is bad.
    pub unreadable: Unreadable,
}

impl Table for BadPlace {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        let bad = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if bad.as_deref() == Some(key) {
            return Err(TableError::Io(std::io::ErrorKind::InvalidData.into()));
        }
        self.inner.get(key)
    }

    fn scan(&self, start: &[u8], end: &[u8], f: &mut OnRow<'_>) -> Result<(), TableError> {
        self.inner.scan(start, end, f)
    }

    fn write(&self, rows: &mut dyn Iterator<Item = RowWrite>) -> Result<(), TableError> {
        self.inner.write(rows)
    }
}
