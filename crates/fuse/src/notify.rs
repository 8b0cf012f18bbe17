//! Telling the kernel to drop what it has cached.
//!
//! From a thread of its own: the kernel takes locks on pages for it that a request under way may
//! hold, so the thread that answers that request must not wait here.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use saker_runtime::thread;
use saker_types::InodeId;
use zerocopy::IntoBytes;

use crate::abi::{NOTIFY_INVAL_INODE, NotifyInvalInode};
use crate::transport::Device;

/// Notifications that may wait. Beyond that they are dropped: each only brings forward what the
/// kernel notices at its next GETATTR.
const QUEUE_MAX: usize = 1024;

/// A place to leave notifications.
#[derive(Clone)]
pub(crate) struct Notifier {
    queue: SyncSender<NotifyInvalInode>,
    device: Device,
}

impl Notifier {
    /// Starts the thread; it ends when the notifier is dropped.
    ///
    /// # Errors
    /// The system's, when it has no room for a thread.
    pub(crate) fn start(device: Device) -> std::io::Result<Notifier> {
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let notified = device.share();
        thread::spawn("saker-notify", move || run(&notified, &receiver))?;
        Ok(Notifier { queue: sender, device })
    }

    /// Pages of `len` bytes from `offset` on, and the attributes, are not what the file holds.
    pub(crate) fn pages(&self, node: InodeId, offset: u64, len: u64) {
        let [off, len] = [offset, len].map(|n| i64::try_from(n).unwrap_or(0));
        // Dropped when the queue is full: see above.
        let _ = self.queue.try_send(NotifyInvalInode { ino: node, off, len });
    }

    /// All cached pages and the attributes of an inode are gone when this returns. Not while a
    /// READ or WRITE is handled: it waits for the pages of those.
    pub(crate) fn drop_pages(&self, node: InodeId) {
        let body = NotifyInvalInode { ino: node, off: 0, len: 0 };
        // ENOENT: the kernel does not hold the inode any more.
        let _ = self.device.notify(NOTIFY_INVAL_INODE, body.as_bytes());
    }
}

fn run(device: &Device, queue: &Receiver<NotifyInvalInode>) {
    for body in queue {
        // ENOENT: the kernel does not hold the inode any more.
        let _ = device.notify(NOTIFY_INVAL_INODE, body.as_bytes());
    }
}
