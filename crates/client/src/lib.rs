//! LibFS: the client library. FUSE, the command line and language bindings are thin adapters
//! over [`Fs`] and [`File`].
//!
//! The client keeps no state that correctness needs: it asks the node that owns a name
//! (`namespace`), sends each operation there, again when that is safe (`net`), and moves file data to
//! and from stores (`data`).
//!
//! Futures may be dropped at any time. An operation that was dropped may still take effect.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use saker_runtime::telemetry::Registry;
use saker_types::{Attr, ClusterMap, Errno, Error, InodeId, Result};

mod api;
mod core;
mod data;
pub mod datasets;
#[cfg(test)]
mod fake;
mod holds;
mod locks;
mod namespace;
mod net;
pub mod policies;
#[cfg(test)]
mod tests;

pub use api::{
    Caller, ClientOptions, ClientStats, ClusterAddr, DirItem, FOREVER, Fallocate, Groups, Lessee,
    OpenFlags, Resolved, Seek, SetAttr, SetTime, StatFs,
};
pub use data::file::File;
pub use locks::Lock;
pub use namespace::decoupled::{
    GlobalDir, JournalOf, KeptIn, MergeReport, PrivateServers, Save, journals_in,
};
pub use namespace::listing::DirStream;
pub use saker_meta::private::{RowChange, RowPlace};
pub use saker_rpc::{Reactor, Transport};
pub use saker_types;

/// A connected client. Clones share one connection to the cluster; all methods may be used from
/// many threads and many futures at once.
#[derive(Clone)]
pub struct Fs {
    core: Arc<core::Core>,
    /// Those beside the strict one.
    namespaces: Arc<namespace::dispatch::Namespaces>,
    /// Frozen datasets that were read.
    frozen: Arc<namespace::frozen::Cache>,
    /// Decoupled subtrees that are held.
    subtrees: Arc<namespace::decoupled::Subtrees>,
    _last: Arc<holds::LastUser>,
}

impl Fs {
    /// Connects and takes the cluster map from the coordinator. Blocks, for at most
    /// `options.timeout`.
    ///
    /// # Errors
    /// ENOENT or EINVAL for a directory without a usable `cluster.toml`; ETIMEDOUT when no
    /// coordinator answers in time; EBUSY when another client uses the directory for journals.
    pub fn connect(cluster: &ClusterAddr, options: ClientOptions) -> Result<Fs> {
        let coordinators: Vec<SocketAddr> = net::connect::coordinators(cluster)?;
        let core = core::Core::connect(net::Net::new()?, &coordinators, options)?;
        let started = data::lease::start(&core)
            .and_then(|()| data::write::back::start(&core))
            .and_then(|()| holds::start(&core));
        started.map_err(|e| {
            Error::new(Errno::EAGAIN).with_text(format!("no thread for leases: {e}"))
        })?;
        let mut fs = Fs::of(core);
        if let Some(dir) = &fs.core.options.journal_dir {
            let journals = namespace::decoupled::JournalDir::open(dir)?;
            journals.bind(&fs.map().uuid)?;
            fs.core.cluster.holds.go_on_as(journals.holder);
            fs.subtrees = Arc::new(namespace::decoupled::Subtrees::new(Some(journals)));
        }
        Ok(fs)
    }

    /// Connects over another network than TCP, which the caller drives, as a simulator does. Such a
    /// client never blocks: [`Fs::block_on`] and [`Fs::close`] are not for it, and
    /// [`Fs::keep_leases`] must be run beside its operations. What it has written waits until it is closed or
    /// synced, whatever `options.write_back` says.
    ///
    /// # Errors
    /// As [`Fs::connect`].
    pub async fn over(
        transport: Arc<dyn Transport>,
        coordinators: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Fs> {
        let net = net::Net::driven(transport);
        Ok(Fs::of(core::Core::connect_driven(net, coordinators, options).await?))
    }

    pub(crate) fn of(core: Arc<core::Core>) -> Fs {
        let last = Arc::new(holds::LastUser(core.clone()));
        Fs {
            core,
            namespaces: Arc::default(),
            frozen: Arc::default(),
            subtrees: Arc::default(),
            _last: last,
        }
    }

    /// Renews the leases of open files and held subtrees, and tells of what was closed; never ends.
    pub async fn keep_leases(&self) {
        join(data::lease::keep(&self.core), holds::keep(&self.core)).await;
    }

    /// Runs a future of this client to its end on the calling thread. Not to be nested.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.core.cluster.net.block_on(future)
    }

    /// Waits, where futures of this client are run, which go on meanwhile.
    pub async fn sleep(&self, duration: Duration) {
        self.core.cluster.net.sleep_until(saker_runtime::time::now() + duration).await;
    }

    /// Was something written to this file, through this client, that no server knows of yet? Then its
    /// attributes are not those that an open tells. Costs nothing while nothing is unsaved.
    pub fn is_dirty(&self, file: InodeId) -> bool {
        self.any_core(|core| core.inodes.dirty(file).is_some())
    }

    /// Is nothing newer known here of a file that is open, nor anything unsaved?
    pub fn is_newest(&self, attr: &Attr) -> bool {
        let is_newer = |inode: Arc<data::open_inode::OpenInode>| {
            inode.with(|s| {
                s.is_dirty() || data::open_inode::age(s.attr()) > data::open_inode::age(attr)
            })
        };
        !self.any_core(|core| core.inodes.get(attr.id).is_some_and(is_newer))
    }

    /// Is it so of the client of the cluster's servers, or of those of a held subtree?
    fn any_core(&self, is_so: impl Fn(&core::Core) -> bool) -> bool {
        is_so(&self.core) || self.subtrees.all().iter().any(|subtree| is_so(subtree.core()))
    }

    /// A reactor of the caller's own: while a thread is in its `block_on`, what futures of this
    /// client ask there goes over connections that no other thread uses.
    ///
    /// # Errors
    /// ENOMEM; EOPNOTSUPP for a client that somebody else drives.
    pub fn reactor(&self) -> Result<Arc<Reactor>> {
        self.core.cluster.net.sibling()
    }

    /// The cluster map as last seen.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.core.cluster.routes().map.clone()
    }

    /// Writes out open files, merges and releases subtrees, ends all locks and the session. Blocks. The
    /// client may be used on; it begins a new session then.
    ///
    /// # Errors
    /// Why a subtree is not merged: the first one. It is held on, and all the rest is done.
    pub fn close(&self) -> Result<()> {
        self.block_on(async {
            let ended = self.end_subtrees().await;
            for inode in self.core.inodes.all() {
                if inode.is_dirty() {
                    self.core.settle(&inode).await;
                }
            }
            self.core.inodes.sweep();
            self.core.tell_closed().await;
            self.core.locks.end(&self.core.cluster).await;
            self.core.cluster.release_all().await;
            self.core.cluster.end_sessions().await;
            ended
        })
    }

    /// What was sent since the connect.
    pub fn stats(&self) -> ClientStats {
        self.core.cluster.stats()
    }

    /// Metrics of this client: `saker_client_requests_total{op,to}` and others.
    pub fn metrics(&self) -> &Registry {
        &self.core.cluster.registry
    }
}
