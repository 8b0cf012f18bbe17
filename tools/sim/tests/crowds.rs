//! Where threads wait for one another to create files in one directory, files are made by the OPEN that follows a
//! MKNOD. All that open(2) promises is as before. Needs root, /dev/fuse and hints by BPF.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use saker_sim::cluster::{Cluster, OwnMount, Shape, can_mount, line_with};

const THREADS: usize = 8;
const USER: u32 = 1000;

struct Mounts {
    /// Where files are made by CREATE.
    other: OwnMount,
    cluster: Cluster,
}

impl Mounts {
    /// Two mounts, one of which has seen a crowd. `None` where there are no hints by BPF.
    fn start(test: &str) -> Option<Mounts> {
        if !can_mount(test) {
            return None;
        }
        let cluster = Cluster::start(Shape { mount: true, ..Shape::default() });
        let log = cluster.dir().join("log/mount-0.log");
        let said = line_with(&log, "shortcut: ");
        if !said.contains("hints by BPF") {
            assert!(std::env::var_os("SAKER_REQUIRE_BPF").is_none(), "{said}");
            eprintln!("{test} skipped: {said}");
            return None;
        }
        let t = Mounts { other: cluster.own_mount("other", "rw"), cluster };
        t.other.said("shortcut: ");
        let dir = t.path("crowd");
        fs::create_dir(&dir).unwrap();
        let mut files = 0;
        let deadline = Instant::now() + Duration::from_secs(60);
        while !fs::read_to_string(&log).unwrap().contains("files are made by OPEN from now on") {
            assert!(Instant::now() < deadline, "no crowd is seen");
            create_all(&dir, files..files + 100);
            files += 100;
        }
        assert_eq!(fs::read_dir(t.other("crowd")).unwrap().count(), THREADS * files);
        Some(t)
    }

    /// Requests that open what is there, which a file needs that was not made by an OPEN.
    fn opens(&self) -> usize {
        self.cluster.metric_of("mnode", "saker_mnode_requests_total{op=\"open\"}") as usize
    }

    /// Where files are made by OPEN.
    fn path(&self, name: &str) -> PathBuf {
        self.cluster.mount().join(name)
    }

    /// The same through the other mount.
    fn other(&self, name: &str) -> PathBuf {
        self.other.path(name)
    }

    /// A new directory, in which everybody may do everything.
    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
        dir
    }
}

/// All threads create files in one directory, of these numbers each; each has its name as its content.
fn create_all(dir: &Path, files: Range<usize>) {
    at_once(|n| {
        for i in files.clone() {
            let name = format!("f{n}-{i}");
            let mut file = new(&dir.join(&name)).unwrap();
            file.write_all(name.as_bytes()).unwrap();
        }
    });
}

/// Runs `f` in all threads, which begin together.
fn at_once(f: impl Fn(usize) + Sync) {
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (start, f) = (&start, &f);
            scope.spawn(move || {
                start.wait();
                f(n);
            });
        }
    });
}

fn new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Runs `f` as a user without privileges, with a umask.
fn as_user<T: Send>(umask: u32, f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: changes this thread only, which ends with `f`.
            unsafe {
                assert_eq!(libc::unshare(libc::CLONE_FS), 0);
                libc::umask(umask);
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, USER, USER, USER), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, USER, USER, USER), 0);
            }
            f()
        });
        thread.join().unwrap()
    })
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn what_a_crowd_creates_is_there() {
    let Some(t) = Mounts::start("what_a_crowd_creates_is_there") else { return };
    let dir = t.dir("dir");
    let (done, looked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let before = t.opens();
    thread::scope(|scope| {
        // Others look on: through this mount and the other one.
        for dir in [dir.clone(), t.other("dir")] {
            let (done, looked) = (&done, &looked);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    for entry in fs::read_dir(&dir).unwrap() {
                        let entry = entry.unwrap();
                        // It may be gone by then only if it was never there.
                        let stat = fs::metadata(entry.path()).unwrap();
                        assert_eq!(stat.ino(), entry.metadata().unwrap().ino());
                        looked.fetch_add(1, Ordering::Relaxed);
                    }
                    // Names that are about to be made.
                    for n in 0..THREADS {
                        let _ = fs::metadata(dir.join(format!("f{n}-300")));
                    }
                }
            });
        }
        create_all(&dir, 0..400);
        done.store(true, Ordering::Relaxed);
    });
    assert!(looked.load(Ordering::Relaxed) > 0);
    // None, but where a note was overwritten.
    assert!(t.opens() - before < THREADS * 40, "{}", t.opens() - before);
    for dir in [dir, t.other("dir")] {
        let mut count = 0;
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            assert_eq!(fs::read_to_string(entry.path()).unwrap(), name);
            count += 1;
        }
        assert_eq!(count, THREADS * 400);
    }
}

#[test]
fn a_new_file_is_what_its_creator_asked_for() {
    let Some(t) = Mounts::start("a_new_file_is_what_its_creator_asked_for") else { return };
    let dir = t.dir("dir");
    // Who creates a file may write to it, whatever its mode says to others, and to later opens.
    let name = dir.join("read-only");
    as_user(0o027, || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o446);
        let mut file = options.open(&name).unwrap();
        file.write_all(b"x").unwrap();
        let stat = file.metadata().unwrap();
        assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.gid()), (0o440, USER, USER));
        assert_eq!((stat.len(), stat.nlink()), (1, 1));
        assert_eq!(stat.ino(), fs::metadata(t.other("dir/read-only")).unwrap().ino());
        assert_eq!(errno(options.open(&name)), Some(libc::EACCES));
    });
    // Set-user-id stays, also with O_TRUNC.
    as_user(0, || {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o4755);
        let file = file.open(dir.join("suid")).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o4755);
    });
    // A directory gives its group.
    std::os::unix::fs::chown(&dir, None, Some(7)).unwrap();
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o2777)).unwrap();
    as_user(0, || assert_eq!(new(&dir.join("group")).unwrap().metadata().unwrap().gid(), 7));
    // It can be renamed, linked, removed while it is open.
    let [from, to, link] = ["from", "to", "link"].map(|name| dir.join(name));
    let mut file = new(&from).unwrap();
    fs::rename(&from, &to).unwrap();
    fs::hard_link(&to, &link).unwrap();
    file.write_all(b"moved").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 2);
    fs::remove_file(&to).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    file.sync_all().unwrap();
    assert_eq!(fs::read_to_string(t.other("dir/link")).unwrap(), "moved");
    fs::remove_file(&link).unwrap();
    file.write_all(b"!").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(errno(fs::metadata(t.other("dir/link"))), Some(libc::ENOENT));
}

#[test]
fn one_of_many_makes_a_file() {
    let Some(t) = Mounts::start("one_of_many_makes_a_file") else { return };
    let dir = t.dir("dir");
    // Threads of both mounts are after the same names: O_EXCL lets one of them have each.
    const NAMES: usize = 300;
    let won: Vec<AtomicUsize> = (0..NAMES).map(|_| AtomicUsize::new(0)).collect();
    let other = t.other("dir");
    at_once(|n| {
        let dir = if n < THREADS / 2 { &dir } else { &other };
        for (i, won) in won.iter().enumerate() {
            match new(&dir.join(format!("one{i}"))) {
                Ok(_) => {
                    won.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "one{i}"),
            }
        }
    });
    for (i, won) in won.iter().enumerate() {
        assert_eq!(won.load(Ordering::Relaxed), 1, "one{i}");
    }
    // Without, all of them open it.
    at_once(|n| {
        let dir = if n < THREADS / 2 { &dir } else { &other };
        for i in 0..NAMES {
            let mut options = OpenOptions::new();
            let file = options.append(true).create(true).open(dir.join(format!("all{i}")));
            file.unwrap_or_else(|e| panic!("all{i}: {e}")).write_all(&[n as u8]).unwrap();
        }
    });
    for i in 0..NAMES {
        let mut all = fs::read(dir.join(format!("all{i}"))).unwrap();
        all.sort_unstable();
        assert_eq!(all, (0..THREADS as u8).collect::<Vec<_>>(), "all{i}");
    }
}

#[test]
fn a_lock_file_is_had_by_one_at_a_time() {
    let Some(t) = Mounts::start("a_lock_file_is_had_by_one_at_a_time") else { return };
    let dir = t.dir("dir");
    let other = t.other("dir");
    let held = AtomicUsize::new(0);
    at_once(|n| {
        let path = if n < THREADS / 2 { &dir } else { &other }.join("lock");
        let mut had = 0;
        // If it were left by somebody who was told that it is not his, nobody would ever have it again.
        let deadline = Instant::now() + Duration::from_secs(120);
        while had < 40 {
            assert!(Instant::now() < deadline, "nobody has the lock");
            match new(&path) {
                Ok(_) => {
                    assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0);
                    held.fetch_sub(1, Ordering::SeqCst);
                    fs::remove_file(&path).unwrap();
                    had += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
                    // Others look on.
                    let _ = fs::metadata(&path);
                }
            }
        }
    });
}

#[test]
fn what_cannot_be_made_is_refused() {
    let Some(t) = Mounts::start("what_cannot_be_made_is_refused") else { return };
    let dir = t.dir("dir");
    let open = |path: &Path, flags: i32| {
        let flags = OFlags::from_bits_retain(flags as u32);
        rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).map_err(io::Error::from)
    };
    let make = libc::O_CREAT | libc::O_WRONLY;
    let closed = t.dir("closed");
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o755)).unwrap();
    as_user(0, || assert_eq!(errno(open(&closed.join("f"), make)), Some(libc::EACCES)));
    assert_eq!(errno(fs::metadata(closed.join("f"))), Some(libc::ENOENT));
    let long = dir.join("n".repeat(256));
    assert_eq!(errno(open(&long, make)), Some(libc::ENAMETOOLONG));
    assert_eq!(errno(open(&dir.join("no/f"), make)), Some(libc::ENOENT));
    assert_eq!(errno(open(&dir, make)), Some(libc::EISDIR));
    // By the other mount: so the kernel here does not know.
    fs::create_dir(t.other("dir/sub")).unwrap();
    assert_eq!(errno(open(&dir.join("sub"), make)), Some(libc::EISDIR));
    assert_eq!(errno(open(&dir.join("sub"), make | libc::O_EXCL)), Some(libc::EEXIST));
    fs::write(t.other("dir/there"), "there").unwrap();
    assert_eq!(errno(open(&dir.join("there"), make | libc::O_EXCL)), Some(libc::EEXIST));
    open(&dir.join("there"), make).unwrap();
    assert_eq!(fs::read_to_string(dir.join("there")).unwrap(), "there");
    std::os::unix::fs::symlink("target", t.other("dir/link")).unwrap();
    assert_eq!(errno(open(&dir.join("link"), make | libc::O_EXCL)), Some(libc::EEXIST));
    fs::write(dir.join("link"), "through").unwrap();
    assert_eq!(fs::read_to_string(t.other("dir/target")).unwrap(), "through");
    // Its directory goes away.
    let gone = t.dir("gone");
    let inside = File::open(&gone).unwrap();
    fs::remove_dir(t.other("gone")).unwrap();
    let made = rustix::fs::openat(&inside, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU);
    assert_eq!(made.err(), Some(rustix::io::Errno::NOENT));
}

#[test]
fn other_ways_to_make_a_file_are_as_before() {
    let Some(t) = Mounts::start("other_ways_to_make_a_file_are_as_before") else { return };
    let dir = t.dir("dir");
    // mknod(2): nobody opens it.
    let node = dir.join("node");
    let mknod =
        |path: &Path, kind| rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o400), 0);
    mknod(&node, FileType::RegularFile).unwrap();
    assert_eq!(fs::metadata(t.other("dir/node")).unwrap().mode(), 0o100_400);
    assert_eq!(mknod(&node, FileType::RegularFile).err(), Some(rustix::io::Errno::EXIST));
    let own = dir.join("own");
    as_user(0, || {
        mknod(&own, FileType::RegularFile).unwrap();
        assert_eq!(errno(OpenOptions::new().write(true).open(&own)), Some(libc::EACCES));
    });
    mknod(&dir.join("fifo"), FileType::Fifo).unwrap();
    // openat2(2), which has its flags in memory.
    let openat2 = |name: &str, flags| {
        let flags = OFlags::CREATE | OFlags::WRONLY | flags;
        rustix::fs::openat2(CWD, dir.join(name), flags, Mode::RUSR, ResolveFlags::empty())
    };
    openat2("second", OFlags::EXCL).unwrap();
    assert_eq!(openat2("second", OFlags::EXCL).err(), Some(rustix::io::Errno::EXIST));
    as_user(0, || openat2("third", OFlags::empty()).map(drop)).unwrap();
    assert_eq!(
        as_user(0, || openat2("third", OFlags::empty()).err()),
        Some(rustix::io::Errno::ACCESS)
    );
    // creat(2), and files without a name that are given one.
    let path = std::ffi::CString::new(dir.join("creat").to_str().unwrap()).unwrap();
    // SAFETY: the path ends in NUL; the descriptor is nobody else's.
    let mut file = unsafe { File::from_raw_fd(libc::creat(path.as_ptr(), 0o600)) };
    file.write_all(b"creat").unwrap();
    drop(file);
    assert_eq!(fs::read_to_string(t.other("dir/creat")).unwrap(), "creat");
    let nameless = rustix::fs::open(&dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RWXU).unwrap();
    let fd = format!("/proc/self/fd/{}", nameless.as_raw_fd());
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    rustix::fs::linkat(CWD, fd, CWD, dir.join("named"), follow).unwrap();
    for name in ["node", "own", "fifo", "second", "third", "creat", "named"] {
        fs::symlink_metadata(t.other("dir").join(name)).unwrap();
    }
}

#[test]
fn who_dies_while_it_creates_leaves_names_that_can_be_used() {
    let Some(t) = Mounts::start("who_dies_while_it_creates_leaves_names_that_can_be_used") else {
        return;
    };
    let dir = t.dir("dir");
    for round in 0..20 {
        // A process of its own, since only all threads of one can be killed.
        let script = "for i in $(seq 2000); do : > $0/$1-$i; done";
        let mut children: Vec<_> = (0..4)
            .map(|n| {
                let name = format!("{round}-{n}");
                Command::new("sh").args(["-c", script]).arg(&dir).arg(name).spawn().unwrap()
            })
            .collect();
        thread::sleep(Duration::from_millis(50 + round * 7));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let next = |n: usize| {
            let is_free = |i: &usize| !t.other(&format!("dir/{round}-{n}-{i}")).exists();
            (1..).find(is_free).unwrap()
        };
        for n in 0..4 {
            let name = format!("dir/{round}-{n}-{}", next(n));
            fs::write(t.other(&name), "other").unwrap();
            assert_eq!(fs::read_to_string(t.path(&name)).unwrap(), "other");
            let name = format!("dir/{round}-{n}-{}", next(n));
            new(&t.path(&name)).unwrap();
        }
    }
}

/// A listener that is asked before anything in a mount is opened (fanotify(7)), and opens it itself by that.
struct Listener(OwnedFd);

impl Listener {
    /// `None` where the kernel has none.
    fn new(mount: &Path) -> Option<Listener> {
        let path = std::ffi::CString::new(mount.to_str().unwrap()).unwrap();
        // SAFETY: the descriptor is nobody else's; the path ends in NUL.
        unsafe {
            let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
            let fd = libc::fanotify_init(flags, libc::O_RDONLY as u32);
            if fd < 0 {
                return None;
            }
            let listener = Listener(OwnedFd::from_raw_fd(fd));
            let how = libc::FAN_MARK_ADD | libc::FAN_MARK_MOUNT;
            let marked =
                libc::fanotify_mark(fd, how, libc::FAN_OPEN_PERM, libc::AT_FDCWD, path.as_ptr());
            (marked == 0).then_some(listener)
        }
    }

    /// Allows all opens, each after a while, until `done`.
    fn run(&self, done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {
            let mut events = [0_u8; 4096];
            let Ok(len) = rustix::io::read(&self.0, &mut events) else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            for event in events[..len].chunks_exact(size_of::<libc::fanotify_event_metadata>()) {
                // SAFETY: the kernel writes whole structures, of any alignment.
                let event = unsafe {
                    event.as_ptr().cast::<libc::fanotify_event_metadata>().read_unaligned()
                };
                thread::sleep(Duration::from_millis(3));
                let answer = libc::fanotify_response { fd: event.fd, response: libc::FAN_ALLOW };
                // SAFETY: a plain structure; the descriptor came with the event.
                unsafe {
                    let len = size_of::<libc::fanotify_response>();
                    libc::write(self.0.as_raw_fd(), (&raw const answer).cast(), len);
                    libc::close(event.fd);
                }
            }
        }
    }
}

#[test]
fn who_hears_of_a_file_finds_it() {
    let Some(t) = Mounts::start("who_hears_of_a_file_finds_it") else { return };
    let dir = t.dir("dir");
    let heard = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&heard, &dir, WatchFlags::CREATE).unwrap();
    let done = AtomicBool::new(false);
    let listen = || {
        let (mut there, mut missing) = (0, 0);
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&heard, &mut buffer);
        loop {
            let last = done.load(Ordering::SeqCst);
            match events.next() {
                Ok(event) => {
                    let name = OsStr::from_bytes(event.file_name().unwrap().to_bytes());
                    match fs::metadata(dir.join(name)) {
                        Ok(_) => there += 1,
                        Err(_) => missing += 1,
                    }
                }
                Err(rustix::io::Errno::AGAIN) if last => return (there, missing),
                Err(rustix::io::Errno::AGAIN) => thread::yield_now(),
                Err(errno) => panic!("{errno}"),
            }
        }
    };
    // It is asked between MKNOD and OPEN, and lets both wait.
    let Some(asked) = Listener::new(&t.path("")) else {
        eprintln!("skipped: no fanotify");
        return;
    };
    let (there, missing) = thread::scope(|scope| {
        scope.spawn(|| asked.run(&done));
        let hears = scope.spawn(listen);
        create_all(&dir, 0..20);
        done.store(true, Ordering::SeqCst);
        hears.join().unwrap()
    });
    assert_eq!(there + missing, 20 * THREADS);
    // Who looks does not wait for ever for a thread that makes its file late.
    assert!(missing <= there / 10, "{missing} of {} were not there yet", there + missing);
}

#[test]
fn who_is_asked_before_an_open_does_not_make_the_file() {
    let Some(t) = Mounts::start("who_is_asked_before_an_open_does_not_make_the_file") else {
        return;
    };
    let dir = t.dir("dir");
    let Some(listener) = Listener::new(&t.path("")) else {
        eprintln!("skipped: no fanotify");
        return;
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| listener.run(&done));
        let made = thread::scope(|scope| {
            let makers = (0..4).map(|n| {
                let dir = &dir;
                let make = move || {
                    for i in 0..20 {
                        let mut options = OpenOptions::new();
                        options.write(true).create_new(true).mode(0o400);
                        let mut file = options.open(dir.join(format!("f{n}-{i}")))?;
                        file.write_all(b"x")?;
                    }
                    io::Result::Ok(())
                };
                scope.spawn(move || as_user(0, make))
            });
            let makers: Vec<_> = makers.collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect::<io::Result<Vec<_>>>()
        });
        done.store(true, Ordering::Relaxed);
        made.unwrap();
    });
    drop(listener);
    for entry in fs::read_dir(t.other("dir")).unwrap() {
        let stat = entry.unwrap().metadata().unwrap();
        assert_eq!((stat.uid(), stat.mode() & 0o7777, stat.len()), (USER, 0o400, 1));
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 80);
}
