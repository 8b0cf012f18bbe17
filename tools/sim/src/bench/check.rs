//! What must hold when nothing is under way: read from the rows of all shards.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use saker_types::change::{parse_entry_key, table};
use saker_types::wire::{Empty, Op, ScanReply, ScanReq, ShardStats, Totals};
use saker_types::{Inode, InodeId, ROOT};

use super::Bench;

/// The rows of all shards.
#[derive(Default)]
pub struct Tree {
    /// Entries by (parent, name).
    pub entries: BTreeMap<(InodeId, String), Inode>,
    /// Attribute rows of hard links.
    pub attributes: BTreeMap<InodeId, Inode>,
    /// Totals of directories, summed over the shards: entries, subdirectories.
    pub totals: BTreeMap<InodeId, (u64, u64)>,
    /// Inodes that shards say they hold.
    pub inodes: u64,
    /// Transactions without an outcome.
    pub prepared: u64,
    /// Store jobs.
    pub jobs: usize,
}

impl Bench {
    /// Reads everything.
    ///
    /// # Panics
    /// If a row does not decode.
    pub fn tree(&mut self) -> Tree {
        let mut tree = Tree::default();
        for shard in self.shards() {
            let request = ScanReq { after: Default::default(), limit: 65_536 };
            let rows: ScanReply = self.run(Op::Scan, shard, &request).expect("rows");
            assert!(rows.end, "the bench is for small trees");
            rows.rows.iter().for_each(|row| tree.take(&row.key, &row.value));
            let stats: ShardStats = self.run(Op::Statfs, shard, &Empty {}).expect("counts");
            tree.inodes += stats.inodes;
            tree.prepared += stats.prepared;
        }
        tree
    }

    /// Checks a quiet cluster: no transaction is left, every entry has its directory, totals and
    /// link counts are those of the entries.
    ///
    /// # Panics
    /// If something is wrong.
    pub fn check(&mut self) -> Tree {
        let tree = self.tree();
        tree.check();
        tree
    }
}

impl Tree {
    fn take(&mut self, key: &[u8], value: &[u8]) {
        let id = || InodeId::from_be_bytes(key[1..].try_into().expect("an id"));
        match key[0] {
            table::ENTRY => {
                let key = parse_entry_key(key).expect("an entry's key");
                let name = String::from_utf8(key.name).expect("a name of a test");
                let inode = Inode::decode(value).expect("an inode");
                assert!(
                    self.entries.insert((key.pid, name), inode).is_none(),
                    "a row on two shards"
                );
            }
            table::ATTR => {
                let inode = Inode::decode(value).expect("an inode");
                assert!(self.attributes.insert(id(), inode).is_none(), "attributes on two shards");
            }
            table::TOTALS => {
                let totals = Totals::decode(value).expect("totals");
                let sum = self.totals.entry(id()).or_default();
                *sum = (sum.0 + totals.entries, sum.1 + totals.subdirs);
            }
            table::JOB => self.jobs += 1,
            _ => {}
        }
    }

    fn check(&self) {
        assert_eq!((self.prepared, self.jobs), (0, 0), "something is under way");
        let dirs: BTreeSet<InodeId> =
            self.entries.values().filter(|i| i.attr.is_dir()).map(|i| i.attr.id).collect();
        let mut counted: BTreeMap<InodeId, (u64, u64)> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut references: BTreeMap<InodeId, u32> = BTreeMap::new();
        for ((pid, name), inode) in &self.entries {
            assert!(*pid == 0 || dirs.contains(pid), "{name} is in {pid:#x}, which is not there");
            let sum = counted.entry(*pid).or_default();
            *sum = (sum.0 + 1, sum.1 + u64::from(inode.attr.is_dir()));
            if inode.home_slot.is_some() {
                *references.entry(inode.attr.id).or_default() += 1;
            } else {
                assert!(seen.insert(inode.attr.id), "{name}: its inode has two entries");
            }
        }
        let linked: BTreeMap<InodeId, u32> =
            self.attributes.iter().map(|(id, row)| (*id, row.attr.nlink)).collect();
        assert_eq!(linked, references, "links");
        counted.remove(&0);
        let totals: BTreeMap<InodeId, (u64, u64)> =
            self.totals.iter().filter(|(_, t)| **t != (0, 0)).map(|(id, t)| (*id, *t)).collect();
        assert_eq!(totals, counted, "totals");
        assert_eq!(self.inodes, (seen.len() + self.attributes.len()) as u64, "count of inodes");
        self.reach(&dirs);
    }

    fn reach(&self, dirs: &BTreeSet<InodeId>) {
        let parents: BTreeMap<InodeId, InodeId> = self
            .entries
            .iter()
            .filter(|(_, inode)| inode.attr.is_dir())
            .map(|((pid, _), inode)| (inode.attr.id, *pid))
            .collect();
        for dir in dirs {
            let mut at = *dir;
            for _ in 0..=dirs.len() {
                if at != ROOT {
                    at = parents[&at];
                }
            }
            assert_eq!(at, ROOT, "directory {dir:#x} is in a cycle");
        }
    }
}
