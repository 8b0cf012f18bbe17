//! What clients have recently fetched from the disk by themselves, past the page cache.

use std::sync::atomic::{AtomicU64, Ordering};

use super::index::ChunkKey;

/// Fetches that are remembered, at most; 8 bytes each.
const FETCHES_MAX: usize = 1 << 16;

/// Tells what is wanted once from what is wanted again, as the ghost list of 2Q does (VLDB 1994).
pub struct Fetches(Box<[AtomicU64]>);

impl Default for Fetches {
    fn default() -> Fetches {
        Fetches((0..FETCHES_MAX).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Fetches {
    /// Whether somebody has fetched a chunk from this byte on, not long ago.
    pub fn has(&self, key: ChunkKey, start: u32) -> bool {
        let (cell, hash) = self.cell(key, start);
        cell.load(Ordering::Relaxed) == hash
    }

    /// Somebody does.
    pub fn add(&self, key: ChunkKey, start: u32) {
        let (cell, hash) = self.cell(key, start);
        cell.store(hash, Ordering::Relaxed);
    }

    fn cell(&self, (id, index): ChunkKey, start: u32) -> (&AtomicU64, u64) {
        // Never 0, which is nobody's.
        let hash = mix(mix(mix(1, id), index), u64::from(start)) | 1;
        (&self.0[(hash >> 48) as usize % FETCHES_MAX], hash)
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(32) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_fetched_is_known_until_much_else_was() {
        let fetches = Fetches::default();
        assert!(!fetches.has((7, 0), 0));
        fetches.add((7, 0), 0);
        assert!(fetches.has((7, 0), 0) && fetches.has((7, 0), 0));
        assert!(!fetches.has((7, 1), 0) && !fetches.has((7, 0), 4096) && !fetches.has((8, 0), 0));
        let known = || (100..10_100).filter(|id| fetches.has((*id, 0), 0)).count();
        assert_eq!(known(), 0, "strangers");
        (100..10_100).for_each(|id| fetches.add((id, 0), 0));
        assert!(known() > 8_000, "{}", known());
        (20_000..2_000_000).for_each(|id| fetches.add((id, 0), 0));
        assert!(!fetches.has((7, 0), 0));
    }
}
