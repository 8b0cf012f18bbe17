//! The disk of one process: a file system of its own on a loop device.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use super::PATIENCE;
use super::mounts::KillableMount;
use super::shell::CommandShell;
use crate::cluster::{ClusterShape, RunningCluster};

/// Size of an image; it is sparse.
const IMAGE_BYTES: u64 = 2 << 30;
/// `XFS_IOC_GOINGDOWN`, which ext4 has, too: `_IOR('X', 125, __u32)`.
const GOING_DOWN: libc::c_ulong = 0x8004_587d;
/// Its argument: the log is not flushed.
const NO_LOG_FLUSH: u32 = 2;
/// `FIFREEZE` and `FITHAW` of linux/fs.h: `_IOWR('X', 119, int)`, `_IOWR('X', 120, int)`.
const FREEZE: libc::c_ulong = 0xc004_5877;
const THAW: libc::c_ulong = 0xc004_5878;

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
    image: PathBuf,
    point: PathBuf,
}

impl TormentDisk {
    /// One for each of [`ROLES`] of a cluster that is not started yet.
    fn all(cluster: &RunningCluster, shell: &mut CommandShell) -> Vec<TormentDisk> {
        ROLES
            .iter()
            .enumerate()
            .map(|(n, role)| TormentDisk::new(cluster, shell, n, role))
            .collect()
    }

    /// Makes the file system: xfs and ext4 take turns.
    fn new(
        cluster: &RunningCluster,
        shell: &mut CommandShell,
        n: usize,
        role: &'static str,
    ) -> TormentDisk {
        let image = cluster.scratch().join(format!("{role}.img"));
        let point = cluster.dir().join("data").join(role);
        std::fs::create_dir_all(&point).expect("the scratch directory can be written");
        let file = File::create(&image).expect("the scratch directory can be written");
        file.set_len(IMAGE_BYTES).expect("an image can be made");
        let (make, quiet) =
            if n.is_multiple_of(2) { ("mkfs.xfs", "-q") } else { ("mkfs.ext4", "-q") };
        run(Command::new(make).arg(quiet).arg(&image));
        let disk = TormentDisk { role, image, point };
        disk.mount(shell);
        // ext4 makes it; a new directory is expected to be empty.
        let _ = std::fs::remove_dir(disk.point.join("lost+found"));
        disk
    }

    /// Mounts it again.
    pub fn mount(&self, shell: &mut CommandShell) {
        let words = ["mount".as_ref(), "-o".as_ref(), "loop".as_ref()];
        shell.run(&[&words[..], &[self.image.as_os_str(), self.point.as_os_str()]].concat());
    }

    /// Unmounts it, as soon as nobody uses it.
    pub fn unmount(&self) {
        let start = Instant::now();
        while let Err(error) = rustix::mount::unmount(&self.point, UnmountFlags::empty()) {
            assert!(start.elapsed() < PATIENCE, "{}: {error}", self.point.display());
            sleep(Duration::from_millis(5));
        }
    }

    fn open(&self) -> File {
        File::open(&self.point).expect("a mounted file system can be opened")
    }

    /// From now on nothing reaches the disk.
    pub fn cut(&self) {
        let dir = self.open();
        // SAFETY: the call reads one u32 from a pointer that is valid during it.
        let ret = unsafe { libc::ioctl(dir.as_raw_fd(), GOING_DOWN, &NO_LOG_FLUSH) };
        assert_eq!(ret, 0, "{}: {}", self.role, std::io::Error::last_os_error());
    }

    /// Whoever writes waits, until what this returns is dropped.
    pub fn freeze(&self) -> Frozen {
        let dir = self.open();
        // SAFETY: the call ignores its argument.
        let ret = unsafe { libc::ioctl(dir.as_raw_fd(), FREEZE, 0) };
        assert_eq!(ret, 0, "{}: {}", self.role, std::io::Error::last_os_error());
        Frozen(dir)
    }
}

impl Drop for TormentDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
    }
}

/// A disk that does nothing.
pub struct Frozen(File);

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: the call ignores its argument.
        let ret = unsafe { libc::ioctl(self.0.as_raw_fd(), THAW, 0) };
        assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
