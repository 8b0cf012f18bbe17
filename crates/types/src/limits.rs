//! Named bounds (architecture.md, "Formats and identity"). Every queue, frame and table of Saker
//! is bounded by one of these or by a bound named beside its use.

use std::time::Duration;

/// Longest name of a directory entry, in bytes (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path, in bytes (`PATH_MAX`), and so the most components a request may carry.
pub const PATH_BYTES_MAX: usize = 4096;
/// Most components in one request: each takes a byte and a separator.
pub const COMPONENTS_MAX: usize = PATH_BYTES_MAX / 2;
/// Most symbolic links followed in one resolution (`MAXSYMLINKS` of Linux).
pub const SYMLINKS_MAX: usize = 40;
/// Most hard links to one inode.
pub const LINKS_MAX: u32 = 65_000;
/// Largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 40;
/// Bytes of a chunk of file data.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Bytes of a chunk that have a checksum of their own.
pub const BLOCK_BYTES: usize = 4096;
/// Files up to this many bytes live in their inode row, unless the cluster says otherwise.
pub const INLINE_BYTES_MAX: u64 = 4096;
/// Longest value of one extended attribute (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// All extended attributes of one inode together, names and values.
pub const XATTRS_BYTES_MAX: usize = 64 << 10;
/// Stores, and epochs of them, that an inode remembers writes to which no fsync has flushed.
pub const UNFLUSHED_MAX: usize = 4_096;
/// Most supplementary groups carried with a request (`NGROUPS_MAX` of Linux).
pub const GROUPS_MAX: usize = 65_536;
/// Most inodes that a shard looks out for at a time for one who asks.
pub const WATCHED_MAX: usize = 65_536;
/// Number of slots that names hash to; a constant of the on-disk format.
pub const SLOTS: usize = 65_536;
/// Mutations that one session may have unanswered; the shard keeps this many results at most.
pub const SESSION_RESULTS_MAX: usize = 16_384;
/// Bytes of the results that a shard keeps for one session; what runs when they are reached may
/// add to it.
pub const SESSION_RESULTS_BYTES_MAX: usize = 16 << 20;
/// Bytes of answers that a client has and cannot acknowledge, for an earlier one is missing, after
/// which it begins a new session: it never comes to the bound of a shard.
pub const SESSION_ANSWERS_BYTES_MAX: usize = SESSION_RESULTS_BYTES_MAX / 2;
/// A session ends when its client has not been heard of for this long.
pub const SESSION_LEASE: Duration = Duration::from_secs(600);
/// A client goes on in a session if the node has answered in it within this time. Else the node
/// may be about to end it, and what was asked in it would have an unknown outcome.
pub const SESSION_FRESH: Duration = Duration::from_secs(300);
/// How long a removed or moved name is remembered, and an orphan's data kept, after the last
/// lease on it was given or renewed (docs/protocol.md, rule 16).
pub const LEASE_NS: u64 = 60_000_000_000;

/// So long a mount lets its kernel keep a directory's name, counted from before it asked.
pub const NAME_KEEP: Duration = Duration::from_millis(100);
/// The same, of a name below which it changes nothing.
pub const NAME_KEEP_MAX: Duration = Duration::from_secs(1);
/// So much longer the name is not changed: for the kernel, which counts from when the thread that
/// waits for a reply runs again.
pub const NAME_KEEP_MARGIN: Duration = Duration::from_millis(200);
/// After somebody had to wait for names that were kept so, they are not for so long: whoever moves directories
/// that were just read in may go on to the next.
pub const NAME_CONTENDED: Duration = Duration::from_secs(10);
/// A name is changed at most so much later because mounts keep it.
pub const NAME_LEASE_MAX: Duration = NAME_KEEP_MAX.saturating_add(NAME_KEEP_MARGIN);

/// A time that a client has seen is heeded by a server whose own clock is this far behind it at most (docs/decisions/0048).
pub const CLOCK_SKEW_NS_MAX: u64 = 10_000_000_000;
/// What a client changes is not in its own future, if its clock is this far behind the server's at most.
pub const CLOCK_BEHIND_NS_MAX: u64 = 1_000_000_000;

/// A client's file locks end when it has not been heard of for this long.
pub const LOCK_LEASE_NS: u64 = 10_000_000_000;
/// Most locks on one file.
pub const FILE_LOCKS_MAX: usize = 1_024;

/// Conflicts that one shard names of a merge.
pub const MERGE_CONFLICTS_MAX: usize = 1_000;
/// Rows that a client stages with one request.
pub const STAGE_ROWS_MAX: usize = 4_096;
/// Bytes of the rows that a client stages with one request, encoded.
pub const STAGE_BYTES_MAX: usize = 512 << 10;
/// Directories that one merge may change of those that were there before.
pub const MERGE_DIRS_MAX: usize = 65_536;
/// Inode numbers that one hold of a subtree is given at most.
pub const HOLD_INODES_MAX: u64 = 1 << 31;
/// Policies that a directory has had before, which are remembered for those who were told of them.
pub const POLICIES_BEFORE_MAX: usize = 16;
/// A client that holds a subtree is taken for dead when it was not heard of for this long.
pub const HOLD_LEASE: Duration = Duration::from_secs(10);

const _: () = assert!(NAME_KEEP.as_nanos() < NAME_KEEP_MAX.as_nanos());
const _: () = assert!(SESSION_FRESH.as_nanos() * 2 <= SESSION_LEASE.as_nanos());
const _: () = assert!(INLINE_BYTES_MAX < CHUNK_BYTES);
const _: () = assert!(FILE_BYTES_MAX.is_multiple_of(CHUNK_BYTES));
