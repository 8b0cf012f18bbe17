//! `/dev/fuse`: requests in, replies and notifications out.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::buffer::Buffer;
use crate::abi::OutHeader;
use crate::notify::Notification;
use crate::reply::Reply;
use crate::request::Request;

const PATH: &str = "/dev/fuse";
/// `_IOR(229, 0, uint32_t)`: makes a fresh `/dev/fuse` another channel of a mounted one.
const FUSE_DEV_IOC_CLONE: libc::Ioctl = 0x8004_e500u32 as libc::Ioctl;

/// What a channel has.
pub(super) enum Read {
    /// A request.
    Request(Request),
    /// None now.
    Nothing,
    /// None any more: the mount is gone.
    End,
}

/// A channel of a mount's connection to the kernel.
#[derive(Clone)]
pub struct Device(Arc<OwnedFd>);

impl Device {
    /// Opens `/dev/fuse`, not mounted yet.
    ///
    /// # Errors
    /// As open(2).
    pub fn open() -> rustix::io::Result<Device> {
        let fd = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Device::from(fd))
    }

    /// Another channel, which does not block: its own queue of requests under way, without
    /// contention with this one. Where the kernel refuses, this one is shared.
    pub(crate) fn clone_channel(&self) -> std::io::Result<Device> {
        let cloned = Device::open().and_then(|fresh| {
            let old = self.0.as_raw_fd();
            // SAFETY: the call reads one u32 at `old`, which outlives it; both descriptors are
            // open.
            let done =
                unsafe { libc::ioctl(fresh.0.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const old) };
            if done < 0 { Err(Errno::INVAL) } else { Ok(fresh) }
        });
        let channel = cloned.unwrap_or_else(|_| self.share());
        let flags = rustix::fs::fcntl_getfl(&channel)?;
        rustix::fs::fcntl_setfl(&channel, flags | OFlags::NONBLOCK)?;
        Ok(channel)
    }

    /// The same channel, for notifications.
    pub fn share(&self) -> Device {
        Device(Arc::clone(&self.0))
    }

    /// Takes the next request, if there is one.
    pub(super) fn read(&self, buffer: &mut Buffer) -> Read {
        loop {
            match rustix::io::read(&*self.0, buffer.room()) {
                Ok(len) => match Request::parse(buffer.take(len).into()) {
                    Some(request) => return Read::Request(request),
                    None => tracing::error!("a request of {len} bytes makes no sense"),
                },
                // ENOENT: the request was taken back before it was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Read::Nothing,
                // Unmounted; aborted through /sys/fs/fuse.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Read::End,
                Err(error) => {
                    tracing::error!("reading /dev/fuse: {error}");
                    return Read::End;
                }
            }
        }
    }

    /// Answers the request `unique`.
    pub(crate) fn reply(&self, reply: &Reply, unique: u64) {
        let header = reply.header(unique);
        let [head, data] = reply.parts();
        match rustix::io::writev(&*self.0, &[IoSlice::new(header.as_bytes()), head, data]) {
            Ok(_) => {}
            // The connection is gone, and the request with it. (A request that was read is
            // waited for to its end, also by a killed caller, so nothing needs to be undone.)
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::error!("the kernel refused a reply: {error}");
                let header = Reply::error(saker_types::Errno::EIO).header(unique);
                // Whoever waits must get something; a second failure leaves nothing to try.
                let _ = rustix::io::write(&*self.0, header.as_bytes());
            }
        }
    }

    /// Tells the kernel something that it has not asked for. When this returns it has heeded it, for
    /// which it may have waited for pages.
    ///
    /// # Errors
    /// ENOENT: it does not know what that is about.
    pub fn notify(&self, notification: &Notification) -> rustix::io::Result<()> {
        let (code, body) = notification.wire();
        let len = size_of::<OutHeader>() + size_of_val(&body);
        let header = OutHeader { len: len as u32, error: code, unique: 0 };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body.as_bytes())];
        rustix::io::writev(&*self.0, &parts).map(drop)
    }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Device {
        Device(Arc::new(fd))
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
