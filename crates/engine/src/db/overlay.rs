//! Changes in memory: found by key at once, and walked in order of keys.
//!
//! Most reads are of one row, and most of those find nothing here. In an ordered tree of some
//! hundred thousand rows that costs a dozen cache misses, in a hash table one or two; so the tree
//! holds the order only, and a row that changes again does not touch it.

use std::collections::{BTreeSet, btree_set};
use std::iter::{Flatten, Peekable};
use std::vec;

use bytes::Bytes;
use hashbrown::HashTable;

use crate::table::hash_of;

/// What a row costs besides its bytes: its parts of the table and of the tree, two allocations.
const ROW_OVERHEAD_BYTES: usize = 208;

/// How many rows of a discarded overlay each change frees. All at once would stop the shard for
/// tens of milliseconds.
const FREED_PER_CHANGE: usize = 4;

/// Tables that the rows are spread over: one that grows moves all of its rows at once, which with
/// all rows in it would stop the shard for tens of milliseconds.
const PARTS: usize = 64;

/// A row that was put, or deleted (`None`).
#[derive(Clone)]
struct Row {
    hash: u64,
    key: Bytes,
    value: Option<Bytes>,
}

type Part = HashTable<Row>;

/// Rows by key.
#[derive(Clone)]
struct Rows(Vec<Part>);

impl Rows {
    /// Of the bits of the hash, some that the part itself does not look at first.
    fn part(hash: u64) -> usize {
        (hash >> 32) as usize % PARTS
    }

    fn get(&self, key: &[u8], hash: u64) -> Option<&Row> {
        self.0[Rows::part(hash)].find(hash, |row| row.key == key)
    }

    /// What it replaces; `None`: the row was not there.
    fn insert(&mut self, key: Bytes, value: Option<Bytes>) -> Option<Option<Bytes>> {
        let hash = hash_of(&key);
        let part = &mut self.0[Rows::part(hash)];
        match part.find_mut(hash, |row| row.key == key) {
            Some(row) => Some(std::mem::replace(&mut row.value, value)),
            None => {
                part.insert_unique(hash, Row { hash, key, value }, |row| row.hash);
                None
            }
        }
    }
}

impl Default for Rows {
    fn default() -> Rows {
        Rows((0..PARTS).map(|_| Part::new()).collect())
    }
}

/// A key in the tree. It is compared by its first 16 bytes first, which lie in the tree itself:
/// those of most keys differ, and the rest is a cache miss away.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OrderedKey {
    start: u128,
    key: Bytes,
}

impl OrderedKey {
    fn new(key: Bytes) -> OrderedKey {
        // Where the key ends zeros follow, which are less than, or as, whatever another has there.
        let mut start = [0; 16];
        let len = key.len().min(start.len());
        start[..len].copy_from_slice(&key[..len]);
        OrderedKey { start: u128::from_be_bytes(start), key }
    }
}

/// Rows that were put, or deleted (`None`).
#[derive(Clone, Default)]
pub(super) struct Overlay {
    rows: Rows,
    order: BTreeSet<OrderedKey>,
    bytes: usize,
}

impl Overlay {
    /// An empty one with room for as many rows as `other` has, which then need not be moved.
    pub(super) fn like(other: &Overlay) -> Overlay {
        let parts = other.rows.0.iter().map(|part| Part::with_capacity(part.len())).collect();
        Overlay { rows: Rows(parts), ..Overlay::default() }
    }

    /// What became of a row; `None`: nothing is known of it here. `hash` is the key's.
    pub(super) fn get(&self, key: &[u8], hash: u64) -> Option<&Option<Bytes>> {
        self.rows.get(key, hash).map(|row| &row.value)
    }

    pub(super) fn insert(&mut self, key: Bytes, value: Option<Bytes>) {
        let value_bytes = bytes_of(&value);
        match self.rows.insert(key.clone(), value) {
            Some(replaced) => self.bytes = self.bytes + value_bytes - bytes_of(&replaced),
            None => {
                self.bytes += ROW_OVERHEAD_BYTES + key.len() + value_bytes;
                self.order.insert(OrderedKey::new(key));
            }
        }
    }

    /// Takes over what a newer one has.
    pub(super) fn update(&mut self, newer: Overlay) {
        newer.rows.0.into_iter().flatten().for_each(|row| self.insert(row.key, row.value));
    }

    /// Memory, in bytes (an estimate).
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All rows in order of keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = Change<'_>> {
        self.order.iter().filter_map(|key| self.change(key))
    }

    /// The rows from `start` (inclusive) to `end` (exclusive) in order of keys.
    pub(super) fn range<'a>(&'a self, start: &[u8], end: &[u8]) -> Range<'a> {
        let bound = |key: &[u8]| OrderedKey::new(Bytes::copy_from_slice(key));
        let keys = self.order.range(bound(start)..bound(end)).peekable();
        Range { overlay: self, keys }
    }

    fn change(&self, key: &OrderedKey) -> Option<Change<'_>> {
        let row = self.rows.get(&key.key, hash_of(&key.key))?;
        Some((&row.key, &row.value))
    }
}

/// A key, and the value that was put or `None`.
type Change<'a> = (&'a Bytes, &'a Option<Bytes>);

fn bytes_of(value: &Option<Bytes>) -> usize {
    value.as_ref().map_or(0, Bytes::len)
}

/// Rows in order of keys.
pub(super) struct Range<'a> {
    overlay: &'a Overlay,
    keys: Peekable<btree_set::Range<'a, OrderedKey>>,
}

impl<'a> Range<'a> {
    fn peek(&mut self) -> Option<&'a Bytes> {
        self.keys.peek().map(|key| &key.key)
    }
}

impl<'a> Iterator for Range<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let overlay = self.overlay;
        self.keys.next().and_then(|key| overlay.change(key))
    }
}

/// Changes of two overlays in order of keys, the newer one's where both have one.
pub(super) struct Merged<'a> {
    pub(super) newer: Range<'a>,
    pub(super) older: Option<Range<'a>>,
}

impl<'a> Iterator for Merged<'a> {
    type Item = Change<'a>;

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
    order: btree_set::IntoIter<OrderedKey>,
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
            if rows.next().is_none() & self.order.next().is_none() {
                self.rows = None;
                return;
            }
        }
    }
}
