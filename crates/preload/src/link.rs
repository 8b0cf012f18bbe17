//! Canonical paths and the targets of links.

use std::ffi::{CStr, c_char, c_int};

use libc::size_t;

use crate::next::{hook, next};
use crate::path::{FOLLOW, How, Place, resolve};
use crate::sys::{answer, answer_ptr, write_path};

/// The canonical form of a path: in a buffer of `PATH_MAX` bytes, or in a new one.
unsafe fn canonical(
    path: *const c_char,
    into: *mut c_char,
    next: impl FnOnce(*const c_char) -> *mut c_char,
) -> *mut c_char {
    if path.is_null() {
        return next(path);
    }
    let how = How { name: true, ..FOLLOW };
    // SAFETY: the caller's.
    match unsafe { resolve(libc::AT_FDCWD, path, how) } {
        Place::Elsewhere => next(path),
        Place::Real(path) => next(path.as_ptr()),
        Place::Ours(found) => {
            let path = found.and_then(|found| found.existing().map(|_| found.path()));
            let room = if into.is_null() { 0 } else { libc::PATH_MAX as size_t };
            // SAFETY: the caller's: so much room, or none.
            answer_ptr(path.and_then(|path| unsafe { write_path(&path, into, room) }))
        }
        Place::Output(output) => {
            let room = if into.is_null() { 0 } else { libc::PATH_MAX as size_t };
            let path = output.look().map(|_| output.full_path());
            // SAFETY: as above.
            answer_ptr(path.and_then(|path| unsafe { write_path(&path, into, room) }))
        }
    }
}

hook! { realpath: (path: *const c_char, into: *mut c_char) -> *mut c_char, |next| {
    canonical(path, into, |path| next(path, into))
}}

hook! {
    __realpath_chk: (path: *const c_char, into: *mut c_char, room: size_t) -> *mut c_char, |next| {
        if room < libc::PATH_MAX as size_t {
            return next(path, into, room);
        }
        canonical(path, into, |path| next(path, into, room))
    }
}

hook! { canonicalize_file_name: (path: *const c_char) -> *mut c_char, |next| {
    canonical(path, std::ptr::null_mut(), |path| next(path))
}}

unsafe fn read_link(
    dirfd: c_int,
    path: *const c_char,
    into: *mut c_char,
    room: size_t,
    next: impl FnOnce(c_int, *const c_char) -> isize,
) -> isize {
    let how = How { follow: false, empty: true, ..FOLLOW };
    // SAFETY: the caller's.
    match unsafe { resolve(dirfd, path, how) } {
        Place::Elsewhere => next(dirfd, path),
        Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr()),
        Place::Ours(found) => answer((|| {
            // SAFETY: the caller's: not null, where something is ours.
            let is_empty = unsafe { CStr::from_ptr(path) }.is_empty();
            let node = found?.existing()?;
            let is_descriptor = is_empty && dirfd != libc::AT_FDCWD;
            let no_link = if is_empty { libc::ENOENT } else { libc::EINVAL };
            if is_empty && !is_descriptor || room == 0 {
                return Err(if room == 0 { libc::EINVAL } else { libc::ENOENT });
            }
            let target = node.target().ok_or(no_link)?;
            let len = target.len().min(room);
            // SAFETY: there is so much room.
            unsafe { into.cast::<u8>().copy_from_nonoverlapping(target.as_ptr(), len) };
            Ok(len as isize)
        })()),
        Place::Output(output) => answer(output.look().and(Err(libc::EINVAL))),
    }
}

hook! { readlink: (path: *const c_char, into: *mut c_char, room: size_t) -> isize, |next| {
    read_link(libc::AT_FDCWD, path, into, room, |_, path| next(path, into, room))
}}

hook! {
    readlinkat: (dirfd: c_int, path: *const c_char, into: *mut c_char, room: size_t) -> isize,
    |next| {
        read_link(dirfd, path, into, room, |dirfd, path| next(dirfd, path, into, room))
    }
}

hook! {
    __readlink_chk:
    (path: *const c_char, into: *mut c_char, room: size_t, known: size_t) -> isize, |next| {
        if room > known {
            return next(path, into, room, known);
        }
        let next = next!(readlink: fn(*const c_char, *mut c_char, size_t) -> isize);
        read_link(libc::AT_FDCWD, path, into, room, |_, path| next(path, into, room))
    }
}

hook! {
    __readlinkat_chk:
    (dirfd: c_int, path: *const c_char, into: *mut c_char, room: size_t, known: size_t) -> isize,
    |next| {
        if room > known {
            return next(dirfd, path, into, room, known);
        }
        let next = next!(readlinkat: fn(c_int, *const c_char, *mut c_char, size_t) -> isize);
        read_link(dirfd, path, into, room, |dirfd, path| next(dirfd, path, into, room))
    }
}
