//! Ids that left their names here (rule 16): kept for a lease after they left, longer while a
//! client with an open handle renews; then an orphan's chunks are deleted, or all shards forget
//! what they know of a removed directory, and last the record goes: a crash begins that again.
//! Where a directory moved is remembered until it is removed: at most one record a shard.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use rustc_hash::FxHashMap;
use saker_runtime::failpoint;
use saker_runtime::time::Time;
use saker_types::change::{Gone, id_key, table};
use saker_types::wire::{
    ChunkDeleteReq, Empty, InvalidateReply, InvalidateReq, Op, RenewReply, RenewReq,
};
use saker_types::{Error, InodeId, Locator, NodeId, ShardNo, limits};

use crate::request::Step;
use crate::shard::{Handle, Shard, encoded};

const LEASE: Duration = Duration::from_nanos(limits::LEASE_NS);
/// Records ended in one step: with a step a millisecond more than can come, in slices that nobody
/// who waits for the step notices.
const BATCH: usize = 64;

/// When each gone record may end.
#[derive(Default)]
pub struct Leases {
    until: FxHashMap<InodeId, Time>,
    queue: VecDeque<(Time, InodeId)>,
    /// Nobody has these open.
    at_once: VecDeque<InodeId>,
}

impl Leases {
    /// The id left its name just now, or the shard just started.
    pub fn start(&mut self, id: InodeId, now: Time) {
        self.until.insert(id, now + LEASE);
        self.queue.push_back((now + LEASE, id));
    }

    /// The id left its name, and nobody has it open.
    pub fn end(&mut self, id: InodeId, now: Time) {
        self.until.insert(id, now);
        self.at_once.push_back(id);
    }

    /// Somebody still has it open.
    fn renew(&mut self, id: InodeId, now: Time) {
        if let Some(until) = self.until.get_mut(&id) {
            *until = now + LEASE;
        }
    }

    /// Ids whose time is over, at most a batch.
    fn expired(&mut self, now: Time) -> Vec<InodeId> {
        let ready = BATCH.min(self.at_once.len());
        let mut out: Vec<InodeId> = self.at_once.drain(..ready).collect();
        out.retain(|id| self.until.remove(id).is_some());
        while out.len() < BATCH && self.queue.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, id)) = self.queue.pop_front() else { break };
            match self.until.get(&id) {
                Some(until) if *until > now => self.queue.push_back((*until, id)),
                Some(_) => {
                    self.until.remove(&id);
                    out.push(id);
                }
                None => {}
            }
        }
        out
    }

    /// When to look again.
    pub fn next(&self) -> Option<Time> {
        let first = self.queue.front().map(|(at, _)| *at);
        if self.at_once.is_empty() { first } else { Some(Time::default()) }
    }

    /// Records kept.
    pub fn len(&self) -> usize {
        self.until.len()
    }
}

impl Shard {
    /// Serves renewals of open handles.
    pub(crate) fn renew(&mut self, msg: &RenewReq) -> Step<Bytes> {
        let mut moved: Vec<Locator> = Vec::new();
        let now = self.served.now();
        for handle in msg.handles.iter().take(limits::COMPONENTS_MAX) {
            self.opened.note(handle.id, now);
            let Some(gone) = self.gone(handle.id)? else { continue };
            self.leases.renew(handle.id, now);
            // To a home that the handle names already there is nowhere to go.
            moved.extend(gone.moved.filter(|to| to != handle));
        }
        Ok(encoded(&RenewReply { moved }))
    }

    /// Ends what is over.
    pub(crate) fn expire_gone(&mut self) {
        self.opened.go_on(self.served.now());
        let ids = self.leases.expired(self.served.now());
        let (mut chunked, mut dirs) = (Vec::new(), Vec::new());
        for id in ids {
            if self.not_busy(id).is_err() {
                // A cut or spill of the orphan is under way.
                self.leases.start(id, self.served.now());
                continue;
            }
            match self.gone(id) {
                Ok(Some(gone)) => match gone.orphan.as_ref().map(|inode| &inode.attr) {
                    Some(attr) if attr.chunked => {
                        if !gone.deleting {
                            // From now on it can neither get a name nor be found: it has no data
                            // any more then, which would seem to be a hole.
                            let gone = Gone { linkable: false, deleting: true, ..gone };
                            self.put(id_key(table::GONE, id), gone.encode_to_vec().into());
                        }
                        chunked.push(id);
                    }
                    Some(attr) if attr.is_dir() => dirs.push(id),
                    // Nobody renews the lease of a directory that is somebody's working directory.
                    None if gone.directory => {}
                    _ => self.end_gone(id),
                },
                Ok(None) => {}
                Err(_) => self.leases.start(id, self.served.now()),
            }
        }
        if !chunked.is_empty() {
            let h = self.handle();
            self.hub.spawn(delete_chunks(h, chunked));
        }
        if !dirs.is_empty() {
            let h = self.handle();
            self.hub.spawn(forget_directories(h, dirs));
        }
    }

    fn end_gone(&mut self, id: InodeId) {
        failpoint!("gone.ends");
        if let Err(e) = self.drop_gone(id) {
            tracing::error!("cannot end the record of inode {id:#x}: {e}");
        }
    }
}

/// Every store deletes what it has of these; then the records may go.
async fn delete_chunks(h: Handle, ids: Vec<InodeId>) {
    let stores = h.shard().map.stores.len() as u16;
    let request = ChunkDeleteReq { ids };
    let calls = (0..stores).map(|n| {
        h.hub.ask_until::<Empty>(NodeId::Store(n), Op::ChunkDelete, 0, &request, Bytes::new())
    });
    let failed = join_all(calls).await.into_iter().find_map(Result::err);
    failpoint!("gone.chunks_deleted");
    end_all(&h, request.ids, failed);
}

/// Nothing can come into these any more: no shard needs its totals of them.
async fn forget_directories(h: Handle, ids: Vec<InodeId>) {
    let shards = h.shard().map.shards.len() as ShardNo;
    let request = InvalidateReq { forget: ids, ..InvalidateReq::default() };
    let calls = (0..shards).map(|n| {
        let to = NodeId::Shard(n);
        h.hub.ask_until::<InvalidateReply>(to, Op::Invalidate, 0, &request, Bytes::new())
    });
    let failed = join_all(calls).await.into_iter().find_map(Result::err);
    failpoint!("gone.totals_forgotten");
    end_all(&h, request.forget, failed);
}

fn end_all(h: &Handle, ids: Vec<InodeId>, failed: Option<Error>) {
    let mut s = h.shard();
    let now = s.served.now();
    for id in ids {
        match &failed {
            None => s.end_gone(id),
            Some(_) => s.leases.start(id, now),
        }
    }
    if let Some(e) = failed {
        tracing::error!("a peer refuses to forget inodes: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_lease_outlives_the_first() {
        let mut leases = Leases::default();
        let start = Time::default();
        leases.start(1, start);
        leases.start(2, start);
        leases.renew(2, start + LEASE / 2);
        assert_eq!(leases.expired(start + LEASE / 2), vec![]);
        assert_eq!(leases.expired(start + LEASE), vec![1]);
        assert_eq!(leases.expired(start + LEASE * 3 / 2), vec![2]);
        assert_eq!(leases.len(), 0);
    }

    #[test]
    fn what_nobody_has_open_ends_before_others() {
        let mut leases = Leases::default();
        let start = Time::default();
        leases.start(1, start);
        leases.end(2, start);
        assert_eq!((leases.next(), leases.len()), (Some(start), 2));
        assert_eq!(leases.expired(start), vec![2]);
        assert_eq!((leases.next(), leases.len()), (Some(start + LEASE), 1));
        // Back at a name, and gone again.
        leases.end(1, start);
        assert_eq!(leases.expired(start), vec![1]);
        assert_eq!((leases.expired(start + LEASE), leases.len()), (vec![], 0));
    }
}
