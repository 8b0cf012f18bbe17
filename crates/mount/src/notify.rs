//! Telling the kernel to drop what it has cached.
//!
//! From a thread of its own: the kernel takes locks on pages for it that a request under way may
//! hold, so the thread that answers that request must not wait here. A simulated kernel takes the
//! other end of the channel instead.

use std::convert::Infallible;

use async_channel::{Receiver, Sender};
use saker_fuse::{Device, Notification};
use saker_runtime::thread;

use crate::names::nodes::FuseNodeId;

/// Notifications that may wait. Beyond that those which nobody waits for are dropped: each only brings
/// forward what the kernel notices at its next GETATTR.
const QUEUE_MAX: usize = 1024;

/// A place to leave notifications.
pub struct Notifier(Sender<Notice>);

/// The kernel's end.
pub struct Notices(Receiver<Notice>);

/// A notification that was left. When this is dropped the kernel has heeded it.
pub struct Notice {
    /// What it says.
    pub what: Notification,
    /// Closed when the kernel has been told.
    _told: Option<Sender<Infallible>>,
}

impl Notifier {
    /// Both ends.
    pub fn new() -> (Notifier, Notices) {
        let (sender, receiver) = async_channel::bounded(QUEUE_MAX);
        (Notifier(sender), Notices(receiver))
    }

    /// Pages of `len` bytes from `offset` on, and the attributes, are not what the file holds.
    pub(crate) fn pages(&self, node: FuseNodeId, offset: u64, len: u64) {
        let what = Notification::Pages { node, offset, len };
        // Dropped when the queue is full: see above.
        let _ = self.0.try_send(Notice { what, _told: None });
    }

    /// The cached attributes of an inode are gone when this ends.
    pub(crate) async fn drop_attributes(&self, node: FuseNodeId) {
        self.tell(Notification::Attributes { node }).await;
    }

    /// All cached pages and the attributes of an inode are gone when this ends. Not while a READ
    /// or WRITE of it is handled: the kernel waits for the pages of those.
    pub(crate) async fn drop_pages(&self, node: FuseNodeId) {
        self.tell(Notification::Pages { node, offset: 0, len: 0 }).await;
    }

    async fn tell(&self, what: Notification) {
        let (told, heard) = async_channel::bounded(1);
        // Without the other end the mount is gone, and the message is dropped.
        let _ = self.0.send(Notice { what, _told: Some(told) }).await;
        let Err(_closed) = heard.recv().await;
    }
}

impl Notices {
    /// The next one; `None` when the notifier is gone.
    pub async fn next(&self) -> Option<Notice> {
        self.0.recv().await.ok()
    }

    /// Tells them to the kernel, from a thread that ends when the notifier is dropped.
    ///
    /// # Errors
    /// The system's, when it has no room for a thread.
    pub(crate) fn deliver(self, device: Device) -> std::io::Result<()> {
        let run = move || {
            while let Ok(notice) = self.0.recv_blocking() {
                // ENOENT: the kernel does not hold the inode any more.
                let _ = device.notify(&notice.what);
            }
        };
        thread::spawn("saker-notify", run).map(drop)
    }
}
