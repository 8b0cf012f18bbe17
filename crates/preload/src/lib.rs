//! `libsaker_preload.so`: serves programs the datasets of their node, without a mount (FanStore §5.5).
//!
//! The library stands before the C library (`LD_PRELOAD`). Calls on paths below the mount point, and
//! on descriptors opened there, are answered from the staged tables and partitions; all others go on
//! to the C library.
//!
//! ```text
//! path ──path.rs──> node ──data.rs──> descriptor ──fds.rs──> node
//!   a part of a partition (window)   read.rs, map.rs and copy.rs clip and shift
//!   a file in memory                 the kernel does the rest
//!   a directory                      list.rs has its entries
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
mod fds;
mod link;
mod list;
mod map;
mod names;
mod next;
mod open;
mod path;
mod process;
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
    // SAFETY: the function may run in a child.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    cwd::begin(cwd::find_real());
    if let Some(path) = cwd::inherited()
        && let Some(rest) = path::below(path)
        && let path::Place::Ours(Ok(found)) = path::walk(datasets::MOUNT, rest, path::FOLLOW)
        && found.node.is_dir()
    {
        cwd::begin(cwd::Cwd::Ours(found.node));
    }
}

unsafe extern "C" fn after_fork() {
    process::begin();
    cwd::after_fork();
    read::after_fork();
    agent::after_fork();
    fds::after_fork();
}
