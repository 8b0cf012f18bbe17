//! Is there an order of the calls in which each answer is right (Wing and Gong, with a memory of
//! the states that led nowhere)?
//!
//! A call may be placed anywhere between its beginning and its end. One whose outcome is unknown
//! may also come later, or never. Two-path calls and those on hard links take two places; a
//! listing spans all of its time and is checked against what it may and must have seen.

use rustc_hash::{FxHashMap, FxHashSet};

use super::history::{Answer, Call, Entry, OPEN};
use super::spec::{Next, Spec, Stage};

/// States looked at before a history counts as too hard; no right one has come near.
const STATES_MAX: usize = 400_000;

/// Why there is no order.
#[derive(Debug)]
pub struct Violation {
    /// Calls placed in the best attempt.
    pub placed: usize,
    /// Calls that could not be placed next then, by index.
    pub stuck: Vec<usize>,
    /// The search was given up.
    pub undecided: bool,
}

#[derive(Clone)]
struct State {
    spec: Spec,
    /// Bit `i`: call `i` is placed.
    done: Vec<u64>,
    /// All calls below are placed.
    low: usize,
    placed: usize,
    stages: Vec<(usize, Stage)>,
}

/// Looks for an order of all calls with a known outcome.
///
/// # Errors
/// Where it got stuck.
pub fn check(entries: &[Entry]) -> Result<usize, Violation> {
    let known = entries.iter().filter(|e| e.returned != OPEN).count();
    let search = Search { entries, split: splits(entries) };
    let start = State {
        spec: Spec::new(),
        done: vec![0; entries.len() / 64 + 1],
        low: 0,
        placed: 0,
        stages: Vec::new(),
    };
    let mut seen: FxHashSet<u64> = FxHashSet::default();
    let mut stack = vec![start];
    let mut best = Violation { placed: 0, stuck: Vec::new(), undecided: false };
    while let Some(mut state) = stack.pop() {
        let candidates = search.candidates(&mut state);
        if state.placed == known && search.all_known_done(&state) {
            return Ok(seen.len());
        }
        if !seen.insert(search.digest(&state)) {
            continue;
        }
        if seen.len() > STATES_MAX {
            best.undecided = true;
            return Err(best);
        }
        if state.placed > best.placed || best.stuck.is_empty() {
            best.placed = state.placed;
            best.stuck.clone_from(&candidates);
        }
        // The likeliest comes last, to be looked at first.
        let floor = stack.len();
        for &call in candidates.iter().rev() {
            search.place(&state, call, &mut stack, floor);
        }
    }
    Err(best)
}

/// Calls with two paths beside which a directory may have moved or gone.
fn splits(entries: &[Entry]) -> Vec<bool> {
    let moves = |e: &Entry| {
        matches!(e.call, Call::Rename { .. } | Call::Exchange { .. } | Call::Rmdir { .. })
    };
    let movers: Vec<(usize, &Entry)> =
        entries.iter().enumerate().filter(|(_, e)| moves(e)).collect();
    let two_paths = |e: &Entry| {
        matches!(e.call, Call::Rename { .. } | Call::Exchange { .. } | Call::Link { .. })
    };
    let overlaps = |i: usize, e: &Entry| {
        movers.iter().any(|(j, m)| i != *j && m.invoked < e.returned && e.invoked < m.returned)
    };
    entries.iter().enumerate().map(|(i, e)| two_paths(e) && overlaps(i, e)).collect()
}

struct Search<'a> {
    entries: &'a [Entry],
    split: Vec<bool>,
}

impl Search<'_> {
    fn is_done(state: &State, call: usize) -> bool {
        state.done[call / 64] >> (call % 64) & 1 == 1
    }

    fn all_known_done(&self, state: &State) -> bool {
        let mut rest = (state.low..self.entries.len()).filter(|i| !Self::is_done(state, *i));
        rest.all(|i| self.entries[i].returned == OPEN)
    }

    /// Calls that may be placed next, the likeliest first. Listings that may begin do so here.
    fn candidates(&self, state: &mut State) -> Vec<usize> {
        let mut end = OPEN;
        let mut open = Vec::new();
        for i in state.low..self.entries.len() {
            let entry = &self.entries[i];
            if entry.invoked > end {
                break;
            }
            if !Self::is_done(state, i) {
                open.push(i);
                end = end.min(entry.returned);
            }
        }
        open.retain(|i| self.entries[*i].invoked < end);
        for &i in &open {
            if let Call::Readdir { dir } = self.entries[i].call
                && !state.spec.is_listing(i)
            {
                state.spec.begin_listing(i, dir);
            }
        }
        // A listing ends as late as it can: when it holds up all others.
        open.retain(|i| {
            let is_listing = matches!(self.entries[*i].call, Call::Readdir { .. });
            !is_listing || self.entries[*i].returned == end
        });
        open.sort_by_key(|i| self.entries[*i].returned);
        open
    }

    fn place(&self, state: &State, call: usize, stack: &mut Vec<State>, floor: usize) {
        let entry = &self.entries[call];
        if let Call::Readdir { .. } = entry.call {
            let Some(spec) = state.spec.end_listing(call, &entry.answer) else { return };
            // A listing that fits now only stands in the way of others.
            stack.truncate(floor);
            return stack.push(self.placed(state, call, spec));
        }
        let stage = state.stages.iter().find(|(i, _)| *i == call).map(|(_, stage)| *stage);
        let split = self.split[call];
        for next in state.spec.step(call, &entry.call, &entry.answer, stage, split) {
            match next {
                Next::Done(spec) => stack.push(self.placed(state, call, spec)),
                Next::Later(spec, stage) => {
                    let mut later = State { spec, ..state.clone() };
                    later.stages.push((call, stage));
                    stack.push(later);
                }
            }
        }
    }

    fn placed(&self, state: &State, call: usize, spec: Spec) -> State {
        let mut next = State { spec, ..state.clone() };
        next.done[call / 64] |= 1 << (call % 64);
        next.placed += usize::from(self.entries[call].returned != OPEN);
        next.stages.retain(|(i, _)| *i != call);
        while next.low < self.entries.len() && Self::is_done(&next, next.low) {
            next.low += 1;
        }
        next
    }

    fn digest(&self, state: &State) -> u64 {
        use std::hash::{Hash, Hasher};
        let mut hasher = rustc_hash::FxHasher::default();
        state.spec.digest().hash(&mut hasher);
        state.done.hash(&mut hasher);
        let mut stages = state.stages.clone();
        stages.sort_by_key(|(i, _)| *i);
        stages.hash(&mut hasher);
        hasher.finish()
    }
}

/// Calls whose outcome nobody knows and that read only say nothing: they are left out.
pub fn relevant(entries: &[Entry]) -> Vec<Entry> {
    let reads = |call: &Call| {
        matches!(
            call,
            Call::Lookup { .. }
                | Call::Getattr { .. }
                | Call::Getxattr { .. }
                | Call::Readdir { .. }
                | Call::Open { .. }
        )
    };
    let says = |e: &&Entry| !(reads(&e.call) && matches!(e.answer, Answer::Unknown(_)));
    entries.iter().filter(says).cloned().collect()
}

/// How often each kind of call was answered, and how often it failed.
pub fn tally(entries: &[Entry]) -> FxHashMap<String, (u64, u64)> {
    let mut tally: FxHashMap<String, (u64, u64)> = FxHashMap::default();
    for entry in entries {
        let text = format!("{:?}", entry.call);
        let name = text.split([' ', '{']).next().unwrap_or_default().to_owned();
        let (good, bad) = tally.entry(name).or_default();
        match entry.answer {
            Answer::Failed(_) | Answer::Unknown(_) => *bad += 1,
            _ => *good += 1,
        }
    }
    tally
}
