//! Is there an order of the steps of all calls in which each answer is right? Depth first, as
//! [`crate::world::linear`], of which this is the short form: histories are short here, and calls
//! have more steps.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::Xxh3;

use super::history::{SyscallAnswer, SyscallEntry, SyscallOp};
use super::spec::{SyscallNext, SyscallSpec, SyscallStage, paths};
use crate::world::linear::Violation;

/// Steps after which a history counts as too hard.
const STEPS_MAX: usize = 400_000;

#[derive(Clone)]
struct State {
    spec: SyscallSpec,
    done: u128,
    stages: BTreeMap<usize, SyscallStage>,
}

struct Search<'a> {
    entries: &'a [SyscallEntry],
    split: Vec<bool>,
    seen: FxHashSet<u128>,
    steps: usize,
    best: Violation,
}

/// Looks for an order; the number of steps that it took.
///
/// # Errors
/// Where it got stuck.
pub fn check(entries: &[SyscallEntry]) -> Result<usize, Violation> {
    assert!(entries.len() <= 128, "a set of calls is 128 bits");
    let best = Violation::default();
    let split = splits(entries);
    // What is done with an open file has no part in this: see `data`.
    let apart = |entry: &SyscallEntry| {
        matches!(
            entry.call,
            SyscallOp::Write { .. } | SyscallOp::Flush { .. } | SyscallOp::Look { .. }
        )
    };
    let apart = entries.iter().enumerate().filter(|(_, entry)| apart(entry));
    let done = apart.fold(0, |done, (i, _)| done | 1 << i);
    let mut search = Search { entries, split, seen: FxHashSet::default(), steps: 0, best };
    let start = State { spec: SyscallSpec::default(), done, stages: BTreeMap::new() };
    match search.finds(start) {
        true => Ok(search.steps),
        false => Err(search.best),
    }
}

/// Calls beside which names may have changed.
fn splits(entries: &[SyscallEntry]) -> Vec<bool> {
    let changes = |entry: &SyscallEntry| {
        let changes = matches!(
            entry.call,
            SyscallOp::Rename { .. }
                | SyscallOp::Exchange { .. }
                | SyscallOp::Rmdir { .. }
                | SyscallOp::Unlink { .. }
                | SyscallOp::Mkdir { .. }
                | SyscallOp::Mkfifo { .. }
                | SyscallOp::Create { .. }
                | SyscallOp::Link { .. }
        );
        changes && !matches!(entry.answer, SyscallAnswer::Failed(_) | SyscallAnswer::Refused)
    };
    let is_beside = |(i, entry): (usize, &SyscallEntry)| {
        let others = entries.iter().enumerate().filter(|(j, _)| *j != i);
        let mut others = others.filter(|(_, other)| changes(other));
        paths(&entry.call).0.is_some()
            && others.any(|(_, o)| o.invoked < entry.returned && entry.invoked < o.returned)
    };
    entries.iter().enumerate().map(is_beside).collect()
}

impl Search<'_> {
    fn finds(&mut self, state: State) -> bool {
        let state = self.settle(state);
        let placed = state.done.count_ones() as usize;
        if placed == self.entries.len() {
            return true;
        }
        let (open, end) = self.open(&state);
        if placed > self.best.placed || self.best.stuck.is_empty() {
            (self.best.placed, self.best.stuck) = (placed, open.clone());
        }
        if !self.seen.insert(key(&state)) {
            return false;
        }
        for &call in &open {
            for next in self.next(&state, call, end) {
                self.steps += 1;
                if self.steps > STEPS_MAX {
                    self.best.undecided = true;
                    return false;
                }
                if self.finds(after(&state, call, next)) {
                    return true;
                }
            }
        }
        false
    }

    /// Calls that may go on next, and the end of the first that ends.
    fn open(&self, state: &State) -> (Vec<usize>, u64) {
        let left = |i: &usize| state.done >> i & 1 == 0;
        let end = (0..self.entries.len()).filter(left).map(|i| self.entries[i].returned).min();
        let end = end.unwrap_or(u64::MAX);
        let mut open: Vec<usize> = (0..self.entries.len())
            .filter(left)
            .filter(|i| self.entries[*i].invoked < end)
            .collect();
        open.sort_by_key(|i| self.entries[*i].returned);
        (open, end)
    }

    /// Begins listings, and places what only looks and is right.
    fn settle(&self, mut state: State) -> State {
        loop {
            let (open, end) = self.open(&state);
            for &i in &open {
                if let SyscallOp::List { dir } = self.entries[i].call
                    && !state.spec.is_listing(i)
                {
                    state.spec.begin_listing(i, dir);
                }
            }
            let placed = open.iter().find_map(|&i| {
                if !only_looks(&self.entries[i]) {
                    return None;
                }
                let done = self.next(&state, i, end).into_iter().find_map(|next| match next {
                    SyscallNext::Done(spec) if spec.learnt() == state.spec.learnt() => Some(spec),
                    _ => None,
                })?;
                Some((i, done))
            });
            match placed {
                Some((call, spec)) => state = after(&state, call, SyscallNext::Done(spec)),
                None => return state,
            }
        }
    }

    fn next(&self, state: &State, call: usize, end: u64) -> Vec<SyscallNext> {
        let entry = &self.entries[call];
        if let SyscallOp::List { .. } = entry.call {
            if entry.returned != end && entry.answer != SyscallAnswer::Refused {
                // It ends as late as it can.
                return Vec::new();
            }
            let ended = state.spec.end_listing(call, &entry.answer);
            return ended.into_iter().map(SyscallNext::Done).collect();
        }
        let stage = state.stages.get(&call).cloned().unwrap_or_default();
        state.spec.step(call, entry, &stage, self.split[call])
    }
}

fn after(state: &State, call: usize, next: SyscallNext) -> State {
    let mut after = state.clone();
    match next {
        SyscallNext::Done(spec) => {
            after.spec = spec;
            after.done |= 1 << call;
            after.stages.remove(&call);
        }
        SyscallNext::Later(spec, stage) => {
            after.spec = spec;
            after.stages.insert(call, stage);
        }
    }
    after
}

fn key(state: &State) -> u128 {
    let mut hasher = Xxh3::new();
    (state.done, &state.stages, &state.spec).hash(&mut hasher);
    hasher.write_u8(0);
    hasher.digest128()
}

/// Can the call change nothing, with this answer?
fn only_looks(entry: &SyscallEntry) -> bool {
    match entry.answer {
        SyscallAnswer::Failed(_) | SyscallAnswer::Refused => true,
        _ => matches!(
            entry.call,
            SyscallOp::Stat { .. } | SyscallOp::OpenDir { .. } | SyscallOp::Open { .. }
        ),
    }
}
