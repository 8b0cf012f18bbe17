//! What others have changed, too, with `interfere_policy: allow`: what the holder did counts.
//!
//! | others have | and the holder | |
//! |---|---|---|
//! | made or changed a file | has something of that name | it is replaced |
//! | made a directory | has something of that name | that gets another name |
//! | renamed a file | has changed it | it is changed where it is now; where that is not known, there are both |
//! | removed or replaced a file | has changed it | it is made again, with another inode number |
//! | moved a directory | has changed something in it | that is merged where the directory is now |
//! | moved a directory | has renamed or removed it | that is done where the directory is now |
//! | put something at a name | has given that name to a directory of before | as if it had made something of that name |
//! | removed a directory | has changed something in it | it stays in the subtree until it is released, and is made again then |
//!
//! What stays in the subtree is merged the next time.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use saker_meta::private::{MergedRow, RowPlace};
use saker_types::wire::{At, EntryKey, MergeConflict, StagedRow};
use saker_types::{Errno, Error, FileKind, Inode, InodeId, Locator, Result, limits};

use super::plan::{Later, MovedDir, Plan};
use crate::namespace::api::Namespace;
use crate::namespace::decoupled::Subtree;
use crate::namespace::strict::Strict;

/// What is done about a conflict of a name.
enum Answer {
    /// The row is staged differently.
    Staged,
    /// The row is not staged: there is nothing left to do.
    Dropped,
    /// The row is staged when a directory of others has got another name.
    Aside,
    /// The file is made again.
    MadeAgain,
}

impl Plan {
    /// Is there what this client saw, though it cannot be staged: one of several names of a file; or what it has
    /// put there itself?
    pub(super) fn is_expected(&self, at: usize, conflict: &MergeConflict) -> bool {
        let staged = &self.staged[at];
        let here = id_of(staged);
        let leaves = || {
            let mut leaving = self.later.iter().filter_map(|(later, _)| later.leaves());
            leaving.any(|(_, id)| id == conflict.there)
        };
        conflict.there != 0
            && (conflict.there == here
                || conflict.linked && conflict.there == staged.expect
                || leaves())
    }

    /// Where the rows of these names are.
    pub(super) fn positions(&self, conflicts: &[MergeConflict]) -> HashMap<EntryKey, usize> {
        let named: HashSet<&EntryKey> = conflicts.iter().map(|conflict| &conflict.entry).collect();
        let entries = self.staged.iter().enumerate();
        let entries = entries.filter_map(|(at, staged)| Some((staged.entry.as_ref()?, at)));
        entries.filter(|(key, _)| named.contains(key)).map(|(key, at)| (key.clone(), at)).collect()
    }

    /// A directory was given another name, to make room. If it is to be removed, or renamed, it is there: tells
    /// where it was then.
    fn is_aside(&mut self, id: InodeId, at: EntryKey) -> Option<EntryKey> {
        let later = self.later.iter_mut().map(|(later, _)| later);
        let mut leaving = later.filter(|later| later.leaves().is_some_and(|(_, it)| it == id));
        let later = leaving.next()?;
        let before = later.leaves()?.0.clone();
        later.leaves_from(at);
        Some(before)
    }

    /// Stages a row differently, since something else is there.
    fn answer(&mut self, at: usize, conflict: &MergeConflict) -> Answer {
        let is_dir = FileKind::of_mode(conflict.mode) == Some(FileKind::Directory);
        let staged = &mut self.staged[at];
        let here = id_of(staged);
        if is_dir && conflict.there == here {
            // An earlier merge has made it.
            return Answer::Dropped;
        }
        let was_here = here != 0 && here == staged.expect;
        match (conflict.there, staged.row.is_some()) {
            (there, true) if was_here && there != here => return Answer::MadeAgain,
            (0, true) => staged.expect = 0,
            // Somebody has removed it already, or made a directory of that name since.
            (0, false) => return Answer::Dropped,
            (_, false) if is_dir => return Answer::Dropped,
            (_, false) if conflict.linked => {
                let merged = self.take_merged(&conflict.entry);
                self.later.insert(0, (Later::Unlink(conflict.entry.clone()), merged));
                return Answer::Dropped;
            }
            (_, true) if is_dir || conflict.linked => {
                staged.expect = 0;
                return Answer::Aside;
            }
            (there, _) => staged.expect = there,
        }
        Answer::Staged
    }

    /// What the cluster has at a name is not known when the staged rows are merged, but later.
    fn take_merged(&mut self, key: &EntryKey) -> Vec<MergedRow> {
        let is_it = |row: &&MergedRow| matches!(&row.place, RowPlace::Entry(at) if at == key);
        let taken = self.merged.iter().filter(is_it).cloned().collect();
        self.merged = self.merged.iter().filter(|row| !is_it(row)).cloned().collect();
        taken
    }

    /// The cluster does not have what these rows say.
    fn forget_merged(&mut self, rows: &HashSet<usize>) {
        let (mut entries, mut homes) = (HashSet::new(), HashSet::new());
        for staged in rows.iter().map(|at| &self.staged[*at]) {
            match &staged.entry {
                Some(key) => _ = entries.insert(self.followed.get(key).unwrap_or(key).clone()),
                None => _ = homes.insert(id_of(staged)),
            }
        }
        let is_left = |row: &&MergedRow| match &row.place {
            RowPlace::Entry(key) => !entries.contains(key),
            RowPlace::Attr { id, .. } => !homes.contains(id),
        };
        self.merged = self.merged.iter().filter(is_left).cloned().collect();
    }

    /// What the cluster will have at a name has another number.
    fn renumbered(&mut self, key: &EntryKey, row: &Inode) {
        let place = RowPlace::Entry(key.clone());
        let of = |merged: &MergedRow| match merged.place == place {
            true => MergedRow::of(place.clone(), row),
            false => merged.clone(),
        };
        self.merged = self.merged.iter().map(of).collect();
    }

    /// Stages a change, that was to follow its file, where it was made. False: it was not to follow.
    fn stays(&mut self, at: usize) -> bool {
        let staged = &mut self.staged[at];
        let here = staged.entry.as_ref().and_then(|key| self.followed.remove(key));
        match here {
            Some(here) => {
                staged.entry = Some(here);
                true
            }
            None => false,
        }
    }

    /// Directories do not go where something must stay. Tells how many.
    fn keep_moves(&mut self, kept: &HashSet<usize>) -> usize {
        let names: HashSet<&EntryKey> =
            kept.iter().filter_map(|at| self.staged[*at].entry.as_ref()).collect();
        let before = self.later.len();
        self.later.retain(|(later, _)| later.moves().is_none_or(|dir| !names.contains(&dir.to)));
        before - self.later.len()
    }

    /// A directory that others have removed does not get another name, but is made again at that.
    fn take_move(&mut self, id: InodeId) -> Option<MovedDir> {
        let is_it = |(later, _): &(Later, _)| later.moves().is_some_and(|dir| dir.id == id);
        let at = self.later.iter().position(is_it)?;
        match self.later.remove(at).0 {
            Later::Move(dir) => Some(*dir),
            _ => None,
        }
    }

    fn unstage(&mut self, rows: &HashSet<usize>) {
        let mut at = 0;
        self.staged.retain(|_| {
            at += 1;
            !rows.contains(&(at - 1))
        });
    }

    /// Is something staged in this directory?
    fn has_some_in(&self, dir: InodeId) -> bool {
        let is_in = |staged: &StagedRow| {
            staged.row.is_some() && staged.entry.as_ref().is_some_and(|key| key.pid == dir)
        };
        self.staged.iter().any(is_in) || self.moves().any(|moved| moved.to.pid == dir)
    }

    /// Rows that must stay with these: what is in directories among them, and all names that inodes among
    /// them had or have.
    fn with_dependants(&self, mut rows: HashSet<usize>) -> HashSet<usize> {
        let (mut ids, mut dirs) = <(HashSet<_>, HashSet<_>)>::default();
        if rows.is_empty() {
            return rows;
        }
        for at in &rows {
            note(&self.staged[*at], &mut ids, &mut dirs);
        }
        loop {
            let before = rows.len();
            for (at, staged) in self.staged.iter().enumerate() {
                let is_in = |key: &EntryKey| dirs.contains(&key.pid);
                let depends = staged.entry.as_ref().is_some_and(is_in)
                    || ids.contains(&id_of(staged))
                    || ids.contains(&staged.expect);
                if depends && rows.insert(at) {
                    note(staged, &mut ids, &mut dirs);
                }
            }
            if rows.len() == before {
                return rows;
            }
        }
    }
}

fn note(staged: &StagedRow, ids: &mut HashSet<InodeId>, dirs: &mut HashSet<InodeId>) {
    if let Some(row) = &staged.row {
        ids.insert(row.attr.id);
        if row.attr.is_dir() {
            dirs.insert(row.attr.id);
        }
    }
}

/// Another name for an inode, in the same directory.
pub(super) fn name_beside(name: &[u8], id: InodeId) -> Bytes {
    let beside = format!("{}.conflict-{id:x}", String::from_utf8_lossy(name)).into_bytes();
    let cut = beside.len().saturating_sub(limits::NAME_BYTES_MAX);
    Bytes::copy_from_slice(&beside[cut..])
}

fn id_of(staged: &StagedRow) -> InodeId {
    staged.row.as_ref().map_or(0, |row| row.attr.id)
}

impl Subtree {
    /// Has conflicts end so that what this client did counts; what must wait for the next merge, of which there
    /// is none with `release`, is counted.
    pub(super) async fn resolve(
        &self,
        plan: &mut Plan,
        conflicts: &[MergeConflict],
        release: bool,
    ) -> Result<usize> {
        let (dirs, names): (Vec<_>, Vec<_>) =
            conflicts.iter().partition(|conflict| conflict.entry.name.is_empty());
        let changed: HashSet<InodeId> = dirs.iter().map(|conflict| conflict.entry.pid).collect();
        let positions = plan.positions(conflicts);
        let (mut dropped, mut kept, mut are_there) =
            <(HashSet<_>, HashSet<_>, HashSet<_>)>::default();
        // What is in directories that have gone is seen when it is known where they are.
        for conflict in names.into_iter().filter(|conflict| !changed.contains(&conflict.entry.pid))
        {
            let Some(at) = positions.get(&conflict.entry).copied() else { continue };
            // One of several names of a file, as this client saw it: that is gone, and not aside.
            let is_replaced = conflict.linked && plan.staged[at].expect == conflict.there;
            let answer = plan.answer(at, conflict);
            self.knows(conflict);
            match answer {
                Answer::Staged => {}
                Answer::Dropped => {
                    dropped.insert(at);
                    are_there.insert(conflict.there);
                }
                Answer::Aside => {
                    let aside = self.put_aside(plan, conflict).await?;
                    if is_replaced {
                        plan.later.insert(0, (Later::Unlink(aside), Vec::new()));
                    }
                }
                // It is not there any more either: where it was here, the next round says what there is.
                Answer::MadeAgain if plan.stays(at) => {}
                Answer::MadeAgain if self.follows(plan, at, conflict) => {}
                // Its data went with the file that somebody has removed.
                Answer::MadeAgain if is_chunked(&plan.staged[at]) => _ = dropped.insert(at),
                Answer::MadeAgain => {
                    if !self.make_again(plan, at, conflict, release).await? {
                        kept.insert(at);
                    }
                }
            }
        }
        for staged in &mut plan.staged {
            if staged.entry.as_ref().is_some_and(|key| are_there.contains(&key.pid)) {
                staged.in_new_dir = false;
            }
        }
        plan.made.retain(|id| !are_there.contains(id));
        let mut removed = HashSet::new();
        for MergeConflict { entry, moved, .. } in dirs {
            match moved {
                Some(to) => {
                    self.dirs().known.insert(entry.pid, to.clone().under(self.policy));
                }
                None => _ = removed.insert(entry.pid),
            }
        }
        let is_in = |staged: &StagedRow| {
            staged.entry.as_ref().is_some_and(|key| removed.contains(&key.pid))
        };
        let (mut lost, mut gone) = (HashSet::new(), HashSet::new());
        for (at, staged) in plan.staged.iter().enumerate().filter(|(_, staged)| is_in(staged)) {
            // What was removed with its directory is.
            if staged.row.is_some() {
                lost.insert(at)
            } else {
                gone.insert(at)
            };
        }
        dropped.extend(gone);
        if release {
            let removed = removed.into_iter().filter(|id| plan.has_some_in(*id));
            for id in removed.collect::<Vec<_>>() {
                self.make_dir_again(plan, id, &mut dropped).await?;
            }
        } else {
            kept.extend(lost);
        }
        let kept = plan.with_dependants(kept);
        if !kept.is_empty() {
            plan.forget_merged(&kept);
        }
        let kept_back = kept.len() + plan.keep_moves(&kept);
        plan.unstage(&dropped.into_iter().chain(kept).collect());
        Ok(kept_back)
    }

    /// Others have a directory there.
    fn knows(&self, conflict: &MergeConflict) {
        if FileKind::of_mode(conflict.mode) == Some(FileKind::Directory) {
            let EntryKey { pid, name } = conflict.entry.clone();
            let loc = || Locator::entry(pid, name, conflict.there).under(self.policy);
            self.dirs().known.entry(conflict.there).or_insert_with(loc);
        }
    }

    /// What is in the way gets another name.
    async fn put_aside(&self, plan: &mut Plan, conflict: &MergeConflict) -> Result<EntryKey> {
        let _loading = self.loading.lock().await;
        let at = self.rename_aside(&conflict.entry, conflict.there).await?;
        if let Some(before) = plan.is_aside(conflict.there, at.clone()) {
            self.is_elsewhere(before, conflict.there, Some(at.clone())).await?;
        }
        Ok(at)
    }

    /// Directories that are to be removed or renamed make room for what is new at their names.
    pub(super) async fn make_room(&self, plan: &mut Plan) -> Result<()> {
        let leaving = plan.leaving();
        if leaving.is_empty() {
            return Ok(());
        }
        let new = plan.staged.iter().filter(|staged| staged.row.is_some());
        let new = new.filter_map(|staged| leaving.get(staged.entry.as_ref()?));
        for at in new.copied().collect::<Vec<usize>>() {
            self.put_off(&mut plan.later[at].0).await?;
        }
        Ok(())
    }

    /// A directory that is to be removed or renamed leaves its name free until then.
    pub(super) async fn put_off(&self, later: &mut Later) -> Result<()> {
        let Some((key, id)) = later.leaves().map(|(key, id)| (key.clone(), id)) else {
            return Ok(());
        };
        let _loading = self.loading.lock().await;
        let at = match self.where_is(&key, id).await? {
            Some(loc) if (loc.pid, &loc.name) == (key.pid, &key.name) => {
                Some(self.rename_aside(&key, id).await?)
            }
            Some(loc) => Some(EntryKey { pid: loc.pid, name: loc.name }),
            None => None,
        };
        self.is_elsewhere(key, id, at.clone()).await?;
        at.into_iter().for_each(|at| later.leaves_from(at));
        Ok(())
    }

    /// The private servers learn where the cluster has a directory.
    async fn is_elsewhere(&self, key: EntryKey, id: InodeId, at: Option<EntryKey>) -> Result<()> {
        let gone = MergedRow::none(RowPlace::Entry(key));
        let here = at.map(|at| MergedRow::directory_at(RowPlace::Entry(at), id));
        let rows: Vec<MergedRow> = std::iter::once(gone).chain(here).collect();
        self.servers.mark_merged(rows.into()).await
    }

    /// Gives what is at a name, a directory mostly, another one beside it.
    pub(super) async fn rename_aside(&self, key: &EntryKey, id: InodeId) -> Result<EntryKey> {
        let EntryKey { pid, name } = key;
        let parent = self.place_of(*pid).await?;
        let aside = name_beside(name, id);
        let (from, to) = (At::child(parent.clone(), name), At::child(parent, &aside));
        let renamed =
            Strict(&self.upstream).rename(&self.holder(), &from, &to, 0, [&[], &[]]).await;
        if let Err(error) = renamed
            && error.errno() != Errno::ENOENT
        {
            return Err(error);
        }
        if let Some(known) = self.dirs().known.get_mut(&id) {
            known.name = aside.clone();
        }
        Ok(EntryKey { pid: *pid, name: aside })
    }

    /// Stages the change of a file where others have put it, if that is in a directory that is known.
    fn follows(&self, plan: &mut Plan, at: usize, conflict: &MergeConflict) -> bool {
        let Some(to) = &conflict.moved else { return false };
        let is_known = to.policy == self.policy
            && to.home_slot.is_none()
            && self.dirs().known.contains_key(&to.pid);
        let key = EntryKey { pid: to.pid, name: to.name.clone() };
        if !is_known || plan.staged.iter().any(|staged| staged.entry.as_ref() == Some(&key)) {
            return false;
        }
        let staged = &mut plan.staged[at];
        staged.in_new_dir = false;
        if let Some(here) = staged.entry.replace(key.clone()) {
            plan.followed.insert(key, here);
        }
        true
    }

    /// Stages a file, that others have removed or put elsewhere, under another number. False: it is open, so
    /// that it keeps the one that it has.
    async fn make_again(
        &self,
        plan: &mut Plan,
        at: usize,
        conflict: &MergeConflict,
        release: bool,
    ) -> Result<bool> {
        let StagedRow { entry: Some(key), row: Some(row), .. } = plan.staged[at].clone() else {
            return Ok(true);
        };
        let is_dir = FileKind::of_mode(conflict.mode) == Some(FileKind::Directory);
        let mut expect = conflict.there;
        if is_dir || conflict.linked {
            _ = self.put_aside(plan, conflict).await?;
            expect = 0;
        }
        plan.staged[at].expect = expect;
        if row.home_slot.is_some() {
            return Ok(true);
        }
        let mut new = row;
        let from = new.attr.id;
        if !release && self.core().inodes.get(from).is_some() {
            return Ok(false);
        }
        new.attr.id = self.new_inode().await?;
        if !release {
            if !self.servers.renumber(key.clone(), from, new.attr.id).await? {
                return Ok(false);
            }
            plan.renumbered(&key, &new);
        }
        plan.staged[at].row = Some(new);
        Ok(true)
    }

    /// Stages a directory that others have removed under another number, and in it what was staged there.
    async fn make_dir_again(
        &self,
        plan: &mut Plan,
        id: InodeId,
        dropped: &mut HashSet<usize>,
    ) -> Result<()> {
        let (mut key, row) = match plan.take_move(id) {
            Some(MovedDir { to, row, .. }) => (to, Some(row)),
            None => {
                let place = self.place_of(id).await?;
                let key = EntryKey { pid: place.pid, name: place.name };
                let row = self.servers.row(RowPlace::Entry(key.clone())).await?;
                (key, row)
            }
        };
        let is_it = |row: &Inode| row.attr.id == id && row.attr.is_dir();
        let Some(mut row) = row.filter(is_it) else {
            let text = format!("directory {id:#x} of the subtree is not known");
            return Err(Error::new(Errno::EIO).with_text(text));
        };
        let new = self.new_inode().await?;
        row.attr.id = new;
        let is_in = |key: &EntryKey| key.pid == id;
        for at in 0..plan.staged.len() {
            if plan.staged[at].moves_to.as_ref().is_some_and(|to| to.pid == id)
                && let Some(to) = &mut plan.staged[at].moves_to
            {
                to.pid = new;
            }
            if !plan.staged[at].entry.as_ref().is_some_and(is_in) {
                continue;
            }
            let was_there =
                plan.staged[at].expect != 0 && plan.staged[at].expect == id_of(&plan.staged[at]);
            if was_there && is_chunked(&plan.staged[at]) {
                dropped.insert(at);
            }
            let number = if was_there { self.new_inode().await? } else { 0 };
            let staged = &mut plan.staged[at];
            if let (Some(row), true) = (&mut staged.row, was_there && number != 0)
                && row.home_slot.is_none()
            {
                row.attr.id = number;
            }
            staged.entry.iter_mut().for_each(|key| key.pid = new);
            (staged.in_new_dir, staged.expect) = (true, 0);
        }
        for (later, _) in &mut plan.later {
            if let Later::Move(dir) = later
                && dir.to.pid == id
            {
                dir.to.pid = new;
            }
        }
        plan.made_again.insert(id, new);
        plan.made.insert(new);
        // Its own directory may have been made again before.
        let above = plan.made_again.get(&key.pid).copied();
        key.pid = above.unwrap_or(key.pid);
        let in_new_dir = above.is_some() || plan.made.contains(&key.pid);
        // For what goes there later.
        let loc = Locator::entry(key.pid, key.name.clone(), new).under(self.policy);
        self.dirs().known.insert(new, loc);
        // Where it comes in the place of a file, that is staged already.
        match plan.staged.iter_mut().find(|staged| staged.entry.as_ref() == Some(&key)) {
            Some(staged) => staged.row = Some(row),
            None => plan.staged.push(StagedRow {
                entry: Some(key),
                row: Some(row),
                in_new_dir,
                ..StagedRow::default()
            }),
        }
        Ok(())
    }

    /// A number for something that is made only by the merge.
    async fn new_inode(&self) -> Result<InodeId> {
        self.provide_ids().await?;
        self.servers.new_inode().await
    }
}

fn is_chunked(staged: &StagedRow) -> bool {
    staged.row.as_ref().is_some_and(|row| row.attr.chunked)
}
