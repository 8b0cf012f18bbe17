//! Changes in memory: found by key at once, and walked in order of keys.
//!
//! Most reads are of one row, and most of those find nothing here. In an ordered tree of some
//! hundred thousand rows that costs a dozen cache misses, in a hash table one or two; so the tree
//! holds the order only, and a row that changes again does not touch it.

use std::collections::{BTreeSet, HashMap, btree_set};
use std::iter::{Flatten, Peekable};
use std::ops::Bound;
use std::vec;

use bytes::Bytes;

/// What a row costs besides its bytes: its parts of the table and of the tree, two allocations.
const ROW_OVERHEAD_BYTES: usize = 176;

/// How many rows of a discarded overlay each change frees. All at once would stop the shard for
/// tens of milliseconds.
const FREED_PER_CHANGE: usize = 4;

/// Tables that the rows are spread over: one that grows moves all of its rows at once, which with
/// all rows in it would stop the shard for tens of milliseconds.
const PARTS: usize = 64;

type Part = HashMap<Bytes, Option<Bytes>>;

/// Rows by key.
#[derive(Clone)]
struct Rows(Vec<Part>);

impl Rows {
    fn part(key: &[u8]) -> usize {
        let hash = key.iter().fold(0u32, |hash, &b| hash.wrapping_mul(31).wrapping_add(b.into()));
        hash as usize % PARTS
    }

    fn get(&self, key: &[u8]) -> Option<(&Bytes, &Option<Bytes>)> {
        self.0[Rows::part(key)].get_key_value(key)
    }

    fn insert(&mut self, key: Bytes, value: Option<Bytes>) -> Option<Option<Bytes>> {
        self.0[Rows::part(&key)].insert(key, value)
    }
}

impl Default for Rows {
    fn default() -> Rows {
        Rows((0..PARTS).map(|_| Part::new()).collect())
    }
}

/// Rows that were put, or deleted (`None`).
#[derive(Clone, Default)]
pub(super) struct Overlay {
    rows: Rows,
    order: BTreeSet<Bytes>,
    bytes: usize,
}

impl Overlay {
    /// An empty one with room for as many rows as `other` has, which then need not be moved.
    pub(super) fn like(other: &Overlay) -> Overlay {
        let parts = other.rows.0.iter().map(|part| Part::with_capacity(part.len())).collect();
        Overlay { rows: Rows(parts), ..Overlay::default() }
    }

    /// What became of a row; `None`: nothing is known of it here.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        self.rows.get(key).map(|(_, value)| value)
    }

    pub(super) fn insert(&mut self, key: Bytes, value: Option<Bytes>) {
        let value_bytes = bytes_of(&value);
        match self.rows.insert(key.clone(), value) {
            Some(replaced) => self.bytes = self.bytes + value_bytes - bytes_of(&replaced),
            None => {
                self.bytes += ROW_OVERHEAD_BYTES + key.len() + value_bytes;
                self.order.insert(key);
            }
        }
    }

    /// Takes over what a newer one has.
    pub(super) fn update(&mut self, newer: Overlay) {
        newer.rows.0.into_iter().flatten().for_each(|(key, value)| self.insert(key, value));
    }

    /// Memory, in bytes (an estimate).
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All rows in order of keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Option<Bytes>)> {
        self.order.iter().filter_map(|key| self.rows.get(key))
    }

    /// The rows from `start` (inclusive) to `end` (exclusive) in order of keys.
    pub(super) fn range<'a>(&'a self, start: &[u8], end: &[u8]) -> Range<'a> {
        let keys = (Bound::Included(start), Bound::Excluded(end));
        Range { rows: &self.rows, keys: self.order.range::<[u8], _>(keys).peekable() }
    }
}

fn bytes_of(value: &Option<Bytes>) -> usize {
    value.as_ref().map_or(0, Bytes::len)
}

/// Rows in order of keys.
pub(super) struct Range<'a> {
    rows: &'a Rows,
    keys: Peekable<btree_set::Range<'a, Bytes>>,
}

impl<'a> Range<'a> {
    fn peek(&mut self) -> Option<&'a Bytes> {
        self.keys.peek().copied()
    }
}

impl<'a> Iterator for Range<'a> {
    type Item = (&'a Bytes, &'a Option<Bytes>);

    fn next(&mut self) -> Option<Self::Item> {
        let rows = self.rows;
        self.keys.next().and_then(|key| rows.get(key))
    }
}

/// Changes of two overlays in order of keys, the newer one's where both have one.
pub(super) struct Merged<'a> {
    pub(super) newer: Range<'a>,
    pub(super) older: Option<Range<'a>>,
}

impl<'a> Iterator for Merged<'a> {
    type Item = (&'a Bytes, &'a Option<Bytes>);

    fn next(&mut self) -> Option<Self::Item> {
        let Some(older) = &mut self.older else {
            return self.newer.next();
        };
        let (Some(newer_key), Some(older_key)) = (self.newer.peek(), older.peek()) else {
            return self.newer.next().or_else(|| older.next());
        };
        if older_key < newer_key {
            return older.next();
        }
        if older_key == newer_key {
            older.next();
        }
        self.newer.next()
    }
}

/// Rows that nobody needs any more, freed bit by bit.
#[derive(Default)]
pub(super) struct Discarded {
    rows: Option<Flatten<vec::IntoIter<Part>>>,
    order: btree_set::IntoIter<Bytes>,
}

impl Discarded {
    pub(super) fn new(overlay: Overlay) -> Discarded {
        let rows = overlay.rows.0.into_iter().flatten();
        Discarded { rows: Some(rows), order: overlay.order.into_iter() }
    }

    /// Frees a few.
    pub(super) fn free_some(&mut self) {
        let Some(rows) = &mut self.rows else { return };
        for _ in 0..FREED_PER_CHANGE {
            if (rows.next(), self.order.next()) == (None, None) {
                self.rows = None;
                return;
            }
        }
    }
}
