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
    /// How many of them belong to operations that may be answered before they are durable.
    delayable: usize,
    /// Something was changed that others rely on: the record is flushed at once.
    must_flush: bool,
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
        self.must_flush |= !is_delayable(&what);
        self.changes.push(Change { what: Some(what) });
    }

    /// Others rely on what is changed.
    pub(crate) fn must_flush(&mut self) {
        self.must_flush = true;
    }

    /// How many changes there are.
    pub(crate) fn len(&self) -> usize {
        self.changes.len()
    }

    /// The changes since there were so many belong to an operation that may be answered before they are
    /// durable.
    pub(crate) fn may_delay_since(&mut self, len: usize) {
        self.delayable += self.changes.len() - len;
    }

    /// Need the record of all these changes not be flushed at once?
    pub(crate) fn may_delay(&self) -> bool {
        !self.must_flush && self.delayable > 0 && self.delayable == self.changes.len()
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
        (self.delayable, self.must_flush) = (0, false);
        self.written_bytes += std::mem::take(&mut self.bytes);
        true
    }
}

/// Rows, and what was answered, go together. Of anything else others may know: ids that are reserved
/// must not be given out again, and what was voted or decided must stay so.
fn is_delayable(what: &What) -> bool {
    matches!(what, What::Put(_) | What::Delete(_) | What::Result(_) | What::Inodes(_))
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

    #[test]
    fn a_record_is_delayed_only_with_all_of_its_changes() {
        let mut batch = Batch::default();
        let mut add = |delayable: &[What], others: &[What]| {
            let len = batch.len();
            delayable.iter().for_each(|what| batch.add(what.clone()));
            batch.may_delay_since(len);
            others.iter().for_each(|what| batch.add(what.clone()));
            let may_delay = batch.may_delay();
            batch.write(|_| {});
            may_delay
        };
        assert!(!add(&[], &[]));
        assert!(add(&[put(1), What::Inodes(1)], &[]));
        assert!(!add(&[put(1)], &[put(2)]));
        assert!(!add(&[put(1), What::IdsReserved(7)], &[]));
        assert!(add(&[put(1)], &[]), "of the record before nothing counts");
    }
}
