//! What all operations of one client share: parts that own their state, and know nothing of this.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use futures_util::future::BoxFuture;
use saker_runtime::time::Time;
use saker_types::{InodeId, Locator, ROOT, Result};

use crate::ClientOptions;
use crate::data::failing_stores::FailingStores;
use crate::data::memory::MemoryBudget;
use crate::data::open_inode::{OpenInode, OpenInodes};
use crate::data::short_circuit::{LocalReads, StoreFiles};
use crate::locks::table::Locks;
use crate::namespace::strict::reports::Reports;
use crate::namespace::strict::statfs::StatCache;
use crate::net::Net;
use crate::net::cluster::Cluster;

/// Tells until when a subtree is held for sure; ESTALE if it is not, ETIMEDOUT when nobody says.
pub(crate) type HeldUntil = dyn Fn() -> BoxFuture<'static, Result<Time>> + Send + Sync;

/// The client's state. Clones of [`Fs`](crate::Fs) and open files share it.
pub(crate) struct Core {
    pub(crate) options: ClientOptions,
    pub(crate) cluster: Cluster,
    /// The directory that all paths of this client begin at.
    pub(crate) root: InodeId,
    pub(crate) inodes: OpenInodes,
    /// What others of this process have open of what the servers of this client have, and where that was:
    /// its lease is renewed, too.
    pub(crate) lent: Mutex<Vec<(Locator, Weak<OpenInode>)>>,
    pub(crate) reports: Reports,
    pub(crate) locks: Locks,
    pub(crate) stat_cache: StatCache,
    /// Of a client of private servers: as long as their subtree is held, it may write to stores.
    pub(crate) held_until: OnceLock<Box<HeldUntil>>,
    /// For what is read ahead.
    pub(crate) ahead: MemoryBudget,
    /// For what waits to be written out, or is on its way.
    pub(crate) unwritten: MemoryBudget,
    /// Stores that recently did not answer: where another has a copy, that one is asked first, so
    /// that a dead store costs one wait in a while and not one for each read.
    pub(crate) failing_stores: FailingStores,
    /// If data may be had without the stores.
    pub(crate) local: Option<Box<dyn LocalReads>>,
    /// Chunk writes are known by this number and a count.
    chunk_writer: u64,
    chunk_writes: AtomicU64,
}

// The kernel's word, not a file of Saker's: nothing that a simulation holds.
#[allow(clippy::disallowed_methods)]
fn this_process(name: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let process = format!("process {} on {}", std::process::id(), host.trim());
    if name.is_empty() { process } else { format!("{name}, {process}") }
}

impl Core {
    /// A client of the cluster that one of `coordinators` knows.
    pub(crate) fn connect(
        net: Net,
        coordinators: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Arc<Core>> {
        let who = this_process(&options.name);
        Ok(Core::of(Cluster::connect(net, coordinators, options.timeout, who)?, options, ROOT))
    }

    /// The same, over a network that somebody else drives.
    pub(crate) async fn connect_driven(
        net: Net,
        coordinators: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Arc<Core>> {
        let (timeout, who) = (options.timeout, options.name.clone());
        let cluster = Cluster::connect_driven(net, coordinators, timeout, who).await?;
        Ok(Core::of(cluster, options, ROOT))
    }

    /// A client of servers that have the subtree of a directory only.
    pub(crate) async fn connect_below(
        net: Net,
        coordinator: SocketAddr,
        options: ClientOptions,
        root: InodeId,
    ) -> Result<Arc<Core>> {
        let (timeout, who) = (options.timeout, options.name.clone());
        let cluster = Cluster::connect_driven(net, &[coordinator], timeout, who).await?;
        Ok(Core::of(cluster, options, root))
    }

    fn of(cluster: Cluster, options: ClientOptions, root: InodeId) -> Arc<Core> {
        let ahead = cluster.registry.gauge(
            "saker_client_read_ahead_bytes",
            "Bytes that are held, or on their way, for sequential readers",
        );
        let unwritten = cluster
            .registry
            .gauge("saker_client_unwritten_bytes", "Bytes of files that no store has accepted yet");
        let ahead = MemoryBudget::new(ahead, options.read_ahead_total_bytes);
        let unwritten = MemoryBudget::new(unwritten, options.write_buffer_total_bytes);
        let local = options.local_reads.then(|| Box::new(StoreFiles::new()) as Box<dyn LocalReads>);
        Arc::new(Core {
            options,
            cluster,
            root,
            lent: Mutex::default(),
            held_until: OnceLock::new(),
            inodes: OpenInodes::default(),
            reports: Reports::default(),
            locks: Locks::default(),
            stat_cache: StatCache::default(),
            ahead,
            unwritten,
            failing_stores: FailingStores::default(),
            local,
            chunk_writer: saker_runtime::rand::u64().max(1),
            chunk_writes: AtomicU64::new(0),
        })
    }

    /// Writer and number of a new chunk write.
    pub(crate) fn next_chunk_write(&self) -> (u64, u64) {
        (self.chunk_writer, self.chunk_writes.fetch_add(1, Ordering::Relaxed))
    }
}
