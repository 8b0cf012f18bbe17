//! open(2) and its relatives.

use std::ffi::{CStr, c_char, c_int};

use libc::mode_t;
use saker_types::FileKind;

use crate::access::{READ, WRITE, Who, permit};
use crate::close::forget;
use crate::data;
use crate::datasets::Node;
use crate::next::hook;
use crate::path::{ENTRY, FOLLOW, Found, NOFOLLOW, Place, resolve};
use crate::sys::{Result, answer, fail};

/// `O_TMPFILE` without `O_DIRECTORY`.
const TMPFILE: c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// Opens what is found, as a read-only file system does.
///
/// # Errors
/// As of open(2).
pub fn open_found(found: &Found, flags: c_int) -> Result {
    let creates = flags & libc::O_CREAT != 0 && flags & libc::O_PATH == 0;
    if found.is_missing {
        return Err(if creates { libc::EROFS } else { libc::ENOENT });
    }
    let node = found.node;
    check(node, flags, creates)?;
    data::open(node, flags)
}

fn check(node: Node, flags: c_int, creates: bool) -> Result<()> {
    let kind = node.kind();
    let wants_dir = flags & libc::O_DIRECTORY != 0;
    if flags & libc::O_PATH != 0 {
        return if wants_dir && kind != FileKind::Directory { Err(libc::ENOTDIR) } else { Ok(()) };
    }
    if creates && flags & libc::O_EXCL != 0 {
        return Err(libc::EEXIST);
    }
    if creates && kind == FileKind::Directory {
        return Err(libc::EISDIR);
    }
    if wants_dir && kind != FileKind::Directory {
        return Err(libc::ENOTDIR);
    }
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    match kind {
        FileKind::Symlink => return Err(libc::ELOOP),
        FileKind::Directory if flags & TMPFILE != 0 => return Err(libc::EROFS),
        FileKind::Directory if writes => return Err(libc::EISDIR),
        _ => {}
    }
    let is_read = flags & libc::O_ACCMODE != libc::O_WRONLY;
    if flags & libc::O_TRUNC != 0 && kind == FileKind::Regular {
        return Err(libc::EROFS);
    }
    permit(node, if is_read { READ } else { 0 } | if writes { WRITE } else { 0 }, Who::Effective)?;
    if writes && kind == FileKind::Regular {
        return Err(libc::EROFS);
    }
    Ok(())
}

/// Where a path leads that is to be opened.
///
/// # Safety
/// `path` is null or ends with a zero.
pub unsafe fn look_up(dirfd: c_int, path: *const c_char, flags: c_int) -> Place {
    let creates = flags & libc::O_CREAT != 0 && flags & libc::O_PATH == 0;
    // SAFETY: the caller's.
    unsafe {
        if creates && !path.is_null() && names_dir(CStr::from_ptr(path).to_bytes()) {
            return match resolve(dirfd, path, ENTRY) {
                Place::Ours(Ok(_)) => Place::Ours(Err(libc::EISDIR)),
                other => other,
            };
        }
        let exclusive = libc::O_CREAT | libc::O_EXCL;
        let follow = flags & libc::O_NOFOLLOW == 0 && flags & exclusive != exclusive;
        resolve(dirfd, path, if follow { FOLLOW } else { NOFOLLOW })
    }
}

/// A path like `a/`, which no file can be made at.
fn names_dir(path: &[u8]) -> bool {
    let last = path.rsplit(|c| *c == b'/').find(|name| !name.is_empty());
    path.ends_with(b"/") && last.is_some_and(|last| last != b"." && last != b"..")
}

/// Opens a path; `next` opens one elsewhere.
///
/// # Safety
/// `path` is null or ends with a zero.
pub unsafe fn open_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { look_up(dirfd, path, flags) } {
        Place::Output(output) => answer(output.open(flags, mode)),
        Place::Elsewhere => fresh(next(dirfd, path)),
        Place::Real(path) => fresh(next(libc::AT_FDCWD, path.as_ptr())),
        // SAFETY: the caller's.
        Place::Ours(found) => answer(unsafe { open_ours(found, dirfd, path, flags) }),
    }
}

/// Opens what is found; looks once more, as the kernel does, if it is stale: by a path from above,
/// the dataset is found that has the name now.
///
/// # Safety
/// `path` ends with a zero.
pub unsafe fn open_ours(
    found: Result<Found>,
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
) -> Result {
    match open_found(&found?, flags) {
        Err(libc::ESTALE) => {}
        other => return other,
    }
    // SAFETY: the caller's.
    match unsafe { look_up(dirfd, path, flags) } {
        Place::Ours(found) => open_found(&found?, flags),
        _ => Err(libc::ESTALE),
    }
}

/// A new descriptor of a real file. One of ours had the number before if it was closed past us, by
/// a raw system call.
fn fresh(fd: c_int) -> c_int {
    drop(forget(fd));
    fd
}

hook! { open, open64: (path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |next| {
    open_at(libc::AT_FDCWD, path, flags, mode, |_, path| next(path, flags, mode))
}}

hook! { __open_2, __open64_2: (path: *const c_char, flags: c_int) -> c_int, |next| {
    open_at(libc::AT_FDCWD, path, flags, 0, |_, path| next(path, flags))
}}

hook! {
    openat, openat64: (dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int,
    |next| { open_at(dirfd, path, flags, mode, |dirfd, path| next(dirfd, path, flags, mode)) }
}

hook! { __openat_2, __openat64_2: (dirfd: c_int, path: *const c_char, flags: c_int) -> c_int,
    |next| { open_at(dirfd, path, flags, 0, |dirfd, path| next(dirfd, path, flags)) }
}

hook! { creat, creat64: (path: *const c_char, mode: mode_t) -> c_int, |next| {
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
    open_at(libc::AT_FDCWD, path, flags, mode, |_, path| next(path, mode))
}}

hook! { name_to_handle_at:
    (dirfd: c_int, path: *const c_char, handle: *mut u8, mount: *mut c_int, flags: c_int) -> c_int,
    |next| {
        let how = crate::path::How { empty: flags & libc::AT_EMPTY_PATH != 0, ..FOLLOW };
        match resolve(dirfd, path, how) {
            Place::Elsewhere => next(dirfd, path, handle, mount, flags),
            Place::Real(path) => next(dirfd, path.as_ptr(), handle, mount, flags),
            Place::Ours(found) => fail(found.err().unwrap_or(libc::EOPNOTSUPP)),
            Place::Output(output) => fail(output.look().err().unwrap_or(libc::EOPNOTSUPP)),
        }
    }
}
