//! Taking and ending the hold of a decoupled subtree, and inode numbers for it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_lock::Mutex as AsyncMutex;
use saker_runtime::thread;
use saker_runtime::time;
use saker_types::policy::{Consistency, Durability, Mechanism, Policy, PolicyId};
use saker_types::wire::{At, Entry, HoldReply};
use saker_types::{Errno, Error, Result};

use super::merge::MergeState;
use super::saved::SavedJournals;
use super::{Dirs, KeptIn, PrivateServers, Save, Subtree};
use crate::holds::HeldBy;
use crate::policies::SubtreePolicy;
use crate::{Caller, Fs};

/// Inode numbers that a subtree asks for at a time at most, unless its policy says more.
pub(super) const ALLOCATED_AT_ONCE_MAX: u64 = 65_536;
/// More are asked for when fewer than this part of the last ones are left.
const FEW_PARTS: u64 = 4;

impl Fs {
    /// Holds the subtree of a decoupled policy, and serves it by private servers. Others' holds their requests
    /// take by themselves.
    ///
    /// # Errors
    /// EBUSY: another client holds it. ESTALE: the policy is not in force any more.
    pub(crate) async fn hold_subtree(&self, policy: u64) -> Result<()> {
        if self.subtrees.held(policy)?.is_some() {
            return Ok(());
        }
        let _changing = self.subtrees.changing.lock().await;
        if self.subtrees.held(policy)?.is_some() {
            return Ok(());
        }
        self.serve_subtree(policy, self.core.cluster.hold(policy)).await
    }

    /// Merges what a client has saved in the cluster that is dead (with `force` also one that lives), and ends
    /// its hold.
    ///
    /// # Errors
    /// EBUSY: it lives. ESTALE: the policy is not in force any more. Those of merging: then the subtree is this
    /// client's, and the same may be tried again.
    pub(crate) async fn merge_saved(
        &self,
        who: &Caller,
        policy: u64,
        force: bool,
    ) -> Result<super::MergeReport> {
        let _changing = self.subtrees.changing.lock().await;
        if self.subtrees.held(policy)?.is_none() {
            match force {
                true => {
                    let hold = self.core.cluster.hold_by_force(who, policy);
                    self.serve_subtree(policy, hold).await?;
                }
                false => self.serve_subtree(policy, self.core.cluster.hold(policy)).await?,
            }
        }
        let subtree = self.subtrees.held(policy)?.ok_or(Errno::ESTALE)?;
        self.end_subtree(&subtree, false).await
    }

    /// Takes a hold, and serves the subtree.
    async fn serve_subtree(
        &self,
        policy: u64,
        hold: impl Future<Output = Result<HoldReply>>,
    ) -> Result<()> {
        let had_journal = self.subtrees.journals.as_ref().is_some_and(|dir| dir.has(policy));
        let reply = hold.await?;
        let (goes_on, begun) = match self.begin_journal(policy, &reply) {
            Ok(goes_on) => (goes_on, self.begin_subtree(policy, reply).await),
            Err(error) => (had_journal, Err(error)),
        };
        match begun {
            Ok(subtree) => {
                self.keep_merging(&subtree)?;
                self.subtrees.insert(subtree);
                Ok(())
            }
            Err(error) => {
                // Nothing was done in it, unless its journal goes on: then it is for whoever can.
                match goes_on {
                    true => self.core.cluster.holds.forget(policy),
                    false if self.core.cluster.release(policy).await.is_ok() => {
                        self.subtrees.journals.iter().for_each(|dir| dir.remove(policy));
                    }
                    false => {}
                }
                Err(error)
            }
        }
    }

    /// Binds what is kept on this machine to the hold. True: something is already, or may be in the cluster,
    /// and goes on.
    fn begin_journal(&self, policy: u64, reply: &HoldReply) -> Result<bool> {
        let first = reply.policy.hold.as_ref().map_or(0, |hold| hold.first);
        match (PolicyId(policy).durability(), &self.subtrees.journals) {
            (Durability::Local, Some(dir)) => dir.begin(policy, first),
            (durability, _) => Ok(durability == Durability::Global),
        }
    }

    async fn begin_subtree(&self, policy: u64, reply: HoldReply) -> Result<Arc<Subtree>> {
        let epoch = reply.policy.last_epoch;
        let hold = reply.policy.hold.clone().unwrap_or_default();
        let first = hold.first;
        let SubtreePolicy { policy: says, root, .. } = SubtreePolicy::of(reply.policy)?;
        let root = root.under(policy);
        let kept = self.kept_in(policy, &says, first, epoch).await?;
        let upstream = self.core.clone();
        let holder =
            Caller { as_holder: Some((self.core.cluster.holds.holder(), epoch)), ..Caller::root() };
        let row = super::load::root_row(&self.core, &holder, &root).await?;
        let servers = PrivateServers::beside(&upstream, kept, &root, row).await?;
        let lapses = servers.are_saved();
        let held_by = Arc::new(HeldBy { upstream: Arc::downgrade(&upstream), policy, lapses });
        _ = servers.core().held_until.set(Box::new(move || {
            let held_by = held_by.clone();
            Box::pin(async move { held_by.until().await })
        }));
        let mut dirs = Dirs::default();
        if servers.is_kept() {
            // By a process before this one.
            dirs.made = hold.ids;
        }
        let ids = self.core.cluster.provision(policy, says.allocated_inodes).await?;
        servers.give_ids(ids).await?;
        dirs.will_make(ids);
        dirs.known.insert(root.id, root.clone());
        dirs.unloaded.insert(root.id);
        let subtree = Arc::new(Subtree {
            policy,
            began: epoch,
            first,
            allocates: AtomicU64::new(says.allocated_inodes),
            says,
            root,
            upstream,
            servers,
            dirs: dirs.into(),
            loading: AsyncMutex::new(()),
            provisioning: AsyncMutex::new(()),
            merging: AsyncMutex::new(MergeState::new()),
            report: None.into(),
            ended: None.into(),
        });
        subtree.end_with_servers();
        subtree.finish_merge().await?;
        if subtree.servers.is_kept() {
            // What was loaded before is not loaded a second time, at another name that it has got.
            subtree.find_dirs().await?;
        }
        Ok(subtree)
    }

    /// Where what was not merged yet is kept.
    async fn kept_in(&self, policy: u64, says: &Policy, first: u64, epoch: u64) -> Result<KeptIn> {
        match says.durability() {
            Durability::None => Ok(KeptIn::Memory),
            Durability::Global => {
                let dir = SavedJournals::of(&self.core, policy).await?.begin(first, epoch).await?;
                let streams = says.composition().has(Mechanism::Stream);
                Ok(KeptIn::Cluster(Save { dir, streams, users_before: epoch }))
            }
            Durability::Local => match &self.subtrees.journals {
                Some(dir) => Ok(KeptIn::Dir(dir.of_policy(policy))),
                None => {
                    let text = "the policy keeps a journal on this machine, and the client was \
                                given no directory for it (journal_dir)";
                    Err(Error::new(Errno::EOPNOTSUPP).with_text(text))
                }
            },
        }
    }

    /// Merges in the background, or saves what nobody merges by itself, if the policy says so.
    fn keep_merging(&self, subtree: &Arc<Subtree>) -> Result<()> {
        let Some(every) = subtree.says.sync_interval else { return Ok(()) };
        let weak = Arc::downgrade(subtree);
        let started = thread::spawn("saker-merge", move || {
            loop {
                time::sleep(every);
                let Some(subtree) = weak.upgrade().filter(|subtree| subtree.is_served()) else {
                    return;
                };
                if let Err(error) = subtree.upstream.cluster.net.block_on(subtree.keep_up()) {
                    tracing::warn!("the subtree {}: {error}", subtree.described());
                }
            }
        });
        started
            .map(drop)
            .map_err(|e| Error::new(Errno::EAGAIN).with_text(format!("no thread for merging: {e}")))
    }

    /// Merges a subtree whose root, or something in it, is at a place, if this client holds it.
    ///
    /// # Errors
    /// EPERM: neither is the subtree's directory the caller's, nor is that the superuser. EINVAL: no decoupled
    /// policy is in force there. ENOENT: this client does not hold the subtree.
    /// Those of merging.
    pub async fn merge_subtree(
        &self,
        who: &Caller,
        at: &At,
        dry_run: bool,
    ) -> Result<super::MergeReport> {
        let policy = self.lookup(who, at).await?.loc.policy;
        if !PolicyId(policy).is_decoupled() {
            let text = "no policy is in force here under which something is merged later";
            return Err(Error::new(Errno::EINVAL).with_text(text));
        }
        match self.subtrees.held(policy)? {
            Some(subtree) => {
                self.must_own(who, &subtree.root).await?;
                subtree.merge(dry_run, false).await
            }
            None => {
                let text = "this client does not hold the subtree, so that it has nothing to merge";
                Err(Error::new(Errno::ENOENT).with_text(text))
            }
        }
    }

    /// What the last merge of a subtree did that this client holds, for who may merge it.
    ///
    /// # Errors
    /// As [`Fs::merge_subtree`]; ENODATA: nothing was merged yet.
    pub(crate) async fn last_merge(&self, who: &Caller, at: &At) -> Result<super::MergeReport> {
        let policy = self.lookup(who, at).await?.loc.policy;
        let subtree = match PolicyId(policy).is_decoupled() {
            true => self.subtrees.held(policy)?,
            false => None,
        };
        let subtree = subtree.ok_or(Errno::ENODATA)?;
        self.must_own(who, &subtree.root).await?;
        let report = subtree.last_report().clone();
        report.ok_or_else(|| Errno::ENODATA.into())
    }

    /// Ends as a process that is killed: nothing is merged, and nothing is released.
    #[doc(hidden)]
    pub fn abandon(&self) {
        // First: what is not saved in the cluster yet is not when their servers end.
        self.core.cluster.holds.forget_all();
        for subtree in self.subtrees.all() {
            subtree.end(Errno::ESTALE.into());
            self.subtrees.remove(subtree.policy);
        }
    }

    /// Ends all subtrees of this client: merges those that others are to see, and those of which nothing would
    /// remain; what is in a journal on this machine stays there under a policy that is invisible.
    ///
    /// # Errors
    /// The first one; the others are ended all the same.
    pub(crate) async fn end_subtrees(&self) -> Result<()> {
        let _changing = self.subtrees.changing.lock().await;
        let mut outcome = Ok(());
        for subtree in self.subtrees.all() {
            let is_kept = subtree.says.consistency() == Consistency::Invisible
                && subtree.says.durability() != Durability::None;
            if let Err(error) = self.end_subtree(&subtree, is_kept).await {
                tracing::error!("the subtree {} is not merged: {error}", subtree.described());
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// Ends one: merges it and ends its hold, or, if it is to be kept, leaves both to its journal.
    async fn end_subtree(&self, subtree: &Subtree, is_kept: bool) -> Result<super::MergeReport> {
        let mut report = super::MergeReport::default();
        match is_kept {
            true if subtree.servers.are_saved() => subtree.save_last().await?,
            true => subtree.settle().await?,
            false => report = subtree.merge(false, true).await?,
        }
        subtree.end(Error::new(Errno::ESTALE).with_text("the subtree was released"));
        self.subtrees.remove(subtree.policy);
        if !is_kept && subtree.servers.are_saved() {
            self.remove_saved(subtree).await;
        }
        if let Some(journals) = self.subtrees.journals.as_ref().filter(|_| !is_kept) {
            journals.remove(subtree.policy);
        }
        Ok(report)
    }

    /// If this client holds the decoupled subtree of a directory that is about to be removed, it merges what it
    /// did and ends its hold: nobody removes a directory whose subtree is held. True: it did.
    ///
    /// # Errors
    /// ENOTEMPTY: there is something in the subtree. Those of merging.
    pub(crate) async fn let_go(&self, who: &Caller, at: &At) -> Result<bool> {
        if self.subtrees.all().is_empty() {
            return Ok(false);
        }
        // Whatever it is, the refusal has said more.
        let Ok(Entry { attr, loc, .. }) = self.lookup(who, at).await else { return Ok(false) };
        let _changing = self.subtrees.changing.lock().await;
        let Some(subtree) = self.subtrees.held(loc.policy)?.filter(|it| it.is_root(attr.id)) else {
            return Ok(false);
        };
        let mut names = subtree.clone().readdir(&Caller::root(), &subtree.root, 0);
        if names.next().await?.is_some() {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.end_subtree(&subtree, false).await.map(|_| true)
    }
}

impl Fs {
    /// A subtree was merged and released: nothing that is saved in the cluster is needed.
    pub(super) async fn remove_saved(&self, subtree: &Subtree) {
        let removed = match SavedJournals::of(&self.core, subtree.policy).await {
            Ok(saved) => saved.remove(subtree.began).await,
            Err(error) => Err(error),
        };
        // Whoever holds the subtree next removes it.
        if let Err(error) = removed {
            tracing::warn!(
                "the journal of the subtree {} is there yet: {error}",
                subtree.described()
            );
        }
    }
}

impl Subtree {
    /// What is due at each interval of the policy.
    async fn keep_up(&self) -> Result<()> {
        match self.says.consistency() {
            Consistency::Invisible => self.save().await,
            _ => self.merge(false, false).await.map(drop),
        }
    }

    /// Everything that was done is where the policy keeps it.
    ///
    /// # Errors
    /// As [`Subtree::sync`].
    pub(super) async fn save(&self) -> Result<()> {
        self.settle().await?;
        self.sync().await
    }

    /// What was answered is where the policy keeps it; in the cluster also what was written to open files.
    ///
    /// # Errors
    /// As [`Subtree::sync`].
    pub(crate) async fn sync_names(&self) -> Result<()> {
        match self.servers.are_saved() {
            true => self.save().await,
            false => self.sync().await,
        }
    }

    /// The same, before it ends: what comes from now on waits.
    ///
    /// # Errors
    /// As [`Subtree::sync`]; then it goes on.
    async fn save_last(&self) -> Result<()> {
        self.settle().await?;
        let saved = self.servers.save_last().await.map_err(|error| self.lost(error));
        if saved.is_err() {
            self.servers.resume();
        }
        saved
    }

    /// Whether it is served.
    pub(super) fn is_served(&self) -> bool {
        self.why_ended().is_none()
    }

    /// For messages.
    pub(super) fn described(&self) -> String {
        format!("of policy {:#x} at {}", self.policy, String::from_utf8_lossy(&self.root.name))
    }

    /// Has inode numbers for what is about to be made.
    pub(crate) async fn provide_ids(&self) -> Result<()> {
        let few = |subtree: &Subtree| {
            let last = subtree.allocates.load(std::sync::atomic::Ordering::Relaxed);
            subtree.servers.ids_left() <= last / FEW_PARTS
        };
        if !few(self) {
            return Ok(());
        }
        // Whoever comes while somebody asks goes on with what is left, if anything is.
        let Some(_asking) = self.provisioning.try_lock() else {
            return match self.servers.ids_left() {
                0 => {
                    drop(self.provisioning.lock().await);
                    Ok(())
                }
                _ => Ok(()),
            };
        };
        if !few(self) {
            return Ok(());
        }
        let count = self.next_allocation();
        let ids = self.upstream.cluster.provision(self.policy, count).await;
        match ids {
            Ok(ids) => {
                self.dirs().will_make(ids);
                self.servers.give_ids(ids).await
            }
            // There are some left: it is tried again with the next one.
            Err(error) if self.servers.ids_left() > 0 => {
                tracing::warn!("no more inode numbers for the subtree yet: {error}");
                Ok(())
            }
            Err(error) => Err(self.lost(error)),
        }
    }

    /// An error of the cluster's servers; if it says that the hold has ended, the subtree does.
    pub(super) fn lost(&self, error: Error) -> Error {
        if error.errno() == Errno::ESTALE
            && self.upstream.cluster.holds.epoch(self.policy).is_none()
        {
            let text = "this client has lost its hold of the subtree";
            self.end(Error::new(Errno::ESTALE).with_text(text));
        }
        error
    }
}
