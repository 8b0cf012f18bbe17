//! Decoupled subtrees (Cudele sections 3 to 5): this client holds them, answers by itself what is asked
//! of them, and merges later (docs/decisions/0063).
//!
//! What is in such a subtree is served by private servers (`servers`), with the requests of the strict
//! namespace. They begin with the root directory alone: a directory that was there before is
//! loaded (`load`) when something in it is needed. A merge (`merge`) makes what has changed since part of
//! the namespace.

mod apply;
mod hold;
mod journals;
mod load;
mod merge;
pub(crate) mod saved;
mod servers;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use async_lock::Mutex as AsyncMutex;
use saker_types::policy::Policy;
use saker_types::wire::IdRange;
use saker_types::{Errno, Error, InodeId, Locator, Result};

use crate::Caller;
use crate::core::Core;
use crate::namespace::listing::DirStream;
use crate::namespace::strict::Strict;
use crate::namespace::strict::readdir::Shares;

pub use journals::{JournalOf, journals_in};
pub use merge::MergeReport;
pub use saved::GlobalDir;
pub use servers::{KeptIn, PrivateServers, Save};

pub(crate) use journals::JournalDir;

use merge::MergeState;

/// The decoupled subtrees that this client holds.
#[derive(Default)]
pub(crate) struct Subtrees {
    held: RwLock<HashMap<u64, Arc<Subtree>>>,
    is_any: AtomicBool,
    /// One begins or ends at a time.
    changing: AsyncMutex<()>,
    /// Where those are kept that must outlive this process.
    journals: Option<JournalDir>,
}

/// One of them.
pub(crate) struct Subtree {
    policy: u64,
    /// The epoch in which this client began to serve it.
    began: u64,
    /// The epoch in which the hold began.
    first: u64,
    /// What the policy says.
    says: Policy,
    /// Its root directory.
    root: Locator,
    /// The client as the cluster knows it; it serves no subtree.
    upstream: Arc<Core>,
    servers: PrivateServers,
    dirs: Mutex<Dirs>,
    /// One task loads at a time.
    loading: AsyncMutex<()>,
    /// One task asks for more inode numbers at a time.
    provisioning: AsyncMutex<()>,
    /// Inode numbers that are asked for next.
    allocates: AtomicU64,
    merging: AsyncMutex<MergeState>,
    /// Of the last merge.
    report: Mutex<Option<MergeReport>>,
    /// Why it is not served any more.
    ended: Mutex<Option<Error>>,
}

/// Directories that the cluster has.
#[derive(Default)]
struct Dirs {
    /// Where the cluster has them.
    known: HashMap<InodeId, Locator>,
    /// Those of which the private servers have the row, and not the entries yet.
    unloaded: BTreeSet<InodeId>,
    /// Other inodes whose rows were loaded by themselves.
    rows: HashSet<InodeId>,
    /// Numbers of what was made here.
    made: Vec<IdRange>,
}

impl Dirs {
    fn is_made_here(&self, id: InodeId) -> bool {
        self.made.iter().any(|range| (range.first..range.first + range.count).contains(&id))
    }

    /// More numbers for what is made here.
    fn will_make(&mut self, ids: IdRange) {
        match self.made.last_mut() {
            Some(last) if last.first + last.count == ids.first => last.count += ids.count,
            _ => self.made.push(ids),
        }
    }

    /// Have the private servers got everything that there is to know of a place, and of what is in it if it
    /// is a directory?
    fn are_loaded(&self, loc: &Locator) -> bool {
        let is_loaded = |id: InodeId| self.known.contains_key(&id) && !self.unloaded.contains(&id);
        let in_loaded = |pid: InodeId| is_loaded(pid) || self.is_made_here(pid);
        match self.known.contains_key(&loc.id) {
            true => !self.unloaded.contains(&loc.id),
            // A file, or a directory that came from elsewhere before this client held the subtree.
            false => {
                self.is_made_here(loc.id)
                    || self.rows.contains(&loc.id)
                    || loc.home_slot.is_none() && in_loaded(loc.pid)
            }
        }
    }
}

impl Subtrees {
    /// None yet.
    pub(crate) fn new(journals: Option<JournalDir>) -> Subtrees {
        Subtrees { journals, ..Subtrees::default() }
    }

    /// The subtree of a policy, if this client holds it.
    ///
    /// # Errors
    /// Why it does not serve it any more.
    pub(crate) fn held(&self, policy: u64) -> Result<Option<Arc<Subtree>>> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let Some(subtree) = held.get(&policy) else { return Ok(None) };
        if subtree.upstream.cluster.holds.epoch(policy).is_none() {
            let text = "this client has lost its hold of the subtree, and what it had not merged";
            subtree.end(Error::new(Errno::ESTALE).with_text(text));
        }
        match subtree.why_ended() {
            None => Ok(Some(subtree.clone())),
            Some(error) => Err(error),
        }
    }

    /// All of them. Costs nothing while there are none.
    pub(crate) fn all(&self) -> Vec<Arc<Subtree>> {
        if !self.is_any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.values().cloned().collect()
    }

    fn insert(&self, subtree: Arc<Subtree>) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        held.insert(subtree.policy, subtree);
        self.is_any.store(true, Ordering::Release);
    }

    fn remove(&self, policy: u64) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        held.remove(&policy);
        self.is_any.store(!held.is_empty(), Ordering::Release);
    }
}

impl Subtree {
    /// The namespace of its private servers.
    pub(crate) fn names(&self) -> Strict<'_> {
        Strict(self.servers.core())
    }

    /// The client of its private servers.
    pub(crate) fn core(&self) -> &Arc<Core> {
        self.servers.core()
    }

    /// The number of its policy.
    pub(crate) fn policy(&self) -> u64 {
        self.policy
    }

    /// Its root directory.
    pub(crate) fn root(&self) -> &Locator {
        &self.root
    }

    /// Is this its root directory?
    pub(crate) fn is_root(&self, id: InodeId) -> bool {
        self.root.id == id
    }

    /// Lists a directory: without a request to the cluster, once it is loaded.
    pub(crate) fn readdir(self: Arc<Self>, who: &Caller, dir: &Locator, cookie: u64) -> DirStream {
        let (who, dir) = (who.clone(), dir.clone());
        DirStream::opening(async move {
            self.load(&dir).await?;
            Ok(DirStream::of_shares(Shares::new(self.core().clone(), &who, &dir, cookie)))
        })
    }

    /// What this client has answered is where the policy keeps it when this returns: on its disk, or in the
    /// cluster.
    ///
    /// # Errors
    /// EIO, ETIMEDOUT when that fails; ESTALE when the hold of the subtree has ended.
    pub(crate) async fn sync(&self) -> Result<()> {
        self.servers.sync().await.map_err(|error| self.lost(error))
    }

    /// It is not served any more: whoever waits for it hears why.
    fn end(&self, why: Error) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.servers.end();
    }

    /// Why it is not served any more.
    pub(crate) fn why_ended(&self) -> Option<Error> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it when its servers cannot go on. What was not merged stays in the journal, if there is one: this
    /// client does not renew the hold any more, and who mounts with the journal goes on with it.
    fn end_with_servers(self: &Arc<Subtree>) {
        let weak = Arc::downgrade(self);
        self.servers.when_dead(move |why| {
            let Some(subtree) = weak.upgrade() else { return };
            let text = format!("the subtree is not served any more: {why}");
            tracing::error!("{} ({})", text, subtree.described());
            // What is saved in the cluster only who holds the subtree can write.
            let holds = &subtree.upstream.cluster.holds;
            let is_lost = subtree.servers.are_saved() && holds.epoch(subtree.policy).is_none();
            let errno = if is_lost { Errno::ESTALE } else { Errno::EIO };
            subtree.end(Error::new(errno).with_text(text));
            subtree.upstream.cluster.holds.forget(subtree.policy);
        });
    }

    /// Who speaks for it to the cluster's servers.
    fn holder(&self) -> Caller {
        let holds = &self.upstream.cluster.holds;
        let epoch = holds.epoch(self.policy).unwrap_or(0);
        Caller { as_holder: Some((holds.holder(), epoch)), ..Caller::root() }
    }

    /// What the last merge did.
    pub(crate) fn last_report(&self) -> MutexGuard<'_, Option<MergeReport>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dirs(&self) -> MutexGuard<'_, Dirs> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place of the subtree as the cluster's servers are asked for it.
    fn under_policy(&self, loc: &Locator) -> Locator {
        loc.clone().under(self.policy)
    }

    /// Numbers to ask for next: more each time, since who makes many files makes more.
    fn next_allocation(&self) -> u64 {
        let next = |count: u64| Some((count * 2).min(hold::ALLOCATED_AT_ONCE_MAX.max(count)));
        self.allocates.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(1)
    }
}
