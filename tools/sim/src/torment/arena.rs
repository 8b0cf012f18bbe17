//! Arenas: directories in which clients play until enough has happened, each with a history of
//! its own that is checked alone. Of a crash some operations stay without an answer, and each of
//! these doubles what the check must consider: so an arena ends after a few of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::history::{self, CallRecord, FileCall, FileReply, Files, SearchVerdict, Tree};

/// A history of this.
pub type Event = CallRecord<FileCall, FileReply>;

/// Operations without an answer after which an arena ends.
const UNKNOWN_MAX: usize = 4;
/// Names of shared arenas begin with this.
const SHARED: &str = "shared-";

/// A directory, and what was done in it.
pub struct Arena {
    /// Name of the directory.
    pub name: String,
    records_max: usize,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    records: Vec<Event>,
    unknown: usize,
}

impl Arena {
    /// A new one that ends after so many operations.
    pub fn new(name: String, records_max: usize) -> Arc<Arena> {
        Arc::new(Arena { name, records_max, log: Mutex::default() })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Do several clients play here?
    pub fn is_shared(&self) -> bool {
        self.name.starts_with(SHARED)
    }

    /// Adds an operation; its number.
    pub fn push(&self, event: Event) -> usize {
        let mut log = self.log();
        log.unknown += usize::from(event.reply.is_none());
        log.records.push(event);
        log.records.len() - 1
    }

    /// Has enough happened?
    pub fn is_full(&self) -> bool {
        let log = self.log();
        log.records.len() >= self.records_max || log.unknown >= UNKNOWN_MAX
    }

    /// What is wrong with the history; none: nothing is.
    pub fn judge(&self) -> Option<String> {
        let log = self.log();
        match history::check(&Files, Tree::default(), &log.records) {
            SearchVerdict::Linearizable => None,
            SearchVerdict::TooHard => Some(format!("{}: too hard to judge", self.name)),
            SearchVerdict::Violation { explained, stuck } => {
                Some(explain(&self.name, &log.records, &explained, &stuck))
            }
        }
    }
}

/// The history in the order that explains most of it, and what cannot follow.
fn explain(name: &str, records: &[Event], explained: &[usize], stuck: &[usize]) -> String {
    let line = |n: &usize| {
        let CallRecord { client, call_ns, reply, op } = &records[*n];
        let (until, reply) = match reply {
            Some((at, reply)) => (format!("{:.6}", *at as f64 / 1e9), format!("{reply:?}")),
            None => ("never".to_owned(), "unknown".to_owned()),
        };
        format!("  {n:4} {:.6}-{until} client {client}: {op:?} -> {reply}\n", *call_ns as f64 / 1e9)
    };
    let mut text = format!("{name}: no order explains its history. As far as it goes:\n");
    text.extend(explained.iter().map(line));
    text += " after which none of these is right:\n";
    text.extend(stuck.iter().map(line));
    text
}

/// All arenas of a run, and those that are shared now.
#[derive(Default)]
pub struct Arenas {
    all: Mutex<BTreeMap<String, Arc<Arena>>>,
    shared: Mutex<Vec<Arc<Arena>>>,
}

impl Arenas {
    /// Adds an arena.
    pub fn add(&self, arena: &Arc<Arena>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(arena.name.clone(), arena.clone());
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Arena>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// One of those that are shared; `make` makes its directory, or cannot now.
    pub fn shared(
        &self,
        n: usize,
        records_max: usize,
        make: impl Fn(&str) -> bool,
    ) -> Option<Arc<Arena>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(arena) = shared.get(n).filter(|arena| !arena.is_full()) {
            return Some(arena.clone());
        }
        let number = self.all.lock().unwrap_or_else(PoisonError::into_inner).len();
        let arena = Arena::new(format!("{SHARED}{number:06}"), records_max);
        if !make(&arena.name) {
            return None;
        }
        self.add(&arena);
        match shared.get_mut(n) {
            Some(old) => *old = arena.clone(),
            None => shared.push(arena.clone()),
        }
        Some(arena)
    }
}
