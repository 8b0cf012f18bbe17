//! What files of a dataset begin and end with.

use std::path::Path;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};

/// First bytes of a partition.
pub(crate) const PARTITION_MAGIC: [u8; 8] = *b"SAKERPRT";
/// First bytes of a table.
pub(crate) const TABLE_MAGIC: [u8; 8] = *b"SAKERTAB";
/// First bytes of the files that every node keeps.
pub(crate) const BROADCAST_MAGIC: [u8; 8] = *b"SAKERBRC";
/// Of all of them.
pub(crate) const VERSION: u16 = 1;
/// A partition's data begins here, so that the first file can be mapped.
pub(crate) const HEADER_BYTES: u64 = PAGE_BYTES;
/// Files of this size or more that are stored as they are begin at a page, so that they can be
/// mapped.
pub(crate) const ALIGNED_FROM_BYTES: u64 = 64 << 10;
/// Of the largest pages that datasets are mapped with: 4 KiB on x86-64; elsewhere files are copied.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// What both kinds of files begin with; little-endian.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Preamble {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u16,
    pub(crate) reserved: [u8; 2],
    /// Features that a reader may ignore.
    pub(crate) compatible: u32,
    /// Features that a reader may ignore, but no writer.
    pub(crate) read_only: u32,
    /// Features that everybody must know.
    pub(crate) incompatible: u32,
}

impl Preamble {
    pub(crate) fn new(magic: [u8; 8]) -> Preamble {
        Preamble {
            magic,
            version: VERSION,
            reserved: [0; 2],
            compatible: 0,
            read_only: 0,
            incompatible: 0,
        }
    }

    /// Refuses what this version does not know.
    pub(crate) fn check(&self, magic: [u8; 8], path: &Path) -> Result<()> {
        if self.magic != magic {
            return Err(Error::Foreign(path.to_owned()));
        }
        let newer = |what| Err(Error::Newer { path: path.to_owned(), what });
        if self.version != VERSION {
            return newer(format!("format {}", self.version));
        }
        if self.incompatible != 0 {
            return newer(format!("features {:#x}", self.incompatible));
        }
        Ok(())
    }
}

/// First bytes of a partition.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct PartitionHeader {
    pub(crate) preamble: Preamble,
    /// Its number, and how many there are.
    pub(crate) number: u32,
    pub(crate) of: u32,
    /// CRC32C of what is before.
    pub(crate) crc: u32,
}

/// Last bytes of a partition: where the table is.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Footer {
    /// First byte of the table.
    pub(crate) table: u64,
    /// Its bytes.
    pub(crate) table_bytes: u64,
    /// Digest of header and table; the table has the digests of the files.
    pub(crate) digest: [u8; 32],
    pub(crate) magic: [u8; 8],
    pub(crate) reserved: u32,
    /// CRC32C of what is before.
    pub(crate) crc: u32,
}

/// Bytes of a [`Footer`].
pub(crate) const FOOTER_BYTES: u64 = size_of::<Footer>() as u64;

/// The CRC32C of a structure but its last four bytes, where it is kept.
pub(crate) fn crc_of<T: IntoBytes + Immutable>(of: &T) -> u32 {
    let bytes = of.as_bytes();
    crc32c::crc32c(&bytes[..bytes.len() - 4])
}

/// Where a table's parts begin, from their lengths; each at a multiple of 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct TableHeader {
    pub(crate) preamble: Preamble,
    /// Partitions that its files are in.
    pub(crate) partitions: u32,
    pub(crate) reserved: u32,
    pub(crate) inodes: u64,
    pub(crate) entries: u64,
    pub(crate) blocks: u64,
    pub(crate) names_bytes: u64,
    pub(crate) attrs_bytes: u64,
    /// One for each inode, or none.
    pub(crate) digests: u64,
    /// CRC32C of each part.
    pub(crate) crcs: [u32; PARTS],
    pub(crate) pad: u32,
    pub(crate) crc: u32,
}

/// Inodes, entries, blocks, names, attributes, digests.
pub(crate) const PARTS: usize = 6;

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct EntryRecord {
    /// Upper half of the name's XXH3. A directory's entries are in this order, then by name.
    pub(crate) hash: u32,
    pub(crate) ino: u32,
    /// First byte among the names (40 bits), and bytes of the name (8 bits, from bit 40).
    pub(crate) name: u64,
}

impl EntryRecord {
    /// Of a name that begins at a byte of the names.
    pub(crate) fn place_of(name: u64, len: u8) -> u64 {
        name | u64::from(len) << 40
    }

    /// The name's first byte among the names, and its length.
    pub(crate) fn place(&self) -> (u64, usize) {
        (self.name & ((1 << 40) - 1), (self.name >> 40 & 0xff) as usize)
    }
}

/// A block of a file of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct BlockRecord {
    /// Where it ends, from the file's first byte in its partition.
    pub(crate) end: u64,
    /// CRC32C of its data.
    pub(crate) crc: u32,
    pub(crate) reserved: u32,
}

/// The next multiple of 8 or more.
pub(crate) fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(8)
}
