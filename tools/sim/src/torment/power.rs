//! Loss of power: what a process had not flushed is gone.
//!
//! The data of each process is a file system of its own on a loop device. Power is lost by
//! shutting that file system down without its log being flushed (what `xfs_io -x -c shutdown`
//! does; dirty pages never reach the disk) and killing the process; then the file system is
//! mounted again, which replays its log, and the process starts. `kill -9` alone proves nothing
//! about flushes: the page cache survives it.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::Signal;

use super::mounts::SecondMount;
use super::shell::Shell;
use super::{Game, PATIENCE, Report, settle, up};
use crate::cluster::{Cluster, Shape};
use crate::generate::Random;

/// Size of an image; it is sparse.
const IMAGE_BYTES: u64 = 2 << 30;
/// `XFS_IOC_GOINGDOWN`, which ext4 has, too: `_IOR('X', 125, __u32)`.
const GOING_DOWN: libc::c_ulong = 0x8004_587d;
/// Its argument: the log is not flushed.
const NO_LOG_FLUSH: u32 = 2;
const ROLES: [&str; 7] =
    ["coordinator-0", "mnode-0", "mnode-1", "mnode-2", "mnode-3", "store-0", "store-1"];
/// Every so manieth time the power of all fails at once.
const ALL_EVERY: usize = 4;

/// The disk of one process.
struct Disk {
    role: &'static str,
    image: PathBuf,
    point: PathBuf,
}

impl Disk {
    /// Makes the file system: xfs and ext4 take turns.
    fn new(cluster: &Cluster, shell: &mut Shell, n: usize, role: &'static str) -> Disk {
        let image = cluster.scratch().join(format!("{role}.img"));
        let point = cluster.dir().join("data").join(role);
        std::fs::create_dir_all(&point).expect("the scratch directory can be written");
        let file = std::fs::File::create(&image).expect("the scratch directory can be written");
        file.set_len(IMAGE_BYTES).expect("an image can be made");
        let (make, quiet) =
            if n.is_multiple_of(2) { ("mkfs.xfs", "-q") } else { ("mkfs.ext4", "-q") };
        run(Command::new(make).arg(quiet).arg(&image));
        let disk = Disk { role, image, point };
        disk.mount(shell);
        // ext4 makes it; a new directory is expected to be empty.
        let _ = std::fs::remove_dir(disk.point.join("lost+found"));
        disk
    }

    fn mount(&self, shell: &mut Shell) {
        let words = ["mount".as_ref(), "-o".as_ref(), "loop".as_ref()];
        shell.run(&[&words[..], &[self.image.as_os_str(), self.point.as_os_str()]].concat());
    }

    fn unmount(&self) {
        let start = Instant::now();
        while let Err(error) = rustix::mount::unmount(&self.point, UnmountFlags::empty()) {
            assert!(start.elapsed() < PATIENCE, "{}: {error}", self.point.display());
            sleep(Duration::from_millis(5));
        }
    }

    /// From now on nothing reaches the disk.
    fn cut(&self) {
        let dir = std::fs::File::open(&self.point).expect("a mounted file system can be opened");
        // SAFETY: the call reads one u32 from a pointer that is valid during it.
        let ret = unsafe { libc::ioctl(dir.as_raw_fd(), GOING_DOWN, &NO_LOG_FLUSH) };
        assert_eq!(ret, 0, "{}: {}", self.role, std::io::Error::last_os_error());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Lets the power fail `rounds` times while clients work, which flush what they write.
pub fn lose_power(seed: u64, rounds: usize, think: Duration) -> Report {
    let cluster = Cluster::new(Shape { mount: true, ..Shape::default() });
    let mut shell = Shell::start();
    let disks: Vec<Disk> = ROLES
        .iter()
        .enumerate()
        .map(|(n, role)| Disk::new(&cluster, &mut shell, n, role))
        .collect();
    cluster.up();
    let second = SecondMount::start(&cluster);
    let (first, other) = (cluster.mount(), second.point().to_path_buf());
    let mut game = Game::start(&[&first, &other], seed, true, think);
    let mut rng = Random::new(seed);
    let mut report = Report::default();
    for round in 0..rounds {
        sleep(Duration::from_millis(500 + rng.below(2_000) as u64));
        let all = round % ALL_EVERY == ALL_EVERY - 1;
        let one = rng.below(disks.len());
        let dark: Vec<&Disk> =
            disks.iter().enumerate().filter(|(n, _)| all || *n == one).map(|(_, d)| d).collect();
        let start = Instant::now();
        dark.iter().for_each(|disk| disk.cut());
        for disk in &dark {
            // It may have given up already: it cannot flush any more.
            if let Some(pid) = cluster.pid(disk.role).and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        for disk in &dark {
            disk.unmount();
            disk.mount(&mut shell);
        }
        let mounted = start.elapsed();
        up(&cluster, &mut shell);
        report.kills += 1;
        let who = if all { "all" } else { dark[0].role };
        let served = start.elapsed();
        eprintln!(
            "round {round}: power of {who} lost, disks after {mounted:.1?}, all after {served:.1?}"
        );
    }
    // Something must happen after the last time, too.
    sleep(Duration::from_millis(500));
    settle(&cluster, &[&first, &other]);
    game.stop();
    cluster.fsck();
    drop(second);
    cluster.down();
    cluster.up();
    settle(&cluster, &[&first]);
    game.judge(&mut report);
    let each = report.mutations >= 50 * rounds as u64;
    report.demand(each, format!("only {} acknowledged changes", report.mutations));
    cluster.down();
    drop(disks);
    report
}
