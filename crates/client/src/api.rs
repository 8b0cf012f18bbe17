//! The types that callers of the library meet besides [`Fs`](crate::Fs) and
//! [`File`](crate::File).

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use saker_types::wire::{At, Entry, KeptDir};
use saker_types::{Attr, Cred, Errno, Error, Locator, Result, Stamp};

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// What it is, for messages to others: a mount point, say. Host and process are told with it.
    pub name: String,
    /// Where journals of decoupled subtrees are kept, of policies that want them on this machine.
    pub journal_dir: Option<PathBuf>,
    /// Deadline of one operation, retries included; or [`FOREVER`].
    pub timeout: Duration,
    /// Bytes of written data that one file may hold back before it writes them out.
    pub write_buffer_bytes: usize,
    /// Bytes of written data that all of them may hold back, or have on its way; then whoever writes waits until the
    /// stores have what it wrote.
    pub write_buffer_total_bytes: usize,
    /// How long written data is held back at most; when its writer pauses it is written out after half a second. Zero: until
    /// close, fsync, or there is enough of it.
    pub write_back: Duration,
    /// Most bytes read ahead of a sequential reader of one file; 0 turns it off.
    pub read_ahead_bytes: usize,
    /// Most bytes read ahead of all of them: whoever comes when so much is held gets no more than it asks for.
    pub read_ahead_total_bytes: usize,
    /// Whether data on stores of this machine is read from their files, where these can be opened.
    pub local_reads: bool,
}

/// As a deadline: there is none.
pub const FOREVER: Duration = Duration::MAX;

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            name: String::new(),
            journal_dir: None,
            timeout: Duration::from_secs(60),
            write_buffer_bytes: 1 << 20,
            write_buffer_total_bytes: 256 << 20,
            write_back: Duration::from_secs(5),
            read_ahead_bytes: 4 << 20,
            read_ahead_total_bytes: 256 << 20,
            local_reads: false,
        }
    }
}

/// Where the cluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterAddr {
    /// Where its coordinators listen.
    Coordinators(Vec<SocketAddr>),
    /// A directory that holds `cluster.toml`, as `saker up` makes it.
    Dir(PathBuf),
}

impl ClusterAddr {
    /// Reads `host:port[,host:port…]`, or the name of a directory that holds `cluster.toml`.
    ///
    /// # Errors
    /// EINVAL when it is neither, or a host has no address.
    pub fn parse(text: &str) -> Result<ClusterAddr> {
        let dir = PathBuf::from(text);
        if dir.is_dir() {
            return Ok(ClusterAddr::Dir(dir));
        }
        let mut addrs = Vec::new();
        for part in text.split(',') {
            let found = part.trim().to_socket_addrs().map_err(|e| {
                Error::new(Errno::EINVAL)
                    .with_text(format!("{part}: no directory and no host:port ({e})"))
            })?;
            addrs.extend(found);
        }
        Ok(ClusterAddr::Coordinators(addrs))
    }
}

/// Told of leases on names of directories.
pub trait Lessee: Send + Sync {
    /// An answer gives leases on these, of those that [`At::keep_ms`] asks for: the first ones.
    fn lent(&self, dirs: &[KeptDir]);
}

/// Who asks.
#[derive(Clone)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
    /// Permission bits that what it makes does not get, unless the directory has a default ACL.
    pub umask: u32,
    /// Is told of each answer to a request for leases.
    pub lessee: Option<Arc<dyn Lessee>>,
    /// The request is part of holding a subtree: the holder's number and the hold's epoch
    /// ([`Ctx::hold`](saker_types::wire::Ctx::hold)).
    pub as_holder: Option<(u64, u64)>,
}

/// Supplementary groups, or where to read them when a decision depends on them.
#[derive(Clone, Debug)]
pub enum Groups {
    /// These.
    Known(Arc<[u32]>),
    /// Those of the process with this id, read from `/proc` when the server asks for them.
    OfProcess(u32),
    /// Nobody can read them ([`Cred::groups_hidden`]).
    Hidden,
}

impl Caller {
    /// The superuser.
    pub fn root() -> Caller {
        Caller {
            uid: 0,
            gid: 0,
            groups: Groups::Known(Arc::from([])),
            umask: 0,
            lessee: None,
            as_holder: None,
        }
    }

    /// What is known without reading groups.
    pub(crate) fn cred(&self) -> Cred {
        let cred = Cred { uid: self.uid, gid: self.gid, ..Cred::default() };
        match &self.groups {
            Groups::Known(groups) => Cred { groups: groups.to_vec(), groups_known: true, ..cred },
            Groups::OfProcess(_) => cred,
            Groups::Hidden => Cred { groups_hidden: true, ..cred },
        }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Its data will be read.
    pub read: bool,
    /// Its data will be written.
    pub write: bool,
    /// Every write goes to the end of the file (`O_APPEND`).
    pub append: bool,
    /// Cut to nothing (`O_TRUNC`).
    pub truncate: bool,
    /// Only if it is made (`O_EXCL`).
    pub exclusive: bool,
    /// To be executed: that takes the right to execute, not the right to read, which the system
    /// does.
    pub execute: bool,
}

impl OpenFlags {
    /// O_RDONLY.
    pub const READ: OpenFlags = OpenFlags {
        read: true,
        write: false,
        append: false,
        truncate: false,
        exclusive: false,
        execute: false,
    };
    /// O_RDWR.
    pub const READ_WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::READ };

    /// From the flags of open(2).
    pub fn from_linux(flags: i32) -> OpenFlags {
        let mode = flags & 0o3;
        OpenFlags {
            read: mode == 0 || mode == 2,
            write: mode == 1 || mode == 2,
            append: flags & 0o2000 != 0,
            truncate: flags & 0o1000 != 0,
            exclusive: flags & 0o200 != 0,
            // Not of open(2): the kernel's own mark, which it passes on to file systems.
            execute: flags & 0o40 != 0,
        }
    }

    /// Permission bits that it takes: 4 read, 2 write, 1 execute.
    pub(crate) fn access(self) -> u32 {
        if self.execute {
            return 1;
        }
        let write = self.write || self.truncate;
        (u32::from(self.read) << 2) | (u32::from(write) << 1)
    }
}

/// What fallocate(2) is asked to do with a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// It shall have room, and the file at least reach to its end.
    Grow,
    /// It shall have room; the size stays.
    Reserve,
    /// It becomes a hole; the size stays.
    Punch,
    /// It becomes zeros, and the file at least reaches to its end.
    Zero,
    /// It becomes zeros as far as the file reaches.
    ZeroKeepSize,
}

impl Fallocate {
    /// From the mode of fallocate(2).
    ///
    /// # Errors
    /// EOPNOTSUPP for what is not known: to move what is behind the range, to share blocks.
    pub fn from_linux(mode: u32) -> Result<Fallocate> {
        match mode {
            0 => Ok(Fallocate::Grow),
            1 => Ok(Fallocate::Reserve),
            3 => Ok(Fallocate::Punch),
            0x10 => Ok(Fallocate::Zero),
            0x11 => Ok(Fallocate::ZeroKeepSize),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    pub(crate) fn grows(self) -> bool {
        matches!(self, Fallocate::Grow | Fallocate::Zero)
    }

    pub(crate) fn clears(self) -> bool {
        matches!(self, Fallocate::Punch | Fallocate::Zero | Fallocate::ZeroKeepSize)
    }

    pub(crate) fn reserves(self) -> bool {
        matches!(self, Fallocate::Grow | Fallocate::Reserve)
    }
}

/// What lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`
    Data,
    /// `SEEK_HOLE`
    Hole,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The owner's clock.
    Now,
    /// This time.
    At(Stamp),
}

/// What setattr changes; unset fields stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend to this, in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of data.
    pub mtime: Option<SetTime>,
    /// The size change comes through a handle open for writing: no permission check.
    pub by_handle: bool,
}

/// An entry of a listing.
#[derive(Clone, Debug)]
pub struct DirItem {
    /// Its name.
    pub name: Bytes,
    /// Where to go on after it.
    pub cookie: u64,
    /// Its attributes; of a directory, link count and times are only what its owner knows.
    pub attr: Attr,
    /// Its place.
    pub loc: Locator,
}

/// A path, followed to its last component.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What to ask for.
    pub at: At,
    /// What is there; `None`: the last component does not exist.
    pub entry: Option<Entry>,
}

/// Figures of the whole file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of file data that it can hold, copies counted once.
    pub capacity_bytes: u64,
    /// Bytes of them that may be written.
    pub free_bytes: u64,
    /// Bytes of them that nothing takes: also what is kept free on the disks.
    pub unused_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// What a client has done since it connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Requests sent, retries counted each: operation's name, receiver (`shard-N`,
    /// `coordinator`, `store-N`), number.
    pub requests: Vec<(&'static str, String, u64)>,
    /// Requests among them that were sent again.
    pub retries: u64,
}

impl ClientStats {
    /// Requests sent to all.
    pub fn requests_total(&self) -> u64 {
        self.requests.iter().map(|(_, _, n)| n).sum()
    }
}
