//! Files' data: what was written, who may see it, and when.
//!
//! Data is close to open: what one mount writes others see when it is flushed, at the latest, and
//! whoever opens a file then reads that or something newer. A file is the list of its versions; what
//! is read by a descriptor is of the version that the open saw, or of later ones, and no older than
//! what the same mount was told before. Bytes can be seen before the size that they make, and of two
//! mounts' writes at the same time each byte may be of either. Each file is judged by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use rustc_hash::FxHashSet;
use saker_types::{Errno, InodeId};
use xxhash_rust::xxh3::Xxh3;

use super::history::{Fd, SyscallAnswer, SyscallEntry, SyscallOp, SyscallSeen};
use crate::world::linear::Violation;

const PAGE: u64 = 4096;
/// Steps after which a history counts as too hard.
const STEPS_MAX: usize = 2_000_000;

/// What was written and is not flushed.
#[derive(Clone, Hash, PartialEq, Eq)]
struct Pending {
    mount: usize,
    offset: u64,
    len: u64,
    tag: u8,
    /// When the write began.
    began: u64,
    /// When the write had ended.
    since: u64,
    /// When it had been flushed, or truncated by the same mount.
    flushed: u64,
}

impl Pending {
    fn end(&self) -> u64 {
        self.offset + self.len
    }

    fn has(&self, at: u64) -> bool {
        at >= self.offset && at < self.end()
    }
}

/// A write that a version has.
#[derive(Clone, Hash)]
struct Applied {
    version: usize,
    write: Pending,
}

/// A mount knows of a version.
#[derive(Clone, Hash, PartialEq, Eq)]
struct Told {
    mount: usize,
    /// When the call had ended that told it.
    since: u64,
    version: usize,
}

/// A file.
#[derive(Clone, Hash)]
struct File {
    versions: Vec<Rc<Vec<u8>>>,
    pending: Vec<Pending>,
    /// Those of all versions, since the file was truncated.
    applied: Vec<Applied>,
    told: Vec<Told>,
    /// The version that each open saw.
    fds: BTreeMap<Fd, usize>,
    /// By calls that have begun: opens that have seen a version, looks that have seen the end of one.
    begun: BTreeMap<usize, usize>,
}

impl File {
    fn new() -> File {
        File {
            versions: vec![Rc::default()],
            pending: Vec::new(),
            applied: Vec::new(),
            told: Vec::new(),
            fds: BTreeMap::new(),
            begun: BTreeMap::new(),
        }
    }

    fn newest(&self) -> usize {
        self.versions.len() - 1
    }

    /// The file's end to a mount, of a version.
    fn size(&self, version: usize, mount: Option<usize>) -> u64 {
        let own = self.pending.iter().filter(|own| Some(own.mount) == mount);
        let size = self.versions[version].len() as u64;
        own.map(Pending::end).chain([size]).max().unwrap_or_default()
    }

    fn tell(&mut self, mount: Option<usize>, since: u64, version: usize) {
        let Some(mount) = mount else { return };
        let told = Told { mount, since, version };
        let says_less =
            |old: &Told| old.mount == mount && old.version <= version && old.since >= since;
        self.told.retain(|old| !says_less(old));
        self.told.push(told);
    }

    /// The newest version that a mount had been told of when a call began.
    fn told_before(&self, mount: Option<usize>, invoked: u64) -> usize {
        let told = self.told.iter();
        let told = told.filter(|told| Some(told.mount) == mount && told.since < invoked);
        told.map(|told| told.version).max().unwrap_or_default()
    }

    /// What a mount has written first is there for all.
    fn apply_first(&mut self, mount: usize) -> bool {
        let Some(at) = self.pending.iter().position(|own| own.mount == mount) else { return false };
        let own = self.pending.remove(at);
        let mut data = Vec::clone(&self.versions[self.newest()]);
        if (data.len() as u64) < own.end() {
            data.resize(own.end() as usize, 0);
        }
        data[own.offset as usize..own.end() as usize].fill(own.tag);
        self.versions.push(Rc::new(data));
        let version = self.newest();
        self.tell(Some(mount), own.since, version);
        self.applied.push(Applied { version, write: own });
        true
    }

    fn apply_all(&mut self, mount: Option<usize>) {
        if let Some(mount) = mount {
            while self.apply_first(mount) {}
        }
    }

    /// May the stores have this byte of a write that a version has after another one's? That must have
    /// begun before this one was flushed.
    fn may_be_left(&self, least: usize, at: u64, byte: u8) -> bool {
        let here = || self.applied.iter().filter(|applied| applied.write.has(at));
        let newer =
            |began: u64| here().any(|other| other.version <= least && other.write.began > began);
        here().any(|applied| applied.write.tag == byte && !newer(applied.write.flushed))
    }

    /// A size that a mount was told, of this version or a later one.
    fn shows(&mut self, entry: &SyscallEntry, seen: &SyscallSeen, least: usize) -> bool {
        let mount = entry.mount;
        let least = self.told_before(mount, entry.invoked).max(least);
        let mut all = least..=self.newest();
        let found = all.find(|version| self.size(*version, mount) == seen.size);
        if let Some(version) = found {
            self.tell(mount, entry.returned, version);
        }
        found.is_some()
    }

    /// The oldest version that a descriptor may show. `overtaken`: the same mount changes the size
    /// meanwhile, or is told of it, and the kernel may not heed then what it is told now.
    fn least(&self, fd: Fd, entry: &SyscallEntry, overtaken: bool) -> Option<usize> {
        let opened = self.fds.get(&fd).copied()?;
        Some(match overtaken {
            true => 0,
            false => self.told_before(entry.mount, entry.invoked).max(opened),
        })
    }

    /// The version whose end a look sees.
    fn sees_end(&self, fd: Fd, entry: &SyscallEntry, overtaken: bool) -> Option<usize> {
        let SyscallAnswer::Data { end, .. } = &entry.answer else { return None };
        let least = self.least(fd, entry, overtaken)?;
        let size = |version| self.size(version, entry.mount);
        let known = (least..=self.newest()).find(|version| size(*version) == *end);
        // Where a READ of one page ends short, the kernel takes that page's start for the end for as long as
        // it may keep the attributes.
        let is_cut = || (least..=self.newest()).rev().find(|version| size(*version) < *end);
        known.or_else(|| if end % PAGE == 0 { is_cut() } else { None })
    }

    /// A look that has seen the end of version `seen` reads.
    fn reads(
        &mut self,
        seen: usize,
        fd: Fd,
        back: u64,
        entry: &SyscallEntry,
        overtaken: bool,
    ) -> bool {
        let SyscallAnswer::Data { end, bytes } = &entry.answer else { return false };
        let Some(least) = self.least(fd, entry, overtaken) else { return false };
        let mount = entry.mount;
        let from = end.saturating_sub(back);
        let all = least..=self.newest();
        let read = |version: usize| {
            let size = self.size(version, mount);
            size.saturating_sub(from).min(back) == bytes.len() as u64
        };
        // Bytes that are being written are in the pages before the file's end is known.
        let as_seen = back.min(*end) == bytes.len() as u64;
        if !as_seen && !(seen..=self.newest()).any(read) {
            return false;
        }
        let has = |at: u64, byte: u8| {
            // Data can be in the stores before the owner knows how far it goes.
            let written = self.pending.iter().filter(|write| write.has(at));
            let written = written.map(|write| write.tag);
            let versions = all.clone().map(|version| {
                self.versions[version].get(at as usize).copied().unwrap_or_default()
            });
            written.chain(versions).any(|known| known == byte) || self.may_be_left(least, at, byte)
        };
        if bytes.iter().zip(from..).any(|(byte, at)| !has(at, *byte)) {
            return false;
        }
        self.tell(mount, entry.returned, seen);
        true
    }

    /// The ways in which a call may go on now; true: it is over then.
    fn step(&self, number: usize, entry: &SyscallEntry, beside: &Beside) -> Option<(File, bool)> {
        let mut file = self.clone();
        let overtaken = beside.overtaken;
        let done = match &entry.call {
            SyscallOp::Open { .. } | SyscallOp::Create { .. } => {
                let SyscallAnswer::Seen(seen) = &entry.answer else { return None };
                let Some(opened) = file.begun.remove(&number) else {
                    file.begun.insert(number, file.newest());
                    return Some((file, false));
                };
                if let SyscallOp::Open { fd, .. } = entry.call {
                    file.fds.insert(fd, opened);
                }
                file.shows(entry, seen, opened)
            }
            SyscallOp::Stat { .. } => {
                let SyscallAnswer::Seen(seen) = &entry.answer else { return None };
                file.shows(entry, seen, file.newest())
            }
            SyscallOp::Truncate { size, .. } => {
                file.apply_all(entry.mount);
                let mut data = Vec::clone(&file.versions[file.newest()]);
                data.resize(*size as usize, 0);
                file.versions.push(Rc::new(data));
                file.applied.clear();
                file.tell(entry.mount, entry.returned, file.newest());
                true
            }
            SyscallOp::Write { offset, len, tag, .. } => {
                let mount = entry.mount?;
                let (offset, len, tag) = (*offset, *len, *tag);
                let (began, since, flushed) = (entry.invoked, entry.returned, beside.flushed);
                file.pending.push(Pending { mount, offset, len, tag, began, since, flushed });
                true
            }
            SyscallOp::Flush { .. } => {
                file.apply_all(entry.mount);
                true
            }
            SyscallOp::Look { fd, back } => {
                let Some(seen) = file.begun.remove(&number) else {
                    let seen = file.sees_end(*fd, entry, overtaken)?;
                    file.begun.insert(number, seen);
                    return Some((file, false));
                };
                file.reads(seen, *fd, *back, entry, overtaken)
            }
            _ => false,
        };
        done.then_some((file, true))
    }
}

/// What other calls of the same file and mount have to do with one.
struct Beside {
    /// They change its size meanwhile, or are told of it.
    overtaken: bool,
    /// When what it has written was flushed.
    flushed: u64,
}

#[derive(Clone)]
struct State {
    file: File,
    done: u128,
}

struct Search<'a> {
    /// Of the file, with their numbers.
    entries: Vec<(usize, &'a SyscallEntry)>,
    beside: Vec<Beside>,
    seen: FxHashSet<u128>,
    steps: usize,
    best: Violation,
}

/// Looks for an order of what was done with each file; the number of steps that it took.
///
/// # Errors
/// Where it got stuck.
pub fn check(entries: &[SyscallEntry]) -> Result<usize, Violation> {
    let mut of_fd: BTreeMap<Fd, InodeId> = BTreeMap::new();
    let mut files: BTreeSet<InodeId> = BTreeSet::new();
    for entry in entries {
        if let (SyscallOp::Open { fd, .. }, SyscallAnswer::Seen(seen)) =
            (&entry.call, &entry.answer)
        {
            of_fd.insert(*fd, seen.id);
            files.insert(seen.id);
        }
    }
    let id = |entry: &SyscallEntry| match (&entry.call, &entry.answer) {
        (SyscallOp::Write { fd, .. } | SyscallOp::Flush { fd } | SyscallOp::Look { fd, .. }, _) => {
            of_fd.get(fd).copied()
        }
        (
            SyscallOp::Open { .. }
            | SyscallOp::Create { .. }
            | SyscallOp::Stat { .. }
            | SyscallOp::Truncate { .. },
            SyscallAnswer::Seen(seen),
        ) => Some(seen.id),
        _ => None,
    };
    let mut steps = 0;
    for file in files {
        let own = entries.iter().enumerate().filter(|(_, entry)| id(entry) == Some(file));
        let own: Vec<(usize, &SyscallEntry)> = own.collect();
        let beside = own.iter().map(|(_, entry)| Beside {
            overtaken: is_overtaken(entry, file, entries, &id),
            flushed: flushed(entry, &own),
        });
        let beside = beside.collect();
        let best = Violation::default();
        let mut search =
            Search { entries: own, beside, seen: FxHashSet::default(), steps: 0, best };
        if !search.finds(State { file: File::new(), done: 0 }) {
            return Err(search.best);
        }
        steps += search.steps;
    }
    Ok(steps)
}

fn is_overtaken(
    entry: &SyscallEntry,
    file: InodeId,
    entries: &[SyscallEntry],
    id: &impl Fn(&SyscallEntry) -> Option<InodeId>,
) -> bool {
    let mut others = entries.iter().filter(|other| {
        let looks = matches!(other.call, SyscallOp::Look { .. } | SyscallOp::Flush { .. });
        // A walk through a file is told of it, too.
        let is_told =
            id(other) == Some(file) || other.answer == SyscallAnswer::Failed(Errno::ENOTDIR);
        !looks && is_told && other.mount == entry.mount
    });
    others.any(|other| other.invoked < entry.returned && entry.invoked < other.returned)
}

/// When what a call has written was flushed at the latest.
fn flushed(entry: &SyscallEntry, own: &[(usize, &SyscallEntry)]) -> u64 {
    let after = own.iter().filter(|(_, other)| {
        let flushes = matches!(other.call, SyscallOp::Flush { .. } | SyscallOp::Truncate { .. });
        flushes && other.mount == entry.mount && other.invoked > entry.returned
    });
    after.map(|(_, other)| other.returned).min().unwrap_or(u64::MAX)
}

impl Search<'_> {
    fn finds(&mut self, mut state: State) -> bool {
        while let Some(next) = self.settle(&state) {
            state = next;
        }
        let placed = state.done.count_ones() as usize;
        if placed == self.entries.len() {
            return true;
        }
        let open = self.open(&state);
        if placed > self.best.placed || self.best.stuck.is_empty() {
            let stuck = open.iter().map(|i| self.entries[*i].0).collect();
            (self.best.placed, self.best.stuck) = (placed, stuck);
        }
        if !self.seen.insert(key(&state)) {
            return false;
        }
        for &i in &open {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                self.best.undecided = true;
                return false;
            }
            if let Some(next) = self.step(&state, i)
                && self.finds(next)
            {
                return true;
            }
        }
        let mounts: BTreeSet<usize> = state.file.pending.iter().map(|own| own.mount).collect();
        for mount in mounts {
            // Nobody sees it before somebody else does something.
            if !open.iter().any(|i| self.entries[*i].1.mount != Some(mount)) {
                continue;
            }
            self.steps += 1;
            let mut next = state.clone();
            next.file.apply_first(mount);
            if self.finds(next) {
                return true;
            }
        }
        false
    }

    fn step(&self, state: &State, i: usize) -> Option<State> {
        let (number, entry) = self.entries[i];
        let (file, over) = state.file.step(number, entry, &self.beside[i])?;
        Some(State { file, done: state.done | u128::from(over) << i })
    }

    /// Places what only looks and is right.
    fn settle(&self, state: &State) -> Option<State> {
        self.open(state).into_iter().find_map(|i| {
            let (number, entry) = self.entries[i];
            let looks = match entry.call {
                SyscallOp::Look { .. } | SyscallOp::Stat { .. } => true,
                SyscallOp::Open { .. } | SyscallOp::Create { .. } => {
                    state.file.begun.contains_key(&number)
                }
                _ => false,
            };
            if looks { self.step(state, i) } else { None }
        })
    }

    /// Calls that may go on next.
    fn open(&self, state: &State) -> Vec<usize> {
        let left = |i: &usize| state.done >> i & 1 == 0;
        let all = || (0..self.entries.len()).filter(left);
        let end = all().map(|i| self.entries[i].1.returned).min().unwrap_or(u64::MAX);
        let mut open: Vec<usize> = all().filter(|i| self.entries[*i].1.invoked < end).collect();
        open.sort_by_key(|i| self.entries[*i].1.returned);
        open
    }
}

fn key(state: &State) -> u128 {
    let mut hasher = Xxh3::new();
    (state.done, &state.file).hash(&mut hasher);
    hasher.write_u8(0);
    hasher.digest128()
}
