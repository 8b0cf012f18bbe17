//! Two-phase commit.

use crate::inode::{Inode, Locator, Xattr};

use super::{At, Ctx, Holds, SetattrReq};

/// What a participant is to prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Intent {
    /// Put `row` at the target; what is there is replaced unless `no_replace`.
    Insert = 0,
    /// Take the directory's row away, to move it; the vote brings it.
    TakeDir = 1,
    /// Remove the directory.
    RemoveDir = 2,
    /// Change owner or mode of the directory by `setattr`, an ACL by `acl`, or its `policy`.
    SetDir = 3,
    /// Add `delta` to the link count of the attribute row at the target (a handle).
    Nlink = 4,
    /// Exchange: what is at the target goes to `moves_to`, `row` comes in its place; the vote
    /// brings the old row. A driver that does not know the other row yet leaves it out, and
    /// prepares the same entry, as a handle, again when it does.
    Swap = 5,
    /// Remember the directory `row` of another owner, which is at the target, a handle (FalconFS
    /// §6.7, "no inv").
    Replica = 6,
}

/// First phase. Carries a path, never only a resolved directory id (rule 1).
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// Who must be asked for the outcome ([`NodeId::to_u32`](crate::NodeId::to_u32)).
    #[prost(uint32, tag = "2")]
    pub driver: u32,
    /// Number of the transaction at the driver.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    #[prost(message, required, tag = "4")]
    #[allow(missing_docs)]
    pub at: At,
    #[prost(enumeration = "Intent", tag = "5")]
    #[allow(missing_docs)]
    pub intent: i32,
    #[prost(message, optional, tag = "6")]
    #[allow(missing_docs)]
    pub row: Option<Inode>,
    #[prost(bool, tag = "7")]
    #[allow(missing_docs)]
    pub no_replace: bool,
    #[prost(message, optional, boxed, tag = "8")]
    #[allow(missing_docs)]
    pub setattr: Option<Box<SetattrReq>>,
    #[prost(sint32, tag = "9")]
    #[allow(missing_docs)]
    pub delta: i32,
    /// TakeDir, Swap: where the inode will be, for its gone record.
    #[prost(message, optional, tag = "10")]
    pub moves_to: Option<Locator>,
    /// SetDir: the directory's own policy; 0: there is to be none.
    #[prost(uint64, optional, tag = "13")]
    pub policy: Option<u64>,
    /// SetDir: an ACL by the name of its attribute; empty: there is to be none.
    #[prost(message, optional, tag = "11")]
    pub acl: Option<Xattr>,
    /// Insert: who may have the file open; absent: that is not known.
    #[prost(message, optional, tag = "12")]
    pub holds: Option<Holds>,
}

/// A yes; a no is an error.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Vote {
    /// Where the prepared row is (parent id resolved).
    #[prost(message, required, tag = "1")]
    pub loc: Locator,
    /// The row taken, changed, exchanged or replaced (this one without data); absent: there was
    /// none.
    #[prost(message, optional, tag = "2")]
    pub row: Option<Inode>,
    /// Nothing changes: source and target are links to one inode (rule 12).
    #[prost(bool, tag = "3")]
    pub same: bool,
    /// The directory is sticky: only the owner of the inode may go on, whom its home knows.
    #[prost(bool, tag = "4")]
    pub only_owner: bool,
    /// Everybody may search the directory, and that will be over.
    #[prost(bool, tag = "6")]
    pub closes: bool,
    /// SetDir with a policy: the one that the directory has had of its own.
    #[prost(uint64, tag = "7")]
    pub policy: u64,
}

/// Second phase.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct DecideReq {
    #[prost(uint32, tag = "1")]
    #[allow(missing_docs)]
    pub driver: u32,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub number: u64,
    #[prost(bool, tag = "3")]
    #[allow(missing_docs)]
    pub commit: bool,
}

/// A participant in doubt asks the driver.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct OutcomeReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub number: u64,
}

/// Outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum TxnOutcome {
    /// The driver has no record: it never committed, and never will.
    Aborted = 0,
    /// Committed.
    Committed = 1,
    /// Ask again later.
    Undecided = 2,
}

/// The driver's answer.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct OutcomeReply {
    #[prost(enumeration = "TxnOutcome", tag = "1")]
    #[allow(missing_docs)]
    pub outcome: i32,
}
