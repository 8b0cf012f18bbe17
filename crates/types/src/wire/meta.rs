//! Names, attributes and data of small files: what clients ask MNodes for, and of directories the coordinator.

use bytes::Bytes;

use crate::inode::{Attr, Locator, Unflushed};
use crate::{InodeId, Stamp};

use super::{At, Ctx, Hold};

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
    /// Where it is, and the policy in force there; handles and anchors are made of this.
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
    /// Policy in force there ([`Locator::policy`]).
    #[prost(uint64, tag = "6")]
    pub policy: u64,
}

/// Bytes of a [`KeptDir`] in [`KeptDirs`], at most.
const KEPT_DIR_BYTES_MAX: usize = 48;

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
    /// Directory: its own policy; 0: that of the directory that it is in.
    #[prost(uint64, tag = "5")]
    pub policy: u64,
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
            policy: u64::MAX,
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
