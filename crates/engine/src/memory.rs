//! An engine in memory: for tests, where what is durable lies behind a handle that outlives it, and for
//! whoever needs no more than its own memory ([`MemoryStorage::volatile`]).
//!
//! In tests it also checks its owner: a record must say what was changed of rows, and a step must end
//! committed. With [`MemoryStorage::cold`] rows are not there before they are asked for, as those of an engine
//! behind a network are.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::time::Time;
use saker_types::change::{Record, What};

use crate::api::{
    Engine, EngineError, Identity, KEY_BYTES_MAX, Level, OnRecovered, Position, RESERVED,
    Recovered, RowRead,
};

/// So many records become rows and facts.
const RECORDS_MAX: usize = 32;
/// How soon a row is loaded that was asked for.
const LOAD_TIME: Duration = Duration::from_millis(1);

type Result<T> = std::result::Result<T, EngineError>;
type Rows = BTreeMap<Bytes, Bytes>;

/// What survives.
#[derive(Default)]
struct Kept {
    identity: Option<Identity>,
    /// As of the first of the records.
    rows: Rows,
    facts: Vec<What>,
    records: Vec<Record>,
    /// The position of the last of them.
    end: Position,
    /// Those that follow, which a loss of power takes.
    written: Vec<Record>,
}

/// Where a [`MemoryEngine`] is; clones are the same place.
#[derive(Clone, Default)]
pub struct MemoryStorage {
    kept: Arc<Mutex<Kept>>,
    is_cold: bool,
    is_volatile: bool,
}

impl MemoryStorage {
    /// A place with nothing in it.
    pub fn new() -> MemoryStorage {
        MemoryStorage::default()
    }

    /// The same place, whose rows are loaded when they are asked for.
    #[must_use]
    pub fn cold(self) -> MemoryStorage {
        MemoryStorage { is_cold: true, ..self }
    }

    /// The same place, where nothing outlives an engine: records cost nothing, and count as durable at
    /// once.
    #[must_use]
    pub fn volatile(self) -> MemoryStorage {
        MemoryStorage { is_volatile: true, ..self }
    }

    /// The cluster whose data is there.
    pub fn cluster(&self) -> Option<[u8; 16]> {
        self.kept().identity.map(|identity| identity.cluster)
    }

    /// Power is lost: what was written and is not durable is gone.
    pub fn lose_power(&self) {
        self.kept().written.clear();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rows that an engine whose rows come when they are asked for has.
#[derive(Default)]
struct Loads {
    known: BTreeSet<Bytes>,
    /// Asked for since the step before began, in order.
    asked: Vec<Bytes>,
    /// Of these, those that are there.
    arrived: Vec<Bytes>,
}

/// An open engine.
pub struct MemoryEngine {
    home: MemoryStorage,
    rows: Rows,
    /// Keys of rows that were changed, and are in no record yet.
    changed: Vec<Bytes>,
    /// Records that are not durable.
    pending: Vec<Record>,
    /// How many of these the flush under way is for.
    flushing: usize,
    appended: Position,
    durable: Position,
    loads: RefCell<Loads>,
}

fn row_of(what: &What) -> Option<(&Bytes, Option<&Bytes>)> {
    match what {
        What::Put(row) => Some((&row.key, Some(&row.value))),
        What::Delete(key) => Some((key, None)),
        _ => None,
    }
}

fn changes(record: &Record) -> impl Iterator<Item = &What> {
    record.changes.iter().filter_map(|change| change.what.as_ref())
}

fn apply(rows: &mut Rows, record: &Record) {
    for (key, value) in changes(record).filter_map(row_of) {
        match value {
            Some(value) => rows.insert(key.clone(), value.clone()),
            None => rows.remove(key),
        };
    }
}

impl MemoryEngine {
    /// Opens what is there, or begins it.
    ///
    /// # Errors
    /// When it is another's, or `on_recovered` fails.
    pub fn open(
        home: &MemoryStorage,
        identity: Identity,
        on_recovered: &mut OnRecovered<'_>,
    ) -> Result<MemoryEngine> {
        let mut kept = home.kept();
        if *kept.identity.get_or_insert(identity) != identity {
            return Err(EngineError::new("these rows belong to another shard"));
        }
        // What is read back is durable.
        let written = std::mem::take(&mut kept.written);
        kept.end += written.len() as u64;
        kept.records.extend(written);
        let mut rows = kept.rows.clone();
        let mut told = on_recovered(Recovered::Anew);
        let said_again = kept.facts.iter();
        let recorded = kept.records.iter().flat_map(changes).filter(|what| row_of(what).is_none());
        for fact in said_again.chain(recorded) {
            told = told.and_then(|()| on_recovered(Recovered::Fact(fact.clone())));
        }
        told.map_err(EngineError::new)?;
        kept.records.iter().for_each(|record| apply(&mut rows, record));
        Ok(MemoryEngine {
            home: home.clone(),
            rows,
            changed: Vec::new(),
            pending: Vec::new(),
            flushing: 0,
            appended: kept.end,
            durable: kept.end,
            loads: RefCell::default(),
        })
    }

    fn change(&mut self, key: &[u8], value: Option<&Bytes>) {
        let first = key.first().copied().unwrap_or(RESERVED);
        assert!(first != RESERVED && key.len() <= KEY_BYTES_MAX, "the key {key:?}");
        let key = Bytes::copy_from_slice(key);
        match value {
            Some(value) => self.rows.insert(key.clone(), value.clone()),
            None => self.rows.remove(&key),
        };
        if self.home.is_volatile {
            return;
        }
        self.loads.get_mut().known.insert(key.clone());
        self.changed.push(key);
    }

    /// The first of the records that are not durable become so.
    fn keep(&mut self, count: usize) {
        let mut kept = self.home.kept();
        let written = count.min(kept.written.len());
        kept.written.drain(..written);
        kept.records.extend(self.pending.drain(..count));
        self.durable += count as u64;
        kept.end = self.durable;
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<RowRead> {
        let mut loads = self.loads.borrow_mut();
        if !self.home.is_cold || loads.known.contains(key) {
            return Ok(self.rows.get(key).cloned().into());
        }
        if !loads.asked.iter().any(|asked| asked == key) {
            loads.asked.push(Bytes::copy_from_slice(key));
        }
        Ok(RowRead::Loading)
    }

    fn load(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.rows.get(key).cloned())
    }

    fn loaded(&mut self) -> Option<Bytes> {
        let loads = self.loads.get_mut();
        let key = loads.arrived.pop()?;
        loads.known.insert(key.clone());
        Some(key)
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        if start < end {
            let range = (Bound::Included(start), Bound::Excluded(end));
            let _ = self.rows.range::<[u8], _>(range).try_for_each(|(key, value)| f(key, value));
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &Bytes) {
        self.change(key, Some(value));
    }

    fn delete(&mut self, key: &[u8]) {
        self.change(key, None);
    }

    fn commit(&mut self, record: &Record) -> Position {
        self.appended += 1;
        if self.home.is_volatile {
            self.durable = self.appended;
            return self.appended;
        }
        let said: Vec<&Bytes> = changes(record).filter_map(row_of).map(|(key, _)| key).collect();
        assert_eq!(
            said,
            self.changed.iter().collect::<Vec<_>>(),
            "rows of the record, and changed"
        );
        self.changed.clear();
        self.pending.push(record.clone());
        self.appended
    }

    fn appended(&self) -> Position {
        self.appended
    }

    fn durable(&self) -> Position {
        self.durable
    }

    fn written(&self) -> Position {
        self.durable + self.home.kept().written.len() as u64
    }

    fn write(&mut self) -> Result<()> {
        self.home.kept().written.clone_from(&self.pending);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.flushing = 0;
        self.keep(self.pending.len());
        Ok(())
    }

    fn flush_begin(&mut self, done: impl FnOnce() + Send + 'static) -> Result<()> {
        self.flushing = self.pending.len();
        done();
        Ok(())
    }

    fn flush_finish(&mut self) -> Result<()> {
        let count = std::mem::take(&mut self.flushing);
        self.keep(count);
        Ok(())
    }

    fn begin_step(&mut self, _now: Time) {
        let loads = self.loads.get_mut();
        loads.arrived.append(&mut loads.asked);
    }

    fn end_step<I>(&mut self, _now: Time, facts: impl FnOnce() -> I) -> Result<()>
    where
        I: Iterator<Item = What>,
    {
        assert!(self.changed.is_empty(), "rows were changed that are in no record");
        if self.home.is_volatile || self.home.kept().records.len() < RECORDS_MAX {
            return Ok(());
        }
        // The facts are as of the last record.
        self.flush()?;
        let mut kept = self.home.kept();
        (kept.rows, kept.facts) = (self.rows.clone(), facts().collect());
        kept.records.clear();
        Ok(())
    }

    fn next_step(&self, now: Time) -> Option<Time> {
        let loads = self.loads.borrow();
        (!loads.asked.is_empty() || !loads.arrived.is_empty()).then(|| now + LOAD_TIME)
    }

    fn level(&self) -> Level {
        Level::Enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, EngineUnderTest};

    /// The process that has it open dies: what was written is all that is left.
    struct InMemory(MemoryStorage);

    impl EngineUnderTest for InMemory {
        type Engine = MemoryEngine;

        fn open(&mut self, on_recovered: &mut OnRecovered<'_>) -> Result<MemoryEngine> {
            MemoryEngine::open(&self.0, conformance::IDENTITY, on_recovered)
        }

        fn lose_power(&mut self, _seed: u64) {
            self.0.lose_power();
        }
    }

    #[test]
    fn conforms() {
        for seed in 0..20 {
            conformance::run(&mut InMemory(MemoryStorage::new()), seed);
            conformance::run(&mut InMemory(MemoryStorage::new().cold()), seed);
        }
    }

    #[test]
    fn what_is_volatile_is_durable_at_once_and_ends_with_its_engine() {
        let home = MemoryStorage::new().volatile();
        let open = || MemoryEngine::open(&home, conformance::IDENTITY, &mut |_| Ok(())).unwrap();
        let mut engine = open();
        engine.put(b"a", &Bytes::from_static(b"1"));
        let position = engine.commit(&Record::default());
        assert_eq!((engine.appended(), engine.durable()), (position, position));
        engine.end_step(Time::ZERO, std::iter::empty::<What>).unwrap();
        assert_eq!(engine.load(b"a").unwrap(), Some(Bytes::from_static(b"1")));
        assert_eq!(open().load(b"a").unwrap(), None);
    }

    #[test]
    fn rows_of_another_shard_are_not_opened() {
        let home = MemoryStorage::new();
        assert_eq!(home.cluster(), None);
        let open = |shard| {
            let identity = Identity { shard, ..conformance::IDENTITY };
            MemoryEngine::open(&home, identity, &mut |_| Ok(())).map(drop)
        };
        assert!(open(1).is_ok() && open(2).is_err() && open(1).is_ok());
        assert_eq!(home.cluster(), Some(conformance::IDENTITY.cluster));
    }

    #[test]
    #[should_panic(expected = "rows of the record")]
    fn a_record_that_leaves_out_a_row_is_found() {
        let mut engine =
            MemoryEngine::open(&MemoryStorage::new(), conformance::IDENTITY, &mut |_| Ok(()))
                .unwrap();
        engine.put(b"a", &Bytes::new());
        engine.commit(&Record::default());
    }
}
