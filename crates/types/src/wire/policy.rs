//! Policies of subtrees, and holding one (Cudele sections 3 and 4).

use crate::inode::Locator;
use crate::{InodeId, Stamp};

use super::{At, Ctx};

/// A key of a policy and its value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PolicyPair {
    /// One of [`KEYS`](crate::policy::KEYS).
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    #[allow(missing_docs)]
    pub value: String,
}

/// Gives a directory a policy, in place of the one that it had.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetPolicyReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// The directory.
    #[prost(message, required, tag = "2")]
    pub at: At,
    /// None: the directory has no policy of its own any more.
    #[prost(message, repeated, tag = "3")]
    pub pairs: Vec<PolicyPair>,
}

/// The policy that the directory has now.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct SetPolicyReply {
    /// Its number ([`PolicyId`](crate::policy::PolicyId)); 0: none.
    #[prost(uint64, tag = "1")]
    pub policy: u64,
}

/// Asks about a policy.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PolicyReq {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub policy: u64,
}

/// What a policy says, and who holds its subtree. Also the coordinator's record of it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyReply {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub policy: u64,
    /// Keys and values.
    #[prost(message, repeated, tag = "2")]
    pub pairs: Vec<PolicyPair>,
    /// The directory that has it, where it was last known to be.
    #[prost(message, optional, tag = "3")]
    pub root: Option<Locator>,
    /// Who holds the subtree.
    #[prost(message, optional, tag = "4")]
    pub hold: Option<HoldRecord>,
    /// The directory has another one since: this one, or 0 for none.
    #[prost(uint64, optional, tag = "5")]
    pub successor: Option<u64>,
    /// The epoch of the last hold; epochs count from 1.
    #[prost(uint64, tag = "6")]
    pub last_epoch: u64,
    /// A merge that is decided, and not complete yet.
    #[prost(message, optional, tag = "7")]
    pub merging: Option<Merging>,
    /// The last one that was completed.
    #[prost(message, optional, tag = "8")]
    pub merged: Option<Merged>,
}

/// A merge that is decided.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Merging {
    /// As in [`MergeReq`](super::MergeReq).
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// As in [`MergeReq`](super::MergeReq).
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
    /// As in [`MergeReq`](super::MergeReq).
    #[prost(bool, tag = "3")]
    pub release: bool,
    /// As in [`ApplyMergeReq`](super::ApplyMergeReq).
    #[prost(fixed64, tag = "4")]
    pub time_ns: Stamp,
}

/// A merge that was completed: for a client that asks for it again.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Merged {
    /// As in [`MergeReq`](super::MergeReq).
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// As in [`MergeReq`](super::MergeReq).
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
    /// As in [`MergeReply`](super::MergeReply): the epoch that followed.
    #[prost(uint64, tag = "3")]
    pub next: u64,
}

/// A client holds a subtree.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HoldRecord {
    /// Counts the holds of the policy's subtree, and the merges of each.
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// Drawn at random by the client, and kept with its journal.
    #[prost(fixed64, tag = "2")]
    pub holder: u64,
    /// The client in words, for messages: host, process, mount point.
    #[prost(string, tag = "3")]
    pub who: String,
    /// Inode numbers that it was given for what it makes. They are exempt from fsck.
    #[prost(message, repeated, tag = "4")]
    pub ids: Vec<IdRange>,
    /// In an answer: so many milliseconds until its lease ends; 0: it has ended.
    #[prost(uint32, tag = "5")]
    pub lease_ms: u32,
    /// The epoch in which it began. Merges begin epochs, too: this one stays.
    #[prost(uint64, tag = "6")]
    pub first: u64,
}

/// Inode numbers.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IdRange {
    /// The first.
    #[prost(uint64, tag = "1")]
    pub first: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub count: u64,
}

/// What a shard must know of a policy to serve what is under it. Kept until it is invalidated
/// ([`InvalidateReq::policies`](super::InvalidateReq::policies)).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PolicyState {
    /// Another one counts in its place; 0: none does.
    #[prost(uint64, optional, tag = "1")]
    pub successor: Option<u64>,
    /// Epoch in which the subtree is held; 0: nobody holds it.
    #[prost(uint64, tag = "2")]
    pub hold: u64,
    /// Who holds it.
    #[prost(fixed64, tag = "3")]
    pub holder: u64,
}

/// A client begins to hold the subtree of a policy, or goes on after a restart.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HoldReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// The policy's number.
    #[prost(uint64, tag = "2")]
    pub policy: u64,
    /// As in [`HoldRecord`].
    #[prost(fixed64, tag = "3")]
    pub holder: u64,
    /// As in [`HoldRecord`].
    #[prost(string, tag = "4")]
    pub who: String,
    /// Also from a client that lives, if what it has saved is in the cluster; for the superuser.
    #[prost(bool, tag = "5")]
    pub force: bool,
}

/// The hold.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HoldReply {
    /// The policy with its hold; `root` is there.
    #[prost(message, required, tag = "1")]
    pub policy: PolicyReply,
    /// The hold must be renewed within this time, milliseconds.
    #[prost(uint32, tag = "2")]
    pub lease_ms: u32,
}

/// A client still lives.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewHoldsReq {
    /// As in [`HoldRecord`].
    #[prost(fixed64, tag = "1")]
    pub holder: u64,
    /// Policies whose subtrees it holds.
    #[prost(uint64, repeated, tag = "2")]
    pub policies: Vec<u64>,
}

/// Answer to that.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewHoldsReply {
    /// Those that it does not hold any more.
    #[prost(uint64, repeated, tag = "1")]
    pub ended: Vec<u64>,
}

/// A holder needs more inode numbers.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ProvisionReq {
    /// The policy's number.
    #[prost(uint64, tag = "1")]
    pub policy: u64,
    /// As in [`HoldRecord`].
    #[prost(fixed64, tag = "2")]
    pub holder: u64,
    #[prost(uint64, tag = "3")]
    #[allow(missing_docs)]
    pub count: u64,
}

/// A hold ends, and what its holder has not merged does not become part of the namespace.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReleaseReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// The policy's number.
    #[prost(uint64, tag = "2")]
    pub policy: u64,
    /// The epoch, for the holder itself; 0: of whoever holds it, whose lease must have ended.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// Also if the lease has not ended; for the superuser.
    #[prost(bool, tag = "4")]
    pub force: bool,
}

/// All policies, for tools.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PoliciesReply {
    #[prost(message, repeated, tag = "1")]
    #[allow(missing_docs)]
    pub policies: Vec<PolicyReply>,
}
