//! The search for an order.

use rustc_hash::FxHashSet;

use super::{CallRecord, Spec};

/// The search gives up after so many configurations.
pub const CONFIGURATIONS_MAX: usize = 1_000_000;

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchVerdict {
    /// There is an order.
    Linearizable,
    /// There is none. The records (by index) of the longest order that was possible, and those
    /// that could have come next and were not possible.
    Violation {
        /// In their order.
        explained: Vec<usize>,
        /// Each a contradiction.
        stuck: Vec<usize>,
    },
    /// The search was given up.
    TooHard,
}

/// Which records are in the order, and what the system remembers then.
type Configuration<S> = (Box<[u64]>, S);

struct Search<'a, S: Spec> {
    spec: &'a S,
    records: &'a [CallRecord<S::Op, S::Reply>],
    /// Indices of the records, in the order of their calls.
    by_call: Vec<usize>,
    seen: FxHashSet<Configuration<S::State>>,
    /// The longest order so far.
    explained: Vec<usize>,
    stuck: Vec<usize>,
}

/// A configuration on the way, and how it was reached.
struct Node<S> {
    done: Box<[u64]>,
    state: S,
    /// Records in the order before this one's last.
    depth: usize,
    last: Option<usize>,
}

/// Is there an order of `records` that `spec` allows, from `initial` on?
pub fn check<S: Spec>(
    spec: &S,
    initial: S::State,
    records: &[CallRecord<S::Op, S::Reply>],
) -> SearchVerdict {
    let mut by_call: Vec<usize> = (0..records.len()).collect();
    by_call.sort_by_key(|&n| records[n].call_ns);
    let (explained, stuck) = (Vec::new(), Vec::new());
    let seen = FxHashSet::default();
    Search { spec, records, by_call, seen, explained, stuck }.run(initial)
}

fn has(done: &[u64], n: usize) -> bool {
    done[n / 64] >> (n % 64) & 1 == 1
}

fn with(done: &[u64], n: usize) -> Box<[u64]> {
    let mut done: Box<[u64]> = done.into();
    done[n / 64] |= 1 << (n % 64);
    done
}

impl<S: Spec> Search<'_, S> {
    /// Depth first; operations with an unknown outcome are tried last.
    fn run(mut self, initial: S::State) -> SearchVerdict {
        let none = vec![0; self.records.len().div_ceil(64)].into_boxed_slice();
        let mut stack = vec![Node { done: none, state: initial, depth: 0, last: None }];
        let mut order = Vec::new();
        while let Some(node) = stack.pop() {
            order.truncate(node.depth);
            order.extend(node.last);
            if self.seen.len() >= CONFIGURATIONS_MAX {
                return SearchVerdict::TooHard;
            }
            let Some(next) = self.next(&node) else { return SearchVerdict::Linearizable };
            self.note(&order, &node, &next);
            for (n, state) in next.into_iter().rev() {
                let done = with(&node.done, n);
                if self.seen.insert((done.clone(), state.clone())) {
                    stack.push(Node { done, state, depth: order.len(), last: Some(n) });
                }
            }
        }
        SearchVerdict::Violation { explained: self.explained, stuck: self.stuck }
    }

    /// Records that may come next, with the state after each, known outcomes first by the time
    /// of their replies; none when all that must be explained is.
    fn next(&self, node: &Node<S::State>) -> Option<Vec<(usize, S::State)>> {
        let mut known = Vec::new();
        let mut unknown = Vec::new();
        for n in self.candidates(node)? {
            let record = &self.records[n];
            let reply = record.reply.as_ref().map(|(_, reply)| reply);
            let Some(state) = self.spec.apply(&node.state, n, &record.op, reply) else { continue };
            match &record.reply {
                // What never changes anything and is right now may as well come now.
                Some((_, reply)) if self.spec.only_looks(&record.op, reply) => {
                    return Some(vec![(n, state)]);
                }
                Some((at, _)) => known.push((*at, n, state)),
                None if state == node.state => {}
                None => unknown.push((n, state)),
            }
        }
        known.sort_by_key(|(at, n, _)| (*at, *n));
        Some(known.into_iter().map(|(_, n, state)| (n, state)).chain(unknown).collect())
    }

    /// Records called before the first reply that is not explained yet.
    fn candidates(&self, node: &Node<S::State>) -> Option<Vec<usize>> {
        let open = || self.by_call.iter().copied().filter(|&n| !has(&node.done, n));
        let reply = |n: usize| self.records[n].reply.as_ref().map(|(at, _)| *at);
        let horizon = open().filter_map(reply).min()?;
        Some(open().take_while(|&n| self.records[n].call_ns <= horizon).collect())
    }

    /// Remembers how far it went, for the report.
    fn note(&mut self, order: &[usize], node: &Node<S::State>, next: &[(usize, S::State)]) {
        if next.is_empty() && order.len() >= self.explained.len() {
            self.stuck = self.candidates(node).unwrap_or_default();
            self.explained = order.to_vec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register.
    struct Register;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Write(u64),
        Read,
    }

    impl Spec for Register {
        type State = u64;
        type Op = Op;
        type Reply = u64;

        fn only_looks(&self, op: &Op, _: &u64) -> bool {
            matches!(op, Op::Read)
        }

        fn apply(&self, state: &u64, _: usize, op: &Op, reply: Option<&u64>) -> Option<u64> {
            match op {
                Op::Write(value) => Some(*value),
                Op::Read => (reply == Some(state)).then_some(*state),
            }
        }
    }

    fn record(call_ns: u64, reply_ns: u64, op: Op, value: u64) -> CallRecord<Op, u64> {
        CallRecord { client: 0, call_ns, reply: Some((reply_ns, value)), op }
    }

    #[test]
    fn concurrent_operations_may_come_in_any_order_others_not() {
        let write = |from, to, value| record(from, to, Op::Write(value), 0);
        let read = |from, to, value| record(from, to, Op::Read, value);
        let good = [write(0, 10, 1), write(5, 15, 2), read(16, 20, 1), read(21, 25, 1)];
        assert_eq!(check(&Register, 0, &good), SearchVerdict::Linearizable);
        let stale = [write(0, 10, 1), write(11, 15, 2), read(16, 20, 1)];
        let found = check(&Register, 0, &stale);
        let expected = SearchVerdict::Violation { explained: vec![0, 1], stuck: vec![2] };
        assert_eq!(found, expected);
        let back = [write(0, 10, 1), write(5, 15, 2), read(16, 20, 1), read(21, 25, 2)];
        assert!(matches!(check(&Register, 0, &back), SearchVerdict::Violation { .. }));
    }

    #[test]
    fn what_nobody_heard_of_may_take_effect_late_or_never() {
        let lost =
            |call_ns, value| CallRecord { reply: None, ..record(call_ns, 0, Op::Write(value), 0) };
        let read = |at, value| record(at, at + 1, Op::Read, value);
        assert_eq!(check(&Register, 0, &[lost(5, 7), read(10, 0)]), SearchVerdict::Linearizable);
        let late = [lost(5, 7), read(10, 0), read(20, 7)];
        assert_eq!(check(&Register, 0, &late), SearchVerdict::Linearizable);
        let twice = [lost(5, 7), read(10, 7), read(20, 0), read(30, 7)];
        assert!(matches!(check(&Register, 0, &twice), SearchVerdict::Violation { .. }));
        let early = [read(1, 7), lost(5, 7)];
        assert!(matches!(check(&Register, 0, &early), SearchVerdict::Violation { .. }));
    }

    /// The search against all orders, one by one.
    #[test]
    fn agrees_with_trying_every_order() {
        let mut rng = crate::generate::Random::new(1);
        let mut seen = [0; 2];
        for _ in 0..3_000 {
            let records: Vec<CallRecord<Op, u64>> = (0..6)
                .map(|_| {
                    let call_ns = rng.below(30) as u64;
                    let op = if rng.chance(50) { Op::Write(rng.below(3) as u64) } else { Op::Read };
                    let lost = rng.chance(20) && matches!(op, Op::Write(_));
                    let at = call_ns + 1 + rng.below(20) as u64;
                    let reply = (!lost).then_some((at, rng.below(3) as u64));
                    CallRecord { client: 0, call_ns, reply, op }
                })
                .collect();
            let expected = any_order(&records, &mut vec![], 0);
            let found = check(&Register, 0, &records) == SearchVerdict::Linearizable;
            assert_eq!(found, expected, "{records:?}");
            seen[usize::from(found)] += 1;
        }
        assert!(seen.iter().all(|n| *n > 300), "{seen:?}");
    }

    fn any_order(records: &[CallRecord<Op, u64>], order: &mut Vec<usize>, state: u64) -> bool {
        let rest: Vec<usize> = (0..records.len()).filter(|n| !order.contains(n)).collect();
        let replied = |n: usize| records[n].reply.map_or(u64::MAX, |(at, _)| at);
        if rest.iter().all(|n| records[*n].reply.is_none()) {
            return true;
        }
        for &n in &rest {
            let waits = rest.iter().any(|m| replied(*m) < records[n].call_ns);
            let reply = records[n].reply.as_ref().map(|(_, value)| value);
            let Some(next) = Register.apply(&state, n, &records[n].op, reply) else { continue };
            if waits {
                continue;
            }
            order.push(n);
            let found = any_order(records, order, next);
            order.pop();
            if found {
                return true;
            }
        }
        false
    }
}
