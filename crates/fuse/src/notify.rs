//! What the kernel is told unasked.

use crate::abi::{NOTIFY_INVAL_INODE, NotifyInvalInode};

/// One notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Attributes of an inode are not what the kernel has cached.
    Attributes {
        /// The inode's node.
        node: u64,
    },
    /// Nor are its pages from `offset` on.
    Pages {
        /// The inode's node.
        node: u64,
        /// In bytes.
        offset: u64,
        /// In bytes; 0: to the end.
        len: u64,
    },
}

impl Notification {
    /// Code and structure of the ABI.
    pub(crate) fn wire(&self) -> (i32, NotifyInvalInode) {
        let body = match *self {
            Notification::Attributes { node } => NotifyInvalInode { ino: node, off: -1, len: 0 },
            Notification::Pages { node, offset, len } => {
                let [off, len] = [offset, len].map(|n| i64::try_from(n).unwrap_or(0));
                NotifyInvalInode { ino: node, off, len }
            }
        };
        (NOTIFY_INVAL_INODE, body)
    }
}
