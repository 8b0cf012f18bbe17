//! The table of a dataset: what there is, and where. It lies in a file as it is used: opening one
//! of ten million files maps it and looks at its header.
//!
//! Names are found by their hash within their directory, whose entries stand together, so that a
//! directory is listed without a search. 72 bytes an inode and 16 a name, besides the name.
//!
//! Nothing in a table is trusted: what points out of it is [`Error::Damaged`], or not found. That
//! its parts are as they were written is checked by [`Table::verify`], not at each open.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::FromBytes;

use saker_types::FileKind;

use crate::block::expand;
use crate::digest::{DIGEST_BYTES, Digest};
use crate::error::{Error, Result};
use crate::format::{BlockRecord, EntryRecord, PARTS, TABLE_MAGIC, TableHeader, crc_of, padded};
use crate::inode::{FileData, INODE_BYTES, InodeRecord};

mod build;
mod finished;
mod path;

pub use build::Builder;
pub use finished::Finished;
pub use path::{Resolved, SYMLINKS_MAX};

/// Number of an inode in a table.
pub type Ino = u32;
/// The directory above all.
pub const ROOT: Ino = 0;
/// Longest name.
pub const NAME_BYTES_MAX: usize = 255;

/// Upper half of a name's hash. A constant of the format.
pub(crate) fn hash_of(name: &[u8]) -> u32 {
    (xxh3_64(name) >> 32) as u32
}

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u64>),
}

/// A table, mapped or in memory.
pub struct Table {
    path: PathBuf,
    bytes: Bytes,
    parts: [Range<usize>; PARTS],
    header: TableHeader,
}

impl Table {
    /// Maps the table in a file.
    ///
    /// # Errors
    /// Foreign, newer, truncated, damaged; of the system.
    pub fn open(path: &Path) -> Result<Table> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let len = file.metadata().map_err(|e| Error::io(path, e))?.len();
        Table::map(&file, path, 0, len)
    }

    /// Maps the table that is in a part of a file. `offset` is a multiple of the size of a page.
    pub(crate) fn map(file: &File, path: &Path, offset: u64, len: u64) -> Result<Table> {
        let len = usize::try_from(len).map_err(|_| Error::damaged(path, "too long"))?;
        if len < size_of::<TableHeader>() {
            return Err(Error::truncated(path, "no header of a table"));
        }
        let mut options = memmap2::MmapOptions::new();
        // SAFETY: files of datasets are written once, under another name. Who changes one in place
        // or cuts it may crash its readers, as with any mapped library.
        let map = unsafe { options.offset(offset).len(len).map(file) };
        let map = map.map_err(|e| Error::io(path, e))?;
        Table::new(path, Bytes::Mapped(map))
    }

    /// A table from a file's bytes, in words of the machine; `path` is where they are from.
    ///
    /// # Errors
    /// Foreign, newer, truncated, damaged.
    pub fn of_words(path: &Path, words: Vec<u64>) -> Result<Table> {
        Table::new(path, Bytes::Owned(words))
    }

    fn new(path: &Path, bytes: Bytes) -> Result<Table> {
        let raw = raw(&bytes);
        let (header, _) = TableHeader::read_from_prefix(raw)
            .map_err(|_| Error::truncated(path, "no header of a table"))?;
        header.preamble.check(TABLE_MAGIC, path)?;
        if crc_of(&header) != header.crc {
            return Err(Error::damaged(path, "the header of the table"));
        }
        let lens = [
            (header.inodes, INODE_BYTES as u64),
            (header.entries, size_of::<EntryRecord>() as u64),
            (header.blocks, size_of::<BlockRecord>() as u64),
            (header.names_bytes, 1),
            (header.attrs_bytes, 1),
            (header.digests, DIGEST_BYTES as u64),
        ];
        let mut parts = [const { 0..0 }; PARTS];
        let mut at = size_of::<TableHeader>() as u64;
        for (part, (count, each)) in parts.iter_mut().zip(lens) {
            let len = count.checked_mul(each).filter(|len| *len <= raw.len() as u64);
            let end = len.map(|len| at + len).filter(|end| *end <= raw.len() as u64);
            let end = end.ok_or_else(|| Error::truncated(path, "the table"))?;
            *part = at as usize..end as usize;
            at = padded(end);
        }
        if header.inodes == 0 || header.inodes > u64::from(u32::MAX) {
            return Err(Error::damaged(path, "a table without a root"));
        }
        if ![0, header.inodes].contains(&header.digests) {
            return Err(Error::damaged(path, "digests for some inodes only"));
        }
        let table = Table { path: path.to_owned(), bytes, parts, header };
        if !table.inode(ROOT).is_dir() {
            return Err(Error::damaged(path, "the root is no directory"));
        }
        Ok(table)
    }

    /// The file that it is in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes as they are written to a file.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        raw(&self.bytes)
    }

    fn part(&self, part: usize) -> &[u8] {
        &raw(&self.bytes)[self.parts[part].clone()]
    }

    /// Says whether both have the same header, and so the same checksums of all parts.
    pub fn is_same(&self, other: &Table) -> bool {
        let header = |table: &Table| raw(&table.bytes)[..size_of::<TableHeader>()].to_vec();
        header(self) == header(other)
    }

    /// Compares all parts with their checksums.
    ///
    /// # Errors
    /// Damaged.
    pub fn verify(&self) -> Result<()> {
        let names = ["inodes", "entries", "blocks", "names", "attributes", "digests"];
        for (part, name) in names.iter().enumerate() {
            if crc32c::crc32c(self.part(part)) != self.header.crcs[part] {
                return Err(Error::damaged(&self.path, format!("the table's {name}")));
            }
        }
        Ok(())
    }

    /// Inodes in it; their numbers are below.
    pub fn len(&self) -> u32 {
        self.header.inodes as u32
    }

    /// Never: there is a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Names in it.
    pub(crate) fn entries(&self) -> u64 {
        self.header.entries
    }

    /// Bytes that inodes point to, and what copies of them may be padded by.
    pub(crate) fn pointed_to(&self) -> u64 {
        let blocks = size_of::<BlockRecord>() as u64 * self.header.blocks;
        self.header.attrs_bytes + blocks + 8 * self.header.inodes
    }

    /// Partitions that its files are in.
    pub fn partitions(&self) -> u32 {
        self.header.partitions
    }

    /// An inode.
    ///
    /// # Panics
    /// If the number is none of this table.
    pub fn inode(&self, ino: Ino) -> &InodeRecord {
        self.find(ino).expect("a number of this table")
    }

    fn find(&self, ino: Ino) -> Option<&InodeRecord> {
        record(self.part(0), ino.into())
    }

    fn entry(&self, n: u64) -> Option<&EntryRecord> {
        record(self.part(1), n)
    }

    fn name(&self, entry: &EntryRecord) -> Option<&[u8]> {
        let (start, len) = entry.place();
        self.part(3).get(start as usize..)?.get(..len)
    }

    /// Entries of a directory, as numbers.
    fn entries_of(&self, dir: Ino) -> Range<u64> {
        match self.find(dir) {
            Some(inode) if inode.is_dir() => {
                inode.offset..inode.offset.saturating_add(inode.size).min(self.header.entries)
            }
            _ => 0..0,
        }
    }

    /// What a name in a directory leads to.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        let hash = hash_of(name);
        let Range { start, end } = self.entries_of(dir);
        let first = self.first_of(hash, start, end)?;
        let same = (first..end).map_while(|n| self.entry(n).filter(|entry| entry.hash == hash));
        let found = { same }.find(|entry| self.name(entry) == Some(name))?;
        (u64::from(found.ino) < self.header.inodes).then_some(found.ino)
    }

    /// The first entry of a hash or a higher one. Hashes are spread evenly, so that where it is can
    /// be guessed: three guesses or so in a directory of a million.
    fn first_of(&self, hash: u32, mut start: u64, mut end: u64) -> Option<u64> {
        // All hashes before `start` are lower, all from `end` on are not.
        let (mut low, mut high) = (0, u64::from(u32::MAX));
        let mut guesses = 0;
        while start < end {
            let span = (high - low).max(1);
            let near = (u64::from(hash) - low).min(span);
            let guess = match guesses {
                // Names may be chosen so that guesses are wrong.
                0..8 => {
                    start
                        + (u128::from(end - start - 1) * u128::from(near) / u128::from(span)) as u64
                }
                _ => start + (end - start) / 2,
            };
            guesses += 1;
            let at = u64::from(self.entry(guess)?.hash);
            if at < u64::from(hash) {
                (start, low) = (guess + 1, at);
            } else {
                (end, high) = (guess, at);
            }
        }
        Some(start)
    }

    /// Names in a directory and what they lead to, in the table's order.
    pub fn children(&self, dir: Ino) -> impl Iterator<Item = (&[u8], Ino)> {
        self.children_from(dir, 0)
    }

    /// The same from the `n`th on.
    pub fn children_from(&self, dir: Ino, n: u64) -> impl Iterator<Item = (&[u8], Ino)> {
        let Range { start, end } = self.entries_of(dir);
        let entries = (start.saturating_add(n).min(end)..end).map_while(|n| self.entry(n));
        entries.filter_map(|entry| {
            self.find(entry.ino)?;
            Some((self.name(entry)?, entry.ino))
        })
    }

    /// The directory above one.
    pub fn parent(&self, dir: Ino) -> Ino {
        let parent = self.find(dir).filter(|inode| inode.is_dir()).map(|inode| inode.stored);
        parent.filter(|parent| *parent < self.header.inodes).unwrap_or_default() as Ino
    }

    /// Target of a symbolic link.
    pub fn target(&self, ino: Ino) -> Option<&[u8]> {
        let inode = self.find(ino).filter(|inode| inode.kind() == FileKind::Symlink)?;
        self.part(4).get(inode.offset as usize..)?.get(..inode.size as usize)
    }

    /// Extended attributes, by name.
    pub fn xattrs(&self, ino: Ino) -> Vec<(&[u8], &[u8])> {
        let all = self.find(ino).filter(|inode| inode.xattrs > 0).and_then(|inode| {
            let rest = self.part(4).get(inode.xattrs as usize * 8..)?;
            let (count, mut rest) = rest.split_first_chunk::<4>()?;
            (0..u32::from_le_bytes(*count))
                .map(|_| {
                    let (lens, after) = rest.split_first_chunk::<8>()?;
                    let [name, value] = [&lens[..4], &lens[4..]]
                        .map(|len| u32::from_le_bytes(len.try_into().expect("four")) as usize);
                    let (name, after) = after.split_at_checked(name)?;
                    let (value, after) = after.split_at_checked(value)?;
                    rest = after;
                    Some((name, value))
                })
                .collect()
        });
        all.unwrap_or_default()
    }

    /// Digest of a file's data.
    pub fn digest(&self, ino: Ino) -> Option<Digest> {
        record::<[u8; DIGEST_BYTES]>(self.part(5), ino.into()).copied().map(Digest)
    }

    /// Where block `n` of a file is stored, from the file's first stored byte.
    pub fn stored_block(&self, data: &FileData, n: u64) -> Option<Range<u64>> {
        Some(self.block(data, n)?.0)
    }

    /// Block `n` of a file from what is stored of it, checked.
    ///
    /// # Errors
    /// Damaged.
    pub fn expand(&self, data: &FileData, n: u64, stored: Cow<'_, [u8]>) -> Result<Vec<u8>> {
        let block = self.block(data, n);
        let (_, crc) = block.ok_or_else(|| Error::damaged(&self.path, "a block is missing"))?;
        expand(&self.path, data, n, stored, crc)
    }

    /// Block `n` of a file: where it is in the file's part of the partition, and its checksum.
    pub(crate) fn block(&self, data: &FileData, n: u64) -> Option<(Range<u64>, u32)> {
        if data.blocks() == 1 {
            return (n == 0).then_some((0..data.stored, data.check));
        }
        let first = u64::from(data.check);
        let block: &BlockRecord = record(self.part(2), first.checked_add(n)?)?;
        let start = match n {
            0 => 0,
            n => record::<BlockRecord>(self.part(2), first + n - 1)?.end,
        };
        let whole = n < data.blocks() && start <= block.end && block.end <= data.stored;
        whole.then_some((start..block.end, block.crc))
    }
}

/// Record `n` of a part.
fn record<T: FromBytes + zerocopy::Immutable + zerocopy::KnownLayout>(
    part: &[u8],
    n: u64,
) -> Option<&T> {
    let start = usize::try_from(n).ok()?.checked_mul(size_of::<T>())?;
    T::ref_from_bytes(part.get(start..start.checked_add(size_of::<T>())?)?).ok()
}

fn raw(bytes: &Bytes) -> &[u8] {
    match bytes {
        Bytes::Mapped(map) => map,
        Bytes::Owned(words) => zerocopy::IntoBytes::as_bytes(&words[..]),
    }
}

#[cfg(test)]
mod tests;
