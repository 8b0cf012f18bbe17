//! The second mount of a cluster, which no supervisor watches: started again by us.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use crate::cluster::{Cluster, binary};
use crate::copier::is_mounted;

/// A mount whose process is our child.
pub struct SecondMount {
    point: PathBuf,
    cluster: PathBuf,
    child: Child,
}

impl SecondMount {
    /// Mounts and waits until it works.
    pub fn start(cluster: &Cluster) -> SecondMount {
        let point = cluster.scratch().join("second");
        std::fs::create_dir_all(&point).expect("the scratch directory can be written");
        let dir = cluster.dir();
        let child = spawn(&dir, &point);
        let mount = SecondMount { point, cluster: dir, child };
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

    /// kill -9; then a new process takes its place.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.unmount();
        self.child = spawn(&self.cluster, &self.point);
    }

    fn unmount(&self) {
        while rustix::mount::unmount(&self.point, UnmountFlags::DETACH).is_ok() {}
    }
}

fn spawn(cluster: &Path, point: &Path) -> Child {
    let mut command = Command::new(binary());
    command.arg("mount").arg(cluster).arg(point).arg("--foreground").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("saker can be run")
}

impl Drop for SecondMount {
    fn drop(&mut self) {
        self.unmount();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
