//! Attaching `/dev/fuse` to a directory and taking it away again.
//!
//! As root by [`direct`]; else by `fusermount3`, which is set-uid root and passes the descriptor
//! back over a socket.

pub(crate) mod direct;
mod helper;
mod table;

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use saker_fuse::{Device, MAX_WRITE_BYTES};
use saker_types::{Errno, Error, Result};

use crate::options::MountOptions;

/// Which of FUSE's file systems this is.
const SUBTYPE: &str = "saker";
/// File system type shown by mount(8).
pub(crate) const FS_TYPE: &str = "fuse.saker";
/// How far ahead of a reader the kernel reads: so that a file of that size comes as one request, and its
/// record from the disk as a whole.
pub(crate) const READ_AHEAD_BYTES: usize = MAX_WRITE_BYTES;
/// How long a busy mount is asked to go before it is detached.
const BUSY_RETRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// A mount point that was attached.
#[derive(Clone, Debug)]
pub(crate) struct Mounted {
    /// Absolute, without symbolic links.
    pub(crate) path: PathBuf,
    /// Below is what a killed mount has left.
    on_dead: bool,
}

/// Mounts at `path`; `source` is what mount(8) shows.
///
/// # Errors
/// ENOENT, ENOTDIR for the mount point, EBUSY if a Saker file system is there already, ENXIO
/// without `/dev/fuse`, EPERM without the right to mount; each with words.
pub(crate) fn mount(
    path: &Path,
    source: &str,
    options: &MountOptions,
) -> Result<(Device, Mounted)> {
    let path = canonical(path)?;
    let dead = check(&path)?;
    if dead.is_some() {
        tracing::warn!("{}: replacing what a killed mount has left", path.display());
    }
    let (device, on_dead) = if rustix::process::geteuid().is_root() {
        as_root(&path, source, options, dead)?
    } else {
        // The helper refuses to mount over a dead one.
        clear(&path);
        (helper::mount(&path, &helper_options(source, options))?, false)
    };
    if let Err(error) = read_ahead(&path) {
        tracing::info!(
            "the kernel reads 128 KiB ahead, not {} KiB: {error}",
            READ_AHEAD_BYTES >> 10
        );
    }
    Ok((device, Mounted { path, on_dead }))
}

/// Mounts in place of `dead`, or on top of what cannot be replaced: the second of what is returned.
fn as_root(
    path: &Path,
    source: &str,
    options: &MountOptions,
    dead: Option<OwnedFd>,
) -> Result<(Device, bool)> {
    if let Some(dead) = &dead {
        match direct::beneath(dead, source, options) {
            Ok(device) => return Ok((device, false)),
            Err(errno) => tracing::info!("{}: mounting on top of it: {errno}", path.display()),
        }
        // Somebody else may have replaced it.
        check(path)?;
    }
    Ok((direct::on_top(path, source, options)?, dead.is_some()))
}

/// Lets the kernel read further ahead than it would by itself, which only root may do.
fn read_ahead(path: &Path) -> Result<()> {
    let line = table::at(path)?.filter(|line| line.kind == FS_TYPE).ok_or(Errno::ENOENT)?;
    let knob = format!("/sys/class/bdi/{}/read_ahead_kb", line.device);
    // A knob of the kernel, not a file that a simulation could hold.
    #[allow(clippy::disallowed_methods)]
    std::fs::write(&knob, (READ_AHEAD_BYTES >> 10).to_string())
        .map_err(|error| Error::new(Errno::EIO).with_text(format!("{knob}: {error}")))
}

/// Checks the mount point: the root of what a killed mount has left there, if there is that.
fn check(path: &Path) -> Result<Option<OwnedFd>> {
    use rustix::io::Errno as Os;
    if !is_ours(path)? {
        let stat = rustix::fs::stat(path).map_err(|e| failed(path, e))?;
        if stat.st_mode & 0o170_000 != 0o040_000 {
            return Err(failed(path, Os::NOTDIR));
        }
        return Ok(None);
    }
    let root = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed(path, e))?;
    // statfs(2) asks the server: the answer to stat(2) may have been kept by the kernel.
    let why = match rustix::fs::fstatfs(&root) {
        // The second answers requests from before the kernel knew.
        Err(Os::NOTCONN | Os::CONNABORTED) => return Ok(Some(root)),
        // Not if the mount is for another user alone.
        Ok(stat) if stat.f_bsize == 0 => {
            "another user's Saker file system is mounted there, dead or alive (umount -l takes it away)"
        }
        _ => "a Saker file system is mounted there",
    };
    Err(Error::new(Errno::EBUSY).with_text(format!("{}: {why}", path.display())))
}

/// Takes what killed mounts have left off a mount point.
fn clear(path: &Path) {
    while let Ok(Some(_)) = check(path) {
        if let Err(error) = detach(path) {
            tracing::warn!("what a killed mount has left stays: {error}");
            return;
        }
    }
}

/// Is a Saker file system mounted there?
fn is_ours(path: &Path) -> Result<bool> {
    Ok(table::at(path)?.is_some_and(|line| line.kind == FS_TYPE))
}

/// The path without symbolic links. Its last component is not followed by stat(2), which fails
/// on what a killed mount leaves behind.
fn canonical(path: &Path) -> Result<PathBuf> {
    let io = |e: std::io::Error| {
        failed(path, rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO))
    };
    let absolute = std::path::absolute(path).map_err(io)?;
    match std::fs::canonicalize(&absolute) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {}
        result => return result.map_err(io),
    }
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(std::fs::canonicalize(parent).map_err(io)?.join(name)),
        _ => Ok(absolute),
    }
}

/// The options for `fusermount3 -o`.
fn helper_options(source: &str, options: &MountOptions) -> String {
    // It takes a comma in a value only behind a backslash.
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let mut text = format!("fsname={source},subtype={SUBTYPE},max_read={MAX_WRITE_BYTES},noatime");
    for (wanted, name) in [
        (options.allow_other, "allow_other"),
        (options.read_only, "ro"),
        (!options.dev, "nodev"),
        (!options.suid, "nosuid"),
        (!options.exec, "noexec"),
    ] {
        if wanted {
            // Writing to a string cannot fail.
            let _ = write!(text, ",{name}");
        }
    }
    text
}

/// Unmounts a Saker file system; also one whose process is gone. `lazy` detaches it at once, and
/// it ends when its last user does.
///
/// # Errors
/// EINVAL if none is mounted there, EBUSY if it is in use and not `lazy`; each with words.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let path = canonical(mountpoint)?;
    if !is_ours(&path)? {
        let text = format!("{}: no Saker file system is mounted there", path.display());
        return Err(Error::new(Errno::EINVAL).with_text(text));
    }
    if lazy {
        detach(&path)?
    } else {
        plain(&path)?
    }
    clear(&path);
    Ok(())
}

impl Mounted {
    /// Unmounts; if it stays in use for half a second, calls `busy` and detaches it.
    pub(crate) fn unmount(&self, busy: impl FnOnce()) -> Result<()> {
        for _ in 0..BUSY_RETRIES {
            match plain(&self.path) {
                Err(error) if error.errno() == Errno::EBUSY => {
                    saker_runtime::time::sleep(BUSY_PAUSE);
                }
                result => return result,
            }
        }
        tracing::warn!("{} is in use: detaching it", self.path.display());
        busy();
        detach(&self.path)
    }

    /// Takes away what this one was mounted on, now that it is gone.
    pub(crate) fn clear_below(&self) {
        if self.on_dead {
            clear(&self.path);
        }
    }
}

fn plain(path: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return helper::unmount(path, false);
    }
    let flags = UnmountFlags::NOFOLLOW;
    rustix::mount::unmount(path, flags).map_err(|e| failed(path, e))
}

fn detach(path: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return helper::unmount(path, true);
    }
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    rustix::mount::unmount(path, flags).map_err(|e| failed(path, e))
}

fn no_device(error: rustix::io::Errno) -> Error {
    let why = match error {
        rustix::io::Errno::NOENT | rustix::io::Errno::NODEV | rustix::io::Errno::NXIO => {
            "the kernel has no FUSE here (modprobe fuse; in a container: --device /dev/fuse)"
        }
        _ => "cannot be opened",
    };
    Error::new(Errno::ENXIO).with_text(format!("/dev/fuse: {why}: {error}"))
}

fn failed(path: &Path, error: rustix::io::Errno) -> Error {
    let errno = u16::try_from(error.raw_os_error()).map_or(Errno::EIO, Errno);
    Error::new(errno).with_text(path.display().to_string())
}
