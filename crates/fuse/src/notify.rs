//! Telling the kernel to drop what it has cached.
//!
//! From a thread of its own: the kernel takes locks on pages for it that a request under way may
//! hold, so the thread that answers that request must not wait here.

use std::convert::Infallible;

use async_channel::{Receiver, Sender};
use saker_runtime::thread;

use zerocopy::IntoBytes;

use crate::abi::{NOTIFY_INVAL_INODE, NotifyInvalInode};
use crate::nodes::NodeId;
use crate::transport::Device;

/// Notifications that may wait. Beyond that those which nobody waits for are dropped: each only brings
/// forward what the kernel notices at its next GETATTR.
const QUEUE_MAX: usize = 1024;

/// A place to leave notifications.
pub(crate) struct Notifier(Sender<Message>);

struct Message {
    body: NotifyInvalInode,
    /// Closed when the kernel has been told.
    told: Option<Sender<Infallible>>,
}

impl Notifier {
    /// Starts the thread; it ends when the notifier is dropped.
    ///
    /// # Errors
    /// The system's, when it has no room for a thread.
    pub(crate) fn start(device: Device) -> std::io::Result<Notifier> {
        let (sender, receiver) = async_channel::bounded(QUEUE_MAX);
        thread::spawn("saker-notify", move || run(&device, &receiver))?;
        Ok(Notifier(sender))
    }

    /// Pages of `len` bytes from `offset` on, and the attributes, are not what the file holds.
    pub(crate) fn pages(&self, node: NodeId, offset: u64, len: u64) {
        let [off, len] = [offset, len].map(|n| i64::try_from(n).unwrap_or(0));
        let body = NotifyInvalInode { ino: node, off, len };
        // Dropped when the queue is full: see above.
        let _ = self.0.try_send(Message { body, told: None });
    }

    /// The cached attributes of an inode are gone when this ends.
    pub(crate) async fn drop_attributes(&self, node: NodeId) {
        self.tell(NotifyInvalInode { ino: node, off: -1, len: 0 }).await;
    }

    /// All cached pages and the attributes of an inode are gone when this ends. Not while a READ
    /// or WRITE of it is handled: the kernel waits for the pages of those.
    pub(crate) async fn drop_pages(&self, node: NodeId) {
        self.tell(NotifyInvalInode { ino: node, off: 0, len: 0 }).await;
    }

    async fn tell(&self, body: NotifyInvalInode) {
        let (told, heard) = async_channel::bounded(1);
        // Without the thread the mount is gone, and the message is dropped.
        let _ = self.0.send(Message { body, told: Some(told) }).await;
        let Err(_closed) = heard.recv().await;
    }
}

fn run(device: &Device, queue: &Receiver<Message>) {
    while let Ok(message) = queue.recv_blocking() {
        // ENOENT: the kernel does not hold the inode any more.
        let _ = device.notify(NOTIFY_INVAL_INODE, message.body.as_bytes());
        drop(message.told);
    }
}
