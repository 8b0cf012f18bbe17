//! Calls that would change something: EROFS, unless Linux says something else first.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{gid_t, mode_t, size_t, uid_t};
use saker_types::FileKind;

use crate::access::{self, Who, permit};
use crate::fds;
use crate::next::hook;
use crate::path::{FOLLOW, How, NOFOLLOW, Place, resolve};
use crate::stat::how;
use crate::sys::{answer, fail};

/// A call that changes what is there.
unsafe fn change(
    dirfd: c_int,
    path: *const c_char,
    how: How,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(dirfd, path, how) } {
        Place::Elsewhere => next(dirfd, path),
        Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr()),
        Place::Ours(found) => {
            answer(found.and_then(|found| found.existing()).and(Err(libc::EROFS)))
        }
    }
}

hook! { chmod: (path: *const c_char, mode: mode_t) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, |_, path| next(path, mode))
}}

hook! { lchmod: (path: *const c_char, mode: mode_t) -> c_int, |next| {
    change(libc::AT_FDCWD, path, NOFOLLOW, |_, path| next(path, mode))
}}

hook! { fchmodat: (dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int, |next| {
    change(dirfd, path, how(flags), |dirfd, path| next(dirfd, path, mode, flags))
}}

hook! { chown: (path: *const c_char, uid: uid_t, gid: gid_t) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, |_, path| next(path, uid, gid))
}}

hook! { lchown: (path: *const c_char, uid: uid_t, gid: gid_t) -> c_int, |next| {
    change(libc::AT_FDCWD, path, NOFOLLOW, |_, path| next(path, uid, gid))
}}

hook! {
    fchownat: (dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int,
    |next| { change(dirfd, path, how(flags), |dirfd, path| next(dirfd, path, uid, gid, flags)) }
}

hook! { utime: (path: *const c_char, times: *const c_void) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, |_, path| next(path, times))
}}

hook! { utimes: (path: *const c_char, times: *const c_void) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, |_, path| next(path, times))
}}

hook! { lutimes: (path: *const c_char, times: *const c_void) -> c_int, |next| {
    change(libc::AT_FDCWD, path, NOFOLLOW, |_, path| next(path, times))
}}

hook! { futimesat: (dirfd: c_int, path: *const c_char, times: *const c_void) -> c_int, |next| {
    let how = How { empty: path.is_null(), ..FOLLOW };
    change(dirfd, path, how, |dirfd, path| next(dirfd, path, times))
}}

hook! {
    utimensat: (dirfd: c_int, path: *const c_char, times: *const c_void, flags: c_int) -> c_int,
    |next| {
        let how = How { empty: path.is_null() || flags & libc::AT_EMPTY_PATH != 0, ..how(flags) };
        change(dirfd, path, how, |dirfd, path| next(dirfd, path, times, flags))
    }
}

hook! { truncate, truncate64: (path: *const c_char, len: i64) -> c_int, |next| {
    match resolve(libc::AT_FDCWD, path, FOLLOW) {
        Place::Elsewhere => next(path, len),
        Place::Real(path) => next(path.as_ptr(), len),
        Place::Ours(_) if len < 0 => fail(libc::EINVAL),
        Place::Ours(found) => answer(found.and_then(|found| found.existing()).and_then(|node| {
            Err(match node.kind() {
                FileKind::Regular => {
                    permit(node, access::WRITE, Who::Effective)?;
                    libc::EROFS
                }
                FileKind::Directory => libc::EISDIR,
                _ => libc::EINVAL,
            })
        })),
    }
}}

hook! { fchmod: (fd: c_int, mode: mode_t) -> c_int, |next| {
    if fds::get(fd).is_some() { fail(libc::EROFS) } else { next(fd, mode) }
}}

hook! { fchown: (fd: c_int, uid: uid_t, gid: gid_t) -> c_int, |next| {
    if fds::get(fd).is_some() { fail(libc::EROFS) } else { next(fd, uid, gid) }
}}

hook! { futimens: (fd: c_int, times: *const c_void) -> c_int, |next| {
    if fds::get(fd).is_some() { fail(libc::EROFS) } else { next(fd, times) }
}}

hook! { futimes: (fd: c_int, times: *const c_void) -> c_int, |next| {
    if fds::get(fd).is_some() { fail(libc::EROFS) } else { next(fd, times) }
}}

hook! {
    setxattr:
    (path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int)
        -> c_int,
    |next| {
        change(libc::AT_FDCWD, path, FOLLOW, |_, path| next(path, name, value, len, flags))
    }
}

hook! {
    lsetxattr:
    (path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int)
        -> c_int,
    |next| {
        change(libc::AT_FDCWD, path, NOFOLLOW, |_, path| next(path, name, value, len, flags))
    }
}

hook! {
    fsetxattr:
    (fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int,
    |next| {
        if fds::get(fd).is_some() { fail(libc::EROFS) } else { next(fd, name, value, len, flags) }
    }
}

hook! { removexattr: (path: *const c_char, name: *const c_char) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, |_, path| next(path, name))
}}

hook! { lremovexattr: (path: *const c_char, name: *const c_char) -> c_int, |next| {
    change(libc::AT_FDCWD, path, NOFOLLOW, |_, path| next(path, name))
}}

hook! { fremovexattr: (fd: c_int, name: *const c_char) -> c_int, |next| {
    if fds::get(fd).is_some() { fail(libc::EROFS) } else { next(fd, name) }
}}

// Nothing happens that a watch could tell.
hook! { inotify_add_watch: (fd: c_int, path: *const c_char, mask: u32) -> c_int, |next| {
    match resolve(libc::AT_FDCWD, path, FOLLOW) {
        Place::Elsewhere => next(fd, path, mask),
        Place::Real(path) => next(fd, path.as_ptr(), mask),
        Place::Ours(found) => {
            answer(found.and_then(|found| found.existing()).and(Err(libc::EOPNOTSUPP)))
        }
    }
}}

hook! {
    fanotify_mark:
    (fd: c_int, flags: c_uint, mask: u64, dirfd: c_int, path: *const c_char) -> c_int, |next| {
        match resolve(dirfd, path, How { empty: path.is_null(), ..FOLLOW }) {
            Place::Elsewhere => next(fd, flags, mask, dirfd, path),
            Place::Real(path) => next(fd, flags, mask, dirfd, path.as_ptr()),
            Place::Ours(found) => {
                answer(found.and_then(|found| found.existing()).and(Err(libc::EOPNOTSUPP)))
            }
        }
    }
}
