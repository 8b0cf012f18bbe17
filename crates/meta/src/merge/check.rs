//! Do the staged rows of a merge fit to what is there now? From here on who comes to one of its
//! directories waits, so that the answer stays true.

use bytes::Bytes;
use rustc_hash::FxHashSet;
use saker_types::change::parse_entry_key;
use saker_types::limits::MERGE_CONFLICTS_MAX;
use saker_types::wire::{CheckMergeReply, CheckMergeReq, EntryKey, MergeConflict};
use saker_types::{Class, Errno, Error, Inode, InodeId, Key, Locator};

use super::{PIECE_PAUSE, PIECE_ROWS, Staged};
use crate::request::Attempt;
use crate::shard::{Shard, ShardHandle, encoded};

/// What has been found of a merge.
#[derive(Default)]
struct Found {
    rows: u64,
    conflicts: Vec<MergeConflict>,
}

impl Shard {
    /// Looks whether a merge fits.
    pub(crate) fn check_merge(&mut self, msg: &CheckMergeReq) -> Attempt<Bytes> {
        let msg = *msg;
        Err(self.task(move |h| check(h, msg)))
    }

    /// Begins: the directories of the merge, at which others wait from now on.
    fn begin_check(&mut self, msg: &CheckMergeReq) -> Result<Vec<Locator>, Error> {
        let mut dirs = self.staged_dirs((msg.policy, msg.epoch))?;
        dirs.retain(|(attempt, _)| *attempt == msg.attempt);
        let dirs: Vec<Locator> = dirs.into_iter().map(|(_, dir)| dir).collect();
        if dirs.len() as u64 != msg.dirs {
            return Err(not_as_told(self.no, "directories", dirs.len() as u64, msg.dirs));
        }
        if !msg.dry_run {
            let ids: Vec<InodeId> = dirs.iter().map(|dir| dir.id).collect();
            if !self.merges.close(msg.policy, &ids) {
                return Err(Error::retry("too many directories are being merged"));
            }
            // Whoever waits must hear of the end, also of one of which nobody tells this shard.
            self.ask_policy(msg.policy);
        }
        Ok(dirs)
    }

    /// Is a directory still where it was?
    fn check_dir(&mut self, dir: &Locator) -> Result<Option<MergeConflict>, Error> {
        if !self.owns(dir.pid, &dir.name) {
            return Ok(None);
        }
        let key = self.map.key(dir.pid, &dir.name);
        if self.locked_by(&key).is_some() {
            return Err(busy());
        }
        let there = self.entry(&key)?;
        if there.is_some_and(|row| row.attr.id == dir.id && row.attr.is_dir()) {
            return Ok(None);
        }
        let gone = self.gone(self.map.slot_at(dir), dir.id)?;
        let entry = EntryKey { pid: dir.id, name: Bytes::new() };
        let moved = gone.and_then(|gone| gone.moved);
        Ok(Some(MergeConflict { entry, moved, ..MergeConflict::default() }))
    }

    /// Is at a row's place what its holder saw there?
    fn check_row(
        &mut self,
        dirs: &FxHashSet<InodeId>,
        staged: &Staged,
    ) -> Result<Option<MergeConflict>, Error> {
        let Some(key) = parse_entry_key(staged.of()) else {
            return match self.get(staged.of())? {
                None => Ok(None),
                Some(_) => Err(misplaced("a file with several names is there already")),
            };
        };
        if staged.value.in_new_dir == dirs.contains(&key.pid) {
            return Err(misplaced("its directory is neither new nor told"));
        }
        if !self.owns(key.pid, &key.name) {
            return Err(Error::of_class(Class::RefreshMap, Errno::ESTALE));
        }
        if staged.value.in_new_dir {
            return Ok(None);
        }
        if self.locked_by(&key).is_some() {
            return Err(busy());
        }
        let there = self.entry(&key)?;
        if there.as_ref().is_some_and(|there| self.not_busy(there.attr.id).is_err()) {
            return Err(busy());
        }
        let expect = staged.value.expect;
        let mut found = conflict(&key, there.as_deref(), expect);
        if let Some(found) = &mut found
            && expect != 0
            && found.there != expect
        {
            let gone = self.gone(self.map.slot_of(key.pid, &key.name), expect)?;
            found.moved = gone.and_then(|gone| gone.moved);
        }
        Ok(found)
    }
}

/// What is there, if it is not a file with one name that is expected, or nothing if that is.
fn conflict(key: &Key, there: Option<&Inode>, expect: InodeId) -> Option<MergeConflict> {
    let fits = match there {
        None => expect == 0,
        Some(row) => row.attr.id == expect && !row.attr.is_dir() && row.home_slot.is_none(),
    };
    if fits {
        return None;
    }
    let entry = Shard::entry_key(key.pid, &key.name);
    Some(MergeConflict {
        entry,
        there: there.map_or(0, |row| row.attr.id),
        mode: there.map_or(0, |row| row.attr.mode),
        linked: there.is_some_and(|row| row.home_slot.is_some()),
        moved: None,
    })
}

fn busy() -> Error {
    Error::retry("a name of the merge is being changed")
}

fn misplaced(why: &str) -> Error {
    Error::new(Errno::EINVAL).with_text(format!("a row cannot be merged: {why}"))
}

fn not_as_told(shard: u16, what: &str, there: u64, told: u64) -> Error {
    let text =
        format!("shard {shard} has {there} {what} of the merge, not {told}: stage them again");
    Error::new(Errno::ESTALE).with_text(text)
}

async fn check(h: ShardHandle, msg: CheckMergeReq) -> Result<Bytes, Error> {
    let dirs = h.shard().begin_check(&msg)?;
    let mut found = Found::default();
    for some in dirs.chunks(PIECE_ROWS) {
        for dir in some {
            found.conflicts.extend(h.shard().check_dir(dir)?);
        }
        h.hub.sleep(PIECE_PAUSE).await;
    }
    let dirs: FxHashSet<InodeId> = dirs.into_iter().map(|dir| dir.id).collect();
    let mut after = Bytes::new();
    loop {
        let is_more = h.shard().check_piece(&msg, &dirs, &mut after, &mut found)?;
        if found.conflicts.len() >= MERGE_CONFLICTS_MAX {
            break;
        }
        if !is_more {
            if found.rows != msg.rows {
                return Err(not_as_told(h.shard().no, "rows", found.rows, msg.rows));
            }
            break;
        }
        h.hub.sleep(PIECE_PAUSE).await;
    }
    found.conflicts.truncate(MERGE_CONFLICTS_MAX);
    Ok(encoded(&CheckMergeReply { conflicts: found.conflicts }))
}

impl Shard {
    /// Looks at some rows behind a key; whether there are more.
    fn check_piece(
        &mut self,
        msg: &CheckMergeReq,
        dirs: &FxHashSet<InodeId>,
        after: &mut Bytes,
        found: &mut Found,
    ) -> Result<bool, Error> {
        let (piece, is_more) = self.staged_after((msg.policy, msg.epoch), after)?;
        for staged in &piece {
            if staged.value.attempt != msg.attempt || staged.value.dir.is_some() {
                continue;
            }
            found.rows += 1;
            found.conflicts.extend(self.check_row(dirs, staged)?);
        }
        if let Some(last) = piece.last() {
            *after = last.key.clone();
        }
        Ok(is_more)
    }
}
