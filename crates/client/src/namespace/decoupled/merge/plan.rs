//! How what has changed in a decoupled subtree is merged: in one transaction, and by ordinary operations
//! after it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use saker_meta::private::{MergedRow, RowChange, RowPlace};
use saker_types::placement::Slot;
use saker_types::wire::{EntryKey, StagedRow};
use saker_types::{ClusterMap, Inode, InodeId, Locator, ShardNo, limits};

/// Bytes of rows in one request: the rest of its bound is for what is beside them.
const STAGE_BYTES: usize = limits::STAGE_BYTES_MAX - (64 << 10);

/// How what has changed is merged.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In one transaction.
    pub(super) staged: Vec<StagedRow>,
    /// What the cluster has then.
    pub(super) merged: Arc<[MergedRow]>,
    /// Directories that others have removed and that are made again: their new numbers.
    pub(super) made_again: HashMap<InodeId, InodeId>,
    /// Directories that it makes.
    pub(super) made: HashSet<InodeId>,
    /// Changes of files that others have renamed are staged at these names, and here at those.
    pub(super) followed: HashMap<EntryKey, EntryKey>,
    /// Ordinary operations after it, each with what the cluster has then.
    pub(super) later: Vec<(Later, Vec<MergedRow>)>,
}

/// An ordinary operation on what was there before.
#[derive(Debug)]
pub(super) enum Later {
    /// A directory has another name.
    Move(Box<MovedDir>),
    /// A directory was removed. It is where the private servers know it.
    Rmdir(EntryKey, InodeId),
    /// A directory has other attributes.
    Change(EntryKey, Box<Inode>),
    /// A file that had several names before has got another one.
    Link(Box<NewName>),
    /// One of several names of a file was removed.
    Unlink(EntryKey),
    /// A file that had several names before has other attributes.
    Home(Locator, Box<Inode>),
}

/// A directory that was there before and has another name.
#[derive(Clone, Debug)]
pub(super) struct MovedDir {
    pub(super) id: InodeId,
    /// Where the private servers know that the cluster has it.
    pub(super) from: EntryKey,
    pub(super) to: EntryKey,
    /// As it is here.
    pub(super) row: Inode,
}

/// A new name of a file that had several names before.
#[derive(Clone, Debug)]
pub(super) struct NewName {
    /// The file.
    pub(super) home: Locator,
    pub(super) to: EntryKey,
}

impl Later {
    /// The name that something gets.
    pub(super) fn goes_to(&self) -> Option<&EntryKey> {
        match self {
            Later::Move(dir) => Some(&dir.to),
            Later::Link(new) => Some(&new.to),
            Later::Rmdir(..) | Later::Change(..) | Later::Unlink(_) | Later::Home(..) => None,
        }
    }

    /// The directory that leaves a name, and the name.
    pub(super) fn leaves(&self) -> Option<(&EntryKey, InodeId)> {
        match self {
            Later::Move(dir) => Some((&dir.from, dir.id)),
            Later::Rmdir(key, id) => Some((key, *id)),
            Later::Change(..) | Later::Link(_) | Later::Unlink(_) | Later::Home(..) => None,
        }
    }

    /// Where that one is now.
    pub(super) fn leaves_from(&mut self, at: EntryKey) {
        match self {
            Later::Move(dir) => dir.from = at,
            Later::Rmdir(key, _) => *key = at,
            Later::Change(..) | Later::Link(_) | Later::Unlink(_) | Later::Home(..) => {}
        }
    }

    /// The file that gets another name.
    pub(super) fn links(&self) -> Option<&NewName> {
        match self {
            Later::Link(new) => Some(new),
            _ => None,
        }
    }

    /// The directory that gets another name.
    pub(super) fn moves(&self) -> Option<&MovedDir> {
        match self {
            Later::Move(dir) => Some(dir),
            _ => None,
        }
    }
}

/// Directories that were there before and have another name, with the ones that they had.
fn moved_dirs(changes: &[RowChange]) -> HashMap<InodeId, EntryKey> {
    let is_there =
        |change: &RowChange, id: InodeId| change.row.as_ref().is_some_and(|row| row.attr.id == id);
    let mut left: HashMap<InodeId, EntryKey> = HashMap::new();
    for change in changes.iter().filter(|change| change.was_directory) {
        if let (RowPlace::Entry(key), false) = (&change.place, is_there(change, change.expect)) {
            left.insert(change.expect, key.clone());
        }
    }
    if left.is_empty() {
        return left;
    }
    let rows = changes.iter().filter_map(|change| change.row.as_ref());
    let are_here: HashSet<InodeId> =
        rows.filter(|row| row.attr.is_dir()).map(|row| row.attr.id).collect();
    left.retain(|id, _| are_here.contains(id));
    left
}

impl Plan {
    /// Of what has changed under a policy.
    pub(super) fn of(changes: Vec<RowChange>, policy: u64) -> Plan {
        let (mut plan, mut all_merged) = (Plan::default(), Vec::new());
        let moved = moved_dirs(&changes);
        let new_dir = |change: &RowChange| {
            let row = change.row.as_ref().filter(|row| row.attr.is_dir())?;
            let is_new = change.expect != row.attr.id && !moved.contains_key(&row.attr.id);
            is_new.then_some(row.attr.id)
        };
        let is_new = |change: &RowChange| {
            change.row.as_ref().is_some_and(|row| row.attr.id != change.expect)
        };
        // Where files are that have another name now.
        let left = changes.iter().filter(|change| change.row.is_none() || is_new(change));
        let left: HashSet<InodeId> = left.map(|change| change.expect).collect();
        let mut came: HashMap<InodeId, EntryKey> = HashMap::new();
        for change in &changes {
            if let (RowPlace::Entry(key), Some(row)) = (&change.place, &change.row)
                && row.attr.id != change.expect
                && left.contains(&row.attr.id)
            {
                came.insert(row.attr.id, key.clone());
            }
        }
        plan.made = changes.iter().filter_map(new_dir).collect();
        let (mut moves, mut changed) = (Vec::new(), Vec::new());
        let mut removed: Vec<(Later, Vec<MergedRow>)> = Vec::new();
        let (mut homes, mut links) = (Vec::new(), Vec::new());
        for change in changes {
            let mut merged = change.merged();
            let RowChange { place, row, expect, was_directory, home_there, .. } = change;
            let key = match place {
                RowPlace::Entry(key) => key,
                // Its names are merged one by one.
                RowPlace::Attr { slot, id } if expect != 0 => {
                    if let Some(row) = row {
                        let home = Locator { id, home_slot: Some(slot), ..Locator::default() };
                        homes.push((Later::Home(home.under(policy), Box::new(row)), vec![merged]));
                    }
                    continue;
                }
                RowPlace::Attr { slot, .. } => {
                    let attr_slot = Some(slot);
                    plan.staged.push(StagedRow { attr_slot, row, expect, ..StagedRow::default() });
                    all_merged.push(merged);
                    continue;
                }
            };
            let mut row = row;
            let here = row.as_ref().map_or(0, |row| row.attr.id);
            if let Some(row) = row.take_if(|_| was_directory && here == expect) {
                changed.push((Later::Change(key, Box::new(row)), vec![merged]));
                continue;
            }
            if was_directory && !moved.contains_key(&expect) {
                removed.push((Later::Rmdir(key.clone(), expect), Vec::new()));
            }
            if let Some(from) = moved.get(&here)
                && let Some(row) = row.take()
            {
                let dir = MovedDir { id: here, from: from.clone(), to: key.clone(), row };
                let gone = MergedRow::none(RowPlace::Entry(key.clone()));
                let is_here = std::mem::replace(&mut merged, gone);
                moves.push((Later::Move(Box::new(dir)), vec![is_here]));
            }
            if let (Some(slot), true) = (home_there, here != expect)
                && row.take().is_some()
            {
                let home = Locator { id: here, home_slot: Some(slot), ..Locator::default() };
                let new = NewName { home: home.under(policy), to: key.clone() };
                let gone = MergedRow::none(RowPlace::Entry(key.clone()));
                let is_here = std::mem::replace(&mut merged, gone);
                links.push((Later::Link(Box::new(new)), vec![is_here]));
            }
            // A directory goes by an ordinary operation, and a name that was free is so until one comes.
            if row.is_none() && (was_directory || expect == 0) {
                continue;
            }
            let expect = if was_directory { 0 } else { expect };
            let in_new_dir = plan.made.contains(&key.pid);
            let moves_to = came
                .get(&expect)
                .filter(|_| expect != 0)
                .map(|to| Locator::entry(to.pid, to.name.clone(), expect).under(policy));
            let entry = Some(key);
            let staged = StagedRow { entry, row, expect, in_new_dir, moves_to, attr_slot: None };
            plan.staged.push(staged);
            all_merged.push(merged);
        }
        plan.later = [moves, changed, removed, links, homes].into_iter().flatten().collect();
        plan.merged = all_merged.into();
        plan
    }

    /// Directories, in which something is staged or to which a directory goes, that this merge does not make.
    pub(super) fn dirs(&self) -> HashSet<InodeId> {
        let told = self.staged.iter().filter(|staged| !staged.in_new_dir);
        let told = told.filter_map(|staged| staged.entry.as_ref()).map(|key| key.pid);
        // Others may have removed, or renamed, where a directory is to go.
        let reached = self.moves().map(|dir| dir.to.pid).filter(|id| !self.made.contains(id));
        told.chain(reached).collect()
    }

    /// Directories that get other names.
    pub(super) fn moves(&self) -> impl Iterator<Item = &MovedDir> {
        self.later.iter().filter_map(|(later, _)| later.moves())
    }

    /// Positions of those that are done later, by the name that a directory leaves.
    pub(super) fn leaving(&self) -> HashMap<EntryKey, usize> {
        let left = |(at, (later, _)): (usize, &(Later, _))| Some((later.leaves()?.0.clone(), at));
        self.later.iter().enumerate().filter_map(left).collect()
    }

    /// What is staged, by the shard that owns it: the rows' indices. Every shard is there.
    pub(super) fn by_shard(&self, map: &ClusterMap) -> BTreeMap<ShardNo, Vec<usize>> {
        let none = (0..map.shards.len()).map(|shard| (shard as ShardNo, Vec::new()));
        let mut by_shard: BTreeMap<ShardNo, Vec<usize>> = none.collect();
        for (at, staged) in self.staged.iter().enumerate() {
            by_shard.entry(owner_of(map, staged)).or_default().push(at);
        }
        by_shard
    }
}

fn owner_of(map: &ClusterMap, staged: &StagedRow) -> ShardNo {
    let slot = match (&staged.entry, staged.attr_slot) {
        (Some(EntryKey { pid, name }), _) => map.slot_of(*pid, name),
        (None, slot) => Slot::from_wire(slot.unwrap_or_default()),
    };
    map.shard_of_slot(slot)
}

/// Parts of a list that fit into one request each, by the bytes of what is in it.
pub(super) fn parts(bytes: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let (mut parts, mut part, mut total) = (Vec::new(), 0..0, 0);
    for bytes in bytes {
        let is_full = part.len() >= limits::STAGE_ROWS_MAX || total + bytes > STAGE_BYTES;
        if is_full && !part.is_empty() {
            parts.push(part.clone());
            (part, total) = (part.end..part.end, 0);
        }
        part.end += 1;
        total += bytes;
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_all_and_fit() {
        assert!(parts(std::iter::empty()).is_empty());
        assert_eq!(parts([STAGE_BYTES * 2, 1].into_iter()), [0..1, 1..2], "one is always sent");
        assert_eq!(parts([STAGE_BYTES / 2; 5].into_iter()), [0..2, 2..4, 4..5]);
        let many = parts(std::iter::repeat_n(1, limits::STAGE_ROWS_MAX * 2 + 3));
        let lens: Vec<usize> = many.iter().map(ExactSizeIterator::len).collect();
        assert_eq!(lens, [limits::STAGE_ROWS_MAX, limits::STAGE_ROWS_MAX, 3]);
    }
}
