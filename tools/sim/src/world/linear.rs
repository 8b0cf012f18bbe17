//! Is there an order of the calls in which each answer is right?
//!
//! A call may be placed anywhere between its beginning and its end. One whose outcome is unknown
//! may also come later, or never. Two-path calls and those on hard links take two places; a
//! listing spans all of its time and is checked against what it may and must have seen.
//!
//! The search goes depth first (Wing and Gong, "Testing and Verifying Concurrent Objects", 1993).
//! What it leaves out has no part in whether there is an order:
//!
//! - A call that only looks, and sees now what it says, is placed at once. Whatever order there
//!   is, the call may be taken from its place in it and put here.
//! - Of a state that led nowhere it remembers what was asked of it on all ways from there
//!   ([`Fact`]). Another state with the same calls placed and the same answers to that leads
//!   nowhere for the same reasons, however else they differ. Without that, choices that do not
//!   matter to each other multiply: each order of two truncations, until somebody looks.
//! - A call with an unknown outcome is not placed before something sees it ([`matters`]).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::Hash;

use rustc_hash::{FxHashMap, FxHashSet};
use xxhash_rust::xxh3::Xxh3;

use super::history::{OPEN, WorldAnswer, WorldCall, WorldEntry};
use super::spec::{Fact, WorldNext, WorldSpec, WorldStage};

#[cfg(test)]
mod tests;

/// Steps after which a history counts as too hard; no right one has come near.
const STEPS_MAX: usize = 200_000;

/// Why there is no order.
#[derive(Debug, Default)]
pub struct Violation {
    /// Calls placed in the best attempt.
    pub placed: usize,
    /// Calls that could not be placed next then, by index.
    pub stuck: Vec<usize>,
    /// The search was given up.
    pub undecided: bool,
}

impl Violation {
    /// What the calls of a history have to do with it.
    pub fn explain(&self, entries: &[impl Display]) -> String {
        let mut text = match self.undecided {
            true => "no order of the answers was found in time".to_owned(),
            false => "the answers fit no order".to_owned(),
        };
        text += &format!("; {} calls fit, then none of these does:\n", self.placed);
        for call in &self.stuck {
            text += &format!("  #{call} {}\n", entries[*call]);
        }
        text += "all:\n";
        for (at, entry) in entries.iter().enumerate() {
            text += &format!("  #{at} {entry}\n");
        }
        text
    }
}

#[derive(Clone)]
struct State {
    spec: WorldSpec,
    /// Calls that are placed.
    done: Calls,
    /// All calls below are placed.
    low: usize,
    /// Calls with a known outcome that are placed.
    placed: usize,
    /// Of calls that have begun, by call.
    stages: BTreeMap<usize, WorldStage>,
    /// Calls that may be placed next, the likeliest first.
    open: Vec<usize>,
}

impl State {
    /// Nothing is placed of so many calls.
    fn of(calls: usize) -> State {
        State {
            spec: WorldSpec::new(),
            done: Calls::none(calls),
            low: 0,
            placed: 0,
            stages: BTreeMap::new(),
            open: Vec::new(),
        }
    }
}

/// A state that led nowhere.
struct DeadEnd {
    /// Calls with an unknown outcome that were placed.
    lost: Calls,
    /// What was asked on all ways from it, and its answers.
    asked: Vec<(Fact, u64)>,
}

/// What a call may do next.
struct Way {
    /// The states that its next step leads to.
    steps: Vec<State>,
    /// What the call asked.
    asked: Vec<Fact>,
    /// What calls that only look asked then.
    asked_then: Vec<Fact>,
}

impl Way {
    fn all_asked(&self) -> impl Iterator<Item = Fact> {
        self.asked.iter().chain(&self.asked_then).copied()
    }
}

/// Looks for an order of all calls with a known outcome. The number of steps that it tried.
///
/// # Errors
/// Where it got stuck.
pub fn check(entries: &[WorldEntry]) -> Result<usize, Violation> {
    let mut known = Calls::none(entries.len());
    let has_ended = |i: &usize| entries[*i].returned != OPEN;
    (0..entries.len()).filter(has_ended).for_each(|i| known.insert(i));
    let mut search = Search {
        entries,
        split: splits(entries),
        goal: (0..entries.len()).filter(has_ended).count(),
        known,
        dead_ends: FxHashMap::default(),
        steps: 0,
        best: Violation::default(),
    };
    let start = search.settle(State::of(entries.len()));
    match search.dead_end(&start) {
        None => Ok(search.steps),
        Some(_) => Err(search.best),
    }
}

/// A set of calls.
#[derive(Clone, Hash)]
struct Calls(Vec<u64>);

impl Calls {
    fn none(len: usize) -> Calls {
        Calls(vec![0; len / 64 + 1])
    }

    fn has(&self, call: usize) -> bool {
        self.0[call / 64] >> (call % 64) & 1 == 1
    }

    fn insert(&mut self, call: usize) {
        self.0[call / 64] |= 1 << (call % 64);
    }

    fn and(&self, other: &Calls) -> Calls {
        Calls(self.0.iter().zip(&other.0).map(|(a, b)| a & b).collect())
    }

    fn without(&self, other: &Calls) -> Calls {
        Calls(self.0.iter().zip(&other.0).map(|(a, b)| a & !b).collect())
    }

    fn is_within(&self, other: &Calls) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a & !b == 0)
    }
}

/// Need the step of a call with an unknown outcome be tried here, where calls with a known one
/// lead nowhere, for which `asked` was asked? Not if it changes nothing of that, and is not seen
/// by, nor sees, another one with an unknown outcome: then it may as well come later.
fn matters(state: &State, ways: &[Way], at: usize, asked: &FxHashSet<Fact>) -> bool {
    let way = &ways[at];
    let changes = |way: &Way, fact: &Fact| {
        let now = state.spec.value(fact);
        way.steps.iter().any(|next| next.spec.value(fact) != now)
    };
    let begins = way.steps.iter().any(|next| next.stages != state.stages);
    let mut others = ways.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, other)| other);
    begins
        || asked.iter().any(|fact| changes(way, fact))
        || others.any(|other| {
            other.asked.iter().any(|fact| changes(way, fact))
                || way.asked.iter().any(|fact| changes(other, fact))
        })
}

/// Calls with two paths beside which a directory may have moved or gone.
fn splits(entries: &[WorldEntry]) -> Vec<bool> {
    let moves = |e: &WorldEntry| {
        matches!(
            e.call,
            WorldCall::Rename { .. } | WorldCall::Exchange { .. } | WorldCall::Rmdir { .. }
        )
    };
    let movers: Vec<(usize, &WorldEntry)> =
        entries.iter().enumerate().filter(|(_, e)| moves(e)).collect();
    let two_paths = |e: &WorldEntry| {
        matches!(
            e.call,
            WorldCall::Rename { .. } | WorldCall::Exchange { .. } | WorldCall::Link { .. }
        )
    };
    let overlaps = |i: usize, e: &WorldEntry| {
        movers.iter().any(|(j, m)| i != *j && m.invoked < e.returned && e.invoked < m.returned)
    };
    entries.iter().enumerate().map(|(i, e)| two_paths(e) && overlaps(i, e)).collect()
}

struct Search<'a> {
    entries: &'a [WorldEntry],
    split: Vec<bool>,
    /// Calls with a known outcome, and their number.
    known: Calls,
    goal: usize,
    /// By the calls with a known outcome that are placed, and those that have begun.
    dead_ends: FxHashMap<u128, Vec<DeadEnd>>,
    steps: usize,
    best: Violation,
}

impl Search<'_> {
    /// What was asked to find that the rest cannot be placed; none if it can.
    fn dead_end(&mut self, state: &State) -> Option<FxHashSet<Fact>> {
        if state.placed == self.goal {
            return None;
        }
        if state.placed > self.best.placed || self.best.stuck.is_empty() {
            (self.best.placed, self.best.stuck) = (state.placed, state.open.clone());
        }
        let key = self.key(state);
        if let Some(asked) = self.remembered(key, state) {
            return Some(asked);
        }
        let mut asked = FxHashSet::default();
        let is_known = |call: &&usize| self.known.has(**call);
        let (ended, lost): (Vec<&usize>, Vec<&usize>) = state.open.iter().partition(is_known);
        for call in ended {
            let way = self.way(state, *call);
            asked.extend(self.dead_ends_after(&way)?);
        }
        let ways: Vec<Way> = lost.into_iter().map(|call| self.way(state, *call)).collect();
        for at in 0..ways.len() {
            if matters(state, &ways, at, &asked) {
                asked.extend(self.dead_ends_after(&ways[at])?);
            }
        }
        asked.extend(ways.iter().flat_map(Way::all_asked));
        if self.best.undecided {
            return Some(asked);
        }
        let answers = asked.iter().map(|fact| (*fact, state.spec.value(fact))).collect();
        let lost = state.done.without(&self.known);
        self.dead_ends.entry(key).or_default().push(DeadEnd { lost, asked: answers });
        Some(asked)
    }

    /// As [`Search::dead_end`], of all states that a call leads to.
    fn dead_ends_after(&mut self, way: &Way) -> Option<FxHashSet<Fact>> {
        let mut asked: FxHashSet<Fact> = way.all_asked().collect();
        for next in &way.steps {
            self.steps += 1;
            self.best.undecided |= self.steps > STEPS_MAX;
            if self.best.undecided {
                break;
            }
            asked.extend(self.dead_end(next)?);
        }
        Some(asked)
    }

    fn way(&self, state: &State, call: usize) -> Way {
        let next = self.next(state, call);
        let asked = state.spec.take_asked();
        let after = |next| self.after(state, call, next);
        let steps = next.into_iter().map(after).collect();
        Way { steps, asked, asked_then: state.spec.take_asked() }
    }

    fn key(&self, state: &State) -> u128 {
        let mut hasher = Xxh3::new();
        state.done.and(&self.known).hash(&mut hasher);
        state.stages.hash(&mut hasher);
        hasher.digest128()
    }

    /// A dead end for the same reasons. One from which more calls could be placed will do.
    fn remembered(&self, key: u128, state: &State) -> Option<FxHashSet<Fact>> {
        let is_same = |end: &&DeadEnd| {
            end.lost.is_within(&state.done)
                && end.asked.iter().all(|(fact, value)| state.spec.value(fact) == *value)
        };
        let found = self.dead_ends.get(&key)?.iter().find(is_same)?;
        Some(found.asked.iter().map(|(fact, _)| *fact).collect())
    }

    /// Calls that may be placed next, and the end of the first of them that ends.
    fn open(&self, state: &State) -> (Vec<usize>, u64) {
        let mut end = OPEN;
        let mut open = Vec::new();
        for i in state.low..self.entries.len() {
            let entry = &self.entries[i];
            if entry.invoked > end {
                break;
            }
            if !state.done.has(i) {
                open.push(i);
                end = end.min(entry.returned);
            }
        }
        open.retain(|i| self.entries[*i].invoked < end);
        (open, end)
    }

    /// Begins the listings that may begin, and places what only looks and is right.
    fn settle(&self, mut state: State) -> State {
        loop {
            let (mut open, end) = self.open(&state);
            for &i in &open {
                if let WorldCall::Readdir { dir } = self.entries[i].call
                    && !state.spec.is_listing(i)
                {
                    state.spec.begin_listing(i, dir);
                }
            }
            // A listing ends as late as it can: when it holds up all others.
            open.retain(|i| {
                let is_listing = matches!(self.entries[*i].call, WorldCall::Readdir { .. });
                !is_listing || self.entries[*i].returned == end
            });
            let right = open.iter().find_map(|i| Some((*i, self.look(&state, *i)?)));
            let Some((call, spec)) = right else {
                open.sort_by_key(|i| self.entries[*i].returned);
                state.open = open;
                break;
            };
            self.place(&mut state, call, spec);
        }
        state
    }

    /// The state after a call that only looks, if that is right and teaches nothing.
    fn look(&self, state: &State, call: usize) -> Option<WorldSpec> {
        if !only_looks(&self.entries[call]) {
            return None;
        }
        let ways = self.next(state, call).into_iter();
        let mut done = ways.filter_map(|next| match next {
            WorldNext::Done(spec) => Some(spec),
            WorldNext::Later(..) => None,
        });
        done.find(|spec| spec.learnt() == state.spec.learnt())
    }

    fn next(&self, state: &State, call: usize) -> Vec<WorldNext> {
        let WorldEntry { call: what, answer, .. } = &self.entries[call];
        match what {
            WorldCall::Readdir { .. } => {
                state.spec.end_listing(call, answer).into_iter().map(WorldNext::Done).collect()
            }
            _ => {
                let stage = state.stages.get(&call).copied();
                state.spec.step(call, what, answer, stage, self.split[call])
            }
        }
    }

    fn after(&self, state: &State, call: usize, next: WorldNext) -> State {
        let mut after = state.clone();
        match next {
            WorldNext::Done(spec) => self.place(&mut after, call, spec),
            WorldNext::Later(spec, stage) => {
                after.spec = spec;
                after.stages.insert(call, stage);
            }
        }
        self.settle(after)
    }

    fn place(&self, state: &mut State, call: usize, spec: WorldSpec) {
        state.spec = spec;
        state.done.insert(call);
        state.placed += usize::from(self.entries[call].returned != OPEN);
        state.stages.remove(&call);
        while state.low < self.entries.len() && state.done.has(state.low) {
            state.low += 1;
        }
    }
}

/// Can the call change nothing, with this answer?
fn only_looks(entry: &WorldEntry) -> bool {
    match (&entry.call, &entry.answer) {
        (_, WorldAnswer::Unknown(_)) => false,
        (_, WorldAnswer::Failed(_)) => true,
        (WorldCall::Create { .. }, WorldAnswer::Opened(_, made)) => !made,
        (call, _) => reads(call),
    }
}

/// Does a call of this kind read only?
fn reads(call: &WorldCall) -> bool {
    matches!(
        call,
        WorldCall::Lookup { .. }
            | WorldCall::Getattr { .. }
            | WorldCall::Getxattr { .. }
            | WorldCall::Readdir { .. }
            | WorldCall::Open { .. }
            | WorldCall::Read { .. }
            | WorldCall::Fsync { .. }
    )
}

/// Calls whose outcome nobody knows and that read only say nothing: they are left out.
pub fn relevant(entries: &[WorldEntry]) -> Vec<WorldEntry> {
    let says = |e: &&WorldEntry| !(reads(&e.call) && matches!(e.answer, WorldAnswer::Unknown(_)));
    entries.iter().filter(says).cloned().collect()
}

/// How often each kind of call was answered, and how often it failed.
pub fn tally(entries: &[WorldEntry]) -> FxHashMap<String, (u64, u64)> {
    let mut tally: FxHashMap<String, (u64, u64)> = FxHashMap::default();
    for entry in entries {
        let text = format!("{:?}", entry.call);
        let name = text.split([' ', '{']).next().unwrap_or_default().to_owned();
        let (good, bad) = tally.entry(name).or_default();
        match entry.answer {
            WorldAnswer::Failed(_) | WorldAnswer::Unknown(_) => *bad += 1,
            _ => *good += 1,
        }
    }
    tally
}
