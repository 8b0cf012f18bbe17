//! Two mounts of one cluster: who opens a file after another mount closed it sees what that one
//! wrote, however it was written and whatever was cached; files that are open survive what the
//! other mount does with their names. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use saker_client::{Fallocate, Seek};
use saker_sim::cluster::{ClusterShape, RunningCluster, SecondMount, can_mount};
use saker_sim::fsx::{FsxTarget, PosixFile};
use saker_sim::wait::until;

const STORES: u32 = 2;
/// In the inode's row, in one chunk, in three chunks.
const SIZES: [usize; 3] = [1_000, 100_000, (8 << 20) + 5];

struct Mounts {
    other: SecondMount,
    cluster: RunningCluster,
}

impl Mounts {
    /// `None` where nothing can be mounted.
    fn start(test: &str) -> Option<Mounts> {
        if !can_mount(test) {
            return None;
        }
        let cluster = RunningCluster::start(ClusterShape {
            mount: true,
            stores: STORES,
            mnodes: 2,
            ..ClusterShape::default()
        });
        Some(Mounts { other: cluster.second_mount(), cluster })
    }

    fn a(&self, name: &str) -> PathBuf {
        self.cluster.mount().join(name)
    }

    fn b(&self, name: &str) -> PathBuf {
        self.other.path().join(name)
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3 + seed * 17 + 1) as u8).collect()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn append(path: &Path, data: &[u8]) -> File {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    std::io::Write::write_all(&mut file, data).unwrap();
    file
}

/// Both mounts agree on what stat(2) says, and on the data, which is read by read(2) and by a map.
fn assert_same(t: &Mounts, name: &str, want: &[u8]) {
    for path in [t.a(name), t.b(name)] {
        assert!(fs::read(&path).unwrap() == want, "{}", path.display());
        let mut mapped = PosixFile::create(&path).unwrap();
        assert!(mapped.map_read(0, want.len()).unwrap() == want, "{} mapped", path.display());
    }
    let (a, b) = (fs::metadata(t.a(name)).unwrap(), fs::metadata(t.b(name)).unwrap());
    assert_eq!((a.size(), a.mtime(), a.mtime_nsec()), (b.size(), b.mtime(), b.mtime_nsec()));
    assert_eq!((a.ctime(), a.ctime_nsec(), a.ino()), (b.ctime(), b.ctime_nsec(), b.ino()));
    assert_eq!(a.size(), want.len() as u64);
}

#[test]
fn what_one_mount_closed_the_other_opens() {
    let Some(t) = Mounts::start("what_one_mount_closed_the_other_opens") else { return };
    for (n, size) in SIZES.into_iter().enumerate() {
        let name = format!("f{n}");
        let mut want = bytes(size, 1);
        fs::write(t.a(&name), &want).unwrap();
        assert_same(&t, &name, &want);
        // Both have it in their caches now, and keep it open.
        let held = [open(&t.a(&name)), open(&t.b(&name))];
        for round in 2..6 {
            let (writer, mtime) = match round % 2 {
                0 => (t.b(&name), fs::metadata(t.b(&name)).unwrap().modified().unwrap()),
                _ => (t.a(&name), fs::metadata(t.a(&name)).unwrap().modified().unwrap()),
            };
            let part = bytes(500, round);
            open(&writer).write_all_at(&part, size as u64 / 2).unwrap();
            want[size / 2..size / 2 + 500].copy_from_slice(&part);
            assert_same(&t, &name, &want);
            assert!(fs::metadata(&writer).unwrap().modified().unwrap() > mtime);
        }
        drop(append(&t.b(&name), b"tail"));
        want.extend_from_slice(b"tail");
        assert_same(&t, &name, &want);
        open(&t.a(&name)).set_len(size as u64 / 3).unwrap();
        want.truncate(size / 3);
        assert_same(&t, &name, &want);
        let mut mapped = PosixFile::create(&t.b(&name)).unwrap();
        mapped.map_write(10, b"by a map").unwrap();
        want[10..18].copy_from_slice(b"by a map");
        drop(mapped);
        assert_same(&t, &name, &want);
        let mut file = PosixFile::create(&t.a(&name)).unwrap();
        file.fallocate(Fallocate::Punch, 100, 150).unwrap();
        want[100..250].fill(0);
        file.copy(0, 260, 50).unwrap();
        want.copy_within(0..50, 260);
        drop(file);
        assert_same(&t, &name, &want);
        drop(held);
    }
    t.cluster.fsck();
}

/// Also while the reader's own mount has data of that file that no server knows of yet.
#[test]
fn what_others_closed_is_read_beside_unsaved_data() {
    let Some(t) = Mounts::start("what_others_closed_is_read_beside_unsaved_data") else { return };
    for (n, size) in [200, 100_000].into_iter().enumerate() {
        let name = format!("f{n}");
        let mut want = bytes(10, 1);
        fs::write(t.a(&name), &want).unwrap();
        let held = open(&t.a(&name));
        held.write_all_at(b"X", 1).unwrap();
        drop(append(&t.b(&name), &bytes(size - 10, 2)));
        want[1] = b'X';
        want.extend_from_slice(&bytes(size - 10, 2));
        assert!(fs::read(t.a(&name)).unwrap() == want, "{size}");
        drop(held);
        assert_same(&t, &name, &want);
    }
    t.cluster.fsck();
}

/// However long its records are, and wherever pages and chunks end.
#[test]
fn an_append_is_one_piece() {
    let Some(t) = Mounts::start("an_append_is_one_piece") else { return };
    for (size, count) in [(99, 300), (5_000, 60), (70_000, 40), (900_000, 8)] {
        let name = format!("f{size}");
        fs::write(t.a(&name), b"").unwrap();
        std::thread::scope(|scope| {
            for (path, letter) in [(t.a(&name), b'a'), (t.b(&name), b'b'), (t.a(&name), b'c')] {
                scope.spawn(move || {
                    let file = OpenOptions::new().append(true).open(path).unwrap();
                    for _ in 0..count {
                        let written = rustix::io::write(&file, &vec![letter; size]).unwrap();
                        assert_eq!(written, size);
                    }
                });
            }
        });
        let all = fs::read(t.b(&name)).unwrap();
        assert_eq!(all.len(), 3 * count * size);
        let torn = |record: &&[u8]| record.iter().any(|byte| *byte != record[0]);
        assert_eq!(all.chunks(size).filter(torn).count(), 0, "records of {size} bytes are torn");
    }
    // It can be read and mapped as any other file.
    fs::write(t.a("f"), b"begin ").unwrap();
    let mut both = OpenOptions::new().read(true).append(true).open(t.a("f")).unwrap();
    std::io::Write::write_all(&mut both, b"end").unwrap();
    let mut data = [0; 20];
    assert_eq!(both.read_at(&mut data, 0).unwrap(), 9);
    assert_eq!(&data[..9], b"begin end");
    assert_eq!(fs::metadata(t.a("f")).unwrap().len(), 9);
    assert_eq!(fs::read(t.b("f")).unwrap(), b"begin end");
    t.cluster.fsck();
}

/// Old bytes, fewer bytes, or new ones.
#[test]
fn who_reads_what_another_mount_cuts_gets_no_zeros() {
    let name = "who_reads_what_another_mount_cuts_gets_no_zeros";
    let Some(t) = Mounts::start(name) else { return };
    for size in [100, 5_000, 100_000, 5 << 20] {
        for how in ["open", "shrink", "rewrite"] {
            fs::write(t.a("f"), vec![b'a'; size]).unwrap();
            let reader = File::open(t.b("f")).unwrap();
            let writer = match how {
                "shrink" => {
                    open(&t.a("f")).set_len(size as u64 / 2).unwrap();
                    None
                }
                _ => Some(File::create(t.a("f")).unwrap()),
            };
            if how == "rewrite" {
                writer.as_ref().unwrap().write_all_at(&vec![b'b'; size / 3], 0).unwrap();
                drop(writer);
            }
            let mut data = vec![0; size];
            let read = reader.read_at(&mut data, 0).unwrap();
            let zeros = data[..read].iter().filter(|byte| **byte == 0).count();
            assert_eq!(zeros, 0, "{how} of {size}: {read} bytes");
            fs::remove_file(t.a("f")).unwrap();
        }
    }
    t.cluster.fsck();
}

/// A program's log, say: it is never closed, and its last page is never full.
#[test]
fn what_is_never_synced_is_seen_by_others() {
    let Some(t) = Mounts::start("what_is_never_synced_is_seen_by_others") else { return };
    for (name, len) in [("small", 300), ("large", 10_001)] {
        let log = File::create(t.a(name)).unwrap();
        let lines = bytes(len, 1);
        log.write_all_at(&lines, 0).unwrap();
        until(&format!("others see {name}"), || fs::read(t.b(name)).unwrap() == lines);
        drop(log);
    }
}

/// What was read once is in the kernel's cache until somebody changes it, wherever the data is.
#[test]
fn pages_of_a_file_are_kept_until_it_changes() {
    let Some(t) = Mounts::start("pages_of_a_file_are_kept_until_it_changes") else { return };
    let sent = || t.cluster.metric_of("store", "saker_store_read_bytes_total");
    for (n, size) in SIZES.into_iter().enumerate().skip(1) {
        let name = format!("f{n}");
        let mut want = bytes(size, 1);
        fs::write(t.a(&name), &want).unwrap();
        let before = sent();
        assert!(fs::read(t.b(&name)).unwrap() == want);
        let once = sent();
        assert!(once - before >= size as f64);
        for _ in 0..3 {
            assert!(fs::read(t.b(&name)).unwrap() == want);
        }
        assert_eq!(sent(), once, "read again from the stores");
        open(&t.a(&name)).write_all_at(b"new", size as u64 - 10).unwrap();
        want[size - 10..size - 7].copy_from_slice(b"new");
        assert!(fs::read(t.b(&name)).unwrap() == want);
        assert!(sent() - once >= size as f64);
        let held = append(&t.a(&name), &bytes(5_000, 2));
        fs::read(t.b(&name)).unwrap();
        // The next append tells that this one is there.
        drop(append(&t.a(&name), b"end"));
        drop(held);
        want.extend_from_slice(&bytes(5_000, 2));
        want.extend_from_slice(b"end");
        assert!(fs::read(t.b(&name)).unwrap() == want);
    }
}

/// A reader that comes while an append is on its way sees the file as it was before, not zeros.
#[test]
fn an_append_shows_no_zeros_before_its_data() {
    let Some(t) = Mounts::start("an_append_shows_no_zeros_before_its_data") else { return };
    let old = bytes(10_000, 1);
    fs::write(t.a("log"), &old).unwrap();
    let stores: Vec<String> = (0..STORES).map(|n| format!("store-{n}")).collect();
    let reader = open(&t.b("log"));
    assert_eq!(reader.metadata().unwrap().len(), 10_000);
    std::thread::scope(|scope| {
        stores.iter().for_each(|store| t.cluster.signal(store, Signal::STOP));
        let done = std::sync::mpsc::channel();
        let path = t.a("log");
        scope.spawn(move || {
            drop(append(&path, &bytes(5_000, 2)));
            done.0.send(()).unwrap();
        });
        // Until the owner has given the append its place.
        let given = || t.cluster.metric_of("mnode", "saker_mnode_requests_total{op=\"append\"}");
        until("an append", || given() >= 1.0);
        assert!(done.1.try_recv().is_err(), "the stores are stopped");
        assert_eq!(fs::metadata(t.b("log")).unwrap().len(), 10_000);
        assert_eq!(reader.metadata().unwrap().len(), 10_000);
        stores.iter().for_each(|store| t.cluster.signal(store, Signal::CONT));
        done.1.recv().unwrap();
    });
    assert_same(&t, "log", &[old, bytes(5_000, 2)].concat());
}

#[test]
fn open_files_outlive_their_names() {
    let Some(t) = Mounts::start("open_files_outlive_their_names") else { return };
    for (n, size) in SIZES.into_iter().enumerate() {
        let (name, moved) = (format!("f{n}"), format!("dir{n}/moved"));
        let mut want = bytes(size, 1);
        fs::write(t.a(&name), &want).unwrap();
        let file = open(&t.a(&name));
        fs::create_dir(t.b(&format!("dir{n}"))).unwrap();
        fs::rename(t.b(&name), t.b(&moved)).unwrap();
        file.write_all_at(b"moved", 3).unwrap();
        want[3..8].copy_from_slice(b"moved");
        file.sync_all().unwrap();
        assert_same(&t, &moved, &want);
        // Another file takes its old name, and then its new one.
        fs::write(t.b(&name), b"another").unwrap();
        fs::rename(t.b(&name), t.b(&moved)).unwrap();
        let mut got = vec![0; size];
        file.read_exact_at(&mut got, 0).unwrap();
        assert!(got == want);
        file.write_all_at(b"orphan", 20).unwrap();
        file.read_exact_at(&mut got, 0).unwrap();
        assert_eq!(&got[20..26], b"orphan");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        drop(file);
        assert_eq!(fs::read(t.a(&moved)).unwrap(), b"another");
        fs::remove_file(t.a(&moved)).unwrap();
        assert!(!t.b(&moved).exists());
    }
    t.cluster.fsck();
}

/// The kernel of this mount does not know the name that goes, and has just been told the link count.
#[test]
fn a_name_less_is_counted_at_once() {
    let Some(t) = Mounts::start("a_name_less_is_counted_at_once") else { return };
    for round in 0..20 {
        let name = |n: u32| format!("{round}.{n}");
        fs::write(t.a(&name(0)), b"x").unwrap();
        for n in 1..4 {
            fs::hard_link(t.a(&name(0)), t.a(&name(n))).unwrap();
        }
        fs::write(t.a(&name(4)), b"y").unwrap();
        let file = File::open(t.b(&name(0))).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 4);
        fs::remove_file(t.b(&name(1))).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 3);
        fs::rename(t.b(&name(4)), t.b(&name(2))).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 2);
        fs::remove_file(t.b(&name(3))).unwrap();
        assert_eq!(fs::metadata(t.b(&name(0))).unwrap().nlink(), 1);
        // The last name is one that the other mount has given the file.
        for replaced in [false, true] {
            let file = File::open(t.b(&name(0))).unwrap();
            fs::rename(t.a(&name(0)), t.a(&name(5))).unwrap();
            assert_eq!(file.metadata().unwrap().nlink(), 1);
            match replaced {
                false => fs::remove_file(t.b(&name(5))).unwrap(),
                true => fs::rename(t.b(&name(2)), t.b(&name(5))).unwrap(),
            }
            assert_eq!(file.metadata().unwrap().nlink(), 0);
            fs::write(t.a(&name(0)), b"z").unwrap();
        }
        // Or it is a directory's.
        for replaced in [false, true] {
            fs::create_dir(t.a(&name(6))).unwrap();
            fs::create_dir(t.a(&name(7))).unwrap();
            let dir = File::open(t.b(&name(6))).unwrap();
            fs::rename(t.a(&name(6)), t.a(&name(8))).unwrap();
            assert_eq!(dir.metadata().unwrap().nlink(), 2);
            match replaced {
                false => fs::remove_dir(t.b(&name(8))).unwrap(),
                true => fs::rename(t.b(&name(7)), t.b(&name(8))).unwrap(),
            }
            assert_eq!(dir.metadata().unwrap().nlink(), 0);
            let left = if replaced { 8 } else { 7 };
            fs::remove_dir(t.a(&name(left))).unwrap();
        }
    }
}

/// Holes are told truly, in blocks of 4 KiB, and take no space.
#[test]
fn holes_are_found_through_the_other_mount() {
    let Some(t) = Mounts::start("holes_are_found_through_the_other_mount") else { return };
    let (data, chunk) = (bytes(50_000, 1), 4 << 20);
    let file = File::create(t.a("f")).unwrap();
    file.set_len(10 * chunk).unwrap();
    file.write_all_at(&data, 2 * chunk).unwrap();
    file.write_all_at(&data, 7 * chunk - 20_000).unwrap();
    drop(file);
    let blocks = |path: PathBuf| fs::metadata(path).unwrap().blocks();
    assert_eq!(blocks(t.b("f")), 2 * 50_000u64.div_ceil(512));
    let mut b = PosixFile::create(&t.b("f")).unwrap();
    assert_eq!(b.seek(Seek::Data, 0).unwrap(), Some(2 * chunk));
    assert_eq!(b.seek(Seek::Hole, 0).unwrap(), Some(0));
    assert_eq!(b.seek(Seek::Hole, 2 * chunk).unwrap(), Some(2 * chunk + 53_248));
    assert_eq!(b.seek(Seek::Data, 2 * chunk + 53_248).unwrap(), Some(7 * chunk - 20_480));
    assert_eq!(b.seek(Seek::Hole, 7 * chunk).unwrap(), Some(7 * chunk + 32_768));
    assert_eq!(b.seek(Seek::Data, 8 * chunk).unwrap(), None);
    b.fallocate(Fallocate::Punch, 0, 5 * chunk).unwrap();
    drop(b);
    assert!((1..=50_000u64.div_ceil(512)).contains(&blocks(t.a("f"))), "{}", blocks(t.a("f")));
    File::create(t.a("sparse")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(blocks(t.b("sparse")), 0);
    fs::write(t.a("small"), [1; 600]).unwrap();
    fs::write(t.a("large"), vec![1; 600_000]).unwrap();
    assert_eq!((blocks(t.b("small")), blocks(t.b("large"))), (2, 1_172));
    let mut a = PosixFile::create(&t.a("f")).unwrap();
    assert_eq!(a.seek(Seek::Data, 0).unwrap(), Some(7 * chunk - 20_480));
    assert_eq!(a.read(2 * chunk, 100).unwrap(), [0; 100]);
    assert!(a.fallocate(Fallocate::Grow, 0, 11 * chunk).is_ok());
    assert_eq!(fs::metadata(t.b("f")).unwrap().len(), 11 * chunk);
    for mode in [8, 32] {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&open(&t.a("f")));
        // SAFETY: a system call on an open file, without memory.
        let moved = unsafe { libc::fallocate(fd, mode, 0, 4096) };
        assert_eq!(moved, -1, "collapse and insert are not there");
    }
    t.cluster.fsck();
}

fn as_user(command: &str, file: &Path) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command, "sh"]).arg(file).uid(1000).gid(1000);
    shell.status().unwrap().success()
}

/// Whatever changes the data of a file in somebody else's name takes its privileges away.
#[test]
fn who_writes_takes_privileges_away() {
    let Some(t) = Mounts::start("who_writes_takes_privileges_away") else { return };
    let changes = [
        "printf x >> \"$1\"",
        "printf x 1<> \"$1\"",
        "printf x > \"$1\"",
        "truncate -s 50 \"$1\"",
        "fallocate -l 5000 \"$1\"",
        "fallocate -p -o 0 -l 10 \"$1\"",
    ];
    for size in [100, 10_000] {
        for change in changes {
            for path in [t.a("f"), t.b("f")] {
                fs::write(&path, bytes(size, 1)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
                assert!(as_user(change, &path), "{change}");
                let mode = fs::metadata(t.a("f")).unwrap().mode();
                assert_eq!(mode & 0o7777, 0o777, "{change} of {size} bytes");
                fs::remove_file(&path).unwrap();
            }
        }
    }
}

/// To execute a file takes the right to execute it, not to read it.
#[test]
fn who_may_execute_a_file_needs_not_read_it() {
    let Some(t) = Mounts::start("who_may_execute_a_file_needs_not_read_it") else { return };
    fs::copy("/bin/true", t.a("true")).unwrap();
    for (mode, may_execute, may_read) in
        [(0o711, true, false), (0o744, false, true), (0o755, true, true), (0o700, false, false)]
    {
        fs::set_permissions(t.a("true"), fs::Permissions::from_mode(mode)).unwrap();
        for path in [t.a("true"), t.b("true")] {
            let started = Command::new(&path).uid(1000).gid(1000).status();
            assert_eq!(started.is_ok_and(|status| status.success()), may_execute, "{mode:o}");
            assert_eq!(as_user("cat \"$1\" >/dev/null 2>&1", &path), may_read, "{mode:o}");
        }
    }
}

/// Exchanges two names through a mount.
fn exchange(a: &Path, b: &Path) {
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, a, rustix::fs::CWD, b, flags).unwrap();
}

/// The other mount has put another directory in the place of `cur`, and that has returned. One thread acts
/// below the name, another one looks at it.
#[test]
fn a_call_acts_in_the_directory_that_has_the_name() {
    let Some(t) = Mounts::start("a_call_acts_in_the_directory_that_has_the_name") else { return };
    for dir in ["d", "d/cur", "d/other"] {
        fs::create_dir(t.b(dir)).unwrap();
    }
    for round in 0..200 {
        // This mount knows the directory.
        _ = fs::metadata(t.a("d/cur/nothing"));
        exchange(&t.b("d/cur"), &t.b("d/other"));
        for dir in ["cur", "other"] {
            fs::write(t.b(&format!("d/{dir}/f")), dir).unwrap();
        }
        let made = format!("d/cur/made-{round}");
        let moved = format!("d/cur/moved-{round}");
        fs::write(t.b("d/source"), "source").unwrap();
        std::thread::scope(|scope| {
            let at_once = [
                scope.spawn(|| fs::remove_file(t.a("d/cur/f")).unwrap()),
                scope.spawn(|| drop(File::create_new(t.a(&made)).unwrap())),
                scope.spawn(|| fs::rename(t.a("d/source"), t.a(&moved)).unwrap()),
                scope.spawn(|| assert!(fs::metadata(t.a("d/cur")).is_ok())),
            ];
            at_once.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert!(!t.b("d/cur/f").exists(), "round {round}: it stays");
        assert!(t.b("d/other/f").exists(), "round {round}: the wrong file is removed");
        assert!(t.b(&made).exists() && t.b(&moved).exists(), "round {round}: made elsewhere");
    }
}

/// Someone is in a directory whose parents were only walked through, and another mount gives their names
/// to others. `..` leads where they are.
#[test]
fn the_parent_of_a_directory_is_where_it_is() {
    let Some(t) = Mounts::start("the_parent_of_a_directory_is_where_it_is") else { return };
    type Change = fn(&Path);
    let changes: [(&str, Change); 4] = [
        ("exchanged", |b| exchange(&b.join("cur"), &b.join("alt"))),
        ("moved", |b| fs::rename(b.join("cur"), b.join("old")).unwrap()),
        ("replaced", |b| {
            fs::rename(b.join("cur"), b.join("old")).unwrap();
            fs::rename(b.join("alt"), b.join("cur")).unwrap();
        }),
        ("a file now", |b| {
            fs::rename(b.join("cur"), b.join("old")).unwrap();
            fs::write(b.join("cur"), "").unwrap();
        }),
    ];
    for (what, change) in changes {
        fs::create_dir(t.b(what)).unwrap();
        for name in ["cur", "alt"] {
            fs::create_dir_all(t.b(what).join(name).join("d/e")).unwrap();
            fs::write(t.b(what).join(name).join("d/who"), name).unwrap();
            fs::write(t.b(what).join(name).join("top"), name).unwrap();
        }
        let parent = fs::metadata(t.b(what).join("cur/d")).unwrap().ino();
        let dir = File::open(t.a(what).join("cur/d/e")).unwrap();
        change(&t.b(what));
        // In the directory itself, as a thread whose working directory it is.
        let from = |path: &str| PathBuf::from(format!("/proc/self/fd/{}/{path}", dir.as_raw_fd()));
        assert_eq!(fs::read_to_string(from("../who")).unwrap(), "cur", "{what}");
        assert_eq!(fs::read_to_string(from("../../top")).unwrap(), "cur", "{what}");
        assert_eq!(fs::metadata(from("..")).unwrap().ino(), parent, "{what}");
        fs::create_dir(from("../made")).unwrap();
        fs::rename(from("../made"), from("made")).unwrap();
        fs::remove_file(from("../who")).unwrap();
        let kept = ["cur/d/who", "alt/d/who"].map(|path| fs::read_to_string(t.b(what).join(path)));
        assert!(kept.iter().any(|text| text.as_ref().is_ok_and(|text| text == "alt")), "{what}");
    }
}

#[test]
fn a_name_that_became_a_file_has_nothing_below_it() {
    let Some(t) = Mounts::start("a_name_that_became_a_file_has_nothing_below_it") else { return };
    fs::create_dir(t.a("f")).unwrap();
    assert_eq!(fs::read_dir(t.a("f")).unwrap().count(), 0);
    fs::write(t.b("g"), "precious").unwrap();
    exchange(&t.b("f"), &t.b("g"));
    let error = fs::rename(t.a("f"), t.a("f/e")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
    assert_eq!(fs::read(t.b("f")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(t.b("g")).unwrap().count(), 0);
}

/// Within one mount: whoever is told of a block can read it.
#[test]
fn what_the_end_of_a_file_shows_can_be_read() {
    const BLOCK: usize = 8_192;
    const FILES: usize = 200;
    let Some(t) = Mounts::start("what_the_end_of_a_file_shows_can_be_read") else { return };
    let made = std::sync::atomic::AtomicUsize::new(0);
    let reader = || {
        let mut file = 0;
        while file < FILES {
            let Ok(open) = File::open(t.a(&format!("f{file}"))) else {
                file = made.load(std::sync::atomic::Ordering::SeqCst);
                continue;
            };
            let (mut last, mut block) = (0, vec![0; BLOCK]);
            while made.load(std::sync::atomic::Ordering::SeqCst) == file {
                let end = rustix::fs::seek(&open, rustix::fs::SeekFrom::End(0)).unwrap();
                assert!(end >= last, "from {last} back to {end}");
                last = end;
                if end >= BLOCK as u64 {
                    let got = open.read_at(&mut block, end - BLOCK as u64).unwrap();
                    assert_eq!(got, BLOCK, "file {file}: its end is {end}");
                }
            }
            file = made.load(std::sync::atomic::Ordering::SeqCst);
        }
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..6).map(|_| scope.spawn(reader)).collect();
        for file in 0..FILES {
            let open = File::create_new(t.a(&format!("f{file}"))).unwrap();
            for block in 0..5 {
                open.write_all_at(&vec![1; BLOCK], (block * BLOCK) as u64).unwrap();
            }
            drop(open);
            made.store(file + 1, std::sync::atomic::Ordering::SeqCst);
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
