//! Making a table: of the files of one partition while it is written, or of all partitions.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::{Ino, NAME_BYTES_MAX, ROOT, Table, hash_of};
use saker_types::FileKind;

use crate::digest::{DIGEST_BYTES, Digest};
use crate::error::{Error, Result};
use crate::format::{BlockRecord, EntryRecord, padded};
use crate::inode::{IMPLIED, InodeRecord, Meta};

/// A name in a directory, while a table is made.
#[derive(Clone, Copy)]
pub(super) struct Name {
    pub(super) parent: Ino,
    pub(super) ino: Ino,
    pub(super) hash: u32,
    /// [`EntryRecord::name`], in halves.
    place: [u32; 2],
}

const _: () = assert!(size_of::<Name>() == 20);

impl Name {
    pub(super) fn record(&self) -> EntryRecord {
        let [low, high] = self.place.map(u64::from);
        EntryRecord { hash: self.hash, ino: self.ino, name: low | high << 32 }
    }

    /// The name.
    pub(super) fn of<'n>(&self, names: &'n [u8]) -> &'n [u8] {
        let (at, len) = self.record().place();
        &names[at as usize..][..len]
    }

    /// Of the index.
    fn key(&self) -> u64 {
        key(self.parent, self.hash)
    }
}

/// A table that is being made.
#[derive(Clone)]
pub struct Builder {
    pub(super) inodes: Vec<InodeRecord>,
    pub(super) digests: Vec<[u8; DIGEST_BYTES]>,
    pub(super) entries: Vec<Name>,
    /// Entries by parent and name.
    pub(super) index: HashTable<u32>,
    pub(super) names: Vec<u8>,
    pub(super) attrs: Vec<u8>,
    pub(super) blocks: Vec<BlockRecord>,
    pub(super) partitions: u32,
}

/// Longest path, as the kernel takes it.
const PATH_BYTES_MAX: usize = 4095;

/// No inode.
const NOT_YET: Ino = Ino::MAX;

/// Refuses what would lead elsewhere, or could not be made.
fn check_name(name: &[u8]) -> Result<(), &'static str> {
    if name.len() > NAME_BYTES_MAX {
        return Err("a name of over 255 bytes");
    }
    let is_odd = name.iter().any(|c| matches!(c, 0 | b'/'));
    if name.is_empty() || name == b"." || name == b".." || is_odd {
        return Err("a path with an impossible name");
    }
    Ok(())
}

/// What the index finds a name by.
fn key(parent: Ino, hash: u32) -> u64 {
    xxh3_64([parent, hash].map(u32::to_le_bytes).as_flattened())
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// Of nothing but a root.
    pub fn new() -> Builder {
        Builder {
            inodes: vec![InodeRecord::implied()],
            digests: vec![[0; DIGEST_BYTES]],
            entries: Vec::new(),
            index: HashTable::new(),
            names: Vec::new(),
            // An offset of 0 means that there is nothing.
            attrs: vec![0; 8],
            blocks: Vec::new(),
            partitions: 0,
        }
    }

    fn find(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let hash = hash_of(name);
        let is_it = |n: &u32| {
            let entry = &self.entries[*n as usize];
            (entry.parent, entry.hash) == (parent, hash) && entry.of(&self.names) == name
        };
        let n = self.index.find(key(parent, hash), is_it)?;
        Some(self.entries[*n as usize].ino)
    }

    fn new_inode(&mut self, record: InodeRecord) -> Result<Ino, &'static str> {
        let ino = u32::try_from(self.inodes.len()).map_err(|_| "too many files")?;
        self.inodes.push(record);
        self.digests.push([0; DIGEST_BYTES]);
        Ok(ino)
    }

    fn insert(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<(), &'static str> {
        let len = u8::try_from(name.len()).map_err(|_| "a name of over 255 bytes")?;
        let n = u32::try_from(self.entries.len()).map_err(|_| "too many names")?;
        let place = EntryRecord::place_of(self.names.len() as u64, len);
        let (hash, place) = (hash_of(name), [place as u32, (place >> 32) as u32]);
        let entry = Name { parent, ino, hash, place };
        self.entries.push(entry);
        self.names.extend_from_slice(name);
        let Builder { index, entries, .. } = self;
        index.insert_unique(entry.key(), n, |n| entries[*n as usize].key());
        Ok(())
    }

    /// The directory that a path's last name is in, and that name. Directories that are missing are
    /// made as implied ones.
    fn place<'p>(&mut self, path: &'p [u8]) -> Result<(Ino, &'p [u8]), &'static str> {
        let mut dir = ROOT;
        let mut names = path.split(|c| *c == b'/').peekable();
        loop {
            let name = names.next().expect("a path has a name");
            check_name(name)?;
            if names.peek().is_none() {
                return Ok((dir, name));
            }
            dir = match self.find(dir, name) {
                Some(ino) if self.inodes[ino as usize].is_dir() => ino,
                Some(_) => return Err("a file where a directory is"),
                None => {
                    let ino = self.new_inode(InodeRecord::implied())?;
                    self.insert(dir, name, ino)?;
                    ino
                }
            };
        }
    }

    /// Adds what is at a path (`a/b`, empty for the root), without the data of a file. A directory may
    /// have been implied before.
    ///
    /// # Errors
    /// Words, for a path that is taken or impossible.
    pub fn add(&mut self, path: &[u8], meta: &Meta) -> Result<Ino, &'static str> {
        let mut record = meta.record();
        if !meta.xattrs.is_empty() {
            record.xattrs = self.push_xattrs(meta.xattrs.iter().map(|(n, v)| (&n[..], &v[..])))?;
        }
        if record.kind() == FileKind::Symlink {
            (record.offset, record.size) = (self.attrs.len() as u64, meta.target.len() as u64);
            self.attrs.extend_from_slice(&meta.target);
        }
        self.add_record(path, record)
    }

    fn push_xattrs<'a>(
        &mut self,
        all: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<u32, &'static str> {
        self.attrs.resize(padded(self.attrs.len() as u64) as usize, 0);
        let at = u32::try_from(self.attrs.len() / 8).map_err(|_| "too many attributes")?;
        self.attrs.extend_from_slice(&(all.len() as u32).to_le_bytes());
        for (name, value) in all {
            for len in [name.len(), value.len()] {
                self.attrs.extend_from_slice(&(len as u32).to_le_bytes());
            }
            self.attrs.extend_from_slice(name);
            self.attrs.extend_from_slice(value);
        }
        Ok(at)
    }

    fn add_record(&mut self, path: &[u8], record: InodeRecord) -> Result<Ino, &'static str> {
        if path.is_empty() {
            return self.describe(ROOT, record);
        }
        let (dir, name) = self.place(path)?;
        if let Some(ino) = self.find(dir, name) {
            return self.describe(ino, record);
        }
        let ino = self.new_inode(record)?;
        self.insert(dir, name, ino)?;
        Ok(ino)
    }

    /// A directory that was implied is this one.
    fn describe(&mut self, ino: Ino, record: InodeRecord) -> Result<Ino, &'static str> {
        let known = &mut self.inodes[ino as usize];
        match (known.flags & IMPLIED != 0, record.is_dir()) {
            (true, true) => *known = record,
            (false, true) if record.flags & IMPLIED != 0 && known.is_dir() => {}
            _ => return Err("a path that is there twice"),
        }
        Ok(ino)
    }

    /// Another name of a file.
    ///
    /// # Errors
    /// Words, for a path that is taken or impossible.
    pub fn link(&mut self, path: &[u8], ino: Ino) -> Result<(), &'static str> {
        let (dir, name) = self.place(path)?;
        if self.find(dir, name).is_some() {
            return Err("a path that is there twice");
        }
        self.insert(dir, name, ino)?;
        self.inodes[ino as usize].nlink += 1;
        Ok(())
    }

    /// Where a file's data is, and its digest. `blocks` of a file of several: their ends and checksums;
    /// of one: its checksum.
    pub(crate) fn set_data(
        &mut self,
        ino: Ino,
        mut data: crate::inode::FileData,
        blocks: &[(u64, u32)],
        digest: Digest,
    ) -> Result<(), &'static str> {
        data.check = match blocks {
            [] => 0,
            [(_, crc)] => *crc,
            _ => u32::try_from(self.blocks.len()).map_err(|_| "too many blocks")?,
        };
        if blocks.len() > 1 {
            let records = blocks.iter().map(|&(end, crc)| BlockRecord { end, crc, reserved: 0 });
            self.blocks.extend(records);
        }
        self.partitions = self.partitions.max(data.partition + 1);
        self.inodes[ino as usize].set_data(&data);
        self.digests[ino as usize] = digest.0;
        Ok(())
    }

    /// Adds all of another table.
    ///
    /// # Errors
    /// A path that is there already.
    pub fn merge(&mut self, table: &Table) -> Result<()> {
        let wrong = |what| Error::invalid(table.path(), what);
        // Numbers here of inodes there.
        let mut map = vec![NOT_YET; table.len() as usize];
        let root = InodeRecord { xattrs: 0, ..*table.inode(ROOT) };
        map[ROOT as usize] = self.describe(ROOT, root).map_err(wrong)?;
        self.partitions = self.partitions.max(table.partitions());
        self.copy_xattrs(table, ROOT, ROOT).map_err(wrong)?;
        // A table in which directories share entries, or inodes what they point to, is none of ours,
        // and may want far more memory than it has.
        let (mut entries, mut room) = (table.entries(), table.pointed_to());
        let mut dirs = vec![(ROOT, ROOT, 0)];
        while let Some((from, to, above)) = dirs.pop() {
            for (name, ino) in table.children(from) {
                check_name(name).map_err(wrong)?;
                let depth = above + name.len() + 1;
                if depth > PATH_BYTES_MAX {
                    return Err(wrong("a path of over 4,095 bytes"));
                }
                entries =
                    entries.checked_sub(1).ok_or_else(|| wrong("entries of two directories"))?;
                let known = self.find(to, name);
                let twice = || wrong("a path that is there twice");
                let here = map[ino as usize];
                if here != NOT_YET {
                    // Another name of a file. A second one of a directory would be a circle.
                    if known.is_some() || table.inode(ino).is_dir() {
                        return Err(twice());
                    }
                    self.insert(to, name, here).map_err(wrong)?;
                    continue;
                }
                let record = InodeRecord { xattrs: 0, ..*table.inode(ino) };
                let here = match known {
                    Some(here) => self.describe(here, record).map_err(wrong)?,
                    None => {
                        let here = self.new_inode(record).map_err(wrong)?;
                        self.insert(to, name, here).map_err(wrong)?;
                        here
                    }
                };
                map[ino as usize] = here;
                if record.is_dir() {
                    dirs.push((ino, here, depth));
                }
                let before = self.pointed_to();
                self.copy(table, ino, here).map_err(wrong)?;
                room = room
                    .checked_sub(self.pointed_to() - before)
                    .ok_or_else(|| wrong("data of two inodes"))?;
            }
        }
        Ok(())
    }

    /// Bytes that inodes point to.
    fn pointed_to(&self) -> u64 {
        (self.attrs.len() + size_of::<BlockRecord>() * self.blocks.len()) as u64
    }

    /// What an inode's record points to.
    fn copy(&mut self, table: &Table, from: Ino, to: Ino) -> Result<(), &'static str> {
        let record = *table.inode(from);
        if let Some(target) = table.target(from) {
            self.inodes[to as usize].offset = self.attrs.len() as u64;
            self.attrs.extend_from_slice(target);
        }
        if let Some(data) = record.data() {
            let blocks = (0..data.blocks()).map(|n| table.block(&data, n));
            let blocks: Option<Vec<_>> =
                blocks.map(|block| block.map(|(range, crc)| (range.end, crc))).collect();
            let blocks = blocks.ok_or("a file without its blocks")?;
            let digest = table.digest(from).ok_or("a file without a digest")?;
            self.set_data(to, data, &blocks, digest)?;
        }
        self.copy_xattrs(table, from, to)
    }

    fn copy_xattrs(&mut self, table: &Table, from: Ino, to: Ino) -> Result<(), &'static str> {
        if table.inode(from).xattrs > 0 && table.inode(from).flags & IMPLIED == 0 {
            let at = self.push_xattrs(table.xattrs(from).into_iter())?;
            self.inodes[to as usize].xattrs = at;
        }
        Ok(())
    }
}
