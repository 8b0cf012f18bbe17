//! Calls that make names or take them away: EROFS in a dataset, unless Linux says something else
//! first.

use std::ffi::{CStr, c_char, c_int, c_uint};

use libc::{dev_t, mode_t};

use crate::next::hook;
use crate::output::Output;
use crate::path::{ENTRY, FOLLOW, Found, How, NOFOLLOW, Place, resolve};
use crate::sys::{Result, answer, fail, syscall};

/// What a call makes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// A directory with these permissions.
    Dir(mode_t),
    /// Something that outputs cannot be.
    Other,
}

/// A call that makes something: EEXIST, if it is there.
unsafe fn make(
    dirfd: c_int,
    path: *const c_char,
    what: Made,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(dirfd, path, ENTRY) } {
        Place::Elsewhere => next(dirfd, path),
        Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr()),
        Place::Ours(found) => {
            let is_dir = matches!(what, Made::Dir(_));
            answer(found.and_then(|found| Err(made(&found, is_dir))))
        }
        Place::Output(output) => answer(match (what, output.look()) {
            (Made::Dir(mode), _) => output.make_dir(mode),
            (Made::Other, Ok(_)) => Err(libc::EEXIST),
            (Made::Other, Err(libc::ENOENT)) => Err(libc::EPERM),
            (Made::Other, Err(errno)) => Err(errno),
        }),
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

/// What a call takes away.
#[derive(Clone, Copy)]
enum Removed {
    File,
    Dir,
    Either,
}

impl Removed {
    /// Errors for paths that end with `.` and `..`.
    fn special(self) -> [c_int; 2] {
        match self {
            Removed::File => [libc::EISDIR; 2],
            Removed::Dir | Removed::Either => [libc::EINVAL, libc::ENOTEMPTY],
        }
    }

    fn remove(self, output: &Output) -> Result {
        match self {
            Removed::File => output.unlink(),
            Removed::Dir => output.remove_dir(),
            Removed::Either => match output.unlink() {
                Err(libc::EISDIR) => output.remove_dir(),
                done => done,
            },
        }
    }
}

/// A call that takes a name away. Linux looks for the directory only.
unsafe fn remove_name(
    dirfd: c_int,
    path: *const c_char,
    what: Removed,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(dirfd, path, ENTRY) } {
        Place::Elsewhere => next(dirfd, path),
        Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr()),
        Place::Ours(found) => answer(found.and_then(|_| {
            // SAFETY: the caller's: not null, where something is ours.
            Err(unsafe { special(path, what) }.unwrap_or(libc::EROFS))
        })),
        // SAFETY: as above.
        Place::Output(output) => answer(match unsafe { special(path, what) } {
            Some(errno) => Err(errno),
            None => what.remove(&output),
        }),
    }
}

/// The error for a path that ends with `.` or `..`.
///
/// # Safety
/// `path` ends with a zero.
unsafe fn special(path: *const c_char, what: Removed) -> Option<c_int> {
    // SAFETY: the caller's.
    match unsafe { last_name(path) } {
        b"." => Some(what.special()[0]),
        b".." => Some(what.special()[1]),
        _ => None,
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
    remove_name(libc::AT_FDCWD, path, Removed::File, |_, path| next(path))
}}

hook! { rmdir: (path: *const c_char) -> c_int, |next| {
    remove_name(libc::AT_FDCWD, path, Removed::Dir, |_, path| next(path))
}}

hook! { remove: (path: *const c_char) -> c_int, |next| {
    remove_name(libc::AT_FDCWD, path, Removed::Either, |_, path| next(path))
}}

hook! { unlinkat: (dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, |next| {
    let what = if flags & libc::AT_REMOVEDIR == 0 { Removed::File } else { Removed::Dir };
    remove_name(dirfd, path, what, |dirfd, path| next(dirfd, path, flags))
}}

hook! { mkdir: (path: *const c_char, mode: mode_t) -> c_int, |next| {
    make(libc::AT_FDCWD, path, Made::Dir(mode), |_, path| next(path, mode))
}}

hook! { mkdirat: (dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int, |next| {
    make(dirfd, path, Made::Dir(mode), |dirfd, path| next(dirfd, path, mode))
}}

hook! { mkfifo: (path: *const c_char, mode: mode_t) -> c_int, |next| {
    make(libc::AT_FDCWD, path, Made::Other, |_, path| next(path, mode))
}}

hook! { mkfifoat: (dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int, |next| {
    make(dirfd, path, Made::Other, |dirfd, path| next(dirfd, path, mode))
}}

hook! { mknod: (path: *const c_char, mode: mode_t, dev: dev_t) -> c_int, |next| {
    make(libc::AT_FDCWD, path, Made::Other, |_, path| next(path, mode, dev))
}}

hook! { mknodat: (dirfd: c_int, path: *const c_char, mode: mode_t, dev: dev_t) -> c_int, |next| {
    make(dirfd, path, Made::Other, |dirfd, path| next(dirfd, path, mode, dev))
}}

hook! {
    __xmknod: (version: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t) -> c_int,
    |next| { make(libc::AT_FDCWD, path, Made::Other, |_, path| next(version, path, mode, dev)) }
}

hook! {
    __xmknodat:
    (version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t) -> c_int,
    |next| { make(dirfd, path, Made::Other, |dirfd, path| next(version, dirfd, path, mode, dev)) }
}

hook! { symlink: (target: *const c_char, path: *const c_char) -> c_int, |next| {
    make(libc::AT_FDCWD, path, Made::Other, |_, path| next(target, path))
}}

hook! { symlinkat: (target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int, |next| {
    make(dirfd, path, Made::Other, |dirfd, path| next(target, dirfd, path))
}}

/// What a call does with two names.
#[derive(Clone, Copy)]
enum Act {
    /// Moves, with these flags of renameat2(2).
    Move(c_uint),
    Link,
}

/// Where the two names of a call are.
unsafe fn between(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    how: How,
    act: Act,
    next: impl FnOnce(c_int, *const c_char, c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    let (old, new) = unsafe { (resolve(from.0, from.1, how), resolve(to.0, to.1, ENTRY)) };
    if let (Place::Output(_), _) | (_, Place::Output(_)) = (&old, &new) {
        return answer(between_outputs(&old, &new, act));
    }
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
    fail(match act {
        Act::Move(_) => moved(&old, &new, names),
        // SAFETY: the caller's.
        Act::Link => unsafe { linked(&old, &new, from, to) },
    })
}

/// Moves an output. There are no links.
fn between_outputs(old: &Place, new: &Place, act: Act) -> Result {
    match (old, new, act) {
        (Place::Ours(Err(errno)), ..) | (_, Place::Ours(Err(errno)), _) => Err(*errno),
        (Place::Output(old), Place::Output(new), Act::Move(flags)) => {
            match flags & !libc::RENAME_NOREPLACE {
                0 => old.rename(new, flags != 0),
                _ => Err(libc::EINVAL),
            }
        }
        (_, _, Act::Move(_)) => Err(libc::EXDEV),
        (Place::Output(old), Place::Output(_), Act::Link) => old.look().and(Err(libc::EPERM)),
        (_, _, Act::Link) => Err(libc::EXDEV),
    }
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
    between((libc::AT_FDCWD, from), (libc::AT_FDCWD, to), ENTRY, Act::Move(0), |_, from, _, to| {
        next(from, to)
    })
}}

hook! {
    renameat: (from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int, |next| {
        between((from, old), (to, new), ENTRY, Act::Move(0), |from, old, to, new| {
            next(from, old, to, new)
        })
    }
}

hook! {
    renameat2:
    (from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint) -> c_int,
    |next| {
        between((from, old), (to, new), ENTRY, Act::Move(flags), |from, old, to, new| {
            next(from, old, to, new, flags)
        })
    }
}

hook! { link: (from: *const c_char, to: *const c_char) -> c_int, |next| {
    between((libc::AT_FDCWD, from), (libc::AT_FDCWD, to), NOFOLLOW, Act::Link, |_, from, _, to| {
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
        between((from, old), (to, new), how, Act::Link, |from, old, to, new| {
            next(from, old, to, new, flags)
        })
    }
}

/// How often another name is tried that nobody may have.
const TRIES: u32 = 100;

/// mkstemp(3) and the like. The directory of a dataset is read-only; `make` makes an output.
unsafe fn make_any(
    template: *mut c_char,
    make: impl Fn(&Output) -> Result,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(libc::AT_FDCWD, template, NOFOLLOW) } {
        Place::Ours(found) => answer(found.and(Err(libc::EROFS))),
        Place::Output(mut output) => {
            // SAFETY: the caller's: a string that may be changed.
            let end = unsafe { libc::strlen(template) };
            if end < 6 || !output.path.ends_with(b"XXXXXX") {
                return fail(libc::EINVAL);
            }
            for _ in 0..TRIES {
                let letters = random_letters();
                let at = output.path.len() - letters.len();
                output.path[at..].copy_from_slice(&letters);
                match make(&output) {
                    Err(libc::EEXIST) => {}
                    made => {
                        let from = letters.as_ptr().cast();
                        // SAFETY: the string has as many bytes more.
                        unsafe { template.add(end - 6).copy_from_nonoverlapping(from, 6) };
                        return answer(made);
                    }
                }
            }
            fail(libc::EEXIST)
        }
        _ => next(),
    }
}

fn random_letters() -> [u8; 6] {
    let mut letters = [0_u8; 6];
    // SAFETY: the buffer is that long. Without chance names are tried that others may have.
    let _ = unsafe { syscall!(libc::SYS_getrandom, letters.as_mut_ptr(), letters.len(), 0) };
    letters.map(|byte| b'a' + byte % 26)
}

/// Makes a file that nobody else has, and opens it.
fn make_file(output: &Output, flags: c_int) -> Result {
    output.open(flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600)
}

hook! { mkstemp, mkstemp64: (template: *mut c_char) -> c_int, |next| {
    make_any(template, |output| make_file(output, 0), || next(template))
}}

hook! { mkostemp, mkostemp64: (template: *mut c_char, flags: c_int) -> c_int, |next| {
    make_any(template, |output| make_file(output, flags), || next(template, flags))
}}

hook! { mkdtemp: (template: *mut c_char) -> *mut c_char, |next| {
    let mut made = std::ptr::null_mut();
    let done = make_any(template, |output| output.make_dir(0o700), || {
        made = next(template);
        -1
    });
    if done == 0 { template } else { made }
}}
