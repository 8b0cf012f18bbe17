//! Attributes in the kernel's form.

use std::time::Duration;

use saker_fuse::abi::{AttrBody, AttrOut, STATX_BASIC_STATS, STATX_BTIME, StatxBody, StatxTime};
use saker_types::Attr;
use saker_types::time::unix;

/// `st_blocks` counts these.
const BLOCK_BYTES: u64 = 512;
/// `st_blksize`: what programs should read and write at once.
const IO_BYTES: u32 = 128 << 10;

/// For entries, GETATTR and SETATTR.
pub(crate) fn body(attr: &Attr) -> AttrBody {
    let [atime, mtime, ctime] = [attr.atime_ns, attr.mtime_ns, attr.ctime_ns].map(unix);
    AttrBody {
        ino: attr.id,
        size: attr.size,
        blocks: attr.stored_bytes().div_ceil(BLOCK_BYTES),
        atime: atime.0,
        mtime: mtime.0,
        ctime: ctime.0,
        atimensec: atime.1,
        mtimensec: mtime.1,
        ctimensec: ctime.1,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: IO_BYTES,
        flags: 0,
    }
}

/// For GETATTR; the kernel may keep them for so long.
pub(crate) fn reply(attr: &Attr, fresh: Duration) -> AttrOut {
    let (attr_valid, attr_valid_nsec) = validity(fresh);
    AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: body(attr) }
}

/// For STATX.
pub(crate) fn statx(attr: &Attr) -> StatxBody {
    let [atime, btime, ctime, mtime] = [attr.atime_ns, attr.btime_ns, attr.ctime_ns, attr.mtime_ns]
        .map(|stamp| {
            let (sec, nsec) = unix(stamp);
            StatxTime { sec, nsec, reserved: 0 }
        });
    StatxBody {
        mask: STATX_BASIC_STATS | STATX_BTIME,
        blksize: IO_BYTES,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // Type and permissions are 16 bits.
        mode: attr.mode as u16,
        ino: attr.id,
        size: attr.size,
        blocks: attr.stored_bytes().div_ceil(BLOCK_BYTES),
        atime,
        btime,
        ctime,
        mtime,
        // The kernel's 32-bit form: 12 bits of major number between 8 and 12 of minor.
        rdev_major: attr.rdev >> 8 & 0xfff,
        rdev_minor: attr.rdev & 0xff | attr.rdev >> 12 & 0xfff00,
        ..StatxBody::default()
    }
}

/// A timeout in the kernel's form.
pub(crate) fn validity(time: Duration) -> (u64, u32) {
    (time.as_secs(), time.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_device_numbers() {
        let attr = Attr { size: 513, rdev: 0x0012_3456, mode: 0o020_644, ..Attr::default() };
        assert_eq!(body(&attr).blocks, 2);
        let statx = statx(&attr);
        assert_eq!((statx.rdev_major, statx.rdev_minor), (0x234, 0x156));
        assert_eq!(statx.mode, 0o020_644);
        assert_eq!(validity(Duration::from_millis(1500)), (1, 500_000_000));
    }
}
