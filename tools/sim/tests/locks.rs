//! flock(2) and fcntl(2) between two mounts of one cluster. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use saker_sim::cluster::{ClusterShape, RunningCluster, binary, can_mount};
use saker_sim::torment::KillableMount;

/// A lease, and time to notice its end.
const LEASE_MAX: Duration = Duration::from_secs(20);

type Done = Result<(), i32>;

fn done(ret: libc::c_int) -> Done {
    if ret == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
}

fn flock(file: &File, how: libc::c_int) -> Done {
    // SAFETY: the descriptor is open.
    done(unsafe { libc::flock(file.as_raw_fd(), how) })
}

fn range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    // SAFETY: all zeros are a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, len);
    lock
}

fn fcntl(file: &File, command: libc::c_int, lock: &mut libc::flock) -> Done {
    // SAFETY: the descriptor is open, and the lock is valid during the call.
    let ret = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *lock) };
    done(if ret == -1 { -1 } else { 0 })
}

fn set(file: &File, kind: libc::c_int, start: i64, len: i64) -> Done {
    fcntl(file, libc::F_SETLK, &mut range(kind, start, len))
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

const BUSY: Done = Err(libc::EAGAIN);
const NB: libc::c_int = libc::LOCK_NB;

/// A file through both mounts.
struct Pair {
    paths: [PathBuf; 2],
    files: [File; 2],
}

impl Pair {
    fn new(mounts: &[&Path; 2], name: &str) -> Pair {
        let paths = mounts.map(|mount| mount.join(name));
        let files = [open(&paths[0]), open(&paths[1])];
        Pair { paths, files }
    }
}

fn flock_excludes(mounts: &[&Path; 2]) {
    let Pair { paths, files: [a, b] } = Pair::new(mounts, "flock");
    for (first, second, expected) in [
        (libc::LOCK_SH, libc::LOCK_SH, Ok(())),
        (libc::LOCK_SH, libc::LOCK_EX, BUSY),
        (libc::LOCK_EX, libc::LOCK_SH, BUSY),
        (libc::LOCK_EX, libc::LOCK_EX, BUSY),
    ] {
        for (x, y) in [(&a, &b), (&b, &a), (&a, &open(&paths[0]))] {
            flock(x, first | NB).unwrap();
            assert_eq!(flock(y, second | NB), expected, "{first} {second}");
            flock(x, libc::LOCK_UN).unwrap();
            flock(y, second | NB).unwrap();
            flock(y, libc::LOCK_UN).unwrap();
        }
    }
    // A shared lock becomes exclusive only alone, and an exclusive one may become shared.
    flock(&a, libc::LOCK_SH).unwrap();
    flock(&b, libc::LOCK_SH).unwrap();
    assert_eq!(flock(&a, libc::LOCK_EX | NB), BUSY);
    flock(&b, libc::LOCK_UN).unwrap();
    flock(&a, libc::LOCK_EX | NB).unwrap();
    flock(&a, libc::LOCK_SH | NB).unwrap();
    flock(&b, libc::LOCK_SH | NB).unwrap();
    drop(a);
    // The kernel tells of a close after it has returned.
    flock(&b, libc::LOCK_EX).unwrap();
    flock(&b, libc::LOCK_UN).unwrap();
    // A holder of a shared lock that wants it alone gives it up first: two of them do not wait for each other.
    for second in &paths {
        let files = [open(&paths[0]), open(second)];
        files.iter().for_each(|file| flock(file, libc::LOCK_SH).unwrap());
        std::thread::scope(|scope| {
            for file in &files {
                scope.spawn(|| {
                    flock(file, libc::LOCK_EX).unwrap();
                    flock(file, libc::LOCK_UN).unwrap();
                });
            }
        });
        files.iter().for_each(|file| flock(file, libc::LOCK_SH).unwrap());
        assert_eq!(flock(&files[0], libc::LOCK_EX | NB), BUSY);
        flock(&files[1], libc::LOCK_EX | NB).unwrap();
    }
}

fn ranges_exclude(mounts: &[&Path; 2]) {
    let Pair { paths, files: [a, b] } = Pair::new(mounts, "ranges");
    let (read, write, none) = (libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK);
    set(&a, write, 10, 10).unwrap();
    set(&b, write, 0, 10).unwrap();
    set(&b, write, 20, 0).unwrap();
    assert_eq!(set(&b, read, 19, 1), BUSY);
    let mut asked = range(read, 0, 0);
    fcntl(&b, libc::F_GETLK, &mut asked).unwrap();
    let found = (asked.l_type, asked.l_start, asked.l_len, asked.l_pid);
    assert_eq!(found, (write as i16, 10, 10, std::process::id() as i32));
    // The middle of a range ends.
    set(&a, none, 14, 2).unwrap();
    set(&b, read, 14, 2).unwrap();
    assert_eq!(set(&b, read, 13, 1), BUSY);
    assert_eq!(set(&a, write, 14, 1), BUSY);
    set(&a, read, 14, 1).unwrap();
    let mut free = range(read, 14, 1);
    fcntl(&b, libc::F_GETLK, &mut free).unwrap();
    assert_eq!(free.l_type, none as i16);
    // flock knows nothing of it.
    flock(&b, libc::LOCK_EX | NB).unwrap();
    // Whatever descriptor of the process is closed: its locks on the file end.
    drop(open(&paths[0]));
    set(&b, write, 0, 0).unwrap();
    drop(b);
    set(&a, write, 0, 0).unwrap();
    // Also those that were set through a descriptor that can only read.
    let reader = File::open(&paths[1]).unwrap();
    set(&a, none, 0, 0).unwrap();
    set(&reader, read, 5, 5).unwrap();
    assert_eq!(set(&a, write, 5, 1), BUSY);
    drop(reader);
    fcntl(&a, libc::F_SETLKW, &mut range(write, 5, 1)).unwrap();
}

fn open_files_own_locks(mounts: &[&Path; 2]) {
    let Pair { paths, files: [a, b] } = Pair::new(mounts, "ofd");
    let ofd = |file: &File, kind| fcntl(file, libc::F_OFD_SETLK, &mut range(kind, 0, 0));
    let same = open(&paths[0]);
    ofd(&a, libc::F_WRLCK).unwrap();
    assert_eq!(ofd(&same, libc::F_WRLCK), BUSY);
    assert_eq!(ofd(&b, libc::F_RDLCK), BUSY);
    drop(same);
    assert_eq!(ofd(&b, libc::F_RDLCK), BUSY, "another descriptor was closed");
    drop(a);
    fcntl(&b, libc::F_OFD_SETLKW, &mut range(libc::F_WRLCK, 0, 0)).unwrap();
}

/// A process that maps a file keeps it open when it closes the descriptor.
fn a_file_that_ends_late_ends_no_locks(mounts: &[&Path; 2]) {
    let Pair { paths, files: [a, b] } = Pair::new(mounts, "late");
    a.set_len(4_096).unwrap();
    set(&a, libc::F_WRLCK, 0, 0).unwrap();
    // SAFETY: nobody looks at what is mapped.
    let map = unsafe {
        let (prot, fd) = (libc::PROT_READ, a.as_raw_fd());
        libc::mmap(std::ptr::null_mut(), 4_096, prot, libc::MAP_SHARED, fd, 0)
    };
    assert_ne!(map, libc::MAP_FAILED);
    drop(a);
    let again = open(&paths[0]);
    set(&again, libc::F_WRLCK, 0, 0).unwrap();
    // SAFETY: it was mapped above.
    done(unsafe { libc::munmap(map, 4_096) }).unwrap();
    // Real time: an unlock too many would come within that.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(set(&b, libc::F_WRLCK, 0, 0), BUSY);
}

/// Of a range that was locked and ended again nothing is lost when locks are renewed.
fn a_range_that_has_ended_is_not_lost(mounts: &[&Path; 2]) {
    let files = ["whole", "part", "rest"].map(|name| open(&mounts[0].join(name)));
    files.iter().for_each(|file| set(file, libc::F_WRLCK, 10, 10).unwrap());
    for (file, len) in files.iter().zip([0, 100, 19]) {
        set(file, libc::F_UNLCK, 0, len).unwrap();
    }
    // Real time: locks are renewed every 3 s.
    std::thread::sleep(Duration::from_secs(4));
    files.iter().for_each(|file| file.write_all_at(b"data", 0).unwrap());
    files.iter().for_each(|file| file.sync_all().unwrap());
    assert_eq!(set(&open(&mounts[1].join("rest")), libc::F_WRLCK, 19, 1), BUSY);
}

/// A counter in a file, that both mounts keep open all the time.
fn data_follows_the_lock(mounts: &[&Path; 2], len: usize) {
    const ROUNDS: u64 = 150;
    let Pair { files, .. } = Pair::new(mounts, &format!("counter-{len}"));
    files[0].write_all_at(&vec![0; len], 0).unwrap();
    files[0].sync_all().unwrap();
    std::thread::scope(|scope| {
        for (n, file) in files.iter().enumerate() {
            scope.spawn(move || {
                let mut value = vec![0; len];
                for round in 0..ROUNDS {
                    if (round + n as u64).is_multiple_of(2) {
                        flock(file, libc::LOCK_EX).unwrap();
                    } else {
                        fcntl(file, libc::F_SETLKW, &mut range(libc::F_WRLCK, 0, 0)).unwrap();
                        flock(file, libc::LOCK_EX).unwrap();
                    }
                    file.read_exact_at(&mut value, 0).unwrap();
                    let count = u64::from_le_bytes(value[..8].try_into().unwrap()) + 1;
                    for part in value.chunks_exact_mut(8) {
                        part.copy_from_slice(&count.to_le_bytes());
                    }
                    file.write_all_at(&value, 0).unwrap();
                    flock(file, libc::LOCK_UN).unwrap();
                    set(file, libc::F_UNLCK, 0, 0).unwrap();
                }
            });
        }
    });
    let mut value = vec![0; len];
    flock(&files[0], libc::LOCK_SH).unwrap();
    files[0].read_exact_at(&mut value, 0).unwrap();
    for part in value.chunks_exact(8) {
        assert_eq!(u64::from_le_bytes(part.try_into().unwrap()), 2 * ROUNDS);
    }
}

fn names_do_not_matter(mounts: &[&Path; 2]) {
    let Pair { paths, files: [a, b] } = Pair::new(mounts, "named");
    flock(&a, libc::LOCK_EX).unwrap();
    std::fs::hard_link(&paths[0], mounts[0].join("link")).unwrap();
    std::fs::rename(&paths[0], mounts[0].join("renamed")).unwrap();
    assert_eq!(flock(&open(&mounts[1].join("renamed")), libc::LOCK_EX | NB), BUSY);
    assert_eq!(flock(&open(&mounts[1].join("link")), libc::LOCK_EX | NB), BUSY);
    std::fs::remove_file(mounts[0].join("renamed")).unwrap();
    std::fs::remove_file(mounts[0].join("link")).unwrap();
    assert_eq!(flock(&b, libc::LOCK_EX | NB), BUSY);
    flock(&a, libc::LOCK_UN).unwrap();
    flock(&b, libc::LOCK_EX | NB).unwrap();
}

fn waiting_can_be_interrupted(mounts: &[&Path; 2]) {
    let Pair { paths, files: [a, b] } = Pair::new(mounts, "interrupted");
    flock(&a, libc::LOCK_EX).unwrap();
    let mut waiter = Command::new("flock").arg(&paths[1]).arg("true").spawn().unwrap();
    // Real time: it may not end meanwhile.
    std::thread::sleep(Duration::from_millis(700));
    assert!(waiter.try_wait().unwrap().is_none(), "it does not wait");
    let pid = rustix::process::Pid::from_child(&waiter);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert!(!waiter.wait().unwrap().success());
    // What it waited for is not given to it afterwards.
    flock(&a, libc::LOCK_UN).unwrap();
    flock(&b, libc::LOCK_EX | NB).expect("a lock of nobody");
}

/// Many waiters at a mount do not keep it from serving who would let them go on.
fn waiters_block_nobody_else(mounts: &[&Path; 2]) {
    let Pair { paths, files: [a, _] } = Pair::new(mounts, "crowd");
    flock(&a, libc::LOCK_EX).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..200 {
            let path = &paths[0];
            scope.spawn(move || flock(&open(path), libc::LOCK_EX).unwrap());
        }
        // Real time: most of them wait by then.
        std::thread::sleep(Duration::from_millis(500));
        std::fs::write(mounts[0].join("other"), b"x").unwrap();
        flock(&a, libc::LOCK_UN).unwrap();
    });
    flock(&a, libc::LOCK_EX).unwrap();
}

fn sqlite_counts_right(mounts: &[&Path; 2]) {
    let sqlite = |mount: &Path, sql: &str| {
        let mut command = Command::new("sqlite3");
        command.arg("-cmd").arg(".timeout 60000").arg(mount.join("base.db")).arg(sql);
        let output = command.output().expect("package sqlite3");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {err}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    sqlite(mounts[0], "create table t (n integer); insert into t values (0)");
    std::thread::scope(|scope| {
        for mount in mounts {
            scope.spawn(move || {
                for _ in 0..15 {
                    let count = "begin immediate; update t set n = n + 1;
                        insert into t select hex(randomblob(2000)) from t limit 1; commit";
                    sqlite(mount, count);
                }
            });
        }
    });
    for mount in mounts {
        assert_eq!(sqlite(mount, "select n, (select count(*) from t) from t limit 1"), "30|31");
        assert_eq!(sqlite(mount, "pragma integrity_check"), "ok");
    }
}

fn locks_survive_their_shards(cluster: &RunningCluster, mounts: &[&Path; 2]) {
    let pairs: Vec<Pair> = (0..8).map(|n| Pair::new(mounts, &format!("kept-{n}"))).collect();
    pairs.iter().for_each(|pair| flock(&pair.files[0], libc::LOCK_EX).unwrap());
    (0..4).for_each(|n| cluster.signal(&format!("mnode-{n}"), Signal::KILL));
    for Pair { files: [a, b], .. } in &pairs {
        assert_eq!(flock(b, libc::LOCK_EX | NB), BUSY);
        flock(a, libc::LOCK_UN).unwrap();
        flock(b, libc::LOCK_EX | NB).unwrap();
    }
}

/// A client that was not heard of for a lease has lost its locks, and hears so: what it writes then does not reach the file.
fn a_lost_lock_is_heard_of(first: &Path, second: &KillableMount) {
    let paths = [first.join("lost"), second.point().join("lost")];
    std::fs::write(&paths[0], b"begin").unwrap();
    let (ours, theirs) = (open(&paths[0]), open(&paths[1]));
    flock(&theirs, libc::LOCK_EX).unwrap();
    let pid = second.pid().unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    flock(&ours, libc::LOCK_EX).unwrap();
    ours.write_all_at(b"ours!", 0).unwrap();
    ours.sync_all().unwrap();
    flock(&ours, libc::LOCK_UN).unwrap();
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    assert_eq!(errno(theirs.write_all_at(b"theirs", 0)), libc::EIO);
    assert_eq!(errno(theirs.sync_all()), libc::EIO);
    assert_eq!(flock(&theirs, libc::LOCK_UN), Err(libc::EIO));
    drop(theirs);
    for path in &paths {
        assert_eq!(std::fs::read(path).unwrap(), b"ours!");
    }
    let again = open(&paths[1]);
    flock(&again, libc::LOCK_EX).unwrap();
    again.write_all_at(b"again", 0).unwrap();
    flock(&again, libc::LOCK_UN).unwrap();
    assert_eq!(std::fs::read(&paths[0]).unwrap(), b"again");
}

fn locks_end_with_their_client(cluster: &RunningCluster, first: &Path, second: &mut KillableMount) {
    let path = second.point().join("orphaned");
    let theirs = open(&path);
    flock(&theirs, libc::LOCK_EX).unwrap();
    let ours = open(&first.join("orphaned"));
    assert_eq!(flock(&ours, libc::LOCK_EX | NB), BUSY);
    // Real time: it is renewed as long as its client lives, beyond its lease.
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(flock(&ours, libc::LOCK_EX | NB), BUSY, "a living client's lock expired");
    second.kill();
    assert_eq!(flock(&ours, libc::LOCK_EX | NB), BUSY, "it ended before its lease");
    let start = Instant::now();
    flock(&ours, libc::LOCK_EX).unwrap();
    // Real time: the lease's.
    assert!(start.elapsed() < LEASE_MAX, "{:?}", start.elapsed());
    drop(theirs);
    // A client that ends in order leaves no lease to wait for.
    let third = cluster.scratch().join("third");
    std::fs::create_dir(&third).unwrap();
    let mut mount = Command::new(binary());
    assert!(mount.arg("mount").arg(cluster.dir()).arg(&third).status().unwrap().success());
    flock(&ours, libc::LOCK_UN).unwrap();
    let theirs = open(&third.join("orphaned"));
    flock(&theirs, libc::LOCK_EX | NB).unwrap();
    drop(theirs);
    assert!(Command::new(binary()).arg("umount").arg(&third).status().unwrap().success());
    let start = Instant::now();
    flock(&ours, libc::LOCK_EX).unwrap();
    // Real time: far below a lease.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn locks_hold_between_mounts() {
    if !can_mount("locks_hold_between_mounts") {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape {
        mount: true,
        supervise: true,
        ..ClusterShape::default()
    });
    let mut second = KillableMount::start(&cluster);
    let (first, point) = (cluster.mount(), second.point().to_path_buf());
    let mounts = [first.as_path(), point.as_path()];
    let timed = |what: &str, test: &mut dyn FnMut()| {
        let start = Instant::now();
        test();
        // Real time: printed only.
        eprintln!("{what}: {:.1?}", start.elapsed());
    };
    timed("flock", &mut || flock_excludes(&mounts));
    timed("ranges", &mut || ranges_exclude(&mounts));
    timed("open files", &mut || open_files_own_locks(&mounts));
    timed("late end", &mut || a_file_that_ends_late_ends_no_locks(&mounts));
    timed("ended ranges", &mut || a_range_that_has_ended_is_not_lost(&mounts));
    timed("names", &mut || names_do_not_matter(&mounts));
    timed("interrupt", &mut || waiting_can_be_interrupted(&mounts));
    timed("crowd", &mut || waiters_block_nobody_else(&mounts));
    for len in [512, 4_096, 64 << 10] {
        timed("data", &mut || data_follows_the_lock(&mounts, len));
    }
    timed("sqlite", &mut || sqlite_counts_right(&mounts));
    timed("killed shards", &mut || locks_survive_their_shards(&cluster, &mounts));
    timed("lost lock", &mut || a_lost_lock_is_heard_of(&first, &second));
    timed("killed client", &mut || locks_end_with_their_client(&cluster, &first, &mut second));
    cluster.fsck();
}
