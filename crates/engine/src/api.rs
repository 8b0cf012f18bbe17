//! What a shard, and the coordinator, stand on: rows, and records that change them.
//!
//! ```text
//! get ──> a row, none, or not loaded yet: the request is parked until `loaded` names the row
//! put, delete ──> seen by every read from here on
//! commit(record) ──> a position; when `durable` has reached it, replies may leave; where less is
//!                     promised, when `written` has
//! open ──> rows as the last record left them; what is no row is handed back (`Recovered`)
//! ```
//!
//! What a record says besides rows (results, votes, decisions, ids, the map: *facts*) its owner keeps
//! in memory. An engine that drops records asks for these facts again, at the end of a step. When it
//! does that, where the rows go and on which thread is its own matter.
//!
//! `saker_engine::conformance` is what each engine must pass.

use std::ops::ControlFlow;

use bytes::Bytes;
use saker_runtime::time::Time;
use saker_types::change::{Record, What};

/// A place in the order of an engine's records: that of the record committed last. Only grows.
pub type Position = u64;

/// First byte of the engines' own keys.
pub const RESERVED: u8 = 0xff;

/// Longest key of a row, in bytes.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// Why an engine does not go on. Nobody but its operator can do anything about it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EngineError(BoxError);

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

type Result<T> = std::result::Result<T, EngineError>;

impl EngineError {
    /// One of an engine's own.
    pub fn new(cause: impl Into<BoxError>) -> EngineError {
        EngineError(cause.into())
    }
}

/// What is known of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowRead {
    /// Its value.
    Found(Bytes),
    /// There is none.
    Absent,
    /// It is being loaded: [`Engine::loaded`] names it when it is known.
    Loading,
}

impl From<Option<Bytes>> for RowRead {
    fn from(row: Option<Bytes>) -> RowRead {
        row.map_or(RowRead::Absent, RowRead::Found)
    }
}

/// What an engine hands back when it is opened, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Recovered {
    /// All facts follow: those handed back before do not count.
    Anew,
    /// A change that is no row's.
    Fact(What),
}

/// Takes what is handed back; an error keeps the engine from being opened.
pub type OnRecovered<'a> = dyn FnMut(Recovered) -> std::result::Result<(), BoxError> + 'a;

/// Whose rows these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: [u8; 16],
    /// The shard; `u32::MAX`: the coordinator.
    pub shard: u32,
}

/// How looks at rows were served, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// From blocks that are kept in memory.
    pub found: u64,
    /// From the disk, of those that may be in such a block.
    pub missed: u64,
    /// Looks that have waited for a disk.
    pub waited: u64,
}

/// What may still be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything.
    Enough,
    /// What takes no more space in the end than is there now: removals, renames, attributes.
    Short,
    /// Nothing: there is no room left for a record.
    Out,
}

/// Rows and records of one owner, which is one thread.
pub trait Engine {
    // ---- rows -----------------------------------------------------------------------------

    /// A row, if that can be told at once.
    ///
    /// # Errors
    /// When it cannot be read.
    fn get(&self, key: &[u8]) -> Result<RowRead>;

    /// A row, however long that takes: for whoever cannot be parked.
    ///
    /// # Errors
    /// As [`Engine::get`].
    fn load(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// A row that is known by now, of those for which [`Engine::get`] said
    /// [`RowRead::Loading`]; each is named once.
    fn loaded(&mut self) -> Option<Bytes> {
        None
    }

    /// This row will be read soon.
    fn prefetch(&self, _key: &[u8]) {}

    /// Calls `f` with the rows from `start` (inclusive) to `end` (exclusive) in order of keys,
    /// until it breaks. Waits for rows that are not loaded.
    ///
    /// # Errors
    /// As [`Engine::get`].
    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()>;

    /// How looks at rows were served.
    fn reads(&self) -> Reads {
        Reads::default()
    }

    /// Sets a row. The next record says so, too.
    ///
    /// # Panics
    /// If the key is empty, over [`KEY_BYTES_MAX`] or starts with [`RESERVED`].
    fn put(&mut self, key: &[u8], value: &Bytes);

    /// Removes a row, whether it is there or not. The next record says so, too.
    ///
    /// # Panics
    /// As [`Engine::put`].
    fn delete(&mut self, key: &[u8]);

    // ---- records --------------------------------------------------------------------------

    /// All changes since the last record, those of rows in the order of [`Engine::put`] and
    /// [`Engine::delete`]: they become durable together. Returns the record's position.
    fn commit(&mut self, record: &Record) -> Position;

    /// The position of the last record.
    fn appended(&self) -> Position;

    /// Records up to here survive a crash. Only grows, and only in `flush` and `flush_finish`.
    fn durable(&self) -> Position;

    /// Records up to here survive the death of the process, those that are not durable no loss of power.
    /// At least [`Engine::durable`]. Only grows, and only in `write`, `flush` and `flush_finish`.
    fn written(&self) -> Position;

    /// Has records survive the death of the process, without waiting for a disk. All of them, unless a
    /// flush is under way: then perhaps none, before it has ended.
    ///
    /// # Errors
    /// As [`Engine::flush`].
    fn write(&mut self) -> Result<()>;

    /// Makes all records durable, on this thread, after a flush that is under way.
    ///
    /// # Errors
    /// After any the process must stop: what is durable is unknown.
    fn flush(&mut self) -> Result<()>;

    /// Starts to make the records so far durable elsewhere. `done` is called, on any thread, when
    /// [`Engine::flush_finish`] will not wait; or dropped when nothing was to be done.
    ///
    /// # Errors
    /// As [`Engine::flush`].
    fn flush_begin(&mut self, done: impl FnOnce() + Send + 'static) -> Result<()>;

    /// Takes the result of the flush under way, waiting for it; nothing if there is none.
    ///
    /// # Errors
    /// As [`Engine::flush`].
    fn flush_finish(&mut self) -> Result<()>;

    // ---- steps ----------------------------------------------------------------------------

    /// A step of the owner begins.
    fn begin_step(&mut self, now: Time);

    /// It ends, all its changes committed. The engine does what it must: it may begin to put rows
    /// where they stay, for which it asks for all `facts`, or wait if it is too far behind.
    ///
    /// # Errors
    /// As [`Engine::flush`].
    fn end_step<I>(&mut self, now: Time, facts: impl FnOnce() -> I) -> Result<()>
    where
        I: Iterator<Item = What>;

    /// When the next step must begin for the engine's sake.
    fn next_step(&self, now: Time) -> Option<Time>;

    /// What may still be written.
    fn level(&self) -> Level;
}
