//! Writing a table that was made.

use std::path::Path;

use hashbrown::HashTable;
use zerocopy::IntoBytes;

use super::Table;
use super::build::{Builder, Name};
use crate::digest::DIGEST_BYTES;
use crate::error::Result;
use crate::format::{
    BlockRecord, EntryRecord, PARTS, Preamble, TABLE_MAGIC, TableHeader, crc_of, padded,
};
use crate::inode::INODE_BYTES;

impl Builder {
    /// The table, with the files' digests or without.
    pub fn finish(self, with_digests: bool) -> Table {
        let closed = self.close(with_digests);
        let mut words = vec![0u64; (closed.bytes() / 8) as usize];
        let mut rest = words.as_mut_bytes();
        let copied: Result<()> = closed.write(|bytes| {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = after;
            Ok(())
        });
        copied.expect("memory takes it all");
        Table::of_words(Path::new("new table"), words).expect("it is whole")
    }

    /// A table that is ready to be written, with the files' digests or without.
    pub fn close(mut self, with_digests: bool) -> Finished {
        self.index = HashTable::new();
        if !with_digests {
            self.digests = Vec::new();
        }
        let names = &self.names;
        self.entries.sort_unstable_by(|a, b| {
            let hashes = (a.parent, a.hash).cmp(&(b.parent, b.hash));
            hashes.then_with(|| a.of(names).cmp(b.of(names)))
        });
        let mut start = 0;
        for (ino, inode) in (0..).zip(&mut self.inodes) {
            if inode.is_dir() {
                let of_it = self.entries[start..].iter().take_while(|entry| entry.parent == ino);
                let count = of_it.count();
                (inode.offset, inode.size) = (start as u64, count as u64);
                (inode.nlink, inode.stored) = (2, 0);
                start += count;
            }
        }
        for entry in &self.entries {
            if self.inodes[entry.ino as usize].is_dir() {
                self.inodes[entry.parent as usize].nlink += 1;
                self.inodes[entry.ino as usize].stored = entry.parent.into();
            }
        }
        Finished::of(self)
    }
}

/// A table that is ready to be written.
pub struct Finished {
    of: Builder,
    header: TableHeader,
}

/// Entries that are brought into their form at once.
const ENTRIES_AT_ONCE: usize = 4096;

impl Finished {
    fn of(of: Builder) -> Finished {
        let header = TableHeader {
            preamble: Preamble::new(TABLE_MAGIC),
            partitions: of.partitions,
            reserved: 0,
            inodes: of.inodes.len() as u64,
            entries: of.entries.len() as u64,
            blocks: of.blocks.len() as u64,
            names_bytes: of.names.len() as u64,
            attrs_bytes: of.attrs.len() as u64,
            digests: of.digests.len() as u64,
            crcs: [0; PARTS],
            pad: 0,
            crc: 0,
        };
        let mut finished = Finished { of, header };
        let mut crcs = [0; PARTS];
        let summed: Result<()> = finished.parts(|part, bytes| {
            crcs[part] = crc32c::crc32c_append(crcs[part], bytes);
            Ok(())
        });
        summed.expect("sums take it all");
        finished.header.crcs = crcs;
        finished.header.crc = crc_of(&finished.header);
        finished
    }

    /// Calls `f` with the parts' numbers and bytes, in pieces.
    fn parts(&self, mut f: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let of = &self.of;
        f(0, of.inodes.as_bytes())?;
        for entries in of.entries.chunks(ENTRIES_AT_ONCE) {
            let records: Vec<EntryRecord> = entries.iter().map(Name::record).collect();
            f(1, records.as_bytes())?;
        }
        f(2, of.blocks.as_bytes())?;
        f(3, &of.names)?;
        f(4, &of.attrs)?;
        f(5, of.digests.as_bytes())
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> u64 {
        let TableHeader { inodes, entries, blocks, names_bytes, attrs_bytes, digests, .. } =
            self.header;
        let lens = [
            inodes * INODE_BYTES as u64,
            entries * size_of::<EntryRecord>() as u64,
            blocks * size_of::<BlockRecord>() as u64,
            names_bytes,
            attrs_bytes,
            digests * DIGEST_BYTES as u64,
        ];
        size_of::<TableHeader>() as u64 + lens.map(padded).iter().sum::<u64>()
    }

    /// Calls `put` with all bytes of the table, in order.
    ///
    /// # Errors
    /// Those of `put`.
    pub fn write(&self, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        put(self.header.as_bytes())?;
        // Each part begins at a multiple of 8 bytes.
        let (mut last, mut len) = (0, 0);
        let pad = |put: &mut dyn FnMut(&[u8]) -> Result<()>, len: u64| {
            put(&[0; 8][..(padded(len) - len) as usize])
        };
        self.parts(|part, bytes| {
            if part != last {
                pad(&mut put, len)?;
                (last, len) = (part, 0);
            }
            len += bytes.len() as u64;
            put(bytes)
        })?;
        pad(&mut put, len)
    }
}
