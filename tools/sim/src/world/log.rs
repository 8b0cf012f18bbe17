//! What happened, in order: a hash of everything, and the last lines when somebody will read them.

use std::collections::VecDeque;
use std::fmt;

use saker_runtime::time::Time;
use xxhash_rust::xxh3::Xxh3;

/// Lines kept.
const LINES_MAX: usize = 4_000;

/// The log of a run.
pub struct EventLog {
    hash: Xxh3,
    events: u64,
    lines: Option<VecDeque<String>>,
}

impl EventLog {
    /// A log, of which the last lines can be read if `readable`.
    pub fn new(readable: bool) -> EventLog {
        EventLog { hash: Xxh3::new(), events: 0, lines: readable.then(VecDeque::new) }
    }

    /// Something happened, about which these bytes say everything.
    pub fn event(&mut self, now: Time, what: &str, bytes: &[u8], line: impl FnOnce() -> String) {
        self.events += 1;
        self.hash.update(&now.as_ns().to_le_bytes());
        self.hash.update(what.as_bytes());
        self.hash.update(bytes);
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(format!("{now:?} {what} {}", line()));
        }
    }

    /// Hash of all events so far.
    pub fn digest(&self) -> u64 {
        self.hash.digest()
    }

    /// How many there were.
    pub fn len(&self) -> u64 {
        self.events
    }

    /// Were there none?
    pub fn is_empty(&self) -> bool {
        self.events == 0
    }
}

impl fmt::Display for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.lines.iter().flatten() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
