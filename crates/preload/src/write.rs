//! Calls that change something: EROFS in a dataset, unless Linux says something else first.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{gid_t, mode_t, size_t, uid_t};
use saker_agent_api::SetOutput;
use saker_types::FileKind;

use crate::access::{self, Who, permit};
use crate::next::hook;
use crate::output::Output;
use crate::path::{FOLLOW, How, NOFOLLOW, Place, resolve};
use crate::stat::how;
use crate::sys::{Result, answer, fail};
use crate::{fds, outfds};

const NS: i64 = 1_000_000_000;

/// Sets permissions of an output.
fn set_mode(mode: mode_t) -> impl FnOnce(&Output) -> Result {
    move |output| output.set(SetOutput { mode: Some(mode), mtime_ns: None })
}

/// Sets the time of an output, if there is one to be set.
fn set_time(mtime_ns: Result<Option<i64>>) -> impl FnOnce(&Output) -> Result {
    move |output| match mtime_ns? {
        None => output.look().map(|_| 0),
        mtime_ns => output.set(SetOutput { mode: None, mtime_ns }),
    }
}

/// What outputs do not have.
fn unsupported(output: &Output) -> Result {
    output.look().and(Err(libc::EOPNOTSUPP))
}

/// The time now, in nanoseconds since 1970.
fn now_ns() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    now.tv_sec.saturating_mul(NS).saturating_add(now.tv_nsec)
}

/// The second of two times with nanoseconds; none: it is not to be set.
///
/// # Safety
/// Null, or two times.
unsafe fn mtime_of_specs(times: *const c_void) -> Result<Option<i64>> {
    // SAFETY: the caller's.
    let time = unsafe { times.cast::<[libc::timespec; 2]>().as_ref() };
    match time.map(|times| times[1]) {
        None => Ok(Some(now_ns())),
        Some(time) if time.tv_nsec == libc::UTIME_NOW => Ok(Some(now_ns())),
        Some(time) if time.tv_nsec == libc::UTIME_OMIT => Ok(None),
        Some(time) if !(0..NS).contains(&time.tv_nsec) => Err(libc::EINVAL),
        Some(time) => Ok(Some(time.tv_sec.saturating_mul(NS).saturating_add(time.tv_nsec))),
    }
}

/// The second of two times with microseconds.
///
/// # Safety
/// Null, or two times.
unsafe fn mtime_of_vals(times: *const c_void) -> Result<Option<i64>> {
    // SAFETY: the caller's.
    let time = unsafe { times.cast::<[libc::timeval; 2]>().as_ref() };
    match time.map(|times| times[1]) {
        None => Ok(Some(now_ns())),
        Some(time) if !(0..1_000_000).contains(&time.tv_usec) => Err(libc::EINVAL),
        Some(time) => Ok(Some(time.tv_sec.saturating_mul(NS).saturating_add(time.tv_usec * 1000))),
    }
}

/// The second of two times in seconds.
///
/// # Safety
/// Null, or two times.
unsafe fn mtime_of_seconds(times: *const c_void) -> Result<Option<i64>> {
    // SAFETY: the caller's.
    let time = unsafe { times.cast::<[libc::time_t; 2]>().as_ref() };
    Ok(Some(time.map_or_else(now_ns, |times| times[1].saturating_mul(NS))))
}

/// A call that changes what is there; `output` does it to an output.
unsafe fn change(
    dirfd: c_int,
    path: *const c_char,
    how: How,
    output: impl FnOnce(&Output) -> Result,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { resolve(dirfd, path, how) } {
        Place::Elsewhere => next(dirfd, path),
        Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr()),
        Place::Ours(found) => {
            answer(found.and_then(|found| found.existing()).and(Err(libc::EROFS)))
        }
        Place::Output(found) => answer(output(&found)),
    }
}

/// A call that changes what a descriptor leads to. The kernel does it to a file that is written.
fn change_fd(
    fd: c_int,
    output: impl FnOnce(&Output) -> Result,
    next: impl FnOnce() -> c_int,
) -> c_int {
    match (fds::get(fd), outfds::output(fd)) {
        (Some(_), _) => fail(libc::EROFS),
        (_, Some(found)) => answer(output(&found)),
        _ => next(),
    }
}

hook! { chmod: (path: *const c_char, mode: mode_t) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, set_mode(mode), |_, path| next(path, mode))
}}

hook! { lchmod: (path: *const c_char, mode: mode_t) -> c_int, |next| {
    change(libc::AT_FDCWD, path, NOFOLLOW, set_mode(mode), |_, path| next(path, mode))
}}

hook! { fchmodat: (dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int, |next| {
    change(dirfd, path, how(flags), set_mode(mode), |dirfd, path| {
        next(dirfd, path, mode, flags)
    })
}}

hook! { chown: (path: *const c_char, uid: uid_t, gid: gid_t) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, |output| output.own(uid, gid), |_, path| {
        next(path, uid, gid)
    })
}}

hook! { lchown: (path: *const c_char, uid: uid_t, gid: gid_t) -> c_int, |next| {
    change(libc::AT_FDCWD, path, NOFOLLOW, |output| output.own(uid, gid), |_, path| {
        next(path, uid, gid)
    })
}}

hook! {
    fchownat: (dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int,
    |next| {
        change(dirfd, path, how(flags), |output| output.own(uid, gid), |dirfd, path| {
            next(dirfd, path, uid, gid, flags)
        })
    }
}

hook! { utime: (path: *const c_char, times: *const c_void) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, set_time(mtime_of_seconds(times)), |_, path| next(path, times))
}}

hook! { utimes: (path: *const c_char, times: *const c_void) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, set_time(mtime_of_vals(times)), |_, path| {
        next(path, times)
    })
}}

hook! { lutimes: (path: *const c_char, times: *const c_void) -> c_int, |next| {
    change(libc::AT_FDCWD, path, NOFOLLOW, set_time(mtime_of_vals(times)), |_, path| {
        next(path, times)
    })
}}

hook! { futimesat: (dirfd: c_int, path: *const c_char, times: *const c_void) -> c_int, |next| {
    let how = How { empty: path.is_null(), ..FOLLOW };
    change(dirfd, path, how, set_time(mtime_of_vals(times)), |dirfd, path| {
        next(dirfd, path, times)
    })
}}

hook! {
    utimensat: (dirfd: c_int, path: *const c_char, times: *const c_void, flags: c_int) -> c_int,
    |next| {
        let how = How { empty: path.is_null() || flags & libc::AT_EMPTY_PATH != 0, ..how(flags) };
        change(dirfd, path, how, set_time(mtime_of_specs(times)), |dirfd, path| {
            next(dirfd, path, times, flags)
        })
    }
}

hook! { truncate, truncate64: (path: *const c_char, len: i64) -> c_int, |next| {
    match resolve(libc::AT_FDCWD, path, FOLLOW) {
        Place::Elsewhere => next(path, len),
        Place::Real(path) => next(path.as_ptr(), len),
        Place::Ours(_) if len < 0 => fail(libc::EINVAL),
        Place::Ours(found) => answer(found.and_then(|found| found.existing()).and_then(|node| {
            Err(match node.kind() {
                FileKind::Regular => {
                    permit(node, access::WRITE, Who::Effective)?;
                    libc::EROFS
                }
                FileKind::Directory => libc::EISDIR,
                _ => libc::EINVAL,
            })
        })),
        Place::Output(_) if len < 0 => fail(libc::EINVAL),
        Place::Output(output) => answer(output.truncate(len)),
    }
}}

hook! { fchmod: (fd: c_int, mode: mode_t) -> c_int, |next| {
    change_fd(fd, set_mode(mode), || next(fd, mode))
}}

hook! { fchown: (fd: c_int, uid: uid_t, gid: gid_t) -> c_int, |next| {
    change_fd(fd, |output| output.own(uid, gid), || next(fd, uid, gid))
}}

hook! { futimens: (fd: c_int, times: *const c_void) -> c_int, |next| {
    change_fd(fd, set_time(mtime_of_specs(times)), || next(fd, times))
}}

hook! { futimes: (fd: c_int, times: *const c_void) -> c_int, |next| {
    change_fd(fd, set_time(mtime_of_vals(times)), || next(fd, times))
}}

hook! {
    setxattr:
    (path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int)
        -> c_int,
    |next| {
        change(libc::AT_FDCWD, path, FOLLOW, unsupported, |_, path| {
            next(path, name, value, len, flags)
        })
    }
}

hook! {
    lsetxattr:
    (path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int)
        -> c_int,
    |next| {
        change(libc::AT_FDCWD, path, NOFOLLOW, unsupported, |_, path| {
            next(path, name, value, len, flags)
        })
    }
}

hook! {
    fsetxattr:
    (fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int,
    |next| {
        change_fd(fd, unsupported, || next(fd, name, value, len, flags))
    }
}

hook! { removexattr: (path: *const c_char, name: *const c_char) -> c_int, |next| {
    change(libc::AT_FDCWD, path, FOLLOW, unsupported, |_, path| next(path, name))
}}

hook! { lremovexattr: (path: *const c_char, name: *const c_char) -> c_int, |next| {
    change(libc::AT_FDCWD, path, NOFOLLOW, unsupported, |_, path| next(path, name))
}}

hook! { fremovexattr: (fd: c_int, name: *const c_char) -> c_int, |next| {
    change_fd(fd, unsupported, || next(fd, name))
}}

// Nothing happens that a watch could tell.
hook! { inotify_add_watch: (fd: c_int, path: *const c_char, mask: u32) -> c_int, |next| {
    match resolve(libc::AT_FDCWD, path, FOLLOW) {
        Place::Elsewhere => next(fd, path, mask),
        Place::Real(path) => next(fd, path.as_ptr(), mask),
        Place::Ours(found) => {
            answer(found.and_then(|found| found.existing()).and(Err(libc::EOPNOTSUPP)))
        }
        Place::Output(output) => answer(unsupported(&output)),
    }
}}

hook! {
    fanotify_mark:
    (fd: c_int, flags: c_uint, mask: u64, dirfd: c_int, path: *const c_char) -> c_int, |next| {
        match resolve(dirfd, path, How { empty: path.is_null(), ..FOLLOW }) {
            Place::Elsewhere => next(fd, flags, mask, dirfd, path),
            Place::Real(path) => next(fd, flags, mask, dirfd, path.as_ptr()),
            Place::Ours(found) => {
                answer(found.and_then(|found| found.existing()).and(Err(libc::EOPNOTSUPP)))
            }
            Place::Output(output) => answer(unsupported(&output)),
        }
    }
}
