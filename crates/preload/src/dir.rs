//! Directories: opendir(3) and its relatives.

use std::ffi::{c_char, c_int, c_long};

use libc::{DIR, dirent64};

use crate::list::{List, write};
use crate::next::hook;
use crate::open::open_at;
use crate::sys::{self, Result, answer, answer_ptr};
use crate::{close, fds, outfds};

/// A directory that is being read.
///
/// The C library's own structure begins with a descriptor and a lock: never with these words.
#[repr(C)]
struct Dir {
    magic: [u64; 2],
    fd: c_int,
    list: List,
    /// Entries that were read.
    at: u64,
    entry: dirent64,
}

const MAGIC: [u64; 2] = [0xffff_ffff_5341_4b45, 0x5244_4952_5341_4b52];

unsafe fn ours<'a>(dir: *mut DIR) -> Option<&'a mut Dir> {
    if dir.is_null() {
        return None;
    }
    let words = dir.cast::<u64>();
    // SAFETY: both structures are longer, and hold words there.
    unsafe { ([words.read(), words.add(1).read()] == MAGIC).then(|| &mut *dir.cast::<Dir>()) }
}

/// A stream of a descriptor that leads to a directory of ours.
fn stream(fd: c_int, list: List) -> *mut DIR {
    // SAFETY: a plain structure, of which zeros are valid.
    let entry = unsafe { std::mem::zeroed() };
    let at = sys::lseek(fd, 0, libc::SEEK_CUR).unwrap_or(0) as u64;
    Box::into_raw(Box::new(Dir { magic: MAGIC, fd, list, at, entry })).cast()
}

impl Dir {
    fn next(&mut self) -> *mut dirent64 {
        let Some(entry) = self.list.get(self.at) else { return std::ptr::null_mut() };
        self.at += 1;
        let into = &raw mut self.entry;
        // SAFETY: names have 255 bytes at most, and the structure has room for them.
        unsafe { write(&entry, self.at, into.cast()) };
        into
    }
}

/// Opens a directory of ours, or another by `next`.
///
/// # Safety
/// `path` is null or ends with a zero.
pub unsafe fn open(
    dirfd: c_int,
    path: *const c_char,
    next: impl FnOnce(c_int, *const c_char) -> *mut DIR,
) -> *mut DIR {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let (mut elsewhere, mut next) = (std::ptr::null_mut(), Some(next));
    // SAFETY: the caller's.
    let fd = unsafe {
        open_at(dirfd, path, flags, 0, |dirfd, path| {
            elsewhere = next.take().map_or(std::ptr::null_mut(), |next| next(dirfd, path));
            -1
        })
    };
    match list_of(fd) {
        Ok(Some(list)) => stream(fd, list),
        Err(errno) => {
            let _ = close::forget(fd);
            let _ = sys::close(fd);
            answer_ptr(Err(errno))
        }
        // A child of vfork(2) notes nothing.
        Ok(None) if fd >= 0 => {
            let _ = sys::close(fd);
            answer_ptr(Err(libc::ENOTSUP))
        }
        Ok(None) => elsewhere,
    }
}

/// What is in the directory that a descriptor leads to; `None`: it is none of ours.
fn list_of(fd: c_int) -> Result<Option<List>> {
    if let Some(entry) = fds::get(fd) {
        return Ok(Some(List::of(entry.node)));
    }
    match outfds::output(fd) {
        Some(output) => List::of_output(&output).map(Some),
        None => Ok(None),
    }
}

hook! { opendir: (path: *const c_char) -> *mut DIR, |next| {
    open(libc::AT_FDCWD, path, |_, path| next(path))
}}

hook! { fdopendir: (fd: c_int) -> *mut DIR, |next| {
    if fds::get(fd).is_some_and(|entry| !entry.node.is_dir()) {
        return answer_ptr(Err(libc::ENOTDIR));
    }
    match (list_of(fd), sys::fcntl(fd, libc::F_GETFL, 0)) {
        (Ok(None), _) => next(fd),
        (Ok(Some(list)), Ok(flags)) if flags & libc::O_PATH == 0 => stream(fd, list),
        (Ok(Some(_)), _) => answer_ptr(Err(libc::EBADF)),
        (Err(errno), _) => answer_ptr(Err(errno)),
    }
}}

hook! { readdir, readdir64: (dir: *mut DIR) -> *mut dirent64, |next| {
    match ours(dir) {
        Some(dir) => dir.next(),
        None => next(dir),
    }
}}

hook! {
    readdir_r, readdir64_r:
    (dir: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int, |next| {
        let Some(dir) = ours(dir) else { return next(dir, entry, result) };
        *result = std::ptr::null_mut();
        let got = dir.next();
        if !got.is_null() {
            let len = (*got).d_reclen as usize;
            entry.cast::<u8>().copy_from_nonoverlapping(got.cast(), len);
            *result = entry;
        }
        0
    }
}

hook! { closedir: (dir: *mut DIR) -> c_int, |next| {
    let Some(ours) = ours(dir) else { return next(dir) };
    let fd = ours.fd;
    ours.magic = [0; 2];
    drop(Box::from_raw(dir.cast::<Dir>()));
    let _ = close::forget(fd);
    answer(sys::close(fd))
}}

hook! { rewinddir: (dir: *mut DIR) -> (), |next| {
    match ours(dir) {
        Some(dir) => {
            dir.list.refresh();
            dir.at = 0;
        }
        None => next(dir),
    }
}}

hook! { seekdir: (dir: *mut DIR, to: c_long) -> (), |next| {
    match ours(dir) {
        Some(dir) => dir.at = to.max(0) as u64,
        None => next(dir, to),
    }
}}

hook! { telldir: (dir: *mut DIR) -> c_long, |next| {
    match ours(dir) {
        Some(dir) => dir.at as c_long,
        None => next(dir),
    }
}}

hook! { dirfd: (dir: *mut DIR) -> c_int, |next| {
    match ours(dir) {
        Some(dir) => dir.fd,
        None => next(dir),
    }
}}
