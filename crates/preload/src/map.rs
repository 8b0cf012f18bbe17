//! mmap(2) of windows.
//!
//! A file that begins at a page of its partition is mapped there; of one that does not, the mapping
//! is a copy. In both, what is behind the file's last byte is as POSIX has it: zeros to the end of
//! the page, and no memory (SIGBUS) after it. Data sets do not change, so that a shared mapping can
//! be a private one.

use std::ffi::{c_int, c_void};

use crate::fds::{self, Window};
use crate::next::hook_one;
use crate::sys::{self, Result, syscall};

/// A place behind the end of any partition, at a multiple of all sizes of pages.
const BEHIND_ALL: i64 = 1 << 42;

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
        let is_aligned = window.base.is_multiple_of(page as u64);
        let data = window.clip(self.offset as u64, self.len);
        let is_whole = data == self.len && data.is_multiple_of(page);
        let offset = self.offset + window.base as i64;
        if is_aligned && is_whole {
            // SAFETY: the caller's.
            return unsafe { Call { offset, ..self }.real(window.fd) };
        }
        // SAFETY: the caller's.
        let at = unsafe { self.reserve()? };
        let (prot, flags) = (self.prot, libc::MAP_PRIVATE | libc::MAP_FIXED);
        let call = Call { at, len: data, prot, flags, offset };
        let filled = data.next_multiple_of(page);
        // SAFETY: the memory is reserved, and nobody knows of it yet.
        let mapped = unsafe {
            match data {
                0 => Ok(()),
                _ if is_aligned => call.map_to_end(window, page),
                _ => call.copy(window, filled),
            }
            .and_then(|()| call.map_behind(window, filled, self.len.next_multiple_of(page)))
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

    /// Maps the file up to its end; what else is in its last page is zeros.
    unsafe fn map_to_end(self, window: &Window, page: usize) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.real(window.fd)? };
        let tail = self.len % page;
        if tail == 0 {
            return Ok(());
        }
        let mut rest = vec![0; page - tail];
        let got = sys::pread(window.fd, &mut rest, (self.offset + self.len as i64) as u64)?;
        if rest[..got].iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let last = self.at.wrapping_byte_add(self.len - tail);
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the last page of the mapping, which is the caller's alone.
        unsafe {
            syscall!(libc::SYS_mprotect, last, page, writable)?;
            last.wrapping_byte_add(tail).cast::<u8>().write_bytes(0, page - tail);
            syscall!(libc::SYS_mprotect, last, page, self.prot)?;
        }
        Ok(())
    }

    /// Memory with a copy of the file's part.
    unsafe fn copy(self, window: &Window, filled: usize) -> Result<()> {
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: reserved memory, which is the caller's alone.
        unsafe {
            syscall!(libc::SYS_mprotect, self.at, filled, writable)?;
            let into = std::slice::from_raw_parts_mut(self.at.cast::<u8>(), self.len);
            sys::pread_exact(window.fd, into, self.offset as u64)?;
            syscall!(libc::SYS_mprotect, self.at, filled, self.prot)?;
        }
        Ok(())
    }

    /// Pages behind the file's end.
    unsafe fn map_behind(self, window: &Window, filled: usize, len: usize) -> Result<()> {
        if filled == len {
            return Ok(());
        }
        let at = self.at.wrapping_byte_add(filled);
        let rest = Call { at, len: len - filled, offset: BEHIND_ALL, ..self };
        // SAFETY: reserved memory.
        unsafe { rest.real(window.fd) }.map(|_| ())
    }
}

macro_rules! map_hook {
    ($name:ident) => {
        hook_one! { $name (
            at: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64
        ) *mut c_void, _next {
            let call = Call { at, len, prot, flags, offset };
            let window = if flags & libc::MAP_ANONYMOUS == 0 { fds::window(fd) } else { None };
            let mapped = match window {
                Some(window) => call.window(&window),
                None => call.real(fd),
            };
            mapped.unwrap_or_else(|errno| {
                sys::set_errno(errno);
                libc::MAP_FAILED
            })
        } }
    };
}

map_hook!(mmap);
map_hook!(mmap64);
