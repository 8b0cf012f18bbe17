//! What shards tell each other of directories: entries, invalidations, totals.

use bytes::Bytes;

use crate::inode::Locator;
use crate::{InodeId, Stamp};

/// A replica asks the owner of (pid, name).
#[derive(Clone, PartialEq, prost::Message)]
pub struct FetchReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub pid: InodeId,
    #[prost(bytes = "bytes", tag = "2")]
    #[allow(missing_docs)]
    pub name: Bytes,
    /// Answer "retry" instead of waiting for a prepared row: the asker holds locks (rule 11).
    #[prost(bool, tag = "3")]
    pub nowait: bool,
    /// An anchor that should be there: if it is not, `moved` tells where it went; 0: none.
    #[prost(uint64, tag = "4")]
    pub anchor_id: InodeId,
}

/// What a namespace replica knows of an entry.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Dentry {
    /// 0: there is no such entry.
    #[prost(uint64, tag = "1")]
    pub id: InodeId,
    #[prost(uint32, tag = "2")]
    #[allow(missing_docs)]
    pub mode: u32,
    #[prost(uint32, tag = "3")]
    #[allow(missing_docs)]
    pub uid: u32,
    #[prost(uint32, tag = "4")]
    #[allow(missing_docs)]
    pub gid: u32,
    #[prost(uint64, tag = "5")]
    #[allow(missing_docs)]
    pub policy: u64,
    /// Of a symlink.
    #[prost(bytes = "bytes", tag = "6")]
    pub target: Bytes,
    /// Not there, but an id that was asked about as an anchor moved: where.
    #[prost(message, optional, tag = "7")]
    pub moved: Option<Locator>,
    /// Of a directory: its ACL, as in [`crate::acl`]; empty: none.
    #[prost(bytes = "bytes", tag = "8")]
    pub acl: Bytes,
    /// Of a directory: the ACL that new entries get.
    #[prost(bytes = "bytes", tag = "9")]
    pub default_acl: Bytes,
}

/// Totals of one directory on the shard asked.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct CollectReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub dir: InodeId,
    /// Hold back new changes to the directory for this long, in milliseconds (third round of
    /// rule 20); 0 does not.
    #[prost(uint32, tag = "2")]
    pub freeze_ms: u32,
}

/// Answer to a collection.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct CollectReply {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub totals: Totals,
    /// [`ClusterMap::slots_version`](crate::ClusterMap::slots_version) of the map by which the shard
    /// has these entries.
    #[prost(uint64, tag = "2")]
    pub slots_version: u64,
}

/// Absolute totals of a directory on one shard (rule 20); also the value of their row.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Totals {
    /// Grows with every change that this shard makes; not when entries come or go with their slot.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Entries of the directory that this shard owns.
    #[prost(uint64, tag = "2")]
    pub entries: u64,
    /// Directories among them.
    #[prost(uint64, tag = "3")]
    pub subdirs: u64,
    /// Largest time of a change that this shard has made.
    #[prost(fixed64, tag = "4")]
    pub mtime_ns: Stamp,
}

/// An entry of the namespace.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Message)]
pub struct EntryKey {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub pid: InodeId,
    #[prost(bytes = "bytes", tag = "2")]
    #[allow(missing_docs)]
    pub name: Bytes,
}

/// The coordinator's broadcast (rule 5).
#[derive(Clone, PartialEq, prost::Message)]
pub struct InvalidateReq {
    /// Entries that must be asked for again.
    #[prost(message, repeated, tag = "1")]
    pub keys: Vec<EntryKey>,
    /// Directory that must be empty (rule 6); 0: none.
    #[prost(uint64, tag = "2")]
    pub empty_dir: InodeId,
    /// Directories removed long ago, as their last owner says: their totals may be dropped.
    #[prost(uint64, repeated, tag = "3")]
    pub forget: Vec<InodeId>,
    /// For a while no leases on the entries' names are given.
    #[prost(bool, tag = "4")]
    pub bar: bool,
    /// With `bar`: how long the entries' change has to wait for leases, in milliseconds.
    #[prost(uint32, tag = "5")]
    pub waits_ms: u32,
    /// Policies whose state must be asked for again ([`PolicyState`](super::PolicyState)).
    #[prost(uint64, repeated, tag = "6")]
    pub policies: Vec<u64>,
}

/// Whether a directory has entries on a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Emptiness {
    /// None, and none can come while the entry is invalid.
    Empty = 0,
    /// Some.
    NotEmpty = 1,
    /// A prepared row could go either way.
    Undecided = 2,
}

/// Ack of an invalidation.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct InvalidateReply {
    #[prost(enumeration = "Emptiness", tag = "1")]
    #[allow(missing_docs)]
    pub emptiness: i32,
    /// So many milliseconds from now somebody may still keep one of the names.
    #[prost(uint32, tag = "2")]
    pub kept_ms: u32,
}
