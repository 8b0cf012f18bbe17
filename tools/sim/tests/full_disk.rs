//! Disks that are full: under a log, under the supervisor's files, under an MNode.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;
use saker_client::{Caller, Fs, OpenFlags, SetAttr};
use saker_sim::cluster::{ClusterShape, RunningCluster, binary, can_mount};
use saker_sim::settings;
use saker_sim::wait::until;
use saker_types::wire::At;
use saker_types::{Errno, Locator, limits};

/// A small file system; drop it after the cluster that is on it.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: &Path, bytes: u64) -> Disk {
        fs::create_dir_all(path).unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        let flags = MountFlags::empty();
        rustix::mount::mount(c"none", path, c"tmpfs", flags, Some(options.as_c_str())).unwrap();
        Disk(path.to_owned())
    }

    /// Nothing can be written any more.
    fn fill(&self) {
        let file = File::create(self.0.join("fill")).unwrap();
        let (mut at, mut step) = (0, 64 << 20);
        // What is removed meanwhile is taken, too.
        while step >= 4096 {
            match fallocate(&file, FallocateFlags::empty(), at, step) {
                Ok(()) => at += step,
                Err(_) => step /= 2,
            }
        }
        assert!(file.write_at(b"x", at + 4096).is_err(), "it is not full");
    }

    fn free(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Lets the mount say much: many wait for a shard that is not there.
fn retries(cluster: &RunningCluster, point: &Path) {
    cluster.signal("mnode-0", Signal::KILL);
    std::thread::scope(|scope| {
        for n in 0..16 {
            scope.spawn(move || fs::write(point.join(format!("f{n}")), b"x").unwrap());
        }
        cluster.up();
    });
}

/// A file with a whole chunk, which stays open if `open`.
fn write_chunk(fs: &Fs, name: &str, open: bool) -> Option<saker_client::File> {
    fs.block_on(async {
        let flags = OpenFlags::from_linux(2);
        let (file, _) = fs.create(&Caller::root(), &at(&[name]), 0o644, flags).await.unwrap();
        file.write(0, &vec![7; limits::CHUNK_BYTES as usize]).await.unwrap();
        file.flush().await.unwrap();
        match open {
            true => Some(file),
            false => {
                file.release().await;
                None
            }
        }
    })
}

/// Of files that were written and closed just before; not of one that is open.
#[test]
fn space_comes_back_when_a_file_is_removed() {
    // After a lease it would come back in any case.
    const LIMIT: Duration = Duration::from_nanos(limits::LEASE_NS - limits::LEASE_NS / 6);
    let cluster =
        RunningCluster::start(ClusterShape { mnodes: 2, stores: 1, ..ClusterShape::default() });
    let fs = cluster.connect();
    let chunks = || cluster.metric_of("store", "saker_store_chunks") as u64;
    let remove = |name: &str| {
        fs.block_on(fs.unlink(&Caller::root(), &at(&[name]))).unwrap();
    };
    let open = write_chunk(&fs, "open", true).unwrap();
    for n in 0..8 {
        write_chunk(&fs, &format!("f{n}"), false);
    }
    until("chunks", || chunks() == 9);
    (0..8).for_each(|n| remove(&format!("f{n}")));
    remove("open");
    let removed = Instant::now();
    until("space of what nobody has open", || {
        // Real time: without holds it would come back when the leases end.
        assert!(removed.elapsed() < LIMIT, "in vain: {} chunks", chunks());
        chunks() == 1
    });
    let data = fs.block_on(open.read(0, 4)).unwrap();
    assert_eq!(&data[..], [7; 4]);
    drop(open);
    until("space of the last", || {
        // Real time: as above.
        assert!(removed.elapsed() < LIMIT, "in vain");
        chunks() == 0
    });
    fs.close().unwrap();
    cluster.fsck();
}

struct Mount(Child, PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = Command::new(binary()).arg("umount").arg(&self.1).status();
    }
}

#[test]
fn a_full_disk_under_a_log_costs_lines_and_nothing_else() {
    if !can_mount("a_full_disk_under_a_log_costs_lines_and_nothing_else") {
        return;
    }
    let cluster =
        RunningCluster::start(ClusterShape { mnodes: 1, stores: 1, ..ClusterShape::default() });
    let disk = Disk::mount(&cluster.scratch().join("log"), 64 << 10);
    let (log, point) = (disk.0.join("log"), cluster.scratch().join("mnt"));
    fs::create_dir(&point).unwrap();
    let child = Command::new(binary())
        .arg("mount")
        .arg(cluster.dir())
        .arg(&point)
        .arg("--foreground")
        .env("SAKER_LOG", "debug,saker_rpc=trace,saker_client=trace")
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn();
    let mut mount = Mount(child.unwrap(), point.clone());
    until("the mount", || {
        fs::write(point.join("there"), b"x").is_ok_and(|()| {
            fs::read_to_string("/proc/self/mounts").unwrap().contains(&*point.to_string_lossy())
        })
    });
    disk.fill();
    // What was allocated of the file takes some yet.
    until("the end of the log", || {
        retries(&cluster, &point);
        fs::metadata(&log).unwrap().len() % 4096 == 0
    });
    assert_eq!(mount.0.try_wait().unwrap(), None, "the mount has ended");
    let full = fs::metadata(&log).unwrap().len();
    disk.free();
    until("lines again", || {
        retries(&cluster, &point);
        fs::metadata(&log).unwrap().len() > full
    });
    let text = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    assert!(text.contains("lines of this log could not be written"), "{text}");
    drop(mount);
}

#[test]
fn a_supervisor_works_on_a_full_disk() {
    if !settings::needs_root("a_supervisor_works_on_a_full_disk") {
        return;
    }
    let shape = ClusterShape { mnodes: 1, stores: 1, supervise: true, ..ClusterShape::default() };
    let disks;
    let cluster = RunningCluster::new(shape);
    disks = ["log", "run"].map(|part| Disk::mount(&cluster.dir().join(part), 1 << 20));
    cluster.up();
    let fs = cluster.connect();
    let supervisor = cluster.pid("supervisor").unwrap();
    disks.iter().for_each(Disk::fill);
    for round in 0..3 {
        let role = cluster.roles().into_iter().find(|role| role.role == "mnode").unwrap();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(role.pid).unwrap(),
            Signal::KILL,
        )
        .unwrap();
        // It is started again, once.
        mkdir(&fs, &format!("d{round}")).unwrap();
        let now = cluster.roles().into_iter().find(|role| role.role == "mnode").unwrap();
        assert_ne!(now.pid, role.pid);
    }
    assert_eq!(cluster.pid("supervisor"), Some(supervisor));
    assert!(Path::new(&format!("/proc/{supervisor}")).exists(), "the supervisor has ended");
    fs.close().unwrap();
    disks.iter().for_each(Disk::free);
    cluster.down();
    drop(cluster);
    drop(disks);
}

fn at(names: &[&str]) -> At {
    let names = names.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
    At::below(Locator::root(), names)
}

fn mkdir(fs: &Fs, name: &str) -> Result<(), Errno> {
    fs.block_on(fs.mkdir(&Caller::root(), &at(&[name]), 0o755)).map(drop).map_err(|e| e.errno())
}

fn create(fs: &Fs, names: &[&str]) -> Result<(), Errno> {
    fs.block_on(async {
        let flags = OpenFlags::from_linux(2);
        let (file, _) = fs.create(&Caller::root(), &at(names), 0o644, flags).await?;
        file.write(0, b"small").await?;
        file.fsync().await?;
        file.release().await;
        Ok(())
    })
    .map_err(|error: saker_types::Error| error.errno())
}

/// Removes, renames and changes what is there.
fn tidy(fs: &Fs, dir: &str, range: std::ops::Range<usize>) {
    let who = Caller::root();
    fs.block_on(async {
        for n in range {
            let (old, new) = (format!("f{n}"), format!("g{n}"));
            let (from, to) = (at(&[dir, &old]), at(&[dir, &new]));
            fs.rename(&who, &from, &to, false, &[]).await.unwrap();
            let smaller = SetAttr { size: Some(1), ..SetAttr::default() };
            fs.setattr(&who, &to, &smaller).await.unwrap();
            fs.unlink(&who, &to).await.unwrap();
        }
    });
}

#[test]
fn names_can_be_removed_while_an_mnodes_disk_is_full() {
    if !settings::needs_root("names_can_be_removed_while_an_mnodes_disk_is_full") {
        return;
    }
    let disk;
    let cluster =
        RunningCluster::new(ClusterShape { mnodes: 1, stores: 1, ..ClusterShape::default() });
    // Room for a journal, its reserve and a checkpoint.
    disk = Disk::mount(&cluster.dir().join("data/mnode-0"), 448 << 20);
    cluster.up();
    let fs = cluster.connect();
    mkdir(&fs, "dir").unwrap();
    mkdir(&fs, "empty").unwrap();
    (0..40).for_each(|n| create(&fs, &["dir", &format!("f{n}")]).unwrap());
    disk.fill();
    let mut tried = 0;
    until("ENOSPC", || {
        tried += 1;
        let name = format!("new-{tried}");
        match create(&fs, &["dir", &name]) {
            Ok(()) => {
                fs.block_on(fs.unlink(&Caller::root(), &at(&["dir", &name]))).unwrap();
                false
            }
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                true
            }
        }
    });
    assert_eq!(mkdir(&fs, "new"), Err(Errno::ENOSPC));
    tidy(&fs, "dir", 0..20);
    fs.block_on(fs.rmdir(&Caller::root(), &at(&["empty"]))).unwrap();
    let full = |cluster: &RunningCluster| cluster.metric_of("mnode", "saker_mnode_full_workers");
    assert_eq!(full(&cluster), 1.0);
    // Also after a start on the full disk.
    cluster.signal("mnode-0", Signal::KILL);
    cluster.up();
    tidy(&fs, "dir", 20..40);
    assert_eq!(create(&fs, &["dir", "new"]), Err(Errno::ENOSPC));
    fs.block_on(fs.rmdir(&Caller::root(), &at(&["dir"]))).unwrap();
    disk.free();
    until("room again", || mkdir(&fs, "new").is_ok());
    assert_eq!(full(&cluster), 0.0);
    fs.close().unwrap();
    cluster.fsck();
    drop(cluster);
    drop(disk);
}
