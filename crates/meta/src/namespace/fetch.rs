//! Lazy replication: a missing entry is fetched from its owner, once for all who wait.

use std::rc::Rc;
use std::time::Duration;

use saker_runtime::failpoint;
use saker_runtime::sim::mutation;
use saker_types::wire::{Dentry, EntryKey, FetchReq, Op};
use saker_types::{Class, Error, InodeId, NodeId};

use super::dir::ResolvedDir;
use super::replica::Fetching;
use crate::request::{Attempt, OwnerAnswer, Rq, Wait};
use crate::shard::{Shard, ShardHandle, encoded};

/// How long one attempt may take; the owner parks a fetch while the entry is prepared.
const FETCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed attempt.
const FETCH_PAUSE: Duration = Duration::from_millis(5);

impl Shard {
    /// Starts the fetch that a request waits for, unless it is under way.
    pub(crate) fn start_fetch(&mut self, key: &EntryKey, anchor_id: InodeId) {
        let id = (key.clone(), anchor_id);
        if self.replica.fetching.contains_key(&id) {
            return;
        }
        self.replica.fetching.insert(id, Fetching::default());
        self.metrics.fetches.inc();
        let fetch = fetch(self.handle(), key.clone(), anchor_id);
        self.hub.spawn(fetch);
    }

    /// The owner's side of a fetch.
    pub(crate) fn fetch(&mut self, _rq: &Rq, msg: &FetchReq) -> Attempt<bytes::Bytes> {
        failpoint!("fetch.served");
        self.must_own(msg.pid, &msg.name)?;
        match self.dentry(msg.pid, &msg.name, msg.anchor_id) {
            Err(crate::request::Stop::Wait(_)) if msg.nowait => {
                Err(Error::retry("the entry is prepared").into())
            }
            other => Ok(encoded(&other?)),
        }
    }
}

/// One fetch, until it has an answer or nobody waits for it any more.
async fn fetch(h: ShardHandle, key: EntryKey, anchor_id: InodeId) {
    let wait = Wait::Fetch(key.clone(), anchor_id);
    loop {
        // Requests that wait now may use an answer "no directory"; later ones began after
        // the question was asked, and asks again.
        let early: Vec<Rc<Rq>> = {
            let mut s = h.shard();
            if let Some(fetching) = s.replica.fetching.get_mut(&(key.clone(), anchor_id)) {
                fetching.stale = false;
            }
            s.parking.waiting_for(&wait).to_vec()
        };
        let owner = NodeId::Shard(h.shard().map.owner(key.pid, &key.name));
        failpoint!("fetch.asks");
        let request = FetchReq { pid: key.pid, name: key.name.clone(), nowait: false, anchor_id };
        let answer: Result<Dentry, Error> =
            h.hub.ask(owner, Op::Fetch, 0, &request, FETCH_TIMEOUT).await;
        if h.shard().fetch_answered(&key, anchor_id, answer, &early) {
            return;
        }
        h.hub.sleep(FETCH_PAUSE).await;
    }
}

impl Shard {
    /// Uses an answer; false if the question must be asked again.
    fn fetch_answered(
        &mut self,
        key: &EntryKey,
        anchor_id: InodeId,
        answer: Result<Dentry, Error>,
        early: &[Rc<Rq>],
    ) -> bool {
        let id = (key.clone(), anchor_id);
        let stale = self.replica.fetching.get(&id).is_none_or(|fetching| fetching.stale);
        match answer {
            // It was overtaken by an invalidation: it says nothing (rule 2).
            Ok(_) if stale && !mutation("late lookup reply accepted") => {
                failpoint!("fetch.overtaken");
                return false;
            }
            Ok(dentry) => {
                failpoint!("fetch.answered");
                self.fetched(key, anchor_id, dentry, early);
            }
            Err(e) if e.is(Class::Retry) || e.is(Class::RefreshMap) => {
                let wait = Wait::Fetch(key.clone(), anchor_id);
                let wanted = !self.parking.waiting_for(&wait).is_empty();
                if !wanted {
                    self.replica.fetching.remove(&id);
                }
                return !wanted;
            }
            Err(e) => self.fetch_failed(key, anchor_id, e),
        }
        true
    }

    fn fetched(&mut self, key: &EntryKey, anchor_id: InodeId, dentry: Dentry, early: &[Rc<Rq>]) {
        self.replica.fetching.remove(&(key.clone(), anchor_id));
        // An ACL that cannot be read is an error where the answer is used.
        if let Ok(Some(dir)) = ResolvedDir::of(&dentry) {
            self.replica.insert(key.pid, key.name.clone(), dir);
        }
        let invalidations = self.replica.invalidations;
        for rq in early {
            let (key, dentry) = (key.clone(), dentry.clone());
            let found = OwnerAnswer { key, anchor_id, dentry, invalidations };
            rq.found.borrow_mut().push(found);
        }
        self.wake(&Wait::Fetch(key.clone(), anchor_id));
    }

    fn fetch_failed(&mut self, key: &EntryKey, anchor_id: InodeId, error: Error) {
        self.replica.fetching.remove(&(key.clone(), anchor_id));
        for rq in self.parking.take(&Wait::Fetch(key.clone(), anchor_id)) {
            self.finish(&rq, Err(error.clone()));
        }
    }
}
