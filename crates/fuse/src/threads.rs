//! What threads are in the middle of: walks, and opens.
//!
//! A path is a row of LOOKUPs, which the kernel sends one by one. Those of one thread belong
//! together: the walk begins in some directory, and what it meets is named by the path from there.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use saker_client::{File, OpenFlags};
use saker_types::InodeId;
use saker_types::wire::Entry;

use crate::abi::InHeader;
use crate::changes::Asked;
use crate::nodes::NodeId;
use crate::ops::OPEN_AGE_MAX;

/// The id of threads in other pid namespaces, which are not told apart: none is remembered.
const NOBODY: u32 = 0;
const SHARDS: usize = 16;
/// Threads that are remembered, in each shard, after which those are forgotten that did nothing
/// since as many others came. Who is forgotten within one syscall walks from where it is.
const THREADS_MAX: usize = 256;

/// The threads, by their ids.
pub(crate) struct Threads {
    shards: [Mutex<Shard>; SHARDS],
    /// There are hints; without them every LOOKUP stands for itself.
    followed: bool,
}

#[derive(Default)]
struct Shard {
    young: FxHashMap<u32, Thread>,
    old: FxHashMap<u32, Thread>,
}

/// One thread.
#[derive(Default)]
struct Thread {
    /// The last two walks, the later one first: rename(2) has two.
    walks: [Walk; 2],
    /// What it has looked up to open it, as which user and group.
    opened: Option<((u32, u32), Opened)>,
    /// What its last LOOKUP has found, if that was, or may have been, to be renamed.
    found: Option<NodeId>,
    /// What its last LOOKUP has told the attributes of, and when those were asked for.
    told: Option<(NodeId, Asked)>,
}

#[derive(Clone, Copy, Default)]
struct Walk {
    /// Where it began.
    start: NodeId,
    /// How far it is.
    at: NodeId,
}

/// What was opened, and what the server said of it.
pub(crate) struct Opened {
    pub(crate) flags: OpenFlags,
    pub(crate) file: File,
    pub(crate) entry: Entry,
    pub(crate) asked: Asked,
}

impl Threads {
    /// Knows nobody. `followed`: there will be hints.
    pub(crate) fn new(followed: bool) -> Threads {
        Threads { shards: Default::default(), followed }
    }

    /// Is this thread remembered?
    fn follows(&self, tid: u32) -> bool {
        self.followed && tid != NOBODY
    }

    fn shard(&self, tid: u32) -> MutexGuard<'_, Shard> {
        self.shards[tid as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the walk began that has come to `dir`; there, if none is known.
    pub(crate) fn start(&self, tid: u32, dir: NodeId) -> NodeId {
        if !self.follows(tid) {
            return dir;
        }
        let mut shard = self.shard(tid);
        let walks = shard.get(tid).map(|thread| thread.walks).unwrap_or_default();
        walks.iter().find(|walk| walk.at == dir).map_or(dir, |walk| walk.start)
    }

    /// A walk is in `dir`, and may have begun there. Where it did.
    pub(crate) fn step(&self, tid: u32, dir: NodeId, first: bool) -> NodeId {
        if !self.follows(tid) {
            return dir;
        }
        let mut shard = self.shard(tid);
        let walks = &mut shard.entry(tid).walks;
        match walks.iter().position(|walk| walk.at == dir) {
            Some(known) => walks[..=known].rotate_right(1),
            None => {
                walks.rotate_right(1);
                walks[0] = Walk { start: dir, at: dir };
            }
        }
        if first {
            walks[0].start = dir;
        }
        walks[0].start
    }

    /// The walk goes on to a node.
    pub(crate) fn pass(&self, tid: u32, node: NodeId) {
        if self.follows(tid) {
            self.shard(tid).entry(tid).walks[0].at = node;
        }
    }

    /// The thread has looked up what it will open, and it is open.
    pub(crate) fn opened(&self, caller: &InHeader, opened: Opened) {
        let InHeader { pid: tid, uid, gid, .. } = *caller;
        if !self.follows(tid) {
            return;
        }
        let before = self.shard(tid).entry(tid).opened.replace(((uid, gid), opened));
        // Not under the lock: it may be the file's end.
        drop(before);
    }

    /// The thread looks up something else: what it has looked up to open it, it did not open.
    /// Returns what its last LOOKUP has found at a server.
    pub(crate) fn next(&self, tid: u32) -> Option<NodeId> {
        if !self.follows(tid) {
            return None;
        }
        let mut shard = self.shard(tid);
        let thread = shard.get(tid)?;
        let (opened, found) = (thread.opened.take(), thread.found.take());
        thread.told = None;
        drop(shard);
        drop(opened);
        found
    }

    /// The thread's LOOKUP has found this at a server.
    pub(crate) fn found(&self, tid: u32, node: NodeId) {
        if self.follows(tid) {
            self.shard(tid).entry(tid).found = Some(node);
        }
    }

    /// The thread's LOOKUP has told the attributes of this, as a server gave them.
    pub(crate) fn told(&self, tid: u32, node: NodeId, asked: Asked) {
        if self.follows(tid) {
            self.shard(tid).entry(tid).told = Some((node, asked));
        }
    }

    /// The thread asks for the attributes of this. When they were asked for if its last LOOKUP has
    /// told them; once.
    pub(crate) fn asks(&self, tid: u32, node: NodeId) -> Option<Asked> {
        if !self.follows(tid) {
            return None;
        }
        let (told, asked) = self.shard(tid).get(tid)?.told.take()?;
        (told == node).then_some(asked)
    }

    /// The thread opens this inode. What it has looked up for that long ago, or as somebody else, was
    /// for an open that never came.
    pub(crate) fn take(
        &self,
        caller: &InHeader,
        inode: InodeId,
        flags: OpenFlags,
    ) -> Option<Opened> {
        let InHeader { pid: tid, uid, gid, .. } = *caller;
        let (who, opened) =
            self.follows(tid).then(|| self.shard(tid).get(tid)?.opened.take())??;
        let same = who == (uid, gid) && opened.entry.attr.id == inode && opened.flags == flags;
        (same && opened.asked.age() <= OPEN_AGE_MAX).then_some(opened)
    }
}

impl Shard {
    fn get(&mut self, tid: u32) -> Option<&mut Thread> {
        if !self.young.contains_key(&tid) {
            let thread = self.old.remove(&tid)?;
            self.young.insert(tid, thread);
        }
        self.young.get_mut(&tid)
    }

    fn entry(&mut self, tid: u32) -> &mut Thread {
        if self.young.len() >= THREADS_MAX && !self.young.contains_key(&tid) {
            let thread = self.old.remove(&tid);
            self.old = std::mem::take(&mut self.young);
            self.young.extend(thread.map(|thread| (tid, thread)));
        }
        if let Some(thread) = self.old.remove(&tid) {
            self.young.insert(tid, thread);
        }
        self.young.entry(tid).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Changes;

    #[test]
    fn a_walk_is_followed_from_its_start() {
        let threads = Threads::new(true);
        assert_eq!(threads.start(7, 50), 50, "nothing is known");
        assert_eq!(threads.step(7, 1, true), 1);
        threads.pass(7, 20);
        assert_eq!(threads.step(7, 20, false), 1);
        threads.pass(7, 30);
        assert_eq!((threads.start(7, 30), threads.start(7, 20)), (1, 20));
        assert_eq!(threads.start(8, 30), 30, "another thread");
        assert_eq!(threads.step(7, 30, true), 30, "a path that begins there");
        assert_eq!(threads.start(7, 30), 30);
    }

    #[test]
    fn who_cannot_be_told_apart_begins_where_it_is() {
        for (threads, tid) in [(Threads::new(true), NOBODY), (Threads::new(false), 7)] {
            assert_eq!(threads.step(tid, 1, true), 1);
            threads.pass(tid, 20);
            assert_eq!((threads.step(tid, 20, false), threads.start(tid, 20)), (20, 20));
            assert!(threads.shard(tid).young.is_empty());
        }
    }

    #[test]
    fn what_a_lookup_told_counts_once() {
        let (threads, changes) = (Threads::new(true), Changes::default());
        threads.told(7, 20, changes.ask());
        assert!(threads.asks(8, 20).is_none(), "another thread");
        assert!(threads.asks(7, 20).is_some());
        assert!(threads.asks(7, 20).is_none(), "it may be another syscall");
        threads.told(7, 20, changes.ask());
        assert!(threads.asks(7, 30).is_none(), "another node");
        assert!(threads.asks(7, 20).is_none());
        threads.told(7, 20, changes.ask());
        threads.next(7);
        assert!(threads.asks(7, 20).is_none(), "it looked for something else since");
    }

    #[test]
    fn the_two_paths_of_a_rename_are_both_known() {
        let threads = Threads::new(true);
        threads.step(7, 1, true);
        threads.pass(7, 20);
        threads.step(7, 5, true);
        threads.pass(7, 30);
        assert_eq!((threads.start(7, 20), threads.start(7, 30)), (1, 5));
        assert_eq!(threads.step(7, 20, false), 1, "the source's last name");
        assert_eq!(threads.step(7, 30, false), 5, "the target's");
        assert_eq!((threads.start(7, 20), threads.start(7, 30)), (1, 5));
    }

    #[test]
    fn who_is_busy_is_not_forgotten() {
        let threads = Threads::new(true);
        threads.step(16, 1, true);
        threads.pass(16, 20);
        let others = |from: u32| {
            for n in from..from + THREADS_MAX as u32 {
                threads.step(n * SHARDS as u32, 9, true);
            }
        };
        others(2);
        assert_eq!(threads.start(16, 20), 1);
        others(10_000);
        assert_eq!(threads.start(16, 20), 1);
        others(20_000);
        others(30_000);
        others(40_000);
        assert_eq!(threads.start(16, 20), 20, "forgotten at last");
        let shard = threads.shard(0);
        assert!(shard.young.len() + shard.old.len() <= 2 * THREADS_MAX);
    }
}
