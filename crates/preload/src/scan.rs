//! scandir(3) and glob(3), which the C library does by functions of its own.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::dirent64;

use crate::cwd::{self, Cwd};
use crate::dir::{closedir, open, opendir, readdir};
use crate::next::hook;
use crate::path::below;
use crate::sys::fail;

type Filter = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;

/// scandir(3) of a directory of ours, by its own stream.
unsafe fn scan(
    dirfd: c_int,
    path: *const c_char,
    into: *mut *mut *mut dirent64,
    filter: Filter,
    compare: Compare,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    let mut elsewhere = None;
    // SAFETY: the caller's.
    let dir = unsafe {
        open(dirfd, path, |dirfd, path| {
            elsewhere = Some(next(dirfd, path));
            std::ptr::null_mut()
        })
    };
    if dir.is_null() {
        return elsewhere.unwrap_or(-1);
    }
    // SAFETY: the stream is ours; entries and the list are the caller's to free.
    unsafe {
        let mut found: Vec<*mut dirent64> = Vec::new();
        while let Some(entry) = readdir(dir).as_ref() {
            if filter.is_some_and(|wanted| wanted(entry) == 0) {
                continue;
            }
            let len = entry.d_reclen as usize;
            let copy = libc::malloc(len.max(size_of::<dirent64>())).cast::<u8>();
            if copy.is_null() {
                break;
            }
            copy.copy_from_nonoverlapping((&raw const *entry).cast(), len);
            found.push(copy.cast());
        }
        closedir(dir);
        let bytes = size_of_val(&found[..]).max(1);
        let list = libc::malloc(bytes).cast::<*mut dirent64>();
        if list.is_null() {
            return fail(libc::ENOMEM);
        }
        list.copy_from_nonoverlapping(found.as_ptr(), found.len());
        if let Some(compare) = compare {
            // Both take pointers to what is sorted.
            let compare = std::mem::transmute::<
                unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int,
                unsafe extern "C" fn(*const c_void, *const c_void) -> c_int,
            >(compare);
            libc::qsort(list.cast(), found.len(), size_of::<*mut dirent64>(), Some(compare));
        }
        *into = list;
        found.len() as c_int
    }
}

hook! {
    scandir, scandir64:
    (path: *const c_char, into: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int,
    |next| {
        scan(libc::AT_FDCWD, path, into, filter, compare, |_, path| {
            next(path, into, filter, compare)
        })
    }
}

hook! {
    scandirat, scandirat64:
    (dirfd: c_int, path: *const c_char, into: *mut *mut *mut dirent64, filter: Filter,
     compare: Compare) -> c_int, |next| {
        scan(dirfd, path, into, filter, compare, |dirfd, path| {
            next(dirfd, path, into, filter, compare)
        })
    }
}

/// `glob_t`, with the functions that it may have.
#[repr(C)]
pub struct Glob {
    paths: usize,
    list: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    closedir: *const c_void,
    readdir: *const c_void,
    opendir: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

hook! {
    glob, glob64:
    (pattern: *const c_char, flags: c_int, failed: *const c_void, into: *mut Glob) -> c_int,
    |next| {
        let is_ours = match CStr::from_ptr(pattern).to_bytes() {
            path if path.starts_with(b"/") => below(path).is_some(),
            _ => cwd::get() != Cwd::Real,
        };
        if !is_ours || flags & GLOB_ALTDIRFUNC != 0 {
            return next(pattern, flags, failed, into);
        }
        let glob = &mut *into;
        glob.closedir = closedir as *const c_void;
        glob.readdir = readdir as *const c_void;
        glob.opendir = opendir as *const c_void;
        glob.lstat = libc::lstat as *const c_void;
        glob.stat = libc::stat as *const c_void;
        let got = next(pattern, flags | GLOB_ALTDIRFUNC, failed, into);
        glob.flags &= !GLOB_ALTDIRFUNC;
        got
    }
}
