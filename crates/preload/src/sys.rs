//! System calls that go past the hooks, and errors as C has them.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Of a call; an error number of Linux.
pub type Result<T = c_int> = std::result::Result<T, c_int>;

/// A raw system call.
macro_rules! syscall {
    ($number:expr $(, $arg:expr)* $(,)?) => {
        $crate::sys::result(libc::syscall($number $(, $arg as libc::c_long)*))
    };
}
pub(crate) use syscall;

/// What a system call returned.
pub fn result(returned: libc::c_long) -> Result<i64> {
    if returned == -1 { Err(errno()) } else { Ok(returned) }
}

/// The thread's error number.
pub fn errno() -> c_int {
    // SAFETY: the C library gives a valid place.
    unsafe { *libc::__errno_location() }
}

/// Sets the thread's error number.
pub fn set_errno(errno: c_int) {
    // SAFETY: the C library gives a valid place.
    unsafe { *libc::__errno_location() = errno };
}

/// What C is answered: the value, or -1 and the error number.
pub fn answer<T: TryFrom<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|errno| fail(errno))
}

/// -1, and the error number.
pub fn fail<T: TryFrom<i8>>(errno: c_int) -> T {
    set_errno(errno);
    match T::try_from(-1) {
        Ok(value) => value,
        Err(_) => unreachable!("only of signed types"),
    }
}

/// What C is answered: the pointer, or null and the error number.
pub fn answer_ptr<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// A path for C.
pub fn c_path(bytes: Vec<u8>) -> Result<CString> {
    CString::new(bytes).map_err(|_| libc::ENOENT)
}

/// Opens a real file.
pub fn open(path: &CStr, flags: c_int) -> Result {
    // SAFETY: the path ends with a zero.
    let fd = unsafe {
        syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_LARGEFILE, 0)
    };
    fd.map(|fd| fd as c_int)
}

/// Opens what a descriptor leads to once more, with an offset of its own.
pub fn reopen(fd: c_int, flags: c_int) -> Result {
    let path = c_path(format!("/proc/self/fd/{fd}").into_bytes())?;
    open(&path, flags)
}

/// Closes a descriptor.
pub fn close(fd: c_int) -> Result {
    // SAFETY: the caller's descriptor.
    unsafe { syscall!(libc::SYS_close, fd) }.map(|_| 0)
}

/// Moves or tells a descriptor's position.
pub fn lseek(fd: c_int, offset: i64, whence: c_int) -> Result<i64> {
    // SAFETY: touches no memory.
    unsafe { syscall!(libc::SYS_lseek, fd, offset, whence) }
}

/// Reads at a position.
pub fn pread(fd: c_int, into: &mut [u8], offset: u64) -> Result<usize> {
    let (at, len) = (into.as_mut_ptr(), into.len());
    // SAFETY: the buffer is that long.
    unsafe { syscall!(libc::SYS_pread64, fd, at, len, offset) }.map(|n| n as usize)
}

/// Reads at a position until the buffer is full.
pub fn pread_exact(fd: c_int, mut into: &mut [u8], mut offset: u64) -> Result<()> {
    while !into.is_empty() {
        match pread(fd, into, offset) {
            Ok(0) => return Err(libc::EIO),
            Ok(n) => {
                into = &mut into[n..];
                offset += n as u64;
            }
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes all of a buffer.
pub fn write_all(fd: c_int, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the buffer is that long.
        match unsafe { syscall!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) } {
            Ok(n) => bytes = &bytes[n as usize..],
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// `fcntl` with a number.
pub fn fcntl(fd: c_int, command: c_int, arg: c_int) -> Result {
    // SAFETY: of the commands used, none takes a pointer.
    unsafe { syscall!(libc::SYS_fcntl, fd, command, arg) }.map(|n| n as c_int)
}

/// A file in memory.
pub fn memfd() -> Result {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a zero.
    unsafe { syscall!(libc::SYS_memfd_create, c"saker".as_ptr(), flags) }.map(|fd| fd as c_int)
}

/// Permissions that new files of this process do not get. By /proc: umask(2) would change it.
pub fn umask() -> u32 {
    const DEFAULT: u32 = 0o022;
    let mut text = [0; 256];
    let Ok(fd) = open(c"/proc/self/status", libc::O_CLOEXEC) else { return DEFAULT };
    let read = pread(fd, &mut text, 0);
    let _ = close(fd);
    let text = String::from_utf8_lossy(&text[..read.unwrap_or(0)]);
    let mask = text.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(DEFAULT)
}

/// Number of this process, from the kernel.
pub fn pid() -> c_int {
    // SAFETY: touches no memory.
    unsafe { libc::syscall(libc::SYS_getpid) as c_int }
}

/// Attributes of a real file; `None` if there are none to be had.
pub fn stat(path: &CStr) -> Option<libc::stat> {
    stat_at(path, 0)
}

/// The same of a link itself.
pub fn lstat(path: &CStr) -> Option<libc::stat> {
    stat_at(path, libc::AT_SYMLINK_NOFOLLOW)
}

fn stat_at(path: &CStr, flags: c_int) -> Option<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    let at = stat.as_mut_ptr();
    // SAFETY: the path ends with a zero, and the kernel fills the structure.
    unsafe {
        syscall!(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), at, flags).ok()?;
        Some(stat.assume_init())
    }
}

/// Attributes of what a descriptor leads to; `None` if there are none to be had.
pub fn fstat(fd: c_int) -> Option<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    let at = stat.as_mut_ptr();
    // SAFETY: the kernel fills the structure.
    unsafe {
        syscall!(libc::SYS_fstat, fd, at).ok()?;
        Some(stat.assume_init())
    }
}

/// Maps memory.
///
/// # Safety
/// As of mmap(2).
pub unsafe fn mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Result<*mut c_void> {
    // SAFETY: the caller's.
    let got = unsafe { syscall!(libc::SYS_mmap, at, len, prot, flags, fd, offset) };
    got.map(|at| at as *mut c_void)
}

/// Writes a path to a buffer, or to a new one; 0 bytes of room: as much as it takes.
///
/// # Errors
/// EINVAL, ERANGE: too little room; ENOMEM.
///
/// # Safety
/// The buffer is null, or has so much room.
pub unsafe fn write_path(path: &[u8], into: *mut c_char, room: usize) -> Result<*mut c_char> {
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
