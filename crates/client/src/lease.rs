//! Leases of open files: what is removed or moved while it is open lives as long as its lease is
//! renewed (protocols.md, rule 16).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::time::{self, Time};
use saker_runtime::{thread, time::sleep};
use saker_types::wire::{At, Op, RenewReply, RenewReq};
use saker_types::{Locator, NodeId, Result, ShardNo, limits};

use crate::core::{Core, decode};

/// Leases of files that are open longer than this are renewed, this often.
const PERIOD: Duration = Duration::from_secs(20);
/// An answer to that is waited for so long: a shard that does not give one must not keep the others
/// from hearing of us in time.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The thread looks this often whether the client is gone.
const LOOK: Duration = Duration::from_millis(500);
/// Moves of a file that are followed in one period.
const MOVES_MAX: u32 = 16;
/// Most handles in one request.
const HANDLES_MAX: usize = 1_024;

// A file is renewed the first time when it is up to two periods old, and a moved one's new home
// hears of it in the next round.
const _: () = assert!((PERIOD.as_nanos() + ANSWER_MAX.as_nanos()) as u64 * 2 < limits::LEASE_NS);

/// Starts the thread that renews leases until the client is gone.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<()> {
    let weak = Arc::downgrade(core);
    thread::spawn("saker-leases", move || run(&weak)).map(|_| ())
}

fn run(weak: &Weak<Core>) {
    let mut next = time::now() + PERIOD;
    loop {
        sleep(LOOK);
        let Some(core) = weak.upgrade() else { return };
        let now = time::now();
        if now >= next {
            next = now + PERIOD;
            core.net.block_on(core.look_after(now));
        }
    }
}

/// The same as a task.
pub(crate) async fn keep(core: &Core) {
    let mut next = time::now() + PERIOD;
    loop {
        core.net.sleep_until(next).await;
        let now = time::now();
        next = now + PERIOD;
        core.look_after(now).await;
    }
}

impl Core {
    /// What is to be done every period.
    async fn look_after(&self, now: Time) {
        self.renew_leases(now).await;
        self.let_go_of_data(now);
        self.end_old_sessions().await;
    }

    /// Renews the lease of every file that is open for long enough; learns where they are.
    async fn renew_leases(&self, now: Time) {
        let inodes = self.inodes.all();
        let old = inodes.iter().filter_map(|inode| {
            inode.with(|s| (now - s.opened_at >= PERIOD).then(|| s.loc.clone()))
        });
        let mut handles: Vec<Locator> = old.collect();
        // Where a file has moved it may be an orphan by now, whose lease nobody else renews: each
        // move is followed at once, not in the next period.
        for _ in 0..MOVES_MAX {
            if handles.is_empty() {
                return;
            }
            handles = self.renew_all(handles).await;
        }
    }

    /// Renews these; those that are elsewhere, where.
    async fn renew_all(&self, handles: Vec<Locator>) -> Vec<Locator> {
        let map = self.routes().map.clone();
        let mut by_shard: BTreeMap<ShardNo, Vec<Locator>> = BTreeMap::new();
        for loc in handles {
            let shard = map.shard_of(&At::handle(loc.clone()));
            by_shard.entry(shard).or_default().push(loc);
        }
        let mut elsewhere = Vec::new();
        let requests = by_shard.iter().flat_map(|(shard, handles)| {
            handles.chunks(HANDLES_MAX).map(|part| self.renew(*shard, part.to_vec()))
        });
        for result in futures_util::future::join_all(requests).await {
            match result {
                Ok(moved) => {
                    moved.iter().for_each(|loc| self.follow_open(loc));
                    elsewhere.extend(moved);
                }
                Err(error) => tracing::warn!("leases of open files were not renewed: {error}"),
            }
        }
        elsewhere
    }

    async fn renew(&self, shard: ShardNo, handles: Vec<Locator>) -> Result<Vec<Locator>> {
        let message = RenewReq { handles };
        let deadline = time::now() + ANSWER_MAX;
        let to = NodeId::Shard(shard);
        let reply = self.call(to, Op::Renew, &message, Bytes::new(), ANSWER_MAX, deadline).await?;
        Ok(decode::<RenewReply>(Op::Renew, reply.body)?.moved)
    }

    fn follow_open(&self, loc: &Locator) {
        if let Some(inode) = self.inodes.get(loc.id) {
            inode.moved_to(loc);
        }
    }
}
