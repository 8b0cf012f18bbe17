//! Changes in memory: found by key at once, and walked in order of keys.
//!
//! Most reads are of one row, and most of those find nothing here: a hash table says so with one or
//! two cache misses. The order is needed by checkpoints and by listings only, so it is not kept in
//! a tree but in sorted runs, and rows that came last are not sorted at all until there are enough.

use std::iter::{Flatten, Peekable};
use std::{slice, vec};

use bytes::{Bytes, BytesMut};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use itertools::{Itertools, KMerge, Merge};

use crate::table::{RESERVED, hash_of};

/// What a row costs besides its bytes: its parts of the table and of the order.
const ROW_OVERHEAD_BYTES: usize = 160;

/// The key of a row and its first value, if that is short, lie side by side with those of others in
/// blocks of this size: memory of its own for each would be a cache miss when it is taken and one
/// when it is given back. A block goes with the last of its rows.
const BLOCK_BYTES: usize = 256 << 10;

/// Longer values stay where they came.
const SHORT_BYTES_MAX: usize = 1 << 10;

/// Keys in the smallest run.
const RUN_KEYS: usize = 1024;

/// So many runs of one length become one, up to a length that takes some milliseconds to merge.
const RUNS_MERGED: usize = 4;
const RUN_KEYS_MAX: usize = RUN_KEYS * 64;

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

    fn entry(&mut self, key: &[u8], hash: u64) -> Entry<'_, Row> {
        self.0[Rows::part(hash)].entry(hash, |row| row.key == key, |row| row.hash)
    }
}

impl Default for Rows {
    fn default() -> Rows {
        Rows((0..PARTS).map(|_| Part::new()).collect())
    }
}

/// Memory of many rows.
#[derive(Clone, Default)]
struct Block(BytesMut);

impl Block {
    /// A copy that lives as long as it is needed, and its block with it.
    fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if self.0.capacity() < bytes.len() {
            self.0 = BytesMut::with_capacity(BLOCK_BYTES.max(bytes.len()));
        }
        self.0.extend_from_slice(bytes);
        self.0.split().freeze()
    }
}

/// A key in the order. It is compared by its first 16 bytes first, which lie in the run itself:
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

/// Keys in order, each once.
#[derive(Clone, Default)]
struct Order {
    /// Of [`RUN_KEYS`] keys times a power of [`RUNS_MERGED`] each, up to [`RUN_KEYS_MAX`]; the
    /// longest first.
    runs: Vec<Vec<OrderedKey>>,
    /// Fewer than [`RUN_KEYS`], as they came.
    recent: Vec<OrderedKey>,
}

impl Order {
    /// Adds a key that is not there.
    fn push(&mut self, key: Bytes) {
        self.recent.push(OrderedKey::new(key));
        if self.recent.len() < RUN_KEYS {
            return;
        }
        let mut run = std::mem::replace(&mut self.recent, Vec::with_capacity(RUN_KEYS));
        loop {
            // Where it is made of sorted runs, that is a merge.
            run.sort();
            let of_this_length = self.runs.iter().rev().take_while(|r| r.len() == run.len());
            let merged = of_this_length.count() + 1;
            if merged < RUNS_MERGED || run.len() >= RUN_KEYS_MAX {
                break self.runs.push(run);
            }
            let mut all = Vec::with_capacity(merged * run.len());
            all.extend(self.runs.drain(self.runs.len() + 1 - merged..).flatten());
            all.append(&mut run);
            run = all;
        }
    }

    /// The keys from `start` (inclusive) to `end` (exclusive).
    fn range(&self, start: &[u8], end: &[u8]) -> Keys<'_> {
        let bound = |key: &[u8]| OrderedKey::new(Bytes::copy_from_slice(key));
        let (start, end) = (bound(start), bound(end));
        let sorted = self.runs.iter().map(|run| {
            let from = run.partition_point(|key| *key < start);
            let len = run[from..].partition_point(|key| *key < end);
            &run[from..from + len]
        });
        let recent = self.recent.iter().filter(|key| (&start..&end).contains(key)).sorted();
        sorted.kmerge().merge(recent)
    }
}

/// Some keys of an [`Order`].
type Keys<'a> = Merge<KMerge<slice::Iter<'a, OrderedKey>>, vec::IntoIter<&'a OrderedKey>>;

/// Rows that were put, or deleted (`None`).
#[derive(Clone, Default)]
pub(super) struct Overlay {
    rows: Rows,
    order: Order,
    block: Block,
    bytes: usize,
}

impl Overlay {
    /// An empty one with room for as many rows as `other` has, which then need not be moved.
    pub(super) fn like(other: &Overlay) -> Overlay {
        let parts = other.rows.0.iter().map(|part| Part::with_capacity(part.len())).collect();
        Overlay { rows: Rows(parts), ..Overlay::default() }
    }

    /// What became of a row; `None`: nothing is known of it here. `hash` is the key's.
    pub(super) fn get(&self, key: &[u8], hash: u64) -> Option<Option<Bytes>> {
        self.rows.get(key, hash).map(|row| row.value.as_ref().map(own))
    }

    pub(super) fn insert(&mut self, key: &[u8], value: Option<&Bytes>) {
        let hash = hash_of(key);
        self.bytes += value.map_or(0, Bytes::len);
        match self.rows.entry(key, hash) {
            Entry::Occupied(mut row) => {
                // Rows that change often do not fill blocks.
                let replaced = std::mem::replace(&mut row.get_mut().value, value.map(own));
                // What lies in a block stays there.
                let freed = replaced.filter(|old| old.len() > SHORT_BYTES_MAX || old.is_unique());
                self.bytes -= freed.map_or(0, |old| old.len());
            }
            Entry::Vacant(row) => {
                self.bytes += ROW_OVERHEAD_BYTES + key.len();
                let key = self.block.copy(key);
                let value = value.map(|value| match value.len() {
                    ..=SHORT_BYTES_MAX => self.block.copy(value),
                    _ => value.clone(),
                });
                self.order.push(key.clone());
                row.insert(Row { hash, key, value });
            }
        }
    }

    /// Takes over what a newer one has.
    pub(super) fn update(&mut self, newer: &Overlay) {
        for row in newer.rows.0.iter().flatten() {
            self.insert(&row.key, row.value.as_ref());
        }
    }

    /// Memory, in bytes (an estimate).
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All rows in order of keys.
    pub(super) fn iter(&self) -> Range<'_> {
        self.range(&[], &[RESERVED])
    }

    /// The rows from `start` (inclusive) to `end` (exclusive) in order of keys.
    pub(super) fn range(&self, start: &[u8], end: &[u8]) -> Range<'_> {
        Range { overlay: self, keys: self.order.range(start, end).peekable() }
    }

    fn change(&self, key: &OrderedKey) -> Option<Change<'_>> {
        let row = self.rows.get(&key.key, hash_of(&key.key))?;
        Some((&row.key, &row.value))
    }
}

/// A value apart from the block that it may lie in, which is kept whole by each part of it.
fn own(value: &Bytes) -> Bytes {
    match value.len() {
        ..=SHORT_BYTES_MAX => Bytes::copy_from_slice(value),
        _ => value.clone(),
    }
}

/// A key, and the value that was put or `None`.
type Change<'a> = (&'a Bytes, &'a Option<Bytes>);

/// Rows in order of keys.
pub(super) struct Range<'a> {
    overlay: &'a Overlay,
    keys: Peekable<Keys<'a>>,
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

/// Rows that nobody needs any more, dropped bit by bit; their blocks go with the last ones.
#[derive(Default)]
pub(super) struct Discarded(Option<(Parts<Part>, Parts<Vec<OrderedKey>>)>);

type Parts<T> = Flatten<vec::IntoIter<T>>;

impl Discarded {
    pub(super) fn new(overlay: Overlay) -> Discarded {
        let Overlay { rows, mut order, .. } = overlay;
        order.runs.push(order.recent);
        Discarded(Some((rows.0.into_iter().flatten(), order.runs.into_iter().flatten())))
    }

    /// Drops a few.
    pub(super) fn free_some(&mut self) {
        let Some((rows, keys)) = &mut self.0 else { return };
        for _ in 0..FREED_PER_CHANGE {
            if rows.next().is_none() & keys.next().is_none() {
                self.0 = None;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use saker_runtime::rand::Rng;

    use super::*;

    type Model = BTreeMap<Vec<u8>, Option<Bytes>>;

    /// Some begin with others, and some differ by zeros at their end.
    fn key(rng: &mut Rng) -> Vec<u8> {
        let len = 10 + rng.below(12);
        (0..len).map(|n| if n < 4 { b'k' } else { [0, 1, b'k'][rng.below(3) as usize] }).collect()
    }

    fn owned(rows: Range<'_>) -> Vec<(Vec<u8>, Option<Bytes>)> {
        rows.map(|(key, value)| (key.to_vec(), value.clone())).collect()
    }

    #[test]
    fn rows_are_in_order_whatever_the_runs() {
        let (mut overlay, mut model, mut rng) = (Overlay::default(), Model::new(), Rng::seeded(3));
        let longest = RUN_KEYS * RUNS_MERGED * RUNS_MERGED;
        while model.len() < longest + RUN_KEYS * 9 / 2 {
            let key = key(&mut rng);
            let value = rng.chance(3, 4).then(|| {
                let long = if rng.chance(1, 100) { SHORT_BYTES_MAX } else { 0 };
                vec![rng.below(256) as u8; rng.below(40) as usize + long].into()
            });
            overlay.insert(&key, value.as_ref());
            model.insert(key, value);
        }
        let runs: Vec<_> = overlay.order.runs.iter().map(Vec::len).collect();
        assert_eq!(runs, [longest, RUN_KEYS * RUNS_MERGED]);
        assert_eq!(overlay.order.recent.len(), RUN_KEYS / 2);
        assert!(owned(overlay.iter()).into_iter().eq(model.clone()));
        for _ in 0..100 {
            let (start, end) = (key(&mut rng), key(&mut rng));
            let inside = model.iter().filter(|(key, _)| (&start..&end).contains(key));
            assert!(owned(overlay.range(&start, &end)).iter().map(|(k, v)| (k, v)).eq(inside));
            assert_eq!(overlay.get(&start, hash_of(&start)), model.get(&start).cloned());
        }
    }

    #[test]
    fn what_is_read_keeps_no_block() {
        let mut overlay = Overlay::default();
        overlay.insert(b"key", Some(&Bytes::from_static(b"value")));
        let value = overlay.get(b"key", hash_of(b"key")).flatten();
        assert!(value.is_some_and(|value| value == "value" && value.is_unique()));
    }
}
