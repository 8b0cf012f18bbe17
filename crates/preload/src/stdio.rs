//! C's streams. The C library reads them past us, so that they are given whole files.

use std::ffi::{CStr, c_char, c_int};

use libc::FILE;

use crate::close::{Original, forget};
use crate::data;
use crate::next::{hook, next};
use crate::open::{look_up, open_ours};
use crate::outfds::Closed;
use crate::path::Place;
use crate::sys::{self, Result, answer_ptr};

/// Flags of open(2) for a mode like `rb+e`.
fn flags(mode: &[u8]) -> Result {
    // After a comma comes a character set.
    let mode = mode.split(|c| *c == b',').next().unwrap_or_default();
    let both = mode.contains(&b'+');
    let access = |alone| if both { libc::O_RDWR } else { alone };
    let mut flags = match mode.first() {
        Some(b'r') => access(libc::O_RDONLY),
        Some(b'w') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return Err(libc::EINVAL),
    };
    for letter in &mode[1..] {
        flags |= match letter {
            b'e' => libc::O_CLOEXEC,
            b'x' => libc::O_EXCL,
            _ => 0,
        };
    }
    Ok(flags)
}

/// Permissions of a file that a stream makes.
const STREAM_MODE: u32 = 0o666;

/// A descriptor that a stream may use.
unsafe fn open(path: *const c_char, mode: *const c_char) -> Result<Opened> {
    // SAFETY: the caller's.
    let flags = flags(unsafe { CStr::from_ptr(mode) }.to_bytes());
    // SAFETY: the caller's.
    let found = match unsafe { look_up(libc::AT_FDCWD, path, flags.unwrap_or(0)) } {
        Place::Elsewhere => return Ok(Opened::Elsewhere),
        Place::Real(path) => return Ok(Opened::Real(path)),
        Place::Ours(found) => found,
        Place::Output(output) => return output.open(flags?, STREAM_MODE).map(Opened::Ours),
    };
    // SAFETY: the caller's.
    let fd = unsafe { open_ours(found, libc::AT_FDCWD, path, flags?)? };
    match data::materialize(fd) {
        Ok(()) => Ok(Opened::Ours(fd)),
        Err(errno) => {
            shut(fd);
            Err(errno)
        }
    }
}

enum Opened {
    Elsewhere,
    Real(std::ffi::CString),
    Ours(c_int),
}

fn shut(fd: c_int) {
    let closed = forget(fd);
    let _ = sys::close(fd);
    drop(closed);
}

/// The stream's descriptor is about to be closed, by the C library. What was written to it is in the
/// file then.
unsafe fn forget_stream(file: *mut FILE, fd: c_int) -> Closed {
    let closed = forget(fd);
    if closed.is_some() {
        // SAFETY: the caller's: a stream that is open.
        unsafe { libc::fflush(file) };
        closed.mark(fd);
    }
    closed
}

hook! { fopen, fopen64: (path: *const c_char, mode: *const c_char) -> *mut FILE, |next| {
    answer_ptr(match open(path, mode) {
        Ok(Opened::Elsewhere) => return next(path, mode),
        Ok(Opened::Real(path)) => return next(path.as_ptr(), mode),
        Ok(Opened::Ours(fd)) => {
            let file = next!(fdopen: fn(c_int, *const c_char) -> *mut FILE)(fd, mode);
            if file.is_null() {
                let errno = sys::errno();
                shut(fd);
                sys::set_errno(errno);
            }
            return file;
        }
        Err(errno) => Err(errno),
    })
}}

hook! {
    freopen, freopen64:
    (path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE, |next| {
        let before = libc::fileno(file);
        let opened = if path.is_null() { Ok(Opened::Elsewhere) } else { open(path, mode) };
        // Told when the stream is another one.
        let _before = forget_stream(file, before);
        match opened {
            Ok(Opened::Elsewhere) => next(path, mode, file),
            Ok(Opened::Real(path)) => next(path.as_ptr(), mode, file),
            Ok(Opened::Ours(fd)) => {
                // The stream's own descriptor is another description of the same memory.
                let own = format!("/proc/self/fd/{fd}\0");
                let file = next(own.as_ptr().cast(), mode, file);
                if !file.is_null() {
                    Original::of(fd).copied(libc::fileno(file));
                }
                let errno = sys::errno();
                shut(fd);
                sys::set_errno(errno);
                file
            }
            Err(errno) => {
                // As freopen(3): the stream is closed even so.
                next!(fclose: fn(*mut FILE) -> c_int)(file);
                answer_ptr(Err(errno))
            }
        }
    }
}

hook! { fdopen: (fd: c_int, mode: *const c_char) -> *mut FILE, |next| {
    match data::materialize(fd) {
        Ok(()) => next(fd, mode),
        Err(errno) => answer_ptr(Err(errno)),
    }
}}

hook! { fclose: (file: *mut FILE) -> c_int, |next| {
    // -1 of a stream without a descriptor.
    let fd = if file.is_null() { -1 } else { libc::fileno(file) };
    let closed = forget_stream(file, fd);
    let done = next(file);
    match closed.end() {
        Err(errno) if done == 0 => sys::fail(errno),
        _ => done,
    }
}}

#[cfg(test)]
mod tests {
    use super::flags;

    #[test]
    fn modes_of_streams() {
        assert_eq!(flags(b"r"), Ok(libc::O_RDONLY));
        assert_eq!(flags(b"rbe"), Ok(libc::O_RDONLY | libc::O_CLOEXEC));
        assert_eq!(flags(b"r+,ccs=utf-8"), Ok(libc::O_RDWR));
        assert_eq!(flags(b"wx"), Ok(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL));
        assert_eq!(flags(b"a+"), Ok(libc::O_RDWR | libc::O_CREAT | libc::O_APPEND));
        assert_eq!(flags(b"q"), Err(libc::EINVAL));
        assert_eq!(flags(b""), Err(libc::EINVAL));
    }
}
