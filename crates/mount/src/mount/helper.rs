//! `fusermount3`: mounting without root.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use saker_fuse::Device;
use saker_types::{Errno, Error, Result};

const HELPER: &str = "fusermount3";
/// Where the helper finds the number of its end of the socket.
const SOCKET_ENV: &str = "_FUSE_COMMFD";

/// Lets the helper mount, and receives `/dev/fuse` from it.
pub(super) fn mount(path: &Path, options: &str) -> Result<Device> {
    let pair = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let (ours, theirs) = pair.map_err(|e| io(&e.into()))?;
    // The helper inherits its end: this descriptor is not closed on exec.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(|e| io(&e.into()))?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(options).arg("--").arg(path);
    command.env(SOCKET_ENV, theirs.as_raw_fd().to_string()).stdin(Stdio::null());
    let mut child = command.spawn().map_err(|e| io(&e))?;
    drop(theirs);
    let received = receive(&ours);
    let status = child.wait().map_err(|e| io(&e))?;
    match received {
        Some(fd) if status.success() => Ok(Device::from(fd)),
        _ => Err(refused(path, status)),
    }
}

/// The descriptor that comes over the socket, if the helper sends one before it ends.
fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let parts = &mut [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Lets the helper unmount.
pub(super) fn unmount(path: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path);
    let output = command.stdin(Stdio::null()).output().map_err(|e| io(&e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let errno = if said.contains("busy") { Errno::EBUSY } else { Errno::EPERM };
    Err(Error::new(errno).with_text(format!("{}: {}", path.display(), said.trim())))
}

fn refused(path: &Path, status: ExitStatus) -> Error {
    let text = format!("{}: {HELPER} did not mount ({status})", path.display());
    Error::new(Errno::EPERM).with_text(text)
}

fn io(error: &std::io::Error) -> Error {
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => " (package fuse3; needed to mount without root)",
        _ => "",
    };
    Error::new(Errno::ENXIO).with_text(format!("{HELPER}: {error}{hint}"))
}
