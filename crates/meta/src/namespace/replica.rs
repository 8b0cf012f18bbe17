//! What a shard remembers of directories that other shards own. Bounded: a cold entry may be
//! dropped, the owner has the truth. Only directories are kept; that an entry is absent or a
//! symlink is never remembered (rule 8), since no broadcast announces the end of that.

use bytes::Bytes;
use quick_cache::Equivalent;
use quick_cache::unsync::Cache;
use rustc_hash::{FxBuildHasher, FxHashMap};
use saker_runtime::sim::mutation;
use saker_types::InodeId;
use saker_types::wire::EntryKey;

use super::dir::ResolvedDir;
use super::walk::LastWalk;

#[derive(Hash, PartialEq, Eq)]
struct Name(InodeId, Bytes);

#[derive(Hash)]
struct NameRef<'a>(InodeId, &'a [u8]);

impl Equivalent<Name> for NameRef<'_> {
    fn equivalent(&self, key: &Name) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

/// A fetch under way.
#[derive(Default)]
pub struct Fetching {
    /// An invalidation of the entry came after the fetch was sent: its answer is discarded.
    pub stale: bool,
}

/// The replica of one shard.
pub struct Replica {
    entries: Cache<Name, ResolvedDir, quick_cache::UnitWeighter, FxBuildHasher>,
    /// The way that was walked last.
    pub last_walk: LastWalk,
    /// Invalidations served. What a parked request keeps of an answer is as good as an entry
    /// only until the next one.
    pub invalidations: u64,
    /// Fetches under way; they remember invalidations for entries that are absent or evicted
    /// (rule 2).
    pub fetching: FxHashMap<(EntryKey, InodeId), Fetching>,
}

impl Replica {
    /// An empty replica of at most `bound` entries.
    pub fn new(bound: usize) -> Replica {
        Replica {
            entries: Cache::with(
                bound,
                bound as u64,
                Default::default(),
                FxBuildHasher,
                Default::default(),
            ),
            last_walk: LastWalk::default(),
            invalidations: 0,
            fetching: FxHashMap::default(),
        }
    }

    /// The entry, if it is known and valid.
    pub fn get(&self, pid: InodeId, name: &[u8]) -> Option<ResolvedDir> {
        self.entries.get(&NameRef(pid, name)).cloned()
    }

    /// All that is remembered: parent, name, directory.
    pub fn all(&self) -> Vec<(InodeId, Bytes, ResolvedDir)> {
        let entries = self.entries.iter();
        let entries = entries.map(|(name, dir)| (name.0, name.1.clone(), dir.clone()));
        entries.chain(self.last_walk.all()).collect()
    }

    /// The owner's answer.
    pub fn insert(&mut self, pid: InodeId, name: Bytes, dir: ResolvedDir) {
        self.entries.insert(Name(pid, name), dir);
    }

    /// Forgets an entry, and spoils the fetches of it that are under way.
    pub fn invalidate(&mut self, pid: InodeId, name: &[u8]) {
        self.invalidations += 1;
        if !mutation("a walk that outlives an invalidation") {
            self.last_walk.clear();
        }
        self.entries.remove(&NameRef(pid, name));
        for ((key, _), fetching) in &mut self.fetching {
            fetching.stale |= key.pid == pid && key.name == name;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalidation_spoils_fetches_of_entries_that_are_not_there() {
        let mut r = Replica::new(10);
        let key = |name: &'static [u8]| EntryKey { pid: 1, name: Bytes::from_static(name) };
        r.fetching.insert((key(b"a"), 0), Fetching::default());
        r.fetching.insert((key(b"b"), 0), Fetching::default());
        r.invalidate(1, b"a");
        assert!(r.fetching[&(key(b"a"), 0)].stale);
        assert!(!r.fetching[&(key(b"b"), 0)].stale);
    }

    #[test]
    fn entries_are_found_by_borrowed_names() {
        let mut r = Replica::new(10);
        let dir = ResolvedDir { id: 5, mode: 0o040_755, uid: 0, gid: 0, policy: 0, acls: None };
        r.insert(1, Bytes::from_static(b"d"), dir.clone());
        assert_eq!(r.get(1, b"d"), Some(dir));
        assert_eq!(r.get(2, b"d"), None);
        r.invalidate(1, b"d");
        assert_eq!(r.get(1, b"d"), None);
    }
}
