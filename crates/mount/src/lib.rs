//! A mounted Saker file system: requests of the kernel become calls of the client library.
//!
//! Thin by intent: parse -> client call -> reply. `saker_fuse` moves requests and replies,
//! [`MountService`] answers them with one function for each operation (`ops/`), `names` knows what the
//! kernel holds, what a LOOKUP is for and where its walk began, `handles` what it has open,
//! `changes` whether what an open said still counts, `refusals` which READs do not, `mount` attaches
//! all that to a directory.
//! The server checks permissions; nothing here is a cache that correctness needs.
//!
//! [`MountService`] can do without a kernel: whoever plays it makes requests, tells hints, and takes
//! the other end of the notifications.

mod attr;
mod caller;
mod changes;
mod errno;
mod handles;
mod mount;
mod names;
mod notify;
mod ops;
mod options;
mod protect;
mod reactor;
mod refusals;
mod root;
mod service;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use saker_client::Fs;
use saker_fuse::FuseTransport;
use saker_runtime::telemetry::{Registry, serve_http};
use saker_runtime::thread;
use saker_types::{Errno, Error, Result};

pub use mount::unmount;
pub use names::hint;
pub use notify::{Notice, Notices, Notifier};
pub use options::{Leases, MountOptions, Shortcut};
pub use saker_fuse::Mode as TransportMode;
pub use service::MountService;

use hint::{Hints, KernelHints};
use mount::Mounted;
use reactor::ClientReactor;
use root::Root;

/// How often it is tried to serve metrics at an address that another process has.
const METRICS_RETRY: Duration = Duration::from_secs(1);

/// A mounted Saker file system. The kernel's requests wait until [`Mount::run`] serves them.
pub struct Mount {
    transport: FuseTransport<MountService, ClientReactor>,
    served: Arc<MountService>,
    /// `None`: not wanted.
    hints: Option<Arc<KernelHints>>,
    mounted: Mounted,
}

/// What other threads can do with a [`Mount`].
#[derive(Clone)]
pub struct MountHandle {
    mounted: Mounted,
    served: Arc<MountService>,
}

impl Mount {
    /// Mounts `fs` on the directory `mountpoint`. What a killed mount has left there is replaced.
    ///
    /// # Errors
    /// With words: ENOENT or ENOTDIR for the mount point, EBUSY if a Saker file system is there,
    /// ENXIO without FUSE in the kernel, EPERM without the right to mount, EIO if it cannot listen
    /// at `options.http`.
    pub fn new(fs: Fs, mountpoint: &Path, options: MountOptions) -> Result<Mount> {
        let source = match &options.fsname {
            Some(name) => name.clone(),
            None => format!("saker:{}", fs.map().name),
        };
        if let Some(addr) = options.http {
            serve_metrics(addr, fs.metrics())?;
        }
        let reactor = |_| fs.reactor().map(ClientReactor);
        let reactors = (0..options.threads.max(1)).map(reactor).collect::<Result<Vec<_>>>()?;
        let (device, mounted) = mount::mount(mountpoint, &source, &options)?;
        let notifier = || -> Result<Notifier> {
            let (notifier, notices) = Notifier::new();
            notices
                .deliver(device.share())
                .map_err(|e| Error::new(Errno::EAGAIN).with_text(format!("thread: {e}")))?;
            Ok(notifier)
        };
        let notifiers = [notifier()?, notifier()?];
        let hints = match options.shortcut {
            Shortcut::Bpf => Some(Arc::new(KernelHints::new())),
            Shortcut::Off => None,
        };
        let source = hints.clone().map(|hints| hints as Arc<dyn Hints>);
        let mut served = MountService::new(fs, source, notifiers, &options);
        served.root = Some(Root::default());
        let served = Arc::new(served);
        let transport =
            FuseTransport::new(device, Arc::clone(&served), reactors, options.transport);
        tracing::info!("mounted on {}", mounted.path.display());
        Ok(Mount { transport, served, hints, mounted })
    }

    /// Serves until the file system is unmounted, by [`MountHandle::unmount`] or umount(8). `ready`
    /// is called, from another thread, when it is as fast as it will be.
    ///
    /// # Errors
    /// When no thread can be started. Why a decoupled subtree is not merged.
    pub fn run(self, ready: impl FnOnce() + Send + 'static) -> Result<()> {
        self.start_hints(ready);
        let result = self.transport.run();
        self.served.fs.block_on(self.served.close_all());
        // The kernel may have dropped its last RELEASEs: no lock may wait for its lease to end.
        let closed = self.served.fs.close();
        self.mounted.clear_below();
        tracing::info!("{} is unmounted", self.mounted.path.display());
        result.and(closed)
    }

    /// From a thread of its own: it walks through the mount, which must be served for that.
    fn start_hints(&self, ready: impl FnOnce() + Send + 'static) {
        let (hints, mountpoint) = (self.hints.clone(), self.mounted.path.clone());
        let started = thread::spawn("saker-hints", move || {
            let how = hints.map(|hints| hints.start(&mountpoint));
            tracing::info!("shortcut: {}", how.as_deref().unwrap_or("no hints: not wanted"));
            ready();
        });
        if let Err(error) = started {
            tracing::warn!("no shortcut: {error}");
        }
    }

    /// For other threads.
    pub fn handle(&self) -> MountHandle {
        MountHandle { mounted: self.mounted.clone(), served: Arc::clone(&self.served) }
    }
}

/// Serves `metrics` at `addr`; as long as another process has that (a mount that is about to end,
/// say), it is tried again, and files do not wait for it.
///
/// # Errors
/// EIO if it is no address to listen at.
fn serve_metrics(addr: SocketAddr, metrics: &Registry) -> Result<()> {
    let why = |e: io::Error| Error::new(Errno::EIO).with_text(format!("http={addr}: {e}"));
    let serve = {
        let metrics = metrics.clone();
        move || serve_http(addr, metrics.clone())
    };
    match serve() {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            tracing::warn!("metrics are not served until {addr} is free");
            let again = move || {
                while serve().is_err() {
                    saker_runtime::time::sleep(METRICS_RETRY);
                }
                tracing::info!("metrics are served at {addr}");
            };
            thread::spawn("saker-metrics", again).map(drop).map_err(why)
        }
        result => result.map(drop).map_err(why),
    }
}

impl MountHandle {
    /// Unmounts. A mount that stays in use is detached: what was written to it is flushed, it
    /// disappears from the tree, and [`Mount::run`] returns when its last user lets go.
    ///
    /// # Errors
    /// As umount(2), with words.
    pub fn unmount(&self) -> Result<()> {
        self.mounted.unmount(|| {
            if let Err(error) = self.served.fs.block_on(self.served.sync_all()) {
                tracing::error!("not all that was written could be flushed: {error}");
            }
        })
    }
}
