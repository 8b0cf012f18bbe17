//! LibFS: the client library. FUSE, the command line and language bindings are thin adapters
//! over [`Fs`] and [`File`].
//!
//! The client keeps no state that correctness needs: it routes each operation to the node that
//! owns its name, sends it again when that is safe, and moves file data to and from stores.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use saker_runtime::telemetry::Registry;
use saker_types::wire::{At, Entry};
use saker_types::{ClusterMap, Locator, Result};

mod api;

pub use api::{
    Caller, ClientOptions, ClientStats, ClusterAddr, DirItem, Groups, OpenFlags, Resolved, SetAttr,
    SetTime, StatFs,
};
pub use saker_types;

/// A connected client. Clones share one connection to the cluster; all methods may be used from
/// many threads and many futures at once.
#[derive(Clone)]
pub struct Fs {}

impl Fs {
    /// Connects and takes the cluster map from the coordinator. Blocks.
    pub fn connect(cluster: &ClusterAddr, options: ClientOptions) -> Result<Fs> {
        let _ = (cluster, options);
        todo!()
    }
    /// Runs a future of this client to its end on the calling thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _ = future;
        todo!()
    }
    /// The cluster map as last seen.
    pub fn map(&self) -> Arc<ClusterMap> {
        todo!()
    }
    /// Writes out open files and ends the session. Blocks.
    pub fn close(&self) {
        todo!()
    }
    /// Counts since the connect.
    pub fn stats(&self) -> ClientStats {
        todo!()
    }
    /// The same as metrics: `saker_client_requests_total{op,to}`.
    pub fn metrics(&self) -> &Registry {
        todo!()
    }
    /// What is at a place, without a directory's totals.
    pub async fn lookup(&self, who: &Caller, at: &At) -> Result<Entry> {
        let _ = (who, at);
        todo!()
    }
    /// Full attributes.
    pub async fn getattr(&self, who: &Caller, at: &At) -> Result<Entry> {
        let _ = (who, at);
        todo!()
    }
    /// Changes attributes.
    pub async fn setattr(&self, who: &Caller, at: &At, change: &SetAttr) -> Result<Entry> {
        let _ = (who, at, change);
        todo!()
    }
    /// Makes a regular file, or opens the one that is there.
    pub async fn create(
        &self,
        who: &Caller,
        at: &At,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(File, Entry)> {
        let _ = (who, at, mode, flags);
        todo!()
    }
    /// Opens what is there.
    pub async fn open(&self, who: &Caller, at: &At, flags: OpenFlags) -> Result<(File, Entry)> {
        let _ = (who, at, flags);
        todo!()
    }
    /// Makes a directory.
    pub async fn mkdir(&self, who: &Caller, at: &At, mode: u32) -> Result<Entry> {
        let _ = (who, at, mode);
        todo!()
    }
    /// Makes a FIFO, socket, device, or a regular file without opening it.
    pub async fn mknod(&self, who: &Caller, at: &At, mode: u32, rdev: u32) -> Result<Entry> {
        let _ = (who, at, mode, rdev);
        todo!()
    }
    /// Makes a symbolic link.
    pub async fn symlink(&self, who: &Caller, at: &At, target: &[u8]) -> Result<Entry> {
        let _ = (who, at, target);
        todo!()
    }
    /// Target of a symbolic link.
    pub async fn readlink(&self, who: &Caller, at: &At) -> Result<Bytes> {
        let _ = (who, at);
        todo!()
    }
    /// Removes a name of anything but a directory.
    pub async fn unlink(&self, who: &Caller, at: &At) -> Result<()> {
        let _ = (who, at);
        todo!()
    }
    /// Removes an empty directory.
    pub async fn rmdir(&self, who: &Caller, at: &At) -> Result<()> {
        let _ = (who, at);
        todo!()
    }
    /// renameat2(2): flags 1 NOREPLACE, 2 EXCHANGE. Returns the new place.
    ///
    /// `to_chain`: the directories from below the root to the new parent inclusive, as the
    /// caller knows them. It matters only when a directory moves, and may be empty when
    /// `to` starts at the root: then it is looked up if it is needed.
    pub async fn rename(
        &self,
        who: &Caller,
        from: &At,
        to: &At,
        flags: u32,
        to_chain: &[Locator],
    ) -> Result<Locator> {
        let _ = (who, from, to, flags, to_chain);
        todo!()
    }
    /// Links `from` (a name or an open handle's locator) as `to`.
    pub async fn link(&self, who: &Caller, from: &At, to: &At) -> Result<Entry> {
        let _ = (who, from, to);
        todo!()
    }
    /// Lists a directory after `cookie` (0: from the start).
    pub fn readdir(&self, who: &Caller, dir: &Locator, cookie: u64) -> DirStream {
        let _ = (who, dir, cookie);
        todo!()
    }
    /// Value of an extended attribute.
    pub async fn getxattr(&self, who: &Caller, at: &At, name: &[u8]) -> Result<Bytes> {
        let _ = (who, at, name);
        todo!()
    }
    /// Sets an extended attribute: flags 1 XATTR_CREATE, 2 XATTR_REPLACE.
    pub async fn setxattr(
        &self,
        who: &Caller,
        at: &At,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        let _ = (who, at, name, value, flags);
        todo!()
    }
    /// Names of the extended attributes, each followed by a NUL.
    pub async fn listxattr(&self, who: &Caller, at: &At) -> Result<Bytes> {
        let _ = (who, at);
        todo!()
    }
    /// Removes an extended attribute.
    pub async fn removexattr(&self, who: &Caller, at: &At, name: &[u8]) -> Result<()> {
        let _ = (who, at, name);
        todo!()
    }
    /// access(2): 4 read, 2 write, 1 execute, 0 exists.
    pub async fn access(&self, who: &Caller, at: &At, want: u32) -> Result<()> {
        let _ = (who, at, want);
        todo!()
    }
    /// Capacity and use.
    pub async fn statfs(&self) -> Result<StatFs> {
        todo!()
    }
    /// Follows a text path from the root.
    pub async fn resolve(&self, who: &Caller, path: &[u8], follow_last: bool) -> Result<Resolved> {
        let _ = (who, path, follow_last);
        todo!()
    }
}

/// A listing under way.
pub struct DirStream {}

impl DirStream {
    /// The next entry; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<DirItem>> {
        todo!()
    }
}

/// An open file. Clones are the same open file.
#[derive(Clone)]
pub struct File {}

impl File {
    /// As last seen, with this client's own writes.
    pub fn entry(&self) -> Entry {
        todo!()
    }
    /// Where it is.
    pub fn locator(&self) -> Locator {
        todo!()
    }
    /// Reads; short only at the end of the file.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let _ = (offset, len);
        todo!()
    }
    /// Writes all of `data`; returns where it went (differs from `offset` only in append mode).
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<u64> {
        let _ = (offset, data);
        todo!()
    }
    /// Data and size are on disk when it returns.
    pub async fn fsync(&self) -> Result<()> {
        todo!()
    }
    /// What close(2) promises: data accepted by the stores, size durable at the owner.
    pub async fn flush(&self) -> Result<()> {
        todo!()
    }
    /// The last use: writes out what is left and forgets the handle.
    pub async fn release(self) {
        todo!()
    }
}
