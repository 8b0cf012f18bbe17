//! Packing files into partitions.
//!
//! ```text
//! Source ──plan──> files in the order of their paths, each with its partition
//!   readers (threads): read, compress, checksum, digest      as far ahead as memory allows
//!   writer: appends to the partition in order, notes its progress
//!   objects: keep a partition while the next is packed; or it stays where it is
//! ```
//!
//! What is packed depends on the files and the options alone, not on threads, times or names of
//! directories: the same input gives the same bytes. A file's partition depends on its path, so that
//! a changed file changes one partition. A run that was killed goes on with the file where it was,
//! if the input is still the same.

use std::borrow::Borrow;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::codec::Codec;
use crate::dataset::{MANIFEST, Manifest, PartitionInfo, TABLE, sync_dir, write_pieces};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::inode::{FileData, PARTITIONS_MAX};
use crate::partition::Partition;
use crate::table::{Builder, Table};

mod listing;
mod objects;
mod plan;
mod progress;
mod readers;
mod run;
mod source;
mod writer;

use run::Run;

pub use objects::Objects;
pub use plan::Plan;
pub use source::{Entry, Listed, LocalTree, Source};

/// How files are packed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Partitions to make.
    pub partitions: u32,
    /// How data is compressed.
    pub codec: Codec,
    /// Threads that read and compress; 0: one for each core.
    pub threads: usize,
    /// Bytes that may have been read and not written yet.
    pub memory_bytes: u64,
    /// Bytes after which a partition is flushed and its progress noted.
    pub note_every_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            partitions: 1,
            codec: Codec::None,
            threads: 0,
            memory_bytes: 256 << 20,
            note_every_bytes: 256 << 20,
        }
    }
}

/// How far packing has come; for those who watch it, and who stop it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files that are in partitions.
    pub files: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Of these, bytes that an earlier run had packed.
    pub resumed_bytes: AtomicU64,
    /// Bytes in the partitions.
    pub stored: AtomicU64,
    /// Set to stop at the next file.
    pub stop: AtomicBool,
}

impl Progress {
    /// All files of a table are in partitions of an earlier run.
    fn add_earlier(&self, table: &Table) {
        let data = (0..table.len()).filter_map(|ino| table.inode(ino).data());
        data.for_each(|data| self.add(&data, true));
    }

    /// A file is in its partition; `resumed`: an earlier run had packed it.
    fn add(&self, data: &FileData, resumed: bool) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(data.size, Ordering::Relaxed);
        self.stored.fetch_add(data.stored, Ordering::Relaxed);
        if resumed {
            self.resumed_bytes.fetch_add(data.size, Ordering::Relaxed);
        }
    }

    fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Packs what a plan lists into a directory, which is made, and writes its manifest last. A plan that
/// is handed over is forgotten when it is not needed any more.
///
/// # Errors
/// Invalid: a dataset is there already, or a file has changed since it was listed. Of the system.
pub fn pack(
    source: &dyn Source,
    plan: impl Borrow<Plan>,
    to: &Path,
    options: &Options,
    progress: &Progress,
) -> Result<Manifest> {
    let _alone = begin(to, options)?;
    let manifest = to.join(MANIFEST);
    if manifest.exists() {
        // The run that made it may have been killed before it was tidy.
        remove_left_overs(to, Manifest::read(to)?.partitions.len() as u32)?;
        return Err(Error::invalid(&manifest, "a dataset is there already"));
    }
    let parts = Run::new(source, plan.borrow(), to, options, progress).partitions(None)?;
    drop(plan);
    let packed = finish(to, parts, |info| Ok(Partition::open(&to.join(&info.name))?.into_table()))?;
    packed.manifest.write(to)?;
    remove_left_overs(to, options.partitions)?;
    sync_dir(to)?;
    Ok(packed.manifest)
}

/// What was packed into objects.
pub struct Packed {
    /// What it is.
    pub manifest: Manifest,
    /// All its files.
    pub table: Table,
}

/// Packs what a plan lists into objects. On the disk of `scratch`, a directory which is made and left
/// behind, are two partitions at most, and the tables of all. A run that goes on in the same one does
/// not store again what is there.
///
/// # Errors
/// Invalid: a file has changed since it was listed. Of the system, and of `objects`.
pub fn pack_objects(
    source: &dyn Source,
    plan: Plan,
    scratch: &Path,
    options: &Options,
    progress: &Progress,
    objects: &dyn Objects,
) -> Result<Packed> {
    let _alone = begin(scratch, options)?;
    let run = Run::new(source, &plan, scratch, options, progress);
    let parts = run.partitions(Some(objects))?;
    drop(plan);
    let packed =
        finish(scratch, parts, |info| Table::open(&table_path(&scratch.join(&info.name))))?;
    let Manifest { table_digest, table_bytes, .. } = &packed.manifest;
    objects.put(table_digest, &scratch.join(TABLE), *table_bytes)?;
    Ok(packed)
}

/// Makes a directory, and keeps other runs out of it.
fn begin(dir: &Path, options: &Options) -> Result<File> {
    if options.partitions == 0 || options.partitions >= PARTITIONS_MAX {
        return Err(Error::invalid(dir, format!("{} partitions", options.partitions)));
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
    lock(dir)
}

/// Writes the table of all files, and says what they are. `table` opens that of a partition.
fn finish(
    dir: &Path,
    parts: Vec<PartitionInfo>,
    table: impl Fn(&PartitionInfo) -> Result<Table>,
) -> Result<Packed> {
    let mut builder = Builder::new();
    parts.iter().try_for_each(|info| builder.merge(&table(info)?))?;
    let (closed, mut hasher) = (builder.close(true), blake3::Hasher::new());
    let path = dir.join(TABLE);
    write_pieces(&path, |put| {
        closed.write(|bytes| {
            hasher.update(bytes);
            put(bytes)
        })
    })?;
    drop(closed);
    let table = Table::open(&path)?;
    let manifest = Manifest::of(parts, &table, Digest(*hasher.finalize().as_bytes()));
    Ok(Packed { manifest, table })
}

/// Where the table of a partition is that has become an object.
fn table_path(partition: &Path) -> PathBuf {
    partition.with_extension("table")
}

/// Keeps other runs out of a directory.
fn lock(dir: &Path) -> Result<File> {
    let file = File::open(dir).map_err(|e| Error::io(dir, e))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(Error::invalid(dir, "another run packs into it")),
        Err(e) => Err(Error::io(dir, e)),
    }
}

/// Removes notes, and what an earlier run has left that wanted more partitions.
fn remove_left_overs(dir: &Path, partitions: u32) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))? {
        let path = entry.map_err(|e| Error::io(dir, e))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let parts = name.strip_prefix("part-").and_then(|rest| rest.split_once('.'));
        let Some((number, kind)) = parts else { continue };
        let Ok(number) = number.parse::<u32>() else { continue };
        if ["partial", "progress", "table"].contains(&kind)
            || (kind == "saker" && number >= partitions)
        {
            std::fs::remove_file(&path).map_err(|e| Error::io(&path, e))?;
        }
    }
    Ok(())
}
