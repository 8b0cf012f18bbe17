//! Wire messages: the body of each frame is one of these, chosen by the frame's operation.
//!
//! A reply with status 0 carries the operation's reply message; any other status carries an
//! [`Error`](crate::Error). Unknown fields are skipped, so messages may grow; a field never
//! changes its meaning.

use std::time::Duration;

use bytes::Bytes;

use crate::inode::{Attr, Inode, Locator, Unflushed, Xattr};
use crate::{Cred, InodeId, Stamp};

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
    // Between shards and the coordinator.
    /// [`FetchReq`] -> [`Dentry`]
    Fetch = 40 => "fetch",
    /// [`CollectReq`] -> [`Totals`]
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
    // To stores.
    /// [`ChunkWriteReq`] + payload -> [`ChunkWriteReply`]
    ChunkWrite = 80 => "chunk_write",
    /// [`ChunkReadReq`] -> [`ChunkReadReply`] + payload
    ChunkRead = 81 => "chunk_read",
    /// [`ChunkSyncReq`] -> [`ChunkSyncReply`]: everything acknowledged is flushed
    ChunkSync = 82 => "chunk_sync",
    /// [`ChunkTruncateReq`] -> [`Empty`]
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
    /// Version of the cluster map by which it was routed.
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
        let home_slot = Some(crate::placement::lock_slot(id).into());
        At::handle(Locator { pid: 0, name: Bytes::new(), id, home_slot })
    }

    /// A name in a directory.
    pub fn child(dir: Locator, name: &[u8]) -> At {
        At::below(dir, vec![Bytes::copy_from_slice(name)])
    }
}

/// Lookup, getattr, readlink, spill.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EntryReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    #[prost(message, required, tag = "2")]
    #[allow(missing_docs)]
    pub at: At,
    /// Of a directory, collect link count and times from all shards (rule 20); else they are
    /// what the owner alone knows.
    #[prost(bool, tag = "3")]
    pub full: bool,
}

/// An inode as a client sees it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub attr: Attr,
    /// Where it is; handles and anchors are made of this.
    #[prost(message, required, tag = "2")]
    pub loc: Locator,
    /// Small-file data (open, create, spill, conflict) or target of a symlink.
    #[prost(bytes = "bytes", tag = "3")]
    pub inline: Bytes,
    /// Create: it was made by this request; else it was there.
    #[prost(bool, tag = "4")]
    pub created: bool,
    /// Every directory of the path may be searched by all, so that the entry may be cached for
    /// other users, too.
    #[prost(bool, tag = "5")]
    pub searchable: bool,
    /// The directory that the name is in, if it is sticky: what is there may be a trap
    /// (`fs.protected_symlinks` and so on of proc_sys_fs(5)).
    #[prost(message, optional, tag = "6")]
    pub sticky: Option<StickyDir>,
    /// Of a file in chunks: writes that no fsync has flushed yet.
    #[prost(message, repeated, tag = "9")]
    pub unflushed: Vec<Unflushed>,
}

/// A directory with the sticky bit.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StickyDir {
    /// Type and permission bits.
    #[prost(uint32, tag = "1")]
    pub mode: u32,
    #[prost(uint32, tag = "2")]
    #[allow(missing_docs)]
    pub uid: u32,
}

/// A directory whose name may be kept for a while.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct KeptDir {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    /// Type and permission bits.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "4")]
    pub gid: u32,
    /// For how long, in milliseconds from when it was asked for (`At::keep_ms`): not longer than that.
    #[prost(uint32, tag = "5")]
    pub keep_ms: u32,
}

/// Bytes of a [`KeptDir`] in [`KeptDirs`], at most.
const KEPT_DIR_BYTES_MAX: usize = 37;

/// The trailer of a shard's reply, of a result and of an error alike: its payload. None is the same as an
/// empty one. It is of its own attempt, and not kept with the result.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeptDirs {
    /// The directories on the way, from the anchor on, on whose names a lease was asked for and given.
    #[prost(message, repeated, tag = "1")]
    pub dirs: Vec<KeptDir>,
}

impl KeptDirs {
    /// The leases that the answer to a request about `at` gives. `None`: these are not leases that it has
    /// asked for.
    pub fn read(trailer: &[u8], at: &At) -> Option<Vec<KeptDir>> {
        if trailer.len() > at.keep_ms.len() * KEPT_DIR_BYTES_MAX {
            return None;
        }
        let KeptDirs { dirs } = prost::Message::decode(trailer).ok()?;
        let is_asked = |(i, dir): (usize, &KeptDir)| {
            at.keep_ms.get(i).is_some_and(|keep_ms| dir.keep_ms <= *keep_ms)
        };
        dirs.iter().enumerate().all(is_asked).then_some(dirs)
    }
}

/// A name is gone.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Removed {
    /// What it led to: that has a name less.
    #[prost(uint64, tag = "3")]
    pub inode: InodeId,
}

/// Setattr; unset fields stay.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetattrReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    #[prost(message, required, tag = "2")]
    #[allow(missing_docs)]
    pub at: At,
    /// Permission bits (07777).
    #[prost(uint32, optional, tag = "3")]
    pub mode: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    #[allow(missing_docs)]
    pub uid: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    #[allow(missing_docs)]
    pub gid: Option<u32>,
    /// Truncate or extend to this.
    #[prost(uint64, optional, tag = "6")]
    pub size: Option<u64>,
    /// Set atime to this.
    #[prost(fixed64, optional, tag = "7")]
    pub atime_ns: Option<Stamp>,
    /// Set mtime to this.
    #[prost(fixed64, optional, tag = "8")]
    pub mtime_ns: Option<Stamp>,
    /// Set atime to the owner's clock.
    #[prost(bool, tag = "9")]
    pub atime_now: bool,
    /// Set mtime to the owner's clock.
    #[prost(bool, tag = "10")]
    pub mtime_now: bool,
    /// The size change comes through a handle open for writing: no permission check.
    #[prost(bool, tag = "11")]
    pub by_handle: bool,
}

impl SetattrReq {
    /// Does it touch what a directory's replicas hold, so that it is the coordinator's?
    pub fn changes_access(&self) -> bool {
        self.mode.is_some() || self.uid.is_some() || self.gid.is_some()
    }

    /// Does it set times?
    pub fn sets_times(&self) -> bool {
        self.atime_ns.is_some() || self.mtime_ns.is_some() || self.atime_now || self.mtime_now
    }
}

/// Create, mkdir, mknod, symlink: by the type bits of the mode.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    #[prost(message, required, tag = "2")]
    #[allow(missing_docs)]
    pub at: At,
    /// Type and permission bits.
    #[prost(uint32, tag = "3")]
    pub mode: u32,
    /// Device number.
    #[prost(uint32, tag = "4")]
    pub rdev: u32,
    /// Target of a symlink.
    #[prost(bytes = "bytes", tag = "5")]
    pub target: Bytes,
    /// Fail with EEXIST if the name is there (O_EXCL).
    #[prost(bool, tag = "6")]
    pub exclusive: bool,
    /// Access wanted if it is there (4 read, 2 write).
    #[prost(uint32, tag = "7")]
    pub access: u32,
    /// Truncate if it is there (O_TRUNC).
    #[prost(bool, tag = "8")]
    pub truncate: bool,
    /// Permission bits that a new inode does not get, unless the directory has a default ACL.
    #[prost(uint32, tag = "9")]
    pub umask: u32,
    /// What is there in a sticky directory, and belongs neither to the caller nor to the directory's
    /// owner, is not opened: ESTALE (it must be looked at first).
    #[prost(bool, tag = "10")]
    pub wary: bool,
    /// Who has it open then.
    #[prost(message, required, tag = "11")]
    pub hold: Hold,
}

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

/// Open of what is there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    #[prost(message, required, tag = "2")]
    #[allow(missing_docs)]
    pub at: At,
    /// 4 read, 2 write, 1 execute.
    #[prost(uint32, tag = "3")]
    pub access: u32,
    /// O_TRUNC. Makes it a mutation: `ctx.seq` is set.
    #[prost(bool, tag = "4")]
    pub truncate: bool,
    /// Who has it open then.
    #[prost(message, required, tag = "5")]
    pub hold: Hold,
}

/// Unlink, rmdir.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoveReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    #[prost(message, required, tag = "2")]
    #[allow(missing_docs)]
    pub at: At,
}

/// Rename; `flags` of renameat2(2): [`rename_flags`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenameReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    #[prost(message, required, tag = "2")]
    #[allow(missing_docs)]
    pub from: At,
    #[prost(message, required, tag = "3")]
    #[allow(missing_docs)]
    pub to: At,
    #[prost(uint32, tag = "4")]
    #[allow(missing_docs)]
    pub flags: u32,
    /// To the coordinator: the directories from the root (exclusive) to the new parent
    /// (inclusive), each with the id that the client saw, so that a cycle is detected.
    #[prost(message, repeated, tag = "5")]
    pub to_chain: Vec<Locator>,
    /// Exchange: the same for the parent of `from`.
    #[prost(message, repeated, tag = "6")]
    pub from_chain: Vec<Locator>,
}

/// Flags of renameat2(2).
pub mod rename_flags {
    /// Fail if the target is there.
    pub const NOREPLACE: u32 = 1;
    /// Both names are there, and change places.
    pub const EXCHANGE: u32 = 2;
}

/// Answer to rename.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenameReply {
    /// Where the inode is now.
    #[prost(message, required, tag = "1")]
    pub loc: Locator,
    /// Exchange: where the other one is now.
    #[prost(message, optional, tag = "2")]
    pub other: Option<Locator>,
    /// What the new name led to, which has a name less now; 0: nothing.
    #[prost(uint64, tag = "3")]
    pub replaced: InodeId,
}

/// Link `from` (a name or an open handle) as `to`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinkReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    #[prost(message, required, tag = "2")]
    #[allow(missing_docs)]
    pub from: At,
    #[prost(message, required, tag = "3")]
    #[allow(missing_docs)]
    pub to: At,
}

/// One shard's share of a listing, after (order, name).
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReaddirReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// The directory itself.
    #[prost(message, required, tag = "2")]
    pub at: At,
    /// Entries after this place in the order only.
    #[prost(uint64, tag = "3")]
    pub after_order: u64,
    /// Together with `after_order`; empty: also all names of that order.
    #[prost(bytes = "bytes", tag = "4")]
    pub after_name: Bytes,
    /// Most entries wanted.
    #[prost(uint32, tag = "5")]
    pub limit: u32,
}

/// An entry of a listing.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DirEntry {
    #[prost(bytes = "bytes", tag = "1")]
    #[allow(missing_docs)]
    pub name: Bytes,
    /// Place in the order ([`NameHash::order`](crate::name::NameHash::order)).
    #[prost(uint64, tag = "2")]
    pub order: u64,
    /// Of a hard link only id and type (ask at `home_slot`); of a directory without totals.
    #[prost(message, required, tag = "3")]
    pub attr: Attr,
    /// Hard link: where its attributes are.
    #[prost(uint32, optional, tag = "4")]
    pub home_slot: Option<u32>,
}

/// Answer to readdir.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReaddirReply {
    /// Sorted by (order, name).
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DirEntry>,
    /// There is no more on this shard.
    #[prost(bool, tag = "2")]
    pub end: bool,
}

/// Close or fsync of a file that was written through this client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CloseReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// The handle.
    #[prost(message, required, tag = "2")]
    pub at: At,
    /// Largest end of a write, in bytes; the size grows to it (rule 17).
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// Truncate generation under which the data was written.
    #[prost(uint64, tag = "4")]
    pub truncate_gen: u64,
    /// New content of a small file: replaces the old at `base_version` only.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub inline: Option<Bytes>,
    /// Data version that `inline` is built on.
    #[prost(uint64, tag = "6")]
    pub base_version: u64,
    /// Bytes written to chunks since the last report, for the count of bytes stored.
    #[prost(uint64, tag = "7")]
    pub written_bytes: u64,
    /// Bytes cleared in chunks since the last report.
    #[prost(uint64, tag = "8")]
    pub cleared_bytes: u64,
    /// Close: writes to chunks that are not flushed.
    #[prost(message, repeated, tag = "9")]
    pub unflushed: Vec<Unflushed>,
    /// Fsync: all that the row called unflushed at this data version is flushed, or its loss has
    /// been told.
    #[prost(uint64, optional, tag = "10")]
    pub flushed: Option<u64>,
    /// Fsync: nothing was written.
    #[prost(bool, tag = "11")]
    pub is_clean: bool,
}

/// Answer to close and fsync.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CloseReply {
    /// The inode now, in a conflict with its data.
    #[prost(message, required, tag = "1")]
    pub entry: Entry,
    /// Nothing was done: somebody else changed, truncated or spilled the file since
    /// `base_version`. Apply the writes to `entry` and send again.
    #[prost(bool, tag = "2")]
    pub conflict: bool,
}

/// O_APPEND: the owner gives the offset (rule 17). The size grows when the data is there, which
/// the writer says with its next append, or by close or fsync.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AppendReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// The handle.
    #[prost(message, required, tag = "2")]
    pub at: At,
    /// Bytes to append.
    #[prost(uint64, tag = "3")]
    pub len: u64,
    /// The bytes themselves, when they may fit into the row.
    #[prost(bytes = "bytes", tag = "4")]
    pub data: Bytes,
    /// Largest end of earlier writes that the owner has not heard of, as in [`CloseReq`].
    #[prost(uint64, tag = "5")]
    pub size: u64,
    /// Truncate generation under which they were written.
    #[prost(uint64, tag = "6")]
    pub truncate_gen: u64,
    /// Those that are not flushed.
    #[prost(message, repeated, tag = "7")]
    pub unflushed: Vec<Unflushed>,
}

/// Answer to append.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AppendReply {
    /// Where the bytes belong.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// The data went into the row: nothing is left to write.
    #[prost(bool, tag = "2")]
    pub stored: bool,
    /// The inode after it.
    #[prost(message, required, tag = "3")]
    pub entry: Entry,
}

/// The four xattr operations.
#[derive(Clone, PartialEq, prost::Message)]
pub struct XattrReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    #[prost(message, required, tag = "2")]
    #[allow(missing_docs)]
    pub at: At,
    /// Name with its namespace.
    #[prost(bytes = "bytes", tag = "3")]
    pub name: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    #[allow(missing_docs)]
    pub value: Bytes,
    /// 1 XATTR_CREATE, 2 XATTR_REPLACE.
    #[prost(uint32, tag = "5")]
    pub flags: u32,
}

/// Answer to getxattr and listxattr.
#[derive(Clone, PartialEq, prost::Message)]
pub struct XattrReply {
    #[prost(bytes = "bytes", tag = "1")]
    #[allow(missing_docs)]
    pub value: Bytes,
}

/// access(2).
#[derive(Clone, PartialEq, prost::Message)]
pub struct AccessReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    #[prost(message, required, tag = "2")]
    #[allow(missing_docs)]
    pub at: At,
    /// 4 read, 2 write, 1 execute, 0 exists.
    #[prost(uint32, tag = "3")]
    pub want: u32,
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

/// Counts of one shard.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ShardStats {
    /// Inodes that live here.
    #[prost(uint64, tag = "1")]
    pub inodes: u64,
    /// Orphans that wait for their leases to end.
    #[prost(uint64, tag = "2")]
    pub orphans: u64,
    /// Transactions without an outcome yet.
    #[prost(uint64, tag = "3")]
    pub prepared: u64,
}

/// Opens or ends a session on one node.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct SessionReq {
    /// Drawn at random by the client.
    #[prost(uint64, tag = "1")]
    pub session: u64,
}

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
    #[prost(uint32, tag = "5")]
    #[allow(missing_docs)]
    pub policy: u32,
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

/// Absolute totals of a directory on one shard (rule 20); also the value of their row.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Totals {
    /// Grows with every change.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Entries of the directory that this shard owns.
    #[prost(uint64, tag = "2")]
    pub entries: u64,
    /// Directories among them.
    #[prost(uint64, tag = "3")]
    pub subdirs: u64,
    /// Largest time of a change.
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
    /// Change owner or mode of the directory by `setattr`, or an ACL by `acl`.
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
pub enum Outcome {
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
    #[prost(enumeration = "Outcome", tag = "1")]
    #[allow(missing_docs)]
    pub outcome: i32,
}

/// fsck reads the rows of a shard, in key order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScanReq {
    /// Rows after this key.
    #[prost(bytes = "bytes", tag = "1")]
    pub after: Bytes,
    #[prost(uint32, tag = "2")]
    #[allow(missing_docs)]
    pub limit: u32,
}

/// Rows of a shard: keys and values as in [`crate::change`], inline data and xattrs included.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScanReply {
    #[prost(message, repeated, tag = "1")]
    #[allow(missing_docs)]
    pub rows: Vec<Row>,
    #[prost(bool, tag = "2")]
    #[allow(missing_docs)]
    pub end: bool,
}

/// Key and value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Row {
    #[prost(bytes = "bytes", tag = "1")]
    #[allow(missing_docs)]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    #[allow(missing_docs)]
    pub value: Bytes,
}

/// Begins to look out for inodes on a shard, or says what was seen of them since.
///
/// A row moves while rows are scanned, from one shard to another or behind the scan. So a shard that
/// looks out for an inode notes each row, vote or hold of it that comes. Who asks all shards to look
/// out, then scans all their rows, and then asks again, has met every inode that was there when the
/// last shard began.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchReq {
    /// Drawn at random.
    #[prost(uint64, tag = "1")]
    pub watch: u64,
    /// Begins: what to look out for. Empty: it ends.
    #[prost(uint64, repeated, tag = "2")]
    pub ids: Vec<InodeId>,
}

/// Answer to watch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchReply {
    /// Those that are known here besides by their rows, or have come.
    #[prost(uint64, repeated, tag = "1")]
    pub known: Vec<InodeId>,
}

/// Asks the coordinator for the cluster map.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct MapReq {
    /// Answer when there is one newer than this.
    #[prost(uint64, tag = "1")]
    pub newer_than: u64,
}

/// A shard reserves ids, or a store begins to serve: its mark is raised. It is in the node's
/// directory, durably, before it is told.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct MarkReq {
    /// 2 a shard, 4 a store: a role's number in a hello.
    #[prost(uint32, tag = "1")]
    pub role: u32,
    /// Number of the shard or store.
    #[prost(uint32, tag = "2")]
    pub n: u32,
    /// The highest mark that the coordinator has acknowledged.
    #[prost(uint64, tag = "3")]
    pub told: u64,
    /// The mark before this one: ids below may have been given out.
    #[prost(uint64, tag = "4")]
    pub have: u64,
    /// The mark now; `have`: nothing is raised.
    #[prost(uint64, tag = "5")]
    pub want: u64,
    /// Drawn at random for this mark: a repetition is told from a copy.
    #[prost(fixed64, tag = "6")]
    pub token: u64,
}

/// Members that may not serve.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RefusedReply {
    /// In order of their roles and numbers.
    #[prost(message, repeated, tag = "1")]
    pub members: Vec<RefusedMember>,
}

/// A member that was refused when it asked last.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RefusedMember {
    /// 2 a shard, 4 a store.
    #[prost(uint32, tag = "1")]
    pub role: u32,
    /// Number of the shard or store.
    #[prost(uint32, tag = "2")]
    pub n: u32,
    /// In words.
    #[prost(string, tag = "3")]
    pub why: String,
}

/// Writes payload into a chunk at an offset, or makes a hole there.
///
/// A request that nobody waits for any more may still be executed, after later writes of the same
/// bytes. So a write that is sent again says so: the store lets earlier attempts that run end
/// first, and refuses those that come later.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkWriteReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub index: u64,
    /// Byte within the chunk.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// Refused with ESTALE if the store knows a newer truncation (rule 17).
    #[prost(uint64, tag = "4")]
    pub truncate_gen: u64,
    /// The chunk's stores, first choice first.
    #[prost(uint32, repeated, tag = "5")]
    pub replicas: Vec<u32>,
    /// Reply after it is flushed to disk.
    #[prost(bool, tag = "6")]
    pub sync: bool,
    /// CRC32C of the payload, checked before it is stored.
    #[prost(fixed32, tag = "7")]
    pub crc: u32,
    /// Who writes, drawn at random by the client; 0: the shard that owns the inode, whose writes
    /// are told from late ones by the truncate generation.
    #[prost(uint64, tag = "8")]
    pub writer: u64,
    /// Number of the write at the writer.
    #[prost(uint64, tag = "9")]
    pub seq: u64,
    /// How often it was sent before.
    #[prost(uint32, tag = "10")]
    pub attempt: u32,
    /// Bytes of a hole that is made instead; there is no payload then.
    #[prost(uint64, tag = "11")]
    pub hole: u64,
}

/// What a write is called when it is to be flushed ([`Unflushed`]).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ChunkWriteReply {
    /// The store's era; 0: there is nothing to flush.
    #[prost(uint64, tag = "1")]
    pub era: u64,
    /// Number in the store's log.
    #[prost(uint64, tag = "2")]
    pub seq: u64,
}

/// Flushes all that the store has accepted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkSyncReq {
    /// Writes that must not have been lost before.
    #[prost(message, repeated, tag = "1")]
    pub unflushed: Vec<Unflushed>,
}

/// Answer to a flush that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ChunkSyncReply {
    /// Some of those writes were lost, with the power of the store's machine or by its disk.
    #[prost(bool, tag = "1")]
    pub lost: bool,
}

/// Reads a range of a chunk.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ChunkReadReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub index: u64,
    /// Byte within the chunk.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    #[prost(uint64, tag = "4")]
    #[allow(missing_docs)]
    pub len: u64,
    /// The client's machine (`runtime::fs::machine`), not 0: if it is the store's, too, the reply may
    /// say where the data is, instead of the data.
    #[prost(fixed64, tag = "5")]
    pub machine: u64,
    /// The client can wait for that machine's disk itself: the store need not have the data in the page
    /// cache before it says where it is.
    #[prost(bool, tag = "6")]
    pub fetches: bool,
}

/// The payload holds the range up to the last byte written; the rest reads as zeros.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkReadReply {
    /// CRC32C of the payload, made from the blocks' own checksums' verified data.
    #[prost(fixed32, tag = "1")]
    pub crc: u32,
    /// Where the data is, one after another; there is no payload then.
    #[prost(message, repeated, tag = "2")]
    pub places: Vec<ChunkPlace>,
    /// The directory of the places.
    #[prost(message, optional, tag = "3")]
    pub dir: Option<LocalDir>,
    /// Some of the payload was never written, or cleared.
    #[prost(bool, tag = "4")]
    pub holes: bool,
}

/// A directory of the store's machine.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct LocalDir {
    /// Absolute, as the store's process sees it.
    #[prost(string, tag = "1")]
    pub path: String,
    /// `st_dev`.
    #[prost(uint64, tag = "2")]
    pub dev: u64,
    /// `st_ino`.
    #[prost(uint64, tag = "3")]
    pub ino: u64,
}

/// Data of a chunk in a file of the store's machine, of one record. What is there once is never
/// changed; the file may be removed at any time, when the data has moved or is wanted no more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkPlace {
    /// Its name.
    #[prost(string, tag = "1")]
    pub file: String,
    /// Where the first block begins.
    #[prost(uint64, tag = "2")]
    pub pos: u64,
    /// Bytes of all blocks: each has [`BLOCK_BYTES`](crate::limits::BLOCK_BYTES) but the last.
    #[prost(uint32, tag = "3")]
    pub bytes: u32,
    /// CRC32C of each; none if there is `sum`.
    #[prost(fixed32, repeated, tag = "4")]
    pub sums: Vec<u32>,
    /// Bytes of the first block before the data.
    #[prost(uint32, tag = "5")]
    pub skip: u32,
    /// Bytes of data.
    #[prost(uint32, tag = "6")]
    pub len: u32,
    /// CRC32C of all blocks, for clients that fetch.
    #[prost(fixed32, optional, tag = "7")]
    pub sum: Option<u32>,
    /// It is on the disk only, and to be fetched from there.
    #[prost(bool, tag = "8")]
    pub cold: bool,
}

/// Cuts a file at `cut` bytes and refuses writes of older generations from now on.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ChunkTruncateReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub truncate_gen: u64,
    /// Bytes of the whole file that remain.
    #[prost(uint64, tag = "3")]
    pub cut: u64,
}

/// Deletes all chunks of these inodes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkDeleteReq {
    #[prost(uint64, repeated, tag = "1")]
    #[allow(missing_docs)]
    pub ids: Vec<InodeId>,
}

/// Sets chunks aside that nobody seems to know, for a day at least before they are deleted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkQuarantineReq {
    /// Inodes whose chunks are set aside. Who reads or writes one has it taken back.
    #[prost(uint64, repeated, tag = "1")]
    pub aside: Vec<InodeId>,
    /// These are taken back.
    #[prost(uint64, repeated, tag = "2")]
    pub back: Vec<InodeId>,
    /// No shard knows these, still: deleted if they were set aside a day ago or earlier.
    #[prost(uint64, repeated, tag = "3")]
    pub delete: Vec<InodeId>,
}

/// Answer to quarantine.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkQuarantineReply {
    /// Those whose chunks are deleted.
    #[prost(uint64, repeated, tag = "1")]
    pub deleted: Vec<InodeId>,
}

/// State of a store.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StoreStats {
    /// Bytes of the disk that the store may use.
    #[prost(uint64, tag = "1")]
    pub capacity_bytes: u64,
    /// Bytes of them that may be written.
    #[prost(uint64, tag = "2")]
    pub free_bytes: u64,
    /// Bytes of live data.
    #[prost(uint64, tag = "3")]
    pub data_bytes: u64,
    #[prost(uint64, tag = "4")]
    #[allow(missing_docs)]
    pub chunks: u64,
    #[prost(uint64, tag = "5")]
    #[allow(missing_docs)]
    pub segments: u64,
    /// Number of its disk, the same for all stores that share it; 0: unknown.
    #[prost(uint64, tag = "6")]
    pub disk: u64,
    /// Bytes of the whole disk.
    #[prost(uint64, tag = "7")]
    pub disk_bytes: u64,
    /// Bytes free on the whole disk.
    #[prost(uint64, tag = "8")]
    pub disk_free_bytes: u64,
    /// Bytes of the capacity that nothing takes: also what is kept free.
    #[prost(uint64, tag = "9")]
    pub unused_bytes: u64,
    /// The same of the whole disk: also what its file system keeps for root.
    #[prost(uint64, tag = "10")]
    pub disk_unused_bytes: u64,
}

/// Lists chunks in order of (id, index), after the one given.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ChunkListReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub after_id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub after_index: u64,
    #[prost(uint32, tag = "3")]
    #[allow(missing_docs)]
    pub limit: u32,
    /// Read every block and check it.
    #[prost(bool, tag = "4")]
    pub verify: bool,
}

/// A chunk on a store.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkInfo {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub index: u64,
    /// End of the last byte written, within the chunk.
    #[prost(uint64, tag = "3")]
    pub len: u64,
    /// With `verify`: what is wrong; empty is good.
    #[prost(string, tag = "4")]
    pub problem: String,
    /// Since when its inode is set aside ([`ChunkQuarantineReq`]), ns since the epoch; 0: it is not.
    #[prost(sfixed64, tag = "5")]
    pub aside_ns: i64,
}

/// Answer to list.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkListReply {
    #[prost(message, repeated, tag = "1")]
    #[allow(missing_docs)]
    pub chunks: Vec<ChunkInfo>,
    #[prost(bool, tag = "2")]
    #[allow(missing_docs)]
    pub end: bool,
}

/// Asks where a file has data on a store.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ChunkSeekReq {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub id: InodeId,
    /// Byte of the file from which on data is looked for.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// The first run of data at or behind the offset, of the chunks that this store has.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ChunkSeekReply {
    /// First byte of it in the file, at least the offset.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// First byte behind it, or of the next chunk; 0: there is no data.
    #[prost(uint64, tag = "2")]
    pub end: u64,
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_trailer_is_bounded_by_what_was_asked_for() {
        let most = KeptDir {
            id: InodeId::MAX,
            mode: u32::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            keep_ms: u32::MAX,
        };
        let of = |dirs: &[KeptDir]| KeptDirs { dirs: dirs.to_vec() }.encode_to_vec();
        assert_eq!(of(&[most]).len(), KEPT_DIR_BYTES_MAX);
        let asks = |keep_ms: &[u32]| At { keep_ms: keep_ms.to_vec(), ..At::default() };
        assert_eq!(KeptDirs::read(&of(&[most]), &asks(&[u32::MAX])), Some(vec![most]));
        let dir = KeptDir { keep_ms: 5, ..most };
        let trailer = of(&[dir, dir]);
        for (keep_ms, is_good) in
            [(&[5, 5][..], true), (&[9, 9, 9], true), (&[5, 4], false), (&[5], false), (&[], false)]
        {
            let read = KeptDirs::read(&trailer, &asks(keep_ms));
            assert_eq!(read, is_good.then(|| vec![dir, dir]), "{keep_ms:?}");
        }
        for len in 1..trailer.len() {
            let read = KeptDirs::read(&trailer[..len], &asks(&[5, 5]));
            assert!(read.is_none_or(|dirs| dirs == [dir]), "{len} bytes");
        }
        assert_eq!(KeptDirs::read(&[], &asks(&[])), Some(vec![]));
        // Many that are empty in few bytes.
        let many = of(&[KeptDir::default(); KEPT_DIR_BYTES_MAX / 2]);
        assert_eq!(KeptDirs::read(&many, &asks(&[5])), None);
    }
}
