//! What threads are in the middle of: walks, and opens.
//!
//! A path is a row of LOOKUPs, which the kernel sends one by one. Those of one thread belong
//! together ([`Walk`]).

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use saker_client::{File, OpenFlags};
use saker_fuse::abi::InHeader;
use saker_types::InodeId;
use saker_types::wire::Entry;

use crate::changes::Asked;
use crate::names::hint::{Hint, Which};
use crate::names::nodes::FuseNodeId;
use crate::names::walk::{Walk, WalkStep, Walks};
use crate::ops::OPEN_AGE_MAX;

/// The id of threads in other pid namespaces, which are not told apart: none is remembered.
const NOBODY: u32 = 0;
const SHARDS: usize = 16;
/// Threads that are remembered, in each shard, after which those are forgotten that did nothing
/// since as many others came. Who is forgotten within one syscall walks from where it is.
const THREADS_MAX: usize = 256;

/// The threads, by their ids.
pub(crate) struct Threads {
    shards: [Mutex<ThreadStripe>; SHARDS],
    /// There are hints; without them every LOOKUP stands for itself.
    followed: bool,
}

#[derive(Default)]
struct ThreadStripe {
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
    found: Option<FuseNodeId>,
    /// The name that it has looked up last, and the node that the kernel was told that it is.
    last: Option<(FuseNodeId, Bytes, FuseNodeId)>,
    /// The name of a directory that it could not remove, for it leads elsewhere.
    elsewhere: Option<(FuseNodeId, Bytes)>,
    /// What its last path has led to, in its first walk.
    ended: Option<FuseNodeId>,
    /// What its last LOOKUP has told the attributes of, and when those were asked for.
    told: Option<(FuseNodeId, Asked)>,
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

    fn shard(&self, tid: u32) -> MutexGuard<'_, ThreadStripe> {
        self.shards[tid as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The walk that has come to `dir`, the last one if several have; one from there, if none is known.
    pub(crate) fn way(&self, caller: &InHeader, dir: FuseNodeId) -> Walk {
        self.with(caller, |walks| walks.way(dir)).unwrap_or_else(|| Walk::from(dir))
    }

    /// The walk of one of a rename's paths, if it has come to `dir`; else one from there.
    pub(crate) fn way_of(&self, caller: &InHeader, which: Which, dir: FuseNodeId) -> Walk {
        let known = self.with(caller, |walks| walks.way_of(which, dir));
        known.unwrap_or_else(|| Walk::from(dir))
    }

    /// If both paths of a rename lead to `dir`: the walk of the second.
    pub(crate) fn second_to(&self, caller: &InHeader, dir: FuseNodeId) -> Option<Walk> {
        self.with(caller, |walks| walks.second_to(dir))?
    }

    /// Has one of the thread's walks passed this directory, unasked, by another name than this?
    pub(crate) fn passed_by_another(
        &self,
        caller: &InHeader,
        node: FuseNodeId,
        name: (FuseNodeId, &Bytes),
    ) -> bool {
        self.with(caller, |walks| walks.passed_by_another(node, name)).unwrap_or_default()
    }

    /// A server has found the last name of the thread's path, or that it is free.
    pub(crate) fn end(&self, caller: &InHeader) {
        self.with(caller, Walks::end);
    }

    /// The thread's LOOKUP is answered ESTALE. `held`: the kernel has the name.
    pub(crate) fn refused(&self, caller: &InHeader, held: bool) {
        self.with(caller, |walks| walks.refused(held));
    }

    fn with<T>(&self, caller: &InHeader, f: impl FnOnce(&mut Walks) -> T) -> Option<T> {
        if !self.follows(caller.pid) {
            return None;
        }
        let mut shard = self.shard(caller.pid);
        let thread = shard.get(caller.pid).filter(|thread| thread.who == who(caller))?;
        Some(f(&mut thread.walks))
    }

    /// A walk is in `dir`, and may have begun there: as far as it is.
    pub(crate) fn step(&self, caller: &InHeader, dir: FuseNodeId, hint: Option<Hint>) -> Walk {
        if !self.follows(caller.pid) {
            return Walk::from(dir);
        }
        let mut shard = self.shard(caller.pid);
        let thread = shard.entry(caller.pid);
        // Nobody becomes somebody else in the middle of a syscall.
        if thread.who != who(caller) {
            *thread = Thread { who: who(caller), ..Thread::default() };
        }
        thread.walks.step(dir, hint)
    }

    /// The walk goes on.
    pub(crate) fn pass(&self, tid: u32, step: WalkStep) {
        if self.follows(tid) {
            self.shard(tid).entry(tid).walks.pass(step);
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
    pub(crate) fn next(&self, tid: u32) -> Option<FuseNodeId> {
        if tid == NOBODY {
            return None;
        }
        let mut shard = self.shard(tid);
        let thread = shard.get(tid)?;
        thread.last = None;
        let (opened, found) = (thread.opened.take(), thread.found.take());
        thread.told = None;
        drop(shard);
        drop(opened);
        found
    }

    /// The thread's LOOKUP has found this at a server.
    pub(crate) fn found(&self, tid: u32, node: FuseNodeId) {
        if self.follows(tid) {
            self.shard(tid).entry(tid).found = Some(node);
        }
    }

    /// The thread's LOOKUP of a name is told this node.
    pub(crate) fn told_of(&self, tid: u32, dir: FuseNodeId, name: &Bytes, node: FuseNodeId) {
        if tid != NOBODY {
            self.shard(tid).entry(tid).last = Some((dir, name.clone(), node));
        }
    }

    /// The node that the thread's last LOOKUP was told, if that was this name's.
    pub(crate) fn told_last(&self, tid: u32, dir: FuseNodeId, name: &Bytes) -> Option<FuseNodeId> {
        if tid == NOBODY {
            return None;
        }
        let mut shard = self.shard(tid);
        let (of, last, node) = shard.get(tid)?.last.as_ref()?;
        (*of == dir && last == name).then_some(*node)
    }

    /// The thread could not remove or replace the directory of this name, for the name leads elsewhere. The
    /// kernel walks again, once.
    pub(crate) fn is_elsewhere(&self, tid: u32, dir: FuseNodeId, name: &Bytes) {
        if tid != NOBODY {
            self.shard(tid).entry(tid).elsewhere = Some((dir, name.clone()));
        }
    }

    /// Was that what the thread's last attempt to remove or replace a directory met?
    pub(crate) fn was_elsewhere(&self, tid: u32, dir: FuseNodeId, name: &Bytes) -> bool {
        let before = match tid != NOBODY {
            true => self.shard(tid).get(tid).and_then(|thread| thread.elsewhere.take()),
            false => None,
        };
        before.is_some_and(|(of, last)| of == dir && last == name)
    }

    /// The thread's path has led to this. `again`: in its second walk.
    pub(crate) fn ended(&self, tid: u32, node: FuseNodeId, again: bool) {
        if self.follows(tid) {
            self.shard(tid).entry(tid).ended = (!again).then_some(node);
        }
    }

    /// Has the thread's path led to this, so that it would walk again if that is gone?
    pub(crate) fn may_walk_again(&self, tid: u32, node: FuseNodeId) -> bool {
        if tid == NOBODY {
            return false;
        }
        let mut shard = self.shard(tid);
        let Some(thread) = shard.get(tid) else { return false };
        match self.followed {
            true => thread.ended == Some(node),
            // Without hints what was looked up last is the end of a path, or may be. It is said once.
            false => thread.last.take_if(|(_, _, told)| *told == node).is_some(),
        }
    }

    /// The thread's LOOKUP has told the attributes of this, as a server gave them.
    pub(crate) fn told(&self, tid: u32, node: FuseNodeId, asked: Asked) {
        if self.follows(tid) {
            self.shard(tid).entry(tid).told = Some((node, asked));
        }
    }

    /// The thread asks for the attributes of this. When they were asked for if its last LOOKUP has
    /// told them; once.
    pub(crate) fn asks(&self, tid: u32, node: FuseNodeId) -> Option<Asked> {
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

impl ThreadStripe {
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
    use crate::names::hint::{self, Rest};
    use zerocopy::FromZeros as _;

    const FIRST: Option<Hint> = hint(Which::First, true, false);
    const LATER: Option<Hint> = hint(Which::First, false, false);

    /// Of a rename's paths; what is wanted of the name does not matter.
    const fn hint(path: Which, first: bool, beside: bool) -> Option<Hint> {
        let step = hint::PathStep::Through(Rest::Names);
        Some(Hint { step, first, path: Some(path), beside, reval: false })
    }

    const fn source(first: bool, beside: bool) -> Option<Hint> {
        hint(Which::First, first, beside)
    }

    const fn target(first: bool, beside: bool) -> Option<Hint> {
        hint(Which::Second, first, beside)
    }

    fn either(first: bool) -> Option<Hint> {
        Some(Hint { path: None, ..hint(Which::First, first, !first)? })
    }

    /// From where a rename between two directories names its source and its target.
    fn rename(threads: &Threads, from: FuseNodeId, to: FuseNodeId) -> (FuseNodeId, FuseNodeId) {
        let start = |which, dir| threads.way_of(&by(7), which, dir).start;
        (start(Which::First, from), start(Which::Second, to))
    }

    /// Where the walk began that is in `dir` now.
    fn step(
        threads: &Threads,
        caller: &InHeader,
        dir: FuseNodeId,
        hint: Option<Hint>,
    ) -> FuseNodeId {
        threads.step(caller, dir, hint).start
    }

    fn start(threads: &Threads, caller: &InHeader, dir: FuseNodeId) -> FuseNodeId {
        threads.way(caller, dir).start
    }

    fn pass(threads: &Threads, tid: u32, node: FuseNodeId) {
        let name = bytes::Bytes::from_static(b"n");
        threads.pass(tid, WalkStep { node, name, id: 0, found: false, unhinted: false });
    }

    fn by(tid: u32) -> InHeader {
        InHeader { pid: tid, ..InHeader::new_zeroed() }
    }

    /// A thread walks from node 1 by way of 20 to 30.
    fn walked() -> Threads {
        let threads = Threads::new(true);
        step(&threads, &by(7), 1, FIRST);
        pass(&threads, 7, 20);
        step(&threads, &by(7), 20, LATER);
        pass(&threads, 7, 30);
        threads
    }

    #[test]
    fn a_walk_is_followed_from_its_start() {
        let threads = Threads::new(true);
        assert_eq!(start(&threads, &by(7), 50), 50, "nothing is known");
        assert_eq!(step(&threads, &by(7), 1, FIRST), 1);
        pass(&threads, 7, 20);
        assert_eq!(step(&threads, &by(7), 20, LATER), 1);
        pass(&threads, 7, 30);
        assert_eq!((start(&threads, &by(7), 30), start(&threads, &by(7), 20)), (1, 20));
        assert_eq!(start(&threads, &by(8), 30), 30, "another thread");
        assert_eq!(step(&threads, &by(7), 30, FIRST), 30, "a path that begins there");
        assert_eq!(start(&threads, &by(7), 30), 30);
    }

    #[test]
    fn who_cannot_be_told_apart_begins_where_it_is() {
        for (threads, tid) in [(Threads::new(true), NOBODY), (Threads::new(false), 7)] {
            assert_eq!(step(&threads, &by(tid), 1, FIRST), 1);
            pass(&threads, tid, 20);
            assert_eq!(
                (step(&threads, &by(tid), 20, LATER), start(&threads, &by(tid), 20)),
                (20, 20)
            );
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
        step(&threads, &by(7), 5, target(true, true));
        pass(&threads, 7, 40);
        assert_eq!(rename(&threads, 30, 40), (1, 5));
        assert_eq!(step(&threads, &by(7), 30, source(false, true)), 1);
        assert_eq!(step(&threads, &by(7), 40, target(false, true)), 5);
        assert_eq!(rename(&threads, 30, 40), (1, 5));
        // The same name in both.
        assert_eq!(step(&threads, &by(7), 30, either(false)), 1);
        assert_eq!(step(&threads, &by(7), 40, either(false)), 5);
        assert_eq!(rename(&threads, 30, 40), (1, 5));
    }

    #[test]
    fn the_paths_of_a_rename_may_meet() {
        // From an open directory to a path.
        let threads = Threads::new(true);
        step(&threads, &by(7), 1, target(true, false));
        pass(&threads, 7, 30);
        assert_eq!(step(&threads, &by(7), 30, source(true, true)), 30);
        assert_eq!(step(&threads, &by(7), 30, target(false, false)), 1);
        // The source is known to begin there: that needs no note.
        assert_eq!(rename(&threads, 30, 30), (30, 1));
        // From a path to an open directory.
        let threads = walked();
        assert_eq!(step(&threads, &by(7), 30, source(false, false)), 1);
        assert_eq!(step(&threads, &by(7), 30, target(true, true)), 30);
        assert_eq!(rename(&threads, 30, 30), (1, 30));
        // The target begins where the source ends, or on the way there.
        for begin in [20, 30] {
            let threads = walked();
            assert_eq!(step(&threads, &by(7), begin, target(true, true)), begin);
            pass(&threads, 7, 40);
            assert_eq!(step(&threads, &by(7), 30, source(false, true)), 1);
            assert_eq!(step(&threads, &by(7), 40, target(false, true)), begin);
            assert_eq!(rename(&threads, 30, 40), (1, begin));
        }
        // And have the same last name.
        let threads = Threads::new(true);
        for (begin, hint) in [(1, source(true, true)), (2, target(true, true))] {
            step(&threads, &by(7), begin, hint);
            pass(&threads, 7, 30);
        }
        assert_eq!(step(&threads, &by(7), 30, either(false)), 1);
        assert_eq!(threads.second_to(&by(7), 30).map(|walk| walk.start), Some(2));
        assert_eq!(threads.second_to(&by(7), 40), None);
        // Both go the same way.
        let threads = Threads::new(true);
        for hint in [source(true, true), target(true, true)] {
            step(&threads, &by(7), 1, hint);
            pass(&threads, 7, 20);
        }
        step(&threads, &by(7), 20, target(false, true));
        pass(&threads, 7, 30);
        assert_eq!(step(&threads, &by(7), 20, source(false, true)), 1);
        assert_eq!(step(&threads, &by(7), 30, target(false, true)), 1);
        assert_eq!(rename(&threads, 20, 30), (1, 1));
    }

    #[test]
    fn a_path_that_turns_leaves_the_other_alone() {
        let threads = walked();
        step(&threads, &by(7), 5, target(true, true));
        pass(&threads, 7, 40);
        // By `..`, into a symlink, past what the kernel keeps.
        for (at, to) in [(5, 50), (6, 60), (70, 80)] {
            assert_eq!(step(&threads, &by(7), at, target(false, true)), at);
            pass(&threads, 7, to);
        }
        // The source is in a directory that nobody was seen to go to.
        assert_eq!(step(&threads, &by(7), 2, source(false, true)), 2);
        assert_eq!(step(&threads, &by(7), 80, target(false, true)), 70);
        assert_eq!(rename(&threads, 2, 80), (2, 70));
        // The source's path turns.
        let threads = walked();
        assert_eq!(step(&threads, &by(7), 6, source(false, true)), 6);
        pass(&threads, 7, 60);
        step(&threads, &by(7), 1, target(false, true));
        pass(&threads, 7, 40);
        assert_eq!(rename(&threads, 60, 40), (6, 1));
    }

    #[test]
    fn who_gives_no_hint_forgets_nobody() {
        let threads = walked();
        step(&threads, &by(7), 5, target(true, true));
        pass(&threads, 7, 40);
        assert_eq!(step(&threads, &by(7), 30, None), 1);
        assert_eq!(rename(&threads, 30, 40), (1, 5));
        assert_eq!(step(&threads, &by(7), 6, None), 6);
        pass(&threads, 7, 30);
        assert_eq!(step(&threads, &by(7), 30, None), 6, "the last one");
        assert_eq!(start(&threads, &by(7), 30), 6);
        assert_eq!(rename(&threads, 30, 40), (6, 5), "the last one that is there");
        assert_eq!(step(&threads, &by(7), 30, source(false, true)), 1);
        assert_eq!(step(&threads, &by(7), 40, None), 5);
        assert_eq!(rename(&threads, 30, 40), (1, 5));
        assert_eq!(step(&threads, &by(7), 40, either(true)), 40, "a rename of `x` to `x`");
        assert_eq!(rename(&threads, 30, 40), (30, 40));
    }

    #[test]
    fn what_was_walked_before_is_over() {
        // By another path to the same directory.
        let threads = walked();
        assert_eq!(step(&threads, &by(7), 20, FIRST), 20);
        pass(&threads, 7, 30);
        assert_eq!(step(&threads, &by(7), 30, LATER), 20);
        assert_eq!(start(&threads, &by(7), 30), 20);
        // From the directory itself; a rename's names may both begin there.
        let threads = walked();
        for hint in [source(true, false), target(true, false)] {
            assert_eq!(step(&threads, &by(7), 30, hint), 30);
            assert_eq!(start(&threads, &by(7), 30), 30);
        }
        assert_eq!(rename(&threads, 30, 30), (30, 30));
        // By the target's path of another rename.
        let threads = Threads::new(true);
        step(&threads, &by(7), 1, target(true, true));
        pass(&threads, 7, 30);
        step(&threads, &by(7), 20, source(true, false));
        pass(&threads, 7, 30);
        assert_eq!(step(&threads, &by(7), 30, source(false, false)), 20);
        assert_eq!(rename(&threads, 30, 30), (20, 30));
        // As another user.
        let threads = walked();
        let other = InHeader { uid: 1, ..by(7) };
        assert_eq!((start(&threads, &other, 30), start(&threads, &by(7), 30)), (30, 1));
        assert_eq!(step(&threads, &other, 30, None), 30);
        assert_eq!(step(&threads, &by(7), 30, None), 30);
    }

    #[test]
    fn who_is_busy_is_not_forgotten() {
        let threads = Threads::new(true);
        step(&threads, &by(16), 1, FIRST);
        pass(&threads, 16, 20);
        let others = |from: u32| {
            for n in from..from + THREADS_MAX as u32 {
                step(&threads, &by(n * SHARDS as u32), 9, FIRST);
            }
        };
        others(2);
        assert_eq!(start(&threads, &by(16), 20), 1);
        others(10_000);
        assert_eq!(start(&threads, &by(16), 20), 1);
        others(20_000);
        others(30_000);
        others(40_000);
        assert_eq!(start(&threads, &by(16), 20), 20, "forgotten at last");
        let shard = threads.shard(0);
        assert!(shard.young.len() + shard.old.len() <= 2 * THREADS_MAX);
    }
}
