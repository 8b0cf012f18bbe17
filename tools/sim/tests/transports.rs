//! What moves requests between the kernel and a mount, `/dev/fuse` or io_uring, is not to be seen:
//! the same files, no caller that waits for ever, a clean end. Needs root and /dev/fuse, and
//! fuse.enable_uring for io_uring.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::thread::CpuSet;
use saker_sim::cluster::{ClusterShape, OwnMount, RunningCluster, can_mount};
use saker_sim::wait::until;

/// More than a queue of the ring has entries, and than may wait at a time.
const WAITERS: usize = 1_200;
const WAITERS_MAX: usize = 1_024;
/// In the inode's row, less than a page of the ring, in three chunks.
const SIZES: [usize; 4] = [1_000, 15_000, 300_000, (8 << 20) + 5];

/// A mount with one transport; `None` if the machine does not have it.
fn mount(cluster: &RunningCluster, transport: &str) -> Option<OwnMount> {
    let mount = cluster.own_mount(transport, &format!("transport={transport}"));
    let said = mount.said("transport: ");
    let uring = said.contains("transport: io_uring");
    if transport == "uring" && !uring {
        assert!(std::env::var_os("SAKER_REQUIRE_URING").is_none(), "{said}");
        eprintln!("skipped: {said}");
        return None;
    }
    assert_eq!(uring, transport == "uring", "{said}");
    Some(mount)
}

/// Runs `test` on a mount with each transport.
fn each(name: &str, test: impl Fn(OwnMount)) {
    if !can_mount(name) {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape { mnodes: 2, ..ClusterShape::default() });
    for transport in ["dev", "uring"] {
        if let Some(mount) = mount(&cluster, transport) {
            eprintln!("{name} with {transport}");
            test(mount);
        }
    }
    cluster.fsck();
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3 + i / 4096 + seed * 17 + 1) as u8).collect()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn one_transport_reads_what_the_other_wrote() {
    let name = "one_transport_reads_what_the_other_wrote";
    if !can_mount(name) {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape { mnodes: 2, ..ClusterShape::default() });
    let Some(uring) = mount(&cluster, "uring") else { return };
    let dev = mount(&cluster, "dev").unwrap();
    for (writer, reader, dir) in [(&uring, &dev, "u"), (&dev, &uring, "d")] {
        fs::create_dir(writer.path(dir)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for (n, size) in SIZES.into_iter().enumerate() {
                        let file = format!("{dir}/{thread}-{n}");
                        let data = bytes(size, thread);
                        fs::write(writer.path(&file), &data).unwrap();
                        assert!(fs::read(reader.path(&file)).unwrap() == data, "{file}");
                        // Not from the reader's page cache.
                        let mut part = vec![0; size / 2];
                        let again = File::open(writer.path(&file)).unwrap();
                        again.read_exact_at(&mut part, (size / 3) as u64).unwrap();
                        assert!(part == data[size / 3..][..size / 2], "{file} in part");
                    }
                });
            }
        });
        let value = bytes(60_000, 5);
        rustix::fs::setxattr(
            writer.path(dir),
            "user.large",
            &value,
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        let mut read = vec![0; 65_536];
        let len = rustix::fs::getxattr(reader.path(dir), "user.large", &mut read).unwrap();
        assert!(read[..len] == value);
        for n in 0..2_000 {
            fs::create_dir(writer.path(&format!("{dir}/a-name-that-is-rather-long-{n}"))).unwrap();
        }
        assert_eq!(fs::read_dir(reader.path(dir)).unwrap().count(), 2_000 + 8 * SIZES.len());
    }
    drop((uring, dev));
    cluster.fsck();
}

/// fcntl(2) on the whole file.
fn lock(file: &File, command: libc::c_int, kind: libc::c_int) -> std::io::Result<()> {
    // SAFETY: all zeros are a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    // SAFETY: the descriptor is open, and the lock is valid during the call.
    let ret = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if ret == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// The calling thread stays on the first CPU, so that its requests take the same queue.
fn stay() {
    let mut cpus = CpuSet::new();
    cpus.set(0);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

#[test]
fn any_number_of_waiting_locks_does_not_stop_an_unlock() {
    each("any_number_of_waiting_locks_does_not_stop_an_unlock", |mount| {
        let path = mount.path("locked");
        // A lock of the open file excludes the process's own.
        let holder = open(&path);
        lock(&holder, libc::F_OFD_SETLK, libc::F_WRLCK).unwrap();
        let file = open(&path);
        let (asking, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let granted = std::thread::scope(|scope| {
            let wait = || {
                stay();
                asking.fetch_add(1, Ordering::SeqCst);
                match lock(&file, libc::F_SETLKW, libc::F_WRLCK) {
                    Ok(()) => true,
                    Err(error) => {
                        assert_eq!(error.raw_os_error(), Some(libc::ENOLCK));
                        refused.fetch_add(1, Ordering::SeqCst);
                        false
                    }
                }
            };
            let waiters: Vec<_> = (0..WAITERS).map(|_| scope.spawn(wait)).collect();
            let refusals = || refused.load(Ordering::SeqCst);
            until("refusals of those that may not wait", || refusals() >= WAITERS - WAITERS_MAX);
            scope.spawn(|| {
                stay();
                fs::write(mount.path("other"), "goes on").unwrap();
                lock(&holder, libc::F_OFD_SETLK, libc::F_UNLCK).unwrap();
            });
            waiters.into_iter().filter_map(|w| w.join().ok()).filter(|&granted| granted).count()
        });
        assert_eq!(granted, WAITERS_MAX);
    });
}

#[test]
fn who_waits_when_a_mount_is_killed_is_told() {
    each("who_waits_when_a_mount_is_killed_is_told", |mut mount| {
        // Locks of the dead outlive them for a while.
        let path = mount.path(&format!("held-{}", mount.process.id()));
        let holder = open(&path);
        lock(&holder, libc::F_OFD_SETLK, libc::F_WRLCK).unwrap();
        let file = open(&path);
        std::thread::scope(|scope| {
            let waits: Vec<_> = (0..20)
                .map(|_| scope.spawn(|| lock(&file, libc::F_SETLKW, libc::F_WRLCK)))
                .collect();
            // Real time: nothing shows that they wait; some may not yet, which passes, too.
            std::thread::sleep(Duration::from_millis(300));
            mount.process.kill().unwrap();
            for wait in waits {
                let error = wait.join().unwrap().unwrap_err().raw_os_error().unwrap();
                let told = [libc::ECONNABORTED, libc::ENOTCONN, libc::EINTR].contains(&error);
                assert!(told, "errno {error}");
            }
        });
        mount.process.wait().unwrap();
        let error = fs::metadata(&path).unwrap_err().raw_os_error();
        assert_eq!(error, Some(libc::ENOTCONN));
    });
}
