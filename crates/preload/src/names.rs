//! Calls that make names or take them away: EROFS, unless Linux says something else first.

use std::ffi::{CStr, c_char, c_int, c_uint};

use libc::{dev_t, mode_t};

use crate::next::hook;
use crate::path::{ENTRY, FOLLOW, Found, How, NOFOLLOW, Place, resolve};
use crate::sys::{answer, fail};

/// A call that makes something: EEXIST, if it is there.
unsafe fn make(
    dirfd: c_int,
    path: *const c_char,
    is_dir: bool,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(dirfd, path, ENTRY) } {
        Place::Elsewhere => next(dirfd, path),
        Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr()),
        Place::Ours(found) => answer(found.and_then(|found| Err(made(&found, is_dir)))),
    }
}

/// Why nothing can be made where a path leads.
fn made(found: &Found, is_dir: bool) -> c_int {
    match found.is_missing {
        false => libc::EEXIST,
        true if found.is_of_dir && !is_dir => libc::ENOENT,
        true => libc::EROFS,
    }
}

/// A call that takes a name away. Linux looks for the directory only.
unsafe fn remove_name(
    dirfd: c_int,
    path: *const c_char,
    special: [c_int; 2],
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(dirfd, path, ENTRY) } {
        Place::Elsewhere => next(dirfd, path),
        Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr()),
        Place::Ours(found) => answer(found.and_then(|_| {
            // SAFETY: the caller's: not null, where something is ours.
            Err(match unsafe { last_name(path) } {
                b"." => special[0],
                b".." => special[1],
                _ => libc::EROFS,
            })
        })),
    }
}

/// # Safety
/// `path` ends with a zero.
unsafe fn last_name<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    path.rsplit(|c| *c == b'/').find(|name| !name.is_empty()).unwrap_or_default()
}

hook! { unlink: (path: *const c_char) -> c_int, |next| {
    remove_name(libc::AT_FDCWD, path, [libc::EISDIR; 2], |_, path| next(path))
}}

hook! { rmdir: (path: *const c_char) -> c_int, |next| {
    remove_name(libc::AT_FDCWD, path, [libc::EINVAL, libc::ENOTEMPTY], |_, path| next(path))
}}

hook! { remove: (path: *const c_char) -> c_int, |next| {
    remove_name(libc::AT_FDCWD, path, [libc::EINVAL, libc::ENOTEMPTY], |_, path| next(path))
}}

hook! { unlinkat: (dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
    let special = match flags & libc::AT_REMOVEDIR {
        0 => [libc::EISDIR; 2],
        _ => [libc::EINVAL, libc::ENOTEMPTY],
    };
    remove_name(dirfd, path, special, |dirfd, path| next(dirfd, path, flags))
}}

hook! { mkdir: (path: *const c_char, mode: mode_t) -> c_int, |next| {
    make(libc::AT_FDCWD, path, true, |_, path| next(path, mode))
}}

hook! { mkdirat: (dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int, |next| {
    make(dirfd, path, true, |dirfd, path| next(dirfd, path, mode))
}}

hook! { mkfifo: (path: *const c_char, mode: mode_t) -> c_int, |next| {
    make(libc::AT_FDCWD, path, false, |_, path| next(path, mode))
}}

hook! { mkfifoat: (dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int, |next| {
    make(dirfd, path, false, |dirfd, path| next(dirfd, path, mode))
}}

hook! { mknod: (path: *const c_char, mode: mode_t, dev: dev_t) -> c_int, |next| {
    make(libc::AT_FDCWD, path, false, |_, path| next(path, mode, dev))
}}

hook! { mknodat: (dirfd: c_int, path: *const c_char, mode: mode_t, dev: dev_t) -> c_int, |next| {
    make(dirfd, path, false, |dirfd, path| next(dirfd, path, mode, dev))
}}

hook! {
    __xmknod: (version: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t) -> c_int,
    |next| { make(libc::AT_FDCWD, path, false, |_, path| next(version, path, mode, dev)) }
}

hook! {
    __xmknodat:
    (version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t) -> c_int,
    |next| { make(dirfd, path, false, |dirfd, path| next(version, dirfd, path, mode, dev)) }
}

hook! { symlink: (target: *const c_char, path: *const c_char) -> c_int, |next| {
    make(libc::AT_FDCWD, path, false, |_, path| next(target, path))
}}

hook! { symlinkat: (target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int, |next| {
    make(dirfd, path, false, |dirfd, path| next(target, dirfd, path))
}}

/// Where the two names of a call are.
unsafe fn between(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    how: How,
    moves: bool,
    next: impl FnOnce(c_int, *const c_char, c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    let (old, new) = unsafe { (resolve(from.0, from.1, how), resolve(to.0, to.1, ENTRY)) };
    if !matches!((&old, &new), (Place::Ours(_), _) | (_, Place::Ours(_))) {
        let real = |place: &Place, given: (c_int, *const c_char)| match place {
            Place::Real(path) => (libc::AT_FDCWD, path.as_ptr()),
            _ => given,
        };
        let (from, to) = (real(&old, from), real(&new, to));
        return next(from.0, from.1, to.0, to.1);
    }
    // SAFETY: the caller's: neither is null, if one is ours.
    let names = unsafe { [last_name(from.1), last_name(to.1)] };
    fail(match moves {
        true => moved(&old, &new, names),
        // SAFETY: the caller's.
        false => unsafe { linked(&old, &new, from, to) },
    })
}

/// Why nothing is moved.
fn moved(old: &Place, new: &Place, names: [&[u8]; 2]) -> c_int {
    let (old, new) = match (old, new) {
        (Place::Ours(Err(errno)), _) | (_, Place::Ours(Err(errno))) => return *errno,
        (Place::Ours(Ok(old)), Place::Ours(Ok(new))) => (old, new),
        _ => return libc::EXDEV,
    };
    if old.node.info().dev != new.node.info().dev {
        return libc::EXDEV;
    }
    if names.iter().any(|name| [&b"."[..], b".."].contains(name)) {
        libc::EBUSY
    } else {
        libc::EROFS
    }
}

/// Why nothing gets another name.
unsafe fn linked(
    old: &Place,
    new: &Place,
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
) -> c_int {
    let is_there = |place: &Place, given: (c_int, *const c_char)| {
        let (dirfd, path) = match place {
            Place::Real(path) => (libc::AT_FDCWD, path.as_ptr()),
            _ => given,
        };
        // SAFETY: the caller's: a path that ends with a zero.
        unsafe { libc::faccessat(dirfd, path, libc::F_OK, libc::AT_SYMLINK_NOFOLLOW) == 0 }
    };
    match old {
        Place::Ours(Err(errno)) => return *errno,
        Place::Ours(Ok(found)) if found.is_missing => return libc::ENOENT,
        Place::Ours(Ok(_)) => {}
        elsewhere if is_there(elsewhere, from) => {}
        _ => return libc::ENOENT,
    }
    match new {
        Place::Ours(Err(errno)) => *errno,
        Place::Ours(Ok(found)) => made(found, false),
        elsewhere if is_there(elsewhere, to) => libc::EEXIST,
        _ => libc::EXDEV,
    }
}

hook! { rename: (from: *const c_char, to: *const c_char) -> c_int, |next| {
    between((libc::AT_FDCWD, from), (libc::AT_FDCWD, to), ENTRY, true, |_, from, _, to| {
        next(from, to)
    })
}}

hook! {
    renameat: (from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int, |next| {
        between((from, old), (to, new), ENTRY, true, |from, old, to, new| {
            next(from, old, to, new)
        })
    }
}

hook! {
    renameat2:
    (from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint) -> c_int,
    |next| {
        between((from, old), (to, new), ENTRY, true, |from, old, to, new| {
            next(from, old, to, new, flags)
        })
    }
}

hook! { link: (from: *const c_char, to: *const c_char) -> c_int, |next| {
    between((libc::AT_FDCWD, from), (libc::AT_FDCWD, to), NOFOLLOW, false, |_, from, _, to| {
        next(from, to)
    })
}}

hook! {
    linkat: (from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_int) -> c_int,
    |next| {
        let how = How {
            follow: flags & libc::AT_SYMLINK_FOLLOW != 0,
            empty: flags & libc::AT_EMPTY_PATH != 0,
            ..FOLLOW
        };
        between((from, old), (to, new), how, false, |from, old, to, new| {
            next(from, old, to, new, flags)
        })
    }
}

/// mkstemp(3) and the like: the directory is read-only.
unsafe fn make_any(template: *const c_char, next: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(libc::AT_FDCWD, template, NOFOLLOW) } {
        Place::Ours(found) => answer(found.and(Err(libc::EROFS))),
        _ => next(),
    }
}

hook! { mkstemp, mkstemp64: (template: *mut c_char) -> c_int, |next| {
    make_any(template, || next(template))
}}

hook! { mkostemp, mkostemp64: (template: *mut c_char, flags: c_int) -> c_int, |next| {
    make_any(template, || next(template, flags))
}}

hook! { mkdtemp: (template: *mut c_char) -> *mut c_char, |next| {
    let mut made = std::ptr::null_mut();
    make_any(template, || {
        made = next(template);
        0
    });
    made
}}
