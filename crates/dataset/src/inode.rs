//! What a dataset says of a file, directory or link.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use saker_types::FileKind;

use crate::codec::Codec;

/// Bytes of a file that are compressed and checked as one, before compression.
pub const BLOCK_BYTES: u64 = 4 << 20;
/// Partitions of a dataset, at most: their numbers have 24 bits.
pub const PARTITIONS_MAX: u32 = 1 << 24;

/// A directory that no partition describes: only what is below it.
pub(crate) const IMPLIED: u32 = 1;

/// One inode as it lies in a file; little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InodeRecord {
    /// Type and permissions (`st_mode`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names of a file; 2 and the directories in it of a directory.
    pub nlink: u32,
    /// Bytes of a file or link target; entries of a directory.
    pub size: u64,
    /// Modified, in seconds since 1970.
    pub mtime_s: i64,
    /// And nanoseconds.
    pub mtime_ns: u32,
    /// Of a device.
    pub rdev: u32,
    /// A file's partition (24 bits) and codec (8 bits, the highest).
    pub(crate) place: u32,
    /// Of a file of one block: the CRC32C of its data. Of more: the first of its blocks.
    pub(crate) check: u32,
    /// A file's first byte in its partition; a directory's first entry; a link target's first byte
    /// among the attributes.
    pub(crate) offset: u64,
    /// Bytes of a file in its partition. The parent of a directory.
    pub(crate) stored: u64,
    /// Extended attributes: where they are among the attributes, in units of 8 bytes; 0: none.
    pub(crate) xattrs: u32,
    /// [`IMPLIED`].
    pub(crate) flags: u32,
}

/// Bytes of an [`InodeRecord`].
pub(crate) const INODE_BYTES: usize = size_of::<InodeRecord>();

/// Where a file's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileData {
    /// Number of the partition.
    pub partition: u32,
    /// First byte there.
    pub offset: u64,
    /// Bytes there.
    pub stored: u64,
    /// Bytes of the file.
    pub size: u64,
    /// How they are compressed.
    pub codec: Codec,
    /// CRC32C, or the first block.
    pub(crate) check: u32,
}

impl FileData {
    /// Blocks of the file.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK_BYTES)
    }
}

impl InodeRecord {
    pub(crate) const EMPTY: InodeRecord = InodeRecord {
        mode: 0,
        uid: 0,
        gid: 0,
        nlink: 1,
        size: 0,
        mtime_s: 0,
        mtime_ns: 0,
        rdev: 0,
        place: 0,
        check: 0,
        offset: 0,
        stored: 0,
        xattrs: 0,
        flags: 0,
    };

    /// A directory that is known only by what is below it.
    pub(crate) fn implied() -> InodeRecord {
        InodeRecord { mode: 0o040_755, nlink: 2, flags: IMPLIED, ..InodeRecord::EMPTY }
    }

    /// What it is; a record with an impossible type is taken for a socket, which nobody can open.
    pub fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode).unwrap_or(FileKind::Socket)
    }

    /// It is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// It is a directory that nothing describes but what is in it.
    pub fn is_implied(&self) -> bool {
        self.flags & IMPLIED != 0
    }

    /// A file's data; `None` of anything else, and of a codec that is not known.
    pub fn data(&self) -> Option<FileData> {
        (self.kind() == FileKind::Regular).then_some(FileData {
            partition: self.place & (PARTITIONS_MAX - 1),
            offset: self.offset,
            stored: self.stored,
            size: self.size,
            codec: Codec::from_u8((self.place >> 24) as u8)?,
            check: self.check,
        })
    }

    pub(crate) fn set_data(&mut self, data: &FileData) {
        debug_assert!(data.partition < PARTITIONS_MAX);
        self.place = data.partition | u32::from(data.codec.to_u8()) << 24;
        (self.offset, self.stored, self.size) = (data.offset, data.stored, data.size);
        self.check = data.check;
    }
}

/// What a source says of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Type and permissions (`st_mode`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file.
    pub size: u64,
    /// Modified, in seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    /// Of a device.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes by name, in order.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Meta {
    /// What it is.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::of_mode(self.mode)
    }

    pub(crate) fn record(&self) -> InodeRecord {
        let is_dir = self.kind() == Some(FileKind::Directory);
        InodeRecord {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: if is_dir { 2 } else { 1 },
            mtime_s: self.mtime.0,
            mtime_ns: self.mtime.1,
            rdev: self.rdev,
            ..InodeRecord::EMPTY
        }
    }
}
