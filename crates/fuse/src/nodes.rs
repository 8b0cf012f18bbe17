//! The inodes that the kernel holds: node id = inode id, and where each was last known to be.
//!
//! The kernel counts the replies that named an inode, and gives the count back when it forgets
//! it; so the table is exactly as large as the kernel's cache, which the kernel bounds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use saker_runtime::telemetry::Gauge;
use saker_types::limits::COMPONENTS_MAX;
use saker_types::wire::Entry;
use saker_types::{Attr, Errno, Error, InodeId, Locator, ROOT, Result};

const SHARDS: usize = 64;

/// The table. All methods may be called from many threads.
pub(crate) struct Nodes {
    shards: [Mutex<HashMap<InodeId, Node>>; SHARDS],
    /// Inodes held, besides the root.
    held: Gauge,
}

struct Node {
    loc: Locator,
    /// `st_mode` as last seen.
    mode: u32,
    /// Replies that named it, less what was forgotten.
    lookups: u64,
    /// Pages that the kernel has cached hold data of this version or a later one.
    cached: Option<DataVersion>,
}

/// Which data a file holds: grows with each change of it. Only of files whose data is in their
/// row, where version and data change together. Chunks can change after the version: an append
/// has the owner grow the file before the data reaches the stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataVersion {
    data_version: u64,
    truncate_gen: u64,
    size: u64,
    mtime_ns: i64,
}

impl DataVersion {
    /// The version that an open saw; `None` where it says nothing.
    pub(crate) fn of(attr: &Attr) -> Option<DataVersion> {
        let Attr { data_version, truncate_gen, size, mtime_ns, .. } = *attr;
        (!attr.chunked).then_some(DataVersion { data_version, truncate_gen, size, mtime_ns })
    }
}

impl Nodes {
    /// A table with the root, which is never forgotten. `held` counts the others.
    pub(crate) fn new(held: Gauge) -> Nodes {
        let nodes = Nodes { shards: std::array::from_fn(|_| Mutex::default()), held };
        let root = Node { loc: Locator::root(), mode: 0o040_755, lookups: 1, cached: None };
        nodes.shard(ROOT).insert(ROOT, root);
        nodes
    }

    /// Where an inode is.
    ///
    /// # Errors
    /// ESTALE for one that the kernel does not hold.
    pub(crate) fn locate(&self, id: InodeId) -> Result<Locator> {
        self.shard(id).get(&id).map(|node| node.loc.clone()).ok_or_else(stale)
    }

    /// `st_mode` of an inode as last seen; 0 if the kernel does not hold it.
    pub(crate) fn mode(&self, id: InodeId) -> u32 {
        self.shard(id).get(&id).map_or(0, |node| node.mode)
    }

    /// A reply names this inode: the kernel holds it once more.
    pub(crate) fn hold(&self, entry: &Entry) {
        self.hold_as(&entry.loc, entry.attr.id, entry.attr.mode);
    }

    /// [`Nodes::hold`] for an item of a listing.
    pub(crate) fn hold_as(&self, loc: &Locator, id: InodeId, mode: u32) {
        let mut shard = self.shard(id);
        let fresh = || {
            self.held.add(1);
            Node { loc: owned(loc), mode, lookups: 0, cached: None }
        };
        let node = shard.entry(id).or_insert_with(fresh);
        node.lookups += 1;
        node.put(loc, mode);
    }

    /// Notes what a reply said of an inode, if the kernel holds it.
    pub(crate) fn refresh(&self, entry: &Entry) {
        if let Some(node) = self.shard(entry.attr.id).get_mut(&entry.attr.id) {
            node.put(&entry.loc, entry.attr.mode);
        }
    }

    /// An inode was moved, if the kernel holds it.
    pub(crate) fn moved(&self, loc: &Locator) {
        if let Some(node) = self.shard(loc.id).get_mut(&loc.id) {
            node.put(loc, node.mode);
        }
    }

    /// A file is opened at `version`: may the kernel keep the pages it has? If not, it will drop
    /// them before the open returns, and [`Nodes::filled`] tells when that is done. Until then
    /// no other open may keep them either: it could return before they are dropped.
    pub(crate) fn keep_pages(&self, id: InodeId, version: Option<DataVersion>) -> bool {
        let mut shard = self.shard(id);
        let Some(node) = shard.get_mut(&id) else { return false };
        let keep = version.is_some() && node.cached == version;
        if !keep {
            node.cached = None;
        }
        keep
    }

    /// A request came through a handle whose open at `version` kept no pages: those that the
    /// kernel has now were read after that open.
    pub(crate) fn filled(&self, id: InodeId, version: Option<DataVersion>) {
        if let Some(node) = self.shard(id).get_mut(&id) {
            node.cached = version;
        }
    }

    /// The kernel drops `count` of its references.
    pub(crate) fn forget(&self, id: InodeId, count: u64) {
        if id == ROOT {
            return;
        }
        let mut shard = self.shard(id);
        if let Some(node) = shard.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(count);
            if node.lookups == 0 {
                shard.remove(&id);
                self.held.add(-1);
            }
        }
    }

    /// The directories from below the root down to `dir`, inclusive; empty for the root. The
    /// kernel holds the parents of whatever it holds, so that the chain is whole.
    ///
    /// # Errors
    /// ESTALE when a parent is not held or the chain has a cycle (moves of other clients can
    /// leave an old parent behind).
    pub(crate) fn chain(&self, dir: InodeId) -> Result<Vec<Locator>> {
        let mut chain = Vec::new();
        let mut id = dir;
        while id != ROOT {
            if chain.len() >= COMPONENTS_MAX {
                return Err(stale());
            }
            let loc = self.locate(id)?;
            id = loc.pid;
            chain.push(loc);
        }
        chain.reverse();
        Ok(chain)
    }

    fn shard(&self, id: InodeId) -> MutexGuard<'_, HashMap<InodeId, Node>> {
        // The upper bits name the allocator: fold them in.
        let at = (id ^ (id >> 48)) as usize % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    fn put(&mut self, loc: &Locator, mode: u32) {
        self.mode = mode;
        if self.loc != *loc {
            self.loc = owned(loc);
        }
    }
}

/// A copy whose name is its own: names in replies are parts of a whole frame, which must not be
/// kept.
fn owned(loc: &Locator) -> Locator {
    Locator { name: Bytes::copy_from_slice(&loc.name), ..loc.clone() }
}

fn stale() -> Error {
    Error::new(Errno::ESTALE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    fn entry(pid: u64, name: &'static str, id: u64) -> Entry {
        let loc = Locator { pid, name: name.into(), id, home_slot: None };
        Entry { attr: Attr { id, mode: 0o040_700, ..Attr::default() }, loc, ..Entry::default() }
    }

    #[test]
    fn inodes_stay_until_all_references_are_given_back() {
        let nodes = Nodes::new(Gauge::default());
        for _ in 0..3 {
            nodes.hold(&entry(1, "a", 10));
        }
        nodes.forget(10, 2);
        assert_eq!(nodes.locate(10).unwrap().name, "a");
        assert_eq!(nodes.mode(10), 0o040_700);
        nodes.forget(10, 1);
        assert_eq!(nodes.locate(10).unwrap_err().errno(), Errno::ESTALE);
        assert_eq!(nodes.mode(10), 0);
        nodes.forget(10, 5);
        nodes.forget(ROOT, u64::MAX);
        assert_eq!(nodes.held.get(), 0);
        assert_eq!(nodes.locate(ROOT).unwrap(), Locator::root());
    }

    #[test]
    fn forgetting_more_than_was_held_does_not_wrap() {
        let nodes = Nodes::new(Gauge::default());
        nodes.hold(&entry(1, "a", 10));
        nodes.forget(10, 9);
        nodes.hold(&entry(1, "a", 10));
        nodes.forget(10, 1);
        assert_eq!(nodes.held.get(), 0);
    }

    #[test]
    fn chains_follow_moves() {
        let nodes = Nodes::new(Gauge::default());
        nodes.hold(&entry(1, "a", 10));
        nodes.hold(&entry(10, "b", 20));
        nodes.hold(&entry(20, "c", 30));
        let names = |id| -> Vec<Bytes> {
            nodes.chain(id).unwrap().into_iter().map(|loc| loc.name).collect()
        };
        assert_eq!(names(30), ["a", "b", "c"]);
        assert!(names(ROOT).is_empty());
        nodes.moved(&entry(1, "z", 20).loc);
        assert_eq!(names(30), ["z", "c"]);
        nodes.refresh(&entry(10, "y", 20));
        assert_eq!(names(30), ["a", "y", "c"]);
        nodes.forget(10, 1);
        assert_eq!(nodes.chain(30).unwrap_err().errno(), Errno::ESTALE);
        nodes.hold(&entry(30, "a", 10));
        assert_eq!(nodes.chain(30).unwrap_err().errno(), Errno::ESTALE, "a cycle");
    }

    #[test]
    fn what_is_not_held_is_not_added_by_news_of_it() {
        let nodes = Nodes::new(Gauge::default());
        nodes.refresh(&entry(1, "a", 10));
        nodes.moved(&entry(1, "a", 10).loc);
        assert_eq!(nodes.held.get(), 0);
    }

    #[test]
    fn pages_are_kept_only_when_they_were_read_at_this_version() {
        let nodes = Nodes::new(Gauge::default());
        nodes.hold(&entry(1, "f", 10));
        let version = |n| DataVersion::of(&Attr { data_version: n, ..Attr::default() });
        assert!(!nodes.keep_pages(10, version(1)), "nothing is known");
        assert!(!nodes.keep_pages(10, version(1)), "the first open may not have returned");
        nodes.filled(10, version(1));
        assert!(nodes.keep_pages(10, version(1)));
        assert!(!nodes.keep_pages(10, version(2)));
        assert!(!nodes.keep_pages(10, version(1)), "the pages are on their way out");
        nodes.filled(10, None);
        assert!(!nodes.keep_pages(10, None), "chunks tell nothing");
        nodes.filled(10, version(2));
        nodes.forget(10, 1);
        nodes.hold(&entry(1, "f", 10));
        assert!(!nodes.keep_pages(10, version(2)), "forgotten with its pages");
    }

    #[test]
    fn names_do_not_keep_the_frame_alive() {
        let frame = Bytes::from(vec![b'x'; 1 << 16]);
        let mut e = entry(1, "", 10);
        e.loc.name = frame.slice(0..3);
        let nodes = Nodes::new(Gauge::default());
        nodes.hold(&e);
        assert_eq!(nodes.locate(10).unwrap().name, "xxx");
        drop(e);
        assert!(frame.try_into_mut().is_ok(), "nobody else holds it");
    }

    #[test]
    fn counts_are_exact_under_contention() {
        let nodes = std::sync::Arc::new(Nodes::new(Gauge::default()));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let nodes = std::sync::Arc::clone(&nodes);
                std::thread::spawn(move || {
                    for i in 0..1000 {
                        nodes.hold(&entry(1, "f", 10 + i % 7));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        for id in 10..17 {
            let held = if id < 16 { 4 * 143 } else { 4 * 142 };
            nodes.forget(id, held - 1);
            assert!(nodes.locate(id).is_ok());
            nodes.forget(id, 1);
            assert!(nodes.locate(id).is_err());
        }
    }
}
