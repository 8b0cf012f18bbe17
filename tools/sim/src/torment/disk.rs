//! The disks of the processes.

use super::mounts::KillableMount;
use crate::cluster::{ClusterShape, RunningCluster};
use crate::loop_disk::{LoopDisk, LoopFormat};
use crate::shell::CommandShell;

/// Roles that have one.
pub const ROLES: [&str; 7] =
    ["coordinator-0", "mnode-0", "mnode-1", "mnode-2", "mnode-3", "store-0", "store-1"];

/// A new cluster whose processes have disks of their own, and which is mounted twice; with a shell
/// from before the mounts.
pub fn start() -> (RunningCluster, CommandShell, Vec<TormentDisk>, KillableMount) {
    let cluster = RunningCluster::new(ClusterShape { mount: true, ..ClusterShape::default() });
    let mut shell = CommandShell::start();
    let disks = TormentDisk::all(&cluster, &mut shell);
    cluster.up();
    let second = KillableMount::start(&cluster);
    (cluster, shell, disks, second)
}

/// The disk of one process.
pub struct TormentDisk {
    /// Whose.
    pub role: &'static str,
    /// It.
    pub disk: LoopDisk,
}

impl TormentDisk {
    /// One for each of [`ROLES`] of a cluster that is not started yet.
    fn all(cluster: &RunningCluster, shell: &mut CommandShell) -> Vec<TormentDisk> {
        let of_role = |(n, role): (usize, &&'static str)| {
            let disk = cluster.disk_of(role, LoopFormat::of(n), shell);
            TormentDisk { role, disk }
        };
        ROLES.iter().enumerate().map(of_role).collect()
    }
}
