//! Reading a partition.

use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use zerocopy::{FromBytes, IntoBytes};

use crate::block::expand;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::format::{
    FOOTER_BYTES, Footer, HEADER_BYTES, PAGE_BYTES, PARTITION_MAGIC, PartitionHeader, crc_of,
};
use crate::inode::{BLOCK_BYTES, FileData};
use crate::table::Table;

/// A partition, open.
pub struct Partition {
    path: PathBuf,
    file: File,
    /// Its number, and how many there are.
    pub number: u32,
    /// Partitions of its dataset.
    pub of: u32,
    /// Its digest.
    pub digest: Digest,
    /// Bytes of the file.
    pub bytes: u64,
    table: Table,
}

impl Partition {
    /// Opens a partition: reads its first and its last bytes, and maps its table.
    ///
    /// # Errors
    /// Foreign, newer, truncated, damaged; of the system.
    pub fn open(path: &Path) -> Result<Partition> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let bytes = file.metadata().map_err(|e| Error::io(path, e))?.len();
        let mut raw = [0; size_of::<PartitionHeader>()];
        if bytes < HEADER_BYTES + FOOTER_BYTES {
            return match file.read_exact_at(&mut raw[..8], 0) {
                Ok(()) if raw[..8] == PARTITION_MAGIC => {
                    Err(Error::truncated(path, format!("it has {bytes} bytes")))
                }
                _ => Err(Error::Foreign(path.to_owned())),
            };
        }
        file.read_exact_at(&mut raw, 0).map_err(|e| Error::io(path, e))?;
        let header = PartitionHeader::read_from_bytes(&raw).expect("as long as that");
        header.preamble.check(PARTITION_MAGIC, path)?;
        if header.crc != crc_of(&header) || header.number >= header.of {
            return Err(Error::damaged(path, "the header"));
        }
        let mut raw = [0; FOOTER_BYTES as usize];
        file.read_exact_at(&mut raw, bytes - FOOTER_BYTES).map_err(|e| Error::io(path, e))?;
        let footer = Footer::read_from_bytes(&raw).expect("as long as that");
        if footer.magic != PARTITION_MAGIC {
            return Err(Error::truncated(path, "its end is missing"));
        }
        if footer.crc != crc_of(&footer) {
            return Err(Error::damaged(path, "the footer"));
        }
        let end = footer.table.checked_add(footer.table_bytes);
        if end != Some(bytes - FOOTER_BYTES) || !footer.table.is_multiple_of(PAGE_BYTES) {
            return Err(Error::truncated(path, "bytes are missing"));
        }
        let table = Table::map(&file, path, footer.table, footer.table_bytes)?;
        let (number, of, digest) = (header.number, header.of, Digest(footer.digest));
        Ok(Partition { path: path.to_owned(), file, number, of, digest, bytes, table })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes on disk.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The table of its own files.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The same, without the partition.
    pub(crate) fn into_table(self) -> Table {
        self.table
    }

    /// Compares header and table with their checksums and the digest.
    ///
    /// # Errors
    /// Damaged.
    pub fn verify(&self) -> Result<()> {
        self.table.verify()?;
        if digest_of(self.number, self.of, &self.table) != self.digest {
            return Err(Error::damaged(&self.path, "it does not have its digest"));
        }
        Ok(())
    }

    /// Block `n` of a file, by the table that the file was found in; checked.
    ///
    /// # Errors
    /// Damaged; of the system.
    pub fn read_block(&self, table: &Table, data: &FileData, n: u64) -> Result<Vec<u8>> {
        let (range, crc) = table
            .block(data, n)
            .filter(|(range, _)| range.end - range.start <= BLOCK_BYTES)
            .ok_or_else(|| Error::damaged(&self.path, "blocks that are not there"))?;
        let mut stored = vec![0; (range.end - range.start) as usize];
        self.read_stored(data.offset + range.start, &mut stored)?;
        expand(&self.path, data, n, Cow::Owned(stored), crc)
    }

    /// Bytes as they are stored.
    ///
    /// # Errors
    /// Truncated, of the system.
    pub fn read_stored(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, offset).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Error::truncated(&self.path, "a file's data is missing")
            }
            _ => Error::io(&self.path, e),
        })
    }
}

/// A partition's digest: of what it says it is, and its table, which has the digests of its files.
pub(crate) fn digest_of(number: u32, of: u32, table: &Table) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header_of(number, of).as_bytes());
    hasher.update(table.as_bytes());
    Digest(*hasher.finalize().as_bytes())
}

/// Bytes of a partition whose data ends at `end`.
pub(crate) fn bytes_of(end: u64, table: &Table) -> u64 {
    end.next_multiple_of(PAGE_BYTES) + table.as_bytes().len() as u64 + FOOTER_BYTES
}

pub(crate) fn header_of(number: u32, of: u32) -> PartitionHeader {
    let preamble = crate::format::Preamble::new(PARTITION_MAGIC);
    let mut header = PartitionHeader { preamble, number, of, crc: 0 };
    header.crc = crc_of(&header);
    header
}
