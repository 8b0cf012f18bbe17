//! Listing what is to be packed. What many entries have in common is kept once.

use std::cmp::Ordering;
use std::path::Path;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::plan::{Extra, Item, Owner, Plan, Text, shown};
use super::source::{Entry, Source};
use crate::error::{Error, Result};
use crate::inode::Meta;

/// A plan that is being made, with what finds equal parts.
#[derive(Default)]
pub(super) struct Listing {
    pub(super) plan: Plan,
    dirs: HashTable<u32>,
    owners: HashTable<u32>,
}

fn hash_of(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    value.hash(&mut hasher);
    hasher.digest()
}

impl Listing {
    /// Adds an entry.
    ///
    /// # Errors
    /// Invalid: a kind of file that is not known, or one file too many.
    pub(super) fn add(&mut self, entry: Entry) -> Result<()> {
        let wrong = |what| Error::invalid(Path::new(&shown(&entry.path)), what);
        if entry.meta.kind().is_none() {
            return Err(wrong("a kind of file that is not known"));
        }
        if self.plan.items.len() >= u32::MAX as usize {
            return Err(wrong("too many files"));
        }
        let slash = entry.path.iter().rposition(|c| *c == b'/');
        let (dir, name) = match slash {
            None => (&[][..], &entry.path[..]),
            Some(at) => (&entry.path[..at], &entry.path[at + 1..]),
        };
        let dir = self.dir(dir);
        let name = Text::push(name, &mut self.plan.bytes);
        let Meta { mode, uid, gid, size, mtime, rdev, target, xattrs } = entry.meta;
        let owner = self.owner(Owner { mode, uid, gid, rdev, xattrs });
        let mut extra = 0;
        if entry.link != 0 || !target.is_empty() {
            self.plan.extras.push(Extra { link: entry.link, target });
            extra = self.plan.extras.len() as u32;
        }
        let ((mtime_s, mtime_ns), version) = (mtime, entry.version);
        let item = Item { size, mtime_s, version, name, mtime_ns, dir, owner, extra };
        self.plan.items.push(item);
        Ok(())
    }

    fn dir(&mut self, path: &[u8]) -> u32 {
        let Plan { dirs, bytes, items, .. } = &mut self.plan;
        // Most entries are in the directory of the one before.
        if let Some(last) = items.last()
            && dirs[last.dir as usize].of(bytes) == path
        {
            return last.dir;
        }
        let hash = xxh3_64(path);
        if let Some(n) = self.dirs.find(hash, |n| dirs[*n as usize].of(bytes) == path) {
            return *n;
        }
        let n = dirs.len() as u32;
        dirs.push(Text::push(path, bytes));
        self.dirs.insert_unique(hash, n, |n| xxh3_64(dirs[*n as usize].of(bytes)));
        n
    }

    fn owner(&mut self, owner: Owner) -> u32 {
        let owners = &mut self.plan.owners;
        let hash = hash_of(&owner);
        if let Some(n) = self.owners.find(hash, |n| owners[*n as usize] == owner) {
            return *n;
        }
        let n = owners.len() as u32;
        owners.push(owner);
        self.owners.insert_unique(hash, n, |n| hash_of(&owners[*n as usize]));
        n
    }
}

impl Plan {
    /// Lists a source.
    ///
    /// # Errors
    /// The source's; Invalid for a path that is there twice.
    pub fn of(source: &dyn Source) -> Result<Plan> {
        let mut listing = Listing::default();
        source.list(&mut |entry| listing.add(entry))?;
        let mut plan = listing.plan;
        let mut items = std::mem::take(&mut plan.items);
        items.sort_unstable_by(|a, b| plan.cmp(a, b));
        plan.items = items;
        for (n, pair) in plan.items.windows(2).enumerate() {
            if plan.cmp(&pair[0], &pair[1]) == Ordering::Equal {
                return Err(Error::invalid(
                    Path::new(&shown(&plan.path(n as u32))),
                    "listed twice",
                ));
            }
        }
        plan.check_ways()?;
        plan.find_links();
        Ok(plan)
    }
}
