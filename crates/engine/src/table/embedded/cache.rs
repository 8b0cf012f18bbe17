//! Blocks of runs in the memory of the process: a look at a row that is there takes no system call.
//!
//! A run is never changed, so a block is right as long as it is kept, and nothing has to be said when
//! a run goes: its blocks are not looked at any more. What comes into a full cache takes the place of
//! what was not looked at for longest (second chance, with a count). A block comes in when it is looked at
//! again, soon after it was: what passes by once pushes nothing out (2Q, VLDB 1994).

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use saker_runtime::fs::File;

/// Bytes of a block. The kernel has a page of as many, so that what is read of it is in memory as a whole.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Rows in more blocks than that are not looked for here.
const ROW_BLOCKS_MAX: u64 = 2;
/// Looks that a block may have to its credit.
const CREDIT_MAX: u8 = 3;
/// Blocks that are remembered after they were looked at once, for each block that there is room for.
const SEEN_BLOCKS: usize = 4;

/// A run, and the number of a block in it.
type Key = (u32, u32);

/// The blocks of a table.
pub(super) struct BlockCache {
    blocks_max: usize,
    runs: AtomicU32,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    by_key: HashMap<Key, u32, FxBuildHasher>,
    all: Vec<Kept>,
    /// Which of them is judged next.
    hand: usize,
    /// Marks of keys that were looked at once; none before the first.
    seen: Box<[u32]>,
    /// Looks that have found their row here, and that have not.
    found: u64,
    missed: u64,
}

struct Kept {
    key: Key,
    credit: u8,
    data: Box<[u8; BLOCK_BYTES]>,
}

impl BlockCache {
    /// For at most so many bytes, and a tenth of that for what finds them.
    pub(super) fn new(bytes_max: usize) -> Arc<BlockCache> {
        Arc::new(BlockCache {
            blocks_max: bytes_max / BLOCK_BYTES,
            runs: AtomicU32::new(0),
            blocks: Mutex::default(),
        })
    }

    /// Looks that have found their row here so far, and that have not.
    pub(super) fn counts(&self) -> (u64, u64) {
        let blocks = self.lock();
        (blocks.found, blocks.missed)
    }

    /// The cache as a run uses it that was not there before.
    pub(super) fn of_new_run(self: &Arc<BlockCache>) -> RunBlocks {
        RunBlocks { run: self.runs.fetch_add(1, Ordering::Relaxed), cache: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The blocks of one run.
pub(super) struct RunBlocks {
    cache: Arc<BlockCache>,
    run: u32,
}

impl RunBlocks {
    /// The blocks that a range touches, if such a range is looked for here.
    fn keys(&self, offset: u64, len: usize) -> Option<impl Iterator<Item = Key>> {
        let first = offset / BLOCK_BYTES as u64;
        let end = (offset + len as u64).div_ceil(BLOCK_BYTES as u64);
        let few = end - first <= ROW_BLOCKS_MAX && self.cache.blocks_max >= ROW_BLOCKS_MAX as usize;
        let run = self.run;
        (few && end <= u64::from(u32::MAX)).then(|| (first..end).map(move |no| (run, no as u32)))
    }

    /// Whether all of a range is here.
    pub(super) fn has(&self, offset: u64, len: usize) -> bool {
        let Some(mut keys) = self.keys(offset, len) else { return false };
        let blocks = self.cache.lock();
        keys.all(|key| blocks.by_key.contains_key(&key))
    }

    /// Fills `buf` with what is at `offset`, if all of it is here.
    pub(super) fn copy(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Some(keys) = self.keys(offset, buf.len()) else { return false };
        let mut blocks = self.cache.lock();
        let (mut done, mut from) = (0, (offset % BLOCK_BYTES as u64) as usize);
        for key in keys {
            let Some(kept) = blocks.get(key) else {
                blocks.missed += 1;
                return false;
            };
            let len = (BLOCK_BYTES - from).min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&kept.data[from..from + len]);
            (done, from) = (done + len, 0);
        }
        blocks.found += 1;
        true
    }

    /// A range was just read from the file. Those of its blocks that were looked at before are kept, if they can be had
    /// without waiting.
    ///
    /// # Errors
    /// [`File::read_cached`]'s.
    pub(super) fn was_read(&self, file: &dyn File, offset: u64, len: usize) -> io::Result<()> {
        let Some(keys) = self.keys(offset, len) else { return Ok(()) };
        for key in keys {
            if !self.cache.lock().again(key, self.cache.blocks_max) {
                continue;
            }
            let mut data = [0; BLOCK_BYTES];
            // The last block of a file is not whole: it has no rows.
            if let Some(BLOCK_BYTES) =
                file.read_cached(u64::from(key.1) * BLOCK_BYTES as u64, &mut data)?
            {
                self.cache.lock().keep(key, &data, self.cache.blocks_max);
            }
        }
        Ok(())
    }
}

impl Blocks {
    /// A block, which gets credit.
    fn get(&mut self, key: Key) -> Option<&Kept> {
        let kept = &mut self.all[*self.by_key.get(&key)? as usize];
        kept.credit = (kept.credit + 1).min(CREDIT_MAX);
        Some(kept)
    }

    /// A block that is not here was looked at. Whether it was before, not long ago.
    fn again(&mut self, (run, no): Key, blocks_max: usize) -> bool {
        if self.by_key.contains_key(&(run, no)) {
            return false;
        }
        if self.seen.is_empty() {
            self.seen = vec![0; (blocks_max * SEEN_BLOCKS).next_power_of_two()].into();
        }
        let hash = (u64::from(run) << 32 | u64::from(no)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Never 0, which is nobody's.
        let mark = hash as u32 | 1;
        let at = (hash >> 32) as usize & (self.seen.len() - 1);
        std::mem::replace(&mut self.seen[at], mark) == mark
    }

    /// Keeps a block, in place of another if need be.
    fn keep(&mut self, key: Key, data: &[u8; BLOCK_BYTES], blocks_max: usize) {
        if self.by_key.contains_key(&key) {
            // Another thread has read it, too.
            return;
        }
        let at = if self.all.len() < blocks_max {
            self.all.push(Kept { key, credit: 0, data: Box::new(*data) });
            self.all.len() - 1
        } else {
            let at = self.victim();
            let kept = &mut self.all[at];
            self.by_key.remove(&kept.key);
            (kept.key, kept.credit) = (key, 0);
            kept.data.copy_from_slice(data);
            at
        };
        self.by_key.insert(key, at as u32);
    }

    /// The next that has no credit left. Each that is passed by loses one.
    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.all.len();
            match &mut self.all[at].credit {
                0 => return at,
                credit => *credit -= 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::{Dir, MemDir};

    use super::*;

    const FILE_BLOCKS: u64 = 100;

    /// A file whose bytes are the numbers of their blocks.
    fn file() -> Arc<dyn File> {
        let file = MemDir::new().create("run").unwrap();
        for no in 0..FILE_BLOCKS {
            file.write_at(no * BLOCK_BYTES as u64, &[no as u8; BLOCK_BYTES]).unwrap();
        }
        file
    }

    /// Looks at a row; whether that was here.
    fn look(blocks: &RunBlocks, file: &dyn File, offset: u64, len: usize) -> bool {
        let mut buf = vec![0; len];
        let here = blocks.copy(offset, &mut buf);
        if here {
            let wanted = (offset..).map(|at| (at / BLOCK_BYTES as u64) as u8);
            assert!(buf.iter().copied().eq(wanted.take(len)));
        } else {
            blocks.was_read(file, offset, len).unwrap();
        }
        here
    }

    #[test]
    fn what_is_looked_at_twice_is_kept() {
        let (file, cache) = (file(), BlockCache::new(8 * BLOCK_BYTES));
        let run = cache.of_new_run();
        assert!(!look(&run, &*file, 100, 50) && !look(&run, &*file, 200, 50));
        assert!(look(&run, &*file, 300, 50) && run.has(0, BLOCK_BYTES));
        assert!(!run.has(0, BLOCK_BYTES + 1));
        // Across two blocks, of which one is here.
        assert!(!look(&run, &*file, 4000, 200) && !look(&run, &*file, 4000, 200));
        assert!(look(&run, &*file, 4000, 200));
        // Another run has other blocks.
        assert!(!look(&cache.of_new_run(), &*file, 300, 50));
        // What is longer than two blocks is not looked for.
        assert!((0..5).all(|_| !look(&run, &*file, 0, 2 * BLOCK_BYTES + 1)));
        assert_eq!(cache.counts(), (2, 5));
        assert!(cache.lock().all.len() == 2);
    }

    #[test]
    fn a_scan_pushes_nothing_out() {
        let (file, cache) = (file(), BlockCache::new(8 * BLOCK_BYTES));
        let run = cache.of_new_run();
        let block = |no: u64| no * BLOCK_BYTES as u64;
        for no in 0..8 {
            (0..2).for_each(|_| _ = look(&run, &*file, block(no), 100));
        }
        for no in 8..FILE_BLOCKS {
            assert!(!look(&run, &*file, block(no), 100));
        }
        assert!((0..8).all(|no| look(&run, &*file, block(no), 100)));
        // What is looked at often stays when others come in.
        (0..2).for_each(|_| _ = look(&run, &*file, block(0), 100));
        for no in 8..16 {
            (0..2).for_each(|_| _ = look(&run, &*file, block(no), 100));
            assert!(look(&run, &*file, block(0), 100), "block {no}");
        }
        assert_eq!(cache.lock().all.len(), 8);
        assert_eq!(cache.lock().by_key.len(), 8);
    }

    #[test]
    fn there_may_be_none() {
        let (file, cache) = (file(), BlockCache::new(0));
        let run = cache.of_new_run();
        assert!((0..3).all(|_| !look(&run, &*file, 0, 100)) && !run.has(0, 1));
        assert_eq!(cache.lock().all.len(), 0);
    }
}
