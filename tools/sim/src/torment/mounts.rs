//! The second mount of a cluster, which no supervisor watches: started again by us.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

use super::wait_gone;
use crate::cluster::{RunningCluster, binary};
use crate::copier::is_mounted;
use crate::shell::CommandShell;

/// A mount that we may kill.
pub struct KillableMount {
    point: PathBuf,
    cluster: PathBuf,
    shell: CommandShell,
    pid: Option<Pid>,
}

impl KillableMount {
    /// Mounts and waits until it works. Before any file of a mount is open.
    pub fn start(cluster: &RunningCluster) -> KillableMount {
        let point = cluster.scratch().join("second");
        std::fs::create_dir_all(&point).expect("the scratch directory can be written");
        let shell = CommandShell::start();
        let mut mount = KillableMount { point, cluster: cluster.dir(), shell, pid: None };
        mount.spawn();
        let start = Instant::now();
        while !is_mounted(&mount.point) {
            assert!(start.elapsed() < Duration::from_secs(30), "the second mount does not come");
            std::thread::sleep(Duration::from_millis(10));
        }
        mount
    }

    /// Where.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Its process.
    pub fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// kill -9; then a new process takes its place.
    pub fn kill(&mut self) {
        if let Some(pid) = self.pid {
            let _ = kill_process(pid, Signal::KILL);
            wait_gone(pid);
        }
        self.spawn();
    }

    fn spawn(&mut self) {
        let saker = binary();
        let (saker, cluster) = (saker.as_os_str(), self.cluster.as_os_str());
        let words =
            [saker, "mount".as_ref(), cluster, self.point.as_os_str(), "--foreground".as_ref()];
        self.pid = Pid::from_raw(self.shell.spawn(&words));
    }

    fn unmount(&self) {
        while rustix::mount::unmount(&self.point, UnmountFlags::DETACH).is_ok() {}
    }
}

impl Drop for KillableMount {
    fn drop(&mut self) {
        self.unmount();
        if let Some(pid) = self.pid {
            let _ = kill_process(pid, Signal::TERM);
            wait_gone(pid);
        }
    }
}
