//! A slot's facts as a stream of changes: listed on the shard that has them, put on the one that is
//! to have them, counted where they are owned, dropped where they are not (decision 54).
//!
//! What a slot has: entries, attribute rows whose home it is, gone records, locks, what is staged for
//! any of its rows, and results of mutations that were routed by it. Totals of directories stay with their shards; what goes is the
//! slot's share in the numbers of entries.
//!
//! ```text
//! there                                               here
//! frozen; export_slot until the end                   import_slot each piece
//! the new map, and give_up_slot: one step             the new map, and adopt_slot: one step
//! drop_slot until the end
//! ```

mod export;
mod import;
mod shares;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use saker_engine::Engine;
use saker_types::change::{
    Change, parse_entry_key, parse_slot_key, parse_staged_key, slot_key, table,
};
use saker_types::placement::Slot;
use saker_types::wire::Row;
use saker_types::{Errno, Error};

use crate::shard::Shard;

/// About the most bytes of one piece.
const PIECE_BYTES: usize = 256 << 10;
/// Rows that are looked at for one piece: a slot's entries lie scattered among those of all.
const LOOKED_AT_MAX: usize = 8_192;

/// How far a slot has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// Rows up to this key.
    Rows(Bytes),
    /// All rows, and results up to this session and number.
    Results(u64, u64),
}

impl Cursor {
    /// At the beginning.
    pub fn start() -> Cursor {
        Cursor::Rows(Bytes::new())
    }
}

/// A part of a slot's facts.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotPart {
    /// In the format of a journal: rows to put, results.
    pub changes: Vec<Change>,
    /// Where to go on; `None`: that was all.
    pub next: Option<Cursor>,
}

impl Shard {
    /// Refuses while a row of the slot is locked: whoever has it locked comes back to it here. A
    /// slot that is frozen comes to rest.
    fn must_rest(&self, slot: Slot) -> Result<(), Error> {
        if self.merges.is_any_closed() {
            // What is staged goes with the slot, but not while the coordinator waits for it here.
            return Err(Error::of_class(saker_types::Class::Retry, Errno::EBUSY)
                .with_text("a merge is under way"));
        }
        match self.row_locks.rows().any(|key| self.is_of(slot, key)) {
            true => Err(Error::of_class(saker_types::Class::Retry, Errno::EBUSY)
                .with_text(format!("a row of slot {} is locked", slot.0))),
            false => Ok(()),
        }
    }

    /// Does the row with this key go with the slot?
    fn is_of(&self, slot: Slot, key: &[u8]) -> bool {
        match key.first() {
            Some(&table::STAGED) => {
                parse_staged_key(key).is_some_and(|(_, _, of)| self.is_of(slot, of))
            }
            Some(&table::ENTRY) => {
                parse_entry_key(key).is_some_and(|key| self.map.slot_of(key.pid, &key.name) == slot)
            }
            _ => parse_slot_key(key).is_some_and(|(of, _)| of == slot),
        }
    }

    /// Some of a slot's rows behind a key, and the key that has been looked at last, if there is
    /// more.
    fn rows_of_slot(&self, slot: Slot, after: &[u8]) -> Result<(Vec<Row>, Option<Bytes>), Error> {
        let (mut rows, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
        let mut last: Option<Bytes> = None;
        let mut is_full = false;
        for (start, end) in ranges(slot) {
            let start = if after < &start[..] { start } else { [after, &[0]].concat() };
            let scanned = self.engine.scan(&start, &end, |key, value| {
                is_full = bytes >= PIECE_BYTES || looked_at >= LOOKED_AT_MAX;
                if is_full {
                    return ControlFlow::Break(());
                }
                looked_at += 1;
                last = Some(Bytes::copy_from_slice(key));
                if self.is_of(slot, key) {
                    bytes += key.len() + value.len();
                    let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                    rows.push(Row { key, value });
                }
                ControlFlow::Continue(())
            });
            scanned
                .map_err(|e| Error::new(Errno::EIO).with_text(format!("slot {}: {e}", slot.0)))?;
            if is_full {
                return Ok((rows, last));
            }
        }
        Ok((rows, None))
    }
}

/// The value of a row.
fn decoded<M: Message + Default>(row: &Row) -> Result<M, Error> {
    let bad =
        |e: prost::DecodeError| Error::new(Errno::EIO).with_text(format!("{:?}: {e}", row.key));
    M::decode(row.value.clone()).map_err(bad)
}

/// The keys among which a slot's rows are, in order.
fn ranges(slot: Slot) -> [(Vec<u8>, Vec<u8>); 5] {
    let of_slot = |table| (slot_key(table, slot, 0).to_vec(), end_of(table, slot));
    [
        of_slot(table::ATTR),
        of_slot(table::GONE),
        (vec![table::ENTRY], vec![table::ENTRY + 1]),
        of_slot(table::LOCKS),
        (vec![table::STAGED], vec![table::STAGED + 1]),
    ]
}

/// Behind all keys of a slot in a table.
fn end_of(table: u8, slot: Slot) -> Vec<u8> {
    match slot.0.checked_add(1) {
        Some(next) => slot_key(table, Slot(next), 0).to_vec(),
        None => vec![table + 1],
    }
}
