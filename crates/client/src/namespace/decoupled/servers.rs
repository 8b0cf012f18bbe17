//! Servers of a subtree that this client has for itself (Cudele section 4.1): a coordinator and a shard on
//! one thread of this process, and a client of theirs.
//!
//! ```text
//! Strict(core) ──> LocalTransport ──┬──> private coordinator, private shard     (names and attributes)
//!                                   └──> stores of the cluster                  (data of larger files)
//! the shard's own work on stores ───────> stores of the cluster
//! ```
//!
//! So the rules are those of the servers, and so is the journal's format. Names have the hashes and
//! chunks have the stores that they have in the cluster: rows can go there as they are.
//!
//! Files that the cluster has keep their data where it is: what is written to one in chunks, or cut off it,
//! is so for everybody at once. When one is removed here its chunks stay; they are the cluster's.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message;
use saker_coordinator::service::CoordinatorWorker;
use saker_coordinator::state::{new_uuid, open_private};
use saker_engine::EngineSource;
use saker_engine::embedded::{EmbeddedOptions, Sizes};
use saker_engine::memory::MemoryStorage;
use saker_meta::private::{MergedRow, RowChange, RowPlace, Unfinished};
use saker_meta::recover::{self, ShardOptions};
use saker_meta::service::ShardWorker;
use saker_meta::{Shard, ShardLimits};
use saker_rpc::client::LocalAnswer;
use saker_rpc::local::{Flushes, Later, LocalNode, LocalServers};
use saker_rpc::{NodeNumber, Reactor, RoleKind};
use saker_runtime::fs::{Dir, RealDir};
use saker_runtime::telemetry::Registry;
use saker_runtime::{thread, time};
use saker_types::id::COUNTER_BITS;
use saker_types::placement::{ShardInfo, initial_slots};
use saker_types::wire::{EntryKey, IdRange, MergeReq, Op};
use saker_types::{ClusterMap, Errno, Error, Inode, InodeId, Locator, NodeId, Result};

use super::saved::GlobalDir;
use crate::core::Core;
use crate::net::Net;
use crate::{Fs, data};

/// Where the private coordinator and the private shard are asked. Nothing can listen there.
const COORDINATOR: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 1));
const SHARD: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 2));
/// Bytes by which the journal on a disk is allocated ahead, and of changed rows in memory.
const SEGMENT_BYTES: u64 = 16 << 20;
/// Bytes of rows of a table on a disk that are kept in memory.
const ROW_CACHE_BYTES: usize = 32 << 20;
/// Rows of a merge of which the servers' thread is told at a time.
const ROWS_AT_ONCE: usize = 16_384;
/// Pause while a transaction is between its two halves.
const BETWEEN_HALVES: Duration = Duration::from_millis(1);

/// What is saved as it goes is sent after this time: it has the rest of
/// [`FLUSH_DELAY_MAX`](saker_types::policy::explain::FLUSH_DELAY_MAX) to arrive.
const STREAM_AFTER: Duration = Duration::from_millis(20);
/// Bytes of records that are kept in memory until somebody asks for them to be saved.
const UNSAVED_BYTES_MAX: u64 = 16 << 20;
/// Numbers of transactions have so many bits for who has used a directory, above so many for a count.
const NUMBERS_BITS: (u32, u32) = (16, 24);

const _: () = assert!(NUMBERS_BITS.0 + NUMBERS_BITS.1 == COUNTER_BITS);

/// Where the rows are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptIn {
    /// In the memory of this process: they end with it.
    Memory,
    /// In a directory of this machine, which is made if it is missing: what is answered is durable there.
    Dir(PathBuf),
    /// In one of the cluster: what is answered is in the memory of this process until it is saved there.
    Cluster(Save),
}

/// What is kept in the cluster, and when it is saved there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// The directory.
    pub dir: GlobalDir,
    /// As it goes, and not only when somebody asks for it (Cudele section 3.1, "Stream").
    pub streams: bool,
    /// Counts those who have used the directory, or one that it was copied from.
    pub users_before: u64,
}

/// The thread's own.
struct PrivateShard {
    shard: Rc<RefCell<Shard>>,
    /// Locked as long as this lives.
    _dir: Option<RealDir>,
}

/// Servers of a subtree in this process. Dropping them ends their thread; then whoever still asks is told
/// that nobody is there.
pub struct PrivateServers {
    fs: Fs,
    servers: LocalServers<PrivateShard>,
    ids_left: Arc<AtomicU64>,
    /// What they have may outlive this process.
    is_kept: bool,
    /// What is kept in the cluster.
    save: Option<Save>,
}

impl Drop for PrivateServers {
    fn drop(&mut self) {
        self.end();
    }
}

impl PrivateServers {
    /// Starts servers of the subtree of the directory `root`, whose `row` is as the cluster shows it, beside
    /// a client of that cluster. In a directory that was used before everything is found again, and the row
    /// there counts. Waits for the disk.
    ///
    /// # Errors
    /// EBUSY if another process serves from the directory, EINVAL if that is of another subtree; EIO for what
    /// else keeps them from starting; EOPNOTSUPP for a client whose network somebody else drives.
    pub async fn start(
        of: &Fs,
        kept: KeptIn,
        root: &Locator,
        row: Inode,
    ) -> Result<PrivateServers> {
        PrivateServers::beside(&of.core, kept, root, row).await
    }

    /// The same.
    pub(crate) async fn beside(
        of: &Core,
        kept: KeptIn,
        root: &Locator,
        row: Inode,
    ) -> Result<PrivateServers> {
        let cluster = &of.cluster;
        let reactor = cluster.net.reactor().ok_or(Errno::EOPNOTSUPP)?;
        let is_kept = kept != KeptIn::Memory;
        let map = cluster.routes().map.clone();
        let save = match &kept {
            KeptIn::Cluster(save) => Some(save.clone()),
            KeptIn::Memory | KeptIn::Dir(_) => None,
        };
        let servers = match save {
            // It waits for the cluster, as this thread must not where it is one that drives the network.
            Some(_) => off_thread(reactor.clone(), kept, map, root.id).await?,
            None => launch(reactor, &kept, &map, root.id)?,
        };
        let ids_left = there(servers.run_early(|state| state.shard.borrow().ids_left()).await)?;
        let transport = Arc::new(servers.transport(reactor.clone()));
        let net = Net::beside(reactor.clone(), transport);
        let core = Core::connect_below(net, COORDINATOR, of.options.clone(), root.id).await?;
        data::lease::start(&core)
            .and_then(|()| data::write::back::start(&core))
            .map_err(|e| failed(&e.to_string()))?;
        let started = PrivateServers { fs: Fs::of(core), servers, ids_left, is_kept, save };
        if started.save.is_some() {
            let forget = |state: &mut PrivateShard| state.shard.borrow_mut().forget_ids();
            there(started.servers.run_early(forget).await)?;
        }
        started.adopt_root(root, row).await?;
        Ok(started)
    }

    /// What was done and answered is durable when it returns, where these servers keep it.
    ///
    /// # Errors
    /// ESTALE: the hold of the subtree has ended. ETIMEDOUT: the disk, or the stores, do not take it. EIO.
    pub async fn sync(&self) -> Result<()> {
        if self.save.is_some() {
            // The decisions of the private coordinator are in memory only: the shard must have heard of all.
            self.at_rest().await?;
        }
        self.core().cluster.sync_journals().await
    }

    /// The same, after which requests wait.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn save_last(&self) -> Result<()> {
        self.pause().await?;
        self.at_rest().await?;
        there(self.servers.run(|_| ()).await)
    }

    /// Is what was answered in the memory of this process until it is saved in the cluster?
    pub(crate) fn are_saved(&self) -> bool {
        self.save.is_some()
    }

    /// Waits until no transaction is between its two halves.
    async fn at_rest(&self) -> Result<()> {
        let deadline = self.core().cluster.deadline();
        let look = |state: &mut PrivateShard| state.shard.borrow().is_at_rest();
        while !there(self.servers.run_early(look).await)? {
            if time::now() >= deadline {
                return Err(Errno::ETIMEDOUT.into());
            }
            let until = time::now() + BETWEEN_HALVES;
            self.core().cluster.net.sleep_until(until).await;
        }
        Ok(())
    }

    /// A client of theirs, which knows nothing of policies: everything below the root is served by its
    /// strict namespace, under the ids, names and policies of the cluster.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// May what they have outlive this process?
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Its core, for the strict namespace.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.fs.core
    }

    /// Requests wait from now on; those before are answered.
    ///
    /// # Errors
    /// EIO.
    pub(crate) async fn pause(&self) -> Result<()> {
        there(self.servers.pause().await)
    }

    /// They have their turn.
    pub(crate) fn resume(&self) {
        self.servers.resume();
    }

    /// Nothing is served any more: whoever asks is told so.
    pub(crate) fn end(&self) {
        self.save.iter().for_each(|save| save.dir.end());
        self.servers.end();
    }

    /// Calls this, with the reason, if they cannot go on.
    pub(crate) fn when_dead(&self, call: impl FnOnce(&str) + Send + 'static) {
        self.servers.when_dead(call);
    }

    /// Adds rows that the cluster has, directories with the times that it shows of them: entries of
    /// directories that are there, and attributes of inodes with several names. They are remembered as what
    /// the cluster has. What was added before stays as it has become here.
    ///
    /// # Errors
    /// EEXIST, EINVAL ([`Shard::adopt`]), and then nothing was added; EIO.
    pub async fn insert(&self, rows: Vec<(RowPlace, Inode)>) -> Result<()> {
        there(self.servers.run_early(|state| state.shard.borrow_mut().adopt(rows)).await)?
    }

    /// Where the rows differ from what the cluster has, all at one instant; `are_merged` if the cluster is about
    /// to get them ([`Shard::changes`]). Requests wait as long as all rows are looked at. What is written to open
    /// files and not saved yet is not in it.
    ///
    /// # Errors
    /// ETIMEDOUT if transactions never pause, EIO.
    pub async fn changes(&self, are_merged: bool) -> Result<Vec<RowChange>> {
        let deadline = self.core().cluster.deadline();
        loop {
            let look = move |state: &mut PrivateShard| state.shard.borrow_mut().changes(are_merged);
            let changes = self.servers.run(look);
            match there(changes.await)?? {
                Some(changes) => return Ok(changes),
                None if time::now() >= deadline => return Err(Errno::ETIMEDOUT.into()),
                None => {
                    let until = time::now() + BETWEEN_HALVES;
                    self.core().cluster.net.sleep_until(until).await;
                }
            }
        }
    }

    /// The directories that the cluster has, where it has them, as far as these servers know.
    ///
    /// # Errors
    /// EIO.
    pub async fn cluster_dirs(&self) -> Result<Vec<(EntryKey, InodeId)>> {
        there(self.servers.run_early(|state| state.shard.borrow().cluster_dirs()).await)?
    }

    /// The cluster has these now. What has changed here since they were asked for still differs.
    ///
    /// # Errors
    /// EIO.
    pub async fn mark_merged(&self, rows: Arc<[MergedRow]>) -> Result<()> {
        self.say(rows, Shard::mark_merged).await
    }

    /// The cluster is going to be asked to have these, all at once.
    ///
    /// # Errors
    /// EIO.
    pub(crate) async fn begin_merge(&self, rows: Arc<[MergedRow]>) -> Result<()> {
        if !self.is_kept {
            return Ok(());
        }
        // Of a merge that was not made.
        self.end_merge(Shard::forget_merge).await?;
        self.say(rows, Shard::begin_merge).await
    }

    /// It is asked now, by this request.
    ///
    /// # Errors
    /// EIO.
    pub(crate) async fn ask_merge(&self, request: &MergeReq) -> Result<()> {
        if !self.is_kept {
            return Ok(());
        }
        let request = request.encode_to_vec();
        let ask = move |state: &mut PrivateShard| state.shard.borrow_mut().ask_merge(&request);
        there(self.servers.run(ask).await)
    }

    /// It has them, all of those of [`PrivateServers::begin_merge`].
    ///
    /// # Errors
    /// EIO.
    pub(crate) async fn merge_is_made(&self, rows: Arc<[MergedRow]>) -> Result<()> {
        if !self.is_kept {
            return self.mark_merged(rows).await;
        }
        // Where it is saved in the cluster it is so by whoever has asked for the merge, if there is a need.
        there(self.servers.run_early(|state| state.shard.borrow_mut().merge_is_made()).await)?;
        self.end_merge(Shard::take_merged).await
    }

    /// A merge of an earlier process whose end these servers do not know.
    ///
    /// # Errors
    /// EIO.
    pub(crate) async fn unfinished_merge(&self) -> Result<Option<Unfinished>> {
        there(self.servers.run_early(|state| state.shard.borrow_mut().unfinished_merge()).await)?
    }

    /// That one was made, or was not.
    ///
    /// # Errors
    /// EIO.
    pub(crate) async fn finish_merge(&self, is_made: bool) -> Result<()> {
        match is_made {
            true => self.merge_is_made(Arc::default()).await,
            false => self.end_merge(Shard::forget_merge).await,
        }
    }

    /// Says something of rows, some at a time: requests have their turn between.
    async fn say(&self, rows: Arc<[MergedRow]>, say: fn(&mut Shard, &[MergedRow])) -> Result<()> {
        for first in (0..rows.len()).step_by(ROWS_AT_ONCE) {
            let (rows, end) = (rows.clone(), rows.len().min(first + ROWS_AT_ONCE));
            let some = move |state: &mut PrivateShard| {
                say(&mut state.shard.borrow_mut(), &rows[first..end]);
            };
            there(self.servers.run_early(some).await)?;
        }
        Ok(())
    }

    async fn end_merge(&self, some: fn(&mut Shard) -> Result<bool>) -> Result<()> {
        while there(
            self.servers.run_early(move |state| some(&mut state.shard.borrow_mut())).await,
        )?? {}
        Ok(())
    }

    /// Inode numbers for what is made here, which nobody else gives out and which were not given before.
    /// Without any, whatever makes an inode waits for them, as for a server that is down.
    ///
    /// # Errors
    /// EIO.
    pub async fn give_ids(&self, ids: IdRange) -> Result<()> {
        there(self.servers.run_early(move |state| state.shard.borrow_mut().give_ids(ids)).await)
    }

    /// One of them, for something that is not made here.
    ///
    /// # Errors
    /// EAGAIN when there is none, EIO.
    pub(crate) async fn new_inode(&self) -> Result<InodeId> {
        there(self.servers.run_early(|state| state.shard.borrow_mut().take_id()).await)?
    }

    /// A row, as the cluster would get it.
    ///
    /// # Errors
    /// EIO.
    pub(crate) async fn row(&self, place: RowPlace) -> Result<Option<Inode>> {
        there(self.servers.run_early(move |state| state.shard.borrow_mut().row(&place)).await)?
    }

    /// Gives a file that nobody has open another number ([`Shard::renumber`]).
    ///
    /// # Errors
    /// EIO.
    pub(crate) async fn renumber(&self, at: EntryKey, from: InodeId, to: InodeId) -> Result<bool> {
        let renumber =
            move |state: &mut PrivateShard| state.shard.borrow_mut().renumber(&at, from, to);
        there(self.servers.run_early(renumber).await)?
    }

    /// How many of them are left.
    pub fn ids_left(&self) -> u64 {
        self.ids_left.load(Ordering::Relaxed)
    }

    async fn adopt_root(&self, root: &Locator, row: Inode) -> Result<()> {
        let entry = EntryKey { pid: root.pid, name: root.owned().name };
        let place = RowPlace::Entry(entry);
        let adopt = move |state: &mut PrivateShard| {
            let mut shard = state.shard.borrow_mut();
            if shard.has_adopted()? {
                return shard.has_row(&place);
            }
            shard.adopt(vec![(place, row)])?;
            Ok(true)
        };
        match there(self.servers.run_early(adopt).await)?? {
            true => Ok(()),
            false => {
                let text = "the directory belongs to another subtree";
                Err(Error::new(Errno::EINVAL).with_text(text))
            }
        }
    }
}

/// What the thread has said.
fn there<T>(answer: Option<T>) -> Result<T> {
    answer.ok_or_else(|| failed("their thread has ended"))
}

fn failed(why: &str) -> Error {
    Error::new(Errno::EIO).with_text(format!("the servers of the subtree: {why}"))
}

/// What the servers stand on.
struct Sources {
    coordinator: EngineSource,
    shard: EngineSource,
    uuid: [u8; 16],
    dir: Option<RealDir>,
    /// The first number of a transaction of the coordinator.
    numbers_from: u64,
}

impl Sources {
    fn open(kept: &KeptIn) -> Result<Sources> {
        let path = match kept {
            KeptIn::Memory => {
                let memory = || EngineSource::Memory(MemoryStorage::new().volatile());
                let (coordinator, shard) = (memory(), memory());
                let uuid = new_uuid();
                return Ok(Sources { coordinator, shard, uuid, dir: None, numbers_from: 0 });
            }
            KeptIn::Cluster(save) => return Sources::in_cluster(save),
            KeptIn::Dir(path) => path,
        };
        let refused = |e: io::Error| {
            let errno = match e.kind() {
                io::ErrorKind::WouldBlock => Errno::EBUSY,
                _ => Errno::EIO,
            };
            Error::new(errno).with_text(format!("{}: {e}", path.display()))
        };
        let dir = RealDir::open(path).map_err(refused)?;
        dir.lock().map_err(refused)?;
        let open = |name: &str| {
            let limits = shard_limits();
            let dir = dir.sub_dir(name).map_err(refused)?;
            let engine = EmbeddedOptions::in_dir(&*dir, limits.sizes(), ROW_CACHE_BYTES);
            engine.map(EngineSource::Embedded).map_err(|e| failed(&e.to_string()))
        };
        let shard = open("shard")?;
        let journal = dir.sub_dir("coordinator").map_err(refused)?;
        let sizes = Sizes::of_facts(saker_coordinator::state::SEGMENT_BYTES);
        let coordinator = EngineSource::Embedded(EmbeddedOptions { journal, table: None, sizes });
        let known = coordinator.cluster().map_err(|e| failed(&e.to_string()))?;
        let uuid = known.unwrap_or_else(new_uuid);
        Ok(Sources { coordinator, shard, uuid, dir: Some(dir), numbers_from: 0 })
    }

    /// The shard alone is kept: a transaction whose end it has not heard of has not been.
    fn in_cluster(save: &Save) -> Result<Sources> {
        let broken = |e: String| failed(&format!("{}: {e}", save.dir.label()));
        let dir = save.dir.sub_dir("shard").map_err(|e| broken(e.to_string()))?;
        let engine = EmbeddedOptions::in_dir(&*dir, shard_limits().sizes(), ROW_CACHE_BYTES);
        let shard = EngineSource::Embedded(engine.map_err(|e| broken(e.to_string()))?);
        let known = shard.cluster().map_err(|e| broken(e.to_string()))?;
        let coordinator = EngineSource::Memory(MemoryStorage::new().volatile());
        let numbers_from = (save.users_before % (1 << NUMBERS_BITS.0)) << NUMBERS_BITS.1;
        let uuid = known.unwrap_or_else(new_uuid);
        Ok(Sources { coordinator, shard, uuid, dir: None, numbers_from })
    }
}

fn shard_limits() -> ShardLimits {
    ShardLimits {
        overlay_bytes: SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        private: true,
        ..ShardLimits::default()
    }
}

/// The cluster's map with other servers of names.
fn private_map(of: &ClusterMap, uuid: [u8; 16]) -> ClusterMap {
    ClusterMap {
        uuid: uuid.to_vec().into(),
        shards: vec![ShardInfo { mnode: 0, addr: SHARD.to_string(), allocator: 1 }],
        slots: initial_slots(1),
        coordinator: COORDINATOR.to_string(),
        ..of.clone()
    }
}

/// Starts their thread. Waits for the disk.
fn launch(
    reactor: &Arc<Reactor>,
    kept: &KeptIn,
    map: &ClusterMap,
    root: InodeId,
) -> Result<LocalServers<PrivateShard>> {
    let sources = Sources::open(kept)?;
    let (map, uuid) = (private_map(map, sources.uuid), sources.uuid);
    let begin = move || begin(sources, map, root);
    let servers =
        LocalServers::start_flushing("saker-private", reactor, uuid, flushes(kept), begin);
    servers.map_err(|e| failed(&e.to_string()))
}

/// The same on a thread of its own.
async fn off_thread(
    reactor: Arc<Reactor>,
    kept: KeptIn,
    map: Arc<ClusterMap>,
    root: InodeId,
) -> Result<LocalServers<PrivateShard>> {
    let (promise, launched) = LocalAnswer::new();
    thread::spawn("saker-launch", move || promise.complete(launch(&reactor, &kept, &map, root)))
        .map_err(|e| failed(&e.to_string()))?;
    launched.await.unwrap_or_else(|| Err(failed("the thread that starts them has ended")))
}

fn flushes(kept: &KeptIn) -> Flushes {
    let KeptIn::Cluster(Save { streams, .. }) = kept else { return Flushes::Roles };
    Flushes::Later(Later {
        after: streams.then_some(STREAM_AFTER),
        bytes_max: UNSAVED_BYTES_MAX,
        durable_ops: &[Op::SyncJournal as u16, Op::Fsync as u16],
    })
}

/// On the servers' thread.
fn begin(
    sources: Sources,
    map: ClusterMap,
    root: u64,
) -> io::Result<(Vec<LocalNode>, PrivateShard)> {
    // What they count nobody asks for.
    let registry = Registry::new();
    let metrics = saker_coordinator::metrics::Metrics::new(&registry);
    let state = open_private(sources.coordinator, map, root, metrics).map_err(io::Error::other)?;
    state.state().skip_numbers(sources.numbers_from);
    let map = state.state().map.clone();
    let metrics = saker_meta::metrics::Metrics::new(&registry);
    let options = ShardOptions { source: sources.shard, no: 0, limits: shard_limits(), metrics };
    let shard = recover::open(options, map).map_err(io::Error::other)?;
    let number = |node: NodeId| NodeNumber(node.to_u32());
    let nodes = vec![
        LocalNode {
            node: number(NodeId::Coordinator),
            role: RoleKind::Coordinator,
            addr: COORDINATOR,
            machine: Box::new(CoordinatorWorker::in_client(state)),
        },
        LocalNode {
            node: number(NodeId::Shard(0)),
            role: RoleKind::Shard,
            addr: SHARD,
            machine: Box::new(ShardWorker::new(shard.clone())),
        },
    ];
    Ok((nodes, PrivateShard { shard, _dir: sources.dir }))
}

#[cfg(test)]
mod tests;
