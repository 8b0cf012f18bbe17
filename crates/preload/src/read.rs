//! Reading, and the position.

use std::ffi::c_int;

use libc::{iovec, size_t, ssize_t};

use crate::data;
use crate::fds::{self, Window};
use crate::lock::hold;
use crate::next::hook;
use crate::sys::{Result, answer, fail, syscall};

/// Reads at the position: at most as much as the file has there. `read` does it, or `pread` at a
/// place in the partition, if others may move the position meanwhile.
fn read_window(
    window: Window,
    len: size_t,
    read: impl FnOnce(size_t) -> ssize_t,
    pread: impl FnOnce(size_t, i64) -> ssize_t,
) -> ssize_t {
    let held = hold(window.fd);
    let position = match window.position() {
        Ok(position) => position,
        Err(errno) => return fail(errno),
    };
    let len = window.clip(position, len);
    if held.is_some() {
        return whole(len, read(len));
    }
    let got = pread_window(window, len, position as i64, pread);
    if got > 0
        && let Err(errno) = window.seek(position as i64 + got as i64)
    {
        return fail(errno);
    }
    got
}

/// What a call returned that was to give `len` bytes which the file has: a partition that ends
/// before them is damaged, and must not look like the end of the file.
pub fn whole(len: size_t, returned: ssize_t) -> ssize_t {
    if len > 0 && returned == 0 { fail(libc::EIO) } else { returned }
}

/// Reads at a place: at most as much as the file has there.
fn pread_window(
    window: Window,
    len: size_t,
    offset: i64,
    read: impl FnOnce(size_t, i64) -> ssize_t,
) -> ssize_t {
    let Ok(position) = u64::try_from(offset) else { return fail(libc::EINVAL) };
    match window.clip(position, len) {
        // Also if the place is far behind all that can be said.
        0 => read(0, window.base as i64),
        len => whole(len, read(len, window.base as i64 + offset)),
    }
}

hook! { read: (fd: c_int, into: *mut u8, len: size_t) -> ssize_t, |next| {
    match fds::window(fd) {
        Some(window) => read_window(window, len, |len| next(fd, into, len), |len, at| {
            answer(syscall!(libc::SYS_pread64, fd, into, len, at).map(|n| n as ssize_t))
        }),
        None => next(fd, into, len),
    }
}}

hook! { __read_chk: (fd: c_int, into: *mut u8, len: size_t, room: size_t) -> ssize_t, |next| {
    match fds::window(fd).filter(|_| len <= room) {
        Some(window) => read_window(window, len, |len| next(fd, into, len, room), |len, at| {
            answer(syscall!(libc::SYS_pread64, fd, into, len, at).map(|n| n as ssize_t))
        }),
        None => next(fd, into, len, room),
    }
}}

hook! { pread, pread64: (fd: c_int, into: *mut u8, len: size_t, offset: i64) -> ssize_t, |next| {
    match fds::window(fd) {
        Some(window) => pread_window(window, len, offset, |len, at| next(fd, into, len, at)),
        None => next(fd, into, len, offset),
    }
}}

hook! {
    __pread_chk, __pread64_chk:
    (fd: c_int, into: *mut u8, len: size_t, offset: i64, room: size_t) -> ssize_t, |next| {
        match fds::window(fd).filter(|_| len <= room) {
            Some(window) => {
                pread_window(window, len, offset, |len, at| next(fd, into, len, at, room))
            }
            None => next(fd, into, len, offset, room),
        }
    }
}

/// Buffers of readv(2), cut to as many bytes.
fn clipped(buffers: &[iovec], mut len: usize) -> Vec<iovec> {
    let mut clipped = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let iov_len = buffer.iov_len.min(len);
        clipped.push(iovec { iov_len, ..*buffer });
        len -= iov_len;
    }
    clipped
}

/// The buffers of a call, and their bytes.
///
/// # Safety
/// There are so many.
unsafe fn buffers<'a>(buffers: *const iovec, count: c_int) -> Result<(&'a [iovec], usize)> {
    if !(0..=libc::UIO_MAXIOV).contains(&count) {
        return Err(libc::EINVAL);
    }
    if count == 0 {
        return Ok((&[], 0));
    }
    if buffers.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's.
    let buffers = unsafe { std::slice::from_raw_parts(buffers, count as usize) };
    let mut sum = 0_usize;
    for buffer in buffers {
        sum = sum.checked_add(buffer.iov_len).ok_or(libc::EINVAL)?;
    }
    if isize::try_from(sum).is_err() { Err(libc::EINVAL) } else { Ok((buffers, sum)) }
}

fn preadv_raw(fd: c_int, buffers: &[iovec], at: i64, flags: c_int) -> ssize_t {
    let (list, count) = (buffers.as_ptr(), buffers.len());
    // SAFETY: the caller's buffers. The upper half of the place is not used on 64-bit machines.
    let got = unsafe { syscall!(libc::SYS_preadv2, fd, list, count, at, 0, flags) };
    answer(got.map(|n| n as ssize_t))
}

hook! { readv: (fd: c_int, iov: *const iovec, count: c_int) -> ssize_t, |next| {
    let Some(window) = fds::window(fd) else { return next(fd, iov, count) };
    match buffers(iov, count) {
        Err(errno) => fail(errno),
        Ok((buffers, sum)) => read_window(
            window,
            sum,
            |len| next(fd, clipped(buffers, len).as_ptr(), count),
            |len, at| preadv_raw(fd, &clipped(buffers, len), at, 0),
        ),
    }
}}

hook! { preadv, preadv64: (fd: c_int, iov: *const iovec, count: c_int, offset: i64) -> ssize_t,
    |next| {
        let Some(window) = fds::window(fd) else { return next(fd, iov, count, offset) };
        match buffers(iov, count) {
            Err(errno) => fail(errno),
            Ok((buffers, sum)) => pread_window(window, sum, offset, |len, at| {
                next(fd, clipped(buffers, len).as_ptr(), count, at)
            }),
        }
    }
}

hook! {
    preadv2, preadv64v2:
    (fd: c_int, iov: *const iovec, count: c_int, offset: i64, flags: c_int) -> ssize_t, |next| {
        let Some(window) = fds::window(fd) else { return next(fd, iov, count, offset, flags) };
        match buffers(iov, count) {
            Err(errno) => fail(errno),
            Ok((buffers, sum)) if offset == -1 => read_window(
                window,
                sum,
                |len| next(fd, clipped(buffers, len).as_ptr(), count, -1, flags),
                |len, at| preadv_raw(fd, &clipped(buffers, len), at, flags),
            ),
            Ok((buffers, sum)) => pread_window(window, sum, offset, |len, at| {
                next(fd, clipped(buffers, len).as_ptr(), count, at, flags)
            }),
        }
    }
}

fn seek(window: Window, offset: i64, whence: c_int) -> Result<i64> {
    let _held = hold(window.fd);
    let from = |start: u64| offset.checked_add(start as i64).ok_or(libc::EINVAL);
    let inside = u64::try_from(offset).is_ok_and(|offset| offset < window.size);
    // EBADF before anything else.
    let position = window.position()?;
    let to = match whence {
        libc::SEEK_SET => offset,
        libc::SEEK_CUR => from(position)?,
        libc::SEEK_END => from(window.size)?,
        libc::SEEK_DATA | libc::SEEK_HOLE if !inside => return Err(libc::ENXIO),
        libc::SEEK_DATA => offset,
        libc::SEEK_HOLE => window.size as i64,
        _ => return Err(libc::EINVAL),
    };
    window.seek(to)
}

hook! { lseek, lseek64: (fd: c_int, offset: i64, whence: c_int) -> i64, |next| {
    match fds::window(fd) {
        Some(window) => answer(seek(window, offset, whence)),
        None => next(fd, offset, whence),
    }
}}

/// A range of a file as one of the partition; `len` 0 is all that follows.
fn range(window: &Window, offset: i64, len: i64) -> Option<(i64, i64)> {
    let position = u64::try_from(offset).ok()?;
    let wanted = if len <= 0 { usize::MAX } else { len as usize };
    match window.clip(position, wanted) {
        0 => None,
        len => Some((window.base as i64 + offset, len as i64)),
    }
}

hook! {
    posix_fadvise, posix_fadvise64:
    (fd: c_int, offset: i64, len: i64, advice: c_int) -> c_int, |next| {
        match fds::window(fd).map(|window| range(&window, offset, len)) {
            None => next(fd, offset, len, advice),
            // The flags of reading ahead are the description's own.
            Some(Some((offset, len))) => next(fd, offset, len, advice),
            Some(None) => 0,
        }
    }
}

hook! { readahead: (fd: c_int, offset: i64, len: size_t) -> ssize_t, |next| {
    match fds::window(fd).map(|window| range(&window, offset, len.min(1 << 62) as i64)) {
        None => next(fd, offset, len),
        Some(Some((offset, len))) => next(fd, offset, len as size_t),
        Some(None) => 0,
    }
}}

/// The first word of `struct aiocb` is the descriptor.
fn prepare_aio(request: *const c_int) {
    // SAFETY: the caller's.
    if let Some(fd) = unsafe { request.as_ref() } {
        // The C library's threads read it past us.
        let _ = data::materialize(*fd);
    }
}

hook! { aio_read, aio_read64: (request: *mut c_int) -> c_int, |next| {
    prepare_aio(request);
    next(request)
}}

hook! {
    lio_listio, lio_listio64:
    (mode: c_int, list: *const *mut c_int, count: c_int, event: *mut u8) -> c_int, |next| {
        for n in 0..count.max(0) as usize {
            prepare_aio(*list.add(n));
        }
        next(mode, list, count, event)
    }
}
