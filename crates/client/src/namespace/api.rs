//! The seam between [`Fs`](crate::Fs) and its namespaces.

use std::future::{Future, Ready, ready};
use std::time::Duration;

use bytes::Bytes;
use saker_types::wire::{At, Entry, RenameReply};
use saker_types::{Errno, InodeId, Locator, Result};

use crate::namespace::listing::DirStream;
use crate::{Caller, File, OpenFlags, SetAttr};

/// The names below some directories, and the attributes of what they lead to. The operations are
/// those of [`Fs`](crate::Fs), whose comments say what they promise.
///
/// [`AnyNamespace`](crate::namespace::dispatch::AnyNamespace) has a variant for each implementation, and a place
/// is served by a match on it. So an operation's future is one that the compiler knows: nothing is
/// boxed, and nothing is looked up for the strict namespace but the policy in the place.
///
/// What changes nothing must be implemented; what changes something is refused with EROFS unless it
/// is implemented.
pub(crate) trait Namespace: Sync {
    /// What is at a place; of a directory without its totals.
    fn lookup(&self, who: &Caller, at: &At) -> impl Future<Output = Result<Entry>> + Send;

    /// Full attributes.
    fn getattr(&self, who: &Caller, at: &At) -> impl Future<Output = Result<Entry>> + Send;

    /// The same, waiting no longer than `patience`: only a namespace that asks others
    /// makes anybody wait.
    fn getattr_within(
        &self,
        who: &Caller,
        at: &At,
        _patience: Duration,
    ) -> impl Future<Output = Result<Entry>> + Send {
        self.getattr(who, at)
    }

    /// access(2).
    fn access(&self, who: &Caller, at: &At, want: u32) -> impl Future<Output = Result<()>> + Send;

    /// The same, waiting no longer than `patience`.
    fn access_within(
        &self,
        who: &Caller,
        at: &At,
        want: u32,
        _patience: Duration,
    ) -> impl Future<Output = Result<()>> + Send {
        self.access(who, at, want)
    }

    /// Opens what is there.
    fn open(
        &self,
        who: &Caller,
        at: &At,
        flags: OpenFlags,
    ) -> impl Future<Output = Result<(File, Entry)>> + Send;

    /// Target of a symbolic link.
    fn readlink(&self, who: &Caller, at: &At) -> impl Future<Output = Result<Bytes>> + Send;

    /// Lists a directory after `cookie`. What keeps it from being listed the listing says.
    fn readdir(&self, who: &Caller, dir: &Locator, cookie: u64) -> DirStream;

    /// Value of an extended attribute.
    fn getxattr(
        &self,
        who: &Caller,
        at: &At,
        name: &[u8],
    ) -> impl Future<Output = Result<Bytes>> + Send;

    /// Names of the extended attributes, each followed by a NUL.
    fn listxattr(&self, who: &Caller, at: &At) -> impl Future<Output = Result<Bytes>> + Send;

    /// Changes attributes.
    fn setattr(
        &self,
        _who: &Caller,
        _at: &At,
        _change: &SetAttr,
    ) -> impl Future<Output = Result<Entry>> + Send {
        read_only()
    }

    /// Makes a regular file, or opens the one that is there. `wary`: as in
    /// [`Fs::create_warily`](crate::Fs::create_warily).
    fn create(
        &self,
        _who: &Caller,
        _at: &At,
        _mode: u32,
        _flags: OpenFlags,
        _wary: bool,
    ) -> impl Future<Output = Result<(File, Entry)>> + Send {
        read_only()
    }

    /// Makes a regular file without a name in a directory and opens it.
    fn tmpfile(
        &self,
        _who: &Caller,
        _dir: &At,
        _mode: u32,
        _flags: OpenFlags,
    ) -> impl Future<Output = Result<(File, Entry)>> + Send {
        read_only()
    }

    /// Makes a directory.
    fn mkdir(
        &self,
        _who: &Caller,
        _at: &At,
        _mode: u32,
    ) -> impl Future<Output = Result<Entry>> + Send {
        read_only()
    }

    /// Makes anything but a directory or a symbolic link, and does not open it.
    fn mknod(
        &self,
        _who: &Caller,
        _at: &At,
        _mode: u32,
        _rdev: u32,
    ) -> impl Future<Output = Result<Entry>> + Send {
        read_only()
    }

    /// Makes a symbolic link.
    fn symlink(
        &self,
        _who: &Caller,
        _at: &At,
        _target: &[u8],
    ) -> impl Future<Output = Result<Entry>> + Send {
        read_only()
    }

    /// Removes a name of anything but a directory.
    fn unlink(&self, _who: &Caller, _at: &At) -> impl Future<Output = Result<InodeId>> + Send {
        read_only()
    }

    /// Removes an empty directory.
    fn rmdir(&self, _who: &Caller, _at: &At) -> impl Future<Output = Result<InodeId>> + Send {
        read_only()
    }

    /// renameat2(2); `chains` are those of both parents, as in [`Fs::exchange`](crate::Fs::exchange).
    fn rename(
        &self,
        _who: &Caller,
        _from: &At,
        _to: &At,
        _flags: u32,
        _chains: [&[Locator]; 2],
    ) -> impl Future<Output = Result<RenameReply>> + Send {
        read_only()
    }

    /// Links `from` as `to`.
    fn link(
        &self,
        _who: &Caller,
        _from: &At,
        _to: &At,
    ) -> impl Future<Output = Result<Entry>> + Send {
        read_only()
    }

    /// Sets an extended attribute.
    fn setxattr(
        &self,
        _who: &Caller,
        _at: &At,
        _name: &[u8],
        _value: &[u8],
        _flags: u32,
    ) -> impl Future<Output = Result<()>> + Send {
        read_only()
    }

    /// Removes an extended attribute.
    fn removexattr(
        &self,
        _who: &Caller,
        _at: &At,
        _name: &[u8],
    ) -> impl Future<Output = Result<()>> + Send {
        read_only()
    }
}

fn read_only<T>() -> Ready<Result<T>> {
    ready(Err(Errno::EROFS.into()))
}
