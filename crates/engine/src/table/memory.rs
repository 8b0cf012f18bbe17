//! Rows in a BTreeMap, for simulation.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{OnRow, RowChange, Table, TableError};

const SCAN_PIECE_ROWS: usize = 64;

/// A table in memory that knows which of its rows are durable.
#[derive(Default)]
pub struct MemoryTable {
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    rows: BTreeMap<Bytes, Bytes>,
    persisted: BTreeMap<Bytes, Bytes>,
    /// Written since the last persist, in order.
    pending: Vec<RowChange>,
}

impl MemoryTable {
    /// An empty table.
    pub fn new() -> MemoryTable {
        MemoryTable::default()
    }

    /// The table after power was lost now: what was persisted, and of what was written since, by
    /// `seed`, a first part (even seeds) or any part. This one stays as it is.
    #[must_use]
    pub fn crash(&self, seed: u64) -> MemoryTable {
        let state = self.state();
        let mut rows = state.persisted.clone();
        let mut rng = saker_runtime::rand::Rng::seeded(seed);
        let prefix = rng.below(state.pending.len() as u64 + 1) as usize;
        for (at, change) in state.pending.iter().enumerate() {
            if if seed.is_multiple_of(2) { at < prefix } else { rng.chance(1, 2) } {
                apply(&mut rows, change.clone());
            }
        }
        let state = State { rows: rows.clone(), persisted: rows, pending: Vec::new() };
        MemoryTable { state: Mutex::new(state) }
    }

    /// The next rows of a scan; `None` if there are no more.
    fn piece(&self, from: &Bound<Bytes>, end: &[u8]) -> Option<Vec<(Bytes, Bytes)>> {
        let state = self.state();
        let (Bound::Included(start) | Bound::Excluded(start)) = from else {
            return None;
        };
        if &start[..] >= end {
            return None;
        }
        let range = (from.as_ref().map(|key| &key[..]), Bound::Excluded(end));
        let rows = state.rows.range::<[u8], _>(range).take(SCAN_PIECE_ROWS);
        let rows: Vec<_> = rows.map(|(key, value)| (key.clone(), value.clone())).collect();
        (!rows.is_empty()).then_some(rows)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn apply(rows: &mut BTreeMap<Bytes, Bytes>, (key, value): RowChange) {
    match value {
        Some(value) => rows.insert(key, value),
        None => rows.remove(&key),
    };
}

impl Table for MemoryTable {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        Ok(self.state().rows.get(key).cloned())
    }

    fn scan(&self, start: &[u8], end: &[u8], f: &mut OnRow<'_>) -> Result<(), TableError> {
        let mut from = Bound::Included(Bytes::copy_from_slice(start));
        // Piece by piece: `f` may read this table, so the lock must not be held.
        while let Some(rows) = self.piece(&from, end) {
            for (key, value) in &rows {
                if f(key, value).is_break() {
                    return Ok(());
                }
            }
            from = rows.into_iter().last().map_or(from, |(key, _)| Bound::Excluded(key));
        }
        Ok(())
    }

    fn write(&self, rows: &mut dyn Iterator<Item = RowChange>) -> Result<(), TableError> {
        for change in rows {
            // Not locked over all of them: the iterator is not ours.
            let mut state = self.state();
            apply(&mut state.rows, change.clone());
            state.pending.push(change);
        }
        Ok(())
    }

    fn persist(&self) -> Result<(), TableError> {
        let state = &mut *self.state();
        for change in state.pending.drain(..) {
            apply(&mut state.persisted, change);
        }
        Ok(())
    }
}
