//! mmap(2) of windows.
//!
//! A file that begins at a page of its partition is mapped there, up to its last whole page. The
//! rest, and all of a file that does not begin at one, comes from a memfd with a copy: the kernel
//! does what POSIX says of what is behind a file's last byte (zeros to the end of the page, SIGBUS
//! after it), and madvise(2) loses nothing.

use std::ffi::{c_int, c_void};

use crate::data::copy_of_part;
use crate::fds::{self, Window};
use crate::sys::{self, Result};

fn page_bytes() -> usize {
    // SAFETY: touches no memory of ours.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// A call of mmap(2).
#[derive(Clone, Copy)]
struct Call {
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    offset: i64,
}

/// Flags that say where a mapping is to be.
const PLACE: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | place_low();

const fn place_low() -> c_int {
    #[cfg(target_arch = "x86_64")]
    return libc::MAP_32BIT;
    #[cfg(not(target_arch = "x86_64"))]
    return 0;
}

impl Call {
    unsafe fn real(self, fd: c_int) -> Result<*mut c_void> {
        // SAFETY: the caller's.
        unsafe { sys::mmap(self.at, self.len, self.prot, self.flags, fd, self.offset) }
    }

    unsafe fn window(self, window: &Window) -> Result<*mut c_void> {
        let page = page_bytes();
        let is_odd = self.offset < 0 || !(self.offset as u64).is_multiple_of(page as u64);
        if self.len == 0 || is_odd {
            return Err(libc::EINVAL);
        }
        // EBADF: opened with O_PATH.
        window.position()?;
        let kind = self.flags & libc::MAP_TYPE;
        if kind != libc::MAP_PRIVATE && self.prot & libc::PROT_WRITE != 0 {
            return Err(libc::EACCES);
        }
        let data = window.clip(self.offset as u64, self.len);
        let offset = self.offset + window.base as i64;
        if !window.base.is_multiple_of(page as u64) {
            // SAFETY: the caller's.
            return unsafe { self.copied(window, offset, data) };
        }
        let whole = data - data % page;
        let is_there = data == self.len && whole == data;
        if is_there || self.len <= whole + page && ends_with_zeros(window, offset, data, page)? {
            // SAFETY: the caller's.
            return unsafe { Call { offset, ..self }.real(window.fd) };
        }
        if whole == 0 {
            // SAFETY: the caller's.
            return unsafe { self.copied(window, offset, data) };
        }
        // SAFETY: the caller's.
        let at = unsafe { self.reserve()? };
        let flags = self.flags & !PLACE | libc::MAP_FIXED;
        let body = Call { at, len: whole, flags, offset, ..self };
        let rest = at.wrapping_byte_add(whole);
        let rest = Call { at: rest, len: self.len - whole, flags, ..self };
        // SAFETY: the memory is reserved, and nobody knows of it yet.
        let mapped = unsafe {
            body.real(window.fd)
                .and_then(|_| rest.copied(window, offset + whole as i64, data - whole))
        };
        if let Err(errno) = mapped {
            // SAFETY: the memory that was reserved.
            unsafe { libc::syscall(libc::SYS_munmap, at, self.len) };
            return Err(errno);
        }
        Ok(at)
    }

    /// Address space for all of the mapping.
    unsafe fn reserve(self) -> Result<*mut c_void> {
        let flags =
            self.flags & PLACE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the caller's.
        unsafe { Call { prot: libc::PROT_NONE, flags, offset: 0, ..self }.real(-1) }
    }

    /// Maps a copy of `data` bytes of the partition.
    unsafe fn copied(self, window: &Window, from: i64, data: usize) -> Result<*mut c_void> {
        let memfd = copy_of_part(window.fd, from, data as u64)?;
        // SAFETY: the caller's.
        let mapped = unsafe { Call { offset: 0, ..self }.real(memfd) };
        // The mapping keeps it.
        let _ = sys::close(memfd);
        mapped
    }
}

/// What is behind `data` bytes to the end of their last page is zeros, as behind a file's end.
fn ends_with_zeros(window: &Window, from: i64, data: usize, page: usize) -> Result<bool> {
    let mut rest = vec![0; data.next_multiple_of(page) - data];
    let got = sys::pread(window.fd, &mut rest, (from + data as i64) as u64)?;
    Ok(data > 0 && rest[..got].iter().all(|byte| *byte == 0))
}

/// mmap(2). Not by the next function: allocators call this before that one can be looked for.
unsafe fn map(call: Call, fd: c_int) -> *mut c_void {
    let is_file = call.flags & libc::MAP_ANONYMOUS == 0;
    // SAFETY: the caller's.
    let mapped = unsafe {
        match fds::window(fd).filter(|_| is_file) {
            Some(window) => call.window(&window),
            None => call.real(fd),
        }
    };
    mapped.unwrap_or_else(|errno| {
        sys::set_errno(errno);
        libc::MAP_FAILED
    })
}

macro_rules! map_hook {
    ($name:ident) => {
        /// mmap(2).
        // Not in unit tests, which would be served by it.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(dead_code, reason = "not exported in unit tests")]
        unsafe extern "C" fn $name(
            at: *mut c_void,
            len: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> *mut c_void {
            // SAFETY: callers keep to the manual page.
            unsafe { map(Call { at, len, prot, flags, offset }, fd) }
        }
    };
}

map_hook!(mmap);
map_hook!(mmap64);
