//! The rows of one shard, reduced to what the checks need: ids and counts, no names.

use prost::Message;
use saker_types::change::{Gone, parse_entry_key, parse_slot_key, parse_staged_key, table};
use saker_types::id::hex;
use saker_types::name::NameHash;
use saker_types::placement::Slot;
use saker_types::wire::{FileLocks, Row, StagedValue, Totals};
use saker_types::{ClusterMap, FileKind, Inode, InodeId, Key, ROOT, ShardNo};

use super::problem::{ProblemKind, Problems, Subject};

/// An attribute row.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub id: InodeId,
    pub home: Slot,
    pub shard: ShardNo,
    pub nlink: u32,
}

/// Entries of one directory on one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub dir: InodeId,
    pub shard: ShardNo,
    pub entries: u64,
    pub subdirs: u64,
}

/// What was read of some shards.
#[derive(Debug, Default)]
pub struct Rows {
    /// Directories: id, parent.
    pub dirs: Vec<(InodeId, InodeId)>,
    /// Inodes that are in an entry's row and are no directories.
    pub others: Vec<InodeId>,
    /// Inodes with data in chunks: id, size in bytes.
    pub chunked: Vec<(InodeId, u64)>,
    /// References: id, home slot.
    pub references: Vec<(InodeId, Slot)>,
    pub attributes: Vec<Attributes>,
    /// Ids of orphans.
    pub orphans: Vec<InodeId>,
    /// Ids with a store job under way.
    pub jobs: Vec<InodeId>,
    /// Ids that a merge will put, change or remove.
    pub staged: Vec<InodeId>,
    /// Counted from the entries.
    pub counted: Vec<Count>,
    /// Said by the totals rows.
    pub totals: Vec<Count>,
    pub problems: Problems,
}

impl Rows {
    /// Takes one row of a shard. Rows of one shard come in the order of their keys.
    pub fn add(&mut self, map: &ClusterMap, shard: ShardNo, row: &Row) {
        let taken = match row.key.first() {
            Some(&table::ENTRY) => self.entry(map, shard, row),
            Some(&table::ATTR) => self.attributes(shard, row),
            Some(&table::GONE) => self.gone(map, shard, row),
            Some(&table::JOB) => id_of(&row.key).map(|id| self.jobs.push(id)),
            Some(&table::TOTALS) => self.totals(shard, row),
            Some(&table::SHARE) => parse_slot_key(&row.key)
                .and_then(|_| Totals::decode(row.value.clone()).ok())
                .map(drop),
            Some(&table::LOCKS) => self.locks(map, shard, row),
            Some(&table::STAGED) => self.staged(row),
            _ => None,
        };
        if taken.is_none() {
            let subject = Subject::Row(shard, row.key.to_vec());
            let detail = format!("shard {shard}: key {}", hex(&row.key));
            self.problems.add(ProblemKind::CorruptRow, subject, detail);
        }
    }

    fn entry(&mut self, map: &ClusterMap, shard: ShardNo, row: &Row) -> Option<()> {
        let key = parse_entry_key(&row.key)?;
        let inode = Inode::decode(row.value.clone()).ok()?;
        let attr = &inode.attr;
        FileKind::of_mode(attr.mode).filter(|_| attr.id != 0)?;
        if NameHash::of(&key.name, map.hash_seed).order() != key.order {
            return None;
        }
        self.check_owner(map, shard, &key);
        if let Some(slot) = inode.home_slot {
            self.references.push((attr.id, Slot(u16::try_from(slot).ok()?)));
        } else if attr.is_dir() {
            self.dirs.push((attr.id, key.pid));
        } else {
            self.others.push(attr.id);
            if attr.chunked {
                self.chunked.push((attr.id, attr.size));
            }
            if attr.nlink != 1 {
                let detail = format!("link count {} of a file with one name", attr.nlink);
                self.problems.add(ProblemKind::LinkCount, Subject::Inode(attr.id), detail);
            }
        }
        // The root's own row is in no directory.
        if !(key.pid == 0 && attr.id == ROOT) {
            self.count(shard, key.pid, attr.is_dir());
        }
        Some(())
    }

    fn check_owner(&mut self, map: &ClusterMap, shard: ShardNo, key: &Key) {
        let owner = map.owner(key.pid, &key.name);
        if owner != shard {
            let subject = Subject::Entry(key.pid, key.name.clone());
            let detail = format!("the row is on shard {shard}, its owner is shard {owner}");
            self.problems.add(ProblemKind::WrongShard, subject, detail);
        }
    }

    fn count(&mut self, shard: ShardNo, dir: InodeId, is_dir: bool) {
        match self.counted.last_mut() {
            Some(last) if last.dir == dir && last.shard == shard => {
                last.entries += 1;
                last.subdirs += u64::from(is_dir);
            }
            _ => self.counted.push(Count { dir, shard, entries: 1, subdirs: u64::from(is_dir) }),
        }
    }

    fn attributes(&mut self, shard: ShardNo, row: &Row) -> Option<()> {
        let (home, id) = parse_slot_key(&row.key)?;
        let attr = Inode::decode(row.value.clone()).ok()?.attr;
        if attr.id != id || attr.is_dir() {
            return None;
        }
        self.attributes.push(Attributes { id, home, shard, nlink: attr.nlink });
        if attr.chunked {
            self.chunked.push((id, attr.size));
        }
        Some(())
    }

    fn locks(&mut self, map: &ClusterMap, shard: ShardNo, row: &Row) -> Option<()> {
        let (slot, id) = parse_slot_key(&row.key)?;
        FileLocks::decode(row.value.clone()).ok().filter(|_| slot == Slot::of_locks(id))?;
        self.check_slot(map, shard, slot, row);
        Some(())
    }

    /// A row of a slot is where the slot is.
    fn check_slot(&mut self, map: &ClusterMap, shard: ShardNo, slot: Slot, row: &Row) {
        let owner = map.shard_of_slot(slot);
        if owner != shard {
            let subject = Subject::Row(shard, row.key.to_vec());
            let detail = format!("a row of slot {} is on shard {shard}, not {owner}", slot.0);
            self.problems.add(ProblemKind::WrongShard, subject, detail);
        }
    }

    fn gone(&mut self, map: &ClusterMap, shard: ShardNo, row: &Row) -> Option<()> {
        let (slot, id) = parse_slot_key(&row.key)?;
        self.check_slot(map, shard, slot, row);
        let gone = Gone::decode(row.value.clone()).ok()?;
        match (gone.moved, gone.orphan) {
            (None, Some(orphan)) if orphan.attr.id == id => {
                self.orphans.push(id);
                if orphan.attr.chunked {
                    self.chunked.push((id, orphan.attr.size));
                }
            }
            (Some(moved), None) if moved.id == id => {}
            _ => {
                let detail = "neither the new place nor the attributes of this inode";
                self.problems.add(ProblemKind::BadGoneRecord, Subject::Inode(id), detail);
            }
        }
        Some(())
    }

    fn totals(&mut self, shard: ShardNo, row: &Row) -> Option<()> {
        let dir = id_of(&row.key)?;
        let Totals { entries, subdirs, .. } = Totals::decode(row.value.clone()).ok()?;
        self.totals.push(Count { dir, shard, entries, subdirs });
        Some(())
    }

    fn staged(&mut self, row: &Row) -> Option<()> {
        parse_staged_key(&row.key)?;
        let staged = StagedValue::decode(row.value.clone()).ok()?;
        self.staged.extend(staged.ids());
        Some(())
    }

    /// Adds what was read of another shard.
    pub fn append(&mut self, mut other: Rows) {
        self.dirs.append(&mut other.dirs);
        self.others.append(&mut other.others);
        self.chunked.append(&mut other.chunked);
        self.references.append(&mut other.references);
        self.attributes.append(&mut other.attributes);
        self.orphans.append(&mut other.orphans);
        self.jobs.append(&mut other.jobs);
        self.staged.append(&mut other.staged);
        self.counted.append(&mut other.counted);
        self.totals.append(&mut other.totals);
        self.problems.append(other.problems);
    }
}

/// The id in the key of a row that belongs to one.
fn id_of(key: &[u8]) -> Option<InodeId> {
    Some(InodeId::from_be_bytes(key.get(1..)?.try_into().ok()?))
}
