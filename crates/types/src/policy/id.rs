//! Numbers of policies, as directories' rows and locators have them.

use super::{Consistency, Durability, Interfere, Policy};

/// The number of a policy: drawn anew each time that one is set on a directory, and never reused. Its
/// lower 8 bits say what servers and clients must know of it before they know anything else: bits 0
/// and 1 the consistency, 2 and 3 the durability, 4 whether others are blocked. 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId(pub u64);

/// Bits that say what a policy is like.
const LIKE_BITS: u32 = 8;
const BLOCKS: u64 = 1 << 4;

impl PolicyId {
    /// No policy: strong and global.
    pub const NONE: PolicyId = PolicyId(0);
    /// What is below is a frozen dataset.
    pub const FROZEN: PolicyId = PolicyId(u64::MAX);

    /// A policy with this number, from 1 to 2^56 - 2.
    pub fn new(number: u64, policy: &Policy) -> PolicyId {
        debug_assert!((1..(1 << (64 - LIKE_BITS)) - 1).contains(&number));
        let blocks = if policy.interfere == Interfere::Block { BLOCKS } else { 0 };
        let like = policy.consistency() as u64 | (policy.durability() as u64) << 2 | blocks;
        PolicyId(number << LIKE_BITS | like)
    }

    /// Is there one?
    pub fn is_some(self) -> bool {
        self != PolicyId::NONE
    }

    /// When others see an operation.
    pub fn consistency(self) -> Consistency {
        match (self, self.0 & 3) {
            (PolicyId::NONE | PolicyId::FROZEN, _) => Consistency::Strong,
            (_, 0) => Consistency::Invisible,
            (_, 1) => Consistency::Weak,
            _ => Consistency::Strong,
        }
    }

    /// What outlives which crash.
    pub fn durability(self) -> Durability {
        match (self, self.0 >> 2 & 3) {
            (PolicyId::NONE | PolicyId::FROZEN, _) => Durability::Global,
            (_, 0) => Durability::None,
            (_, 1) => Durability::Local,
            _ => Durability::Global,
        }
    }

    /// Does the client that holds the subtree answer by itself?
    pub fn is_decoupled(self) -> bool {
        self.consistency() != Consistency::Strong
    }

    /// May an operation be answered before it is durable? Every other client sees it at once, and it
    /// survives the death of any process, but a loss of power may take it.
    pub fn may_delay_flush(self) -> bool {
        (self.consistency(), self.durability()) == (Consistency::Strong, Durability::None)
    }

    /// May what was answered here not be durable yet? Then fsync(2) must ask for it: of whoever has answered,
    /// which in a decoupled subtree is the client that holds it.
    pub fn is_durable_on_demand(self) -> bool {
        self.may_delay_flush() || self.is_decoupled() && self.durability() != Durability::None
    }

    /// Are other clients kept out while one holds the subtree?
    pub fn blocks(self) -> bool {
        self != PolicyId::FROZEN && self.0 & BLOCKS != 0
    }

    /// Must a client hold the subtree to change something in it?
    pub fn needs_hold(self) -> bool {
        self.is_decoupled() || self.blocks()
    }

    /// May a name move to where this other one is in force, or be linked there (rule 9)? Both must
    /// promise the same. Between decoupled subtrees nothing moves.
    pub fn lets_move_to(self, other: PolicyId) -> bool {
        let promises = |id: PolicyId| (id.consistency(), id.durability());
        self == other || !self.is_decoupled() && promises(self) == promises(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_the_policy_is_like() {
        for consistency in Consistency::ALL {
            for durability in Durability::ALL {
                for interfere in [Interfere::Allow, Interfere::Block] {
                    let policy = Policy { interfere, ..Policy::cell(consistency, durability) };
                    let id = PolicyId::new(77, &policy);
                    assert_eq!((id.consistency(), id.durability()), (consistency, durability));
                    assert_eq!(id.blocks(), interfere == Interfere::Block);
                    assert_eq!(id.is_decoupled(), policy.is_decoupled());
                    let is_strong_none = !policy.is_decoupled() && durability == Durability::None;
                    assert_eq!(id.may_delay_flush(), is_strong_none);
                    let on_demand = match policy.is_decoupled() {
                        true => durability != Durability::None,
                        false => is_strong_none,
                    };
                    assert_eq!(id.is_durable_on_demand(), on_demand);
                    let same = PolicyId::new(5, &policy);
                    assert!(id.is_some() && id.lets_move_to(id));
                    assert_eq!(id.lets_move_to(same), !policy.is_decoupled());
                    let is_default =
                        (consistency, durability) == (Consistency::Strong, Durability::Global);
                    assert_eq!(id.lets_move_to(PolicyId::NONE), is_default);
                }
            }
        }
        for none in [PolicyId::NONE, PolicyId::FROZEN] {
            assert!(!none.needs_hold() && !none.may_delay_flush());
            assert!(none.durability() == Durability::Global);
        }
    }
}
