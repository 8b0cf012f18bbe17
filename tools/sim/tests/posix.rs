//! What users expect of POSIX, on a mount and on a local disk side by side. Each file in `posix/`
//! is a shell script: it runs in an empty directory of both, and says the same there and there.
//! Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{self as rfs, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use saker_sim::cluster::{ClusterShape, RunningCluster, can_mount};
use saker_types::limits;

/// What scripts may use: other users, with or without supplementary groups.
const PRELUDE: &str = "
as() { id=$1; shift; setpriv --reuid=$id --regid=$id --clear-groups -- \"$@\"; }
as_groups() {
    id=$1; list=$2; shift 2; setpriv --reuid=$id --regid=$id --groups=$list -- \"$@\"
}
";

fn scripts() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/posix");
    let mut scripts: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    scripts
}

/// What a script says in a directory, with the exit status of each command that failed.
fn run(script: &Path, dir: &Path) -> String {
    std::fs::create_dir(dir).unwrap();
    let text = std::fs::read_to_string(script).unwrap();
    let output = Command::new("timeout")
        .args(["300", "sh", "-c", &format!("exec 2>&1\n{PRELUDE}{text}")])
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .output()
        .unwrap();
    assert!(output.status.code().is_some_and(|code| code < 124), "{script:?}: {}", output.status);
    String::from_utf8_lossy(&output.stdout).replace(dir.to_str().unwrap(), "HERE")
}

/// The first lines that differ, with what is around them.
fn difference(disk: &str, mount: &str) -> Option<String> {
    let (disk, mount): (Vec<_>, Vec<_>) = (disk.lines().collect(), mount.lines().collect());
    let at = (0..disk.len().max(mount.len())).find(|n| disk.get(*n) != mount.get(*n))?;
    let around = |lines: &[&str]| {
        let from = at.saturating_sub(4).min(lines.len());
        lines[from..(at + 3).min(lines.len())].join("\n    ")
    };
    Some(format!("line {at}: disk:\n    {}\n  mount:\n    {}", around(&disk), around(&mount)))
}

/// What programs see of files without a name (O_TMPFILE).
fn nameless(dir: &Path) -> Vec<String> {
    std::fs::create_dir(dir).unwrap();
    std::fs::create_dir(dir.join("d")).unwrap();
    let mut said = Vec::new();
    let open = |place: &str, flags: OFlags| {
        rfs::open(dir.join(place), OFlags::TMPFILE | flags, Mode::from_raw_mode(0o640))
    };
    let give = |file: &OwnedFd, name: &str| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rfs::linkat(CWD, path, CWD, dir.join(name), AtFlags::SYMLINK_FOLLOW)
    };
    let shows = |stat: rfs::Stat| (stat.st_mode, stat.st_nlink, stat.st_size);
    let listed = || std::fs::read_dir(dir).unwrap().count();
    // In the row, and in chunks.
    for bytes in [0, 100, 5 << 20] {
        let data = vec![b'x'; bytes];
        let file = open("d", OFlags::RDWR).unwrap();
        std::fs::File::from(file.try_clone().unwrap()).write_all(&data).unwrap();
        said.push(format!("{:?} {}", shows(rfs::fstat(&file).unwrap()), listed()));
        let name = format!("named-{bytes}");
        said.push(format!("{:?}", give(&file, &name)));
        said.push(format!("{:?}", give(&file, &name)));
        said.push(format!("{:?}", give(&file, &format!("d/again-{bytes}"))));
        said.push(format!("{:?} {}", shows(rfs::fstat(&file).unwrap()), listed()));
        std::fs::File::from(file).write_all(b"more").unwrap();
        let content = std::fs::read(dir.join(&name)).unwrap();
        said.push(format!("{} {}", content.len(), content.ends_with(b"more")));
        std::fs::remove_file(dir.join(&name)).unwrap();
        said.push(format!(
            "{}",
            std::fs::read(dir.join(format!("d/again-{bytes}"))).unwrap().len()
        ));
    }
    let never = open("d", OFlags::WRONLY | OFlags::EXCL).unwrap();
    said.push(format!("{:?}", give(&never, "never")));
    let removed = std::fs::File::create(dir.join("removed")).unwrap();
    std::fs::remove_file(dir.join("removed")).unwrap();
    said.push(format!("{:?}", give(&removed.into(), "back")));
    said.push(format!("{:?}", open("d", OFlags::RDONLY).map(drop)));
    said.push(format!("{:?}", open("d/again-0", OFlags::RDWR).map(drop)));
    said.push(format!("{:?}", open("none", OFlags::RDWR).map(drop)));
    drop(open("d", OFlags::RDWR));
    said.push(format!("{}", listed()));
    said
}

#[test]
fn files_without_a_name_are_as_on_a_disk() {
    if !can_mount("files_without_a_name_are_as_on_a_disk") {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape { mount: true, ..ClusterShape::default() });
    let disk = nameless(&cluster.scratch().join("nameless"));
    let mount = nameless(&cluster.mount().join("nameless"));
    assert_eq!(disk, mount);
    cluster.fsck();
}

#[test]
fn attributes_have_limits() {
    if !can_mount("attributes_have_limits") {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape { mount: true, ..ClusterShape::default() });
    let file = cluster.mount().join("file");
    std::fs::write(&file, "").unwrap();
    let set = |name: &str, bytes: usize| {
        rfs::setxattr(&file, name, &vec![1; bytes], rfs::XattrFlags::empty())
    };
    // A name takes its bytes and a NUL.
    let room = limits::XATTRS_BYTES_MAX - "user.large".len() - 1;
    assert_eq!(set("user.large", limits::XATTR_VALUE_BYTES_MAX + 1), Err(Errno::TOOBIG));
    assert_eq!(set("user.large", room + 1), Err(Errno::NOSPC));
    assert_eq!(set("user.large", room), Ok(()));
    assert_eq!(set("user.a", 0), Err(Errno::NOSPC));
    let mut small = [0; 100];
    assert_eq!(rfs::getxattr(&file, "user.large", &mut small[..]), Err(Errno::RANGE));
    assert_eq!(rfs::listxattr(&file, &mut small[..5]), Err(Errno::RANGE));
    let mut value = vec![0; limits::XATTR_VALUE_BYTES_MAX];
    assert_eq!(rfs::getxattr(&file, "user.large", &mut value[..]), Ok(room));
    assert_eq!(set("user.large", 1), Ok(()));
    // As many names as there is room for are listed.
    let mut names = 0;
    while set(&format!("user.{names:0250}"), 0).is_ok() {
        names += 1;
    }
    assert_eq!(names, (limits::XATTRS_BYTES_MAX - "user.large".len() - 2) / 256);
    let mut list = vec![0; limits::XATTRS_BYTES_MAX];
    let bytes = rfs::listxattr(&file, &mut list[..]).unwrap();
    assert_eq!(list[..bytes].iter().filter(|b| **b == 0).count(), names + 1);
    assert_eq!(set("user.", 1), Err(Errno::INVAL));
}

#[test]
fn a_mount_says_what_a_disk_says() {
    if !can_mount("a_mount_says_what_a_disk_says") {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape { mount: true, ..ClusterShape::default() });
    let only = std::env::var("SAKER_SCRIPT").unwrap_or_default();
    let mut failures = Vec::new();
    let mut tried = 0;
    for script in scripts() {
        let name = script.file_stem().unwrap().to_str().unwrap().to_owned();
        if !name.contains(&only) {
            continue;
        }
        let disk = run(&script, &cluster.scratch().join(&name));
        let mount = run(&script, &cluster.mount().join(&name));
        assert!(disk.lines().count() > 10, "{name} says nothing: {disk}");
        tried += 1;
        if let Some(difference) = difference(&disk, &mount) {
            failures.push(format!("{name}: {difference}"));
        }
    }
    assert!(tried >= 9 || !only.is_empty(), "only {tried} scripts");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    cluster.fsck();
}
