//! Leases of locks: a shard that does not hear of a client for long gives its locks to others.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join, join_all};
use saker_runtime::thread;
use saker_runtime::time::{self, Time, sleep};
use saker_types::placement::Slot;
use saker_types::wire::{Op, RenewLocksReply, RenewLocksReq};
use saker_types::{Errno, Error, InodeId, NodeId, Result, ShardNo, limits};

use crate::core::Core;
use crate::data::open_inode::{OpenInode, OpenInodes, lost_lock};
use crate::locks::Lock;
use crate::locks::table::{Holding, Locks, Standing};
use crate::net::cluster::{Cluster, decode};

/// A client that holds locks says so this often.
const PERIOD: Duration = Duration::from_secs(3);
/// The thread looks this often whether the client is gone.
const LOOK: Duration = Duration::from_millis(500);

// Each renewal may take a period, too.
const _: () = assert!(PERIOD.as_nanos() as u64 * 3 < limits::LOCK_LEASE_NS);

/// The shard that keeps a file's locks.
pub(super) fn shard_of(cluster: &Cluster, id: InodeId) -> ShardNo {
    cluster.routes().map.shard_of_slot(Slot::of_locks(id))
}

impl Locks {
    /// Until when the locks that are held on this file are this client's for sure: asks, if that is not so any more.
    /// For ever if there are none, also if they turn out to be lost.
    ///
    /// # Errors
    /// ETIMEDOUT when their shard does not answer.
    pub(crate) async fn lease(
        &self,
        cluster: &Cluster,
        inodes: &OpenInodes,
        id: InodeId,
    ) -> Result<Time> {
        let deadline = cluster.deadline();
        while self.holds_any(id) {
            let (shard, now) = (shard_of(cluster, id), time::awake_or_not());
            let until = self.until(shard);
            if now < until {
                return Ok(time::now() + (until - now));
            }
            let held = self.held_by_shard(cluster).remove(&shard).unwrap_or_default();
            self.renew_held(cluster, inodes, shard, &held, deadline).await?;
        }
        Ok(Time::MAX)
    }

    /// Shards, and what they must hold for us.
    fn held_by_shard(&self, cluster: &Cluster) -> BTreeMap<ShardNo, Vec<(Holding, Standing)>> {
        let mut by_shard: BTreeMap<ShardNo, Vec<_>> = BTreeMap::new();
        for (holding, standing) in self.held() {
            by_shard.entry(shard_of(cluster, holding.0)).or_default().push((holding, standing));
        }
        by_shard
    }

    /// Renews all at once, and no longer than a period: a shard that does not answer must not keep the
    /// others from hearing of us in time.
    pub(crate) async fn renew(&self, cluster: &Cluster, inodes: &OpenInodes) {
        let deadline = time::now() + PERIOD;
        let renew = self.held_by_shard(cluster).into_iter().map(|(shard, held)| async move {
            // A failure is tried again in the next period.
            let leaving = held.iter().filter(|(_, standing)| *standing == Standing::Leaving);
            let leave = leaving.map(|((id, flock, owner), _)| async move {
                _ = self.unlock(cluster, *id, &Lock::whole(*owner, *flock), deadline).await;
            });
            let renewed = async {
                if let Err(error) = self.renew_held(cluster, inodes, shard, &held, deadline).await {
                    tracing::warn!("file locks were not renewed: {error}");
                }
            };
            join(renewed, join_all(leave)).await;
        });
        join_all(renew).await;
    }

    async fn renew_held(
        &self,
        cluster: &Cluster,
        inodes: &OpenInodes,
        shard: ShardNo,
        held: &[(Holding, Standing)],
        deadline: Time,
    ) -> Result<()> {
        let asked = time::awake_or_not();
        let ids = self.renew_at(cluster, shard, false, deadline).await?;
        self.compare(held, &ids, |(id, flock, owner)| {
            tracing::error!(
                "the lock on inode {id:#x} was lost: the cluster had not heard of this client for {:?}",
                Duration::from_nanos(limits::LOCK_LEASE_NS)
            );
            if let Some(inode) = inodes.get(*id) {
                inode.with(|s| s.lose_lock((*flock, *owner)));
            }
        });
        self.heard(shard, asked);
        Ok(())
    }

    async fn renew_at(
        &self,
        cluster: &Cluster,
        shard: ShardNo,
        end: bool,
        deadline: Time,
    ) -> Result<Vec<InodeId>> {
        let message = RenewLocksReq { holder: self.holder(), end };
        let to = NodeId::Shard(shard);
        let call = cluster.call(to, Op::RenewLocks, &message, Bytes::new(), PERIOD, deadline);
        Ok(decode::<RenewLocksReply>(Op::RenewLocks, call.await?.body)?.ids)
    }

    /// Ends all locks of this client. One attempt: where it fails, the lease ends them.
    pub(crate) async fn end(&self, cluster: &Cluster) {
        let shards = self.held_by_shard(cluster).into_keys();
        let deadline = time::now() + PERIOD;
        join_all(shards.map(|shard| self.renew_at(cluster, shard, true, deadline))).await;
        self.forget();
    }
}

impl Core {
    /// Until when the locks on a file are this client's for sure ([`Locks::lease`]).
    pub(crate) async fn lease(&self, id: InodeId) -> Result<Time> {
        self.locks.lease(&self.cluster, &self.inodes, id).await
    }

    /// Until when what was written to a file at so many losses of locks may be sent.
    ///
    /// # Errors
    /// EIO: no more. ESTALE: it is in a subtree that this client does not hold any more. ETIMEDOUT: nobody
    /// says.
    pub(crate) async fn may_send(&self, inode: Weak<OpenInode>, losses: u64) -> Result<Time> {
        let held = match self.held_until.get() {
            Some(held_until) => held_until().await?,
            None => Time::MAX,
        };
        // Nobody has it open any more: all its locks were ended.
        let Some(inode) = inode.upgrade() else { return Ok(held) };
        let until = self.lease(inode.id).await?.min(held);
        match inode.with(|s| s.losses() == losses) {
            true => Ok(until),
            false => Err(lost_lock()),
        }
    }
}

/// Starts the thread that renews locks, at the first one.
///
/// # Errors
/// ENOLCK.
pub(super) fn start(core: &Arc<Core>) -> Result<()> {
    let weak = Arc::downgrade(core);
    let start = || thread::spawn("saker-locks", move || run(&weak)).map(|_| ());
    let no_thread = |e| Error::new(Errno::ENOLCK).with_text(format!("no thread: {e}"));
    core.locks.renew_from_now_on(start).map_err(no_thread)
}

fn run(weak: &Weak<Core>) {
    let mut next = time::now() + PERIOD;
    loop {
        sleep(LOOK);
        let Some(core) = weak.upgrade() else { return };
        if time::now() >= next {
            next = time::now() + PERIOD;
            core.cluster.net.block_on(core.locks.renew(&core.cluster, &core.inodes));
        }
    }
}
