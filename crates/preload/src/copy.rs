//! Copying between descriptors, and passing them on.

use std::ffi::{c_int, c_uint};

use libc::{size_t, ssize_t};

use crate::data;
use crate::fds::{self, Window};
use crate::next::hook;
use crate::read::whole;
use crate::sys::{Result, fail};

/// Copies from a window by a call that takes the position as a pointer and moves it.
unsafe fn copy(
    window: Window,
    offset: *mut i64,
    len: size_t,
    next: impl FnOnce(*mut i64, size_t) -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's: a place, or null.
    let given = unsafe { offset.as_mut() };
    let position = match &given {
        Some(offset) => u64::try_from(**offset).map_err(|_| libc::EINVAL),
        None => window.position(),
    };
    let position = match position {
        Ok(position) => position,
        Err(errno) => return fail(errno),
    };
    let len = window.clip(position, len);
    let mut at = window.base as i64;
    if len > 0 {
        at += position as i64;
    }
    let copied = whole(len, next(&raw mut at, len));
    if copied > 0 {
        let now = position as i64 + copied as i64;
        let moved: Result<i64> = match given {
            Some(offset) => {
                *offset = now;
                Ok(now)
            }
            None => window.seek(now),
        };
        if let Err(errno) = moved {
            return fail(errno);
        }
    }
    copied
}

hook! {
    sendfile, sendfile64:
    (to: c_int, from: c_int, offset: *mut i64, len: size_t) -> ssize_t, |next| {
        match fds::window(from) {
            Some(window) => copy(window, offset, len, |at, len| next(to, from, at, len)),
            None => next(to, from, offset, len),
        }
    }
}

hook! {
    copy_file_range:
    (from: c_int, offset: *mut i64, to: c_int, to_offset: *mut i64, len: size_t, flags: c_uint)
        -> ssize_t, |next| {
        match fds::window(from) {
            Some(window) => copy(window, offset, len, |at, len| {
                next(from, at, to, to_offset, len, flags)
            }),
            None => next(from, offset, to, to_offset, len, flags),
        }
    }
}

hook! {
    splice:
    (from: c_int, offset: *mut i64, to: c_int, to_offset: *mut i64, len: size_t, flags: c_uint)
        -> ssize_t, |next| {
        match fds::window(from) {
            Some(window) => copy(window, offset, len, |at, len| {
                next(from, at, to, to_offset, len, flags)
            }),
            None => next(from, offset, to, to_offset, len, flags),
        }
    }
}

/// Descriptors in a message's control data.
unsafe fn passed(message: *const libc::msghdr) -> Vec<c_int> {
    let mut fds = Vec::new();
    // SAFETY: the caller's: a message, whose control data is as long as it says.
    unsafe {
        if message.is_null() || (*message).msg_controllen == 0 {
            return fds;
        }
        let mut at = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = at.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = header.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(at).cast::<c_int>();
                fds.extend((0..bytes / size_of::<c_int>()).map(|n| first.add(n).read_unaligned()));
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    fds
}

// Who receives a descriptor does not know that it is a part of a partition.
hook! { sendmsg: (fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t, |next| {
    match passed(message).into_iter().try_for_each(data::materialize) {
        Ok(()) => next(fd, message, flags),
        Err(errno) => fail(errno),
    }
}}
