//! Messages that wait for the journal.

use std::collections::VecDeque;

/// A queue by journal position, and in the order of arrival for equal positions. Positions grow
/// from step to step, so that a push goes to the end, except where a role named an earlier one.
pub struct Gate<T> {
    waiting: VecDeque<(u64, T)>,
}

impl<T> Default for Gate<T> {
    fn default() -> Gate<T> {
        Gate::new()
    }
}

impl<T> Gate<T> {
    /// An empty queue.
    pub fn new() -> Gate<T> {
        Gate { waiting: VecDeque::new() }
    }

    /// Adds a message that waits for a position.
    pub fn push(&mut self, after: u64, message: T) {
        if self.waiting.back().is_none_or(|(last, _)| *last <= after) {
            self.waiting.push_back((after, message));
            return;
        }
        let at = self.waiting.partition_point(|(position, _)| *position <= after);
        self.waiting.insert(at, (after, message));
    }

    /// The next message that may leave.
    pub fn pop(&mut self, durable: u64) -> Option<T> {
        if self.waiting.front()?.0 > durable {
            return None;
        }
        self.waiting.pop_front().map(|(_, message)| message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_pass_what_is_durable_in_order() {
        let mut gate = Gate::new();
        for (after, name) in [(5, "a"), (5, "b"), (9, "c"), (0, "d"), (5, "e"), (9, "f")] {
            gate.push(after, name);
        }
        let take = |gate: &mut Gate<_>, durable| {
            std::iter::from_fn(|| gate.pop(durable)).collect::<Vec<_>>()
        };
        assert_eq!(take(&mut gate, 4), ["d"]);
        assert_eq!(take(&mut gate, 8), ["a", "b", "e"]);
        assert_eq!(take(&mut gate, 8), [""; 0]);
        assert_eq!(take(&mut gate, 9), ["c", "f"]);
    }
}
