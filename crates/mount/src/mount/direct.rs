//! Mounting as root, by mount(2).
//!
//! What a killed mount has left is covered until the new one is there. Taking it away first would
//! uncover the directory below for some milliseconds, and whoever writes to it then writes files
//! that nobody sees any more. So the new one is put beneath it by fsopen(2), fsmount(2) and
//! move_mount(2).

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use saker_fuse::{Device, MAX_WRITE_BYTES};
use saker_types::{Errno, Error, Result};

use super::{FS_TYPE, SUBTYPE, failed, no_device};
use crate::options::MountOptions;

/// Mounts at `path`, over whatever is there.
pub(crate) fn on_top(path: &Path, source: &str, options: &MountOptions) -> Result<Device> {
    let device = Device::open().map_err(no_device)?;
    let own = own_options(&device);
    let own: Vec<_> = own.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut data = own.join(",");
    if options.allow_other {
        data.push_str(",allow_other");
    }
    // Reading sets no times (`Attr::atime_ns`).
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NOEXEC, !options.exec);
    let data = CString::new(data).map_err(|_| Error::new(Errno::EINVAL))?;
    rustix::mount::mount(source, path, FS_TYPE, flags, data.as_c_str())
        .map_err(|e| failed(path, e))?;
    Ok(device)
}

/// Mounts in place of a dead mount, of which `dead` is the root.
///
/// # Errors
/// Before Linux 6.5; if `dead` is not there any more, or not on top; where security modules or
/// filters of system calls know mount(2) only.
pub(super) fn beneath(
    dead: &OwnedFd,
    source: &str,
    options: &MountOptions,
) -> rustix::io::Result<Device> {
    let device = Device::open()?;
    let mount = make(&device, source, options)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
        | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH
        | MoveMountFlags::MOVE_MOUNT_BENEATH;
    move_mount(mount, "", dead, "", flags)?;
    let dead = format!("/proc/self/fd/{}", dead.as_raw_fd());
    rustix::mount::unmount(dead, UnmountFlags::DETACH)?;
    Ok(device)
}

/// A mount that is nowhere yet.
fn make(device: &Device, source: &str, options: &MountOptions) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(fs.as_fd(), "source", source)?;
    fsconfig_set_string(fs.as_fd(), "subtype", SUBTYPE)?;
    for (key, value) in own_options(device) {
        fsconfig_set_string(fs.as_fd(), key, value)?;
    }
    for (wanted, key) in [(options.allow_other, "allow_other"), (options.read_only, "ro")] {
        if wanted {
            fsconfig_set_flag(fs.as_fd(), key)?;
        }
    }
    fsconfig_create(fs.as_fd())?;
    // As the flags of mount(2) above.
    let mut attrs = MountAttrFlags::MOUNT_ATTR_NOATIME;
    attrs.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    attrs.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.dev);
    attrs.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.suid);
    attrs.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !options.exec);
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attrs)
}

/// FUSE's options that have a value (fuse(4)).
fn own_options(device: &Device) -> [(&'static str, String); 5] {
    [
        ("fd", device.as_fd().as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", rustix::process::getuid().as_raw().to_string()),
        ("group_id", rustix::process::getgid().as_raw().to_string()),
        ("max_read", MAX_WRITE_BYTES.to_string()),
    ]
}
