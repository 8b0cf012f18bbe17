//! The engine that an owner was given, chosen when it starts: a call is a branch, not a pointer.
//!
//! A further engine is a variant here, and a file beside [`crate::embedded`].

use std::ops::ControlFlow;

use bytes::Bytes;
use saker_runtime::time::Time;
use saker_types::change::{Record, What};

use crate::api::{Engine, EngineError, Identity, Level, OnRecovered, Position, Reads, RowRead};
use crate::embedded::{self, Embedded};
use crate::memory::{self, MemoryEngine};

type Result<T> = std::result::Result<T, EngineError>;

/// Where rows and records are, not opened yet.
pub enum EngineSource {
    /// On a disk of this machine.
    Embedded(embedded::EmbeddedOptions),
    /// In memory.
    Memory(memory::MemoryStorage),
}

impl EngineSource {
    /// The cluster whose data is there; `None`: nothing is.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn cluster(&self) -> Result<Option<[u8; 16]>> {
        match self {
            EngineSource::Embedded(home) => home.cluster(),
            EngineSource::Memory(home) => Ok(home.cluster()),
        }
    }

    /// Opens what is there, or begins it; hands back what is no row.
    ///
    /// # Errors
    /// What keeps it from being opened: another's data, a newer format, damage, `on_recovered`.
    pub fn open(self, identity: Identity, on_recovered: &mut OnRecovered<'_>) -> Result<AnyEngine> {
        match self {
            EngineSource::Embedded(home) => {
                Embedded::open(home, identity, on_recovered).map(AnyEngine::Embedded)
            }
            EngineSource::Memory(home) => {
                MemoryEngine::open(&home, identity, on_recovered).map(AnyEngine::Memory)
            }
        }
    }
}

/// One of the engines.
#[allow(clippy::large_enum_variant, reason = "one lives as long as its owner, and is not moved")]
pub enum AnyEngine {
    /// On a disk of this machine.
    Embedded(Embedded),
    /// In memory.
    Memory(MemoryEngine),
}

macro_rules! each {
    ($any:expr, $engine:ident => $call:expr) => {
        match $any {
            AnyEngine::Embedded($engine) => $call,
            AnyEngine::Memory($engine) => $call,
        }
    };
}

impl Engine for AnyEngine {
    fn get(&self, key: &[u8]) -> Result<RowRead> {
        each!(self, engine => engine.get(key))
    }

    fn load(&self, key: &[u8]) -> Result<Option<Bytes>> {
        each!(self, engine => engine.load(key))
    }

    fn loaded(&mut self) -> Option<Bytes> {
        each!(self, engine => engine.loaded())
    }

    fn prefetch(&self, key: &[u8]) {
        each!(self, engine => engine.prefetch(key));
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        each!(self, engine => engine.scan(start, end, f))
    }

    fn reads(&self) -> Reads {
        each!(self, engine => engine.reads())
    }

    fn put(&mut self, key: &[u8], value: &Bytes) {
        each!(self, engine => engine.put(key, value));
    }

    fn delete(&mut self, key: &[u8]) {
        each!(self, engine => engine.delete(key));
    }

    fn commit(&mut self, record: &Record) -> Position {
        each!(self, engine => engine.commit(record))
    }

    fn appended(&self) -> Position {
        each!(self, engine => engine.appended())
    }

    fn durable(&self) -> Position {
        each!(self, engine => engine.durable())
    }

    fn written(&self) -> Position {
        each!(self, engine => engine.written())
    }

    fn write(&mut self) -> Result<()> {
        each!(self, engine => engine.write())
    }

    fn flush(&mut self) -> Result<()> {
        each!(self, engine => engine.flush())
    }

    fn flush_begin(&mut self, done: impl FnOnce() + Send + 'static) -> Result<()> {
        each!(self, engine => engine.flush_begin(done))
    }

    fn flush_finish(&mut self) -> Result<()> {
        each!(self, engine => engine.flush_finish())
    }

    fn begin_step(&mut self, now: Time) {
        each!(self, engine => engine.begin_step(now));
    }

    fn end_step<I>(&mut self, now: Time, facts: impl FnOnce() -> I) -> Result<()>
    where
        I: Iterator<Item = What>,
    {
        each!(self, engine => engine.end_step(now, facts))
    }

    fn next_step(&self, now: Time) -> Option<Time> {
        each!(self, engine => engine.next_step(now))
    }

    fn level(&self) -> Level {
        each!(self, engine => engine.level())
    }
}
