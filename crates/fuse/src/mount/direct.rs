//! Mounting as root: fsopen(2), fsmount(2), move_mount(2) (Linux 5.2).
//!
//! What a killed mount has left is covered until the new one is there. Taking it away first would
//! uncover the directory below for some milliseconds, and whoever writes to it then writes files
//! that nobody sees any more.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use saker_types::Result;

use super::{SUBTYPE, detach, failed};
use crate::options::MountOptions;
use crate::transport::{Device, MAX_WRITE_BYTES};

/// Mounts at `path`, in place of the dead mount there if `replace`.
pub(crate) fn mount(
    path: &Path,
    source: &str,
    options: &MountOptions,
    replace: bool,
) -> Result<Device> {
    let device = Device::open().map_err(super::no_device)?;
    let mount = make(&device, source, options).map_err(|e| failed(path, e))?;
    if !replace {
        return place(&mount, path, MoveMountFlags::empty()).map(|()| device);
    }
    match place(&mount, path, MoveMountFlags::MOVE_MOUNT_BENEATH) {
        Ok(()) => detach(path)?,
        // Before Linux 6.5, or where mounts are shared in a way that forbids it: on top, and the
        // dead one goes when this one does (`super::clear`).
        Err(_) => place(&mount, path, MoveMountFlags::empty())?,
    }
    Ok(device)
}

/// A mount that is nowhere yet.
fn make(device: &Device, source: &str, options: &MountOptions) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [
        ("source", source),
        ("subtype", SUBTYPE),
        ("fd", &device.as_fd().as_raw_fd().to_string()),
        ("rootmode", "40000"),
        ("user_id", &rustix::process::getuid().as_raw().to_string()),
        ("group_id", &rustix::process::getgid().as_raw().to_string()),
        ("max_read", &MAX_WRITE_BYTES.to_string()),
    ] {
        fsconfig_set_string(fs.as_fd(), key, value)?;
    }
    for (wanted, key) in [(options.allow_other, "allow_other"), (options.read_only, "ro")] {
        if wanted {
            fsconfig_set_flag(fs.as_fd(), key)?;
        }
    }
    fsconfig_create(fs.as_fd())?;
    // Reading sets no times (`Attr::atime_ns`).
    let mut attrs = MountAttrFlags::MOUNT_ATTR_NOATIME;
    attrs.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    attrs.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.dev);
    attrs.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.suid);
    attrs.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !options.exec);
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attrs)
}

fn place(mount: &OwnedFd, path: &Path, flags: MoveMountFlags) -> Result<()> {
    let flags = flags | MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(mount, "", CWD, path, flags).map_err(|e| failed(path, e))
}
