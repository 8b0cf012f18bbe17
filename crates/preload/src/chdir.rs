//! The working directory: chdir(2), getcwd(3).

use std::ffi::{CStr, c_char, c_int};

use libc::size_t;

use crate::access::{EXECUTE, Who, permit};
use crate::cwd::{self, Cwd};
use crate::datasets::Node;
use crate::fds;
use crate::next::{hook, next};
use crate::path::{FOLLOW, Place, resolve};
use crate::sys::{self, Result, answer, answer_ptr};

fn enter(node: Node) -> Result {
    if !node.is_dir() {
        return Err(libc::ENOTDIR);
    }
    permit(node, EXECUTE, Who::Effective)?;
    cwd::set(Cwd::Ours(node));
    Ok(0)
}

/// The working directory is another real one, if that worked.
fn left(result: c_int) -> c_int {
    if result == 0 {
        let errno = sys::errno();
        cwd::set(cwd::find_real());
        sys::set_errno(errno);
    }
    result
}

hook! { chdir: (path: *const c_char) -> c_int, |next| {
    match resolve(libc::AT_FDCWD, path, FOLLOW) {
        Place::Elsewhere => left(next(path)),
        Place::Real(path) => left(next(path.as_ptr())),
        Place::Ours(found) => answer(found.and_then(|found| enter(found.existing()?))),
    }
}}

hook! { fchdir: (fd: c_int) -> c_int, |next| {
    match fds::get(fd) {
        Some(entry) => answer(enter(entry.node)),
        None => left(next(fd)),
    }
}}

/// Writes a path to a buffer, or to a new one; 0 bytes of room: as much as it takes.
unsafe fn write(path: &[u8], into: *mut c_char, room: size_t) -> Result<*mut c_char> {
    if !into.is_null() && room == 0 {
        return Err(libc::EINVAL);
    }
    let len = path.len() + 1;
    if room > 0 && room < len {
        return Err(libc::ERANGE);
    }
    let into = match into.is_null() {
        // SAFETY: any size will do.
        true => unsafe { libc::malloc(room.max(len)).cast::<c_char>() },
        false => into,
    };
    if into.is_null() {
        return Err(libc::ENOMEM);
    }
    // SAFETY: there is room for the path and a zero.
    unsafe {
        into.cast::<u8>().copy_from_nonoverlapping(path.as_ptr(), path.len());
        into.add(path.len()).write(0);
    }
    Ok(into)
}

hook! { getcwd: (into: *mut c_char, room: size_t) -> *mut c_char, |next| {
    match cwd::ours() {
        Some(node) => answer_ptr(write(&node.path(), into, room)),
        None => next(into, room),
    }
}}

hook! { __getcwd_chk: (into: *mut c_char, room: size_t, known: size_t) -> *mut c_char, |next| {
    match cwd::ours().filter(|_| room <= known) {
        Some(node) => answer_ptr(write(&node.path(), into, room)),
        None => next(into, room, known),
    }
}}

hook! { get_current_dir_name: () -> *mut c_char, |next| {
    match cwd::ours() {
        Some(node) => answer_ptr(write(&node.path(), std::ptr::null_mut(), 0)),
        None => next(),
    }
}}

hook! { getwd: (into: *mut c_char) -> *mut c_char, |next| {
    match cwd::ours() {
        Some(node) => answer_ptr(write(&node.path(), into, libc::PATH_MAX as size_t)),
        None => next(into),
    }
}}

/// The canonical form of a path: in a buffer of `PATH_MAX` bytes, or in a new one.
unsafe fn canonical(
    path: *const c_char,
    into: *mut c_char,
    next: impl FnOnce(*const c_char) -> *mut c_char,
) -> *mut c_char {
    if path.is_null() {
        return next(path);
    }
    let how = crate::path::How { name: true, ..FOLLOW };
    // SAFETY: the caller's.
    match unsafe { resolve(libc::AT_FDCWD, path, how) } {
        Place::Elsewhere => next(path),
        Place::Real(path) => next(path.as_ptr()),
        Place::Ours(found) => {
            let path = found.and_then(|found| found.existing().map(|_| found.path()));
            let room = if into.is_null() { 0 } else { libc::PATH_MAX as size_t };
            // SAFETY: the caller's: so much room, or none.
            answer_ptr(path.and_then(|path| unsafe { write(&path, into, room) }))
        }
    }
}

hook! { realpath: (path: *const c_char, into: *mut c_char) -> *mut c_char, |next| {
    canonical(path, into, |path| next(path, into))
}}

hook! { __realpath_chk: (path: *const c_char, into: *mut c_char, room: size_t) -> *mut c_char, |next| {
    if room < libc::PATH_MAX as size_t {
        return next(path, into, room);
    }
    canonical(path, into, |path| next(path, into, room))
}}

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
    let how = crate::path::How { follow: false, empty: true, ..FOLLOW };
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
