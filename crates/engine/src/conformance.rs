//! What every engine must do, as a test that is run on each: random changes, commits, flushes and
//! restarts beside a model.
//!
//! After a crash an engine must be as some record left it, of those from the last durable one on:
//! nothing that was durable is lost, and of no record a part is there. Without a loss of power, of those
//! from the last that was written on.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::rand::Rng;
use saker_runtime::time::Time;
use saker_types::change::{Change, Decision, Record, What};
use saker_types::wire::Row;

use crate::api::{Engine, EngineError, Identity, OnRecovered, Position, Recovered, RowRead};

/// The cluster and shard that the rows belong to.
pub const IDENTITY: Identity = Identity { cluster: [7; 16], shard: 3 };

const LIVES: u64 = 12;
const STEPS: u64 = 60;
const STEP_TIME: Duration = Duration::from_millis(20);
/// Steps within which a row is loaded.
const LOAD_STEPS: u64 = 1000;

/// An engine, and the place where it is.
pub trait EngineUnderTest {
    /// The engine.
    type Engine: Engine;

    /// Opens what is there. The one before was dropped.
    ///
    /// # Errors
    /// The engine's.
    fn open(&mut self, on_recovered: &mut OnRecovered<'_>) -> Result<Self::Engine, EngineError>;

    /// Of what was not made durable, some may be lost.
    fn lose_power(&mut self, seed: u64);
}

/// What there is after a record.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    rows: BTreeMap<Bytes, Bytes>,
    /// Counts records: says which was the last.
    serial: u64,
    decisions: BTreeMap<u64, Decision>,
}

impl State {
    fn apply(&mut self, what: &What) {
        match what {
            What::Put(row) => {
                self.rows.insert(row.key.clone(), row.value.clone());
            }
            What::Delete(key) => {
                self.rows.remove(key);
            }
            fact => self.apply_fact(fact),
        }
    }

    fn apply_fact(&mut self, fact: &What) {
        match fact {
            What::IdsReserved(serial) => self.serial = *serial,
            What::Decision(decision) => {
                self.decisions.insert(decision.number, decision.clone());
            }
            What::DecisionEnd(number) => {
                self.decisions.remove(number);
            }
            other => panic!("never committed: {other:?}"),
        }
    }

    fn facts(&self) -> impl Iterator<Item = What> {
        let decisions = self.decisions.values().cloned().map(What::Decision);
        std::iter::once(What::IdsReserved(self.serial)).chain(decisions)
    }
}

/// The states that a crash may leave, by their serials: the first is durable.
struct Observed {
    states: BTreeMap<u64, State>,
    /// Serials of records that are not known to be durable, by their positions.
    positions: BTreeMap<Position, u64>,
}

impl Observed {
    fn now(&self) -> &State {
        self.states.values().next_back().unwrap()
    }

    /// The process dies: states before the one that was written last are no more.
    fn is_killed(&mut self, written: Position) {
        if let Some((_, serial)) = self.positions.range(..=written).next_back() {
            self.states = self.states.split_off(serial);
        }
    }

    fn is_durable(&mut self, up_to: Position) {
        let later = self.positions.split_off(&(up_to + 1));
        if let Some(serial) = self.positions.values().next_back() {
            self.states = self.states.split_off(serial);
        }
        self.positions = later;
    }
}

/// Runs the suite.
///
/// # Panics
/// If the engine does not conform.
pub fn run<S: EngineUnderTest>(subject: &mut S, seed: u64) {
    let mut rng = Rng::seeded(seed);
    let states = BTreeMap::from([(0, State::default())]);
    let mut observed = Observed { states, positions: BTreeMap::new() };
    let mut now = Time::from_ns(1_000_000_000);
    for life in 0..LIVES {
        let context = format!("seed {seed}, life {life}");
        let mut engine = open(subject, &mut observed, &context);
        let lost_in = rng.below(STEPS);
        for _ in 0..lost_in {
            now += STEP_TIME;
            step(&mut engine, &mut observed, now, &mut rng, &context);
        }
        if rng.chance(1, 3) {
            engine.flush_begin(|| {}).unwrap();
        }
        let written = engine.written();
        drop(engine);
        if rng.chance(1, 2) {
            subject.lose_power(rng.u64());
        } else {
            observed.is_killed(written);
        }
    }
    // What a restart makes of it stays, whatever happens then.
    drop(open(subject, &mut observed, "settled"));
    subject.lose_power(rng.u64());
    drop(open(subject, &mut observed, "settled, and lost power"));
    assert_eq!(observed.states.len(), 1);
}

/// Opens the engine, and finds out which of the states it is in: the others are no more.
fn open<S: EngineUnderTest>(subject: &mut S, observed: &mut Observed, context: &str) -> S::Engine {
    let mut found = State::default();
    let opened = subject.open(&mut |recovered| {
        match recovered {
            Recovered::Anew => found = State::default(),
            Recovered::Fact(fact) => found.apply_fact(&fact),
        }
        Ok(())
    });
    let engine = opened.unwrap_or_else(|e| panic!("{context}: {e}"));
    found.rows = rows(&engine, b"\0", b"\xff\xff");
    let expected = observed.states.get(&found.serial);
    assert_eq!(expected, Some(&found), "{context}: {:?}", observed.states.keys());
    assert_eq!(engine.durable(), engine.appended(), "{context}");
    assert_eq!(engine.durable(), engine.written(), "{context}");
    *observed =
        Observed { states: BTreeMap::from([(found.serial, found)]), positions: BTreeMap::new() };
    engine
}

fn step<E: Engine>(
    engine: &mut E,
    observed: &mut Observed,
    now: Time,
    rng: &mut Rng,
    context: &str,
) {
    engine.begin_step(now);
    for _ in 0..rng.below(3) {
        batch(engine, observed, rng);
    }
    let state = observed.now();
    check(engine, state, rng, context);
    engine.end_step(now, || state.facts()).unwrap();
    observed.is_durable(engine.durable());
    let committed = engine.appended();
    match rng.below(8) {
        0 => engine.flush().unwrap(),
        1 => {
            engine.flush_begin(|| {}).unwrap();
            batch(engine, observed, rng);
            if rng.chance(1, 2) {
                engine.write().unwrap();
            }
            engine.flush_finish().unwrap();
        }
        2..5 => {
            engine.write().unwrap();
            assert_eq!(engine.written(), engine.appended(), "{context}");
            return;
        }
        _ => return,
    }
    assert!(engine.written() >= engine.durable(), "{context}");
    assert!((committed..=engine.appended()).contains(&engine.durable()), "{context}");
    observed.is_durable(engine.durable());
}

/// Some changes, and the record of them.
fn batch<E: Engine>(engine: &mut E, observed: &mut Observed, rng: &mut Rng) {
    let mut state = observed.now().clone();
    let serial = observed.now().serial + 1;
    let mut changes = vec![What::IdsReserved(serial)];
    for n in 0..rng.below(8) {
        let row = Row { key: random_key(rng), value: format!("{serial}.{n}").into() };
        changes.push(match rng.below(9) {
            0..5 => What::Put(row),
            5..7 => What::Delete(row.key),
            7 => What::Decision(Decision { number: serial, participants: vec![n as u32] }),
            _ => What::DecisionEnd(serial.saturating_sub(rng.below(5))),
        });
    }
    for what in &changes {
        match what {
            What::Put(row) => engine.put(&row.key, &row.value),
            What::Delete(key) => engine.delete(key),
            _ => {}
        }
        state.apply(what);
    }
    // Before the record, too.
    check(engine, &state, rng, "in a batch");
    let before = engine.appended();
    let changes = changes.into_iter().map(|what| Change { what: Some(what) }).collect();
    let position = engine.commit(&Record { changes });
    assert!(position > before && position == engine.appended());
    observed.positions.insert(position, serial);
    observed.states.insert(serial, state);
}

fn random_key(rng: &mut Rng) -> Bytes {
    let len = 1 + rng.below(3) as usize;
    (0..len).map(|_| b'a' + rng.below(5) as u8).collect()
}

fn rows<E: Engine>(engine: &E, start: &[u8], end: &[u8]) -> BTreeMap<Bytes, Bytes> {
    let mut rows = BTreeMap::new();
    engine
        .scan(start, end, |key, value| {
            let key = Bytes::copy_from_slice(key);
            assert!(rows.last_key_value().is_none_or(|(last, _)| *last < key), "in order");
            rows.insert(key, Bytes::copy_from_slice(value));
            ControlFlow::Continue(())
        })
        .unwrap();
    rows
}

fn check<E: Engine>(engine: &mut E, state: &State, rng: &mut Rng, context: &str) {
    for _ in 0..3 {
        let key = random_key(rng);
        let expected = state.rows.get(&key).cloned();
        if rng.chance(1, 4) {
            engine.prefetch(&key);
        }
        let read = read(engine, &key);
        assert_eq!(read, expected.clone().into(), "{context}: {key:?}");
        assert_eq!(engine.load(&key).unwrap(), expected, "{context}: {key:?}");
    }
    let (start, end) = (random_key(rng), random_key(rng));
    let in_range = |key: &Bytes| *key >= start && *key < end;
    let part = state.rows.iter().filter(|(key, _)| in_range(key));
    let part: BTreeMap<_, _> = part.map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_eq!(rows(engine, &start, &end), part, "{context}: {start:?}..{end:?}");
    let mut first = None;
    let take_one = |key: &[u8], _: &[u8]| {
        assert_eq!(first.replace(Bytes::copy_from_slice(key)), None, "it goes on after a break");
        ControlFlow::Break(())
    };
    engine.scan(&start, b"\xff", take_one).unwrap();
    assert_eq!(first.as_ref(), state.rows.keys().find(|key| **key >= start), "{context}");
}

/// A row; if it is being loaded, when it is.
fn read<E: Engine>(engine: &mut E, key: &Bytes) -> RowRead {
    let first = engine.get(key).unwrap();
    if first != RowRead::Loading {
        return first;
    }
    assert_eq!(engine.get(key).unwrap(), RowRead::Loading, "asked twice in a step");
    let mut now = Time::from_ns(1_000_000_000);
    for _ in 0..LOAD_STEPS {
        now = engine.next_step(now).expect("a row is being loaded");
        engine.begin_step(now);
        let loaded: Vec<Bytes> = std::iter::from_fn(|| engine.loaded()).collect();
        if !loaded.is_empty() {
            assert_eq!(loaded, std::slice::from_ref(key), "what was asked for, once");
            return engine.get(key).unwrap();
        }
    }
    panic!("{key:?} is not loaded");
}
