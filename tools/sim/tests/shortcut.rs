//! The VFS shortcut: what the kernel is told without asking a server is never seen by a process,
//! and one open costs one request at any depth. Each case with each source of hints. Needs root,
//! /dev/fuse; BPF where the machine lets us use it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use saker_client::{Caller, OpenFlags, SetAttr};
use saker_sim::cluster::{ClusterShape, RunningCluster, can_mount, line_with};
use saker_sim::fsx::{FsxTarget, PosixFile};
use saker_sim::wait;
use saker_types::Locator;
use saker_types::wire::At;

/// Requests of the wire that serve names and attributes.
const OPS: [&str; 12] = [
    "lookup", "getattr", "open", "create", "mkdir", "mknod", "unlink", "rename", "access",
    "setattr", "link", "symlink",
];

/// A cluster, and a mount of it with hints from one source.
struct Mounted {
    point: PathBuf,
    /// The kernel keeps names for a while.
    keeps_names: bool,
    cluster: RunningCluster,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let words = [Path::new("umount"), &self.point];
        let _ = Command::new(saker_sim::cluster::binary()).args(words).status();
    }
}

impl Mounted {
    /// `None` where that source does not work.
    fn start(source: &str, options: &str) -> Option<Mounted> {
        let cluster = RunningCluster::start(ClusterShape { mnodes: 2, ..ClusterShape::default() });
        let point = cluster.scratch().join("mnt");
        fs::create_dir(&point).unwrap();
        let log = cluster.scratch().join("mount.log");
        let mut mount = Command::new(saker_sim::cluster::binary());
        mount.arg("mount").arg(cluster.dir()).arg(&point).arg("--log").arg(&log);
        let status = mount.args(["-o", &format!("shortcut={source},{options}")]).status();
        assert!(status.unwrap().success(), "no mount");
        let keeps_names = options.contains("entry_timeout");
        let mounted = Mounted { point, keeps_names, cluster };
        let said = line_with(&log, "shortcut: ");
        if said.contains("no hints") {
            assert!(
                source.starts_with("bpf") && std::env::var_os("SAKER_REQUIRE_BPF").is_none(),
                "{said}"
            );
            eprintln!("skipped with {source}: {said}");
            return None;
        }
        Some(mounted)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    /// Requests that MNodes have served so far.
    fn requests(&self) -> u64 {
        let name = |op| format!("saker_mnode_requests_total{{op=\"{op}\"}}");
        let names = OPS.map(name);
        self.cluster.metrics_of("mnode", &names.each_ref().map(String::as_str)) as u64
    }

    /// Requests that `f` causes.
    fn cost<T>(&self, f: impl FnOnce() -> T) -> u64 {
        let before = self.requests();
        f();
        self.requests() - before
    }
}

/// Runs `f` with each source of hints, by BPF over each transport.
fn each(test: &str, f: impl Fn(&Mounted)) {
    each_with(test, "rw", f);
}

/// The same where the kernel keeps no names, and where it does.
fn each_keeping(test: &str, f: impl Fn(&Mounted)) {
    each_with(test, "rw", &f);
    each_with(test, "entry_timeout=1", &f);
}

/// The same with options of the mount.
fn each_with(test: &str, options: &str, f: impl Fn(&Mounted)) {
    if !can_mount(test) {
        return;
    }
    // With io_uring the kernel numbers requests later. With leases on all names none need be in use.
    for source in ["bpf,transport=dev", "bpf,transport=uring", "bpf,leases=all"] {
        if let Some(mounted) = Mounted::start(source, options) {
            eprintln!("{test} with {source}");
            f(&mounted);
            mounted.cluster.fsck();
        }
    }
}

fn errno<T>(result: std::io::Result<T>) -> i32 {
    result.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

/// open(2), read(2), close(2), and nothing else.
fn read_only(path: &Path) -> [u8; 4096] {
    let fd = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
    let mut data = [0; 4096];
    assert_eq!(rustix::io::read(&fd, &mut data).unwrap(), data.len());
    data
}

fn read_open(path: &Path) -> Vec<u8> {
    let mut data = Vec::new();
    File::open(path).unwrap().read_to_end(&mut data).unwrap();
    data
}

/// Another client moves and makes directories.
fn elsewhere(t: &Mounted, f: impl AsyncFnOnce(&saker_client::Fs, &Caller)) {
    let fs = t.cluster.connect();
    fs.block_on(f(&fs, &Caller::root()));
    fs.close().unwrap();
}

/// Everybody may walk to the mount.
fn let_others_in(t: &Mounted) {
    // The mount, the scratch directory that it is in, and the cluster's.
    for dir in t.point.ancestors().take(3) {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn at(path: &str) -> At {
    let names = path.split('/').map(|name| bytes::Bytes::copy_from_slice(name.as_bytes()));
    At::below(Locator::root(), names.collect())
}

#[test]
fn one_request_whatever_the_depth() {
    // Attributes live long enough for a machine that is busy.
    each_with("one_request_whatever_the_depth", "attr_timeout=5", |t| {
        for depth in [1, 3, 7] {
            let names: Vec<String> = (0..depth).map(|n| format!("d{depth}-{n}")).collect();
            let dir = t.path(&names.join("/"));
            fs::create_dir_all(&dir).unwrap();
            for n in 0..4 {
                fs::write(dir.join(format!("f{n}")), [7; 4096]).unwrap();
            }
            for drop in [true, true, false] {
                if drop {
                    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
                }
                let file = dir.join("f1");
                let cost = t.cost(|| assert_eq!(read_only(&file), [7; 4096]));
                assert_eq!(cost, 1, "open, read, close at depth {depth}, caches dropped: {drop}");
                let file = dir.join("f2");
                // Not statx(2) with the birth time, for which the kernel asks once more.
                let cost = t.cost(|| rustix::fs::stat(&file).unwrap());
                assert_eq!(cost, 1, "stat at depth {depth}");
            }
            let new = dir.join("new");
            assert_eq!(t.cost(|| File::create_new(&new).unwrap()), 1, "create at depth {depth}");
            let other = dir.join("other");
            assert_eq!(t.cost(|| fs::create_dir(&other).unwrap()), 1, "mkdir at depth {depth}");
            let link = dir.join("link");
            assert_eq!(t.cost(|| symlink("x", &link).unwrap()), 1, "symlink at depth {depth}");
            let moved = dir.join("moved");
            let cost = t.cost(|| fs::rename(dir.join("f3"), &moved).unwrap());
            assert!(cost <= 3, "rename at depth {depth}: {cost}");
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            let cost = t.cost(|| fs::remove_file(dir.join("f0")).unwrap());
            assert_eq!(cost, 1, "unlink at depth {depth}");
            // Of what was written here the kernel may know a size that no reply has told it.
            fs::write(dir.join("written"), "text").unwrap();
            for (name, wanted) in [("f1", 1), ("new", 1), ("written", 2)] {
                rustix::fs::stat(dir.join(name)).unwrap();
                let cost = t.cost(|| fs::remove_file(dir.join(name)).unwrap());
                assert_eq!(cost, wanted, "unlink of {name}, which is held, at depth {depth}");
            }
            rustix::fs::stat(&other).unwrap();
            let cost = t.cost(|| fs::remove_dir(&other).unwrap());
            // The coordinator removes it.
            assert_eq!(cost, 0, "rmdir of a held name at depth {depth}");
        }
    });
}

#[test]
fn one_request_where_a_name_comes_twice() {
    each_with("one_request_where_a_name_comes_twice", "attr_timeout=5", |t| {
        let dir = t.path("x/x/x/y/x");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("x"), [7; 4096]).unwrap();
        for _ in 0..2 {
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            let cost = t.cost(|| assert_eq!(read_only(&dir.join("x")), [7; 4096]));
            assert_eq!(cost, 1, "by the whole path");
        }
        let start = rustix::fs::open(t.path("x/x"), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let cost = t.cost(|| {
            rustix::fs::openat(&start, "x/y/x/x", OFlags::RDONLY, Mode::empty()).unwrap();
        });
        assert_eq!(cost, 1, "from a directory that is open");
    });
}

#[test]
fn one_request_while_the_kernel_evicts_inodes() {
    const FILES: usize = 400;
    const READERS: usize = 4;
    each_with("one_request_while_the_kernel_evicts_inodes", "attr_timeout=5", |t| {
        let dir = t.path("a/b/c/d/e");
        fs::create_dir_all(&dir).unwrap();
        let file = |n: usize| dir.join(format!("f{n}"));
        for n in 0..FILES {
            fs::write(file(n), [7; 4096]).unwrap();
        }
        let read_all = || {
            for n in 0..FILES {
                let fd = rustix::fs::open(file(n), OFlags::RDONLY, Mode::empty()).unwrap();
                // More than there is: the kernel makes sure of the size first.
                assert_eq!(rustix::io::read(&fd, &mut [0; 8192]).unwrap(), 4096);
            }
        };
        let cost = t.cost(|| {
            thread::scope(|threads| {
                let readers: Vec<_> = (0..READERS).map(|_| threads.spawn(read_all)).collect();
                while readers.iter().any(|reader| !reader.is_finished()) {
                    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
                }
            });
        });
        assert_eq!(cost, (FILES * READERS) as u64);
    });
}

/// What was told with an open serves the first read, however slow the reader is, and nothing else.
#[test]
fn a_slow_reader_asks_no_more() {
    each_with("a_slow_reader_asks_no_more", "attr_timeout=0", |t| {
        let (file, other) = (t.path("f"), t.path("g"));
        fs::write(&file, "text").unwrap();
        fs::write(&other, "").unwrap();
        let read = |fd: &rustix::fd::OwnedFd| {
            let mut data = [0; 100];
            let len = rustix::io::read(fd, &mut data).unwrap();
            String::from_utf8_lossy(&data[..len]).into_owned()
        };
        let open = || {
            let fd = rustix::fs::open(&file, OFlags::RDONLY, Mode::empty()).unwrap();
            // Real time: the mount has told the kernel by then what an open said.
            thread::sleep(Duration::from_millis(20));
            fd
        };
        assert_eq!(t.cost(|| assert_eq!(read(&open()), "text")), 1);
        let fd = open();
        // Of another client: this one hears nothing of it.
        elsewhere(t, async |fs, root| {
            let flags = OpenFlags { write: true, append: true, ..OpenFlags::default() };
            let (file, _) = fs.open(root, &at("f"), flags).await.unwrap();
            file.write(0, b" and more").await.unwrap();
            file.flush().await.unwrap();
        });
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, 13, "what is asked for by stat is new");
        assert_eq!(read(&fd), "text and more", "and so is what the kernel was told since the open");
        let fd = open();
        fs::write(&other, "a change").unwrap();
        assert!(t.cost(|| assert_eq!(read(&fd), "text and more")) >= 1, "it could be of this file");
    });
}

/// The kernel does not keep when a file came to be with its name, and asks once more if a program wants
/// to know.
#[test]
fn a_stat_with_the_birth_time_is_one_request() {
    each_with("a_stat_with_the_birth_time_is_one_request", "attr_timeout=5", |t| {
        elsewhere(t, async |fs, who| {
            let flags = OpenFlags::from_linux(libc::O_CREAT | libc::O_WRONLY);
            for name in ["stat", "open", "old"] {
                fs.create(who, &at(name), 0o644, flags).await.unwrap().0.release().await;
            }
        });
        let born = |name| fs::metadata(t.path(name)).unwrap().created().unwrap();
        assert_eq!(t.cost(|| born("stat")), 1);
        assert_eq!(t.cost(|| File::open(t.path("open")).unwrap().metadata().unwrap()), 1);
        let open = File::open(t.path("old")).unwrap();
        // Real time: what the kernel knows expires after 5 s.
        thread::sleep(Duration::from_millis(5500));
        elsewhere(t, async |fs, who| {
            let flags = OpenFlags { write: true, ..OpenFlags::default() };
            let (file, _) = fs.open(who, &at("old"), flags).await.unwrap();
            file.write(0, b"text").await.unwrap();
            file.flush().await.unwrap();
            file.release().await;
        });
        assert_eq!(open.metadata().unwrap().len(), 4, "what the name told is too old");
        let now = std::time::SystemTime::now();
        for name in ["stat", "open", "old"] {
            assert!(now.duration_since(born(name)).unwrap() < Duration::from_secs(60));
        }
    });
}

/// Also if they are told with the open of a file that somebody else is writing to.
#[test]
fn times_are_those_of_the_last_write() {
    each_with("times_are_those_of_the_last_write", "attr_timeout=5", |t| {
        let mut writer = File::create(t.path("f")).unwrap();
        // Real time: times of files go by a clock that ticks every few milliseconds.
        thread::sleep(Duration::from_millis(50));
        let before = std::time::SystemTime::now();
        thread::sleep(Duration::from_millis(50));
        writer.write_all(b"text").unwrap();
        let meta = File::open(t.path("f")).unwrap().metadata().unwrap();
        assert_eq!(meta.len(), 4);
        assert!(meta.created().unwrap() < before && before < meta.modified().unwrap());
        // Asked for without the birth time: the kernel may answer by itself.
        // Real time: as above.
        thread::sleep(Duration::from_millis(50));
        let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        thread::sleep(Duration::from_millis(50));
        writer.write_all(b" more").unwrap();
        let reader = File::open(t.path("f")).unwrap();
        let stat = rustix::fs::fstat(&reader).unwrap();
        assert_eq!(stat.st_size, 9);
        let changed = Duration::new(stat.st_mtime as u64, stat.st_mtime_nsec as u32);
        assert!(before < changed, "{before:?} {changed:?}");
    });
}

/// A thread that looks something up to open it, and opens nothing, leaves no right to open it behind.
#[test]
fn an_open_that_never_came_lends_no_rights() {
    each("an_open_that_never_came_lends_no_rights", |t| {
        fs::write(t.path("secret"), "text").unwrap();
        std::os::unix::fs::chown(t.path("secret"), Some(1000), Some(1000)).unwrap();
        fs::set_permissions(t.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        let held = rustix::fs::open(t.path("secret"), OFlags::PATH, Mode::empty()).unwrap();
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
        let as_user = |uid: u32, path: &Path, flags: OFlags| {
            // SAFETY: it changes who this thread is to file systems, and nothing else.
            let turn_into = |uid: u32| unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
            turn_into(uid);
            let opened = rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty());
            turn_into(0);
            opened.map(drop).map_err(|error| error.raw_os_error())
        };
        for refused in [OFlags::DIRECTORY, OFlags::NOATIME] {
            // The first has every right, and opens nothing all the same.
            let first = if refused == OFlags::DIRECTORY { 1000 } else { 1001 };
            assert!(as_user(first, &t.path("secret"), refused).is_err());
            assert_eq!(as_user(1001, again.as_ref(), OFlags::empty()), Err(libc::EACCES));
            assert_eq!(as_user(1000, again.as_ref(), OFlags::empty()), Ok(()));
        }
    });
}

#[test]
fn fakes_are_never_seen() {
    each_keeping("fakes_are_never_seen", |t| {
        fs::create_dir_all(t.path("a/b/c")).unwrap();
        fs::set_permissions(t.path("a/b"), fs::Permissions::from_mode(0o750)).unwrap();
        fs::write(t.path("a/b/c/f"), "text").unwrap();
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        for _ in 0..2 {
            assert_eq!(read_open(&t.path("a/b/c/f")), b"text");
            let meta = fs::metadata(t.path("a/b")).unwrap();
            assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.nlink()), (0o750, 0, 3));
            let dir = File::open(t.path("a/b")).unwrap();
            assert_eq!(dir.metadata().unwrap().mode() & 0o7777, 0o750);
            assert_eq!(dir.metadata().unwrap().ino(), meta.ino());
        }
        assert_eq!(errno(fs::metadata(t.path("a/x/c"))), libc::ENOENT);
        assert_eq!(errno(fs::metadata(t.path("a/b/c/f/g"))), libc::ENOTDIR);
        assert_eq!(errno(File::create(t.path("x/new"))), libc::ENOENT);
        assert_eq!(errno(File::create(t.path("a/b/c/f/new"))), libc::ENOTDIR);
        assert_eq!(errno(fs::create_dir(t.path("a/b"))), libc::EEXIST);
        assert_eq!(errno(fs::remove_file(t.path("a/nothing"))), libc::ENOENT);
        assert_eq!(errno(fs::remove_dir(t.path("a/nothing"))), libc::ENOENT);
        assert_eq!(errno(fs::remove_dir(t.path("a/b"))), libc::ENOTEMPTY);
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        assert_eq!(errno(fs::remove_file(t.path("a/b"))), libc::EISDIR);
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        assert_eq!(errno(fs::remove_dir(t.path("a/b/c/f"))), libc::ENOTDIR);
        assert_eq!(read_open(&t.path("a/b/c/f")), b"text");
        assert_eq!(errno(File::create(t.path("a/b"))), libc::EISDIR);
        assert_eq!(errno(File::create_new(t.path("a/b/c/f"))), libc::EEXIST);
        assert_eq!(read_open(&t.path("a/b/c/f")), b"text", "nothing was cut");
        drop(File::create(t.path("a/b/c/f")).unwrap());
        assert_eq!(read_open(&t.path("a/b/c/f")), b"", "cut by O_TRUNC");
        // What is said to be free, and is not, is replaced all the same.
        for name in ["one", "two"] {
            fs::write(t.path(name), name).unwrap();
        }
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        let cwd = rustix::fs::CWD;
        let (one, two) = (t.path("one"), t.path("two"));
        let error = rustix::fs::renameat_with(cwd, &one, cwd, &two, RenameFlags::NOREPLACE);
        assert_eq!(error.unwrap_err(), rustix::io::Errno::EXIST);
        rustix::fs::renameat_with(cwd, &one, cwd, &two, RenameFlags::EXCHANGE).unwrap();
        assert_eq!((read_open(&one), read_open(&two)), (b"two".to_vec(), b"one".to_vec()));
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        fs::rename(&one, &two).unwrap();
        assert_eq!(read_open(&two), b"two");
        assert_eq!(errno(fs::metadata(&one)), libc::ENOENT);
    });
}

#[test]
fn a_rename_to_where_nothing_is_fails_as_it_should() {
    each("a_rename_to_where_nothing_is_fails_as_it_should", |t| {
        fs::create_dir_all(t.path("d/e")).unwrap();
        fs::write(t.path("f"), "text").unwrap();
        let rename = |from: &str, to: &str| errno(fs::rename(t.path(from), t.path(to)));
        for _ in 0..2 {
            for drop in [true, false] {
                if drop {
                    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
                }
                assert_eq!(rename("d", "d/nothing/x"), libc::ENOENT, "the target's directory");
                assert_eq!(rename("d", "d/e/../../d/nothing/x"), libc::ENOENT);
                assert_eq!(rename("d/nothing/x", "d"), libc::ENOENT, "the source's");
                assert_eq!(rename("d/.", "nothing/x"), libc::ENOENT, "before EBUSY");
                assert_eq!(rename("nothing/x", "d/e/.."), libc::ENOENT);
                assert_eq!(rename("f", "nothing/x"), libc::ENOENT);
                assert_eq!(rename("d", "d/e/x"), libc::EINVAL);
                assert_eq!(rename("d/e", "d"), libc::ENOTEMPTY);
                assert_eq!(rename("d/.", "d/e/x"), libc::EBUSY);
                assert_eq!(rename("f", "f/x"), libc::ENOTDIR);
            }
            let d = File::open(t.path("d")).unwrap();
            let below = rustix::fs::renameat(&d, "../d", &d, "nothing/x");
            assert_eq!(below, Err(rustix::io::Errno::NOENT));
        }
    });
}

#[test]
fn links_and_dots_on_the_way_lead_where_they_should() {
    each_keeping("links_and_dots_on_the_way_lead_where_they_should", |t| {
        fs::create_dir_all(t.path("real/sub/deep")).unwrap();
        fs::create_dir_all(t.path("side")).unwrap();
        fs::write(t.path("real/sub/deep/f"), "deep").unwrap();
        fs::write(t.path("real/f"), "above").unwrap();
        fs::write(t.path("f"), "top").unwrap();
        symlink("../real/sub", t.path("side/l")).unwrap();
        symlink(t.path("real/sub/deep"), t.path("absolute")).unwrap();
        symlink("side/l/deep/f", t.path("last")).unwrap();
        symlink("loop", t.path("loop")).unwrap();
        for round in 0..3 {
            if round < 2 {
                fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            }
            assert_eq!(read_open(&t.path("side/l/deep/f")), b"deep");
            assert_eq!(read_open(&t.path("side/l/../f")), b"above", "not side/f");
            assert_eq!(read_open(&t.path("side/l/deep/../../../f")), b"top");
            assert_eq!(read_open(&t.path("absolute/f")), b"deep");
            assert_eq!(read_open(&t.path("absolute/../../f")), b"above");
            assert_eq!(read_open(&t.path("last")), b"deep");
            assert_eq!(read_open(&t.path("./side//l/./deep//f")), b"deep");
            assert_eq!(
                fs::metadata(t.path("side/l/")).unwrap().ino(),
                fs::metadata(t.path("real/sub")).unwrap().ino()
            );
            assert!(fs::symlink_metadata(t.path("side/l")).unwrap().is_symlink());
            assert_eq!(errno(fs::metadata(t.path("loop/x"))), libc::ELOOP);
            assert_eq!(errno(fs::metadata(t.path("last/x"))), libc::ENOTDIR);
            assert_eq!(errno(fs::metadata(t.path("f/"))), libc::ENOTDIR);
            let nofollow = OFlags::NOFOLLOW | OFlags::RDONLY;
            let error = rustix::fs::open(t.path("last"), nofollow, Mode::empty()).unwrap_err();
            assert_eq!(error, rustix::io::Errno::LOOP);
        }
        // O_CREAT on names that are taken by something else.
        symlink("target", t.path("dangling")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            t.path("fifo"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        File::create(t.path("dangling")).unwrap().write_all(b"through").unwrap();
        assert_eq!(read_open(&t.path("target")), b"through");
        let fifo = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(t.path("fifo"));
        assert!(fifo.unwrap().metadata().unwrap().mode() & libc::S_IFMT == libc::S_IFIFO);
        assert_eq!(errno(File::create(t.path("real"))), libc::EISDIR);
        fs::create_dir(t.path("side/l/made")).unwrap();
        assert!(t.path("real/sub/made").is_dir());
    });
}

#[test]
fn who_is_in_a_directory_stays_in_it_when_another_takes_its_place() {
    each("who_is_in_a_directory_stays_in_it_when_another_takes_its_place", |t| {
        fs::create_dir_all(t.path("a/b/c")).unwrap();
        fs::write(t.path("a/b/c/f"), "old").unwrap();
        let b = File::open(t.path("a/b")).unwrap();
        let in_b = |path: &str| {
            let fd = rustix::fs::openat(&b, path, OFlags::RDONLY, Mode::empty())?;
            let mut data = Vec::new();
            File::from(fd).read_to_end(&mut data).unwrap();
            rustix::io::Result::Ok(data)
        };
        assert_eq!(in_b("c/f").unwrap(), b"old");
        assert_eq!(read_open(&t.path("a/b/c/f")), b"old");
        elsewhere(t, async |fs, who| {
            fs.rename(who, &at("a/b"), &at("a/moved"), false, &[]).await.unwrap();
            fs.mkdir(who, &at("a/b"), 0o755).await.unwrap();
            fs.mkdir(who, &at("a/b/c"), 0o755).await.unwrap();
            let flags = saker_client::OpenFlags::from_linux(libc::O_CREAT | libc::O_WRONLY);
            let (file, _) = fs.create(who, &at("a/b/c/f"), 0o644, flags).await.unwrap();
            file.write(0, b"new").await.unwrap();
            file.flush().await.unwrap();
            file.release().await;
        });
        for _ in 0..3 {
            assert_eq!(read_open(&t.path("a/b/c/f")), b"new");
            assert_eq!(in_b("c/f").unwrap(), b"old");
            assert_eq!(read_open(&t.path("a/moved/c/f")), b"old");
        }
        // What is made there is made in the directory, wherever that is.
        rustix::fs::mkdirat(&b, "made", Mode::RWXU).unwrap();
        assert!(t.path("a/moved/made").is_dir());
        assert!(!t.path("a/b/made").exists());
        rustix::fs::unlinkat(&b, "made", AtFlags::REMOVEDIR).unwrap();
        let mut shell = Command::new("sh");
        let script =
            "read go; cat c/f; echo x > c/g; mv c/g c/h; rm c/h; mkdir d; mv d c; rmdir c/d";
        shell.args(["-ec", script]).current_dir(t.path("a/moved"));
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        elsewhere(t, async |fs, who| {
            fs.rename(who, &at("a"), &at("z"), false, &[]).await.unwrap();
        });
        shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let output = shell.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, b"old");
        assert_eq!(errno(fs::metadata(t.path("a/b/c/f"))), libc::ENOENT);
        assert_eq!(in_b("c/f").unwrap(), b"old");
        assert_eq!(read_open(&t.path("z/b/c/f")), b"new");
        // And after a rename through the mount itself.
        fs::rename(t.path("z"), t.path("y")).unwrap();
        assert_eq!(in_b("c/f").unwrap(), b"old");
        assert_eq!(read_open(&t.path("y/b/c/f")), b"new");
        assert_eq!(errno(fs::metadata(t.path("z/b"))), libc::ENOENT);
    });
}

#[test]
fn what_is_in_a_working_directory_is_renamed() {
    each("what_is_in_a_working_directory_is_renamed", |t| {
        // By another client: the kernel of this mount knows nothing of it.
        elsewhere(t, async |fs, who| {
            for dir in ["a", "a/b", "a/b/c", "a/b/c/s1", "a/b/c/s2", "a/b/c/d"] {
                fs.mkdir(who, &at(dir), 0o755).await.unwrap();
            }
            for file in ["a/b/c/x", "a/b/c/s1/f"] {
                let flags = OpenFlags::from_linux(libc::O_CREAT | libc::O_WRONLY);
                fs.create(who, &at(file), 0o644, flags).await.unwrap().0.release().await;
            }
        });
        let script = "mv x y; mv s1/f s2/g; mv d s2/d; mv s2/d e; mv -T s1 s2/s3; find . | sort";
        let mut shell = Command::new("sh");
        let output = shell.args(["-ec", script]).current_dir(t.path("a/b/c")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, b".\n./e\n./s2\n./s2/g\n./s2/s3\n./y\n");
    });
}

#[test]
fn what_is_there_is_opened_through_a_read_only_bind_mount() {
    each("what_is_there_is_opened_through_a_read_only_bind_mount", |t| {
        fs::create_dir(t.path("d")).unwrap();
        fs::write(t.path("d/lock"), "").unwrap();
        let other = t.cluster.scratch().join("read-only");
        fs::create_dir(&other).unwrap();
        let mount = |words: &[&Path]| {
            assert!(Command::new("mount").args(words).status().unwrap().success());
        };
        mount(&[Path::new("--bind"), &t.point, &other]);
        mount(&[Path::new("-o"), Path::new("remount,bind,ro"), &other]);
        // The kernel must not know it already.
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        let open =
            OpenOptions::new().read(true).custom_flags(libc::O_CREAT).open(other.join("d/lock"));
        let opened = open.map(drop);
        assert!(Command::new("umount").arg(&other).status().unwrap().success());
        opened.unwrap();
    });
}

#[test]
fn what_is_there_is_said_to_be_so_where_nothing_can_be_made() {
    each("what_is_there_is_said_to_be_so_where_nothing_can_be_made", |t| {
        fs::create_dir_all(t.path("d/e")).unwrap();
        fs::write(t.path("d/f"), "").unwrap();
        let mount = |words: &[&Path]| {
            assert!(Command::new("mount").args(words).status().unwrap().success());
        };
        let remount = |how: &str, point: &Path| {
            mount(&[Path::new("-i"), Path::new("-o"), Path::new(how), point]);
        };
        let makes = |point: &Path, name: &str| {
            // The kernel must not know it already.
            let made = |make: &dyn Fn(&Path) -> std::io::Result<()>| {
                fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
                errno(make(&point.join(name)))
            };
            [
                made(&|path| fs::create_dir(path)),
                made(&|path| symlink("x", path)),
                made(&|path| fs::hard_link(point.join("d/f"), path)),
                made(&|path| File::create_new(path).map(drop)),
                made(&|path| {
                    let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::RWXU);
                    Ok(rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0)?)
                }),
            ]
        };
        let look = |point: &Path| ["d/e", "d/f", "d/new"].map(|name| makes(point, name));
        let wanted = [libc::EEXIST, libc::EEXIST, libc::EROFS].map(|errno| [errno; 5]);
        let other = t.cluster.scratch().join("read-only");
        fs::create_dir(&other).unwrap();
        mount(&[Path::new("--bind"), &t.point, &other]);
        remount("remount,bind,ro", &other);
        let seen = look(&other);
        assert!(Command::new("umount").arg(&other).status().unwrap().success());
        assert_eq!(seen, wanted, "a bind mount");
        remount("remount,ro", &t.point);
        let seen = look(&t.point);
        remount("remount,rw", &t.point);
        assert_eq!(seen, wanted, "mounted anew");
        fs::create_dir(t.path("d/new")).unwrap();
    });
}

/// Whether the sysctls that protect what lies in sticky directories are on.
fn is_protected() -> bool {
    ["symlinks", "regular", "fifos"].iter().all(|what| {
        let text = fs::read_to_string(format!("/proc/sys/fs/protected_{what}")).unwrap();
        text.trim() != "0"
    })
}

#[test]
fn what_lies_in_a_sticky_directory_is_protected() {
    if !is_protected() {
        println!("note: sysctl fs.protected_* is off: sticky directories are not tested");
        return;
    }
    each("what_lies_in_a_sticky_directory_is_protected", |t| {
        let_others_in(t);
        fs::write(t.path("secret"), "secret").unwrap();
        let can = |uid: u32, script: &str| {
            let mut shell = Command::new("sh");
            let shell = shell.args(["-ec", script]).current_dir(&t.point).uid(uid).gid(uid);
            shell.stderr(Stdio::null()).status().unwrap().success()
        };
        let make = "ln -s ../secret s/link; : > s/file; mkfifo s/fifo; chmod 666 s/file s/fifo";
        let uses = ["cat s/link", "echo >> s/file", "echo > s/file", ": <> s/fifo"];
        for by_another in [false, true] {
            let dir = t.path("s");
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
            assert!(can(2001, make));
            if by_another {
                elsewhere(t, async |fs, who| {
                    let (mode, uid) = (Some(0o1777), Some(2000));
                    let change = SetAttr { mode, uid, ..SetAttr::default() };
                    fs.setattr(who, &at("s"), &change).await.unwrap();
                });
            } else {
                std::os::unix::fs::chown(&dir, Some(2000), None).unwrap();
                fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
            }
            for forgets in [false, true] {
                for what in uses {
                    for (uid, may) in [(2002, false), (2001, true)] {
                        if forgets {
                            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
                        }
                        assert_eq!(
                            can(uid, what),
                            may,
                            "{what} by {uid} ({by_another}, {forgets})"
                        );
                    }
                }
            }
            fs::remove_dir_all(&dir).unwrap();
        }
    });
}

#[test]
fn what_the_kernel_holds_is_never_said_to_be_free() {
    each("what_the_kernel_holds_is_never_said_to_be_free", |t| {
        fs::create_dir_all(t.path("d/e")).unwrap();
        fs::write(t.path("d/e/f"), [5; 8192]).unwrap();
        let mut map = PosixFile::create(&t.path("d/e/f")).unwrap();
        let held = File::open(t.path("d/e/f")).unwrap();
        let link =
            PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held)));
        let here = CString::new(t.path("d/e").as_os_str().as_bytes()).unwrap();
        for round in 0..20 {
            let file = t.path("d/e/f");
            drop(OpenOptions::new().create(true).append(true).open(&file).unwrap());
            assert_eq!(errno(File::create_new(&file)), libc::EEXIST);
            assert_eq!(errno(fs::create_dir(&file)), libc::EEXIST);
            assert_eq!(errno(fs::remove_dir(&file)), libc::ENOTDIR);
            assert_eq!(errno(fs::remove_file(t.path("d/e"))), libc::EISDIR);
            assert_eq!(fs::read_link(&link).unwrap(), file, "round {round}");
            assert_eq!(map.map_read(4096, 4096).unwrap(), [5; 4096], "no SIGBUS");
        }
        let script = "mkdir x && rmdir x && pwd -P";
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", script]).current_dir(t.path("d/e")).output().unwrap();
        assert_eq!(output.stdout.trim_ascii_end(), here.as_bytes());
    });
}

#[test]
fn what_the_kernel_holds_is_removed_as_it_is() {
    each("what_the_kernel_holds_is_removed_as_it_is", |t| {
        let_others_in(t);
        let removed_by_another = |name| {
            let mut rm = Command::new("rm");
            rm.arg("-f").arg(t.path(name)).uid(1000).gid(1000).output().unwrap().status.success()
        };
        fs::create_dir(t.path("d")).unwrap();
        // Written here: the reply to its creation told a size of 0.
        let mut map = PosixFile::create(&t.path("d/f")).unwrap();
        map.write(0, &[5; 8192]).unwrap();
        assert!(!removed_by_another("d/f"));
        assert_eq!(map.map_read(4096, 4096).unwrap(), [5; 4096], "no SIGBUS");
        assert_eq!(fs::metadata(t.path("d/f")).unwrap().len(), 8192);
        // Grown elsewhere, and seen here.
        File::create(t.path("d/g")).unwrap();
        elsewhere(t, async |fs, who| {
            let flags = saker_client::OpenFlags::from_linux(libc::O_WRONLY);
            let (file, _) = fs.open(who, &at("d/g"), flags).await.unwrap();
            file.write(0, &[6; 8192]).await.unwrap();
            file.flush().await.unwrap();
            file.release().await;
        });
        let g = File::open(t.path("d/g")).unwrap();
        assert!(!removed_by_another("d/g"));
        assert_eq!(g.metadata().unwrap().len(), 8192);
        fs::remove_file(t.path("d/g")).unwrap();
        assert_eq!(g.metadata().unwrap().nlink(), 0);
        // One of two names.
        File::create(t.path("d/one")).unwrap();
        fs::hard_link(t.path("d/one"), t.path("d/two")).unwrap();
        fs::remove_file(t.path("d/one")).unwrap();
        assert_eq!(fs::metadata(t.path("d/two")).unwrap().nlink(), 1);
        fs::remove_file(t.path("d/two")).unwrap();
        // Another client has put something else there.
        for name in ["file", "other"] {
            File::create(t.path("d").join(name)).unwrap();
        }
        fs::create_dir(t.path("d/dir")).unwrap();
        fs::create_dir(t.path("d/full")).unwrap();
        elsewhere(t, async |fs, who| {
            for (name, other) in [("d/file", "d/dir"), ("d/other", "d/full")] {
                fs.unlink(who, &at(name)).await.unwrap();
                fs.rmdir(who, &at(other)).await.unwrap();
                fs.mkdir(who, &at(name), 0o755).await.unwrap();
                fs.mknod(who, &at(other), libc::S_IFREG | 0o644, 0).await.unwrap();
            }
            fs.mkdir(who, &at("d/other/in"), 0o755).await.unwrap();
        });
        assert_eq!(errno(fs::remove_file(t.path("d/file"))), libc::EISDIR);
        assert_eq!(errno(fs::remove_dir(t.path("d/dir"))), libc::ENOTDIR);
        fs::remove_dir(t.path("d/file")).unwrap();
        fs::remove_file(t.path("d/dir")).unwrap();
        assert_eq!(errno(fs::remove_dir(t.path("d/other"))), libc::ENOTEMPTY);
        elsewhere(t, async |fs, who| fs.unlink(who, &at("d/full")).await.map(drop).unwrap());
        assert_eq!(errno(fs::remove_file(t.path("d/full"))), libc::ENOENT);
    });
}

#[test]
fn permissions_are_those_of_the_whole_path() {
    each_keeping("permissions_are_those_of_the_whole_path", |t| {
        fs::create_dir_all(t.path("open/closed/in")).unwrap();
        fs::write(t.path("open/closed/in/f"), "secret").unwrap();
        fs::set_permissions(t.path("open/closed"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(t.path("tmp")).unwrap();
        fs::set_permissions(t.path("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(t.path("tmp/of-root"), "x").unwrap();
        let_others_in(t);
        let as_user = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).current_dir(&t.point).uid(1000).gid(1000);
            let output = shell.output().unwrap();
            (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        if t.keeps_names {
            // What the kernel keeps from before shuts nobody out, though not for longer because others
            // use it meanwhile (SEMANTICS.md).
            wait::until("the directory is closed", || {
                assert_eq!(read_open(&t.path("open/closed/in/f")), b"secret");
                as_user("cat open/closed/in/f").0 != 0
            });
        }
        for drop in [true, false] {
            if drop {
                fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            }
            assert_eq!(read_open(&t.path("open/closed/in/f")), b"secret");
            for script in [
                "cat open/closed/in/f",
                "stat open/closed/in",
                "cd open/closed/in",
                "touch open/closed/in/f",
                "mkdir open/closed/in/x",
                "rm -f tmp/of-root",
                "mv tmp/of-root tmp/mine",
            ] {
                let (code, err) = as_user(script);
                assert!(code != 0, "{script} must fail");
                let denied = err.contains("denied")
                    || err.contains("not permitted")
                    || err.contains("can't cd");
                assert!(denied, "{script}: {err}");
            }
            let (code, err) = as_user("echo y > tmp/own && mv tmp/own tmp/own2 && rm tmp/own2");
            assert_eq!(code, 0, "{err}");
        }
        assert!(t.path("tmp/of-root").exists());
    });
}

/// Renames as somebody who may not search `m/w`, but has `m/w/z` open.
#[test]
fn a_rename_goes_by_both_of_its_paths() {
    each("a_rename_goes_by_both_of_its_paths", |t| {
        for (dir, mode) in [("pub", 0o777), ("m", 0o777), ("m/w", 0o700), ("m/w/z", 0o777)] {
            fs::create_dir(t.path(dir)).unwrap();
            fs::set_permissions(t.path(dir), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(t.path("m/w/z/s")).unwrap();
        fs::set_permissions(t.path("m/w/z/s"), fs::Permissions::from_mode(0o777)).unwrap();
        for file in ["pub/x", "m/w/z/f", "m/w/z/s/f"] {
            fs::write(t.path(file), file).unwrap();
        }
        symlink("m", t.path("l")).unwrap();
        let_others_in(t);
        let path = |path: &str| t.path(path).to_str().unwrap().to_owned();
        let open = File::open(t.path("m/w/z")).unwrap();
        let rename = |from: &str, to: &str| {
            // The mount knows all of these.
            for known in ["m/w/z/s", "l/w/z/s", "pub"] {
                fs::metadata(t.path(known)).unwrap();
            }
            let absolute = |name: &str| match name.strip_prefix('/') {
                Some(below) => path(below),
                None => name.to_owned(),
            };
            let (from, to) = (absolute(from), absolute(to));
            thread::scope(|scope| {
                scope
                    .spawn(|| {
                        as_other(|| {
                            // An earlier walk of the same thread.
                            assert_eq!(errno(fs::metadata(path("m/w/z/s/f"))), libc::EACCES);
                            let renamed = rustix::fs::renameat(&open, from, &open, to);
                            renamed.map_err(|e| e.raw_os_error())
                        })
                    })
                    .join()
                    .unwrap()
            })
        };
        for (from, to) in [
            ("/pub/x", "/l/w/z/y"),
            ("/pub/x", "/m/w/z/y"),
            ("/l/w/z/f", "/pub/y"),
            ("/m/w/z/f", "/pub/y"),
            ("/m/w/z/f", "g"),
            ("f", "/m/w/z/g"),
            ("f", "/l/w/z/g"),
            ("/m/w/z/f", "s/../g"),
            ("s/f", "/m/w/z/s/g"),
            ("/m/w/z/s/f", "s/g"),
            ("/m/w/z/s", "s/f/g"),
            ("/m/w/z/f", "f"),
            ("f", "/m/w/z/f"),
            ("s/f", "/m/w/z/s/f"),
            ("/m/w/z/s/f", "s/f"),
        ] {
            assert_eq!(rename(from, to), Err(libc::EACCES), "{from} to {to}");
        }
        for (from, to) in [
            ("f", "g"),
            ("g", "/pub/f"),
            ("/pub/f", "f"),
            ("s/f", "/pub/g"),
            ("/pub/g", "s/f"),
            ("s/f", "s/../g"),
            ("g", "s/f"),
            ("f", "f"),
        ] {
            assert_eq!(rename(from, to), Ok(()), "{from} to {to}");
        }
    });
}

/// Runs this as another user, for this thread alone.
fn as_other<R>(f: impl FnOnce() -> R) -> R {
    for call in [libc::SYS_setfsgid, libc::SYS_setfsuid] {
        // SAFETY: it takes a number, and is about this thread.
        unsafe { libc::syscall(call, 1000) };
    }
    f()
}

/// Each request of the kernel makes its caller wait; how often that was in so many opens.
fn waits_of_opens(file: &Path, opens: usize) -> usize {
    let waits = || {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<usize>().unwrap()
    };
    let before = waits();
    for _ in 0..opens {
        drop(rustix::fs::open(file, OFlags::RDONLY, Mode::empty()).unwrap());
    }
    waits() - before
}

#[test]
fn names_on_the_way_are_not_asked_for_while_there_is_a_lease() {
    const OPENS: usize = 400;
    const DEPTH: usize = 8;
    if !can_mount("names_on_the_way_are_not_asked_for_while_there_is_a_lease") {
        return;
    }
    for transport in ["dev", "uring"] {
        let waits = ["off", "all", "hot"].map(|leases| {
            let t = Mounted::start("bpf", &format!("transport={transport},leases={leases}"))?;
            let dir = t.path(&["d"; DEPTH].join("/"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("f"), "text").unwrap();
            // Real time: what was changed within the last second is not worth a lease.
            thread::sleep(Duration::from_millis(1_100));
            Some(waits_of_opens(&dir.join("f"), OPENS))
        });
        let [Some(off), Some(all), Some(hot)] = waits else { continue };
        // A LOOKUP for each directory, one for the file, and OPEN.
        assert!(off >= OPENS * DEPTH, "{transport}: {off}");
        assert!(all < OPENS * DEPTH / 2, "{transport}: {all}, without {off}");
        // Too short a time for what is worth one anyhow.
        assert!(hot < OPENS * DEPTH / 2, "{transport}: {hot}, without {off}");
    }
}

/// Is set when it goes.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Long enough for its name to be worth a lease.
fn use_for_a_while(t: &Mounted, dir: &str) {
    let end = Instant::now() + Duration::from_millis(800);
    while Instant::now() < end {
        assert_eq!(errno(File::open(t.path(dir).join("f"))), libc::ENOENT);
    }
}

/// What another client does to a directory that is in use here is seen here as soon as it is done,
/// also by what the kernel answers by itself.
#[test]
fn a_directory_in_use_is_changed_for_all_at_once() {
    const ROUNDS: u32 = 3;
    // After a change that had to wait no lease is given for a while, and then short ones.
    const PAUSE: Duration = Duration::from_secs(4);
    each("a_directory_in_use_is_changed_for_all_at_once", |t| {
        fs::create_dir_all(t.path("a/b/c")).unwrap();
        fs::write(t.path("a/b/c/f"), "old").unwrap();
        let_others_in(t);
        let others_may = || {
            let mut stat = Command::new("stat");
            stat.arg(t.path("a/b/c")).uid(1000).gid(1000).output().unwrap().status.success()
        };
        let fs_of = t.cluster.connect();
        let who = Caller::root();
        let flags = saker_client::OpenFlags::from_linux(libc::O_CREAT | libc::O_WRONLY);
        let renew = async |round: u32| {
            fs_of.mkdir(&who, &at("a/b"), 0o755).await.unwrap();
            fs_of.mkdir(&who, &at("a/b/c"), 0o755).await.unwrap();
            let (file, _) = fs_of.create(&who, &at("a/b/c/f"), 0o644, flags).await.unwrap();
            file.write(0, round.to_string().as_bytes()).await.unwrap();
            file.flush().await.unwrap();
            file.release().await;
            fs_of.lookup(&who, &at("a/b")).await.unwrap().attr.id
        };
        let idle = AtomicBool::new(false);
        let usage = || {
            while !idle.load(Ordering::Relaxed) {
                // It may be missing for a moment.
                let _ = File::open(t.path("a/b/c/f"));
                let _ = fs::metadata(t.path("a/b/c"));
            }
        };
        thread::scope(|threads| {
            // Also when an assertion fails.
            let _end = OnDrop(&idle);
            (0..2).for_each(|_| _ = threads.spawn(usage));
            for round in 0..ROUNDS {
                // Real time: leases are given meanwhile.
                thread::sleep(PAUSE);
                let moved = format!("a/moved{round}");
                fs_of.block_on(async {
                    fs_of.rename(&who, &at("a/b"), &at(&moved), false, &[]).await.unwrap();
                });
                assert_eq!(errno(fs::metadata(t.path("a/b"))), libc::ENOENT);
                assert_eq!(errno(fs::metadata(t.path("a/b/c"))), libc::ENOENT);
                // The kernel would say EISDIR, and EINVAL, of a directory that it keeps.
                drop(File::create_new(t.path("a/b")).unwrap());
                assert_eq!(errno(fs::read_link(t.path("a/b"))), libc::EINVAL);
                fs::remove_file(t.path("a/b")).unwrap();
                assert!(fs::metadata(t.path(&moved).join("c/f")).is_ok());
                let id = fs_of.block_on(renew(round));
                assert_eq!(fs::metadata(t.path("a/b")).unwrap().ino(), id);
                let path = rustix::fs::open(t.path("a/b"), OFlags::PATH, Mode::empty()).unwrap();
                assert_eq!(rustix::fs::fstat(&path).unwrap().st_ino, id);
                assert_eq!(read_open(&t.path("a/b/c/f")), round.to_string().as_bytes());
                // And what hides a name.
                let mode = |mode| saker_client::SetAttr { mode: Some(mode), ..Default::default() };
                let chmod = async |bits| fs_of.setattr(&who, &at("a"), &mode(bits)).await.unwrap();
                assert!(others_may());
                fs_of.block_on(chmod(0o700));
                assert!(!others_may(), "nobody else may walk there");
                fs_of.block_on(chmod(0o755));
            }
        });
        fs_of.close().unwrap();
        let waits = t.cluster.metrics_of("coordinator", &["saker_coordinator_name_waits_total"]);
        eprintln!("{} of {} changes waited", waits, ROUNDS * 2);
        assert!(waits >= f64::from(ROUNDS), "the names were in use");
    });
}

/// The same of what is done through the mount that uses it.
#[test]
fn a_directory_in_use_is_moved_and_removed_by_its_mount() {
    each("a_directory_in_use_is_moved_and_removed_by_its_mount", |t| {
        for _ in 0..2 {
            fs::create_dir_all(t.path("a/b/sub/sub")).unwrap();
            use_for_a_while(t, "a/b/sub/sub");
            fs::rename(t.path("a/b"), t.path("a/c")).unwrap();
            assert_eq!(errno(fs::metadata(t.path("a/b/sub"))), libc::ENOENT);
            assert!(fs::metadata(t.path("a/c/sub/sub")).unwrap().is_dir());
            // At once, by another client: what is below it is not kept any longer, either.
            elsewhere(t, async |fs, who| {
                fs.rename(who, &at("a/c"), &at("a/d"), false, &[]).await.unwrap();
            });
            assert_eq!(errno(fs::metadata(t.path("a/c/sub/sub"))), libc::ENOENT);
            assert_eq!(errno(fs::metadata(t.path("a/c/sub"))), libc::ENOENT);
            use_for_a_while(t, "a/d/sub/sub");
            fs::remove_dir(t.path("a/d/sub/sub")).unwrap();
            assert_eq!(errno(fs::metadata(t.path("a/d/sub/sub"))), libc::ENOENT);
            elsewhere(t, async |fs, who| {
                let at = at("a/d/sub/sub");
                fs.mknod(who, &at, libc::S_IFREG | 0o644, 0).await.unwrap();
            });
            assert_eq!(errno(File::create(t.path("a/d/sub/sub/f"))), libc::ENOTDIR);
            fs::remove_file(t.path("a/d/sub/sub")).unwrap();
            fs::remove_dir(t.path("a/d/sub")).unwrap();
            fs::remove_dir(t.path("a/d")).unwrap();
        }
    });
}
