//! The protocols of the namespace as small models, explored without gaps: what docs/protocol.md
//! argues, checked by a machine. Each model says at each of its actions where the code is that it
//! stands for; each has switches that put a known fault back, and a test that the fault is found.
//!
//! - [`invalidation`]: directory changes against lookups, creates and prepares (rules 1, 2, 4, 5,
//!   6, 7, 14).
//! - [`commit`]: two-phase commit with crashes, flushes and retries (rules 3, 11, 13, 14, 15).
//!
//! - [`threads`]: the few types that threads share, their real source, under every schedule.
//!
//! A model checker looks for a state that must not be. That nothing waits for ever is another
//! kind of question, which [`trap`] answers: from every reachable state a quiet one is reachable.

pub mod commit;
pub mod invalidation;
// Not in a test build: it has sources of other crates in it, whose unit tests are theirs.
#[cfg(not(test))]
mod sync;
#[cfg(not(test))]
pub mod threads;

// What the sources in `threads` call by these names.
#[cfg(not(test))]
use saker_rpc::{CallError, frame};

use std::collections::HashMap;

use stateright::Model;

/// A reachable state from which no state that is `done` can be reached, if there is one: whoever
/// waits in it waits for ever. Also how many states there are.
pub fn trap<M>(model: &M, done: impl Fn(&M::State) -> bool) -> (Option<M::State>, usize)
where
    M: Model,
    M::State: Clone + Eq + std::hash::Hash,
{
    let mut numbers: HashMap<M::State, usize> = HashMap::new();
    let mut states: Vec<M::State> = Vec::new();
    let mut before: Vec<Vec<usize>> = Vec::new();
    for state in model.init_states() {
        numbers.insert(state.clone(), states.len());
        states.push(state);
        before.push(Vec::new());
    }
    let mut at = 0;
    while at < states.len() {
        for next in model.next_states(&states[at]) {
            let number = *numbers.entry(next).or_insert_with_key(|next| {
                states.push(next.clone());
                before.push(Vec::new());
                states.len() - 1
            });
            before[number].push(at);
        }
        at += 1;
    }
    let mut can = vec![false; states.len()];
    let mut todo: Vec<usize> = (0..states.len()).filter(|n| done(&states[*n])).collect();
    todo.iter().for_each(|n| can[*n] = true);
    while let Some(number) = todo.pop() {
        for earlier in &before[number] {
            if !std::mem::replace(&mut can[*earlier], true) {
                todo.push(*earlier);
            }
        }
    }
    let stuck = can.iter().position(|can| !can);
    (stuck.map(|n| states[n].clone()), states.len())
}
