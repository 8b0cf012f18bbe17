//! Merging: what has changed in a decoupled subtree becomes part of the namespace, all at once
//! (docs/decisions/0063; Cudele section 3.1, "Volatile Apply").
//!
//! What has changed is where the rows of the private servers differ from what the cluster has. New rows,
//! and removed and replaced files, are staged at the shards that own them, and merged in one transaction.
//! What concerns directories that were there before are ordinary operations, right after it.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use prost::Message;
use saker_meta::private::{RowChange, RowPlace};
use saker_runtime::time;
use saker_types::placement::Slot;
use saker_types::wire::{
    At, Empty, EntryKey, MergeConflict, MergeReply, MergeReq, Op, ShardRows, StageReq, StagedRow,
};
use saker_types::{
    Attr, ClusterMap, Errno, Error, FileKind, Inode, InodeId, Locator, Result, ShardNo, limits,
};

use super::Subtree;
use crate::namespace::api::Namespace;
use crate::namespace::strict::Strict;
use crate::net::request::To;
use crate::{Caller, SetAttr, SetTime};

/// Times that a merge is begun anew because others change the same names meanwhile.
const ROUNDS_MAX: u32 = 16;
/// Requests with rows that are under way to one shard.
const STAGES_AT_ONCE: usize = 4;

/// How far merging has come.
pub(super) struct MergeState {
    /// The last attempt.
    attempt: u32,
    /// One whose outcome is not known.
    pending: Option<(MergeReq, Vec<RowChange>)>,
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
    /// Changes that cannot be merged: of files that had several names before.
    pub kept_back: u64,
}

/// How what has changed is merged.
#[derive(Debug, Default)]
struct Plan {
    /// In one transaction, by the change's place.
    staged: Vec<StagedRow>,
    staged_changes: Vec<RowChange>,
    /// Ordinary operations after it.
    later: Vec<(Later, Vec<RowChange>)>,
}

/// An ordinary operation on what was there before.
#[derive(Debug)]
enum Later {
    /// A directory was removed.
    Rmdir(EntryKey, InodeId),
    /// A directory has other attributes.
    Change(EntryKey, Box<Inode>),
    /// One of several names of a file was removed.
    Unlink(EntryKey),
    /// A file that had several names before has other attributes.
    Home(Locator, Box<Inode>),
}

impl Plan {
    fn of(changes: Vec<RowChange>, policy: u64) -> Plan {
        let mut plan = Plan::default();
        let new_dir = |change: &RowChange| {
            let row = change.row.as_ref().filter(|row| row.attr.is_dir())?;
            (change.expect != row.attr.id).then_some(row.attr.id)
        };
        // Where files are that have another name now.
        let mut came: HashMap<InodeId, EntryKey> = HashMap::new();
        for change in &changes {
            if let (RowPlace::Entry(key), Some(row)) = (&change.place, &change.row)
                && row.attr.id != change.expect
            {
                came.insert(row.attr.id, key.clone());
            }
        }
        let made: HashSet<InodeId> = changes.iter().filter_map(new_dir).collect();
        let mut removed: Vec<(Later, Vec<RowChange>)> = Vec::new();
        let mut homes = Vec::new();
        for change in changes {
            let key = match &change.place {
                RowPlace::Entry(key) => key.clone(),
                // Its names are merged one by one.
                RowPlace::Attr { slot, id } if change.expect != 0 => {
                    if let Some(row) = change.row.clone() {
                        let home =
                            Locator { id: *id, home_slot: Some(*slot), ..Locator::default() };
                        homes.push((Later::Home(home.under(policy), Box::new(row)), vec![change]));
                    }
                    continue;
                }
                RowPlace::Attr { slot, .. } => {
                    let (attr_slot, row) = (Some(*slot), change.row.clone());
                    let expect = change.expect;
                    plan.staged.push(StagedRow { attr_slot, row, expect, ..StagedRow::default() });
                    plan.staged_changes.push(change);
                    continue;
                }
            };
            let is_same = |row: &Inode| row.attr.id == change.expect;
            match &change.row {
                Some(row) if change.was_directory && is_same(row) => {
                    plan.later.push((Later::Change(key, Box::new(row.clone())), vec![change]));
                    continue;
                }
                None if change.was_directory => {
                    removed.push((Later::Rmdir(key, change.expect), vec![change]));
                    continue;
                }
                // Something new has its name.
                Some(_) if change.was_directory => {
                    removed.push((Later::Rmdir(key.clone(), change.expect), Vec::new()));
                }
                _ => {}
            }
            let expect = if change.was_directory { 0 } else { change.expect };
            let in_new_dir = made.contains(&key.pid);
            let moves_to = came
                .get(&expect)
                .filter(|_| expect != 0)
                .map(|to| Locator::entry(to.pid, to.name.clone(), expect).under(policy));
            let (entry, row) = (Some(key), change.row.clone());
            let staged = StagedRow { entry, row, expect, in_new_dir, moves_to, attr_slot: None };
            plan.staged.push(staged);
            plan.staged_changes.push(change);
        }
        plan.later.extend(removed.into_iter().chain(homes));
        plan
    }

    /// Directories, in which something is staged, that this merge does not make.
    fn dirs(&self) -> HashSet<InodeId> {
        let told = self.staged.iter().filter(|staged| !staged.in_new_dir);
        told.filter_map(|staged| staged.entry.as_ref()).map(|key| key.pid).collect()
    }

    /// A directory was given another name, to make room. If it is to be removed, it is there.
    fn is_aside(&mut self, id: InodeId, at: EntryKey) {
        for (later, _) in &mut self.later {
            if let Later::Rmdir(key, removed) = later
                && *removed == id
            {
                key.clone_from(&at);
            }
        }
    }

    /// Is there what this client saw, though it cannot be staged: one of several names of a file; or what it has
    /// put there itself?
    fn is_expected(&self, conflict: &MergeConflict) -> bool {
        let is_it = |staged: &&StagedRow| staged.entry.as_ref() == Some(&conflict.entry);
        self.staged.iter().find(is_it).is_some_and(|staged| {
            let here = staged.row.as_ref().map_or(0, |row| row.attr.id);
            conflict.there != 0
                && (conflict.there == here || conflict.linked && conflict.there == staged.expect)
        })
    }

    /// What to do about a conflict, so that what this client did counts. True: a directory is in the way.
    fn resolve(&mut self, conflict: &MergeConflict) -> bool {
        let at =
            self.staged.iter().position(|staged| staged.entry.as_ref() == Some(&conflict.entry));
        let Some(at) = at else { return false };
        let is_dir = FileKind::of_mode(conflict.mode) == Some(FileKind::Directory);
        let staged = &mut self.staged[at];
        let here = staged.row.as_ref().map_or(0, |row| row.attr.id);
        if is_dir && conflict.there == here {
            // An earlier merge, whose answer was lost, has made it.
            self.staged.remove(at);
            let is_in_it =
                |staged: &&mut StagedRow| staged.entry.as_ref().is_some_and(|key| key.pid == here);
            self.staged.iter_mut().filter(is_in_it).for_each(|staged| staged.in_new_dir = false);
            return false;
        }
        let was_here = here != 0 && here == staged.expect;
        match (conflict.there, staged.row.is_some()) {
            // Its data went with the file that somebody has removed.
            (0, true) if was_here && staged.row.as_ref().is_some_and(|row| row.attr.chunked) => {
                drop(self.staged.remove(at));
            }
            (0, true) => staged.expect = 0,
            // Somebody has removed it already, or made a directory of that name since.
            (0, false) => drop(self.staged.remove(at)),
            (_, false) if is_dir => drop(self.staged.remove(at)),
            (_, false) if conflict.linked => {
                drop(self.staged.remove(at));
                self.later.insert(0, (Later::Unlink(conflict.entry.clone()), Vec::new()));
            }
            (_, _) if is_dir || conflict.linked => {
                staged.expect = 0;
                return true;
            }
            (there, _) => staged.expect = there,
        }
        false
    }
}

impl Subtree {
    /// Merges what was done until now; with `release` nobody holds the subtree afterwards. A dry run only says
    /// what others have changed, too.
    ///
    /// # Errors
    /// Those of the servers. What is not merged then is merged the next time.
    pub(crate) async fn merge(&self, dry_run: bool, release: bool) -> Result<MergeReport> {
        let mut state = self.merging.lock().await;
        if let Some((request, changes)) = state.pending.take() {
            match self.ask_merge(request, &mut state, changes).await {
                // It was made before its answer was lost, or it was not, and is made anew.
                Err(error) if error.errno() == Errno::ESTALE => {
                    state.pending = None;
                    self.upstream.cluster.hold(self.policy).await.map_err(|e| self.lost(e))?;
                }
                other => drop(other?),
            }
        }
        self.settle().await?;
        let changes = self.servers.changes(!dry_run).await?;
        let mut plan = Plan::of(changes, self.policy);
        let mut report = MergeReport::default();
        let is_last = release && plan.later.is_empty();
        let names = plan.staged.iter().filter(|staged| staged.entry.is_some()).count();
        report.names = (names + plan.later.len()) as u64;
        let (mut rounds, mut was_merged) = (0, false);
        while !plan.staged.is_empty() {
            rounds += 1;
            let request = self.stage(&plan, &mut state, dry_run, is_last).await?;
            let changes = if dry_run { Vec::new() } else { plan.staged_changes.clone() };
            let reply = self.ask_merge(request, &mut state, changes).await?;
            let of_others = reply.conflicts.iter().filter(|conflict| !plan.is_expected(conflict));
            report.conflicts.extend(of_others.cloned());
            if dry_run || reply.conflicts.is_empty() {
                was_merged = true;
                break;
            }
            if rounds >= ROUNDS_MAX {
                let text = "others go on changing the names that are merged";
                return Err(Error::new(Errno::EBUSY).with_text(text));
            }
            for conflict in &reply.conflicts {
                self.resolve(&mut plan, conflict).await?;
            }
        }
        if dry_run {
            return Ok(report);
        }
        if !was_merged {
            // Others have done all of it, too.
            self.servers.mark_merged(plan.staged_changes).await?;
        }
        report.kept_back = self.do_later(plan.later).await?;
        if release && report.kept_back > 0 {
            let text = format!(
                "{} changes of files that had several names before cannot be merged",
                report.kept_back
            );
            return Err(Error::new(Errno::EOPNOTSUPP).with_text(text));
        }
        if release && !(was_merged && is_last) {
            self.upstream.cluster.release(self.policy).await?;
        }
        Ok(report)
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
    async fn stage(
        &self,
        plan: &Plan,
        state: &mut MergeState,
        dry_run: bool,
        release: bool,
    ) -> Result<MergeReq> {
        state.attempt += 1;
        let (policy, attempt) = (self.policy, state.attempt);
        let cluster = &self.upstream.cluster;
        let epoch = cluster.holds.epoch(policy).ok_or_else(|| self.lost(Errno::ESTALE.into()))?;
        let dirs = self.places_of(plan.dirs()).await?;
        let map = cluster.routes().map.clone();
        let mut by_shard: BTreeMap<ShardNo, Vec<StagedRow>> =
            (0..map.shards.len()).map(|shard| (shard as ShardNo, Vec::new())).collect();
        for staged in &plan.staged {
            by_shard.entry(owner_of(&map, staged)).or_default().push(staged.clone());
        }
        let shards = by_shard.iter().filter(|(_, rows)| !rows.is_empty());
        let shards = shards
            .map(|(shard, rows)| ShardRows { shard: (*shard).into(), rows: rows.len() as u64 })
            .collect();
        let base = StageReq { policy, epoch, attempt, ..StageReq::default() };
        let holder = self.holder();
        try_join_all(by_shard.into_iter().map(|(shard, rows)| {
            let (base, holder, dirs) = (&base, &holder, &dirs);
            async move {
                let requests = stage_requests(base, rows, dirs);
                let sent = requests.into_iter().map(|mut request| async move {
                    let to = To::Shard(shard);
                    cluster.ask::<_, Empty>(holder, Op::Stage, to, &mut request).await.map(drop)
                });
                stream::iter(sent).buffer_unordered(STAGES_AT_ONCE).try_collect::<()>().await
            }
        }))
        .await
        .map_err(|error| self.lost(error))?;
        let dirs = dirs.len() as u64;
        Ok(MergeReq {
            policy,
            epoch,
            attempt,
            shards,
            dirs,
            release,
            dry_run,
            ..MergeReq::default()
        })
    }

    /// Asks for a merge; if it is made, the private servers learn what the cluster has.
    async fn ask_merge(
        &self,
        request: MergeReq,
        state: &mut MergeState,
        changes: Vec<RowChange>,
    ) -> Result<MergeReply> {
        let cluster = &self.upstream.cluster;
        let mut message = request.clone();
        let (holder, to, dry_run) = (self.holder(), To::Coordinator, request.dry_run);
        // Until there is an answer, whatever becomes of this future.
        state.pending = (!dry_run).then(|| (request, changes.clone()));
        let asked = cluster.ask(&holder, Op::Merge, to, &mut message).await;
        let reply: MergeReply = asked.map_err(|error| self.lost(error))?;
        if dry_run || !reply.conflicts.is_empty() {
            state.pending = None;
            return Ok(reply);
        }
        cluster.holds.merged(self.policy, reply.epoch);
        self.learn_dirs(&changes);
        self.servers.mark_merged(changes).await?;
        state.pending = None;
        Ok(reply)
    }

    /// What was staged is there: directories among it are now some that were there before.
    fn learn_dirs(&self, changes: &[RowChange]) {
        let mut dirs = self.dirs();
        for change in changes {
            let (RowPlace::Entry(key), Some(row)) = (&change.place, &change.row) else { continue };
            if row.attr.is_dir() {
                let loc = Locator::entry(key.pid, key.name.clone(), row.attr.id).under(self.policy);
                dirs.known.insert(row.attr.id, loc);
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
    async fn find_dirs(&self) -> Result<()> {
        let found = self.servers.cluster_dirs().await?;
        let mut dirs = self.dirs();
        for (EntryKey { pid, name }, id) in found {
            let loc = || Locator::entry(pid, name, id).under(self.policy);
            dirs.known.entry(id).or_insert_with(loc);
        }
        Ok(())
    }

    /// Makes a conflict end so that what this client did counts. What is no plain file, and in the way, gets
    /// another name.
    async fn resolve(&self, plan: &mut Plan, conflict: &MergeConflict) -> Result<()> {
        if conflict.entry.name.is_empty() {
            let text = match &conflict.moved {
                Some(to) => format!(
                    "another client has moved a directory of the subtree to {:?}",
                    String::from_utf8_lossy(&to.name)
                ),
                None => "another client has removed a directory of the subtree".to_owned(),
            };
            return Err(Error::new(Errno::ENOENT).with_text(text));
        }
        if !plan.resolve(conflict) {
            let EntryKey { pid, name } = &conflict.entry;
            if FileKind::of_mode(conflict.mode) == Some(FileKind::Directory) {
                let loc = || Locator::entry(*pid, name.clone(), conflict.there).under(self.policy);
                self.dirs().known.entry(conflict.there).or_insert_with(loc);
            }
            return Ok(());
        }
        let EntryKey { pid, name } = &conflict.entry;
        let parent = self.place_of(*pid).await?;
        let aside = format!("{}.conflict-{:x}", String::from_utf8_lossy(name), conflict.there);
        let aside = &aside.as_bytes()[aside.len().saturating_sub(limits::NAME_BYTES_MAX)..];
        let (from, to) = (At::child(parent.clone(), name), At::child(parent, aside));
        let renamed =
            Strict(&self.upstream).rename(&self.holder(), &from, &to, 0, [&[], &[]]).await;
        if let Err(error) = renamed
            && error.errno() != Errno::ENOENT
        {
            return Err(error);
        }
        if let Some(known) = self.dirs().known.get_mut(&conflict.there) {
            known.name = Bytes::copy_from_slice(aside);
        }
        plan.is_aside(conflict.there, EntryKey { pid: *pid, name: Bytes::copy_from_slice(aside) });
        Ok(())
    }

    /// Does what are ordinary operations. A directory that is not empty yet comes after those in it.
    /// Tells how many cannot be done.
    async fn do_later(&self, mut later: Vec<(Later, Vec<RowChange>)>) -> Result<u64> {
        let mut kept_back = 0;
        loop {
            let (before, mut left) = (later.len(), Vec::new());
            for (one, changes) in later {
                match self.do_one(&one).await {
                    Err(error) if error.errno() == Errno::ENOTEMPTY => {
                        left.push((one, changes));
                        continue;
                    }
                    Err(error)
                        if matches!(one, Later::Home(..)) && error.errno() == Errno::EXDEV =>
                    {
                        kept_back += 1;
                        continue;
                    }
                    // It was done by an earlier attempt, or by somebody else.
                    Err(error) if error.errno() == Errno::ENOENT => {}
                    other => other.map_err(|error| self.lost(error))?,
                }
                self.servers.mark_merged(changes).await?;
            }
            if left.is_empty() {
                return Ok(kept_back);
            }
            if left.len() == before {
                for (one, _) in left {
                    tracing::warn!("{one:?}: others have put something there, so it stays");
                }
                return Ok(kept_back);
            }
            later = left;
        }
    }

    async fn do_one(&self, later: &Later) -> Result<()> {
        let names = Strict(&self.upstream);
        let holder = &self.holder();
        match later {
            Later::Rmdir(key, id) => {
                let parent = self.place_of(key.pid).await?;
                names.rmdir(holder, &At::child(parent, &key.name)).await?;
                let mut dirs = self.dirs();
                dirs.known.remove(id);
                dirs.unloaded.remove(id);
                Ok(())
            }
            Later::Change(key, row) => self.change_dir(holder, key, row).await,
            Later::Home(home, row) => self.change_home(holder, home, row).await,
            Later::Unlink(key) => {
                let parent = self.place_of(key.pid).await?;
                names.unlink(holder, &At::child(parent, &key.name)).await.map(drop)
            }
        }
    }

    /// Gives a file that had several names before the attributes that it has here.
    ///
    /// # Errors
    /// EXDEV if its data has changed, too: that cannot be merged.
    async fn change_home(&self, holder: &Caller, home: &Locator, row: &Inode) -> Result<()> {
        let names = Strict(&self.upstream);
        let at = At::handle(home.clone());
        let (before, attr) = (names.getattr(holder, &at).await?.attr, &row.attr);
        if attr.size != before.size || attr.data_version != before.data_version {
            return Err(Errno::EXDEV.into());
        }
        let change = changed(attr, &before);
        if change != SetAttr::default() {
            names.setattr(holder, &at, &change).await?;
        }
        Ok(())
    }

    /// Gives a directory that was there before the attributes that it has here.
    async fn change_dir(&self, holder: &Caller, key: &EntryKey, row: &Inode) -> Result<()> {
        let names = Strict(&self.upstream);
        let at =
            At::handle(Locator::entry(key.pid, key.name.clone(), row.attr.id).under(self.policy));
        let before = names.getattr(holder, &at).await?.attr;
        let change = changed(&row.attr, &before);
        if change != SetAttr::default() {
            names.setattr(holder, &at, &change).await?;
        }
        let old = names.listxattr(holder, &at).await?;
        for name in old.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            if !row.xattrs.iter().any(|xattr| xattr.name == name) {
                names.removexattr(holder, &at, name).await?;
            }
        }
        for xattr in &row.xattrs {
            if names.getxattr(holder, &at, &xattr.name).await.ok().as_ref() != Some(&xattr.value) {
                names.setxattr(holder, &at, &xattr.name, &xattr.value, 0).await?;
            }
        }
        Ok(())
    }

    async fn place_of(&self, id: InodeId) -> Result<Locator> {
        Ok(self.places_of(HashSet::from([id])).await?.swap_remove(0))
    }
}

/// What setattr must change.
fn changed(new: &Attr, old: &Attr) -> SetAttr {
    let differs = |new: u32, old: u32| (new != old).then_some(new);
    SetAttr {
        mode: differs(new.mode & 0o7777, old.mode & 0o7777),
        uid: differs(new.uid, old.uid),
        gid: differs(new.gid, old.gid),
        atime: (new.atime_ns != old.atime_ns).then_some(SetTime::At(new.atime_ns)),
        mtime: (new.mtime_ns != old.mtime_ns).then_some(SetTime::At(new.mtime_ns)),
        ..SetAttr::default()
    }
}

fn owner_of(map: &ClusterMap, staged: &StagedRow) -> ShardNo {
    let slot = match (&staged.entry, staged.attr_slot) {
        (Some(EntryKey { pid, name }), _) => map.slot_of(*pid, name),
        (None, slot) => Slot::from_wire(slot.unwrap_or_default()),
    };
    map.shard_of_slot(slot)
}

/// Requests for a shard's rows, and for all directories, of bounded size.
fn stage_requests(base: &StageReq, rows: Vec<StagedRow>, dirs: &[Locator]) -> Vec<StageReq> {
    let mut requests = Vec::new();
    let (mut request, mut bytes) = (base.clone(), 0);
    let mut full = |request: &mut StageReq, bytes: &mut usize, more: usize| {
        let count = request.rows.len() + request.dirs.len();
        if count >= limits::STAGE_ROWS_MAX || count > 0 && *bytes + more > limits::STAGE_BYTES_MAX {
            requests.push(std::mem::replace(request, base.clone()));
            *bytes = 0;
        }
        *bytes += more;
    };
    for dir in dirs {
        full(&mut request, &mut bytes, dir.encoded_len() + 8);
        request.dirs.push(dir.clone());
    }
    for row in rows {
        full(&mut request, &mut bytes, row.encoded_len() + 8);
        request.rows.push(row);
    }
    if !request.rows.is_empty() || !request.dirs.is_empty() {
        requests.push(request);
    }
    requests
}
