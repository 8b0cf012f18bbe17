//! Messages that wait for what they depend on.

use std::collections::VecDeque;

/// Positions, one for each thing that a message may wait for: how far it must have come, or how far
/// it has. Each only grows; 0 is met from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Records are durable here.
    pub durable: u64,
    /// Records survive the death of the process, if not a loss of power.
    pub written: u64,
    /// Changes of directories are known to their tracker.
    pub tracked: u64,
    /// Records are durable on other machines, too.
    pub replicated: u64,
}

impl Conditions {
    /// Nothing is waited for.
    pub const NONE: Conditions = Conditions { durable: 0, written: 0, tracked: 0, replicated: 0 };

    /// Records up to this one are durable here.
    pub fn durable(position: u64) -> Conditions {
        Conditions { durable: position, written: position, ..Conditions::NONE }
    }

    /// Are all of them met when things have come this far?
    pub fn are_met(&self, reached: &Conditions) -> bool {
        self.durable <= reached.durable
            && self.written <= reached.written
            && self.tracked <= reached.tracked
            && self.replicated <= reached.replicated
    }
}

/// Messages in the order in which they were pushed. A message leaves when its own conditions are
/// met, and overtakes those before it that are not.
///
/// Positions only grow, so that a message waits for whatever the ones before it wait for: the first
/// is looked at, and no other. A message for which its role named less is kept apart.
pub struct Gate<T> {
    in_order: VecDeque<Waiting<T>>,
    early: VecDeque<Waiting<T>>,
    pushed: u64,
}

struct Waiting<T> {
    number: u64,
    until: Conditions,
    message: T,
}

impl<T> Default for Gate<T> {
    fn default() -> Gate<T> {
        Gate::new()
    }
}

impl<T> Gate<T> {
    /// With no message.
    pub fn new() -> Gate<T> {
        Gate { in_order: VecDeque::new(), early: VecDeque::new(), pushed: 0 }
    }

    /// Adds a message.
    pub fn push(&mut self, until: Conditions, message: T) {
        self.pushed += 1;
        let waiting = Waiting { number: self.pushed, until, message };
        let is_early = self.in_order.back().is_some_and(|last| !last.until.are_met(&until));
        if is_early { &mut self.early } else { &mut self.in_order }.push_back(waiting);
    }

    /// The next message that may leave, things having come this far.
    pub fn pop(&mut self, reached: &Conditions) -> Option<T> {
        let first = self.in_order.front().filter(|first| first.until.are_met(reached));
        let first = first.map(|first| first.number);
        let early = self.early.iter().position(|early| early.until.are_met(reached));
        let waiting = match early {
            Some(at) if first.is_none_or(|first| self.early[at].number < first) => {
                self.early.remove(at)
            }
            _ if first.is_some() => self.in_order.pop_front(),
            _ => None,
        };
        waiting.map(|waiting| waiting.message)
    }

    /// Does a message wait for nothing but that records are written?
    pub fn waits_for_write(&self, reached: &Conditions) -> bool {
        let when_written = Conditions { written: u64::MAX, ..*reached };
        let waits = |waiting: &Waiting<T>| {
            waiting.until.are_met(&when_written) && !waiting.until.are_met(reached)
        };
        self.in_order.front().is_some_and(waits) || self.early.iter().any(waits)
    }

    /// Does a message wait for a flush?
    pub fn waits_for_flush(&self, reached: &Conditions) -> bool {
        let waits = |waiting: &Waiting<T>| waiting.until.durable > reached.durable;
        self.in_order.back().is_some_and(waits) || self.early.iter().any(waits)
    }
}

#[cfg(test)]
mod tests {
    use saker_runtime::rand::Rng;

    use super::*;

    fn take<T>(gate: &mut Gate<T>, reached: &Conditions) -> Vec<T> {
        std::iter::from_fn(|| gate.pop(reached)).collect()
    }

    #[test]
    fn lets_pass_what_is_durable_in_order() {
        let mut gate = Gate::new();
        for (after, name) in [(5, "a"), (5, "b"), (9, "c"), (0, "d"), (5, "e"), (9, "f")] {
            gate.push(Conditions::durable(after), name);
        }
        let mut take = |durable| take(&mut gate, &Conditions::durable(durable));
        assert_eq!(take(4), ["d"]);
        assert_eq!(take(8), ["a", "b", "e"]);
        assert_eq!(take(8), [""; 0]);
        assert_eq!(take(9), ["c", "f"]);
    }

    #[test]
    fn waits_for_each_of_its_conditions() {
        let mut gate = Gate::new();
        let said = |durable, tracked, replicated| {
            let conditions = Conditions::durable(durable);
            Conditions { tracked, replicated, ..conditions }
        };
        gate.push(said(1, 1, 0), "update");
        gate.push(said(2, 1, 3), "all");
        gate.push(said(2, 0, 0), "named");
        assert_eq!(take(&mut gate, &said(1, 0, 3)), [""; 0]);
        assert_eq!(take(&mut gate, &said(2, 0, 3)), ["named"]);
        assert_eq!(take(&mut gate, &said(2, 1, 2)), ["update"]);
        assert_eq!(take(&mut gate, &said(2, 1, 3)), ["all"]);
    }

    #[test]
    fn what_need_only_be_written_leaves_before_the_flush() {
        let mut gate = Gate::new();
        let written = |written, durable| Conditions { written, ..Conditions::durable(durable) };
        gate.push(written(4, 3), "delayed");
        assert!(!gate.waits_for_write(&written(3, 2)), "a record before it must be durable");
        assert!(gate.waits_for_flush(&written(3, 2)));
        assert!(gate.waits_for_write(&written(3, 3)) && !gate.waits_for_flush(&written(3, 3)));
        gate.push(Conditions::durable(5), "at once");
        gate.push(written(6, 5), "after it");
        gate.push(written(6, 3), "early");
        assert!(gate.waits_for_flush(&written(4, 3)));
        assert_eq!(take(&mut gate, &written(4, 3)), ["delayed"]);
        assert_eq!(take(&mut gate, &written(6, 3)), ["early"]);
        assert!(!gate.waits_for_write(&written(6, 3)));
        assert_eq!(take(&mut gate, &written(6, 5)), ["at once", "after it"]);
        let done = written(6, 6);
        assert!(!gate.waits_for_write(&done) && !gate.waits_for_flush(&done));
    }

    /// A copy of `of` in which some positions have grown.
    fn grown(of: &Conditions, rng: &mut Rng) -> Conditions {
        let mut grow = |position: u64| position + rng.below(3) * rng.below(2);
        Conditions {
            durable: grow(of.durable),
            written: grow(of.written),
            tracked: grow(of.tracked),
            replicated: grow(of.replicated),
        }
    }

    #[test]
    fn is_as_a_list_of_all_that_waits() {
        for seed in 0..200 {
            let mut rng = Rng::seeded(seed);
            let (mut gate, mut list) = (Gate::new(), Vec::new());
            let (mut said, mut reached) = (Conditions::NONE, Conditions::NONE);
            for n in 0..300 {
                match rng.below(4) {
                    0 => said = grown(&said, &mut rng),
                    1 => {
                        let next = grown(&reached, &mut rng);
                        reached = Conditions {
                            durable: next.durable.min(said.durable),
                            written: next.written.min(said.written),
                            tracked: next.tracked.min(said.tracked),
                            replicated: next.replicated.min(said.replicated),
                        };
                        let may_leave =
                            |(until, _): &mut (Conditions, u64)| until.are_met(&reached);
                        let left: Vec<u64> =
                            list.extract_if(.., may_leave).map(|(_, n)| n).collect();
                        assert_eq!(take(&mut gate, &reached), left, "seed {seed}");
                    }
                    chance => {
                        let named = Conditions {
                            durable: rng.below(said.durable + 1),
                            written: rng.below(said.written + 1),
                            tracked: rng.below(said.tracked + 1),
                            ..said
                        };
                        let until = if chance == 2 && rng.chance(1, 3) { named } else { said };
                        gate.push(until, n);
                        list.push((until, n));
                    }
                }
            }
            let rest: Vec<u64> = list.into_iter().map(|(_, n)| n).collect();
            assert_eq!(take(&mut gate, &said), rest, "seed {seed}");
        }
    }
}
