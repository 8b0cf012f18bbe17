//! Histories of concurrent clients, and whether there is an order of their operations that
//! explains them: each takes effect once, atomically, between its call and its reply
//! (linearizability; the search is that of Wing and Gong, with Lowe's memory of configurations
//! that were seen already).
//!
//! An operation whose outcome its client never heard (it was killed, the call timed out) may take
//! effect at any time from its call on, or never.

mod content;
mod files;
mod search;
mod tree;

pub use content::{ContentPiece, FileContent, RECORD_BYTES, parse, text};
pub use files::{FileCall, FileReply, Files, WriteAt};
pub use search::{CONFIGURATIONS_MAX, SearchVerdict, check};
pub use tree::{Tree, TreeBody, TreeIno, TreeInode, TreeKind, TreeSeen, TreeStat};

/// One operation of one client.
#[derive(Clone, Debug)]
pub struct CallRecord<O, R> {
    /// Who called.
    pub client: usize,
    /// When, in ns of one clock for all clients.
    pub call_ns: u64,
    /// When the reply came, and what it was; none: the outcome is unknown.
    pub reply: Option<(u64, R)>,
    /// What was asked.
    pub op: O,
}

/// What a correct system does, one operation after the other.
pub trait Spec {
    /// What it remembers.
    type State: Clone + Eq + std::hash::Hash;
    /// What it is asked.
    type Op;
    /// What it answers.
    type Reply;

    /// The state after `op`, which is record `n` of the history; none if it could not have given
    /// this reply in `state`. Without a reply: the state after it has taken effect, none if it
    /// cannot.
    fn apply(
        &self,
        state: &Self::State,
        n: usize,
        op: &Self::Op,
        reply: Option<&Self::Reply>,
    ) -> Option<Self::State>;

    /// Does an operation with this reply change nothing, in whatever state it is possible?
    fn only_looks(&self, op: &Self::Op, reply: &Self::Reply) -> bool;
}
