//! Flag bits of the ABI that are used or must be known.

/// Flags of INIT, the extension (`flags2`) in the upper 32 bits.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const ABORT_ERROR: u64 = 1 << 21;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// `valid` of SETATTR.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// `getattr_flags`: `fh` is valid.
pub(crate) const GETATTR_FH: u32 = 1;
/// `open_flags` of OPEN and CREATE requests: clear suid and sgid when the file is truncated.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1;
/// `open_flags` of a reply: pages cached from earlier stay.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// `open_flags` of a reply: close(2) needs no FLUSH.
pub(crate) const FOPEN_NOFLUSH: u32 = 1 << 5;
/// `write_flags`: a page of the cache is written back; `fh` may be any writable handle.
pub(crate) const WRITE_CACHE: u32 = 1;
/// `write_flags`: clear suid and sgid.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// `mask` of STATX: everything that stat(2) has, as the kernel's STATX_BASIC_STATS.
pub(crate) const STATX_BASIC_STATS: u32 = 0x7ff;
/// `mask` of STATX: time of birth.
pub(crate) const STATX_BTIME: u32 = 0x800;

/// Flags of open(2) as the kernel passes them on every architecture that this builds for.
pub(crate) const O_APPEND: u32 = 0o2000;
/// `whence` of LSEEK; the kernel does the others itself.
pub(crate) const SEEK_DATA: u32 = 3;
/// The same.
pub(crate) const SEEK_HOLE: u32 = 4;

/// Code of the notification that drops cached attributes and pages of an inode.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;

/// `lk_flags`: the lock is flock(2)'s.
pub(crate) const LK_FLOCK: u32 = 1;
/// `release_flags`: the file's flock(2) lock ends.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// Types of locks, as in fcntl(2).
pub(crate) const F_RDLCK: u32 = 0;
/// Exclusive.
pub(crate) const F_WRLCK: u32 = 1;
/// None.
pub(crate) const F_UNLCK: u32 = 2;

/// Command of a ring: here is an entry for requests.
pub(crate) const RING_REGISTER: u32 = 1;
/// Command of a ring: this is the answer, and the entry is free for another request.
pub(crate) const RING_COMMIT_AND_FETCH: u32 = 2;
