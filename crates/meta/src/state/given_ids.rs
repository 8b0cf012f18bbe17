//! Ids that a private shard was given for the inodes that it makes. Which are left is in its rows: a
//! block is taken out of them before its ids are given out, and what is left of it is lost with a crash.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use saker_types::InodeId;
use saker_types::wire::IdRange;

/// Ids that are taken at once.
const BLOCK: u64 = 1 << 10;

/// Ranges, and the block that is given out of.
#[derive(Default)]
pub(crate) struct GivenIds {
    ranges: VecDeque<IdRange>,
    block: Range<InodeId>,
    left: Arc<AtomicU64>,
}

/// What has become of a range: its row goes, and there is one for the rest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The first id of the range.
    pub(crate) from: InodeId,
    /// What is left of it.
    pub(crate) rest: Option<IdRange>,
}

impl GivenIds {
    /// Another range, whose ids nobody else gives out.
    pub(crate) fn add(&mut self, range: IdRange) {
        self.ranges.push_back(range);
        self.left.fetch_add(range.count, Ordering::Relaxed);
    }

    /// One that was not given out; `None`: there is none.
    pub(crate) fn take(&mut self) -> Option<InodeId> {
        let id = self.block.next()?;
        self.left.fetch_sub(1, Ordering::Relaxed);
        Some(id)
    }

    /// Is the block used up?
    pub(crate) fn needs_block(&self) -> bool {
        self.block.is_empty()
    }

    /// Takes a block; `None`: there is nothing left. The rows must hear of it.
    pub(crate) fn next_block(&mut self) -> Option<Taken> {
        let IdRange { first, count } = self.ranges.pop_front()?;
        let taken = count.min(BLOCK);
        self.block = first..first + taken;
        let rest = IdRange { first: first + taken, count: count - taken };
        let rest = (rest.count > 0).then_some(rest);
        rest.into_iter().for_each(|rest| self.ranges.push_front(rest));
        Some(Taken { from: first, rest })
    }

    /// Those that are left are not given out; the ranges that had them.
    pub(crate) fn forget(&mut self) -> Vec<IdRange> {
        self.block = 0..0;
        self.left.store(0, Ordering::Relaxed);
        self.ranges.drain(..).collect()
    }

    /// How many are left, for whoever sees to it that there are enough.
    pub(crate) fn left(&self) -> Arc<AtomicU64> {
        self.left.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_given_out_once() {
        let mut ids = GivenIds::default();
        assert!(ids.needs_block() && ids.next_block().is_none() && ids.take().is_none());
        ids.add(IdRange { first: 100, count: BLOCK + 2 });
        ids.add(IdRange { first: 7, count: 1 });
        let rest = Some(IdRange { first: 100 + BLOCK, count: 2 });
        assert_eq!(ids.next_block(), Some(Taken { from: 100, rest }));
        let mut all: Vec<InodeId> = std::iter::from_fn(|| ids.take()).collect();
        assert_eq!(ids.left().load(Ordering::Relaxed), 3);
        assert_eq!(ids.next_block(), Some(Taken { from: 100 + BLOCK, rest: None }));
        all.extend(std::iter::from_fn(|| ids.take()));
        assert_eq!(ids.next_block(), Some(Taken { from: 7, rest: None }));
        all.extend(std::iter::from_fn(|| ids.take()));
        let expected: Vec<InodeId> = (100..102 + BLOCK).chain([7]).collect();
        assert!(all == expected && ids.needs_block() && ids.next_block().is_none());
        assert_eq!(ids.left().load(Ordering::Relaxed), 0);
        ids.add(IdRange { first: 7_000, count: BLOCK + 5 });
        ids.next_block();
        assert!(ids.take().is_some());
        assert_eq!(ids.forget(), [IdRange { first: 7_000 + BLOCK, count: 5 }]);
        assert!(ids.take().is_none() && ids.left().load(Ordering::Relaxed) == 0);
    }
}
