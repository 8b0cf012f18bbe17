//! A read-only mount with `pages=drop`: small files come whole when they are opened, and go with the last close. Beside
//! it a mount that writes. Needs root, /dev/fuse and Linux 6.9.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use saker_sim::cluster::{Cluster, OwnMount, Shape, can_mount};
use saker_sim::map::Map;

const PAGE: usize = 4096;
/// A little more than a row holds, whole pages and not, the largest that comes whole.
const SIZES: [usize; 5] = [4097, 65_536, 100_001, 131_072, 1 << 20];

struct Mounts {
    mount: OwnMount,
    cluster: Cluster,
}

impl Mounts {
    /// `None` where the kernel cannot do it.
    fn start(test: &str) -> Option<Mounts> {
        if !can_mount(test) {
            return None;
        }
        let cluster = Cluster::start(Shape { mount: true, ..Shape::default() });
        let mount = cluster.own_mount("drop", "ro,pages=drop");
        mount.said("shortcut: ");
        let said = mount.said("pages=drop: ");
        if said.contains("the kernel has no passthrough") {
            eprintln!("{test} skipped: {said}");
            return None;
        }
        assert!(said.contains("when they are opened"), "{said}");
        Some(Mounts { mount, cluster })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }

    /// The same file where it can be written.
    fn writable(&self, name: &str) -> PathBuf {
        self.cluster.mount().join(name)
    }

    fn write(&self, name: &str, data: &[u8]) {
        fs::write(self.writable(name), data).unwrap();
    }

    /// Runs `f` while the mount's process stands still: whatever asks it would never end.
    fn without_it(&self, f: impl FnOnce()) {
        let pid = Pid::from_child(&self.mount.process);
        kill_process(pid, Signal::STOP).unwrap();
        f();
        kill_process(pid, Signal::CONT).unwrap();
    }
}

/// A map of a whole file, up to the end of its last page.
fn map_of(file: &File, len: usize) -> Map {
    Map::new(file, 0, len.next_multiple_of(PAGE), false).unwrap()
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3 + i / PAGE + seed * 17 + 1) as u8).collect()
}

fn open_with(path: &Path, flags: i32) -> io::Result<OwnedFd> {
    let flags = OFlags::from_bits_retain(flags as u32);
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?)
}

/// All that an open file has, read in pieces of so many bytes, by nothing but read(2).
fn read(file: &File, piece: usize) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), vec![0; piece]);
    loop {
        match file.read_at(&mut part, all.len() as u64).unwrap() {
            0 => return all,
            len => all.extend_from_slice(&part[..len]),
        }
    }
}

#[test]
fn what_is_open_is_there_without_the_mount() {
    let Some(t) = Mounts::start("what_is_open_is_there_without_the_mount") else { return };
    // Of each size twice, from long to short and back, so that files in memory are used again.
    for (n, size) in SIZES.into_iter().rev().chain(SIZES).enumerate() {
        let (name, want) = (format!("f{n}"), bytes(size, n));
        t.write(&name, &want);
        let [file, again] = [(); 2].map(|()| File::open(t.path(&name)).unwrap());
        t.without_it(|| {
            for piece in [size + 1, 10_000] {
                assert!(read(&file, piece) == want && read(&again, piece) == want, "{size}");
            }
            let map = map_of(&file, size);
            assert!(map.read()[..size] == want, "{size} mapped");
            assert!(map.read()[size..].iter().all(|byte| *byte == 0), "{size}: behind its end");
        });
    }
    // Others go by pages.
    for (name, size) in [("small", 4096), ("empty", 0), ("large", (1 << 20) + 1)] {
        t.write(name, &bytes(size, 1));
        assert!(fs::read(t.path(name)).unwrap() == bytes(size, 1), "{name}");
    }
    fs::copy("/bin/true", t.writable("true")).unwrap();
    fs::set_permissions(t.writable("true"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new(t.path("true")).status().unwrap().success());
}

#[test]
fn a_map_shows_its_file_after_the_close() {
    const FILES: usize = 100;
    let Some(t) = Mounts::start("a_map_shows_its_file_after_the_close") else { return };
    let (size, name) = (SIZES[2], |n: usize| format!("f{n}"));
    for n in 0..FILES {
        t.write(&name(n), &bytes(size, n));
    }
    let mapped = |n| map_of(&File::open(t.path(&name(n))).unwrap(), size);
    let mut maps: Vec<(usize, Map)> = Vec::new();
    for n in 0..FILES {
        if n % 3 == 0 {
            maps.push((n, mapped(n)));
        }
        assert!(fs::read(t.path(&name(n))).unwrap() == bytes(size, n), "{n}");
    }
    for (n, map) in &maps {
        assert!(map.read()[..size] == bytes(size, *n), "{n} mapped");
    }
    drop(maps);
    for n in 0..FILES {
        assert!(mapped(n).read()[..size] == bytes(size, n), "{n} mapped again");
    }
}

#[test]
fn an_open_sees_what_was_closed_before() {
    let Some(t) = Mounts::start("an_open_sees_what_was_closed_before") else { return };
    for (n, size) in SIZES.into_iter().enumerate() {
        let name = format!("f{n}");
        let mut want = bytes(size, n);
        t.write(&name, &want);
        // Somebody has it open, and mapped, all the time.
        let held = File::open(t.path(&name)).unwrap();
        let map = map_of(&held, size);
        assert!(map.read()[..size] == want);
        let write = || OpenOptions::new().read(true).write(true).open(t.writable(&name)).unwrap();
        for change in 0..4 {
            match change {
                0 => write().write_all_at(b"changed", 1_000).unwrap(),
                1 => write().set_len(size as u64 / 2).unwrap(),
                2 => write().write_all_at(&bytes(1_000, n + 1), want.len() as u64).unwrap(),
                // It is in the inode's row then.
                _ => t.write(&name, b"short"),
            }
            match change {
                0 => want[1_000..1_007].copy_from_slice(b"changed"),
                1 => want.truncate(size / 2),
                2 => want.extend_from_slice(&bytes(1_000, n + 1)),
                _ => want = b"short".to_vec(),
            }
            let late = File::open(t.path(&name)).unwrap();
            assert!(read(&late, 50_000) == want, "{size}, {change}");
            let map = map_of(&late, want.len());
            assert!(map.read()[..want.len()] == want, "{size}, {change} mapped");
            assert!(map.read()[want.len()..].iter().all(|b| *b == 0), "{size}, {change}: behind");
            // Whoever had it open before sees that, too.
            assert!(read(&held, 50_000) == want, "{size}, {change} held");
        }
        for (large, is_busy) in [(3 << 20, false), (17 << 20, true)] {
            t.write(&name, &bytes(large, n));
            let late =
                File::open(t.path(&name)).map(|late| read(&late, 1 << 20) == bytes(large, n));
            match late {
                Ok(is_same) => assert!(is_same && !is_busy, "{size}, {large}"),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EBUSY)),
            }
        }
        drop((held, map));
        assert!(fs::read(t.path(&name)).unwrap() == bytes(17 << 20, n), "{size}: closed by all");
    }
    t.cluster.fsck();
}

/// What was sent to a pipe is in it when the file in memory is another's.
#[test]
fn what_was_spliced_stays_as_it_was() {
    const FILES: usize = 20;
    let Some(t) = Mounts::start("what_was_spliced_stays_as_it_was") else { return };
    let (size, name) = (65_536, |n: usize| format!("f{n}"));
    for n in 0..FILES {
        t.write(&name(n), &bytes(size, n));
    }
    let (mut out, into) = io::pipe().unwrap();
    for n in 0..FILES {
        let (file, mut at) = (File::open(t.path(&name(n))).unwrap(), 0);
        // SAFETY: both descriptors are open, and the position outlives the call.
        let sent = unsafe {
            let (from, to) = (file.as_raw_fd(), into.as_raw_fd());
            libc::splice(from, &raw mut at, to, std::ptr::null_mut(), 2 * PAGE, 0)
        };
        assert_eq!(sent, 2 * PAGE as isize);
        drop(file);
        for other in 0..FILES {
            assert!(fs::read(t.path(&name(other))).unwrap() == bytes(size, other), "{other}");
        }
        let mut part = [0; 2 * PAGE];
        io::Read::read_exact(&mut out, &mut part).unwrap();
        assert!(part == bytes(size, n)[..2 * PAGE], "{n}");
    }
}

/// Pages that somebody had the kernel read ahead, or that are there from when the file was large, keep
/// nobody from opening it.
#[test]
fn pages_that_are_there_do_not_matter() {
    let Some(t) = Mounts::start("pages_that_are_there_do_not_matter") else { return };
    let (size, large) = (65_536, 2 << 20);
    t.write("file", &bytes(size, 1));
    t.write("large", &bytes(large, 2));
    for _ in 0..3 {
        let file = File::open(t.path("file")).unwrap();
        // SAFETY: a call without pointers, on an open descriptor.
        let advised =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_WILLNEED) };
        assert_eq!(advised, 0);
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(read(&file, size) == bytes(size, 1));
        assert!(fs::read(t.path("large")).unwrap() == bytes(large, 2));
    }
    OpenOptions::new().write(true).open(t.writable("large")).unwrap().set_len(size as u64).unwrap();
    for _ in 0..3 {
        assert!(fs::read(t.path("large")).unwrap() == bytes(large, 2)[..size]);
    }
}

#[test]
fn many_open_and_close_while_it_changes() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 300;
    let Some(t) = Mounts::start("many_open_and_close_while_it_changes") else { return };
    let name = |n: usize| format!("f{n}");
    for (n, size) in SIZES.into_iter().enumerate() {
        t.write(&name(n), &bytes(size, n));
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let t = &t;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let n = (thread * 7 + round * (1 + thread % 3)) % SIZES.len();
                    let want = bytes(SIZES[n], n);
                    if thread == 0 {
                        // What it has already, so that readers find that whatever happens.
                        let file = OpenOptions::new().write(true).open(t.writable(&name(n)));
                        file.unwrap().write_all_at(&want[..500], 0).unwrap();
                        continue;
                    }
                    let file = File::open(t.path(&name(n))).unwrap();
                    let map = map_of(&file, want.len());
                    assert!(read(&file, 200_000) == want && map.read()[..want.len()] == want);
                }
            });
        }
    });
    t.cluster.fsck();
}

#[test]
fn nothing_is_written_where_it_would_be_lost() {
    let Some(t) = Mounts::start("nothing_is_written_where_it_would_be_lost") else { return };
    t.write("file", &bytes(50_000, 1));
    let open = || OpenOptions::new().read(true).write(true).open(t.path("file"));
    assert_eq!(open().unwrap_err().raw_os_error(), Some(libc::EROFS));
    let remount = Command::new("mount").args(["-i", "-o", "remount,rw"]).arg(t.path("")).status();
    assert!(remount.unwrap().success());
    assert_eq!(open().unwrap_err().raw_os_error(), Some(libc::EROFS));
    for (flags, name) in [(libc::O_TRUNC, "file"), (libc::O_CREAT | libc::O_WRONLY, "new")] {
        let opened = open_with(&t.path(name), flags);
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EROFS), "{flags:o}");
    }
    assert!(!t.writable("new").exists());
    assert!(fs::read(t.path("file")).unwrap() == bytes(50_000, 1));
}
