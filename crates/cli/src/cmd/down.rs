//! `saker down`: stops the cluster of a directory.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use saker_runtime::time;

use crate::fail::{Context, Failure, Outcome};
use crate::layout::{CLUSTER_FILE, ClusterDir, ClusterLayout, Role, RoleId};
use crate::process::{self, Process};
use crate::{mountpoint, procfs};

/// Stop the cluster of a directory: unmount, let all processes flush and exit.
///
/// Nothing that was acknowledged is lost; `saker up` on the same directory goes on. A process
/// that does not end within 10 seconds is killed.
#[derive(clap::Args)]
pub struct Args {
    /// The cluster's directory.
    #[arg(long, value_name = "D", default_value = ".saker")]
    pub dir: PathBuf,
    /// Delete the cluster and all its data afterwards.
    #[arg(long)]
    pub wipe: bool,
}

/// How long a process may take to end in order.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    let dir = ClusterDir::new(&args.dir)?;
    if !dir.exists() && args.wipe && !dir.path().join("data").exists() {
        return Ok(0);
    }
    let cluster = dir.load()?;
    let _lock = dir.lock()?;
    stop_supervisor(&dir);
    stop_roles(&dir, &cluster)?;
    if args.wipe {
        wipe(&dir)?;
    }
    Ok(0)
}

/// Ends the supervisor, so that it does not start again what is about to be stopped.
pub fn stop_supervisor(dir: &ClusterDir) {
    if let Some(supervisor) = process::find_supervisor(dir) {
        supervisor.signal(Signal::TERM);
        // One in the foreground stops the cluster itself before it ends.
        kill_after(&supervisor, "supervisor", 3 * PATIENCE);
    }
    process::remove_pid_file(&dir.supervisor_pid_file());
    // Describes a supervisor that is gone; it may never have been written.
    let _ = std::fs::remove_file(dir.state_file());
}

/// Unmounts, then ends all processes.
pub fn stop_roles(dir: &ClusterDir, cluster: &ClusterLayout) -> Outcome {
    let running = |id: RoleId| Some((id, process::find_role(dir, cluster, id)?));
    let all: Vec<(RoleId, Process)> = cluster.roles().into_iter().filter_map(running).collect();
    let (mounts, servers): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(id, _)| id.role == Role::Mount);
    unmount(cluster)?;
    stop(dir, &mounts);
    // A mount process that was killed leaves its mount behind.
    unmount(cluster)?;
    stop(dir, &servers);
    for id in cluster.roles() {
        process::remove_pid_file(&dir.pid_file(id));
    }
    Ok(())
}

fn unmount(cluster: &ClusterLayout) -> Outcome {
    let Some(point) = &cluster.mount else { return Ok(()) };
    while mountpoint::is_mounted(point) {
        if let Err(why) = saker_mount::unmount(point, false) {
            crate::complain!("saker: {why}; it is taken away under its users");
            saker_mount::unmount(point, true).about(point.display())?;
        }
    }
    Ok(())
}

/// Ends processes side by side; those that do not end in time are killed.
fn stop(dir: &ClusterDir, processes: &[(RoleId, Process)]) {
    for (_, process) in processes {
        process.signal(Signal::TERM);
    }
    let deadline = time::now() + PATIENCE;
    for (id, process) in processes {
        kill_after(process, &id.to_string(), deadline - time::now());
        process::remove_pid_file(&dir.pid_file(*id));
    }
}

fn kill_after(process: &Process, name: &str, patience: Duration) {
    if !process.wait_gone(patience) {
        let pid = process.pid;
        crate::complain!("saker: {name}: process {pid} does not end on SIGTERM; it is killed");
        process.signal(Signal::KILL);
        process.wait_gone(PATIENCE);
    }
}

/// Deletes what `saker up` made, and nothing else.
fn wipe(dir: &ClusterDir) -> Outcome {
    let inside = |mount: &procfs::MountEntry| {
        let made = ["data", "etc", "run", "log"].map(|part| dir.path().join(part));
        made.iter().any(|part| mount.point.starts_with(part))
    };
    if let Some(mount) = procfs::mounts().about("/proc/self/mountinfo")?.into_iter().find(inside) {
        let why = "something is mounted here; unmount it before the directory is deleted";
        return Err(Failure::new(mount.point.display(), why));
    }
    // The file that makes it a cluster goes last, so that an interrupted wipe can be repeated.
    for part in ["data", "etc", "log", "run"] {
        let path = dir.path().join(part);
        match std::fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::new(path.display(), e));
            }
            _ => {}
        }
    }
    let path = dir.path().join(CLUSTER_FILE);
    std::fs::remove_file(&path).about(path.display())?;
    // Stays when somebody keeps other things in it.
    let _ = std::fs::remove_dir(dir.path());
    Ok(())
}
