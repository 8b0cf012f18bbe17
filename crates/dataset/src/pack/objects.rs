//! Where partitions go that do not stay on the disk that they are packed on.

use std::path::Path;

use crate::digest::Digest;
use crate::error::Result;

/// What keeps tables and partitions by their digests. Called by one thread at a time.
pub trait Objects: Sync {
    /// Says whether one is there, with so many bytes.
    ///
    /// # Errors
    /// Its own.
    fn has(&self, digest: &Digest, bytes: u64) -> Result<bool>;

    /// Stores the bytes of a file, durably, if they are not there.
    ///
    /// # Errors
    /// Its own, and of the file.
    fn put(&self, digest: &Digest, path: &Path, bytes: u64) -> Result<()>;
}
