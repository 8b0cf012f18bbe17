//! Of a merge, what concerns directories and files with several names that were there before: ordinary
//! operations, as anybody does them.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use saker_meta::private::{MergedRow, RowPlace};
use saker_types::wire::{At, EntryKey, MergeConflict, rename_flags};
use saker_types::{Attr, Class, Errno, Error, Inode, InodeId, Locator, Result};

use super::MergeReport;
use super::conflicts::name_beside;
use super::plan::{Later, MovedDir, NewName};
use crate::namespace::api::Namespace;
use crate::namespace::decoupled::Subtree;
use crate::namespace::strict::Strict;
use crate::{Caller, SetAttr, SetTime};

/// Times that a rename is tried again because others change the way to it, or what is in its place.
const MOVES_MAX: u32 = 16;

/// What has become of an operation.
enum Done {
    /// It is done, or there is nothing to do.
    Yes,
    /// Another one comes first.
    Waits,
    /// It cannot be done, with the reason.
    Never(Error),
}

impl Subtree {
    /// Does what are ordinary operations. Says in the report what cannot be done; with `release` that is given
    /// up.
    pub(super) async fn do_later(
        &self,
        later: Vec<(Later, Vec<MergedRow>)>,
        release: bool,
        report: &mut MergeReport,
    ) -> Result<()> {
        // Each file has its new names before it loses others, which may be all that it had.
        for new in later.iter().filter_map(|(one, _)| one.links()) {
            self.link_beside(new).await?;
        }
        // What else is done in a directory changes its times.
        let is_last = |(one, _): &(Later, _)| matches!(one, Later::Change(..));
        let (mut last, first): (Vec<_>, Vec<_>) = later.into_iter().partition(is_last);
        let moved = first.iter().filter_map(|(one, _)| one.moves());
        let change = |dir: &MovedDir| Later::Change(dir.to.clone(), Box::new(dir.row.clone()));
        last.extend(moved.map(|dir| (change(dir), Vec::new())));
        self.do_in_turn(first, release, report).await?;
        self.do_in_turn(last, release, report).await
    }

    /// One waits until what is in its way has gone: a directory that is not empty yet until those in it are
    /// removed or renamed, and one that gets the name of another directory until that one leaves it.
    async fn do_in_turn(
        &self,
        mut later: Vec<(Later, Vec<MergedRow>)>,
        release: bool,
        report: &mut MergeReport,
    ) -> Result<()> {
        while !later.is_empty() {
            let before = later.len();
            let mut left = Vec::new();
            let leaves = |(one, _): &(Later, _)| one.leaves().map(|(key, id)| (key.clone(), id));
            let mut taken: HashMap<EntryKey, InodeId> = later.iter().filter_map(leaves).collect();
            for (one, merged) in later {
                let is_taken = one.goes_to().is_some_and(|to| taken.contains_key(to));
                let done = match is_taken {
                    true => Done::Waits,
                    false => self.do_one(&one, report).await?,
                };
                match done {
                    Done::Yes => {
                        let gone = one.leaves().map(|(key, _)| key.clone());
                        gone.iter().for_each(|key| _ = taken.remove(key));
                        let gone = gone.map(|key| MergedRow::none(RowPlace::Entry(key)));
                        let rows: Vec<MergedRow> = gone.into_iter().chain(merged).collect();
                        self.servers.mark_merged(rows.into()).await?;
                    }
                    Done::Waits => left.push((one, merged)),
                    Done::Never(error) => cannot(&one, &error, release, report),
                }
            }
            if left.len() == before && !self.end_cycle(&mut left).await? {
                for (one, _) in left {
                    match one {
                        Later::Move(_) => cannot(&one, &Errno::EINVAL.into(), release, report),
                        _ => {
                            let why = "others have put something there, so it stays";
                            tracing::warn!("{one:?}: {why}");
                        }
                    }
                }
                return Ok(());
            }
            later = left;
        }
        Ok(())
    }

    /// Of directories that wait for each other's names one leaves its own. False: none does.
    async fn end_cycle(&self, left: &mut [(Later, Vec<MergedRow>)]) -> Result<bool> {
        let wanted: HashSet<EntryKey> =
            left.iter().filter_map(|(one, _)| Some(one.moves()?.to.clone())).collect();
        let is_wanted = |one: &Later| one.leaves().is_some_and(|(key, _)| wanted.contains(key));
        match left.iter_mut().find(|(one, _)| is_wanted(one)) {
            Some((one, _)) => self.put_off(one).await.map(|()| true),
            None => Ok(false),
        }
    }

    async fn do_one(&self, later: &Later, report: &mut MergeReport) -> Result<Done> {
        let done = match later {
            Later::Move(dir) => return self.move_dir(dir, report).await,
            Later::Link(new) => return self.name_file(new, report).await,
            other => self.do_other(other).await,
        };
        match done {
            Ok(()) => Ok(Done::Yes),
            Err(error) if error.errno() == Errno::ENOTEMPTY => Ok(Done::Waits),
            Err(error) if matches!(later, Later::Home(..)) && error.errno() == Errno::EXDEV => {
                Ok(Done::Never(error))
            }
            // It was done by an earlier attempt, or by somebody else.
            Err(error) if self.is_gone(&error) || error.is(Class::Elsewhere) => Ok(Done::Yes),
            Err(error) => Err(self.lost(error)),
        }
    }

    async fn do_other(&self, later: &Later) -> Result<()> {
        let names = Strict(&self.upstream);
        let holder = &self.holder();
        match later {
            // Done apart.
            Later::Move(_) | Later::Link(_) => Ok(()),
            Later::Rmdir(key, id) => self.remove_dir(holder, key, *id).await,
            Later::Change(key, row) => self.change_dir(holder, key, row).await,
            Later::Home(home, row) => self.change_home(holder, home, row).await,
            Later::Unlink(key) => {
                let parent = self.parent_of(key).await?;
                names.unlink(holder, &At::child(parent, &key.name)).await.map(drop)
            }
        }
    }

    /// Gives a file another name beside the one that it gets.
    async fn link_beside(&self, new: &NewName) -> Result<()> {
        let Ok(parent) = self.parent_of(&new.to).await else { return Ok(()) };
        let beside = At::child(parent, &name_beside(&new.to.name, new.home.id));
        let from = At::handle(new.home.clone());
        match Strict(&self.upstream).link(&self.holder(), &from, &beside).await {
            // By an earlier attempt.
            Err(error) if error.errno() == Errno::EEXIST => Ok(()),
            // The file, or the directory, is not there any more, which is told later.
            Err(error) if self.is_gone(&error) => Ok(()),
            other => other.map(drop).map_err(|error| self.lost(error)),
        }
    }

    /// Gives it the name that it gets, in place of what is there.
    async fn name_file(&self, new: &NewName, report: &mut MergeReport) -> Result<Done> {
        let NewName { home, to: EntryKey { name, .. } } = new;
        let Ok(parent) = self.parent_of(&new.to).await else {
            return Ok(Done::Never(Errno::ENOENT.into()));
        };
        let (names, holder) = (Strict(&self.upstream), self.holder());
        let to = At::child(parent.clone(), name);
        let there = match names.lookup(&holder, &to).await {
            Err(error) if self.is_gone(&error) => None,
            other => Some(other.map_err(|error| self.lost(error))?.attr),
        };
        if let Some(there) = there.filter(|there| there.id != home.id) {
            let (entry, id, mode) = (new.to.clone(), there.id, there.mode);
            let conflict = MergeConflict { entry, there: id, mode, ..MergeConflict::default() };
            report.conflicts.push(conflict);
            if there.is_dir() {
                self.rename_aside(&new.to, id).await.map_err(|error| self.lost(error))?;
            }
        }
        let mut beside = At::child(parent, &name_beside(name, home.id));
        beside.expect_last(home.id);
        match names.rename(&holder, &beside, &to, 0, [&[], &[]]).await {
            Err(error) if self.is_gone(&error) || error.is(Class::Elsewhere) => {
                return Ok(Done::Never(error));
            }
            other => other.map_err(|error| self.lost(error))?,
        };
        // If the file had that name already, it has both still.
        match names.unlink(&holder, &beside).await {
            Err(error) if !self.is_gone(&error) && !error.is(Class::Elsewhere) => {
                Err(self.lost(error))
            }
            _ => Ok(Done::Yes),
        }
    }

    /// Removes a directory, also where others have put it.
    async fn remove_dir(&self, holder: &Caller, key: &EntryKey, id: InodeId) -> Result<()> {
        let names = Strict(&self.upstream);
        let remove = async |pid: InodeId, name: &[u8]| {
            let key = EntryKey { pid, name: Bytes::copy_from_slice(name) };
            let mut at = At::child(self.parent_of(&key).await?, name);
            // Somebody may have made another one of this name.
            at.expect_last(id);
            names.rmdir(holder, &at).await
        };
        match remove(key.pid, &key.name).await {
            Err(error) if self.is_gone(&error) || error.is(Class::Elsewhere) => {
                if let Some(loc) = self.where_is(key, id).await? {
                    remove(loc.pid, &loc.name).await?;
                }
            }
            other => _ = other?,
        }
        let mut dirs = self.dirs();
        dirs.known.remove(&id);
        dirs.unloaded.remove(&id);
        Ok(())
    }

    /// Gives a directory the name that it has here.
    async fn move_dir(&self, dir: &MovedDir, report: &mut MergeReport) -> Result<Done> {
        let _loading = self.loading.lock().await;
        for _ in 0..MOVES_MAX {
            let Some(from) = self.where_is(&dir.from, dir.id).await? else {
                // Others have removed it: it is here until something that was made in it is merged.
                report
                    .conflicts
                    .push(MergeConflict { entry: dir.to.clone(), ..MergeConflict::default() });
                let loc = Locator::entry(dir.to.pid, dir.to.name.clone(), dir.id);
                self.dirs().known.insert(dir.id, self.under_policy(&loc));
                return Ok(Done::Yes);
            };
            match self.move_from(&from, dir).await {
                Ok(()) => {}
                Err(error) if error.errno() == Errno::EEXIST => {
                    self.free_name(dir, report).await?;
                    continue;
                }
                // The way there has changed, or the directory is elsewhere again.
                Err(error)
                    if self.is_gone(&error) && error.errno() == Errno::ESTALE
                        || error.is(Class::Elsewhere) =>
                {
                    continue;
                }
                // It goes below itself, until what is between has gone.
                Err(error) if error.errno() == Errno::EINVAL => return Ok(Done::Waits),
                Err(error)
                    if matches!(
                        error.errno(),
                        Errno::ENOENT | Errno::ENOTDIR | Errno::EXDEV | Errno::EBUSY
                    ) =>
                {
                    return Ok(Done::Never(error));
                }
                Err(error) => return Err(self.lost(error)),
            }
            let loc = Locator::entry(dir.to.pid, dir.to.name.clone(), dir.id);
            self.dirs().known.insert(dir.id, self.under_policy(&loc));
            match self.change_dir(&self.holder(), &dir.to, &dir.row).await {
                Err(error) if !self.is_gone(&error) => return Err(self.lost(error)),
                _ => return Ok(Done::Yes),
            }
        }
        let text = "others go on changing the way to its name";
        Ok(Done::Never(Error::new(Errno::EBUSY).with_text(text)))
    }

    /// EEXIST: something has the name.
    async fn move_from(&self, from: &Locator, dir: &MovedDir) -> Result<()> {
        let MovedDir { to, id, .. } = dir;
        if (from.pid, &from.name) == (to.pid, &to.name) {
            return Ok(());
        }
        // In one directory no way is asked for.
        let (old, new) = match from.pid == to.pid {
            true => (vec![self.parent_of(to).await?], Vec::new()),
            false => (self.way_to(from.pid).await?, self.way_to(to.pid).await?),
        };
        let old_parent = old.last().cloned().ok_or(Errno::ENOENT)?;
        let new_parent = new.last().unwrap_or(&old_parent).clone();
        let mut at = At::child(old_parent, &from.name);
        at.expect_last(*id);
        let to = At::child(new_parent, &to.name);
        let (names, holder) = (Strict(&self.upstream), self.holder());
        let flags = rename_flags::NOREPLACE;
        names.rename(&holder, &at, &to, flags, [&old, &new]).await.map(drop)
    }

    /// The directories from the subtree's own to one, where the cluster has them now.
    ///
    /// # Errors
    /// ENOENT: it does not lead from there, or not by what is known.
    async fn way_to(&self, id: InodeId) -> Result<Vec<Locator>> {
        let mut way = Vec::new();
        let mut next = id;
        loop {
            let known = self.places_of(HashSet::from([next])).await;
            let known = known.map_err(|_| Errno::ENOENT)?.swap_remove(0);
            let key = EntryKey { pid: known.pid, name: known.name };
            let loc = self.where_is(&key, next).await?.ok_or(Errno::ENOENT)?;
            let (above, is_root) = (loc.pid, self.is_root(next));
            way.push(loc);
            if is_root {
                way.reverse();
                return Ok(way);
            }
            if way.iter().any(|loc| loc.id == above) {
                return Err(Errno::ENOENT.into());
            }
            next = above;
        }
    }

    /// Something of others has the name that a directory gets.
    async fn free_name(&self, dir: &MovedDir, report: &mut MergeReport) -> Result<()> {
        let (names, holder) = (Strict(&self.upstream), self.holder());
        let at = At::child(self.parent_of(&dir.to).await?, &dir.to.name);
        let there = match names.lookup(&holder, &at).await {
            Err(error) if self.is_gone(&error) => return Ok(()),
            other => other.map_err(|error| self.lost(error))?.attr,
        };
        report.conflicts.push(MergeConflict {
            entry: dir.to.clone(),
            there: there.id,
            mode: there.mode,
            ..MergeConflict::default()
        });
        let freed = match there.is_dir() {
            true => self.rename_aside(&dir.to, there.id).await.map(drop),
            false => names.unlink(&holder, &at).await.map(drop),
        };
        match freed {
            Err(error) if !self.is_gone(&error) => Err(self.lost(error)),
            _ => Ok(()),
        }
    }

    /// Where the directory of a name is.
    ///
    /// # Errors
    /// ENOENT: it was removed by this merge, or by others.
    async fn parent_of(&self, key: &EntryKey) -> Result<Locator> {
        self.place_of(key.pid).await.map_err(|_| Errno::ENOENT.into())
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
}

/// Says that something cannot be done. With `release` it is given up.
fn cannot(one: &Later, error: &Error, release: bool, report: &mut MergeReport) {
    match one.moves().filter(|_| release) {
        None => report.kept_back += 1,
        Some(dir) => {
            tracing::warn!("the directory {:?} is not renamed to {:?}: {error}", dir.from, dir.to);
            report
                .conflicts
                .push(MergeConflict { entry: dir.to.clone(), ..MergeConflict::default() });
        }
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
