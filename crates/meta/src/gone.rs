//! Ids that left their names here (rule 16): kept for a lease after they left, longer while a
//! client with an open handle renews, and no longer than until all who had an orphan with chunks open
//! have closed it (`state::opened`); then an orphan's chunks are deleted, or all shards forget
//! what they know of a removed directory, and last the record goes: a crash begins that again.
//! Where a directory moved is remembered until it is removed: at most one record a slot.
//!
//! A record belongs to the slot of the name that the inode left, and goes where that goes. Each
//! tells where the inode went from there; so who follows them goes forward in time, and comes to
//! where it is.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use saker_runtime::failpoint;
use saker_types::change::{Gone, slot_key, table};
use saker_types::placement::Slot;
use saker_types::wire::{
    ChunkDeleteReq, Empty, Entry, Hold, Holds, InvalidateReply, InvalidateReq, Op, RenewReply,
    RenewReq,
};
use saker_types::{Error, InodeId, Locator, NodeId, ShardNo, limits};

use crate::request::{Attempt, Msg, Rq};
use crate::shard::{Shard, ShardHandle, encoded};

impl Shard {
    /// Serves renewals of open handles, and hears of what was closed.
    pub(crate) fn renew(&mut self, msg: &RenewReq) -> Attempt<Bytes> {
        let mut moved: Vec<Locator> = Vec::new();
        let handles = msg.handles.iter().take(limits::COMPONENTS_MAX);
        let handles: BTreeMap<InodeId, _> = handles.map(|handle| (handle.id, handle)).collect();
        handles.keys().for_each(|id| self.note_open(*id, msg.hold));
        for (id, handle) in handles {
            let gone = self.readable_gone(self.map.slot_at(handle), id);
            if let Some(to) = gone.and_then(|gone| gone.moved)
                && !self.is_at(handle)
            {
                moved.push(to);
            }
        }
        let closed = msg.closed.iter().take(limits::COMPONENTS_MAX);
        for id in closed.copied().collect::<BTreeSet<_>>() {
            moved.extend(self.closed(id, msg.hold.client, msg.closed_below));
        }
        Ok(encoded(&RenewReply { moved }))
    }

    /// Is this inode where the handle says? It may have left, and come back since.
    fn is_at(&mut self, handle: &Locator) -> bool {
        let row = match handle.home_slot {
            Some(_) => self.attr_row(self.map.slot_at(handle), handle.id),
            None => self.entry(&self.map.key(handle.pid, &handle.name)),
        };
        matches!(row, Ok(Some(inode)) if inode.attr.id == handle.id)
    }

    /// A client has closed what it had opened of a file by numbers below `below`. An orphan that nobody
    /// has open any more ends. Returns where the file is if another shard has it.
    fn closed(&mut self, id: InodeId, client: u64, below: u64) -> Option<Locator> {
        let now = self.lease_clock.now();
        self.opened.close(id, Hold { client, number: below }, now);
        let mut moved = None;
        for slot in self.leases.slots(id) {
            let Some(gone) = self.readable_gone(slot, id) else { continue };
            let is_chunked = gone.orphan.is_some_and(|inode| inode.attr.chunked);
            if is_chunked && !gone.deleting && !self.opened.may_have(id, now) {
                self.leases.end(id, now);
            }
            moved = gone.moved.filter(|to| !self.owns_slot(self.map.slot_at(to))).or(moved);
        }
        moved
    }

    /// The record of an id, if there is one that can be read: one that cannot must not keep the others of
    /// a request from being heard of.
    fn readable_gone(&mut self, slot: Slot, id: InodeId) -> Option<Gone> {
        let gone = self.gone(slot, id).inspect_err(|e| tracing::error!("inode {id:#x}: {e}"));
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
        let (mut chunked, mut dirs) = (Vec::new(), Vec::new());
        for (slot, id) in self.leases.expired(now) {
            if self.not_busy(id).is_err() {
                // A cut or spill of the orphan is under way.
                self.leases.start(id, slot, now);
                continue;
            }
            match self.gone(slot, id) {
                Ok(Some(gone)) => match gone.orphan.as_ref().map(|inode| &inode.attr) {
                    Some(attr) if attr.chunked => {
                        match self.is_of_cluster(id) {
                            Ok(false) => {}
                            Ok(true) => {
                                self.end_gone(slot, id);
                                continue;
                            }
                            Err(_) => {
                                self.leases.start(id, slot, now);
                                continue;
                            }
                        }
                        if !gone.deleting {
                            // From now on it can neither get a name nor be found: it has no data
                            // any more then, which would seem to be a hole.
                            let gone = Gone { linkable: false, deleting: true, ..gone };
                            self.put(slot_key(table::GONE, slot, id), gone.encode_to_vec().into());
                        }
                        chunked.push((slot, id));
                    }
                    Some(attr) if attr.is_dir() => dirs.push((slot, id)),
                    _ => self.end_gone(slot, id),
                },
                Ok(None) => {}
                Err(_) => self.leases.start(id, slot, now),
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

    fn end_gone(&mut self, slot: Slot, id: InodeId) {
        failpoint!("gone.ends");
        if let Err(e) = self.drop_gone(slot, id) {
            tracing::error!("cannot end the record of inode {id:#x}: {e}");
        }
    }
}

/// Every store deletes what it has of these; then the records may go.
async fn delete_chunks(h: ShardHandle, gone: Vec<(Slot, InodeId)>) {
    let stores = h.shard().map.stores.len() as u16;
    let request = ChunkDeleteReq { ids: ids(&gone) };
    let calls = (0..stores).map(|n| {
        h.hub.ask_until::<Empty>(NodeId::Store(n), Op::ChunkDelete, 0, &request, Bytes::new())
    });
    let failed = join_all(calls).await.into_iter().find_map(Result::err);
    failpoint!("gone.chunks_deleted");
    end_all(&h, gone, failed);
}

/// Nothing can come into these any more: no shard needs its totals of them.
async fn forget_directories(h: ShardHandle, gone: Vec<(Slot, InodeId)>) {
    let shards = h.shard().map.shards.len() as ShardNo;
    let request = InvalidateReq { forget: ids(&gone), ..InvalidateReq::default() };
    let calls = (0..shards).map(|n| {
        let to = NodeId::Shard(n);
        h.hub.ask_until::<InvalidateReply>(to, Op::Invalidate, 0, &request, Bytes::new())
    });
    let failed = join_all(calls).await.into_iter().find_map(Result::err);
    failpoint!("gone.totals_forgotten");
    end_all(&h, gone, failed);
}

fn ids(gone: &[(Slot, InodeId)]) -> Vec<InodeId> {
    gone.iter().map(|(_, id)| *id).collect()
}

fn end_all(h: &ShardHandle, gone: Vec<(Slot, InodeId)>, failed: Option<Error>) {
    let mut s = h.shard();
    let now = s.lease_clock.now();
    for (slot, id) in gone {
        match &failed {
            None => s.end_gone(slot, id),
            Some(_) => s.leases.start(id, slot, now),
        }
    }
    if let Some(e) = failed {
        tracing::error!("a peer refuses to forget inodes: {e}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_types::wire::{RenameReply, RenameReq, RenewReply, RenewReq};

    use super::*;
    use crate::testing::{Tester, at};

    #[test]
    fn who_has_a_file_open_that_is_back_is_sent_nowhere() {
        let mut t = Tester::new();
        let first = t.create("f").unwrap().loc;
        let rename = |t: &mut Tester, from, to| {
            let (ctx, from, to) = (t.ctx(), at(from), at(to));
            let request = RenameReq { ctx, from, to, ..RenameReq::default() };
            t.ask::<RenameReply>(Op::Rename, &request).unwrap().loc
        };
        let renew = |t: &mut Tester, handle: &Locator| {
            let handles = vec![handle.clone()];
            let request = RenewReq { handles, ..RenewReq::default() };
            t.ask::<RenewReply>(Op::Renew, &request).unwrap().moved
        };
        let second = rename(&mut t, "f", "g");
        assert_eq!(renew(&mut t, &first), std::slice::from_ref(&second));
        rename(&mut t, "g", "f");
        assert_eq!(renew(&mut t, &second), std::slice::from_ref(&first));
        assert_eq!(renew(&mut t, &first), [], "it is there");
    }
}
