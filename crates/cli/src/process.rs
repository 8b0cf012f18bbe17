//! The processes of a cluster on this machine: started, recognised, stopped.
//!
//! A process is recognised by its pid, its start time and its arguments together, so that a pid
//! that the kernel has given to somebody else is never taken for ours.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};
use saker_runtime::{telemetry, time};

use crate::fail::{Context, Failure, Outcome};
use crate::layout::{ClusterDir, ClusterLayout, RoleId, write_file};
use crate::procfs;

/// A process that we know to be ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    start_ticks: u64,
}

impl Process {
    /// The process with this pid, if it runs with exactly these arguments (after the name).
    pub fn with_args(pid: u32, args: &[OsString]) -> Option<Process> {
        let start_ticks = procfs::stat(pid).filter(procfs::Stat::alive)?.start_ticks;
        let found = procfs::cmdline(pid)?;
        (found.get(1..)? == args).then_some(Process { pid, start_ticks })
    }

    /// Does it still run?
    pub fn alive(&self) -> bool {
        procfs::stat(self.pid)
            .is_some_and(|stat| stat.alive() && stat.start_ticks == self.start_ticks)
    }

    /// Sends a signal, if it still runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid as i32).filter(|_| self.alive()) {
            // It may have ended since: nothing to do then.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Waits until it is gone; false when it is still there at the end of the time.
    pub fn wait_gone(&self, at_most: Duration) -> bool {
        let deadline = time::now() + at_most;
        while self.alive() {
            if time::now() >= deadline {
                return false;
            }
            time::sleep(Duration::from_millis(5));
        }
        true
    }
}

/// Writes who runs: the pid for people and scripts, beside it what recognises the process later.
pub fn write_pid_file(path: &Path, process: &Process) -> Outcome {
    let identity = format!("{} {} {}\n", process.pid, process.start_ticks, procfs::boot_id());
    write_file(&path.with_extension("start"), identity.as_bytes())?;
    write_file(path, format!("{}\n", process.pid).as_bytes())
}

/// The same; without it the process is found by its arguments.
pub fn note_pid(path: &Path, process: &Process) {
    if let Err(failure) = write_pid_file(path, process) {
        tracing::warn!("{failure}");
    }
}

/// Removes what [`write_pid_file`] wrote.
pub fn remove_pid_file(path: &Path) {
    for file in [path.to_owned(), path.with_extension("start")] {
        // It may never have been written.
        let _ = std::fs::remove_file(file);
    }
}

/// The process of a pid file, if it is still the one that was written down and `known` says of
/// its arguments (after the name) that it is ours.
fn from_pid_file(path: &Path, known: impl Fn(&[OsString]) -> bool) -> Option<Process> {
    let pid: u32 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    let identity = std::fs::read_to_string(path.with_extension("start")).ok()?;
    let start_ticks = procfs::stat(pid).filter(procfs::Stat::alive)?.start_ticks;
    let expected = format!("{pid} {start_ticks} {}", procfs::boot_id());
    let ours = identity.trim() == expected && known(procfs::cmdline(pid)?.get(1..)?);
    ours.then_some(Process { pid, start_ticks })
}

/// The running process with these arguments: by its pid file, else by looking at all processes
/// (whoever started it may have died before writing the file).
pub fn find(pid_file: &Path, args: &[OsString]) -> Option<Process> {
    let search = || procfs::pids().into_iter().find_map(|pid| Process::with_args(pid, args));
    from_pid_file(pid_file, |found| found == args).or_else(search)
}

/// The running process of a role.
pub fn find_role(dir: &ClusterDir, cluster: &ClusterLayout, id: RoleId) -> Option<Process> {
    find(&dir.pid_file(id), &dir.args(cluster, id))
}

/// Arguments of a cluster's supervisor.
pub fn supervisor_args(dir: &ClusterDir) -> Vec<OsString> {
    vec!["supervise".into(), "--dir".into(), dir.path().into()]
}

/// The running supervisor: a process of its own, or `saker up --foreground`.
pub fn find_supervisor(dir: &ClusterDir) -> Option<Process> {
    let file = dir.supervisor_pid_file();
    let foreground = |args: &[OsString]| args.first().is_some_and(|command| command == "up");
    from_pid_file(&file, foreground).or_else(|| find(&file, &supervisor_args(dir)))
}

/// Starts this program again with other arguments, in a session of its own, so that no terminal
/// and no parent takes it along. Output is appended to `log`, which it begins anew when it is
/// large. The child gets `keep`, too, under the number that it has here.
pub fn spawn_daemon(args: &[OsString], log: &Path, keep: Option<&OwnedFd>) -> Outcome<Child> {
    let program: PathBuf = procfs::this_program().about("saker")?;
    let open = || OpenOptions::new().create(true).append(true).open(log);
    let output = || match open() {
        Ok(file) => Stdio::from(file),
        // The disk may be full: rather without a log than not at all.
        Err(error) => {
            tracing::warn!("{}: {error}", log.display());
            Stdio::null()
        }
    };
    let (stdout, stderr) = (output(), output());
    let mut command = Command::new(&program);
    command.env(telemetry::LOG_FILE_ENV, log);
    command.args(args).current_dir("/").stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let keep = keep.map(AsRawFd::as_raw_fd);
    // SAFETY: setsid and fcntl are async-signal-safe, and nothing else runs between fork and
    // exec; `keep` is open there, because the caller holds it until spawn has returned.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            if let Some(fd) = keep {
                rustix::io::fcntl_setfd(BorrowedFd::borrow_raw(fd), FdFlags::empty())?;
            }
            Ok(())
        });
    }
    command.spawn().about(program.display())
}

/// Starts a role and writes its pid file.
pub fn start_role(
    dir: &ClusterDir,
    cluster: &ClusterLayout,
    id: RoleId,
) -> Outcome<(Child, Process)> {
    let args = dir.args(cluster, id);
    let child = spawn_daemon(&args, &dir.log_file(id), None)?;
    let process = identify(&child).ok_or_else(|| Failure::new(id, died_at_once(dir, id)))?;
    note_pid(&dir.pid_file(id), &process);
    Ok((child, process))
}

/// A child that was just started. It has no pid in common with anybody while it is not reaped.
pub fn identify(child: &Child) -> Option<Process> {
    let pid = child.id();
    let start_ticks = procfs::stat(pid)?.start_ticks;
    Some(Process { pid, start_ticks })
}

fn died_at_once(dir: &ClusterDir, id: RoleId) -> String {
    format!("it ended as soon as it was started; see {}", dir.log_file(id).display())
}

/// The last line of a log that says something, for messages.
pub fn last_log_line(path: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&std::fs::read(path).ok()?).into_owned();
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> (Child, Vec<OsString>) {
        // A number that no other process's sleep has.
        let args = vec![OsString::from(format!("3{:06}.5", std::process::id() % 1_000_000))];
        (Command::new("sleep").args(&args).spawn().unwrap(), args)
    }

    #[test]
    fn a_process_is_recognised_until_it_dies() {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("x.pid");
        let (mut child, args) = sleeper();
        // The child may not have called exec yet.
        let deadline = time::now() + Duration::from_secs(5);
        while Process::with_args(child.id(), &args).is_none() && time::now() < deadline {
            time::sleep(Duration::from_millis(1));
        }
        let process = find(&file, &args).unwrap();
        assert_eq!(process.pid, child.id());
        write_pid_file(&file, &process).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{}\n", child.id()));
        assert_eq!(from_pid_file(&file, |found| found == args), Some(process.clone()));
        assert_eq!(from_pid_file(&file, |_| false), None);
        // As if the pid had been given to a process that started later.
        let other = Process { start_ticks: process.start_ticks + 1, ..process.clone() };
        write_pid_file(&file, &other).unwrap();
        assert_eq!(from_pid_file(&file, |found| found == args), None);
        assert!(!other.alive() && process.alive());
        process.signal(Signal::TERM);
        assert!(process.wait_gone(Duration::from_secs(5)), "a zombie counts as gone");
        child.wait().unwrap();
        assert_eq!(find(&file, &args), None);
    }
}
