//! What the kernel sends.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Defines structures of the ABI and asserts their sizes in bytes.
macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident($size:literal) { $($field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        // IntoBytes is derived for its proof that there is no padding.
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs, reason = "named as in the kernel's header")]
        pub struct $name { $(pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

inputs! {
    /// Starts every request. `len` counts the whole request, `total_extlen` the extensions at its
    /// end in units of 8 bytes; `pid` is the calling thread as this process sees it, 0 if it
    /// does not.
    InHeader(40) {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    InitIn(16) { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// Follows [`InitIn`] from 7.36 on.
    InitInExt(48) { flags2: u32, unused: [u32; 11], }
    ForgetIn(8) { nlookup: u64, }
    ForgetOne(16) { nodeid: u64, nlookup: u64, }
    BatchForgetIn(8) { count: u32, dummy: u32, }
    GetattrIn(16) { flags: u32, dummy: u32, fh: u64, }
    StatxIn(24) { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    SetattrIn(88) {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64,
        ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    MknodIn(16) { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn(8) { mode: u32, umask: u32, }
    RenameIn(8) { newdir: u64, }
    Rename2In(16) { newdir: u64, flags: u32, padding: u32, }
    LinkIn(8) { oldnodeid: u64, }
    OpenIn(8) { flags: u32, open_flags: u32, }
    CreateIn(16) { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    ReleaseIn(24) { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn(24) { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn(40) {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    WriteIn(40) {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    FsyncIn(16) { fh: u64, fsync_flags: u32, padding: u32, }
    /// The form without FUSE_SETXATTR_EXT.
    SetxattrIn(8) { size: u32, flags: u32, }
    GetxattrIn(8) { size: u32, padding: u32, }
    AccessIn(8) { mask: u32, padding: u32, }
    /// `end` is the last byte, the largest i64 for all that comes.
    LkIn(48) {
        fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32,
        padding: u32,
    }
    InterruptIn(8) { unique: u64, }
    LseekIn(24) { fh: u64, offset: u64, whence: u32, padding: u32, }
    CopyFileRangeIn(56) {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// In an entry of a ring: `commit_id` names the request to the thread that answers it, `payload_sz` counts
    /// the bytes in the payload's buffer, in either direction.
    RingEntInOut(32) { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
    FallocateIn(32) { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
}
