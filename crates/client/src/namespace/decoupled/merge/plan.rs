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
    /// Changes of files that others have renamed are staged at these names, and here at those.
    pub(super) followed: HashMap<EntryKey, EntryKey>,
    /// Ordinary operations after it, each with what the cluster has then.
    pub(super) later: Vec<(Later, Vec<MergedRow>)>,
}

/// An ordinary operation on what was there before.
#[derive(Debug)]
pub(super) enum Later {
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
    /// Of what has changed under a policy.
    pub(super) fn of(changes: Vec<RowChange>, policy: u64) -> Plan {
        let (mut plan, mut all_merged) = (Plan::default(), Vec::new());
        let new_dir = |change: &RowChange| {
            let row = change.row.as_ref().filter(|row| row.attr.is_dir())?;
            (change.expect != row.attr.id).then_some(row.attr.id)
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
        let made: HashSet<InodeId> = changes.iter().filter_map(new_dir).collect();
        let mut removed: Vec<(Later, Vec<MergedRow>)> = Vec::new();
        let mut homes = Vec::new();
        for change in changes {
            let merged = change.merged();
            let RowChange { place, row, expect, was_directory, .. } = change;
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
            let row = match row {
                Some(row) if was_directory && row.attr.id == expect => {
                    plan.later.push((Later::Change(key, Box::new(row)), vec![merged]));
                    continue;
                }
                None if was_directory => {
                    removed.push((Later::Rmdir(key, expect), vec![merged]));
                    continue;
                }
                // Something new has its name.
                Some(row) if was_directory => {
                    removed.push((Later::Rmdir(key.clone(), expect), Vec::new()));
                    Some(row)
                }
                row => row,
            };
            let expect = if was_directory { 0 } else { expect };
            let in_new_dir = made.contains(&key.pid);
            let moves_to = came
                .get(&expect)
                .filter(|_| expect != 0)
                .map(|to| Locator::entry(to.pid, to.name.clone(), expect).under(policy));
            let entry = Some(key);
            let staged = StagedRow { entry, row, expect, in_new_dir, moves_to, attr_slot: None };
            plan.staged.push(staged);
            all_merged.push(merged);
        }
        plan.later.extend(removed.into_iter().chain(homes));
        plan.merged = all_merged.into();
        plan
    }

    /// Directories, in which something is staged, that this merge does not make.
    pub(super) fn dirs(&self) -> HashSet<InodeId> {
        let told = self.staged.iter().filter(|staged| !staged.in_new_dir);
        told.filter_map(|staged| staged.entry.as_ref()).map(|key| key.pid).collect()
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
