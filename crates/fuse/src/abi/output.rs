//! What the kernel is answered.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Defines structures of the ABI and asserts their sizes in bytes.
macro_rules! outputs {
    ($($(#[$doc:meta])* $name:ident($size:literal) { $($field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        // FromBytes is derived for the tests, which read replies.
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs, reason = "named as in the kernel's header")]
        pub struct $name { $(pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

outputs! {
    /// Starts every reply and notification. `error` is 0, a negated errno, or, with `unique` 0,
    /// the code of a notification.
    OutHeader(16) { len: u32, error: i32, unique: u64, }
    InitOut(64) {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, unused: [u32; 6],
    }
    AttrBody(88) {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    EntryOut(128) {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: AttrBody,
    }
    AttrOut(104) { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrBody, }
    StatxTime(16) { sec: i64, nsec: u32, reserved: i32, }
    StatxBody(256) {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime,
        btime: StatxTime, ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut(288) {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: StatxBody,
    }
    OpenOut(16) { fh: u64, open_flags: u32, backing_id: i32, }
    LseekOut(8) { offset: u64, }
    CopyFileRangeOut(8) { bytes_copied: u64, }
    WriteOut(8) { size: u32, padding: u32, }
    StatfsOut(80) {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    LkOut(24) { start: u64, end: u64, kind: u32, pid: u32, }
    GetxattrOut(8) { size: u32, padding: u32, }
    /// Followed by the name, padded to 8 bytes.
    Dirent(24) { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// What a command of a ring is about; at the end of its submission.
    RingCmd(24) { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
    NotifyInvalInode(24) { ino: u64, off: i64, len: i64, }
}
