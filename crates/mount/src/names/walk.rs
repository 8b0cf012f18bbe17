//! The walks of one thread: the names that it follows, and what it finds.
//!
//! A call acts where its own walk went. So what a request is about is named by the walk's own steps,
//! whatever other threads have found since: from the last directory that a server has found in this
//! walk, or where it began, by the names that were passed without asking, with the inodes that they
//! were thought to lead to (`At::expect`). If one of them leads elsewhere the request is answered
//! ESTALE, upon which the kernel walks again and asks for every name; then each is looked up in the
//! directory found before it, as in any file system, and nothing is expected any more.

use std::ops::{Index, IndexMut};

use bytes::Bytes;
use saker_types::InodeId;

use crate::names::hint::{Hint, Which};
use crate::names::nodes::FuseNodeId;

/// One path, as far as it is walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Where it began, or was first seen: the kernel asks for no name that it keeps.
    pub(crate) start: FuseNodeId,
    pub(crate) steps: Vec<WalkStep>,
}

/// A name that was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WalkStep {
    pub(crate) node: FuseNodeId,
    pub(crate) name: Bytes,
    /// What it leads to; 0: nobody knows.
    pub(crate) id: InodeId,
    /// A server has found that in this walk.
    pub(crate) found: bool,
    /// No hint tells whether it is on the way.
    pub(crate) unhinted: bool,
}

impl Walk {
    /// A walk that begins in `start`.
    pub(crate) fn from(start: FuseNodeId) -> Walk {
        Walk { start, steps: Vec::new() }
    }

    /// Where it is.
    pub(crate) fn at(&self) -> FuseNodeId {
        self.steps.last().map_or(self.start, |step| step.node)
    }

    /// Has a server found each of its names? Then it may be the kernel's second walk.
    pub(crate) fn is_found(&self) -> bool {
        !self.steps.is_empty() && self.steps.iter().all(|step| step.found)
    }

    /// Has it been through this node?
    pub(crate) fn has(&self, node: FuseNodeId) -> bool {
        self.start == node || self.steps.iter().any(|step| step.node == node)
    }

    /// As far as it was when it was in `dir` last: `..` and symlinks lead back.
    fn back_to(&self, dir: FuseNodeId) -> Option<Walk> {
        let len = match self.steps.iter().rposition(|step| step.node == dir) {
            Some(last) => last + 1,
            None if self.start == dir => 0,
            None => return None,
        };
        Some(Walk { start: self.start, steps: self.steps[..len].to_vec() })
    }

    /// Has it passed this node, unasked, by another name than this?
    fn passed_by_another(&self, node: FuseNodeId, (dir, name): (FuseNodeId, &Bytes)) -> bool {
        let above = std::iter::once(self.start).chain(self.steps.iter().map(|step| step.node));
        let is_other = |above, step: &WalkStep| above != dir || step.name != *name;
        let passed = self.steps.iter().zip(above).filter(|(step, _)| !step.found);
        passed.into_iter().any(|(step, above)| step.node == node && is_other(above, step))
    }

    fn is_at(&self, dir: FuseNodeId) -> bool {
        self.at() == dir
    }

    /// As far as `dir`, if it is there, or was before its last step and that may have been the path's
    /// last.
    fn here(&self, dir: FuseNodeId) -> Option<Walk> {
        if self.is_at(dir) {
            return Some(self.clone());
        }
        let (last, before) = self.steps.split_last()?;
        let walk = Walk { start: self.start, steps: before.to_vec() };
        (last.unhinted && walk.is_at(dir)).then_some(walk)
    }
}

/// The walks of the thread's last syscall: rename(2) has two.
#[derive(Clone, Default)]
pub(super) struct Walks {
    /// Of its first path, and of its second.
    of: [Option<Walk>; 2],
    /// Of a path that no hint tells, since the last hint.
    unhinted: Option<Walk>,
    /// Whose step was the last: of these, or `None`: of `unhinted`.
    last: Option<Which>,
    /// There was a hint of the last LOOKUP.
    hinted: bool,
    /// A server has just found a path's last name, or that it is free: what comes next is of another syscall,
    /// or of a symlink's target, or for a name that was found to be another one than the kernel knew. Then
    /// the way to it was right a moment ago.
    over: bool,
    /// LOOKUPs without a hint since the last one with a hint that were answered ESTALE.
    refused: u8,
}

impl Walks {
    /// A walk is in `dir`, and may have begun there: as far as it is.
    pub(super) fn step(&mut self, dir: FuseNodeId, hint: Option<Hint>) -> Walk {
        self.hinted = hint.is_some();
        match hint {
            Some(hint @ Hint { path: Some(which), .. }) => self.hinted(dir, hint, which),
            Some(Hint { path: None, first, .. }) => self.either(dir, first),
            None => self.unhinted(dir),
        }
    }

    /// The last name of both paths of a rename.
    fn either(&mut self, dir: FuseNodeId, first: bool) -> Walk {
        if first {
            *self = Walks::default();
        }
        self.unhinted = None;
        let known = self.of.iter().flatten().find(|walk| walk.is_at(dir));
        known.cloned().unwrap_or_else(|| Walk::from(dir))
    }

    fn hinted(&mut self, dir: FuseNodeId, hint: Hint, which: Which) -> Walk {
        self.unhinted = None;
        // Else it is an earlier syscall's.
        if !hint.beside {
            self[which.other()] = None;
        }
        let was_over = std::mem::take(&mut self.over);
        self.refused = 0;
        // By names that the kernel keeps a walk comes to where it was not seen to go.
        let known = self[which].take().filter(|_| !hint.first && !was_over);
        let walk = known.and_then(|walk| walk.back_to(dir)).unwrap_or_else(|| Walk::from(dir));
        self.last = Some(which);
        self[which].insert(walk).clone()
    }

    /// A thread that is known to be here goes on. No other is forgotten: this may be either path, and of the
    /// other one names were passed that no server has been asked about.
    fn unhinted(&mut self, dir: FuseNodeId) -> Walk {
        if std::mem::take(&mut self.over) {
            *self = Walks::default();
        }
        let (which, walk) = self.to(dir).unwrap_or_else(|| (None, Walk::from(dir)));
        self.last = which;
        let known = match which {
            Some(which) => &mut self[which],
            None => &mut self.unhinted,
        };
        known.insert(walk).clone()
    }

    /// The walk that has come to `dir`, the last one if several have.
    fn to(&self, dir: FuseNodeId) -> Option<(Option<Which>, Walk)> {
        let known = [None, Some(Which::First), Some(Which::Second)];
        let walk =
            |which: Option<Which>| which.map_or(&self.unhinted, |which| &self[which]).as_ref();
        let is_at = |which| {
            let walk: &Walk = walk(which)?;
            walk.is_at(dir).then(|| (which, walk.clone()))
        };
        let is_here = |which| Some((which, walk(which)?.here(dir)?));
        let all = || std::iter::once(self.last).chain(known);
        all().find_map(is_at).or_else(|| all().find_map(is_here))
    }

    /// The walk that has come to `dir`, the last one if several have; one from there, if none is known.
    pub(super) fn way(&self, dir: FuseNodeId) -> Walk {
        self.to(dir).map_or_else(|| Walk::from(dir), |(_, walk)| walk)
    }

    /// The walk of one of a rename's paths, if it has come to `dir`; else from there.
    pub(super) fn way_of(&self, which: Which, dir: FuseNodeId) -> Walk {
        let known = [&self.unhinted, &self[which]].into_iter().flatten();
        known.filter_map(|walk| walk.here(dir)).next().unwrap_or_else(|| Walk::from(dir))
    }

    /// Has one of them passed this directory, unasked, by another name than this?
    pub(super) fn passed_by_another(&self, node: FuseNodeId, name: (FuseNodeId, &Bytes)) -> bool {
        let all = self.of.iter().chain([&self.unhinted]).flatten();
        all.into_iter().any(|walk| walk.passed_by_another(node, name))
    }

    /// A LOOKUP is answered ESTALE. If the kernel does not walk again upon that, these are walks of an
    /// earlier syscall, which only a hint could tell. For a name that it has it asks twice before (`held`).
    pub(super) fn refused(&mut self, held: bool) {
        if self.hinted {
            return;
        }
        self.refused += 1;
        if self.refused > u8::from(held) {
            *self = Walks::default();
        }
    }

    /// If both paths of a rename lead to `dir`: the walk of the second.
    pub(super) fn second_to(&self, dir: FuseNodeId) -> Option<Walk> {
        match &self.of {
            [Some(first), Some(second)] if first.is_at(dir) && second.is_at(dir) => {
                Some(second.clone())
            }
            _ => None,
        }
    }

    /// A server has found a path's last name, or that it is free.
    pub(super) fn end(&mut self) {
        self.over = true;
    }

    /// The walk goes on.
    pub(super) fn pass(&mut self, step: WalkStep) {
        let walk = match self.last {
            Some(which) => &mut self[which],
            None => &mut self.unhinted,
        };
        if let Some(walk) = walk {
            walk.steps.push(step);
        }
    }
}

impl Index<Which> for Walks {
    type Output = Option<Walk>;

    fn index(&self, which: Which) -> &Option<Walk> {
        &self.of[which as usize]
    }
}

impl IndexMut<Which> for Walks {
    fn index_mut(&mut self, which: Which) -> &mut Option<Walk> {
        &mut self.of[which as usize]
    }
}
