//! Starting programs.
//!
//! A program inherits descriptors, and may be one that is not served: those that are parts of a
//! partition are replaced by whole files first. The working directory goes with the environment.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use saker_types::FileKind;

use crate::access::{EXECUTE, Who, permit};
use crate::close::forget;
use crate::config::variable;
use crate::datasets::Node;
use crate::fds::{self, Window};
use crate::next::hook;
use crate::output::Output;
use crate::path::{FOLLOW, Place, resolve};
use crate::stat::how;
use crate::sys::{self, Result, c_path, fail, syscall};
use crate::{cwd, data, outfds};

type List = *const *const c_char;

unsafe extern "C" {
    static environ: List;
}

/// The environment of a program, with the working directory in it.
struct Env {
    given: List,
    own: Option<(Vec<*const c_char>, Option<CString>)>,
}

impl Env {
    unsafe fn new(given: List) -> Env {
        let told = cwd::told();
        // SAFETY: the caller's.
        let known = unsafe { variable(given, cwd::VARIABLE.as_bytes()) };
        if told.as_ref().map(|told| told.as_bytes()) == known {
            return Env { given, own: None };
        }
        let mut list = Vec::new();
        let mut at = given;
        // SAFETY: the caller's: the list ends with a null pointer.
        while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
            // SAFETY: a string of the environment.
            let name = unsafe { CStr::from_ptr(*entry) }.to_bytes().split(|c| *c == b'=').next();
            if name != Some(cwd::VARIABLE.as_bytes()) {
                list.push(*entry);
            }
            // SAFETY: this was not the last.
            at = unsafe { at.add(1) };
        }
        let told = told.and_then(|told| {
            let entry = [cwd::VARIABLE.as_bytes(), b"=", told.as_bytes()].concat();
            c_path(entry).ok()
        });
        list.extend(told.as_ref().map(|told| told.as_ptr()));
        list.push(std::ptr::null());
        Env { given, own: Some((list, told)) }
    }

    fn list(&self) -> List {
        self.own.as_ref().map_or(self.given, |(list, _)| list.as_ptr())
    }
}

/// A descriptor with a program, which the kernel can start.
fn program(node: Node) -> Result {
    if node.kind() != FileKind::Regular {
        return Err(libc::EACCES);
    }
    permit(node, EXECUTE, Who::Effective)?;
    let fd = data::open(node, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let base = fds::window(fd).map_or(0, |window| window.base);
    // Not what the agent gave: it holds that open for writing, which would be ETXTBSY.
    let copy = data::copy_of(&Window { fd, base, size: node.info().size, node });
    let _ = forget(fd);
    let _ = sys::close(fd);
    let copy = copy?;
    let again = sys::reopen(copy, libc::O_RDONLY | libc::O_CLOEXEC);
    let _ = sys::close(copy);
    let again = again?;
    let mut magic = [0; 2];
    if sys::pread(again, &mut magic, 0) == Ok(2) && &magic == b"#!" {
        // The interpreter opens it as /dev/fd/N.
        sys::fcntl(again, libc::F_SETFD, 0)?;
    }
    Ok(again)
}

/// Starts a program of a dataset in place of this one.
unsafe fn run(node: Node, args: List, env: List) -> c_int {
    let fd = match program(node) {
        Ok(fd) => fd,
        Err(errno) => return fail(errno),
    };
    // SAFETY: the caller's lists.
    let failed =
        unsafe { syscall!(libc::SYS_execveat, fd, c"".as_ptr(), args, env, libc::AT_EMPTY_PATH) };
    let _ = sys::close(fd);
    fail(failed.err().unwrap_or(libc::EIO))
}

/// Starts a program; `next` starts one elsewhere.
unsafe fn start(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    args: List,
    env: List,
    next: impl FnOnce(c_int, *const c_char, List) -> c_int,
) -> c_int {
    if let Err(errno) = data::materialize_inherited() {
        return fail(errno);
    }
    outfds::before_exec();
    // SAFETY: the caller's.
    unsafe {
        let env = Env::new(env);
        match resolve(dirfd, path, how(flags)) {
            Place::Elsewhere => next(dirfd, path, env.list()),
            Place::Real(path) => next(libc::AT_FDCWD, path.as_ptr(), env.list()),
            Place::Ours(found) => match found.and_then(|found| found.existing()) {
                Ok(node) => run(node, args, env.list()),
                Err(errno) => fail(errno),
            },
            Place::Output(output) => fail(not_started(&output)),
        }
    }
}

/// Outputs are not started, as on a file system that is mounted with `noexec`.
fn not_started(output: &Output) -> c_int {
    output.look().err().unwrap_or(libc::EACCES)
}

/// The same by the name of a program, which the C library looks for in `PATH`.
unsafe fn start_named(
    file: *const c_char,
    args: List,
    env: List,
    next: impl FnOnce(*const c_char, List) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        if CStr::from_ptr(file).to_bytes().contains(&b'/') {
            return start(libc::AT_FDCWD, file, 0, args, env, |_, file, env| next(file, env));
        }
        match data::materialize_inherited() {
            Ok(()) => {
                outfds::before_exec();
                next(file, Env::new(env).list())
            }
            Err(errno) => fail(errno),
        }
    }
}

hook! { execve: (path: *const c_char, args: List, env: List) -> c_int, |next| {
    start(libc::AT_FDCWD, path, 0, args, env, |_, path, env| next(path, args, env))
}}

hook! { execv: (path: *const c_char, args: List) -> c_int, |next| {
    execve(path, args, environ)
}}

hook! { execvpe: (file: *const c_char, args: List, env: List) -> c_int, |next| {
    start_named(file, args, env, |file, env| next(file, args, env))
}}

hook! { execvp: (file: *const c_char, args: List) -> c_int, |next| {
    execvpe(file, args, environ)
}}

hook! {
    execveat: (dirfd: c_int, path: *const c_char, args: List, env: List, flags: c_int) -> c_int,
    |next| {
        start(dirfd, path, flags, args, env, |dirfd, path, env| next(dirfd, path, args, env, flags))
    }
}

hook! { fexecve: (fd: c_int, args: List, env: List) -> c_int, |next| {
    if let Err(errno) = data::materialize_inherited() {
        return fail(errno);
    }
    outfds::before_exec();
    let env = Env::new(env);
    match fds::get(fd) {
        Some(entry) => run(entry.node, args, env.list()),
        None => next(fd, args, env.list()),
    }
}}

// A child copies the descriptor past us, to where it is inherited.
hook! {
    posix_spawn_file_actions_adddup2: (actions: *mut c_void, fd: c_int, new: c_int) -> c_int,
    |next| {
        match data::materialize(fd) {
            Ok(()) => next(actions, fd, new),
            Err(errno) => errno,
        }
    }
}

/// Starts a program in a child; `next` does it. Returns an error number.
unsafe fn spawn(
    path: *const c_char,
    env: List,
    search: bool,
    next: impl FnOnce(*const c_char, List) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        if let Err(errno) = data::materialize_inherited() {
            return errno;
        }
        let env = Env::new(env);
        if search && !CStr::from_ptr(path).to_bytes().contains(&b'/') {
            return next(path, env.list());
        }
        let found = match resolve(libc::AT_FDCWD, path, FOLLOW) {
            Place::Elsewhere => return next(path, env.list()),
            Place::Real(path) => return next(path.as_ptr(), env.list()),
            Place::Ours(found) => found,
            Place::Output(output) => return not_started(&output),
        };
        match found.and_then(|found| program(found.existing()?)) {
            Ok(fd) => {
                let own = format!("/proc/self/fd/{fd}\0");
                let started = next(own.as_ptr().cast(), env.list());
                let _ = sys::close(fd);
                started
            }
            Err(errno) => errno,
        }
    }
}

hook! {
    posix_spawn:
    (pid: *mut c_int, path: *const c_char, actions: *const c_void, attr: *const c_void, args: List,
     env: List) -> c_int, |next| {
        spawn(path, env, false, |path, env| next(pid, path, actions, attr, args, env))
    }
}

hook! {
    posix_spawnp:
    (pid: *mut c_int, file: *const c_char, actions: *const c_void, attr: *const c_void, args: List,
     env: List) -> c_int, |next| {
        spawn(file, env, true, |file, env| next(pid, file, actions, attr, args, env))
    }
}

// Both give the shell `environ`, which has the working directory.
hook! { system: (command: *const c_char) -> c_int, |next| {
    match data::materialize_inherited() {
        Ok(()) => next(command),
        Err(errno) => fail(errno),
    }
}}

hook! { popen: (command: *const c_char, kind: *const c_char) -> *mut libc::FILE, |next| {
    match data::materialize_inherited() {
        Ok(()) => next(command, kind),
        Err(errno) => sys::answer_ptr(Err(errno)),
    }
}}

macro_rules! passes_to_c {
    ($name:ident, $to:ident) => {
        unsafe extern "C" {
            fn $to();
        }

        /// Passes all its arguments on, however many there are.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        #[allow(dead_code, reason = "not exported in unit tests")]
        extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!("jmp {}", sym $to);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!("b {}", sym $to);
        }
    };
}

passes_to_c!(execl, saker_execl);
passes_to_c!(execlp, saker_execlp);
passes_to_c!(execle, saker_execle);
