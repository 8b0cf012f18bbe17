//! Packing files into partitions.
//!
//! ```text
//! Source ──plan──> files in the order of their paths, each with its partition
//!   readers (threads): read, compress, checksum, digest      as far ahead as memory allows
//!   writer: appends to the partition in order, notes its progress
//! ```
//!
//! What is packed depends on the files and the options alone, not on threads, times or names of
//! directories: the same input gives the same bytes. A file's partition depends on its path, so that
//! a changed file changes one partition. A run that was killed goes on with the file where it was,
//! if the input is still the same.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::codec::Codec;
use crate::dataset::{MANIFEST, Manifest, TABLE, partition_name, sync_dir, table_of, write_whole};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::inode::{FileData, PARTITIONS_MAX};
use crate::partition::Partition;

mod plan;
mod progress;
mod readers;
mod source;
mod writer;

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

/// Packs what a plan lists into a directory, which is made, and writes its manifest last.
///
/// # Errors
/// Invalid: a dataset is there already, or a file has changed since it was listed. Of the system.
pub fn pack(
    source: &dyn Source,
    plan: &Plan,
    to: &Path,
    options: &Options,
    progress: &Progress,
) -> Result<Manifest> {
    if options.partitions == 0 || options.partitions >= PARTITIONS_MAX {
        return Err(Error::invalid(to, format!("{} partitions", options.partitions)));
    }
    std::fs::create_dir_all(to).map_err(|e| Error::io(to, e))?;
    let _alone = lock(to)?;
    let manifest = to.join(MANIFEST);
    if manifest.exists() {
        // The run that made it may have been killed before it was tidy.
        remove_left_overs(to, Manifest::read(to)?.partitions.len() as u32)?;
        return Err(Error::invalid(&manifest, "a dataset is there already"));
    }
    let (fingerprint, mut parts) = (plan.fingerprint(options), Vec::new());
    for number in 0..options.partitions {
        let path = to.join(partition_name(number));
        parts.push(writer::write(source, plan, fingerprint, number, &path, options, progress)?);
    }
    let table = table_of(&parts)?;
    let manifest = Manifest::of(&parts, &table);
    write_whole(&to.join(TABLE), table.as_bytes())?;
    manifest.write(to)?;
    remove_left_overs(to, options.partitions)?;
    sync_dir(to)?;
    Ok(manifest)
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
        if ["partial", "progress"].contains(&kind) || (kind == "saker" && number >= partitions) {
            std::fs::remove_file(&path).map_err(|e| Error::io(&path, e))?;
        }
    }
    Ok(())
}

/// A partition that an earlier run has finished, of this very plan.
fn finished(fingerprint: Digest, number: u32, path: &Path, options: &Options) -> Option<Partition> {
    let noted = progress::read(&progress::path_of(path), fingerprint)?;
    let part = Partition::open(path).ok()?;
    let is_it = noted.whole == Some(part.digest);
    let is_it = is_it && (part.number, part.of) == (number, options.partitions);
    (is_it && part.verify().is_ok()).then_some(part)
}
