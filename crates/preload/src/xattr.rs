//! Extended attributes.

use std::ffi::{CStr, c_char, c_int};

use libc::{size_t, ssize_t};

use crate::access::{READ, Who, permit};
use crate::datasets::Node;
use crate::fds;
use crate::next::hook;
use crate::path::{FOLLOW, How, NOFOLLOW, Place, resolve};
use crate::sys::{Result, answer};

/// Gives bytes to a buffer; no room: only says how many.
unsafe fn give(bytes: &[u8], into: *mut u8, room: size_t) -> Result<ssize_t> {
    if room > 0 && room < bytes.len() {
        return Err(libc::ERANGE);
    }
    if room > 0 {
        // SAFETY: there is room.
        unsafe { into.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    Ok(bytes.len() as ssize_t)
}

unsafe fn get(node: Node, name: *const c_char, into: *mut u8, room: size_t) -> Result<ssize_t> {
    // SAFETY: the caller's.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    if name.is_empty() || name.len() > 255 {
        return Err(libc::ERANGE);
    }
    if name.starts_with(b"user.") {
        permit(node, READ, Who::Effective)?;
    }
    let all = node.xattrs();
    match all.iter().find(|(known, _)| *known == name) {
        // SAFETY: the caller's.
        Some((_, value)) => unsafe { give(value, into, room) },
        None if name.contains(&b'.') => Err(libc::ENODATA),
        None => Err(libc::EOPNOTSUPP),
    }
}

unsafe fn list(node: Node, into: *mut u8, room: size_t) -> Result<ssize_t> {
    let names = node.xattrs().into_iter().flat_map(|(name, _)| [name, b"\0"]);
    // SAFETY: the caller's.
    unsafe { give(&names.collect::<Vec<_>>().concat(), into, room) }
}

unsafe fn at(
    path: *const c_char,
    how: How,
    ours: impl FnOnce(Node) -> Result<ssize_t>,
    next: impl FnOnce(*const c_char) -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's.
    match unsafe { resolve(libc::AT_FDCWD, path, how) } {
        Place::Elsewhere => next(path),
        Place::Real(path) => next(path.as_ptr()),
        Place::Ours(found) => answer(found.and_then(|found| ours(found.existing()?))),
        Place::Output(output) => answer(output.look().and(Err(libc::EOPNOTSUPP))),
    }
}

hook! {
    getxattr: (path: *const c_char, name: *const c_char, into: *mut u8, room: size_t) -> ssize_t,
    |next| {
        at(path, FOLLOW, |node| get(node, name, into, room), |path| next(path, name, into, room))
    }
}

hook! {
    lgetxattr: (path: *const c_char, name: *const c_char, into: *mut u8, room: size_t) -> ssize_t,
    |next| {
        at(path, NOFOLLOW, |node| get(node, name, into, room), |path| next(path, name, into, room))
    }
}

hook! {
    fgetxattr: (fd: c_int, name: *const c_char, into: *mut u8, room: size_t) -> ssize_t, |next| {
        match fds::get(fd) {
            Some(entry) => answer(get(entry.node, name, into, room)),
            None => next(fd, name, into, room),
        }
    }
}

hook! { listxattr: (path: *const c_char, into: *mut u8, room: size_t) -> ssize_t, |next| {
    at(path, FOLLOW, |node| list(node, into, room), |path| next(path, into, room))
}}

hook! { llistxattr: (path: *const c_char, into: *mut u8, room: size_t) -> ssize_t, |next| {
    at(path, NOFOLLOW, |node| list(node, into, room), |path| next(path, into, room))
}}

hook! { flistxattr: (fd: c_int, into: *mut u8, room: size_t) -> ssize_t, |next| {
    match fds::get(fd) {
        Some(entry) => answer(list(entry.node, into, room)),
        None => next(fd, into, room),
    }
}}
