//! Ids that left their names here (rule 16): kept for a lease after they left, longer while a
//! client with an open handle renews, and no longer than until all who had an orphan with chunks open
//! have closed it ([`crate::opened`]); then an orphan's chunks are deleted, or all shards forget
//! what they know of a removed directory, and last the record goes: a crash begins that again.
//! Where a directory moved is remembered until it is removed: at most one record a shard.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use rustc_hash::FxHashMap;
use saker_runtime::failpoint;
use saker_runtime::time::Time;
use saker_types::change::{Gone, id_key, table};
use saker_types::wire::{
    At, ChunkDeleteReq, Empty, Entry, Hold, Holds, InvalidateReply, InvalidateReq, Op, RenewReply,
    RenewReq,
};
use saker_types::{Error, InodeId, Locator, NodeId, ShardNo, limits};

use crate::request::{Msg, Rq, Step};
use crate::shard::{Handle, Shard, encoded};

const LEASE: Duration = Duration::from_nanos(limits::LEASE_NS);
/// Records ended in one step: with a step a millisecond more than can come, in slices that nobody
/// who waits for the step notices.
const BATCH: usize = 64;

/// When each gone record may end.
#[derive(Default)]
pub struct Leases {
    leases: FxHashMap<InodeId, Lease>,
    /// When to look at each; one entry counts for each id ([`Lease::looked_at`]).
    queue: VecDeque<(Time, InodeId)>,
    /// Nobody has these open.
    at_once: BTreeSet<InodeId>,
}

struct Lease {
    until: Time,
    looked_at: Time,
}

impl Leases {
    /// The id left its name just now, or the shard just started.
    pub fn start(&mut self, id: InodeId, now: Time) {
        let until = now + LEASE;
        let lease = self.leases.entry(id).or_insert_with(|| {
            self.queue.push_back((until, id));
            Lease { until, looked_at: until }
        });
        lease.until = until;
    }

    /// The id left its name, and nobody has it open.
    pub fn end(&mut self, id: InodeId, now: Time) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.until = now;
            self.at_once.insert(id);
        }
    }

    /// Somebody still has it open.
    pub fn renew(&mut self, id: InodeId, now: Time) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.until = now + LEASE;
        }
    }

    /// Is there a record of it?
    fn has(&self, id: InodeId) -> bool {
        self.leases.contains_key(&id)
    }

    fn is_over(&self, id: InodeId, now: Time) -> bool {
        self.leases.get(&id).is_some_and(|lease| lease.until <= now)
    }

    /// Ids whose time is over, at most a batch.
    fn expired(&mut self, now: Time) -> Vec<InodeId> {
        let mut out = Vec::new();
        while out.len() < BATCH && !self.at_once.is_empty() {
            // Somebody may have opened it since.
            out.extend(self.at_once.pop_first().filter(|id| self.is_over(*id, now)));
        }
        out.iter().for_each(|id| _ = self.leases.remove(id));
        while out.len() < BATCH && self.queue.front().is_some_and(|(at, _)| *at <= now) {
            let Some((at, id)) = self.queue.pop_front() else { break };
            let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.looked_at == at) else {
                continue;
            };
            if lease.until > now {
                lease.looked_at = lease.until;
                self.queue.push_back((lease.until, id));
            } else {
                self.leases.remove(&id);
                out.push(id);
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
        self.leases.len()
    }
}

impl Shard {
    /// Serves renewals of open handles, and hears of what was closed.
    pub(crate) fn renew(&mut self, msg: &RenewReq) -> Step<Bytes> {
        let mut moved: Vec<Locator> = Vec::new();
        let handles = msg.handles.iter().take(limits::COMPONENTS_MAX);
        let handles: BTreeMap<InodeId, _> = handles.map(|handle| (handle.id, handle)).collect();
        handles.keys().for_each(|id| self.note_open(*id, msg.hold));
        for (id, handle) in handles {
            // To a home that the handle names already there is nowhere to go.
            moved.extend(
                self.readable_gone(id).and_then(|gone| gone.moved).filter(|to| to != handle),
            );
        }
        let closed = msg.closed.iter().take(limits::COMPONENTS_MAX);
        for id in closed.copied().collect::<BTreeSet<_>>() {
            moved.extend(self.closed(id, msg.hold.client, msg.closed_below));
        }
        Ok(encoded(&RenewReply { moved }))
    }

    /// A client has closed what it had opened of a file by numbers below `below`. An orphan that nobody
    /// has open any more ends. Returns where the file is if another shard has it.
    fn closed(&mut self, id: InodeId, client: u64, below: u64) -> Option<Locator> {
        let now = self.lease_clock.now();
        self.opened.close(id, Hold { client, number: below }, now);
        let gone = if self.leases.has(id) { self.readable_gone(id) } else { None }?;
        let is_chunked = gone.orphan.is_some_and(|inode| inode.attr.chunked);
        if is_chunked && !gone.deleting && !self.opened.may_have(id, now) {
            self.leases.end(id, now);
        }
        gone.moved.filter(|to| self.map.shard_of(&At::handle(to.clone())) != self.no)
    }

    /// The record of an id, if there is one that can be read: one that cannot must not keep the others of
    /// a request from being heard of.
    fn readable_gone(&mut self, id: InodeId) -> Option<Gone> {
        let gone = self.gone(id).inspect_err(|e| tracing::error!("inode {id:#x}: {e}"));
        gone.ok().flatten()
    }

    /// Somebody has the file open, or may have.
    pub(crate) fn note_open(&mut self, id: InodeId, hold: Hold) {
        let now = self.lease_clock.now();
        self.opened.note(id, hold, now);
        self.leases.renew(id, now);
    }

    /// Who may have a file open, for the shard that it goes to; `None`: that is not known.
    pub(crate) fn holders(&mut self, id: InodeId) -> Option<Holds> {
        let holds = self.opened.holders(id, self.lease_clock.now())?;
        Some(Holds { holds })
    }

    /// Notes who has open what an answer says that it has opened, in the step that answers: the request
    /// may have been executed long ago, and the hold that was noted then be over.
    pub(crate) fn note_answered(&mut self, rq: &Rq, body: &Bytes) {
        let hold = match (rq.from.op, &rq.msg) {
            (Op::Create | Op::Tmpfile, Msg::Create(m)) => m.hold,
            (Op::Open, Msg::Open(m)) => m.hold,
            _ => return,
        };
        if let Ok(entry) = Entry::decode(body.clone()) {
            self.note_opened(&entry.attr, hold);
        }
    }

    /// Ends what is over.
    pub(crate) fn expire_gone(&mut self) {
        let now = self.lease_clock.now();
        self.opened.go_on(now);
        let ids = self.leases.expired(now);
        let (mut chunked, mut dirs) = (Vec::new(), Vec::new());
        for id in ids {
            if self.not_busy(id).is_err() {
                // A cut or spill of the orphan is under way.
                self.leases.start(id, now);
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
                Err(_) => self.leases.start(id, now),
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
    let now = s.lease_clock.now();
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
        leases.start(2, start);
        leases.end(2, start);
        assert_eq!((leases.next(), leases.len()), (Some(start), 2));
        assert_eq!(leases.expired(start), vec![2]);
        assert_eq!((leases.next(), leases.len()), (Some(start + LEASE), 1));
        // Back at a name, and gone again.
        leases.end(1, start);
        assert_eq!(leases.expired(start), vec![1]);
        assert_eq!((leases.expired(start + LEASE), leases.len()), (vec![], 0));
        // However often what is said.
        leases.queue.clear();
        for _ in 0..9 {
            leases.start(3, start);
            leases.renew(3, start);
            leases.end(3, start);
        }
        assert_eq!((leases.at_once.len(), leases.queue.len()), (1, 1));
        // Somebody opens it in the last moment.
        leases.renew(3, start);
        assert_eq!((leases.expired(start), leases.len()), (vec![], 1));
        leases.renew(3, start + LEASE / 2);
        assert_eq!(leases.expired(start + LEASE), vec![]);
        assert_eq!(leases.expired(start + LEASE * 3 / 2), vec![3]);
        assert_eq!((leases.queue.len(), leases.len()), (0, 0));
    }
}
