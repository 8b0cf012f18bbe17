//! Wire messages: the body of each frame is one of these, chosen by the frame's operation.
//!
//! A reply with status 0 carries the operation's reply message; any other status carries an
//! [`Error`](crate::Error). Unknown fields are skipped, so messages may grow; a field never
//! changes its meaning.

mod cluster;
mod merge;
mod meta;
mod open;
mod policy;
mod replica;
mod store;
mod txn;

use std::time::Duration;

use bytes::Bytes;

use crate::inode::Locator;
use crate::{Cred, InodeId, Stamp};

pub use cluster::*;
pub use merge::*;
pub use meta::*;
pub use open::*;
pub use policy::*;
pub use replica::*;
pub use store::*;
pub use txn::*;

macro_rules! ops {
    ($($(#[doc = $doc:literal])* $name:ident = $value:literal => $text:literal,)*) => {
        /// Operation of a frame. The names are those of counters and logs (contract.md).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Op { $($(#[doc = $doc])* $name = $value,)* }

        impl Op {
            /// All of them, for tables of counters.
            pub const ALL: &[Op] = &[$(Op::$name,)*];

            /// From the number on the wire.
            pub fn from_u16(raw: u16) -> Option<Op> {
                match raw { $($value => Some(Op::$name),)* _ => None }
            }

            /// Name in counters and logs.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => $text,)* }
            }
        }
    };
}

ops! {
    // Clients to shards.
    /// [`EntryReq`] -> [`Entry`]
    Lookup = 1 => "lookup",
    /// [`EntryReq`] -> [`Entry`]
    Getattr = 2 => "getattr",
    /// [`SetattrReq`] -> [`Entry`]; of a directory's owner or mode: to the coordinator
    Setattr = 3 => "setattr",
    /// [`CreateReq`] -> [`Entry`]: a regular file, opened
    Create = 4 => "create",
    /// [`OpenReq`] -> [`Entry`]
    Open = 5 => "open",
    /// [`CreateReq`] -> [`Entry`]
    Mkdir = 6 => "mkdir",
    /// [`RemoveReq`] -> [`Empty`]
    Unlink = 7 => "unlink",
    /// [`RemoveReq`] -> [`Empty`]; to the coordinator
    Rmdir = 8 => "rmdir",
    /// [`RenameReq`] -> [`RenameReply`]; of directories: to the coordinator
    Rename = 9 => "rename",
    /// [`LinkReq`] -> [`Entry`]
    Link = 10 => "link",
    /// [`CreateReq`] -> [`Entry`]
    Symlink = 11 => "symlink",
    /// [`EntryReq`] -> [`Entry`], the target in `inline`
    Readlink = 12 => "readlink",
    /// [`ReaddirReq`] -> [`ReaddirReply`]; one shard's share
    Readdir = 13 => "readdir",
    /// [`CloseReq`] -> [`CloseReply`]: size and small-file data of a written file
    Close = 14 => "close",
    /// [`CloseReq`] -> [`CloseReply`]: the same for fsync(2)
    Fsync = 15 => "fsync",
    /// [`AppendReq`] -> [`AppendReply`]
    Append = 16 => "append",
    /// [`EntryReq`] -> [`Entry`]: the file's data moves from the row to chunks
    Spill = 17 => "spill",
    /// [`XattrReq`] -> [`XattrReply`]
    Getxattr = 18 => "getxattr",
    /// [`XattrReq`] -> [`Empty`]; of a directory's ACL: to the coordinator
    Setxattr = 19 => "setxattr",
    /// [`XattrReq`] -> [`XattrReply`], the names NUL-terminated in `value`
    Listxattr = 20 => "listxattr",
    /// [`XattrReq`] -> [`Empty`]; of a directory's ACL: to the coordinator
    Removexattr = 21 => "removexattr",
    /// [`CreateReq`] -> [`Entry`]: FIFO, socket, device, or regular file not opened
    Mknod = 22 => "mknod",
    /// [`AccessReq`] -> [`Empty`]
    Access = 23 => "access",
    /// [`RenewReq`] -> [`RenewReply`]: leases of open files, and files that were closed
    Renew = 24 => "renew",
    /// [`Empty`] -> [`ShardStats`]
    Statfs = 25 => "statfs",
    /// [`LockReq`] -> [`LockReply`]
    Getlk = 26 => "getlk",
    /// [`LockReq`] -> [`SetLockReply`]
    Setlk = 27 => "setlk",
    /// [`RenewLocksReq`] -> [`RenewLocksReply`]
    RenewLocks = 28 => "renew_locks",
    /// [`CreateReq`] -> [`Entry`]: a regular file without a name, opened; the last name of the
    /// path only chooses the shard. `exclusive`: it will never have a name.
    Tmpfile = 29 => "tmpfile",
    /// [`SessionReq`] -> [`Empty`]
    OpenSession = 30 => "open_session",
    /// [`SessionReq`] -> [`Empty`]
    CloseSession = 31 => "close_session",
    /// [`Empty`] -> [`Empty`]: everything answered before is flushed
    SyncJournal = 32 => "sync_journal",
    /// [`StageReq`] -> [`Empty`]: rows of a merge, not visible yet
    Stage = 33 => "stage",
    /// [`LoadReq`] -> [`LoadReply`]: whole rows of a directory, for who holds its subtree
    Load = 34 => "load",
    // Between shards and the coordinator.
    /// [`FetchReq`] -> [`Dentry`]
    Fetch = 40 => "fetch",
    /// [`CollectReq`] -> [`CollectReply`]
    Collect = 41 => "collect",
    /// [`InvalidateReq`] -> [`InvalidateReply`]
    Invalidate = 42 => "invalidate",
    /// [`PrepareReq`] -> [`Vote`]
    Prepare = 43 => "prepare",
    /// [`DecideReq`] -> [`Empty`]
    Decide = 44 => "decide",
    /// [`OutcomeReq`] -> [`OutcomeReply`]
    Outcome = 45 => "outcome",
    /// [`ScanReq`] -> [`ScanReply`]: rows, for fsck
    Scan = 46 => "scan",
    /// [`WatchReq`] -> [`WatchReply`]: whether inodes are known here, for fsck
    Watch = 47 => "watch",
    /// [`CheckMergeReq`] -> [`CheckMergeReply`]
    CheckMerge = 48 => "check_merge",
    /// [`ApplyMergeReq`] -> [`Empty`]
    ApplyMerge = 49 => "apply_merge",
    // To the coordinator.
    /// [`MapReq`] -> [`ClusterMap`](crate::ClusterMap)
    Map = 60 => "map",
    /// [`Joined`](crate::change::Joined) -> [`Empty`]: an MNode or store starts on a data directory;
    /// refused if it has served from another one
    Join = 61 => "join",
    /// [`MarkReq`] -> [`Empty`]: how far a shard or store has come; refused if its directory, or
    /// the coordinator's, is behind what it was
    Mark = 62 => "mark",
    /// [`Empty`] -> [`RefusedReply`]: members that may not serve, and why
    Refused = 63 => "refused",
    /// [`SetPolicyReq`] -> [`SetPolicyReply`]
    SetPolicy = 64 => "set_policy",
    /// [`PolicyReq`] -> [`PolicyReply`]: what is known of a policy
    GetPolicy = 65 => "get_policy",
    /// [`PolicyReq`] -> [`PolicyState`]: asked by shards
    PolicyState = 66 => "policy_state",
    /// [`HoldReq`] -> [`HoldReply`]: a client begins to hold a subtree
    Hold = 67 => "hold",
    /// [`RenewHoldsReq`] -> [`RenewHoldsReply`]
    RenewHolds = 68 => "renew_holds",
    /// [`ProvisionReq`] -> [`IdRange`]: more inode numbers for a held subtree
    Provision = 69 => "provision",
    /// [`ReleaseReq`] -> [`Empty`]: a hold ends without a merge
    Release = 70 => "release",
    /// [`MergeReq`] -> [`MergeReply`]
    Merge = 71 => "merge",
    /// [`Empty`] -> [`PoliciesReply`]: all policies and holds
    Policies = 72 => "policies",
    // To stores.
    /// [`ChunkWriteReq`] + payload -> [`ChunkWriteReply`]
    ChunkWrite = 80 => "chunk_write",
    /// [`ChunkReadReq`] -> [`ChunkReadReply`] + payload
    ChunkRead = 81 => "chunk_read",
    /// [`ChunkSyncReq`] -> [`ChunkSyncReply`]: everything acknowledged is flushed
    ChunkSync = 82 => "chunk_sync",
    /// [`ChunkTruncateReq`] -> [`ChunkTruncateReply`]
    ChunkTruncate = 83 => "chunk_truncate",
    /// [`ChunkDeleteReq`] -> [`Empty`]
    ChunkDelete = 84 => "chunk_delete",
    /// [`Empty`] -> [`StoreStats`]
    StoreStat = 85 => "store_stat",
    /// [`ChunkListReq`] -> [`ChunkListReply`]: for fsck
    ChunkList = 86 => "chunk_list",
    /// [`ChunkSeekReq`] -> [`ChunkSeekReply`]: where a file has data on this store
    ChunkSeek = 87 => "chunk_seek",
    /// [`ChunkQuarantineReq`] -> [`ChunkQuarantineReply`]: for fsck
    ChunkQuarantine = 88 => "chunk_quarantine",
}

impl Op {
    /// Does it change metadata, so that it needs a session and a sequence number (rule 15)?
    pub fn mutates(self) -> bool {
        matches!(
            self,
            Op::Setattr
                | Op::Create
                | Op::Mkdir
                | Op::Unlink
                | Op::Rmdir
                | Op::Rename
                | Op::Link
                | Op::Symlink
                | Op::Close
                | Op::Fsync
                | Op::Append
                | Op::Spill
                | Op::Setxattr
                | Op::Removexattr
                | Op::Mknod
                | Op::Setlk
                | Op::Tmpfile
                | Op::SetPolicy
                | Op::Hold
                | Op::Release
                | Op::Merge
        )
    }
}

/// No content.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// What every request of a client carries.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ctx {
    /// Who asks.
    #[prost(message, required, tag = "1")]
    pub cred: Cred,
    /// The client's session.
    #[prost(uint64, tag = "2")]
    pub session: u64,
    /// Number of this mutation in the session, from 1; 0 for reads.
    #[prost(uint64, tag = "3")]
    pub seq: u64,
    /// The client has the answers of all mutations below this number.
    #[prost(uint64, tag = "4")]
    pub ack: u64,
    /// Version of the cluster map by which it was routed. A shard that knows an older one asks for
    /// the newest before it judges that the request is not its own.
    #[prost(uint64, tag = "5")]
    pub map_version: u64,
    /// How long the client waits, in milliseconds; a parked request is answered before.
    #[prost(uint32, tag = "6")]
    pub wait_ms: u32,
    /// It came by way of another shard; it is not passed on again.
    #[prost(bool, tag = "7")]
    pub forwarded: bool,
    /// Counts the times that the client has sent this request, from 1; 0 does not count. A node
    /// that has told the client to go elsewhere or to try again refuses what was sent before.
    #[prost(uint32, tag = "8")]
    pub attempt: u32,
    /// What the client takes the time for; 0: it does not say.
    #[prost(fixed64, tag = "9")]
    pub now_ns: Stamp,
    /// The newest time of a change that the client has seen: what this request changes is later.
    #[prost(fixed64, tag = "10")]
    pub seen_ns: Stamp,
    /// Drawn at random by a client that holds subtrees ([`HoldReq::holder`]); 0: it holds none.
    #[prost(fixed64, tag = "11")]
    pub holder: u64,
    /// The request is part of holding a subtree, in this epoch; 0: it is a caller's own.
    #[prost(uint64, tag = "12")]
    pub hold: u64,
}

impl Ctx {
    /// How long the client waits: 5 s if it does not say, a minute at most.
    pub fn wait(&self) -> Duration {
        let ms = if self.wait_ms == 0 { 5_000 } else { self.wait_ms.min(60_000) };
        Duration::from_millis(ms.into())
    }
}

/// What a request is about: an anchor directory and the components below it, or, with an empty
/// path, the anchor itself (then also a file: the row of an open handle).
#[derive(Clone, PartialEq, prost::Message)]
pub struct At {
    /// Where the walk starts; acts only if the id is still there (rule 16).
    #[prost(message, required, tag = "1")]
    pub anchor: Locator,
    /// Names, without `.`, `..`, `/` or NUL.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub path: Vec<Bytes>,
    /// Inodes that components must lead to, by component; 0 and what is beyond the end: any. If
    /// one leads elsewhere, nothing is done (class `Elsewhere`). What is expected of the last one is heeded
    /// where a directory is removed or replaced.
    #[prost(uint64, repeated, tag = "3")]
    pub expect: Vec<InodeId>,
    /// The first components, none of them the last, are directories whose names a mount wants to keep
    /// for so many milliseconds each: to let its kernel use them without asking. Until that is over
    /// they lead where they led. None longer than the one before, nor than `limits::NAME_KEEP_MAX`.
    #[prost(uint32, repeated, tag = "6")]
    pub keep_ms: Vec<u32>,
}

impl At {
    /// A path from an anchor.
    pub fn below(anchor: Locator, path: Vec<Bytes>) -> At {
        At { anchor, path, expect: Vec::new(), keep_ms: Vec::new() }
    }

    /// May a directory of this id be what is there, for all that is expected? 0: nothing is there.
    pub fn may_end_at(&self, id: InodeId) -> bool {
        let last = self.path.len().checked_sub(1);
        let expected = last.and_then(|last| self.expect.get(last).copied()).unwrap_or_default();
        expected == 0 || expected == id
    }

    /// Its last component must lead to this inode, if it leads anywhere.
    pub fn expect_last(&mut self, id: InodeId) {
        if let Some(last) = self.path.len().checked_sub(1) {
            self.expect.resize(last, 0);
            self.expect.push(id);
        }
    }

    /// Is the error about the last component of this path?
    pub fn ends_at(&self, error: &crate::Error) -> bool {
        error.component.is_some_and(|component| component as usize + 1 == self.path.len())
    }

    /// The inode at a locator itself.
    pub fn handle(loc: Locator) -> At {
        At::below(loc, Vec::new())
    }

    /// The locks on a file: they live by its id alone, so that no rename moves them.
    pub fn locks(id: InodeId) -> At {
        At::handle(Locator::home(id, crate::slot::Slot::of_locks(id).into()))
    }

    /// A name in a directory.
    pub fn child(dir: Locator, name: &[u8]) -> At {
        At::below(dir, vec![Bytes::copy_from_slice(name)])
    }
}
