//! The operations that are tried on the reference model and on real systems, and their results.

use std::fmt;

use saker_types::Errno;

/// A component of a path.
pub type NameBytes = Vec<u8>;

/// Files that a run has open at once, over all clients.
pub const FDS: usize = CHECK_FD + 1;
/// The descriptor that the comparison of trees reads through; no random operation uses it.
pub const CHECK_FD: usize = 6;
/// Directories that a run has open as anchors of relative paths.
pub const DIR_FDS: usize = 3;

/// `renameat2` flag: fail if the target exists.
pub const RENAME_NOREPLACE: u32 = 1;
/// `renameat2` flag: exchange source and target.
pub const RENAME_EXCHANGE: u32 = 2;

/// Who acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// The users of every run: root, two that share groups, and a stranger.
pub fn users() -> Vec<User> {
    let user = |uid, gid, groups: &[u32]| User { uid, gid, groups: groups.to_vec() };
    vec![
        user(0, 0, &[]),
        user(1001, 1001, &[2000]),
        user(1002, 1002, &[2000, 1001]),
        user(1003, 1003, &[]),
    ]
}

/// A path: where it starts (the root of the run or a held directory), and its components,
/// which may be `.` and `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathFrom {
    /// Descriptor of an open directory; none is the root.
    pub base: Option<usize>,
    /// Components; none names the base itself.
    pub path: Vec<NameBytes>,
}

impl PathFrom {
    /// A path from the root.
    pub fn root(path: &[&[u8]]) -> PathFrom {
        PathFrom { base: None, path: path.iter().map(|name| name.to_vec()).collect() }
    }

    /// The path without its last component.
    pub fn parent(&self) -> PathFrom {
        let mut path = self.path.clone();
        path.pop();
        PathFrom { base: self.base, path }
    }

    /// As text for system calls: relative, `.` when there are no components.
    pub fn text(&self) -> Vec<u8> {
        if self.path.is_empty() { b".".to_vec() } else { self.path.join(&b'/') }
    }
}

impl fmt::Debug for PathFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fd) = self.base {
            write!(f, "dir{fd}:")?;
        }
        write!(f, "/")?;
        for (i, name) in self.path.iter().enumerate() {
            let separator = if i == 0 { "" } else { "/" };
            if name.len() > 20 {
                write!(f, "{separator}{}*{}", name[0] as char, name.len())?;
            } else {
                write!(f, "{separator}{}", name.escape_ascii())?;
            }
        }
        Ok(())
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct How {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub truncate: bool,
    /// With create: O_EXCL.
    pub exclusive: bool,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// Leave it.
    Omit,
    /// The clock of whoever executes it.
    Now,
    /// ns since the epoch.
    Ns(i64),
}

/// One operation. Paths are not followed at their last component unless there is a `follow`
/// or the system call of that name always follows.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum FsOp {
    Stat {
        at: PathFrom,
        follow: bool,
    },
    Access {
        at: PathFrom,
        want: u32,
    },
    Readdir {
        at: PathFrom,
    },
    Readlink {
        at: PathFrom,
    },
    Mkdir {
        at: PathFrom,
        mode: u32,
    },
    /// Type bits in the mode.
    Mknod {
        at: PathFrom,
        mode: u32,
    },
    Symlink {
        at: PathFrom,
        target: Vec<u8>,
    },
    Create {
        at: PathFrom,
        mode: u32,
        how: How,
        fd: usize,
    },
    Open {
        at: PathFrom,
        how: How,
        fd: usize,
    },
    /// Holds a directory as an anchor (O_PATH).
    OpenDir {
        at: PathFrom,
        fd: usize,
    },
    Close {
        fd: usize,
    },
    Read {
        fd: usize,
        offset: u64,
        len: usize,
    },
    /// Bytes made by [`pattern`].
    Write {
        fd: usize,
        offset: u64,
        len: usize,
        fill: u8,
    },
    Fsync {
        fd: usize,
    },
    Fstat {
        fd: usize,
    },
    Ftruncate {
        fd: usize,
        size: u64,
    },
    Truncate {
        at: PathFrom,
        size: u64,
    },
    Chmod {
        at: PathFrom,
        mode: u32,
    },
    Chown {
        at: PathFrom,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    },
    Utimes {
        at: PathFrom,
        atime: NewTime,
        mtime: NewTime,
        follow: bool,
    },
    Unlink {
        at: PathFrom,
    },
    Rmdir {
        at: PathFrom,
    },
    Rename {
        from: PathFrom,
        to: PathFrom,
        flags: u32,
    },
    Link {
        from: PathFrom,
        to: PathFrom,
    },
    Setxattr {
        at: PathFrom,
        name: NameBytes,
        value: Vec<u8>,
        flags: u32,
    },
    Getxattr {
        at: PathFrom,
        name: NameBytes,
    },
    Listxattr {
        at: PathFrom,
    },
    Removexattr {
        at: PathFrom,
        name: NameBytes,
    },
}

impl FsOp {
    /// Names of all kinds, in the order of [`FsOp::kind`].
    pub const KINDS: [&'static str; 28] = [
        "stat",
        "access",
        "readdir",
        "readlink",
        "mkdir",
        "mknod",
        "symlink",
        "create",
        "open",
        "opendir",
        "close",
        "read",
        "write",
        "fsync",
        "fstat",
        "ftruncate",
        "truncate",
        "chmod",
        "chown",
        "utimes",
        "unlink",
        "rmdir",
        "rename",
        "link",
        "setxattr",
        "getxattr",
        "listxattr",
        "removexattr",
    ];

    /// Index of the kind in [`FsOp::KINDS`].
    pub fn kind(&self) -> usize {
        match self {
            FsOp::Stat { .. } => 0,
            FsOp::Access { .. } => 1,
            FsOp::Readdir { .. } => 2,
            FsOp::Readlink { .. } => 3,
            FsOp::Mkdir { .. } => 4,
            FsOp::Mknod { .. } => 5,
            FsOp::Symlink { .. } => 6,
            FsOp::Create { .. } => 7,
            FsOp::Open { .. } => 8,
            FsOp::OpenDir { .. } => 9,
            FsOp::Close { .. } => 10,
            FsOp::Read { .. } => 11,
            FsOp::Write { .. } => 12,
            FsOp::Fsync { .. } => 13,
            FsOp::Fstat { .. } => 14,
            FsOp::Ftruncate { .. } => 15,
            FsOp::Truncate { .. } => 16,
            FsOp::Chmod { .. } => 17,
            FsOp::Chown { .. } => 18,
            FsOp::Utimes { .. } => 19,
            FsOp::Unlink { .. } => 20,
            FsOp::Rmdir { .. } => 21,
            FsOp::Rename { .. } => 22,
            FsOp::Link { .. } => 23,
            FsOp::Setxattr { .. } => 24,
            FsOp::Getxattr { .. } => 25,
            FsOp::Listxattr { .. } => 26,
            FsOp::Removexattr { .. } => 27,
        }
    }

    /// The paths it names.
    pub fn paths(&self) -> Vec<&PathFrom> {
        match self {
            FsOp::Rename { from, to, .. } | FsOp::Link { from, to } => vec![from, to],
            FsOp::Stat { at, .. }
            | FsOp::Access { at, .. }
            | FsOp::Readdir { at }
            | FsOp::Readlink { at }
            | FsOp::Mkdir { at, .. }
            | FsOp::Mknod { at, .. }
            | FsOp::Symlink { at, .. }
            | FsOp::Create { at, .. }
            | FsOp::Open { at, .. }
            | FsOp::OpenDir { at, .. }
            | FsOp::Truncate { at, .. }
            | FsOp::Chmod { at, .. }
            | FsOp::Chown { at, .. }
            | FsOp::Utimes { at, .. }
            | FsOp::Unlink { at }
            | FsOp::Rmdir { at }
            | FsOp::Setxattr { at, .. }
            | FsOp::Getxattr { at, .. }
            | FsOp::Listxattr { at }
            | FsOp::Removexattr { at, .. } => vec![at],
            FsOp::Close { .. }
            | FsOp::Read { .. }
            | FsOp::Write { .. }
            | FsOp::Fsync { .. }
            | FsOp::Fstat { .. }
            | FsOp::Ftruncate { .. } => vec![],
        }
    }

    /// The open file it acts on.
    pub fn handle(&self) -> Option<usize> {
        match self {
            FsOp::Close { fd }
            | FsOp::Read { fd, .. }
            | FsOp::Write { fd, .. }
            | FsOp::Fsync { fd }
            | FsOp::Fstat { fd }
            | FsOp::Ftruncate { fd, .. } => Some(*fd),
            _ => None,
        }
    }
}

/// An operation, who does it, and through which client. Operations on an open file go through
/// the client and user that opened it, whatever is said here.
#[derive(Clone, Debug, PartialEq)]
pub struct OpStep {
    /// Index of the client.
    pub client: usize,
    /// Index in [`users`].
    pub user: usize,
    /// What.
    pub op: FsOp,
}

/// The bytes of a write: they depend on the place in the file, so that misplaced data shows.
pub fn pattern(fill: u8, offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| fill ^ (((offset + i) as u32).wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// What stat(2) shows, as far as it is compared. `T` is a time.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct OpStat<T> {
    pub ino: u64,
    /// With type bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    pub atime: T,
    pub mtime: T,
    pub ctime: T,
}

/// Result of an operation that succeeded.
#[derive(Clone, PartialEq)]
pub enum Value<T> {
    /// Nothing.
    Done,
    /// Attributes.
    Stat(OpStat<T>),
    /// Data, a symlink's target or an xattr's value.
    Bytes(Vec<u8>),
    /// A listing, sorted: names and `d_type` (0 for names of xattrs).
    Names(Vec<(NameBytes, u8)>),
}

impl<T: fmt::Debug> fmt::Debug for Value<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Done => write!(f, "done"),
            Value::Stat(stat) => write!(f, "{stat:?}"),
            Value::Bytes(b) if b.len() > 64 => {
                write!(f, "{} bytes, hash {:08x}, {:?}...", b.len(), hash(b), &b[..16])
            }
            Value::Bytes(b) => write!(f, "\"{}\"", b.escape_ascii()),
            Value::Names(names) => {
                let show = |(n, t): &(NameBytes, u8)| format!("{}:{t}", n.escape_ascii());
                write!(f, "[{}]", names.iter().map(show).collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// Result of an operation.
pub type OpResult<T> = Result<Value<T>, Errno>;

/// FNV-1a, to tell large values apart in messages.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

/// A system that operations are tried on. Times are ns since the epoch.
pub trait TestedFs {
    /// Executes one step.
    fn apply(&mut self, who: &User, step: &OpStep) -> OpResult<i64>;

    /// Makes what was written through a descriptor visible to other clients.
    fn flush(&mut self, fd: usize) -> Result<(), Errno> {
        let _ = fd;
        Ok(())
    }
}
