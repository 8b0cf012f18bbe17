//! What must hold when nothing is under way: read from the rows of all shards.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use saker_types::change::{Gone, parse_entry_key, table};
use saker_types::wire::{Empty, Op, ScanReply, ScanReq, ShardStats, Totals};
use saker_types::{Inode, InodeId, ROOT};

use super::Testbed;

/// The rows of all shards.
#[derive(Default)]
pub struct TestbedTree {
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
    /// Records of ids that left their names; those of moved directories stay.
    pub gone: usize,
}

impl Testbed {
    /// Reads everything.
    ///
    /// # Panics
    /// If a row does not decode.
    pub fn tree(&mut self) -> TestbedTree {
        let mut tree = TestbedTree::default();
        for shard in self.shards() {
            let request = ScanReq { after: Default::default(), limit: 65_536 };
            let rows: ScanReply = self.run(Op::Scan, shard, &request).expect("rows");
            assert!(rows.end, "the testbed is for small trees");
            for row in &rows.rows {
                tree.take(&row.key, &row.value).expect("rows of a shard");
            }
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
    pub fn check(&mut self) -> TestbedTree {
        let tree = self.tree();
        if let Err(what) = tree.check() {
            panic!("{what}");
        }
        tree
    }
}

impl TestbedTree {
    /// Takes a row of a shard.
    ///
    /// # Errors
    /// If it does not decode, or was there before.
    pub fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let bad = |e: &dyn std::fmt::Display| format!("row {key:?}: {e}");
        let id = || -> Result<InodeId, String> {
            Ok(InodeId::from_be_bytes(*key.last_chunk().ok_or_else(|| bad(&"no id"))?))
        };
        match key[0] {
            table::ENTRY => {
                let parsed = parse_entry_key(key).ok_or_else(|| bad(&"no entry"))?;
                let name = String::from_utf8(parsed.name).map_err(|e| bad(&e))?;
                let inode = Inode::decode(value).map_err(|e| bad(&e))?;
                if self.entries.insert((parsed.pid, name), inode).is_some() {
                    return Err(bad(&"on two shards"));
                }
            }
            table::ATTR => {
                let inode = Inode::decode(value).map_err(|e| bad(&e))?;
                if self.attributes.insert(id()?, inode).is_some() {
                    return Err(bad(&"attributes on two shards"));
                }
            }
            table::TOTALS => {
                let totals = Totals::decode(value).map_err(|e| bad(&e))?;
                let sum = self.totals.entry(id()?).or_default();
                *sum = (sum.0 + totals.entries, sum.1 + totals.subdirs);
            }
            table::JOB => self.jobs += 1,
            table::GONE => {
                let gone = Gone::decode(value).map_err(|e| bad(&e))?;
                self.gone += usize::from(!gone.directory);
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that nothing is under way, every entry has its directory, and totals and link counts
    /// are those of the entries.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        if (self.prepared, self.jobs) != (0, 0) {
            return Err(format!("{} prepared, {} jobs are left", self.prepared, self.jobs));
        }
        let dirs: BTreeSet<InodeId> =
            self.entries.values().filter(|i| i.attr.is_dir()).map(|i| i.attr.id).collect();
        let mut counted: BTreeMap<InodeId, (u64, u64)> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut references: BTreeMap<InodeId, u32> = BTreeMap::new();
        for ((pid, name), inode) in &self.entries {
            if *pid != 0 && !dirs.contains(pid) {
                return Err(format!("{name} is in {pid:#x}, which is not there"));
            }
            let sum = counted.entry(*pid).or_default();
            *sum = (sum.0 + 1, sum.1 + u64::from(inode.attr.is_dir()));
            if inode.home_slot.is_some() {
                *references.entry(inode.attr.id).or_default() += 1;
            } else if !seen.insert(inode.attr.id) {
                return Err(format!("{name}: its inode {:#x} has two entries", inode.attr.id));
            }
        }
        let linked: BTreeMap<InodeId, u32> =
            self.attributes.iter().map(|(id, row)| (*id, row.attr.nlink)).collect();
        counted.remove(&0);
        let totals: BTreeMap<InodeId, (u64, u64)> =
            self.totals.iter().filter(|(_, t)| **t != (0, 0)).map(|(id, t)| (*id, *t)).collect();
        equal("link counts", &linked, &references)?;
        equal("totals", &totals, &counted)?;
        equal("number of inodes", &self.inodes, &((seen.len() + linked.len()) as u64))?;
        self.reach(&dirs)
    }

    fn reach(&self, dirs: &BTreeSet<InodeId>) -> Result<(), String> {
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
            if at != ROOT {
                return Err(format!("directory {dir:#x} is in a cycle"));
            }
        }
        Ok(())
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, is: &T, should: &T) -> Result<(), String> {
    match is == should {
        true => Ok(()),
        false => Err(format!("{what}: {is:x?}, and by the entries {should:x?}")),
    }
}
