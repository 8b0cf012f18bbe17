//! A world of its own for a run: processes, mounts and a network that go when it ends, however it
//! ends. The network also keeps the port of a process that is dead from other clusters.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Set inside.
const INSIDE: &str = "SAKER_TORMENT_INSIDE";

/// Runs this program once more, inside; its exit code. None: this is inside. Before any thread is
/// started; for the superuser.
pub fn enter() -> Option<ExitCode> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let own = UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWPID;
    // SAFETY: no descriptors or memory stop being shared, and there is one thread.
    unsafe { unshare_unsafe(own) }.expect("the superuser may have namespaces of his own");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("mounts can be private");
    let mut first = Command::new("sh");
    first.arg("-c").arg(include_str!("inside.sh"));
    first.arg(std::env::current_exe().expect("a program knows itself"));
    first.args(std::env::args_os().skip(1)).env(INSIDE, "1");
    // TERM, which `inside.sh` traps: it has something to do before it ends.
    let end_with_us = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: between fork and exec there is one system call and no allocation.
    unsafe { first.pre_exec(end_with_us) };
    let code = first.status().expect("there is a shell").code();
    Some(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
