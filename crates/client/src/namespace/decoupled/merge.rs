//! Merging: what has changed in a decoupled subtree becomes part of the namespace, all at once
//! (docs/decisions/0063; Cudele section 3.1, "Volatile Apply").
//!
//! What has changed is where the rows of the private servers differ from what the cluster has. New rows,
//! and removed and replaced files, are staged at the shards that own them, and merged in one transaction.
//! What concerns directories that were there before are ordinary operations, right after it.

mod conflicts;
mod later;
mod plan;

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use prost::Message;
use saker_meta::private::{MergedRow, RowPlace, Unfinished};
use saker_runtime::time;
use saker_types::policy::Mechanism;
use saker_types::wire::{
    At, Empty, EntryKey, MergeConflict, MergeReply, MergeReq, Op, ShardRows, StageReq,
};
use saker_types::{Errno, Error, InodeId, Locator, Result};

use self::plan::{Plan, parts};
use super::Subtree;
use super::saved::StoredMerge;
use crate::namespace::api::Namespace;
use crate::namespace::strict::Strict;
use crate::net::request::To;

/// Times that a merge is begun anew because others change the same names meanwhile. Of many conflicts only
/// some are named at a time: a round that names others does not count.
const ROUNDS_MAX: u32 = 16;
/// Times that rows are staged again because shards have others than they should.
const RETRIES_MAX: u32 = 3;
/// So many attempts a process that was killed has made at most since its second began.
const ATTEMPTS_AHEAD: u32 = 1 << 12;
/// Requests with rows that are under way to one shard.
const STAGES_AT_ONCE: usize = 4;
/// Rows that are merged in a second at least: many are waited for longer.
const MERGED_PER_S: u64 = 10_000;
/// Bytes that a message takes in another one, beside itself.
const MEMBER_BYTES: usize = 8;

/// How far merging has come.
pub(super) struct MergeState {
    /// The last attempt.
    attempt: u32,
    /// One whose outcome is not known.
    pending: Option<(MergeReq, Arc<[MergedRow]>)>,
}

impl MergeState {
    pub(super) fn new() -> MergeState {
        // More than those of a client that has crashed: attempts of an epoch must ascend.
        let seconds = time::wall_ns() / 1_000_000_000;
        MergeState { attempt: seconds as u32, pending: None }
    }
}

/// What a merge did, or would do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergeReport {
    /// Names that were made, changed or removed.
    pub names: u64,
    /// Names that others have changed, too. What this client did counts; directories of others get
    /// another name.
    pub conflicts: Vec<MergeConflict>,
    /// Changes that are not merged: data of files that had several names before, and what others have
    /// removed the place of.
    pub kept_back: u64,
}

impl Subtree {
    /// Merges what was done until now; with `release` nobody holds the subtree afterwards, and whoever asks for
    /// something in it waits meanwhile. A dry run only says what others have changed, too.
    ///
    /// # Errors
    /// Those of the servers. What is not merged then is merged the next time.
    pub(crate) async fn merge(&self, dry_run: bool, release: bool) -> Result<MergeReport> {
        let merged = self.merge_now(dry_run, release).await;
        match &merged {
            // Where nobody knows whether the hold has ended, what is answered might be in no merge.
            Err(_) if release && !self.may_be_released().await => self.servers.resume(),
            Ok(report) if !dry_run => *self.last_report() = Some(report.clone()),
            _ => {}
        }
        merged
    }

    /// Was a merge asked for that ends the hold, and is its outcome not known?
    async fn may_be_released(&self) -> bool {
        self.merging.lock().await.pending.as_ref().is_some_and(|(request, _)| request.release)
    }

    async fn merge_now(&self, dry_run: bool, release: bool) -> Result<MergeReport> {
        let mut state = self.merging.lock().await;
        if let Some((request, merged)) = state.pending.take() {
            let releases = request.release;
            match self.ask_merge(request, &mut state, merged).await {
                // It was made before its answer was lost, or it was not, and is made anew.
                Err(error) if error.errno() == Errno::ESTALE => {
                    state.pending = None;
                    self.hold_on().await?;
                }
                other => {
                    let was_made = other?.conflicts.is_empty();
                    if releases && was_made {
                        self.end(Error::new(Errno::ESTALE).with_text("the subtree was released"));
                        return Ok(MergeReport::default());
                    }
                }
            }
            if releases {
                self.servers.resume();
            }
        }
        self.settle().await?;
        if release {
            // What is answered from here on would be in no merge.
            self.servers.pause().await?;
        }
        let changes = self.servers.changes(!dry_run).await?;
        let mut plan = Plan::of(changes, self.policy);
        let mut report = MergeReport::default();
        let names = plan.staged.iter().filter(|staged| staged.entry.is_some()).count();
        report.names = (names + plan.later.len()) as u64;
        let staged = match dry_run {
            true => self.dry_run(&plan, &mut state).await.map(|conflicts| {
                report.conflicts = conflicts;
                false
            }),
            false => self.merge_staged(&mut plan, &mut state, release, &mut report).await,
        };
        if self.says.composition().has(Mechanism::NonvolatileApply) {
            StoredMerge::remove(&self.upstream, self.policy, self.began).await;
        }
        let was_released = staged?;
        if dry_run {
            return Ok(report);
        }
        self.do_later(plan.later, release, &mut report).await?;
        if !release {
            self.save_merged().await?;
        }
        if release && report.kept_back > 0 {
            let text = format!(
                "{} changes of files that had several names before cannot be merged",
                report.kept_back
            );
            return Err(Error::new(Errno::EOPNOTSUPP).with_text(text));
        }
        if release && !was_released {
            self.upstream.cluster.release(self.policy).await?;
        }
        Ok(report)
    }

    /// What is saved in the cluster says what is merged.
    async fn save_merged(&self) -> Result<()> {
        match self.servers.are_saved() {
            true => self.sync().await,
            false => Ok(()),
        }
    }

    /// What others have changed of what is staged.
    async fn dry_run(&self, plan: &Plan, state: &mut MergeState) -> Result<Vec<MergeConflict>> {
        if plan.staged.is_empty() {
            return Ok(Vec::new());
        }
        let mut request = self.stage(plan, state).await?;
        request.dry_run = true;
        let reply = self.ask(&request).await?;
        Ok(of_others(plan, &reply.conflicts))
    }

    /// Merges what is staged, in one transaction. True: it has ended the hold, which it does with `release` if
    /// nothing is to be done later.
    async fn merge_staged(
        &self,
        plan: &mut Plan,
        state: &mut MergeState,
        release: bool,
        report: &mut MergeReport,
    ) -> Result<bool> {
        let (mut rounds, mut retries, mut seen) = (0, RETRIES_MAX, HashSet::new());
        self.make_room(plan).await?;
        let mut told: Option<Arc<[MergedRow]>> = None;
        // Who ends looks also where directories go that others may have removed.
        while !plan.staged.is_empty() || release && plan.moves().next().is_some() {
            if told.as_ref().is_none_or(|told| !Arc::ptr_eq(told, &plan.merged)) {
                self.servers.begin_merge(plan.merged.clone()).await?;
                told = Some(plan.merged.clone());
            }
            self.lend_open(plan);
            let was_released = release && plan.later.is_empty();
            let reply = match self.try_merge(plan, state, was_released).await {
                // A process before this one has staged something with a later number.
                Err(error) if error.errno() == Errno::ESTALE && retries > 0 && self.is_held() => {
                    retries -= 1;
                    state.pending = None;
                    state.attempt += ATTEMPTS_AHEAD;
                    continue;
                }
                other => other?,
            };
            if reply.conflicts.is_empty() {
                return Ok(was_released);
            }
            report.conflicts.extend(of_others(plan, &reply.conflicts));
            let mut is_new = false;
            for conflict in &reply.conflicts {
                is_new |= seen.insert((conflict.entry.clone(), conflict.there));
            }
            rounds += u32::from(!is_new);
            if rounds >= ROUNDS_MAX {
                let text = "others go on changing the names that are merged";
                return Err(Error::new(Errno::EBUSY).with_text(text));
            }
            report.kept_back += self.resolve(plan, &reply.conflicts, release).await? as u64;
        }
        // Others have done all of it, too.
        if told.is_none_or(|told| !Arc::ptr_eq(&told, &plan.merged)) {
            self.servers.begin_merge(plan.merged.clone()).await?;
        }
        self.learn_dirs(&plan.merged);
        self.servers.merge_is_made(plan.merged.clone()).await?;
        Ok(false)
    }

    /// Of what is removed from the cluster some may be open here: until it is closed the cluster must keep its
    /// data.
    fn lend_open(&self, plan: &Plan) {
        for staged in &plan.staged {
            let is_removed = staged.expect != 0
                && staged.moves_to.is_none()
                && staged.row.as_ref().is_none_or(|row| row.attr.id != staged.expect);
            if let (Some(key), true) = (&staged.entry, is_removed)
                && let Some(inode) = self.core().inodes.get(staged.expect)
            {
                let loc = Locator::entry(key.pid, key.name.clone(), staged.expect);
                let mut lent = self.upstream.lent.lock().unwrap_or_else(PoisonError::into_inner);
                if !lent.iter().any(|(known, _)| known.id == loc.id) {
                    lent.push((loc, Arc::downgrade(&inode)));
                }
            }
        }
    }

    async fn try_merge(
        &self,
        plan: &Plan,
        state: &mut MergeState,
        release: bool,
    ) -> Result<MergeReply> {
        let mut request = self.stage(plan, state).await?;
        request.release = release;
        self.servers.ask_merge(&request).await?;
        self.ask_merge(request, state, plan.merged.clone()).await
    }

    /// Asks in which epoch the subtree is held.
    ///
    /// # Errors
    /// ESTALE: the hold has ended.
    async fn hold_on(&self) -> Result<()> {
        let cluster = &self.upstream.cluster;
        // To take it would be to take it from whoever has it since.
        if !cluster.still_holds(self.policy).await? {
            return Err(self.lost(Errno::ESTALE.into()));
        }
        let reply = cluster.hold(self.policy).await.map_err(|e| self.lost(e))?;
        if reply.policy.hold.is_some_and(|hold| hold.first == self.first) {
            return Ok(());
        }
        // It is another one by now, for which this client has done nothing.
        _ = cluster.release(self.policy).await;
        Err(self.lost(Errno::ESTALE.into()))
    }

    fn is_held(&self) -> bool {
        self.upstream.cluster.holds.epoch(self.policy).is_some()
    }

    /// Writes out what is open and not saved.
    pub(super) async fn settle(&self) -> Result<()> {
        let core = self.core();
        for inode in core.inodes.all() {
            if inode.is_dirty() {
                core.settle(&inode).await;
            }
        }
        core.inodes.sweep();
        core.tell_closed().await;
        Ok(())
    }

    /// Sends the rows to the shards that own them. Returns how the merge is asked for.
    async fn stage(&self, plan: &Plan, state: &mut MergeState) -> Result<MergeReq> {
        state.attempt += 1;
        let (policy, attempt) = (self.policy, state.attempt);
        let cluster = &self.upstream.cluster;
        let epoch = cluster.holds.epoch(policy).ok_or_else(|| self.lost(Errno::ESTALE.into()))?;
        let dirs = self.places_of(plan.dirs()).await?;
        let by_shard = plan.by_shard(&cluster.routes().map);
        let shards = by_shard.iter().filter(|(_, rows)| !rows.is_empty());
        let shards = shards
            .map(|(shard, rows)| ShardRows { shard: (*shard).into(), rows: rows.len() as u64 })
            .collect();
        let base = StageReq { policy, epoch, attempt, ..StageReq::default() };
        let holder = self.holder();
        let stored = match self.says.composition().has(Mechanism::NonvolatileApply) {
            true => Some(StoredMerge::begin(&self.upstream, policy, self.began, attempt).await?),
            false => None,
        };
        let stored = stored.as_ref();
        let dir_parts = parts(dirs.iter().map(|dir| dir.encoded_len() + MEMBER_BYTES));
        try_join_all(by_shard.iter().map(|(shard, rows)| {
            let (base, holder, dirs) = (&base, &holder, &dirs);
            let row_bytes = |at: &usize| plan.staged[*at].encoded_len() + MEMBER_BYTES;
            let row_parts = parts(rows.iter().map(row_bytes)).into_iter();
            // Made when they are sent: a merge may be larger than the memory for its copy.
            let with_rows = row_parts.map(move |part| StageReq {
                rows: rows[part].iter().map(|at| plan.staged[*at].clone()).collect(),
                ..base.clone()
            });
            let with_dirs = dir_parts.clone().into_iter();
            let with_dirs =
                with_dirs.map(move |part| StageReq { dirs: dirs[part].to_vec(), ..base.clone() });
            let requests = with_dirs.chain(with_rows);
            async move {
                let to = To::Shard(*shard);
                let send = |mut request: StageReq| async move {
                    cluster.ask::<_, Empty>(holder, Op::Stage, to, &mut request).await.map(drop)
                };
                match stored {
                    Some(stored) => {
                        let places = stored.put(*shard, requests).await?;
                        let requests = places
                            .into_iter()
                            .map(|stored| StageReq { stored: Some(stored), ..base.clone() });
                        let sent = stream::iter(requests.map(send));
                        sent.buffer_unordered(STAGES_AT_ONCE).try_collect::<()>().await
                    }
                    None => {
                        let sent = stream::iter(requests.map(send));
                        sent.buffer_unordered(STAGES_AT_ONCE).try_collect::<()>().await
                    }
                }
            }
        }))
        .await
        .map_err(|error| self.lost(error))?;
        let dirs = dirs.len() as u64;
        Ok(MergeReq { policy, epoch, attempt, shards, dirs, ..MergeReq::default() })
    }

    async fn ask(&self, request: &MergeReq) -> Result<MergeReply> {
        let (holder, mut message) = (self.holder(), request.clone());
        let cluster = &self.upstream.cluster;
        let rows: u64 = request.shards.iter().map(|shard| shard.rows).sum();
        let deadline = cluster.deadline() + Duration::from_secs(rows / MERGED_PER_S);
        let asked =
            cluster.ask_until(&holder, Op::Merge, To::Coordinator, &mut message, deadline).await;
        asked.map_err(|error| self.lost(error))
    }

    /// Asks for a merge; if it is made, the private servers learn what the cluster has.
    async fn ask_merge(
        &self,
        request: MergeReq,
        state: &mut MergeState,
        merged: Arc<[MergedRow]>,
    ) -> Result<MergeReply> {
        // Until there is an answer, whatever becomes of this future.
        state.pending = Some((request.clone(), merged.clone()));
        let reply = self.ask(&request).await?;
        if reply.conflicts.is_empty() {
            self.upstream.cluster.holds.merged(self.policy, reply.epoch);
            self.learn_dirs(&merged);
            self.servers.merge_is_made(merged).await?;
        }
        state.pending = None;
        Ok(reply)
    }

    /// A process before this one may have asked for a merge, and not have heard whether it was made.
    ///
    /// # Errors
    /// Those of asking again.
    pub(super) async fn finish_merge(&self) -> Result<()> {
        let is_made = match self.servers.unfinished_merge().await? {
            None => return Ok(()),
            Some(Unfinished::Made) => true,
            Some(Unfinished::Asked(request)) => {
                let request = MergeReq::decode(request).map_err(|e| {
                    Error::new(Errno::EIO).with_text(format!("the merge in the journal: {e}"))
                })?;
                // If it is made only now, the subtree is held on.
                match self.ask(&MergeReq { release: false, ..request }).await {
                    Ok(reply) if reply.conflicts.is_empty() => {
                        let holds = &self.upstream.cluster.holds;
                        // Who has taken the hold over is in a later one.
                        if holds.epoch(self.policy).is_some_and(|now| now < reply.epoch) {
                            holds.merged(self.policy, reply.epoch);
                        }
                        true
                    }
                    Ok(_) => false,
                    Err(error) if error.errno() == Errno::ESTALE => false,
                    Err(error) => return Err(error),
                }
            }
        };
        self.servers.finish_merge(is_made).await
    }

    /// What was staged is there: directories among it are now some that were there before.
    fn learn_dirs(&self, merged: &[MergedRow]) {
        let mut dirs = self.dirs();
        for row in merged {
            if let (RowPlace::Entry(key), Some(id)) = (&row.place, row.directory()) {
                let loc = Locator::entry(key.pid, key.name.clone(), id).under(self.policy);
                dirs.known.insert(id, loc);
            }
        }
    }

    /// Where the cluster has directories.
    async fn places_of(&self, ids: HashSet<InodeId>) -> Result<Vec<Locator>> {
        if ids.iter().any(|id| !self.dirs().known.contains_key(id)) {
            self.find_dirs().await?;
        }
        let dirs = self.dirs();
        let place = |id: InodeId| {
            dirs.known.get(&id).cloned().ok_or_else(|| {
                let text = format!("directory {id:#x} of the subtree is not known");
                Error::new(Errno::EIO).with_text(text)
            })
        };
        ids.into_iter().map(place).collect()
    }

    /// Learns where the cluster has directories, of a subtree that goes on from a journal.
    pub(super) async fn find_dirs(&self) -> Result<()> {
        let found = self.servers.cluster_dirs().await?;
        let mut dirs = self.dirs();
        for (EntryKey { pid, name }, id) in found {
            if let Entry::Vacant(unknown) = dirs.known.entry(id) {
                unknown.insert(Locator::entry(pid, name, id).under(self.policy));
                dirs.unloaded.insert(id);
            }
        }
        Ok(())
    }

    async fn place_of(&self, id: InodeId) -> Result<Locator> {
        Ok(self.places_of(HashSet::from([id])).await?.swap_remove(0))
    }

    /// Where the cluster has a directory now, which had this name. `None`: others have removed it.
    async fn where_is(&self, key: &EntryKey, id: InodeId) -> Result<Option<Locator>> {
        let known = self.dirs().known.get(&id).cloned();
        let loc = known.unwrap_or_else(|| Locator::entry(key.pid, key.name.clone(), id));
        let at = At::handle(self.under_policy(&loc));
        match Strict(&self.upstream).getattr(&self.holder(), &at).await {
            Ok(entry) => {
                let loc = Locator::entry(entry.loc.pid, entry.loc.name, id).under(self.policy);
                self.dirs().known.insert(id, loc.clone());
                Ok(Some(loc))
            }
            Err(error) if self.is_gone(&error) => Ok(None),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Does the error say that a directory is not there?
    fn is_gone(&self, error: &Error) -> bool {
        error.errno() == Errno::ENOENT || error.errno() == Errno::ESTALE && self.is_held()
    }
}

/// Conflicts with what others have done.
fn of_others(plan: &Plan, conflicts: &[MergeConflict]) -> Vec<MergeConflict> {
    let positions = plan.positions(conflicts);
    let is_expected = |conflict: &&MergeConflict| {
        let at = positions.get(&conflict.entry);
        at.is_some_and(|at| plan.is_expected(*at, conflict))
    };
    conflicts.iter().filter(|conflict| !is_expected(conflict)).cloned().collect()
}
