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
use crate::hint::{Hint, Rest, Step};
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
    /// As which user and group it acts.
    who: (u32, u32),
    walks: Walks,
    /// What it has looked up to open it.
    opened: Option<Opened>,
    /// What its last LOOKUP has found, if that was, or may have been, to be renamed.
    found: Option<NodeId>,
    /// What its last LOOKUP has told the attributes of, and when those were asked for.
    told: Option<(NodeId, Asked)>,
}

/// The last two walks, the later one first: rename(2) has two.
#[derive(Clone, Copy, Default)]
struct Walks([Walk; 2]);

#[derive(Clone, Copy, Default)]
struct Walk {
    /// Where it began.
    start: NodeId,
    /// How far it is.
    at: NodeId,
    /// Names that it has passed.
    steps: u32,
    /// It goes back, or into a symlink: where its next step is cannot be told from the last one's.
    turns: bool,
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
    pub(crate) fn start(&self, caller: &InHeader, dir: NodeId) -> NodeId {
        if !self.follows(caller.pid) {
            return dir;
        }
        let mut shard = self.shard(caller.pid);
        let thread = shard.get(caller.pid).filter(|thread| thread.who == who(caller));
        let walks = thread.map(|thread| thread.walks).unwrap_or_default();
        walks.longest_to(dir).map_or(dir, |at| walks.0[at].start)
    }

    /// A walk is in `dir`, and may have begun there. Where it did.
    pub(crate) fn step(&self, caller: &InHeader, dir: NodeId, hint: Option<Hint>) -> NodeId {
        if !self.follows(caller.pid) {
            return dir;
        }
        let mut shard = self.shard(caller.pid);
        let thread = shard.entry(caller.pid);
        // Nobody becomes somebody else in the middle of a syscall.
        if thread.who != who(caller) {
            *thread = Thread { who: who(caller), ..Thread::default() };
        }
        let walks = &mut thread.walks;
        let beside = hint.is_some_and(|hint| hint.beside);
        let known = match hint {
            Some(Hint { first: true, .. }) => None,
            // Only when both are walked the last names are looked up.
            Some(Hint { step: Step::Last(_), .. }) if beside => walks.longest_to(dir),
            _ => walks.all_to(dir).next(),
        };
        let goes_on = walks.0[0].turns && !hint.is_some_and(|hint| hint.first);
        match known {
            Some(known) => walks.resume(known, beside),
            None if goes_on => walks.0[0] = Walk { steps: walks.0[0].steps, ..Walk::begin(dir) },
            None => walks.begin(dir, beside),
        }
        let [walk, _] = &mut walks.0;
        let step = hint.map(|hint| hint.step);
        walk.turns |= matches!(step, Some(Step::Through(Rest::DotDot | Rest::InLink)));
        walk.start
    }

    /// The thread reads a symlink, and may go on from there.
    pub(crate) fn link_read(&self, tid: u32) {
        if self.follows(tid) {
            let mut shard = self.shard(tid);
            let [walk, _] = &mut shard.entry(tid).walks.0;
            walk.turns = true;
        }
    }

    /// The walk goes on to a node.
    pub(crate) fn pass(&self, tid: u32, node: NodeId) {
        if self.follows(tid) {
            let mut shard = self.shard(tid);
            let [walk, _] = &mut shard.entry(tid).walks.0;
            (walk.at, walk.steps) = (node, walk.steps.saturating_add(1));
        }
    }

    /// The thread has looked up what it will open, and it is open.
    pub(crate) fn opened(&self, tid: u32, opened: Opened) {
        if !self.follows(tid) {
            return;
        }
        let before = self.shard(tid).entry(tid).opened.replace(opened);
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
        if !self.follows(caller.pid) {
            return None;
        }
        let mut shard = self.shard(caller.pid);
        let thread = shard.get(caller.pid)?;
        let (is_same, opened) = (thread.who == who(caller), thread.opened.take());
        drop(shard);
        let opened = opened?;
        let same = is_same && opened.entry.attr.id == inode && opened.flags == flags;
        (same && opened.asked.age() <= OPEN_AGE_MAX).then_some(opened)
    }
}

fn who(caller: &InHeader) -> (u32, u32) {
    (caller.uid, caller.gid)
}

impl Walk {
    fn begin(dir: NodeId) -> Walk {
        Walk { start: dir, at: dir, steps: 0, turns: false }
    }
}

impl Walks {
    /// Of a rename's walks to one directory the one that passes more. A caller who may go that way
    /// may go the other: it is a part of it.
    fn longest_to(&self, dir: NodeId) -> Option<usize> {
        self.all_to(dir).reduce(|a, b| if self.0[b].steps > self.0[a].steps { b } else { a })
    }

    /// The walks that have come to `dir`, the later one first.
    fn all_to(&self, dir: NodeId) -> impl Iterator<Item = usize> {
        (0..self.0.len()).filter(move |&at| self.0[at].at == dir)
    }

    /// A walk begins in `dir`. `beside`: the last one goes on, wherever it is; else one that came here
    /// is over.
    fn begin(&mut self, dir: NodeId, beside: bool) {
        let other = self.0.into_iter().find(|walk| beside || walk.at != dir);
        self.0 = [Walk::begin(dir), other.unwrap_or_default()];
    }

    /// This walk goes on. `beside`: the other one, too, wherever it is; else one that came here is
    /// over.
    fn resume(&mut self, at: usize, beside: bool) {
        self.0[..=at].rotate_right(1);
        let [walk, other] = &mut self.0;
        if !beside && other.at == walk.at {
            *other = Walk::default();
        }
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
    use crate::hint::Intent;
    use zerocopy::FromZeros as _;

    const FIRST: Option<Hint> = hint(THROUGH, true, false);
    const LATER: Option<Hint> = hint(THROUGH, false, false);
    const THROUGH: Step = Step::Through(Rest::Names);
    const SOURCE: Step = Step::Last(Intent::RenameSource);
    const TARGET: Step = Step::Last(Intent::RenameTarget);

    const fn hint(step: Step, first: bool, beside: bool) -> Option<Hint> {
        Some(Hint { step, first, beside, reval: false })
    }

    fn by(tid: u32) -> InHeader {
        InHeader { pid: tid, ..InHeader::new_zeroed() }
    }

    /// A thread walks from node 1 by way of 20 to 30.
    fn walked() -> Threads {
        let threads = Threads::new(true);
        threads.step(&by(7), 1, FIRST);
        threads.pass(7, 20);
        threads.step(&by(7), 20, LATER);
        threads.pass(7, 30);
        threads
    }

    #[test]
    fn a_walk_is_followed_from_its_start() {
        let threads = Threads::new(true);
        assert_eq!(threads.start(&by(7), 50), 50, "nothing is known");
        assert_eq!(threads.step(&by(7), 1, FIRST), 1);
        threads.pass(7, 20);
        assert_eq!(threads.step(&by(7), 20, LATER), 1);
        threads.pass(7, 30);
        assert_eq!((threads.start(&by(7), 30), threads.start(&by(7), 20)), (1, 20));
        assert_eq!(threads.start(&by(8), 30), 30, "another thread");
        assert_eq!(threads.step(&by(7), 30, FIRST), 30, "a path that begins there");
        assert_eq!(threads.start(&by(7), 30), 30);
    }

    #[test]
    fn who_cannot_be_told_apart_begins_where_it_is() {
        for (threads, tid) in [(Threads::new(true), NOBODY), (Threads::new(false), 7)] {
            assert_eq!(threads.step(&by(tid), 1, FIRST), 1);
            threads.pass(tid, 20);
            assert_eq!((threads.step(&by(tid), 20, LATER), threads.start(&by(tid), 20)), (20, 20));
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
        let threads = walked();
        threads.step(&by(7), 5, hint(THROUGH, true, true));
        threads.pass(7, 40);
        let starts = || (threads.start(&by(7), 30), threads.start(&by(7), 40));
        assert_eq!(starts(), (1, 5));
        assert_eq!(threads.step(&by(7), 30, hint(SOURCE, false, true)), 1);
        assert_eq!(threads.step(&by(7), 40, hint(TARGET, false, true)), 5);
        assert_eq!(starts(), (1, 5));
    }

    #[test]
    fn a_rename_within_a_directory_goes_by_the_longer_of_its_paths() {
        // From an open directory to a path; then something else from there.
        let threads = walked();
        assert_eq!(threads.step(&by(7), 30, hint(SOURCE, true, true)), 30);
        assert_eq!(threads.start(&by(7), 30), 1);
        assert_eq!(threads.step(&by(7), 30, hint(TARGET, false, true)), 1);
        assert_eq!(threads.start(&by(7), 30), 1);
        assert_eq!(threads.step(&by(7), 30, FIRST), 30);
        assert_eq!(threads.start(&by(7), 30), 30);
        // From a path to an open directory.
        let threads = walked();
        assert_eq!(threads.step(&by(7), 30, hint(SOURCE, false, false)), 1);
        assert_eq!(threads.step(&by(7), 30, hint(TARGET, true, true)), 30);
        assert_eq!(threads.start(&by(7), 30), 1);
        // Both pass names, and the shorter is walked last.
        let threads = walked();
        assert_eq!(threads.step(&by(7), 20, hint(THROUGH, true, true)), 20);
        threads.pass(7, 30);
        assert_eq!(threads.step(&by(7), 30, hint(SOURCE, false, true)), 1);
        assert_eq!(threads.step(&by(7), 30, hint(TARGET, false, true)), 1);
        assert_eq!(threads.start(&by(7), 30), 1);
    }

    #[test]
    fn a_target_may_begin_where_the_source_ends() {
        let threads = walked();
        assert_eq!(threads.step(&by(7), 30, hint(THROUGH, true, true)), 30);
        threads.pass(7, 40);
        assert_eq!(threads.step(&by(7), 30, hint(SOURCE, false, true)), 1);
        assert_eq!(threads.step(&by(7), 40, hint(TARGET, false, true)), 30);
        assert_eq!((threads.start(&by(7), 30), threads.start(&by(7), 40)), (1, 30));
    }

    #[test]
    fn both_paths_of_a_rename_may_go_the_same_way() {
        let threads = Threads::new(true);
        for _ in 0..2 {
            threads.step(&by(7), 1, hint(THROUGH, true, true));
            threads.pass(7, 20);
        }
        threads.step(&by(7), 20, hint(THROUGH, false, true));
        threads.pass(7, 30);
        assert_eq!(threads.step(&by(7), 20, hint(SOURCE, false, true)), 1);
        assert_eq!(threads.step(&by(7), 30, hint(TARGET, false, true)), 1);
    }

    #[test]
    fn a_target_that_turns_leaves_the_source_alone() {
        const BACK: Step = Step::Through(Rest::DotDot);
        let threads = walked();
        threads.step(&by(7), 5, hint(BACK, true, true));
        threads.pass(7, 40);
        assert_eq!(threads.step(&by(7), 5, hint(THROUGH, false, true)), 5, "../");
        threads.pass(7, 50);
        threads.link_read(7);
        assert_eq!(threads.step(&by(7), 6, hint(THROUGH, false, true)), 6);
        threads.pass(7, 60);
        assert_eq!((threads.start(&by(7), 30), threads.start(&by(7), 60)), (1, 6));
        // A path of which the kernel knew the first names.
        assert_eq!(threads.step(&by(7), 70, hint(THROUGH, false, true)), 70);
        assert_eq!((threads.start(&by(7), 30), threads.start(&by(7), 60)), (30, 6));
    }

    #[test]
    fn what_was_walked_before_is_over() {
        // By another path to the same directory.
        let threads = walked();
        assert_eq!(threads.step(&by(7), 20, FIRST), 20);
        threads.pass(7, 30);
        assert_eq!(threads.step(&by(7), 30, LATER), 20);
        assert_eq!(threads.start(&by(7), 30), 20);
        // From the directory itself; a rename's names may both begin there.
        let threads = walked();
        for step in [SOURCE, TARGET] {
            assert_eq!(threads.step(&by(7), 30, hint(step, true, false)), 30);
            assert_eq!(threads.start(&by(7), 30), 30);
        }
        // A rename to somewhere else.
        let threads = walked();
        threads.step(&by(7), 5, FIRST);
        threads.pass(7, 40);
        threads.step(&by(7), 30, hint(SOURCE, true, true));
        assert_eq!((threads.start(&by(7), 30), threads.start(&by(7), 40)), (30, 5));
        // It goes on in its own walk, not in a longer one.
        let threads = walked();
        threads.step(&by(7), 20, hint(THROUGH, true, true));
        threads.pass(7, 30);
        assert_eq!(threads.step(&by(7), 30, hint(THROUGH, false, true)), 20);
        // As another user.
        let threads = walked();
        let other = InHeader { uid: 1, ..by(7) };
        assert_eq!((threads.start(&other, 30), threads.start(&by(7), 30)), (30, 1));
        assert_eq!(threads.step(&other, 30, None), 30);
        assert_eq!(threads.step(&by(7), 30, None), 30);
    }

    #[test]
    fn who_is_busy_is_not_forgotten() {
        let threads = Threads::new(true);
        threads.step(&by(16), 1, FIRST);
        threads.pass(16, 20);
        let others = |from: u32| {
            for n in from..from + THREADS_MAX as u32 {
                threads.step(&by(n * SHARDS as u32), 9, FIRST);
            }
        };
        others(2);
        assert_eq!(threads.start(&by(16), 20), 1);
        others(10_000);
        assert_eq!(threads.start(&by(16), 20), 1);
        others(20_000);
        others(30_000);
        others(40_000);
        assert_eq!(threads.start(&by(16), 20), 20, "forgotten at last");
        let shard = threads.shard(0);
        assert!(shard.young.len() + shard.old.len() <= 2 * THREADS_MAX);
    }
}
