//! A disk that can lose its power: a file system of its own on a loop device.
//!
//! It is shut down without its log being flushed, which is what `xfs_io -x -c shutdown` does: dirty pages
//! and what is not in the log yet never reach the disk. Mounted again, it replays its log.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;

use crate::shell::CommandShell;
use crate::wait::until;

/// Size of an image; it is sparse.
const IMAGE_BYTES: u64 = 2 << 30;
/// `XFS_IOC_GOINGDOWN`, which ext4 has, too: `_IOR('X', 125, __u32)`.
const GOING_DOWN: libc::c_ulong = 0x8004_587d;
/// Its argument: the log is not flushed.
const NO_LOG_FLUSH: u32 = 2;
/// `FIFREEZE` and `FITHAW` of linux/fs.h: `_IOWR('X', 119, int)`, `_IOWR('X', 120, int)`.
const FREEZE: libc::c_ulong = 0xc004_5877;
const THAW: libc::c_ulong = 0xc004_5878;

/// What is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopFormat {
    /// xfs.
    Xfs,
    /// ext4.
    Ext4,
}

impl LoopFormat {
    /// They take turns.
    pub fn of(n: usize) -> LoopFormat {
        if n.is_multiple_of(2) { LoopFormat::Xfs } else { LoopFormat::Ext4 }
    }

    fn program(self) -> &'static str {
        match self {
            LoopFormat::Xfs => "mkfs.xfs",
            LoopFormat::Ext4 => "mkfs.ext4",
        }
    }
}

/// A mounted disk; unmounted when dropped.
pub struct LoopDisk {
    image: PathBuf,
    point: PathBuf,
}

impl LoopDisk {
    /// Makes it in the file `image`, and mounts it at `point`. Needs root.
    ///
    /// # Panics
    /// When that does not work, as all of this does.
    pub fn new(format: LoopFormat, image: &Path, point: &Path, shell: &mut CommandShell) -> Self {
        std::fs::create_dir_all(point).expect("the mount point can be made");
        let file = File::create(image).expect("an image can be made");
        file.set_len(IMAGE_BYTES).expect("an image can be made");
        run(Command::new(format.program()).arg("-q").arg(image));
        let disk = LoopDisk { image: image.to_owned(), point: point.to_owned() };
        disk.mount(shell);
        // ext4 makes it; a new directory is expected to be empty.
        let _ = std::fs::remove_dir(disk.point.join("lost+found"));
        disk
    }

    /// Where it is mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Mounts it again.
    pub fn mount(&self, shell: &mut CommandShell) {
        let words = ["mount".as_ref(), "-o".as_ref(), "loop".as_ref()];
        shell.run(&[&words[..], &[self.image.as_os_str(), self.point.as_os_str()]].concat());
    }

    /// Unmounts it, as soon as nobody uses it.
    pub fn unmount(&self) {
        let what = format!("nobody uses {}", self.point.display());
        until(&what, || rustix::mount::unmount(&self.point, UnmountFlags::empty()).is_ok());
    }

    fn open(&self) -> File {
        File::open(&self.point).expect("a mounted file system can be opened")
    }

    /// From now on nothing reaches the disk.
    pub fn cut(&self) {
        let dir = self.open();
        // SAFETY: the call reads one u32 from a pointer that is valid during it.
        let ret = unsafe { libc::ioctl(dir.as_raw_fd(), GOING_DOWN, &NO_LOG_FLUSH) };
        assert_eq!(ret, 0, "{}: {}", self.point.display(), std::io::Error::last_os_error());
    }

    /// Whoever writes waits, until what this returns is dropped.
    pub fn freeze(&self) -> Frozen {
        let dir = self.open();
        // SAFETY: the call ignores its argument.
        let ret = unsafe { libc::ioctl(dir.as_raw_fd(), FREEZE, 0) };
        assert_eq!(ret, 0, "{}: {}", self.point.display(), std::io::Error::last_os_error());
        Frozen(dir)
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
    }
}

/// A disk that does nothing.
pub struct Frozen(File);

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: the call ignores its argument.
        let ret = unsafe { libc::ioctl(self.0.as_raw_fd(), THAW, 0) };
        assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
