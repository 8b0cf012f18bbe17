//! Leases of open files: what is removed or moved while it is open lives as long as its lease is
//! renewed, or until it is said to be closed (docs/protocol.md, rule 16).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::time::{self, Time};
use saker_runtime::{thread, time::sleep};
use saker_types::wire::{Op, RenewReply, RenewReq};
use saker_types::{Locator, NodeId, Result, ShardNo, limits};

use crate::core::Core;
use crate::data::open_inode::OpenInode;
use crate::net::cluster::decode;

/// Leases of files that are open longer than this are renewed, this often.
const PERIOD: Duration = Duration::from_secs(20);
/// An answer to that is waited for so long: a shard that does not give one must not keep the others
/// from hearing of us in time.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The same of what was closed: nothing hangs on that but space.
const TELL_MAX: Duration = Duration::from_secs(1);
/// What was closed is told this often. The thread looks as often whether the client is gone.
const LOOK: Duration = Duration::from_millis(500);
/// Most handles, or closed files, in one request.
const HANDLES_MAX: usize = 1_024;

// A file is renewed the first time when it is up to two periods old, and then what was closed may be
// being told. Where it has moved is asked next, until an answer's time is over, and answered once more.
const _: () = {
    let until_asked = 2 * PERIOD.as_nanos() + LOOK.as_nanos() + 2 * TELL_MAX.as_nanos();
    assert!((until_asked + 3 * ANSWER_MAX.as_nanos()) < limits::LEASE_NS as u128);
};

/// Starts the thread that renews leases until the client is gone.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<()> {
    let weak = Arc::downgrade(core);
    thread::spawn("saker-leases", move || run(&weak)).map(|_| ())
}

fn run(weak: &Weak<Core>) {
    let mut next = time::now() + PERIOD;
    if let Some(core) = weak.upgrade() {
        // So that something is known of servers that stand still when they are asked for the first time.
        let learnt = core.cluster.net.block_on(core.stat_cache.learn_room(&core.cluster));
        _ = learnt.inspect_err(|e| tracing::debug!("how much room there is: {e}"));
    }
    loop {
        sleep(LOOK);
        let Some(core) = weak.upgrade() else { return };
        let now = time::now();
        if core.inodes.holds.any_closed() {
            core.cluster.net.block_on(core.tell_closed());
        }
        if core.cluster.is_map_old() {
            core.cluster.net.block_on(core.cluster.follow_map());
        }
        if now >= next {
            next = now + PERIOD;
            core.cluster.net.block_on(core.look_after(now));
        }
    }
}

/// The same as a task.
pub(crate) async fn keep(core: &Core) {
    let mut next = time::now() + PERIOD;
    loop {
        core.cluster.net.sleep_until(time::now() + LOOK).await;
        let now = time::now();
        core.tell_closed().await;
        core.cluster.follow_map().await;
        if now >= next {
            next = now + PERIOD;
            core.look_after(now).await;
        }
    }
}

impl Core {
    /// What is to be done every period.
    async fn look_after(&self, now: Time) {
        self.renew_leases(now).await;
        self.let_go_of_data(now);
        self.cluster.end_old_sessions().await;
    }

    /// The lease of a file begins when it is opened, which may have been long before that was heard.
    pub(crate) async fn renew_if_late(&self, inode: &OpenInode, asked: Time) {
        if time::now() - asked >= PERIOD {
            self.renew_wherever(vec![inode.with(|s| s.loc().clone())]).await;
        }
    }

    /// Renews the lease of every file that is open for long enough; learns where they are.
    async fn renew_leases(&self, now: Time) {
        let inodes = self.inodes.all();
        let old = inodes.iter().filter_map(|inode| {
            inode.with(|s| (now - s.opened_at() >= PERIOD).then(|| s.loc().clone()))
        });
        let mut files: Vec<Locator> = old.collect();
        files.extend(self.lent_and_open());
        self.renew_wherever(files).await;
    }

    /// What was removed here and others of this process still have open.
    fn lent_and_open(&self) -> Vec<Locator> {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        lent.retain(|(_, inode)| inode.strong_count() > 0);
        lent.iter().map(|(loc, _)| loc.clone()).collect()
    }

    /// Where a file has moved it may be an orphan by now, whose lease nobody else renews: each move is
    /// followed at once, not in the next period.
    async fn renew_wherever(&self, files: Vec<Locator>) {
        let opening = self.inodes.holds.begin();
        let request = |handles: &[Locator]| RenewReq {
            handles: handles.to_vec(),
            hold: opening.hold(),
            ..RenewReq::default()
        };
        let follow = |loc: &Locator| {
            if let Some(inode) = self.inodes.get(loc.id) {
                inode.moved_to(loc);
            }
        };
        self.renew(files, ANSWER_MAX, request, follow).await;
    }

    /// Tells owners what is not open here any more. One that does not hear it waits for the lease to end.
    pub(crate) async fn tell_closed(&self) {
        let (below, mut closed) = self.inodes.holds.take();
        closed.retain(|loc| self.inodes.get(loc.id).is_none());
        let request = |closed: &[Locator]| RenewReq {
            hold: below,
            closed: closed.iter().map(|loc| loc.id).collect(),
            closed_below: below.number,
            ..RenewReq::default()
        };
        self.renew(closed, TELL_MAX, request, |_| ()).await;
    }

    /// Sends requests about files to the shards that own them, and to those where they are said to be
    /// (`follow` is told) until this time is over. Takes twice that at most.
    async fn renew(
        &self,
        mut files: Vec<Locator>,
        patience: Duration,
        request: impl Fn(&[Locator]) -> RenewReq,
        follow: impl Fn(&Locator),
    ) {
        let until = time::now() + patience;
        let mut asked = BTreeSet::new();
        while !files.is_empty() && time::now() < until {
            files = self.renew_once(files, patience, &request).await;
            files.iter().for_each(&follow);
            // A file that is back where it was is not looked for in a circle.
            files.retain(|loc| asked.insert(loc.clone()));
        }
    }

    /// The same, once: which of them are elsewhere, and where.
    async fn renew_once(
        &self,
        files: Vec<Locator>,
        patience: Duration,
        request: &impl Fn(&[Locator]) -> RenewReq,
    ) -> Vec<Locator> {
        let map = self.cluster.routes().map.clone();
        let mut by_shard: BTreeMap<ShardNo, Vec<Locator>> = BTreeMap::new();
        for loc in files {
            let shard = map.shard_of_slot(map.slot_at(&loc));
            by_shard.entry(shard).or_default().push(loc);
        }
        let requests = by_shard.iter().flat_map(|(shard, files)| {
            files.chunks(HANDLES_MAX).map(|part| self.renew_some(*shard, request(part), patience))
        });
        let mut elsewhere = Vec::new();
        for result in futures_util::future::join_all(requests).await {
            match result {
                Ok(moved) => elsewhere.extend(moved),
                Err(error) => tracing::warn!("a shard does not hear what is open here: {error}"),
            }
        }
        elsewhere
    }

    async fn renew_some(
        &self,
        shard: ShardNo,
        message: RenewReq,
        patience: Duration,
    ) -> Result<Vec<Locator>> {
        let (to, deadline) = (NodeId::Shard(shard), time::now() + patience);
        let reply =
            self.cluster.call(to, Op::Renew, &message, Bytes::new(), patience, deadline).await?;
        Ok(decode::<RenewReply>(Op::Renew, reply.body)?.moved)
    }
}

#[cfg(test)]
mod tests;
