//! The only door to files: every journal, segment and decision log does its I/O through [`Dir`]
//! and [`File`], so that durability can be simulated on the real code.
//!
//! [`RealDir`] is the operating system, [`MemDir`] a disk in memory that loses what was not
//! synced when it crashes, [`FaultDir`] a wrapper that makes either of them fail by a script.
//! The rules both implementations keep (and `tests.rs` checks on both):
//!
//! - Data written to a file is durable after [`File::sync`] of that file.
//! - A name (created, renamed or removed) is durable after [`Dir::sync`] of its directory.
//! - Nothing else is durable, and of what is not, any part may survive a crash.

use std::io;
use std::sync::Arc;

use saker_types::wire::LocalDir;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod fault;
mod mem;
mod real;
#[cfg(test)]
mod tests;

pub use fault::{Fault, FaultDir, FileOp, OpKind, Script, fail_from};
pub use mem::MemDir;
pub use real::{RealDir, machine};

/// What [`File::write_end`] writes as a whole, bytes: as much as any disk may want.
pub const BLOCK_BYTES: usize = 4096;

/// What is added to a log ([`File::write_end`]).
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Where the data goes. Behind it the file has nothing of worth.
    pub offset: u64,
    /// What the file has before it, from the last multiple of [`BLOCK_BYTES`] on.
    pub before: &'a [u8],
    /// The data.
    pub data: &'a [u8],
    /// Zeros to write after it, so that later writes there change the file's content only.
    pub zeros: &'a [u8],
}

impl End<'_> {
    /// Writes data and zeros as [`File::write_at`] does: they are not durable then.
    pub fn write_to(&self, file: &(impl File + ?Sized)) -> io::Result<()> {
        file.write_at(self.offset, self.data)?;
        if self.zeros.is_empty() {
            return Ok(());
        }
        file.write_at(self.offset + self.data.len() as u64, self.zeros)
    }
}

/// A directory. Names are single components: no `/`, not empty, not `.` or `..`.
pub trait Dir: Send + Sync {
    /// Opens an existing file for reading and writing; `NotFound` if there is none.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Makes a new, empty file; `AlreadyExists` if the name is taken.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// The names in this directory (files and sub-directories), sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes a file. Handles to it stay usable.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file, replacing what `to` names. Handles to it stay usable.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes the names in this directory durable.
    fn sync(&self) -> io::Result<()>;
    /// Opens a sub-directory, making it (durably) if it is missing.
    fn sub_dir(&self, name: &str) -> io::Result<Arc<dyn Dir>>;
    /// Keeps other processes from locking this directory until the last handle is dropped;
    /// `WouldBlock` if one has.
    fn lock(&self) -> io::Result<()>;
    /// Bytes that may still be written to the disk that it is on.
    fn free_bytes(&self) -> io::Result<u64>;
    /// What to call this directory in messages: its path, or a made-up name.
    fn label(&self) -> String;
    /// How other processes of this machine find it; `None` if they cannot.
    fn whereabouts(&self) -> Option<LocalDir> {
        None
    }
}

/// An open file. All methods take `&self` and may be called from several threads; writers that
/// overlap must order themselves.
pub trait File: Send + Sync {
    /// Writes all of `data` at `offset`, extending the file (with zeros) where needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Writes all of `data` at the end of the file; returns the offset it went to. Appends of
    /// several threads do not overlap.
    fn append(&self, data: &[u8]) -> io::Result<u64>;
    /// Reads until `buf` is full or the file ends; returns the bytes read.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// The same, but does not wait for a disk: `None` if it would have to.
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.read_at(offset, buf).map(Some)
    }
    /// Whether a whole range can be read without waiting for a disk; `None` where the system does not say.
    /// (To try it by a read would begin to fetch it.)
    fn is_cached(&self, _offset: u64, _len: u64) -> Option<bool> {
        Some(true)
    }
    /// From now on reads take from the disk what they ask for and no more: what comes next is
    /// unlikely to be wanted next.
    fn expect_random_reads(&self) {}
    /// A range will be read soon: what of it is on the disk only is fetched meanwhile.
    fn prefetch(&self, _offset: u64, _len: u64) {}
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Makes everything written so far durable (fdatasync). After an error the caller must
    /// consider all of it lost and never try again: a second call may lie.
    fn sync(&self) -> io::Result<()>;
    /// As [`File::read_at`], but of what the disk has, past the page cache. For what is to be taken for
    /// durable, after a [`File::sync`]: where one has failed before, perhaps in another process, the
    /// kernel keeps pages that the disk never got, and takes them for clean.
    fn read_durable(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read_at(offset, buf)
    }
    /// A simulated flush fails, as on Linux: what was written is from now on in the page cache only.
    fn lose_unsynced(&self) {}
    /// Writes the end of a log and makes it durable, and nothing else that was written. Up to the
    /// next multiple of [`BLOCK_BYTES`] zeros may follow, and the file grow for them. An error
    /// means what one of [`File::sync`] does.
    ///
    /// A log is not read while it is written: so this goes past the page cache where that can be.
    fn write_end(&self, end: &End<'_>) -> io::Result<()> {
        end.write_to(self)?;
        self.sync()
    }
    /// The same without making it durable: a later [`File::sync`] does. It goes into the page cache, in
    /// whole blocks, so that nothing is read for it.
    fn write_end_cached(&self, end: &End<'_>) -> io::Result<()> {
        end.write_to(self)
    }
    /// Sets the length; bytes past it are gone, new bytes are zeros.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes the file at least `len` bytes long with its blocks allocated, so that writing there
    /// neither runs out of space nor changes the length. New bytes are zeros.
    fn preallocate(&self, len: u64) -> io::Result<()>;
    /// Frees the blocks of a range, which then reads as zeros. The length stays.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
}

/// Whether an error says that the disk, or somebody's part of it, is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Reads a whole file.
pub fn read_all(file: &dyn File) -> io::Result<Vec<u8>> {
    read_whole(file, |data| file.read_at(0, data))
}

/// Reads a whole file as the disk has it ([`File::read_durable`]).
pub fn read_all_durable(file: &dyn File) -> io::Result<Vec<u8>> {
    read_whole(file, |data| file.read_durable(0, data))
}

fn read_whole(
    file: &dyn File,
    read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut data = vec![0; len];
    let read = read(&mut data)?;
    data.truncate(read);
    Ok(data)
}

/// Bytes of a file that are compared at a time.
const COMPARE_BYTES: usize = 1 << 20;

/// Is a file the same on the disk as in the page cache? After a [`File::sync`].
pub fn is_durable(file: &dyn File) -> io::Result<bool> {
    let (mut cached, mut durable) = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
    let mut offset = 0;
    loop {
        let read = file.read_at(offset, &mut cached)?;
        if file.read_durable(offset, &mut durable)? != read || cached[..read] != durable[..read] {
            return Ok(false);
        }
        if read < COMPARE_BYTES {
            return Ok(true);
        }
        offset += read as u64;
    }
}

/// Does the page cache have this, and no more, of a file?
pub fn is_cached_as(file: &dyn File, content: &[u8]) -> io::Result<bool> {
    let mut cached = vec![0; COMPARE_BYTES];
    let mut offset = 0;
    for part in content.chunks(COMPARE_BYTES) {
        let read = file.read_at(offset, &mut cached[..part.len()])?;
        if cached[..read] != *part {
            return Ok(false);
        }
        offset += read as u64;
    }
    Ok(file.len()? == offset)
}

/// Gives `name` this content, durably; a crash leaves the old or the new one.
pub fn replace(dir: &dyn Dir, name: &str, data: &[u8]) -> io::Result<()> {
    let unfinished = write_aside(dir, name, data)?;
    dir.rename(&unfinished, name)?;
    dir.sync()
}

/// Writes what is to be renamed to `name`, durably. Returns what it is called until then.
pub fn write_aside(dir: &dyn Dir, name: &str, data: &[u8]) -> io::Result<String> {
    let unfinished = format!("{name}.new");
    match dir.remove(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // Left over from a crash, or not.
        _ => {}
    }
    let file = dir.create(&unfinished)?;
    file.write_at(0, data)?;
    file.sync()?;
    Ok(unfinished)
}

/// Refuses names that would leave the directory.
fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("file name {name:?}")));
    }
    Ok(())
}
