//! A directory with a dataset: its partitions, and a manifest that says what they are.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use saker_types::FileKind;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::table::{Builder, Ino, ROOT, Table};

/// File that says what a dataset is.
pub const MANIFEST: &str = "dataset.json";
/// File with the table of all files.
pub const TABLE: &str = "table.saker";
/// Of [`Manifest`].
const FORMAT: u32 = 1;

/// Name of a partition's file.
pub fn partition_name(number: u32) -> String {
    format!("part-{number:05}.saker")
}

/// Makes names in a directory durable.
///
/// # Errors
/// Of the system.
pub fn sync_dir(dir: &Path) -> Result<()> {
    let opened = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    opened.map_err(|e| Error::io(dir, e))
}

/// Writes a file that is there whole or not at all, also after a crash.
///
/// # Errors
/// Of the system.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    write_pieces(path, |put| put(bytes))
}

/// The same for a file that comes in pieces: `write` calls what it is given with each.
pub(crate) fn write_pieces(
    path: &Path,
    write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let io = |e| Error::io(&new, e);
    let mut out = BufWriter::new(File::create(&new).map_err(io)?);
    write(&mut |bytes| out.write_all(bytes).map_err(io))?;
    let file = out.into_inner().map_err(|e| io(e.into_error()))?;
    file.sync_all().map_err(io)?;
    std::fs::rename(&new, path).map_err(io)?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// What a dataset is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this file.
    pub format: u32,
    /// Digest of names, contents and targets: equal for equal data, however and by whomever packed.
    pub digest: Digest,
    /// Files, each counted once.
    pub files: u64,
    /// Directories, the root among them.
    pub directories: u64,
    /// Symbolic links, and the few others.
    pub others: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Bytes of the table of all files.
    pub table_bytes: u64,
    /// Its digest.
    pub table_digest: Digest,
    /// The partitions, by number.
    pub partitions: Vec<PartitionInfo>,
}

/// A partition in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionInfo {
    /// Its file.
    pub name: String,
    /// Digest of all that it has.
    pub digest: Digest,
    /// Files in it.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the partition.
    pub stored: u64,
}

impl PartitionInfo {
    pub(crate) fn of_partition(part: &Partition) -> PartitionInfo {
        PartitionInfo::of(part.number, part.digest, part.bytes, part.table())
    }

    /// Of a partition, by its table. `stored`: bytes of the partition.
    pub(crate) fn of(number: u32, digest: Digest, stored: u64, table: &Table) -> PartitionInfo {
        let data = (0..table.len()).filter_map(|ino| table.inode(ino).data());
        let (files, bytes) = data.fold((0, 0), |(n, bytes), data| (n + 1, bytes + data.size));
        let name = partition_name(number);
        PartitionInfo { name, digest, files, bytes, stored }
    }
}

impl Manifest {
    /// Of partitions, and the table of all their files.
    pub(crate) fn of(
        partitions: Vec<PartitionInfo>,
        table: &Table,
        table_digest: Digest,
    ) -> Manifest {
        let mut of = Manifest {
            format: FORMAT,
            digest: tree_digest(table),
            files: 0,
            directories: 0,
            others: 0,
            bytes: 0,
            table_bytes: table.as_bytes().len() as u64,
            table_digest,
            partitions,
        };
        for ino in 0..table.len() {
            match table.inode(ino).kind() {
                FileKind::Regular => {
                    of.files += 1;
                    of.bytes += table.inode(ino).size;
                }
                FileKind::Directory => of.directories += 1,
                _ => of.others += 1,
            }
        }
        of
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).expect("it has no maps") + "\n";
        write_whole(&dir.join(MANIFEST), text.as_bytes())
    }

    /// The manifest of a dataset's directory.
    ///
    /// # Errors
    /// Of the system, foreign, newer.
    pub fn read(dir: &Path) -> Result<Manifest> {
        let path = dir.join(MANIFEST);
        let text = std::fs::read(&path).map_err(|e| Error::io(&path, e))?;
        Manifest::parse(&text, &path)
    }

    /// The manifest in the bytes of its file, which is called `path` in errors.
    ///
    /// # Errors
    /// Foreign, newer, damaged.
    pub fn parse(text: &[u8], path: &Path) -> Result<Manifest> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        match serde_json::from_slice::<Format>(text) {
            Err(_) => return Err(Error::Foreign(path.to_owned())),
            Ok(Format { format }) if format != FORMAT => {
                let what = format!("format {format}");
                return Err(Error::Newer { path: path.to_owned(), what });
            }
            Ok(_) => {}
        }
        serde_json::from_slice(text).map_err(|e| Error::damaged(path, e.to_string()))
    }
}

/// The digest of what is below the root: of names, contents, link targets. Not of owners, times and
/// permissions, nor of how it is packed. BLAKE3 of, for a directory, its names in order, each with
/// its length, its kind (as in `find -type`) and the digest of what it leads to; of a device, of its
/// number.
fn tree_digest(table: &Table) -> Digest {
    // Below first: a directory comes after all that is in it.
    let mut order = vec![ROOT];
    let mut n = 0;
    while let Some(&dir) = order.get(n) {
        let dirs = table.children(dir).map(|(_, ino)| ino);
        order.extend(dirs.filter(|ino| table.inode(*ino).is_dir()));
        n += 1;
    }
    let number_of = |ino| Digest::of(&table.inode(ino).rdev.to_le_bytes());
    let mut digests: BTreeMap<Ino, Digest> = BTreeMap::new();
    for dir in order.into_iter().rev() {
        let mut children: Vec<(&[u8], Ino)> = table.children(dir).collect();
        children.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        for (name, ino) in children {
            let (kind, digest) = match table.inode(ino).kind() {
                FileKind::Regular => (b"f", table.digest(ino)),
                FileKind::Directory => (b"d", digests.remove(&ino)),
                FileKind::Symlink => (b"l", table.target(ino).map(Digest::of)),
                FileKind::Fifo => (b"p", None),
                FileKind::Socket => (b"s", None),
                FileKind::CharDevice => (b"c", Some(number_of(ino))),
                FileKind::BlockDevice => (b"b", Some(number_of(ino))),
            };
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name);
            hasher.update(kind);
            hasher.update(&digest.map_or([0; 32], |digest| digest.0));
        }
        digests.insert(dir, Digest(*hasher.finalize().as_bytes()));
    }
    digests[&ROOT]
}

/// The table of all files of some partitions.
pub(crate) fn table_of(partitions: &[Partition]) -> Result<Table> {
    let mut builder = Builder::new();
    partitions.iter().try_for_each(|part| builder.merge(part.table()))?;
    Ok(builder.finish(true))
}

/// Something that is wrong with a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which file of the dataset, if it is one.
    pub path: Option<Vec<u8>>,
    /// What is wrong, with the partition.
    pub what: String,
}

/// A dataset in a directory.
pub struct Dataset {
    dir: PathBuf,
    manifest: Manifest,
    partitions: Vec<Partition>,
    table: Table,
}

impl Dataset {
    /// Opens all partitions of a dataset, and compares their tables with the checksums.
    ///
    /// # Errors
    /// Of any of them; Damaged: one is not what the manifest says.
    pub fn open(dir: &Path) -> Result<Dataset> {
        let manifest = Manifest::read(dir)?;
        let mut partitions = Vec::new();
        for (number, info) in manifest.partitions.iter().enumerate() {
            let name = partition_name(number as u32);
            if info.name != name {
                return Err(Error::damaged(&dir.join(MANIFEST), "partitions by other names"));
            }
            let part = Partition::open(&dir.join(&name))?;
            if part.number as usize != number || part.digest != info.digest {
                return Err(Error::damaged(part.path(), "not the partition of this dataset"));
            }
            part.verify()?;
            partitions.push(part);
        }
        let table = match Table::open(&dir.join(TABLE)) {
            // Mapped, which takes no memory; else it is made of the partitions' tables.
            Ok(table) if Digest::of(table.as_bytes()) == manifest.table_digest => table,
            _ => table_of(&partitions)?,
        };
        if table.partitions() as usize > partitions.len() {
            return Err(Error::damaged(dir, "files in partitions that are not there"));
        }
        Ok(Dataset { dir: dir.to_owned(), manifest, partitions, table })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// All files.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The partitions, by number.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Calls `f` with the blocks of a file in order; each is checked.
    ///
    /// # Errors
    /// Of the partition, and of `f`.
    pub fn read(&self, ino: Ino, mut f: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        let Some(data) = self.table.inode(ino).data() else {
            return Err(Error::invalid(&self.dir, "not a file"));
        };
        let part = self.partitions.get(data.partition as usize);
        let part = part.ok_or_else(|| Error::damaged(&self.dir, "a partition is missing"))?;
        (0..data.blocks()).try_for_each(|n| f(part.read_block(&self.table, &data, n)?))
    }

    /// Reads everything and compares it with checksums and digests. `watch` is called with the bytes of
    /// each block that was read, and ends it by an error.
    ///
    /// # Errors
    /// Of `watch`; what is wrong with the dataset is the result.
    pub fn verify(&self, mut watch: impl FnMut(u64) -> Result<()>) -> Result<Vec<Problem>> {
        let mut problems = Vec::new();
        let mut found = |path: Option<Vec<u8>>, error: Error| {
            problems.push(Problem { path, what: error.to_string() });
        };
        let merged = table_of(&self.partitions)?;
        let table_digest = Digest::of(merged.as_bytes());
        let parts = self.partitions.iter().map(PartitionInfo::of_partition).collect();
        let manifest = Manifest::of(parts, &merged, table_digest);
        drop(merged);
        let path = self.dir.join(MANIFEST);
        if manifest.digest != self.manifest.digest {
            found(None, Error::damaged(&path, "not the digest of the files"));
        } else if manifest != self.manifest {
            found(None, Error::damaged(&path, "not what the partitions have"));
        }
        let path = self.dir.join(TABLE);
        match Table::open(&path) {
            Ok(table) if Digest::of(table.as_bytes()) == table_digest => {}
            Ok(_) | Err(Error::Damaged { .. } | Error::Truncated { .. }) => {
                found(None, Error::damaged(&path, "not the table of the partitions"));
            }
            Err(error) => found(None, error),
        }
        let mut damaged = HashMap::new();
        for ino in self.files() {
            let mut hasher = blake3::Hasher::new();
            let mut stopped = None;
            let read = self.read(ino, |block| {
                hasher.update(&block);
                watch(block.len() as u64).inspect_err(|_| stopped = Some(()))
            });
            match read {
                Err(error) if stopped.is_some() => return Err(error),
                Err(error) => drop(damaged.insert(ino, error)),
                Ok(()) if self.table.digest(ino) != Some(Digest(*hasher.finalize().as_bytes())) => {
                    let error = Error::damaged(&self.dir, "not the file's digest");
                    damaged.insert(ino, error);
                }
                Ok(()) => {}
            }
        }
        if !damaged.is_empty() {
            self.each(|path, ino| {
                if let Some(error) = damaged.remove(&ino) {
                    found(Some(path.to_vec()), error);
                }
            });
        }
        Ok(problems)
    }

    /// All files in the order of their data.
    fn files(&self) -> Vec<Ino> {
        let files = (0..self.table.len()).filter_map(|ino| {
            let data = self.table.inode(ino).data()?;
            Some((data.partition, data.offset, ino))
        });
        let mut files: Vec<_> = files.collect();
        files.sort_unstable();
        files.into_iter().map(|(.., ino)| ino).collect()
    }

    /// Calls `f` with every path below the root, and what is there: directories before what is in
    /// them, names in order.
    pub fn each(&self, mut f: impl FnMut(&[u8], Ino)) {
        let all = self.try_each(|path, ino| {
            f(path, ino);
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(()) = all;
    }

    /// The same until `f` fails.
    ///
    /// # Errors
    /// Its.
    pub fn try_each<E>(&self, mut f: impl FnMut(&[u8], Ino) -> Result<(), E>) -> Result<(), E> {
        let sorted = |dir| {
            let mut children: Vec<(&[u8], Ino)> = self.table.children(dir).collect();
            children.sort_unstable();
            children.into_iter()
        };
        // For each directory on the way: what is left of it, and the length of its path.
        let mut dirs = vec![(sorted(ROOT), 0)];
        let mut path = Vec::new();
        while let Some((children, len)) = dirs.last_mut() {
            path.truncate(*len);
            let Some((name, ino)) = children.next() else {
                dirs.pop();
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            f(&path, ino)?;
            if self.table.inode(ino).is_dir() {
                dirs.push((sorted(ino), path.len()));
            }
        }
        Ok(())
    }
}
