//! Where the kernel's model meets the real mount.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use saker_client::Fs;
use saker_fuse::{Dispatch as _, Notification, Request};
use saker_mount::{MountOptions, MountService, Notices, Notifier, Shortcut};
use saker_types::Errno;

use super::kernel::{self, Kernel, KernelAnswer};

/// A mount.
pub struct SimMount(Rc<MountService>);

impl kernel::RequestHandler for SimMount {
    fn answer(&self, request: Bytes) -> KernelAnswer {
        let served = self.0.clone();
        Box::pin(async move {
            let Some(request) = Request::parse(request) else {
                return Some((Errno::EIO.0, Bytes::new()));
            };
            let reply = served.handle(&request).await;
            if reply.silent {
                return None;
            }
            let mut body = reply.head;
            body.extend_from_slice(&reply.data);
            Some((reply.errno, body.into()))
        })
    }
}

/// A mount of `fs`, and what it tells its kernel unasked.
pub fn mount(fs: Fs, options: &MountOptions, hints: kernel::SimHints) -> (SimMount, [Notices; 2]) {
    let ((pages, first), (attributes, second)) = (Notifier::new(), Notifier::new());
    let hints: Option<Arc<dyn saker_mount::hint::Hints>> = match options.shortcut {
        Shortcut::Bpf => Some(Arc::new(hints)),
        Shortcut::Off => None,
    };
    let served = MountService::new(fs, hints, [pages, attributes], options);
    (SimMount(Rc::new(served)), [first, second])
}

/// Lets a kernel heed all that its mount tells it.
pub async fn heed(notices: &Notices, kernel: &Kernel) {
    while let Some(notice) = notices.next().await {
        match notice.what {
            Notification::Attributes { node } => kernel.heed(node, false),
            Notification::Pages { node, .. } => kernel.heed(node, true),
        }
    }
}
