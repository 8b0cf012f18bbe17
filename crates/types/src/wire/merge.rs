//! Merging what the holder of a subtree did, and loading what it needs for that (Cudele section 3).

use bytes::Bytes;

use crate::inode::{Inode, Locator};
use crate::{InodeId, Stamp};

use super::{At, Ctx, EntryKey};

/// Rows of a merge, for the shard that owns them. They are kept durably and not visible; sent again they
/// change nothing. Only for who holds the subtree in this epoch ([`Ctx::holder`]): ESTALE for others.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StageReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// The policy's number.
    #[prost(uint64, tag = "2")]
    pub policy: u64,
    /// Epoch of the hold.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// Counts the attempts in this epoch, from 1: what was staged in an earlier one does not count.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
    /// At most [`STAGE_ROWS_MAX`](crate::limits::STAGE_ROWS_MAX), with the directories.
    #[prost(message, repeated, tag = "5")]
    pub rows: Vec<StagedRow>,
    /// Directories that were there before, in which rows are staged at any shard. Every shard of the
    /// cluster must have been told of all: it makes others wait there while the merge is made.
    #[prost(message, repeated, tag = "6")]
    pub dirs: Vec<Locator>,
    /// Rows and directories are not here, but in the stores (Cudele section 3.1, "Nonvolatile Apply").
    #[prost(message, optional, tag = "7")]
    pub stored: Option<StoredAt>,
}

/// Where [`StoredRows`] are: in a part of one chunk of a file.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StoredAt {
    /// The file's inode.
    #[prost(uint64, tag = "1")]
    pub id: InodeId,
    /// The chunk.
    #[prost(uint64, tag = "2")]
    pub index: u64,
    /// Byte within the chunk.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// Bytes, at most [`STAGE_BYTES_MAX`](crate::limits::STAGE_BYTES_MAX).
    #[prost(uint64, tag = "4")]
    pub len: u64,
    /// CRC32C of these.
    #[prost(fixed32, tag = "5")]
    pub crc: u32,
}

/// What a [`StageReq`] has, in the stores.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredRows {
    /// As there.
    #[prost(message, repeated, tag = "1")]
    pub rows: Vec<StagedRow>,
    /// As there.
    #[prost(message, repeated, tag = "2")]
    pub dirs: Vec<Locator>,
}

/// A row as it will be.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StagedRow {
    /// Where; absent for an attribute row.
    #[prost(message, optional, tag = "1")]
    pub entry: Option<EntryKey>,
    /// Attribute row of a new inode with several names: its home slot.
    #[prost(uint32, optional, tag = "2")]
    pub attr_slot: Option<u32>,
    /// The new row; absent: what is there is removed. The times of a new directory are those that it
    /// will have.
    #[prost(message, optional, tag = "3")]
    pub row: Option<Inode>,
    /// The file that must be there now, to be replaced, changed (if the new row has the same id) or
    /// removed; 0: nothing may be there.
    #[prost(uint64, tag = "4")]
    pub expect: InodeId,
    /// Its directory is new, too: a row of the same merge.
    #[prost(bool, tag = "5")]
    pub in_new_dir: bool,
    /// The file that is replaced or removed gets another name by the same merge.
    #[prost(message, optional, tag = "6")]
    pub moves_to: Option<Locator>,
}

/// Do the staged rows of a merge fit? Coordinator to shards. Until the shard hears from the coordinator
/// that the merge is over, whoever comes to one of its directories waits.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct CheckMergeReq {
    /// As in [`StageReq`].
    #[prost(uint64, tag = "1")]
    pub policy: u64,
    /// As in [`StageReq`].
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// As in [`StageReq`].
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
    /// Rows that the shard must have: else ESTALE.
    #[prost(uint64, tag = "4")]
    pub rows: u64,
    /// Directories that it must have been told of: else ESTALE.
    #[prost(uint64, tag = "5")]
    pub dirs: u64,
    /// Nothing will come of it: nobody need wait.
    #[prost(bool, tag = "6")]
    pub dry_run: bool,
}

/// Answer to that. They fit if nothing conflicts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CheckMergeReply {
    /// The first [`MERGE_CONFLICTS_MAX`](crate::limits::MERGE_CONFLICTS_MAX) of them.
    #[prost(message, repeated, tag = "1")]
    pub conflicts: Vec<MergeConflict>,
}

/// The merge is decided: a shard puts its staged rows into the namespace, and answers when all are there.
/// Coordinator to shards; told again it goes on.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ApplyMergeReq {
    /// As in [`StageReq`].
    #[prost(uint64, tag = "1")]
    pub policy: u64,
    /// As in [`StageReq`].
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// As in [`StageReq`].
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
    /// When directories that were there before have changed.
    #[prost(fixed64, tag = "4")]
    pub time_ns: Stamp,
}

/// Something else is at a name than the holder saw, or a directory is not where it was.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MergeConflict {
    /// The name. Of a directory that is not where it was: its id, and no name.
    #[prost(message, required, tag = "1")]
    pub entry: EntryKey,
    /// What is there; 0: nothing.
    #[prost(uint64, tag = "2")]
    pub there: InodeId,
    /// Type and permission bits of that.
    #[prost(uint32, tag = "3")]
    pub mode: u32,
    /// It has several names: then it is neither replaced nor removed.
    #[prost(bool, tag = "4")]
    pub linked: bool,
    /// Where the directory is now, or the file that was expected, if it has moved and that is remembered.
    #[prost(message, optional, tag = "5")]
    pub moved: Option<Locator>,
}

/// What a holder has staged becomes part of the namespace, all at once. A merge that was made is
/// answered as made when it is asked for again, also in another session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MergeReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// As in [`StageReq`].
    #[prost(uint64, tag = "2")]
    pub policy: u64,
    /// As in [`StageReq`].
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// As in [`StageReq`].
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
    /// How many rows each shard has, by its number; shards without any may be left out.
    #[prost(message, repeated, tag = "5")]
    pub shards: Vec<ShardRows>,
    /// How many directories every shard was told of.
    #[prost(uint64, tag = "6")]
    pub dirs: u64,
    /// Nobody holds the subtree afterwards; else the client does, in the next epoch.
    #[prost(bool, tag = "7")]
    pub release: bool,
    /// Only say what conflicts.
    #[prost(bool, tag = "8")]
    pub dry_run: bool,
}

/// Rows of a merge at a shard.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ShardRows {
    #[prost(uint32, tag = "1")]
    #[allow(missing_docs)]
    pub shard: u32,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub rows: u64,
}

/// Outcome of a merge.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MergeReply {
    /// Not empty: nothing was merged.
    #[prost(message, repeated, tag = "1")]
    pub conflicts: Vec<MergeConflict>,
    /// The epoch from now on; 0: nobody holds the subtree. After a dry run and with conflicts: as it was.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
}

/// Value of a staged row ([`table::STAGED`](crate::change::table::STAGED)).
#[derive(Clone, PartialEq, prost::Message)]
pub struct StagedValue {
    /// As in [`StagedRow`].
    #[prost(message, optional, tag = "1")]
    pub row: Option<Inode>,
    /// As in [`StagedRow`].
    #[prost(uint64, tag = "2")]
    pub expect: InodeId,
    /// As in [`StageReq`].
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
    /// As in [`StagedRow`].
    #[prost(bool, tag = "4")]
    pub in_new_dir: bool,
    /// As in [`StagedRow`].
    #[prost(message, optional, tag = "5")]
    pub moves_to: Option<Locator>,
    /// It is no row, but a directory of [`StageReq::dirs`].
    #[prost(message, optional, tag = "6")]
    pub dir: Option<Locator>,
}

impl StagedValue {
    /// Inodes that it is about.
    pub fn ids(&self) -> impl Iterator<Item = InodeId> {
        let row = self.row.as_ref().map(|row| row.attr.id);
        row.into_iter().chain([self.expect]).filter(|id| *id != 0)
    }
}

/// What a shard has of a directory, whole, for who holds the subtree in which it is ([`Ctx::holder`],
/// [`Ctx::hold`]): ESTALE for others. In the order of [`ReaddirReq`](super::ReaddirReq).
#[derive(Clone, PartialEq, prost::Message)]
pub struct LoadReq {
    #[prost(message, required, tag = "1")]
    #[allow(missing_docs)]
    pub ctx: Ctx,
    /// The directory.
    #[prost(message, required, tag = "2")]
    pub at: At,
    /// Rows after this order and name; 0 and an empty name: from the beginning.
    #[prost(uint64, tag = "3")]
    pub after_order: u64,
    #[prost(bytes = "bytes", tag = "4")]
    #[allow(missing_docs)]
    pub after_name: Bytes,
    /// At most so many rows; 0: as many as fit.
    #[prost(uint32, tag = "5")]
    pub limit: u32,
    /// Not entries, but rows that the shard owns: attribute rows of these inodes with several names, and
    /// others at their names.
    #[prost(message, repeated, tag = "6")]
    pub homes: Vec<Locator>,
}

/// Answer to that.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LoadReply {
    /// Of `homes`: those that are there, in their order.
    #[prost(message, repeated, tag = "1")]
    pub rows: Vec<LoadedRow>,
    /// There are no more.
    #[prost(bool, tag = "2")]
    pub end: bool,
    /// The directory's own row, from the shard that owns it, with the first entries.
    #[prost(message, optional, tag = "3")]
    pub dir: Option<Inode>,
}

/// A row.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LoadedRow {
    /// Of an entry.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// Of an entry: its place in the order.
    #[prost(uint64, tag = "2")]
    pub order: u64,
    /// With attributes, data and extended attributes. Of a reference (`home_slot`): only id and type.
    #[prost(message, required, tag = "3")]
    pub row: Inode,
}
