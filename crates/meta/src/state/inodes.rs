//! The decoded inodes that a shard keeps.

use std::hash::BuildHasher;
use std::rc::Rc;

use bytes::Bytes;
use quick_cache::unsync::Cache;
use quick_cache::{OptionsBuilder, UnitWeighter};
use rustc_hash::FxBuildHasher;
use saker_types::Inode;

/// Part of the cache for what was found in it more than once. The rest need not be small: what comes there was
/// looked at before.
const HOT: f64 = 0.5;
/// Bits for each inode that may be kept: few of those that are set at a time are then of two keys.
const MARKS_PER_INODE: usize = 16;

/// Inodes by the keys of their rows, at most so many.
///
/// A scan of millions of files looks at each once: were all of them kept for a while, each would
/// push out another, in memory that is cold by then. So when there is no room, what is looked at takes
/// another's place only if it was looked at before, not long ago.
pub(crate) struct InodeCache {
    kept: Cache<Bytes, Rc<Inode>, UnitWeighter, FxBuildHasher>,
    bound: usize,
    /// A bit for each hash, in this period and the last: an inode with it was looked at, and not kept.
    marks: Vec<[u64; 2]>,
    /// How many are set in this period. It ends when there are as many as inodes may be kept.
    marked: usize,
}

impl InodeCache {
    /// None yet.
    pub(crate) fn new(bound: usize) -> InodeCache {
        let options = OptionsBuilder::new()
            .estimated_items_capacity(bound)
            .weight_capacity(bound as u64)
            .hot_allocation(HOT)
            .build();
        // Refused is one without a capacity.
        #[allow(clippy::unwrap_used)]
        let options = options.unwrap();
        let marks = (bound * MARKS_PER_INODE).next_power_of_two().max(64);
        InodeCache {
            kept: Cache::with_options(options, UnitWeighter, FxBuildHasher, Default::default()),
            bound,
            marks: vec![[0; 2]; marks / 64],
            marked: 0,
        }
    }

    /// The inode of this row, if it is kept.
    pub(crate) fn get(&self, key: &Bytes) -> Option<Rc<Inode>> {
        self.kept.get(key).cloned()
    }

    /// Is it kept?
    pub(crate) fn has(&self, key: &Bytes) -> bool {
        self.kept.peek(key).is_some()
    }

    /// One that was looked at, and had to be decoded.
    pub(crate) fn looked_at(&mut self, key: &Bytes, inode: &Rc<Inode>) {
        if self.has_room() || self.was_marked(key) {
            self.kept.insert(key.clone(), inode.clone());
        }
    }

    /// One that was written: who writes has looked at it.
    pub(crate) fn put(&mut self, key: Bytes, inode: Inode) {
        if self.has_room() || self.has(&key) {
            self.kept.insert(key, Rc::new(inode));
        }
    }

    /// The row is gone.
    pub(crate) fn remove(&mut self, key: &Bytes) {
        self.kept.remove(key);
    }

    fn has_room(&self) -> bool {
        self.kept.len() < self.bound
    }

    /// Was it marked? It is now.
    fn was_marked(&mut self, key: &Bytes) -> bool {
        let bit = FxBuildHasher.hash_one(key) as usize % (self.marks.len() * 64);
        let (word, mask) = (bit / 64, 1 << (bit % 64));
        let [late, before] = self.marks[word];
        if (late | before) & mask != 0 {
            return true;
        }
        if self.marked >= self.bound {
            self.marks.iter_mut().for_each(|[late, before]| *before = std::mem::take(late));
            self.marked = 0;
        }
        self.marks[word][0] |= mask;
        self.marked += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Bytes {
        n.to_string().into()
    }

    /// Looks at some of them, one after the other; how many were found.
    fn look(inodes: &mut InodeCache, which: std::ops::Range<usize>) -> usize {
        let mut found = 0;
        for n in which {
            match inodes.get(&key(n)) {
                Some(_) => found += 1,
                None => inodes.looked_at(&key(n), &Rc::default()),
            }
        }
        found
    }

    #[test]
    fn while_there_is_room_all_are_kept() {
        let mut inodes = InodeCache::new(100);
        assert_eq!(look(&mut inodes, 0..100), 0);
        assert_eq!(look(&mut inodes, 0..100), 100);
    }

    #[test]
    fn who_looks_at_all_once_pushes_out_hardly_any() {
        let mut inodes = InodeCache::new(1000);
        look(&mut inodes, 0..1000);
        look(&mut inodes, 1000..20_000);
        let left = (0..1000).filter(|n| inodes.has(&key(*n))).count();
        // Two keys may have one mark; 19,000 were looked at.
        assert!(left > 200, "{left} are left");
    }

    #[test]
    fn what_is_looked_at_twice_is_kept() {
        let mut inodes = InodeCache::new(1000);
        look(&mut inodes, 0..5000);
        for _ in 0..2 {
            look(&mut inodes, 5000..5400);
        }
        assert_eq!(look(&mut inodes, 5000..5400), 400);
    }

    #[test]
    fn what_is_written_is_the_newest_or_not_kept() {
        let mut inodes = InodeCache::new(10);
        look(&mut inodes, 0..10);
        let kept = (0..10).find(|n| inodes.has(&key(*n))).unwrap();
        let newer = Inode { policy: 7, ..Inode::default() };
        inodes.put(key(kept), newer.clone());
        inodes.put(key(11), newer.clone());
        assert_eq!(*inodes.get(&key(kept)).unwrap(), newer);
        assert!(!inodes.has(&key(11)), "there was no room");
        inodes.remove(&key(kept));
        assert!(!inodes.has(&key(kept)));
        inodes.put(key(11), newer);
        assert!(inodes.has(&key(11)));
    }
}
