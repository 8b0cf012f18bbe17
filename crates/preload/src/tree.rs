//! ftw(3) and nftw(3), which the C library does by functions of its own.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int};

use crate::next::hook;
use crate::path::{FOLLOW, Place, resolve};
use crate::sys::fail;

const FTW_F: c_int = 0;
const FTW_D: c_int = 1;
const FTW_DNR: c_int = 2;
const FTW_NS: c_int = 3;
const FTW_SL: c_int = 4;
const FTW_DP: c_int = 5;
const FTW_SLN: c_int = 6;

const FTW_PHYS: c_int = 1;
const FTW_MOUNT: c_int = 2;
const FTW_CHDIR: c_int = 4;
const FTW_DEPTH: c_int = 8;
const FTW_ACTIONRETVAL: c_int = 16;

const FTW_SKIP_SUBTREE: c_int = 2;
const FTW_SKIP_SIBLINGS: c_int = 3;

/// `struct FTW`.
#[repr(C)]
pub struct At {
    base: c_int,
    level: c_int,
}

type Visit = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut At) -> c_int;
type VisitOld = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int;

enum Function {
    New(Visit),
    Old(VisitOld),
}

struct Tree {
    function: Function,
    flags: c_int,
    /// Of where it began.
    dev: Option<u64>,
    /// Directories that were visited, where links are followed.
    seen: BTreeSet<(u64, u64)>,
}

/// 0: go on.
type Outcome = c_int;

impl Tree {
    /// Visits what is at a path, which ends with a zero, and what is below.
    unsafe fn visit(&mut self, path: &mut Vec<u8>, base: usize, level: c_int) -> Outcome {
        // SAFETY: a structure of plain data.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        let kind = self.look(path, &mut stat);
        if kind == FTW_NS && level == 0 {
            return -1;
        }
        let is_elsewhere = *self.dev.get_or_insert(stat.st_dev) != stat.st_dev;
        if kind != FTW_NS && is_elsewhere && self.flags & FTW_MOUNT != 0 {
            return 0;
        }
        if kind != FTW_D {
            return self.call(path, &stat, kind, base, level);
        }
        if self.flags & FTW_PHYS == 0 && !self.seen.insert((stat.st_dev, stat.st_ino)) {
            return 0;
        }
        // SAFETY: the path ends with a zero.
        let dir = unsafe { libc::opendir(path.as_ptr().cast()) };
        if dir.is_null() {
            return self.call(path, &stat, FTW_DNR, base, level);
        }
        let is_after = self.flags & FTW_DEPTH != 0;
        let mut got = if is_after { 0 } else { self.call(path, &stat, FTW_D, base, level) };
        if got == 0 {
            // SAFETY: the stream is open.
            got = unsafe { self.visit_all(dir, path, level) };
        } else if self.acts() && got == FTW_SKIP_SUBTREE {
            got = 0;
        }
        // SAFETY: the stream is open.
        unsafe { libc::closedir(dir) };
        if self.acts() && got == FTW_SKIP_SIBLINGS && level >= 0 {
            return if is_after { self.call(path, &stat, FTW_DP, base, level) } else { got };
        }
        if got == 0 && is_after { self.call(path, &stat, FTW_DP, base, level) } else { got }
    }

    fn acts(&self) -> bool {
        self.flags & FTW_ACTIONRETVAL != 0
    }

    unsafe fn visit_all(
        &mut self,
        dir: *mut libc::DIR,
        path: &mut Vec<u8>,
        level: c_int,
    ) -> Outcome {
        let len = path.len();
        // SAFETY: the stream is open, and names end with a zero.
        while let Some(entry) = unsafe { libc::readdir64(dir).as_ref() } {
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes_with_nul();
            if name == b".\0" || name == b"..\0" {
                continue;
            }
            path.truncate(len - 1);
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            let base = path.len();
            path.extend_from_slice(name);
            // SAFETY: the path ends with a zero.
            let got = unsafe { self.visit(path, base, level + 1) };
            path.truncate(len - 1);
            path.push(0);
            match got {
                0 => {}
                FTW_SKIP_SUBTREE if self.acts() => {}
                FTW_SKIP_SIBLINGS if self.acts() => return 0,
                got => return got,
            }
        }
        0
    }

    fn look(&self, path: &[u8], stat: &mut libc::stat) -> c_int {
        let path = path.as_ptr().cast();
        // SAFETY: the path ends with a zero.
        let is_link = unsafe {
            if self.flags & FTW_PHYS == 0 && libc::stat(path, stat) == 0 {
                false
            } else if libc::lstat(path, stat) == 0 {
                true
            } else {
                return FTW_NS;
            }
        };
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFLNK if is_link && self.flags & FTW_PHYS == 0 => FTW_SLN,
            libc::S_IFLNK => FTW_SL,
            libc::S_IFDIR => FTW_D,
            _ => FTW_F,
        }
    }

    fn call(
        &self,
        path: &[u8],
        stat: &libc::stat,
        kind: c_int,
        base: usize,
        level: c_int,
    ) -> c_int {
        let path = path.as_ptr().cast();
        let mut at = At { base: base as c_int, level };
        // SAFETY: the program's function, of this type.
        unsafe {
            match self.function {
                Function::New(function) => function(path, stat, kind, &mut at),
                // It knows no broken links.
                Function::Old(function) => {
                    function(path, stat, if kind == FTW_SLN { FTW_SL } else { kind })
                }
            }
        }
    }
}

/// Walks through a tree of ours, or one elsewhere by `next`.
unsafe fn run(
    path: *const c_char,
    function: Function,
    flags: c_int,
    next: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(libc::AT_FDCWD, path, FOLLOW) } {
        Place::Elsewhere => return next(path),
        Place::Real(path) => return next(path.as_ptr()),
        _ if flags & FTW_CHDIR != 0 => return fail(libc::EOPNOTSUPP),
        Place::Ours(_) | Place::Output(_) => {}
    }
    // SAFETY: the caller's.
    let mut path = unsafe { CStr::from_ptr(path) }.to_bytes().to_vec();
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    let base = path.iter().rposition(|c| *c == b'/').map_or(0, |at| at + 1);
    path.push(0);
    let mut tree = Tree { function, flags, dev: None, seen: BTreeSet::new() };
    // SAFETY: the path ends with a zero.
    let got = unsafe { tree.visit(&mut path, base, 0) };
    if tree.acts() && (got == FTW_SKIP_SUBTREE || got == FTW_SKIP_SIBLINGS) { 0 } else { got }
}

hook! { ftw, ftw64: (path: *const c_char, function: VisitOld, fds: c_int) -> c_int, |next| {
    run(path, Function::Old(function), 0, |path| next(path, function, fds))
}}

hook! { nftw, nftw64: (path: *const c_char, function: Visit, fds: c_int, flags: c_int) -> c_int,
    |next| {
        run(path, Function::New(function), flags, |path| next(path, function, fds, flags))
    }
}
