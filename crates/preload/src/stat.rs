//! stat(2), access(2) and their relatives.

use std::ffi::{c_char, c_int, c_uint};

use crate::access::{WRITE, Who, permit, permit_info};
use crate::datasets::{Info, Node};
use crate::next::{hook, next};
use crate::output::Output;
use crate::path::{FOLLOW, How, NOFOLLOW, Place, resolve};
use crate::sys::{Result, answer, fail};
use crate::{fds, outfds};
use saker_types::FileKind;

/// Bytes that reads should have.
const BLOCK_BYTES: u32 = 4096;

fn fill(info: &Info) -> libc::stat {
    // SAFETY: a plain structure, of which zeros are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = info.dev;
    stat.st_ino = info.ino;
    stat.st_mode = info.mode;
    stat.st_nlink = info.nlink as _;
    (stat.st_uid, stat.st_gid) = (info.uid, info.gid);
    stat.st_rdev = info.rdev;
    stat.st_size = info.size as i64;
    stat.st_blksize = BLOCK_BYTES as _;
    stat.st_blocks = info.blocks() as i64;
    let (s, ns) = (info.mtime.0, i64::from(info.mtime.1));
    (stat.st_atime, stat.st_mtime, stat.st_ctime) = (s, s, s);
    (stat.st_atime_nsec, stat.st_mtime_nsec, stat.st_ctime_nsec) = (ns, ns, ns);
    stat
}

/// What stat(2) says of a node.
///
/// # Safety
/// `into` is null or has room.
pub unsafe fn tell(node: Node, into: *mut libc::stat) -> Result {
    if into.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's.
    unsafe { into.write(fill(&node.info())) };
    Ok(0)
}

/// stat(2) of a path; `next` asks for one elsewhere.
unsafe fn stat_at(
    dirfd: c_int,
    path: *const c_char,
    how: How,
    into: *mut libc::stat,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(dirfd, path, how) } {
        Place::Elsewhere => next(dirfd, path),
        Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr()),
        Place::Ours(found) => {
            let node = found.and_then(|found| found.existing());
            // SAFETY: the caller's.
            answer(node.and_then(|node| unsafe { tell(node, into) }))
        }
        // SAFETY: the caller's.
        Place::Output(output) => answer(unsafe { tell_output(&output, into) }),
    }
}

/// What stat(2) says of an output.
unsafe fn tell_output(output: &Output, into: *mut libc::stat) -> Result {
    if into.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's.
    unsafe { into.write(fill(&output.info()?)) };
    Ok(0)
}

/// What fstat(2) says; `None`: it is no descriptor of ours.
unsafe fn tell_fd(fd: c_int, into: *mut libc::stat) -> Option<Result> {
    // SAFETY: the caller's.
    unsafe {
        match fds::get(fd) {
            Some(entry) => Some(tell(entry.node, into)),
            None => outfds::output(fd).map(|output| tell_output(&output, into)),
        }
    }
}

/// How flags of the `*at` calls want a path followed.
pub fn how(flags: c_int) -> How {
    How {
        follow: flags & libc::AT_SYMLINK_NOFOLLOW == 0,
        empty: flags & libc::AT_EMPTY_PATH != 0,
        ..FOLLOW
    }
}

hook! { stat, stat64: (path: *const c_char, into: *mut libc::stat) -> c_int, |next| {
    stat_at(libc::AT_FDCWD, path, FOLLOW, into, |_, path| next(path, into))
}}

hook! { lstat, lstat64: (path: *const c_char, into: *mut libc::stat) -> c_int, |next| {
    stat_at(libc::AT_FDCWD, path, NOFOLLOW, into, |_, path| next(path, into))
}}

hook! { fstat, fstat64: (fd: c_int, into: *mut libc::stat) -> c_int, |next| {
    tell_fd(fd, into).map_or_else(|| next(fd, into), answer)
}}

hook! {
    fstatat, fstatat64:
    (dirfd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int, |next| {
        stat_at(dirfd, path, how(flags), into, |dirfd, path| next(dirfd, path, into, flags))
    }
}

// What programs called that were built before glibc 2.33.
hook! { __xstat, __xstat64: (version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int,
    |next| { stat_at(libc::AT_FDCWD, path, FOLLOW, into, |_, path| next(version, path, into)) }
}

hook! { __lxstat, __lxstat64: (version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int,
    |next| { stat_at(libc::AT_FDCWD, path, NOFOLLOW, into, |_, path| next(version, path, into)) }
}

hook! { __fxstat, __fxstat64: (version: c_int, fd: c_int, into: *mut libc::stat) -> c_int, |next| {
    tell_fd(fd, into).map_or_else(|| next(version, fd, into), answer)
}}

hook! {
    __fxstatat, __fxstatat64:
    (version: c_int, dirfd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int)
        -> c_int, |next| {
        stat_at(dirfd, path, how(flags), into, |dirfd, path| {
            next(version, dirfd, path, into, flags)
        })
    }
}

fn fill_extended(info: &Info) -> libc::statx {
    // SAFETY: a plain structure, of which zeros are valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    stat.stx_mask = libc::STATX_BASIC_STATS;
    stat.stx_blksize = BLOCK_BYTES;
    stat.stx_nlink = info.nlink;
    (stat.stx_uid, stat.stx_gid) = (info.uid, info.gid);
    stat.stx_mode = info.mode as u16;
    stat.stx_ino = info.ino;
    stat.stx_size = info.size;
    stat.stx_blocks = info.blocks();
    for time in [&mut stat.stx_atime, &mut stat.stx_ctime, &mut stat.stx_mtime] {
        (time.tv_sec, time.tv_nsec) = info.mtime;
    }
    (stat.stx_rdev_major, stat.stx_rdev_minor) = (libc::major(info.rdev), libc::minor(info.rdev));
    (stat.stx_dev_major, stat.stx_dev_minor) = (libc::major(info.dev), libc::minor(info.dev));
    stat
}

hook! {
    statx:
    (dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx)
        -> c_int, |next| {
        match resolve(dirfd, path, how(flags)) {
            Place::Elsewhere => next(dirfd, path, flags, mask, into),
            Place::Real(path) => next(dirfd, path.as_ptr(), flags, mask, into),
            Place::Ours(_) | Place::Output(_) if into.is_null() => fail(libc::EFAULT),
            Place::Ours(found) => answer(found.and_then(|found| found.existing()).map(|node| {
                into.write(fill_extended(&node.info()));
                0
            })),
            Place::Output(output) => answer(output.info().map(|info| {
                into.write(fill_extended(&info));
                0
            })),
        }
    }
}

fn may(node: Node, mode: c_int, who: Who) -> Result {
    if mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
        return Err(libc::EINVAL);
    }
    permit(node, mode as u32, who)?;
    let is_special =
        !matches!(node.kind(), FileKind::Regular | FileKind::Directory | FileKind::Symlink);
    if mode as u32 & WRITE != 0 && !is_special { Err(libc::EROFS) } else { Ok(0) }
}

unsafe fn access_at(
    dirfd: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    let who = if flags & libc::AT_EACCESS != 0 { Who::Effective } else { Who::Real };
    let how = How { real_user: who == Who::Real, ..how(flags) };
    // SAFETY: the caller's.
    match unsafe { resolve(dirfd, path, how) } {
        Place::Elsewhere => next(dirfd, path),
        Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr()),
        Place::Ours(found) => {
            answer(found.and_then(|found| found.existing()).and_then(|node| may(node, mode, who)))
        }
        Place::Output(output) => answer(output.info().and_then(|info| {
            permit_info(&info, mode as u32, who)?;
            Ok(0)
        })),
    }
}

hook! { access: (path: *const c_char, mode: c_int) -> c_int, |next| {
    access_at(libc::AT_FDCWD, path, mode, 0, |_, path| next(path, mode))
}}

hook! { eaccess, euidaccess: (path: *const c_char, mode: c_int) -> c_int, |next| {
    access_at(libc::AT_FDCWD, path, mode, libc::AT_EACCESS, |_, path| next(path, mode))
}}

hook! { faccessat: (dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, |next| {
    access_at(dirfd, path, mode, flags, |dirfd, path| next(dirfd, path, mode, flags))
}}

// The limits of names and links are those of any file system.
hook! { pathconf: (path: *const c_char, name: c_int) -> i64, |next| {
    match resolve(libc::AT_FDCWD, path, FOLLOW) {
        Place::Elsewhere => next(path, name),
        Place::Real(path) => next(path.as_ptr(), name),
        Place::Ours(found) => match found.and_then(|found| found.existing()) {
            Ok(_) => next(c"/".as_ptr(), name),
            Err(errno) => fail(errno),
        },
        Place::Output(output) => match output.real_dir() {
            Ok(dir) => next(dir.as_ptr(), name),
            Err(errno) => fail(errno),
        },
    }
}}

hook! { fpathconf: (fd: c_int, name: c_int) -> i64, |next| {
    match fds::get(fd) {
        Some(_) => next!(pathconf: fn(*const c_char, c_int) -> i64)(c"/".as_ptr(), name),
        None => next(fd, name),
    }
}}
