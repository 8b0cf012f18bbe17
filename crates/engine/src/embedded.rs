//! The engine of a machine's own disk: a journal and a table.
//!
//! ```text
//! a record ──> journal (append, flush) ──> replies may leave
//! its rows ──> Db overlay ──checkpoint──> Table        then the journal is trimmed
//! ```
//!
//! Without a table there are facts only, and a checkpoint is a new segment of the journal, which says
//! all of them again.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_runtime::failpoint;
use saker_runtime::fs::{Dir, is_full};
use saker_runtime::sim::mutation;
use saker_runtime::thread::Job;
use saker_runtime::time::Time;
use saker_types::change::{Record, What};

use crate::api::{
    Engine, EngineError, Identity, Level, OnRecovered, Position, Reads, Recovered, RowRead,
};
use crate::db::Db;
use crate::journal::{
    self, Journal, JournalConfig, JournalError, JournalRecordKind, ReplayError, ReplayFrom,
    SegmentNo,
};
use crate::room::{Room, RoomConfig};
use crate::snapshot;
use crate::table::{EmbeddedConfig, EmbeddedTable, Table, TableError};

/// Overlay bytes, in limits, at which a step waits for the checkpoint under way: memory is bounded.
const OVERLAY_LIMITS: u64 = 2;
/// Pause after a checkpoint for which the disk had no room.
const FULL_PAUSE: Duration = Duration::from_secs(1);
/// How often a running checkpoint is looked at.
const CHECKPOINT_TICK: Duration = Duration::from_millis(5);

type Result<T> = std::result::Result<T, EngineError>;

impl From<JournalError> for EngineError {
    fn from(error: JournalError) -> EngineError {
        EngineError::new(error)
    }
}

impl From<TableError> for EngineError {
    fn from(error: TableError) -> EngineError {
        EngineError::new(error)
    }
}

/// When a checkpoint is due, and how the journal lies on the disk.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of changed rows in memory before a checkpoint writes them to the table.
    pub overlay_bytes: u64,
    /// Bytes of the journal after which one is due although few rows changed (but those often): a
    /// restart must not read for long.
    pub replay_bytes: u64,
    /// Bytes by which the journal's files are allocated ahead.
    pub segment_bytes: u64,
}

impl Sizes {
    /// For facts only, which are written again after so many bytes.
    pub fn of_facts(segment_bytes: u64) -> Sizes {
        Sizes { overlay_bytes: 0, replay_bytes: segment_bytes, segment_bytes }
    }

    /// A checkpoint must have room for a segment of the journal and the rows in memory.
    fn room(&self) -> RoomConfig {
        let Sizes { overlay_bytes, segment_bytes, .. } = *self;
        let free_bytes_min = segment_bytes + OVERLAY_LIMITS * overlay_bytes;
        RoomConfig { reserve_bytes: segment_bytes, free_bytes_min, segment_bytes }
    }
}

/// Where an [`Embedded`] is.
pub struct EmbeddedOptions {
    /// Directory of the journal.
    pub journal: Arc<dyn Dir>,
    /// The rows; `None` for facts only.
    pub table: Option<Arc<dyn Table>>,
    /// When a checkpoint is due.
    pub sizes: Sizes,
}

impl EmbeddedOptions {
    /// Journal and table in a directory of their own; the table keeps so many bytes of rows in memory.
    ///
    /// # Errors
    /// Those of the table.
    pub fn in_dir(dir: &dyn Dir, sizes: Sizes, cache_bytes: usize) -> Result<EmbeddedOptions> {
        let config = EmbeddedConfig { cache_bytes, ..EmbeddedConfig::default() };
        let table =
            EmbeddedTable::open_in(dir.sub_dir("table").map_err(EngineError::new)?, &config)?;
        let journal = dir.sub_dir("journal").map_err(EngineError::new)?;
        Ok(EmbeddedOptions { journal, table: Some(Arc::new(table)), sizes })
    }

    /// The cluster whose data is there; `None`: nothing is.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn cluster(&self) -> Result<Option<[u8; 16]>> {
        Ok(journal::cluster_of(&*self.journal)?)
    }
}

/// The checkpoint under way, if any.
#[derive(Default)]
struct Checkpoint {
    running: Option<(SegmentNo, Job<std::result::Result<(), TableError>>)>,
    /// After one for which there was no room.
    not_before: Time,
    /// Bytes with which the current journal segment began: the next checkpoint would not save them.
    snapshot_bytes: u64,
}

/// An open engine.
pub struct Embedded {
    journal: Journal,
    rows: Option<Db>,
    room: Room,
    sizes: Sizes,
    checkpoint: Checkpoint,
}

impl Embedded {
    /// Opens what is there, or begins it.
    ///
    /// # Errors
    /// What keeps it from being opened: another's data, a newer format, damage, `on_recovered`.
    pub fn open(
        home: EmbeddedOptions,
        identity: Identity,
        on_recovered: &mut OnRecovered<'_>,
    ) -> Result<Embedded> {
        let EmbeddedOptions { journal: dir, table, sizes } = home;
        let Identity { cluster, shard } = identity;
        let mut rows = table.map(Db::open).transpose()?;
        // Without a table each segment says everything again.
        let replay_from = rows.as_ref().map_or(ReplayFrom::Oldest, Db::replay_from);
        let segment_bytes = sizes.segment_bytes;
        let config = JournalConfig { segment_bytes, ..JournalConfig::new(cluster, shard) };
        let journal = Journal::open(dir.clone(), config, replay_from, &mut |_, kind, payload| {
            if kind == JournalRecordKind::Snapshot {
                on_recovered(Recovered::Anew)?;
            }
            replay(rows.as_mut(), payload, on_recovered)
        })?;
        let room = Room::new(dir, sizes.room());
        Ok(Embedded { journal, rows, room, sizes, checkpoint: Checkpoint::default() })
    }

    fn rows(&self) -> &Db {
        self.rows.as_ref().expect("an engine that was opened with a table")
    }

    fn rows_mut(&mut self) -> &mut Db {
        self.rows.as_mut().expect("an engine that was opened with a table")
    }

    fn overlay_bytes(&self) -> u64 {
        self.rows.as_ref().map_or(0, |rows| rows.overlay_bytes() as u64)
    }

    fn is_due(&self) -> bool {
        let Sizes { overlay_bytes, replay_bytes, .. } = self.sizes;
        let journal = self.journal.segment_bytes() - self.checkpoint.snapshot_bytes;
        journal >= replay_bytes || self.rows.is_some() && self.overlay_bytes() >= overlay_bytes
    }

    /// The disk is full: the journal goes on for as long as it has room.
    fn put_off(&mut self, now: Time, why: &dyn std::fmt::Display) {
        tracing::warn!("a checkpoint is put off: {why}");
        self.checkpoint.not_before = now + FULL_PAUSE;
    }

    fn begin_checkpoint(&mut self, now: Time, facts: impl Iterator<Item = What>) -> Result<()> {
        let rows = self.rows.as_ref().map_or(0, |rows| rows.overlay_bytes() + rows.frozen_bytes());
        if !self.room.has_room_for(self.sizes.segment_bytes + rows as u64) {
            self.put_off(now, &"the disk is full");
            return Ok(());
        }
        let segment = match self.journal.rotate_in_pieces(snapshot::pieces(facts)) {
            Err(error) if error.is_full() => {
                self.put_off(now, &error);
                return Ok(());
            }
            rotated => rotated?,
        };
        self.checkpoint.snapshot_bytes = self.journal.segment_bytes();
        match &mut self.rows {
            Some(rows) => {
                let checkpoint = rows.checkpoint_begin(segment);
                let job = Job::start("checkpoint", move || checkpoint.run());
                self.checkpoint.running = Some((segment, job.map_err(EngineError::new)?));
                failpoint!("checkpoint.begun");
            }
            None => self.trim(segment),
        }
        Ok(())
    }

    fn finish_checkpoint(&mut self, now: Time, wait: bool) -> Result<()> {
        let done = |(_, job): &mut (u64, Job<_>)| wait || job.is_finished();
        let Some((segment, job)) = self.checkpoint.running.take_if(done) else {
            return Ok(());
        };
        let result = job.join().map_err(|_| EngineError::new("the checkpoint panicked"))?;
        match self.rows_mut().checkpoint_finish(result) {
            // The rows stay in memory and in the journal, and nothing that counts was written.
            Err(TableError::Io(error)) if is_full(&error) => {
                self.put_off(now, &error);
                return Ok(());
            }
            finished => finished?,
        }
        failpoint!("checkpoint.written");
        self.trim(segment);
        Ok(())
    }

    fn trim(&mut self, before: SegmentNo) {
        if let Err(e) = self.journal.trim(before) {
            // A segment too many is read again at the next start; nothing is lost.
            tracing::warn!("cannot trim the journal: {e}");
        }
    }
}

/// Applies a record's rows, and hands back the rest.
fn replay(
    mut rows: Option<&mut Db>,
    payload: &[u8],
    on_recovered: &mut OnRecovered<'_>,
) -> std::result::Result<(), ReplayError> {
    const NO_TABLE: &str = "a row where there is no table";
    for change in Record::decode(payload)?.changes {
        match change.what {
            Some(What::Put(row)) => rows.as_mut().ok_or(NO_TABLE)?.put(&row.key, &row.value),
            Some(What::Delete(key)) => rows.as_mut().ok_or(NO_TABLE)?.delete(&key),
            Some(fact) => on_recovered(Recovered::Fact(fact))?,
            // Written by a newer version under a compatible feature bit.
            None => {}
        }
    }
    Ok(())
}

impl Engine for Embedded {
    fn get(&self, key: &[u8]) -> Result<RowRead> {
        self.load(key).map(RowRead::from)
    }

    fn load(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.rows().get(key)?)
    }

    fn prefetch(&self, key: &[u8]) {
        self.rows().prefetch(key);
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        Ok(self.rows().scan(start, end, f)?)
    }

    fn reads(&self) -> Reads {
        self.rows.as_ref().map(Db::reads).unwrap_or_default()
    }

    fn put(&mut self, key: &[u8], value: &Bytes) {
        self.rows_mut().put(key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        self.rows_mut().delete(key);
    }

    fn commit(&mut self, record: &Record) -> Position {
        self.journal.append_with(JournalRecordKind::Changes, |out| {
            record.encode(out).expect("a Vec grows as needed");
        })
    }

    fn appended(&self) -> Position {
        self.journal.appended()
    }

    fn durable(&self) -> Position {
        self.journal.durable()
    }

    fn written(&self) -> Position {
        if mutation("records are not written") {
            return self.appended();
        }
        self.journal.written()
    }

    fn write(&mut self) -> Result<()> {
        if mutation("records are not written") {
            return Ok(());
        }
        Ok(self.journal.write()?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.journal.flush()?)
    }

    fn flush_begin(&mut self, done: impl FnOnce() + Send + 'static) -> Result<()> {
        self.journal.flush_begin(done)?;
        Ok(())
    }

    fn flush_finish(&mut self) -> Result<()> {
        Ok(self.journal.flush_finish()?)
    }

    fn begin_step(&mut self, now: Time) {
        self.room.look(now, &mut self.journal);
    }

    fn end_step<I>(&mut self, now: Time, facts: impl FnOnce() -> I) -> Result<()>
    where
        I: Iterator<Item = What>,
    {
        self.journal.keep_up()?;
        let must_wait = self.overlay_bytes() >= self.sizes.overlay_bytes * OVERLAY_LIMITS;
        self.finish_checkpoint(now, must_wait)?;
        let may_begin = self.checkpoint.running.is_none() && now >= self.checkpoint.not_before;
        if may_begin && self.is_due() {
            self.begin_checkpoint(now, facts())?;
        }
        Ok(())
    }

    fn next_step(&self, now: Time) -> Option<Time> {
        self.checkpoint.running.is_some().then(|| now + CHECKPOINT_TICK)
    }

    fn level(&self) -> Level {
        self.room.level()
    }
}

#[cfg(test)]
mod tests;
