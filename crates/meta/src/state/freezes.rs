//! Directories whose new changes are held back for a moment, so that a collection of their totals that
//! ends within it is current (rule 20).

use std::collections::BTreeMap;

use saker_runtime::time::Time;
use saker_types::InodeId;

/// Which, and until when.
#[derive(Default)]
pub(crate) struct Freezes(BTreeMap<InodeId, Time>);

impl Freezes {
    /// Holds changes of a directory back; another collector may count on a freeze that lasts longer.
    pub(crate) fn freeze(&mut self, dir: InodeId, until: Time) {
        let end = self.0.entry(dir).or_insert(until);
        *end = until.max(*end);
    }

    /// Are they held back?
    pub(crate) fn has(&self, dir: InodeId) -> bool {
        !self.0.is_empty() && self.0.contains_key(&dir)
    }

    /// Those whose time is over.
    pub(crate) fn take_over(&mut self, now: Time) -> Vec<InodeId> {
        self.0.extract_if(.., |_, until| *until <= now).map(|(dir, _)| dir).collect()
    }

    /// When the first is over.
    pub(crate) fn next(&self) -> Option<Time> {
        self.0.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_longer_freeze_counts() {
        let at = |ms| Time::default() + Duration::from_millis(ms);
        let mut freezes = Freezes::default();
        assert!(!freezes.has(1) && freezes.next().is_none());
        freezes.freeze(1, at(20));
        freezes.freeze(1, at(10));
        freezes.freeze(2, at(15));
        assert_eq!(freezes.next(), Some(at(15)));
        assert_eq!(freezes.take_over(at(15)), [2]);
        assert!(freezes.has(1) && !freezes.has(2));
        assert_eq!(freezes.take_over(at(20)), [1]);
        assert!(!freezes.has(1));
    }
}
