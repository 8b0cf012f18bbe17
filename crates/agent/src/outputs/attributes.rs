//! Attributes of files and directories on the disk of their home.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use saker_agent_api::{FinishOutput, OutputInfo};
use xxhash_rust::xxh3::xxh3_64;

use super::path::OutputPath;

/// Extended attribute of a published file: its CRC32C, the number of its writing, and when it was
/// closed.
const SUM: &str = "user.saker.sum";
/// Bytes of [`SUM`].
const SUM_BYTES: usize = 20;
/// What directories say that they have.
const DIRECTORY_BYTES: u64 = 4096;
const NS: i64 = 1_000_000_000;

/// Attributes of the directory `.out` itself.
pub(super) fn root_info() -> OutputInfo {
    let path = OutputPath::parse(b"").expect("an empty path is the root");
    OutputInfo {
        mode: libc::S_IFDIR | 0o755,
        size: DIRECTORY_BYTES,
        ino: path.ino(0),
        ..OutputInfo::default()
    }
}

/// Attributes of what is on the disk.
pub(super) fn info(path: &OutputPath, meta: &Metadata) -> OutputInfo {
    let mtime_ns = meta.mtime().saturating_mul(NS).saturating_add(meta.mtime_nsec());
    let is_dir = meta.is_dir();
    let version = [meta.ino(), mtime_ns as u64, meta.size()].map(u64::to_le_bytes).concat();
    OutputInfo {
        mode: meta.mode(),
        size: if is_dir { DIRECTORY_BYTES } else { meta.size() },
        mtime_ns,
        ino: path.ino(if is_dir { 0 } else { meta.ino() }),
        version: xxh3_64(&version),
        crc: None,
        writing: 0,
        closed_ns: 0,
    }
}

/// Time of a file, for utimensat(2).
pub(super) fn times(mtime_ns: i64) -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let mtime = Timespec { tv_sec: mtime_ns.div_euclid(NS), tv_nsec: mtime_ns.rem_euclid(NS) as _ };
    Timestamps { last_access: omit, last_modification: mtime }
}

fn sum_bytes(new: &FinishOutput) -> [u8; SUM_BYTES] {
    let mut bytes = [0; SUM_BYTES];
    bytes[..4].copy_from_slice(&new.crc.to_le_bytes());
    bytes[4..12].copy_from_slice(&new.writing.to_le_bytes());
    bytes[12..].copy_from_slice(&new.closed_ns.to_le_bytes());
    bytes
}

/// The same with what [`SUM`] says, if there is one.
fn with_sum(
    info: OutputInfo,
    bytes: [u8; SUM_BYTES],
    got: rustix::io::Result<usize>,
) -> OutputInfo {
    if got != Ok(SUM_BYTES) {
        return info;
    }
    let [a, b, c, d, numbers @ ..] = bytes;
    let crc = Some(u32::from_le_bytes([a, b, c, d]));
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| numbers[at + n]));
    OutputInfo { crc, writing: number(0), closed_ns: number(8), ..info }
}

/// The same with the sum of an open file.
pub(super) fn with_sum_of(info: OutputInfo, file: &File) -> OutputInfo {
    let mut bytes = [0; SUM_BYTES];
    let got = rustix::fs::fgetxattr(file, SUM, &mut bytes[..]);
    with_sum(info, bytes, got)
}

/// The same with the sum of the file at a path.
pub(super) fn with_sum_at(info: OutputInfo, path: &Path) -> OutputInfo {
    let mut bytes = [0; SUM_BYTES];
    let got = rustix::fs::lgetxattr(path, SUM, &mut bytes[..]);
    with_sum(info, bytes, got)
}

/// Notes the sum and the time of a new file, which may be written.
///
/// # Errors
/// Of the disk.
pub(super) fn note(file: &File, new: &FinishOutput) -> io::Result<()> {
    // Not all file systems have these attributes.
    let _ = rustix::fs::fsetxattr(file, SUM, &sum_bytes(new), XattrFlags::empty());
    Ok(rustix::fs::futimens(file, &times(new.mtime_ns))?)
}
