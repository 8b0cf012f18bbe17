//! Flag bits of the ABI that are used or must be known.

/// Flags of INIT, the extension (`flags2`) in the upper 32 bits.
#[allow(missing_docs, reason = "named as in the kernel's header")]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `valid` of SETATTR.
#[allow(missing_docs, reason = "named as in the kernel's header")]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `getattr_flags`: `fh` is valid.
pub const GETATTR_FH: u32 = 1;
/// `open_flags` of OPEN and CREATE requests: clear suid and sgid when the file is truncated.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// `open_flags` of a reply: reads and writes go past the kernel's pages, and come as they were called.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// `open_flags` of a reply: pages cached from earlier stay.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// `open_flags` of a reply: close(2) needs no FLUSH.
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
/// `write_flags`: a page of the cache is written back; `fh` may be any writable handle.
pub const WRITE_CACHE: u32 = 1;
/// `write_flags`: clear suid and sgid.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// `mask` of STATX: everything that stat(2) has, as the kernel's STATX_BASIC_STATS.
pub const STATX_BASIC_STATS: u32 = 0x7ff;
/// `mask` of STATX: time of birth.
pub const STATX_BTIME: u32 = 0x800;

/// Flags of open(2) as the kernel passes them on every architecture that this builds for.
pub const O_APPEND: u32 = 0o2000;
/// The same.
pub const O_DIRECT: u32 = libc::O_DIRECT as u32;
/// `whence` of LSEEK; the kernel does the others itself.
pub const SEEK_DATA: u32 = 3;
/// The same.
pub const SEEK_HOLE: u32 = 4;

/// Code of the notification that drops cached attributes and pages of an inode.
pub const NOTIFY_INVAL_INODE: i32 = 2;

/// `lk_flags`: the lock is flock(2)'s.
pub const LK_FLOCK: u32 = 1;
/// `release_flags`: the file's flock(2) lock ends.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// Types of locks, as in fcntl(2).
pub const F_RDLCK: u32 = 0;
/// Exclusive.
pub const F_WRLCK: u32 = 1;
/// None.
pub const F_UNLCK: u32 = 2;

/// Command of a ring: here is an entry for requests.
pub const RING_REGISTER: u32 = 1;
/// Command of a ring: this is the answer, and the entry is free for another request.
pub const RING_COMMIT_AND_FETCH: u32 = 2;
