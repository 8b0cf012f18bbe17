//! Transport and mount, for real, with a tiny tree instead of a cluster.
//!
//! Needs `/dev/fuse`, and `fusermount3` where it is not run as root; without the device the tests
//! say so and pass.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::{Pid, Signal};
use saker_client::Reactor;
use saker_fuse::abi::{AttrOut, Dirent, EntryOut, Opcode, OpenOut, ReadIn};
use saker_fuse::{Device, Dispatch, FuseTransport, Mode, Reply, Request, Shape, TransportInUse};
use saker_rpc::{Hello, NodeNumber, RoleKind, Transport as _};
use saker_types::time::stamp_of_unix_ns;
use saker_types::{Attr, Errno, Result};
use zerocopy::IntoBytes;

use crate::mount::{FS_TYPE, Mounted};
use crate::options::MountOptions;
use crate::{attr, mount, ops};

const THREADS: usize = 3;
const FILES: u64 = 200;
/// Node of the first file; file `n` has the content of `content(n)`.
const FIRST: u64 = 100;
/// Reading this file panics.
const PANICS: u64 = 13;
/// Reading these takes a while.
const SLOW: std::ops::Range<u64> = 20..60;
const SLOW_TIME: Duration = Duration::from_millis(200);
/// Opening this one takes as long as `Tree::held`.
const HANGS: u64 = 77;

/// A read-only directory of files.
struct Tree {
    /// For its clock.
    reactor: Arc<Reactor>,
    reading: AtomicUsize,
    reading_max: AtomicUsize,
    serving: OnceLock<TransportInUse>,
    /// OPENs of `HANGS` that have begun.
    hanging: AtomicUsize,
    held: AtomicBool,
    /// Answers that were taken back.
    undone: AtomicUsize,
}

/// The kernel's switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

fn has_uring() -> bool {
    fs::read_to_string(SWITCH).is_ok_and(|on| on.trim() == "Y")
}

/// Runs `test` over each transport that there is.
fn each(test: impl Fn(Mode)) {
    test(Mode::Dev);
    if has_uring() {
        test(Mode::Uring);
    } else {
        assert!(std::env::var_os("SAKER_REQUIRE_URING").is_none(), "{SWITCH} is off");
        eprintln!("io_uring skipped: {SWITCH} is off");
    }
}

fn content(n: u64) -> Bytes {
    let line = format!("this is file {n}\n");
    line.repeat(1 + n as usize * 100).into()
}

fn attributes(node: u64) -> Option<Attr> {
    let file = || node.checked_sub(FIRST).filter(|&n| n < FILES);
    let (mode, size) = match node {
        1 => (0o040_755, 0),
        _ => (0o100_644, content(file()?).len() as u64),
    };
    Some(Attr { id: node, mode, size, nlink: 1, mtime_ns: stamp_of_unix_ns(-1), ..Attr::default() })
}

impl Tree {
    async fn answer(&self, request: &Request) -> Result<Reply> {
        let node = request.header.nodeid;
        match Opcode::from_u32(request.header.opcode) {
            Some(Opcode::Getattr) => {
                let attr = attr::body(&attributes(node).ok_or(Errno::ESTALE)?);
                Ok(Reply::of(&AttrOut { attr, ..AttrOut::default() }))
            }
            Some(Opcode::Lookup) => {
                let name = request.body().name()?;
                let name = std::str::from_utf8(&name).unwrap();
                let n = name.strip_prefix("file-").and_then(|n| n.parse::<u64>().ok());
                let attr = n.and_then(|n| attributes(FIRST + n)).ok_or(Errno::ENOENT)?;
                let (nodeid, attr) = (attr.id, attr::body(&attr));
                Ok(Reply::of(&EntryOut { nodeid, attr, ..EntryOut::default() }))
            }
            Some(Opcode::Open) if node == FIRST + HANGS => {
                self.hanging.fetch_add(1, Ordering::SeqCst);
                while self.held.load(Ordering::SeqCst) {
                    self.reactor.with_local(|local| local.sleep(Duration::from_millis(5))).await;
                }
                Ok(Reply::of(&OpenOut::default()))
            }
            Some(Opcode::Open | Opcode::Opendir) => Ok(Reply::of(&OpenOut::default())),
            Some(Opcode::Read) => self.read(node - FIRST, &request.body().fixed()?).await,
            Some(Opcode::Readdir) => Ok(list(&request.body().fixed()?)),
            Some(Opcode::Flush | Opcode::Release | Opcode::Releasedir) => Ok(Reply::done()),
            Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt) => Ok(Reply::none()),
            _ => Ok(Reply::error(Errno::ENOSYS)),
        }
    }

    async fn read(&self, n: u64, input: &ReadIn) -> Result<Reply> {
        assert_ne!(n, PANICS, "this file cannot be read");
        let reading = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
        self.reading_max.fetch_max(reading, Ordering::SeqCst);
        if SLOW.contains(&n) {
            // Real time: a slow server.
            self.reactor.with_local(|local| local.sleep(SLOW_TIME)).await;
        }
        self.reading.fetch_sub(1, Ordering::SeqCst);
        let all = content(n);
        let from = (input.offset as usize).min(all.len());
        let to = (from + input.size as usize).min(all.len());
        Ok(Reply::data(all.slice(from..to)))
    }
}

fn list(input: &ReadIn) -> Reply {
    let mut page = Vec::new();
    for n in input.offset..FILES {
        let name = format!("file-{n}");
        let end = page.len() + (24 + name.len()).next_multiple_of(8);
        if end > input.size as usize {
            break;
        }
        let dirent = Dirent { ino: FIRST + n, off: n + 1, namelen: name.len() as u32, kind: 8 };
        page.extend_from_slice(dirent.as_bytes());
        page.extend_from_slice(name.as_bytes());
        page.resize(end, 0);
    }
    Reply::head(page)
}

impl Dispatch for Tree {
    fn init(&self, request: &Request, extra: u64) -> (Reply, Option<u64>) {
        let (reply, agreed) = ops::negotiate(request, extra).unwrap();
        (reply, agreed.map(|(_, flags)| flags))
    }

    fn serving(&self, how: &TransportInUse) {
        self.serving.set(how.clone()).unwrap();
    }

    async fn handle(&self, request: &Request) -> Reply {
        let answer = self.answer(request).await;
        answer.unwrap_or_else(|error| Reply::error(crate::errno::of(&error)))
    }

    async fn undo(&self, request: &Request, reply: &Reply) {
        assert_eq!((request.header.opcode, reply.errno), (Opcode::Open as u32, 0));
        self.undone.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {}
}

/// A mounted tree; unmounted when dropped.
struct TestMount {
    dir: tempfile::TempDir,
    mounted: Mounted,
    tree: Arc<Tree>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl TestMount {
    /// `None`: this machine does not let us mount.
    fn start(mode: Mode) -> Option<TestMount> {
        let served = TestMount::shaped(mode, Shape::default())?;
        let uring = matches!(served.serving(), TransportInUse::Uring { .. });
        assert_eq!(uring, mode == Mode::Uring, "{}", served.serving());
        Some(served)
    }

    fn shaped(mode: Mode, shape: Shape) -> Option<TestMount> {
        if Device::open().is_err() {
            eprintln!("skipped: needs /dev/fuse");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let (device, mounted) = mount::mount(dir.path(), "saker:test", &options).unwrap();
        let hello = Hello::new(RoleKind::Client, NodeNumber::NONE, None);
        let reactor = Reactor::new(hello).unwrap();
        let sibling = |_| crate::reactor::ClientReactor(reactor.sibling().unwrap());
        let reactors = (0..THREADS).map(sibling).collect();
        let tree = Arc::new(Tree {
            reactor,
            reading: AtomicUsize::default(),
            reading_max: AtomicUsize::default(),
            serving: OnceLock::new(),
            hanging: AtomicUsize::default(),
            held: AtomicBool::default(),
            undone: AtomicUsize::default(),
        });
        let transport = FuseTransport::new(device, Arc::clone(&tree), reactors, mode).shaped(shape);
        let thread = Some(std::thread::spawn(move || transport.run()));
        Some(TestMount { dir, mounted, tree, thread })
    }

    /// How it is served, once that is known.
    fn serving(&self) -> &TransportInUse {
        self.tree.serving.wait()
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self, n: u64) -> std::path::PathBuf {
        self.path().join(format!("file-{n}"))
    }

    fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.mounted.unmount(|| panic!("nobody uses it")).unwrap();
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        self.tree.held.store(false, Ordering::SeqCst);
        self.stop();
    }
}

#[test]
fn a_tree_can_be_walked_and_read_from_many_threads() {
    each(walk_and_read);
}

fn walk_and_read(mode: Mode) {
    let Some(served) = TestMount::start(mode) else { return };
    let root = fs::metadata(served.path()).unwrap();
    assert_eq!((root.ino(), root.mode()), (1, 0o040_755));
    let mut names: Vec<_> =
        fs::read_dir(served.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    let mut wanted: Vec<std::ffi::OsString> =
        (0..FILES).map(|n| format!("file-{n}").into()).collect();
    wanted.sort();
    assert_eq!(names, wanted);
    std::thread::scope(|scope| {
        for t in 0..16 {
            let served = &served;
            scope.spawn(move || {
                for n in (0..FILES).filter(|n| !SLOW.contains(n) && *n != PANICS) {
                    let n = (n + t * 61) % FILES;
                    if SLOW.contains(&n) || n == PANICS {
                        continue;
                    }
                    let meta = fs::metadata(served.file(n)).unwrap();
                    assert_eq!(meta.len(), content(n).len() as u64);
                    assert_eq!((meta.mtime(), meta.mtime_nsec()), (-1, 999_999_999));
                    assert!(fs::read(served.file(n)).unwrap() == content(n), "file {n}");
                }
            });
        }
    });
    assert_eq!(fs::metadata(served.path().join("x")).unwrap_err().raw_os_error(), Some(2));
    let error = fs::write(served.path().join("new"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
}

/// Where a mount may say so; and the reply to INIT, which comes later, leaves it so.
#[test]
fn the_kernel_reads_as_far_ahead_as_a_request_may_be_long() {
    each(|mode| {
        let Some(served) = TestMount::start(mode) else { return };
        let device = fs::metadata(served.path()).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        match fs::OpenOptions::new().write(true).open(&knob) {
            Ok(_) => assert_eq!(fs::read_to_string(&knob).unwrap().trim(), "1024"),
            Err(error) => eprintln!("skipped: {knob}: {error}"),
        }
    });
}

#[test]
fn requests_that_wait_starve_nobody() {
    each(many_wait);
}

fn many_wait(mode: Mode) {
    let Some(served) = TestMount::start(mode) else { return };
    std::thread::scope(|scope| {
        for n in SLOW {
            let served = &served;
            scope.spawn(move || fs::read(served.file(n)).unwrap());
        }
        // Real time: all of them are under way.
        std::thread::sleep(SLOW_TIME / 4);
        let start = Instant::now();
        assert!(fs::read(served.file(1)).unwrap() == content(1));
        // Real time: it is not behind the slow ones, which together take longer.
        assert!(start.elapsed() < SLOW_TIME * 4, "{:?}", start.elapsed());
    });
    // Far more than there are threads.
    let most = served.tree.reading_max.load(Ordering::SeqCst);
    assert!(most > 20, "only {most} at once");
}

/// The kernel lets a caller go only with an answer, even if it was killed.
#[test]
fn who_is_killed_waits_no_longer() {
    each(|mode| {
        let Some(served) = TestMount::start(mode) else { return };
        let tree = &served.tree;
        tree.held.store(true, Ordering::SeqCst);
        let cat = || Command::new("cat").arg(served.file(HANGS)).stdout(Stdio::piped()).spawn();
        for (n, signal) in [(1, Signal::KILL), (2, Signal::TERM)] {
            let mut child = cat().unwrap();
            until("it waits", || tree.hanging.load(Ordering::SeqCst) == n);
            rustix::process::kill_process(Pid::from_child(&child), signal).unwrap();
            until("it ends", || child.try_wait().unwrap().is_some());
        }
        let patient = cat().unwrap();
        until("it waits", || tree.hanging.load(Ordering::SeqCst) == 3);
        rustix::process::kill_process(Pid::from_child(&patient), Signal::WINCH).unwrap();
        assert_eq!(tree.undone.load(Ordering::SeqCst), 0, "what was asked for goes on");
        tree.held.store(false, Ordering::SeqCst);
        until("they are taken back", || tree.undone.load(Ordering::SeqCst) == 2);
        assert!(patient.wait_with_output().unwrap().stdout == content(HANGS));
        assert_eq!(tree.undone.load(Ordering::SeqCst), 2);
    });
}

/// Waits for a condition, but not for ever.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not in a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_panic_is_an_error_of_that_call_alone() {
    each(|mode| {
        let Some(served) = TestMount::start(mode) else { return };
        for _ in 0..3 {
            let error = fs::read(served.file(PANICS)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
        assert!(fs::read(served.file(1)).unwrap() == content(1));
    });
}

#[test]
fn a_mount_point_is_checked_and_let_go() {
    let Some(mut served) = TestMount::start(Mode::Dev) else { return };
    let options = MountOptions::default();
    let failure = |path: &Path| mount::mount(path, "x", &options).map(drop).unwrap_err();
    let error = failure(served.path());
    assert_eq!(error.errno(), Errno::EBUSY);
    assert!(error.text.contains("Saker"), "{error}");
    let error = mount::unmount(Path::new("/proc"), false).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    served.stop();
    assert_eq!(fs::read_dir(served.path()).unwrap().count(), 0, "the directory below");
    assert_eq!(failure(&served.path().join("missing")).errno(), Errno::ENOENT);
    fs::write(served.path().join("file"), "").unwrap();
    assert_eq!(failure(&served.path().join("file")).errno(), Errno::ENOTDIR);
    assert!(mount::unmount(served.path(), false).is_err(), "it is not mounted any more");
}

#[test]
fn a_busy_mount_is_detached_and_ends_with_its_last_user() {
    each(detach_while_open);
}

fn detach_while_open(mode: Mode) {
    let Some(mut served) = TestMount::start(mode) else { return };
    let open = fs::File::open(served.file(2)).unwrap();
    assert_eq!(mount::unmount(served.path(), false).unwrap_err().errno(), Errno::EBUSY);
    let mounted = served.mounted.clone();
    let mut told = false;
    mounted.unmount(|| told = true).unwrap();
    assert!(told);
    assert!(!served.thread.as_ref().unwrap().is_finished());
    assert_eq!(open.metadata().unwrap().len(), content(2).len() as u64, "still served");
    drop(open);
    served.thread.take().unwrap().join().unwrap().unwrap();
}

#[test]
fn what_a_killed_mount_leaves_is_replaced() {
    if TestMount::start(Mode::Dev).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions::default();
    let (device, _) = mount::mount(dir.path(), "saker:dead", &options).unwrap();
    drop(device);
    let error = fs::metadata(dir.path()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    let (device, mounted) = mount::mount(dir.path(), "saker:alive", &options).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = dir.path().to_str().unwrap();
    let lines: Vec<_> = table.lines().filter(|line| line.contains(path)).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&format!("- {FS_TYPE} saker:alive ")), "{lines:?}");
    drop(device);
    mount::unmount(&mounted.path, false).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_killed_mount_below_another_goes_with_it() {
    if TestMount::start(Mode::Dev).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions::default();
    for _ in 0..3 {
        // As where a mount cannot be put beneath another (before Linux 6.5).
        mount::direct::on_top(dir.path(), "saker:dead", &options).unwrap();
    }
    mount::unmount(dir.path(), false).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_kernel_refuses_rings_and_the_device_serves() {
    // After INIT: the payloads are smaller than what was agreed on.
    let shape = Shape { payload_bytes: 4096, ..Shape::default() };
    let Some(served) = TestMount::shaped(Mode::Uring, shape) else { return };
    let TransportInUse::Dev(why) = served.serving() else { panic!("served by rings") };
    assert!(why.contains("refuses") || why.contains("not offer"), "{why}");
    assert!(fs::read(served.file(1)).unwrap() == content(1));
}

#[test]
fn rings_that_cannot_be_made_are_not_asked_for() {
    // More than there are addresses.
    let shape = Shape { payload_bytes: 1 << 46, ..Shape::default() };
    let Some(served) = TestMount::shaped(Mode::Uring, shape) else { return };
    let TransportInUse::Dev(why) = served.serving() else { panic!("served by rings") };
    assert!(why.starts_with("rings: "), "{why}");
    assert!(fs::read(served.file(1)).unwrap() == content(1));
}

#[test]
fn a_kernel_that_does_not_offer_rings_is_served_through_the_device() {
    if has_uring() {
        eprintln!("skipped: {SWITCH} is on");
        return;
    }
    let served = TestMount::shaped(Mode::Uring, Shape::default());
    let Some(served) = served else { return };
    let TransportInUse::Dev(why) = served.serving() else { panic!("served by rings") };
    assert!(why.contains("does not offer"), "{why}");
    assert!(fs::read(served.file(1)).unwrap() == content(1));
}

#[test]
fn an_aborted_connection_ends() {
    each(|mode| {
        let Some(mut served) = TestMount::start(mode) else { return };
        let abort = format!("/sys/fs/fuse/connections/{}/abort", connection(served.path()));
        if fs::metadata(&abort).is_err() {
            eprintln!("skipped: no {abort}");
            return;
        }
        std::thread::scope(|scope| {
            for n in SLOW {
                let file = served.file(n);
                scope.spawn(move || fs::read(file));
            }
            // Real time: all of them are under way.
            std::thread::sleep(SLOW_TIME / 4);
            fs::write(&abort, "1").unwrap();
        });
        served.thread.take().unwrap().join().unwrap().unwrap();
        mount::unmount(&served.mounted.path, false).unwrap();
    });
}

/// Number of a connection: the minor number of its device.
fn connection(path: &Path) -> u32 {
    rustix::fs::minor(fs::symlink_metadata(path).unwrap().dev())
}
