//! Saker mounts of this machine: found, and waited for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use saker_runtime::time;

use crate::fail::{Context, Failure, Outcome};
use crate::procfs::{self, MountEntry};

/// Type of our mounts in `/proc/self/mountinfo`.
pub const FSTYPE: &str = "fuse.saker";

/// Is something of ours mounted at exactly this place? Asks the kernel's table only, so that a
/// dead mount cannot hang the caller.
pub fn is_mounted(point: &Path) -> bool {
    procfs::mount_at(point).is_some_and(|mount| mount.fstype == FSTYPE)
}

/// Waits until the file system at `point` is ours and answers; false at the end of the time.
pub fn wait_mounted(point: &Path, at_most: Duration) -> bool {
    let deadline = time::now() + at_most;
    while time::now() < deadline {
        if is_mounted(point) && answers(point, deadline - time::now()) {
            return true;
        }
        time::sleep(Duration::from_millis(10));
    }
    false
}

/// Does the file system answer a stat? Asked by a thread that may be left behind, because a dead
/// server would hang whoever asks.
pub fn answers(point: &Path, at_most: Duration) -> bool {
    let (tell, told) = std::sync::mpsc::channel();
    let point = point.to_owned();
    let asked = saker_runtime::thread::spawn("mount-probe", move || {
        // Nobody listens any more when it took too long.
        let _ = tell.send(std::fs::metadata(&point).is_ok());
    });
    asked.is_ok() && told.recv_timeout(at_most).unwrap_or(false)
}

/// Makes the mount point if it is missing, and returns it absolute and without symlinks.
pub fn prepare(point: &Path) -> Outcome<PathBuf> {
    // A dead mount can be neither looked at nor made: the table knows it by its name.
    let plain = std::path::absolute(point).about(point.display())?;
    if is_mounted(&plain) {
        return Ok(plain);
    }
    std::fs::create_dir_all(&plain).about(plain.display())?;
    std::fs::canonicalize(&plain).about(plain.display())
}

/// A place below a Saker mount.
#[derive(Debug, PartialEq, Eq)]
pub struct Inside {
    /// Where the mount is.
    pub point: PathBuf,
    /// Source of the mount: the cluster, as the mount command was told.
    pub source: std::ffi::OsString,
    /// The path within the cluster, absolute.
    pub path: PathBuf,
}

/// The place within a cluster that a local path names, if it lies below a Saker mount.
///
/// The mount's directory is compared by name after making the path absolute; symlinks in the part
/// outside the mount are followed, those inside are the cluster's own business.
pub fn inside(path: &Path) -> Outcome<Option<Inside>> {
    let mounts = procfs::mounts().about("/proc/self/mountinfo")?;
    if !mounts.iter().any(|mount| mount.fstype == FSTYPE) {
        return Ok(None);
    }
    let plain = std::path::absolute(path).about(path.display())?;
    Ok(locate(&plain, &mounts).or_else(|| locate(&follow_outside(&plain)?, &mounts)))
}

/// The innermost mount above `path`, if it is ours.
fn locate(path: &Path, mounts: &[MountEntry]) -> Option<Inside> {
    let above = mounts.iter().rev().filter(|mount| path.starts_with(&mount.point));
    let mount = above.max_by_key(|mount| mount.point.components().count())?;
    let rest = path.strip_prefix(&mount.point).ok()?;
    (mount.fstype == FSTYPE).then(|| Inside {
        point: mount.point.clone(),
        source: mount.source.clone(),
        path: mount.root.join(rest),
    })
}

/// Resolves the longest part that can be resolved.
fn follow_outside(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|above| {
        let real = std::fs::canonicalize(above).ok()?;
        Some(real.join(path.strip_prefix(above).ok()?))
    })
}

/// Explains a refusal to mount in words that help.
pub fn explain(point: &Path, why: &dyn std::fmt::Display) -> Failure {
    if !Path::new("/dev/fuse").exists() {
        let hint = "there is no /dev/fuse here: load the kernel's fuse module (modprobe fuse), or \
                    start the container with --device /dev/fuse --cap-add SYS_ADMIN";
        return Failure::new(point.display(), hint);
    }
    let both = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    if rustix::fs::access("/dev/fuse", both).is_err() {
        let hint = "you may not open /dev/fuse: mount as root, or let all users (chmod 666)";
        return Failure::new(point.display(), format!("{why}; {hint}"));
    }
    Failure::new(point.display(), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(point: &str, root: &str, fstype: &str) -> MountEntry {
        let (point, root) = (point.into(), root.into());
        MountEntry { point, root, fstype: fstype.to_owned(), source: "c:1".into() }
    }

    #[test]
    fn the_innermost_mount_decides() {
        let mounts = [
            mount("/", "/", "ext4"),
            mount("/mnt", "/", FSTYPE),
            mount("/mnt/deep/er", "/", "tmpfs"),
            mount("/bound", "/data/set", FSTYPE),
        ];
        let path = |text: &str| locate(Path::new(text), &mounts).map(|found| found.path);
        assert_eq!(path("/mnt/a/b"), Some("/a/b".into()));
        assert_eq!(path("/mnt"), Some("/".into()));
        assert_eq!(path("/mnt/deep"), Some("/deep".into()));
        assert_eq!(path("/mnt/deep/er/x"), None);
        assert_eq!(path("/mntx"), None);
        assert_eq!(path("/bound/y"), Some("/data/set/y".into()));
    }

    #[test]
    fn an_ordinary_place_is_no_mount() {
        assert!(!is_mounted(Path::new("/proc")));
        assert!(answers(Path::new("/"), Duration::from_secs(5)));
        assert!(!answers(Path::new("/no/such/place"), Duration::from_secs(5)));
    }
}
