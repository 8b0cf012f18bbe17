//! Closing and copying descriptors.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::fds::{self, Entry, Kind};
use crate::next::hook;
use crate::outfds::{self, Closed, Handle};
use crate::sys::{answer, fail};
use crate::{agent, data};

/// A descriptor is about to be closed. What comes back is dropped when it is.
pub fn forget(fd: c_int) -> Closed {
    if fds::is_marked(fd) {
        return outfds::remove(fd);
    }
    if let Some(Entry { kind: Kind::Shared, node, .. }) = fds::clear(fd) {
        agent::close(node);
    }
    Closed::NOTHING
}

/// What a descriptor leads to that is about to be copied.
pub struct Original {
    entry: Option<Entry>,
    output: Option<Arc<Handle>>,
}

impl Original {
    /// Of a descriptor, which may lead to nothing of ours.
    pub fn of(fd: c_int) -> Original {
        Original { entry: fds::get(fd), output: outfds::get(fd) }
    }

    /// `new` leads to the same.
    pub fn copied(self, new: c_int) {
        if let Some(output) = self.output {
            outfds::insert_shared(new, output);
        }
        let Some(entry) = self.entry else { return };
        if fds::set(new, entry).is_ok() && entry.kind == Kind::Shared {
            agent::add(entry.node);
        }
    }
}

/// Before a copy of a descriptor: those which C's streams read, and those of a child of vfork(2),
/// are whole files.
fn prepare(old: c_int, new: c_int) {
    let is_window = fds::get(old).is_some_and(|entry| entry.kind == Kind::Window);
    if is_window && (new <= libc::STDERR_FILENO || !crate::process::owns_its_memory()) {
        // Else it stays a window, which our own functions read.
        let _ = data::materialize(old);
    }
}

fn duplicate(old: c_int, new: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if old == new {
        return next();
    }
    prepare(old, new);
    if new >= 0 && new == agent::fd() {
        agent::give_up_fd();
    }
    let original = Original::of(old);
    let got = next();
    if got >= 0 {
        let replaced = forget(new);
        original.copied(new);
        drop(replaced);
    }
    got
}

hook! { close: (fd: c_int) -> c_int, |next| {
    if fd >= 0 && fd == agent::fd() {
        return fail(libc::EBADF);
    }
    let closed = forget(fd);
    closed.mark(fd);
    let done = next(fd);
    match closed.end() {
        Err(errno) if done == 0 => fail(errno),
        _ => done,
    }
}}

hook! { dup: (fd: c_int) -> c_int, |next| {
    prepare(fd, c_int::MAX);
    let original = Original::of(fd);
    let new = next(fd);
    if new >= 0 {
        original.copied(new);
    }
    new
}}

hook! { dup2: (old: c_int, new: c_int) -> c_int, |next| {
    duplicate(old, new, || next(old, new))
}}

hook! { dup3: (old: c_int, new: c_int, flags: c_int) -> c_int, |next| {
    duplicate(old, new, || next(old, new, flags))
}}

const CLOSE_RANGE_CLOEXEC: c_int = 4;

#[must_use]
fn forget_from(first: c_uint, last: c_uint) -> Vec<Closed> {
    let is_in = |fd: &c_int| (first..=last).contains(&(*fd as c_uint));
    let outputs = outfds::all().into_iter();
    fds::all().map(|(fd, _)| fd).chain(outputs).filter(is_in).map(forget).collect()
}

hook! { close_range: (first: c_uint, last: c_uint, flags: c_int) -> c_int, |next| {
    if first > last {
        return next(first, last, flags);
    }
    // Told when they are closed.
    let _closed = match flags & CLOSE_RANGE_CLOEXEC {
        0 => forget_from(first, last),
        _ => Vec::new(),
    };
    match agent::fd() as c_uint {
        // The connection stays.
        own if agent::fd() >= 0 && (first..=last).contains(&own) => {
            let below = if first < own { next(first, own - 1, flags) } else { 0 };
            let above = if own < last { next(own + 1, last, flags) } else { 0 };
            below.min(above)
        }
        _ => next(first, last, flags),
    }
}}

hook! { closefrom: (first: c_int) -> (), |next| {
    let first = first.max(0);
    if agent::fd() < first {
        let _closed = forget_from(first as c_uint, c_uint::MAX);
        return next(first);
    }
    close_range(first as c_uint, c_uint::MAX, 0);
}}

/// `struct flock` of commands on locks; the 64-bit forms are the same.
fn lock(command: c_int, lock: *mut libc::flock) -> c_int {
    // SAFETY: the caller's, who gave the command.
    let Some(lock) = (unsafe { lock.as_mut() }) else { return fail(libc::EFAULT) };
    let is_read = matches!(c_int::from(lock.l_type), libc::F_RDLCK | libc::F_UNLCK);
    match command {
        // What never changes need not be locked, and the partition's other files must not be.
        libc::F_GETLK | libc::F_OFD_GETLK => lock.l_type = libc::F_UNLCK as _,
        _ if !is_read => return fail(libc::EBADF),
        _ => {}
    }
    0
}

hook! { fcntl, fcntl64: (fd: c_int, command: c_int, arg: usize) -> c_int, |next| {
    let is_copy = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if is_copy && (fds::get(fd).is_some() || fds::is_marked(fd)) {
        prepare(fd, c_int::MAX);
        let original = Original::of(fd);
        let new = next(fd, command, arg);
        if new >= 0 {
            original.copied(new);
        }
        return new;
    }
    let Some(_) = fds::get(fd) else { return next(fd, command, arg) };
    match command {
        // It would be that of the partition, where the file is at any byte.
        libc::F_SETFL => next(fd, command, arg & !(libc::O_DIRECT as usize)),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW
        | libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            lock(command, arg as *mut libc::flock)
        }
        _ => next(fd, command, arg),
    }
}}

hook! { flock: (fd: c_int, operation: c_int) -> c_int, |next| {
    match fds::get(fd) {
        Some(_) => 0,
        None => next(fd, operation),
    }
}}

hook! { lockf, lockf64: (fd: c_int, command: c_int, len: i64) -> c_int, |next| {
    match fds::get(fd) {
        Some(_) if command == libc::F_LOCK || command == libc::F_TLOCK => fail(libc::EBADF),
        Some(_) => 0,
        None => next(fd, command, len),
    }
}}

hook! { ioctl: (fd: c_int, request: libc::c_ulong, arg: usize) -> c_int, |next| {
    /// `FICLONE` and `FICLONERANGE`: of any file system.
    const CLONES: [libc::c_ulong; 2] = [0x4004_9409, 0x4020_940d];
    const KNOWN: [libc::c_ulong; 4] =
        [libc::FIOCLEX, libc::FIONCLEX, libc::FIONBIO, libc::FIOASYNC];
    if CLONES.contains(&request) {
        // The second has the descriptor in a structure, first.
        let from = match request == CLONES[0] {
            true => arg as i64,
            false => (arg as *const i64).read_unaligned(),
        };
        let is_ours = c_int::try_from(from).is_ok_and(|from| fds::get(from).is_some());
        return if is_ours { fail(libc::EOPNOTSUPP) } else { next(fd, request, arg) };
    }
    let Some(_) = fds::get(fd) else { return next(fd, request, arg) };
    match request {
        request if KNOWN.contains(&request) => next(fd, request, arg),
        libc::FIONREAD => match fds::window(fd) {
            Some(window) => answer(window.position().map(|position| {
                *(arg as *mut c_int) = window.size.wrapping_sub(position) as c_int;
                0
            })),
            None => next(fd, request, arg),
        },
        _ => fail(libc::ENOTTY),
    }
}}

/// The C library puts others in the place of the standard descriptors, past us.
fn forget_standard() {
    (libc::STDIN_FILENO..=libc::STDERR_FILENO).for_each(|fd| drop(forget(fd)));
}

hook! { daemon: (keeps_dir: c_int, keeps_files: c_int) -> c_int, |next| {
    // This process ends past us, and the child has its files.
    outfds::before_exec();
    let done = next(keeps_dir, keeps_files);
    if done == 0 && keeps_files == 0 {
        forget_standard();
    }
    if done == 0 && keeps_dir == 0 {
        crate::cwd::set(crate::cwd::find_real());
    }
    done
}}

hook! { login_tty: (fd: c_int) -> c_int, |next| {
    let done = next(fd);
    if done == 0 {
        forget_standard();
    }
    done
}}

hook! {
    forkpty:
    (main: *mut c_int, name: *mut c_char, term: *const c_void, size: *const c_void) -> c_int,
    |next| {
        let child = next(main, name, term, size);
        if child == 0 {
            forget_standard();
        }
        child
    }
}
