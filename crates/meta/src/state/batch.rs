//! The changes of a batch, which become one record of the journal: all of them or none.

use saker_engine::snapshot::weight;
use saker_types::change::{Change, Record, What};

/// Changes of one step go to the next journal record after this many bytes. Those of one request
/// stay together.
const RECORD_BYTES: usize = 4 << 20;
/// A step ends, and others follow, when it has changed this many bytes.
const STEP_BYTES_MAX: usize = 8 << 20;

/// What is to be written.
#[derive(Default)]
pub(crate) struct Batch {
    changes: Vec<Change>,
    /// Of these changes.
    bytes: usize,
    /// Of the records that this step has written before.
    written_bytes: usize,
}

impl Batch {
    /// A step begins.
    pub(crate) fn begin_step(&mut self) {
        self.written_bytes = 0;
    }

    /// One more change.
    pub(crate) fn add(&mut self, what: What) {
        self.bytes += weight(&what);
        self.changes.push(Change { what: Some(what) });
    }

    /// Are they enough for a record?
    pub(crate) fn is_record_full(&self) -> bool {
        self.bytes >= RECORD_BYTES
    }

    /// Must the rest wait for the next step?
    pub(crate) fn is_step_full(&self) -> bool {
        self.written_bytes + self.bytes >= STEP_BYTES_MAX
    }

    /// Writes the changes as a record, if there are any.
    pub(crate) fn write(&mut self, write: impl FnOnce(&Record)) -> bool {
        if self.changes.is_empty() {
            return false;
        }
        let mut record = Record { changes: std::mem::take(&mut self.changes) };
        write(&record);
        record.changes.clear();
        // For its memory.
        self.changes = record.changes;
        self.written_bytes += std::mem::take(&mut self.bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use saker_types::wire::Row;

    fn put(bytes: usize) -> What {
        let row = Row { key: Bytes::from_static(b"key"), value: vec![1; bytes].into() };
        What::Put(row)
    }

    #[test]
    fn records_and_steps_are_bounded() {
        let mut batch = Batch::default();
        batch.begin_step();
        assert!(!batch.write(|_| panic!("there is nothing")));
        batch.add(put(RECORD_BYTES / 2));
        assert!(!batch.is_record_full());
        batch.add(put(RECORD_BYTES / 2));
        assert!(batch.is_record_full() && !batch.is_step_full());
        assert!(batch.write(|record| assert_eq!(record.changes.len(), 2)));
        assert!(!batch.is_record_full());
        batch.add(put(STEP_BYTES_MAX - RECORD_BYTES));
        assert!(batch.is_step_full());
        assert!(batch.write(|record| assert_eq!(record.changes.len(), 1)));
        assert!(batch.is_step_full(), "what was written counts");
        batch.begin_step();
        assert!(!batch.is_step_full());
    }
}
