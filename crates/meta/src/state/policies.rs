//! What a shard knows of policies, and what it is asking the coordinator about them.

use rustc_hash::FxHashMap;
use saker_types::wire::PolicyState;

/// Policies whose state a shard keeps. With more, it forgets all of them.
const STATES_MAX: usize = 65_536;

/// States of policies.
#[derive(Default)]
pub(crate) struct PolicyStates {
    known: FxHashMap<u64, PolicyState>,
    /// Those that a task asks about, and whether the answer to its question will be valid: not if an
    /// invalidation has come since.
    asking: FxHashMap<u64, bool>,
}

impl PolicyStates {
    /// What is known of one.
    pub(crate) fn get(&self, policy: u64) -> Option<PolicyState> {
        self.known.get(&policy).copied()
    }

    /// It is about to change.
    pub(crate) fn invalidate(&mut self, policy: u64) {
        self.known.remove(&policy);
        if let Some(is_valid) = self.asking.get_mut(&policy) {
            *is_valid = false;
        }
    }

    /// The coordinator says this of one.
    pub(crate) fn learn(&mut self, policy: u64, state: PolicyState) {
        if self.known.len() >= STATES_MAX {
            self.known.clear();
        }
        self.known.insert(policy, state);
    }

    /// A task begins to ask; false: there is one.
    pub(crate) fn begin_asking(&mut self, policy: u64) -> bool {
        self.asking.insert(policy, false).is_none()
    }

    /// A question is sent.
    pub(crate) fn ask(&mut self, policy: u64) {
        self.asking.insert(policy, true);
    }

    /// The answer is there. False: an invalidation has overtaken it, so that it says nothing (rule 2).
    pub(crate) fn is_still_asked(&self, policy: u64) -> bool {
        self.asking.get(&policy).copied().unwrap_or_default()
    }

    /// The task has ended.
    pub(crate) fn end_asking(&mut self, policy: u64) {
        self.asking.remove(&policy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_an_invalidation_has_overtaken_says_nothing() {
        let mut states = PolicyStates::default();
        assert!(states.begin_asking(7) && !states.begin_asking(7));
        states.ask(7);
        states.invalidate(7);
        assert!(!states.is_still_asked(7));
        states.ask(7);
        assert!(states.is_still_asked(7));
        states.learn(7, PolicyState { hold: 3, ..PolicyState::default() });
        states.end_asking(7);
        assert_eq!(states.get(7).unwrap().hold, 3);
        states.invalidate(7);
        assert!(states.get(7).is_none() && states.begin_asking(7));
    }
}
