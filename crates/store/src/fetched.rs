//! Which chunks clients have fetched from the disk by themselves. The page cache is left to what is
//! wanted more than once: a scan of all data goes past it (as the ghost list of 2Q, VLDB 1994).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::index::ChunkKey;

/// Places remembered, at most: 256 KiB of memory.
const PLACES: usize = 1 << 16;

/// The places fetched of late, by what is left of a hash: a stranger is taken for one once in two billion
/// times, and that only brings data to the page cache for nothing.
pub struct Fetched(Box<[AtomicU32]>);

impl Default for Fetched {
    fn default() -> Fetched {
        Fetched((0..PLACES).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Fetched {
    /// Somebody fetches a chunk from this byte on. Whether somebody did before, not long ago.
    pub fn again(&self, (id, index): ChunkKey, start: u32) -> bool {
        let mix = |hash: u64, word: u64| {
            (hash.rotate_left(32) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let hash = [id, index, u64::from(start)].into_iter().fold(1, mix);
        // The upper bits are the good ones; 0 is nobody's.
        let (place, rest) = ((hash >> 48) as usize % PLACES, (hash >> 16) as u32 | 1);
        self.0[place].swap(rest, Ordering::Relaxed) == rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_fetched_is_known_until_much_else_was() {
        let fetched = Fetched::default();
        assert!(!fetched.again((7, 0), 0));
        assert!(fetched.again((7, 0), 0) && fetched.again((7, 0), 0));
        assert!(
            !fetched.again((7, 1), 0) && !fetched.again((7, 0), 4096) && !fetched.again((8, 0), 0)
        );
        let known = (100..10_100).filter(|id| fetched.again((*id, 0), 0)).count();
        assert_eq!(known, 0, "strangers");
        let known = (100..10_100).filter(|id| fetched.again((*id, 0), 0)).count();
        assert!(known > 8_000, "{known}");
        (20_000..2_000_000).for_each(|id| _ = fetched.again((id, 0), 0));
        assert!(!fetched.again((7, 0), 0));
    }
}
