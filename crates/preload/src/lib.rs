//! `libsaker_preload.so`: serves programs the datasets of their node, without a mount
//! (FanStore §5.5).
//!
//! The library stands before the C library (`LD_PRELOAD`). Calls on paths below the mount point,
//! and on descriptors opened there, are answered from the staged tables and partitions; all others
//! go on to the C library.
//!
//! ```text
//! path ──path.rs──> node ──data.rs──> descriptor ──fds.rs──> node
//!   a part of a partition (window)   read.rs, map.rs and copy.rs clip and shift
//!   a file in memory                 the kernel does the rest
//!   a directory                      list.rs has its entries
//! path ──path.rs──> output ──output.rs──> agent ──> descriptor of a real file ──outfds.rs
//! ```
//!
//! Each family of calls has a file; what they know is in `config`, `datasets`, `fds`, `cwd`, `path`
//! and `agent`. Programs call from signal handlers, from children of vfork(2), and before `main`:
//! what is not ours takes no lock and allocates nothing.
//!
//! docs/preload.md says how it is used, and what it does not serve.

mod access;
mod agent;
mod chdir;
mod close;
mod config;
mod copy;
mod cwd;
mod data;
mod datasets;
mod dir;
mod exec;
mod exit;
mod fds;
mod link;
mod list;
mod lock;
mod map;
mod names;
mod next;
mod open;
mod outfds;
mod outopen;
mod output;
mod path;
mod process;
mod raw;
mod read;
mod scan;
mod stat;
mod statfs;
mod stdio;
mod sys;
mod tree;
mod write;
mod xattr;

/// Runs when the library is loaded.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[cfg_attr(test, allow(dead_code, reason = "unit tests are not served"))]
extern "C" fn begin() {
    process::begin();
    find_next();
    // SAFETY: the functions may run around fork(2).
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork)) };
    cwd::begin(cwd::find_real());
    let Some(rest) = cwd::inherited().and_then(path::below) else { return };
    match path::walk(datasets::MOUNT, rest, path::FOLLOW) {
        path::Place::Ours(Ok(found)) if found.node.is_dir() => {
            cwd::begin(cwd::Cwd::Ours(found.node));
        }
        path::Place::Output(output) => {
            if let Ok(number) = cwd::intern(&output) {
                cwd::begin(cwd::Cwd::Output(number));
            }
        }
        _ => {}
    }
}

/// Runs when the process ends in order.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

#[cfg_attr(test, allow(dead_code, reason = "unit tests are not served"))]
extern "C" fn end() {
    outfds::at_exit(true);
}

/// Calls that do nothing, so that the C library's functions are known before they are needed in a
/// signal handler, or in a child of a process with threads: they cannot be looked for there.
fn find_next() {
    use std::ptr::{null, null_mut};
    let (errno, none) = (sys::errno(), c"".as_ptr());
    let args = [none, null()];
    // SAFETY: no descriptor, no path, no memory.
    unsafe {
        open::open(none, 0, 0);
        open::open64(none, 0, 0);
        open::openat(-1, none, 0, 0);
        open::openat64(-1, none, 0, 0);
        raw::syscall(libc::SYS_fsync, -1, 0, 0, 0, 0, 0);
        close::close(-1);
        close::dup(-1);
        close::dup2(-1, -1);
        close::dup3(-1, -1, 0);
        close::fcntl(-1, libc::F_GETFD, 0);
        close::fcntl64(-1, libc::F_GETFD, 0);
        close::close_range(1, 0, 0);
        read::read(-1, null_mut(), 0);
        read::lseek(-1, 0, libc::SEEK_CUR);
        read::lseek64(-1, 0, libc::SEEK_CUR);
        stat::stat(none, null_mut());
        stat::fstat(-1, null_mut());
        stat::access(none, 0);
        chdir::chdir(none);
        chdir::fchdir(-1);
        exec::execve(none, args.as_ptr(), null());
        exec::execv(none, args.as_ptr());
        exec::execvp(none, args.as_ptr());
    }
    sys::set_errno(errno);
}

unsafe extern "C" fn before_fork() {
    let errno = sys::errno();
    lock::before_fork();
    outfds::before_fork();
    sys::set_errno(errno);
}

unsafe extern "C" fn after_fork() {
    process::begin();
    cwd::after_fork();
    lock::after_fork();
    agent::after_fork();
    fds::after_fork();
    outfds::after_fork();
}
