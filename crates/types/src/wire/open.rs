//! Who has files open, and locks on them.

use crate::InodeId;
use crate::inode::Locator;

use super::{At, Ctx};

/// Who has a file open, as the file's owner knows it (rule 16).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Hold {
    /// The client; 0: somebody.
    #[prost(fixed64, tag = "1")]
    pub client: u64,
    /// Number of this open in the client: later ones have higher numbers.
    #[prost(uint64, tag = "2")]
    pub number: u64,
}

/// All who may have a file open.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Holds {
    /// In no order.
    #[prost(message, repeated, tag = "1")]
    pub holds: Vec<Hold>,
}

/// What a client has open, and what it has closed; all belongs to the shard asked.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewReq {
    /// Open handles whose leases are renewed.
    #[prost(message, repeated, tag = "1")]
    pub handles: Vec<Locator>,
    /// Who has them open.
    #[prost(message, required, tag = "2")]
    pub hold: Hold,
    /// Files of which all that the client had opened by numbers below `closed_below` is closed.
    #[prost(uint64, repeated, tag = "3")]
    pub closed: Vec<InodeId>,
    #[prost(uint64, tag = "4")]
    #[allow(missing_docs)]
    pub closed_below: u64,
}

/// Answer to renew.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewReply {
    /// Handles, and closed files, whose inode is elsewhere now: where. Orphans and unknown ids are not listed.
    #[prost(message, repeated, tag = "1")]
    pub moved: Vec<Locator>,
}

/// A lock on a file, or one that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct FileLock {
    /// The client, whose lease it hangs on.
    #[prost(fixed64, tag = "1")]
    pub holder: u64,
    /// Who holds it within the client: a process, or an open file.
    #[prost(fixed64, tag = "2")]
    pub owner: u64,
    /// First byte.
    #[prost(uint64, tag = "3")]
    pub start: u64,
    /// Last byte.
    #[prost(uint64, tag = "4")]
    pub end: u64,
    /// Nobody else may hold one.
    #[prost(bool, tag = "5")]
    pub exclusive: bool,
    /// Of flock(2), which knows nothing of those of fcntl(2), nor they of it.
    #[prost(bool, tag = "6")]
    pub flock: bool,
    /// Process, for F_GETLK.
    #[prost(uint32, tag = "7")]
    pub pid: u32,
}

/// All locks on a file; also the value of their row.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FileLocks {
    /// In no order.
    #[prost(message, repeated, tag = "1")]
    pub locks: Vec<FileLock>,
}

/// Sets, ends or asks for a lock.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LockReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// [`At::locks`] of the file.
    #[prost(message, required, tag = "2")]
    pub at: At,
    /// The lock.
    #[prost(message, required, tag = "3")]
    pub lock: FileLock,
    /// It ends.
    #[prost(bool, tag = "4")]
    pub unlock: bool,
    /// How long to wait for others to end theirs, in milliseconds, before the answer is EAGAIN.
    #[prost(uint32, tag = "5")]
    pub wait_ms: u32,
}

/// Answer to getlk.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct LockReply {
    /// What stands in the way; absent: nothing does.
    #[prost(message, optional, tag = "1")]
    pub conflict: Option<FileLock>,
}

/// Answer to setlk.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct SetLockReply {
    /// The lock's owner holds something on the file.
    #[prost(bool, tag = "1")]
    pub holds: bool,
}

/// A client lives; its locks on this shard stay for another lease.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct RenewLocksReq {
    #[prost(fixed64, tag = "1")]
    #[allow(missing_docs)]
    pub holder: u64,
    /// It ends: so do its locks.
    #[prost(bool, tag = "2")]
    pub end: bool,
}

/// Answer to renew_locks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewLocksReply {
    /// Files on which the client has locks on this shard.
    #[prost(uint64, repeated, tag = "1")]
    pub ids: Vec<InodeId>,
}
