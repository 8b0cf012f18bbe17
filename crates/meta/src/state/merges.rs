//! What a shard has for merges of subtrees, besides the staged rows: of which holds there are some, and
//! where others wait (docs/decisions/0063).

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use saker_types::InodeId;
use saker_types::limits::MERGE_DIRS_MAX;

/// Directories at which others may wait, of all merges under way.
const CLOSED_MAX: usize = 16 * MERGE_DIRS_MAX;

/// A hold of a subtree: its policy and epoch.
pub(crate) type HeldIn = (u64, u64);

/// Merges of subtrees.
#[derive(Default)]
pub(crate) struct Merges {
    /// Holds of which something is staged here, and in which attempt, as far as is known.
    staged: BTreeMap<HeldIn, u32>,
    /// Directories of merges that may be under way, by policy: who comes to one waits until the
    /// coordinator tells the policy's state.
    closed: FxHashMap<InodeId, u64>,
    /// Holds of which a task is putting or dropping the rows.
    worked_on: BTreeSet<HeldIn>,
}

impl Merges {
    /// Rows of this attempt are staged. False: there are some of a later one.
    pub(crate) fn stage(&mut self, held: HeldIn, attempt: u32) -> bool {
        let last = self.staged.entry(held).or_default();
        *last = attempt.max(*last);
        *last == attempt
    }

    /// None are left.
    pub(crate) fn none_left(&mut self, held: HeldIn) {
        self.staged.remove(&held);
    }

    /// Holds under this policy, other than in epoch `but`, of which something is staged.
    pub(crate) fn over(&self, policy: u64, but: u64) -> Vec<HeldIn> {
        let all = self.staged.range((policy, 0)..=(policy, u64::MAX)).map(|(held, _)| *held);
        all.filter(|(_, epoch)| *epoch != but).collect()
    }

    /// Must the policy's state be asked for, although no request waits for it?
    pub(crate) fn concern(&self, policy: u64) -> bool {
        !self.over(policy, 0).is_empty() || self.closed.values().any(|of| *of == policy)
    }

    /// Who comes to these directories waits. False: there are too many.
    pub(crate) fn close(&mut self, policy: u64, dirs: &[InodeId]) -> bool {
        if self.closed.len() + dirs.len() > CLOSED_MAX {
            return false;
        }
        self.closed.extend(dirs.iter().map(|dir| (*dir, policy)));
        true
    }

    /// No merge is under way: nobody waits any more.
    pub(crate) fn open(&mut self, policy: u64) {
        self.closed.retain(|_, of| *of != policy);
    }

    /// Is any directory closed?
    pub(crate) fn is_any_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// The policy whose merge makes others wait at this directory.
    pub(crate) fn closed_by(&self, dir: InodeId) -> Option<u64> {
        if self.closed.is_empty() { None } else { self.closed.get(&dir).copied() }
    }

    /// A task begins to put or drop rows; false: there is one.
    pub(crate) fn begin_work(&mut self, held: HeldIn) -> bool {
        self.worked_on.insert(held)
    }

    /// It has ended.
    pub(crate) fn end_work(&mut self, held: HeldIn) {
        self.worked_on.remove(&held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_attempt_counts() {
        let mut merges = Merges::default();
        assert!(merges.stage((7, 1), 2) && merges.stage((7, 1), 2));
        assert!(!merges.stage((7, 1), 1));
        assert!(merges.stage((7, 1), 3) && merges.stage((7, 2), 1) && merges.stage((8, 1), 1));
        assert_eq!(merges.over(7, 1), [(7, 2)]);
        assert_eq!(merges.over(7, 0), [(7, 1), (7, 2)]);
        merges.none_left((7, 1));
        assert_eq!(merges.over(7, 0), [(7, 2)]);
        assert!(merges.concern(7) && merges.concern(8) && !merges.concern(9));
    }

    #[test]
    fn directories_are_closed_by_policy() {
        let mut merges = Merges::default();
        assert!(merges.close(7, &[1, 2]) && merges.close(8, &[3]) && merges.is_any_closed());
        assert_eq!((merges.closed_by(2), merges.closed_by(3)), (Some(7), Some(8)));
        assert!(merges.concern(7));
        merges.open(7);
        assert_eq!((merges.closed_by(2), merges.closed_by(3)), (None, Some(8)));
        assert!(!merges.concern(7));
        let many: Vec<InodeId> = (0..CLOSED_MAX as u64).collect();
        assert!(!merges.close(9, &many) && merges.closed_by(9).is_none());
    }

    #[test]
    fn one_works_at_a_time() {
        let mut merges = Merges::default();
        assert!(merges.begin_work((7, 1)) && !merges.begin_work((7, 1)));
        merges.end_work((7, 1));
        assert!(merges.begin_work((7, 1)));
    }
}
