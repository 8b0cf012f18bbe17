//! Raw figures of the engine on one machine and disk: what a shard could do if it did nothing
//! else. `saker bench` and `examples/engine_bench.rs` print them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::fs::RealDir;
use saker_runtime::rand::Rng;
use saker_runtime::thread::{self, JoinHandle};
use saker_runtime::time;

use crate::db::{Checkpoint, Db};
use crate::journal::{Journal, JournalConfig, JournalRecordKind, ReplayFrom, SegmentNo};
use crate::table::{EmbeddedConfig, EmbeddedTable, TableError};

const OVERLAY_BYTES_MAX: usize = 64 << 20;
const VALUE_BYTES: usize = 160;
const OVERLAY_ROWS: u64 = 200_000;
const TABLE_ROWS: u64 = 1_000_000;
/// Writes wait when the running checkpoint leaves them this many overlays behind.
const OVERLAYS_MAX: usize = 2;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How fast one thing goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figure {
    /// Rows written or read.
    pub ops: u64,
    /// Wall time.
    pub time: Duration,
    /// CPU time of the whole process: the shard's thread, checkpoints, compaction.
    pub cpu: Duration,
}

impl Figure {
    /// Operations in a second of wall time.
    pub fn per_s(&self) -> f64 {
        self.ops as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// Microseconds of CPU for an operation.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.ops.max(1) as f64
    }
}

/// What [`raw`] measures. A write is a journal append, an overlay put of a 200-byte row and its
/// part of a flush, with checkpoints taken as a shard takes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawFigures {
    /// Writes, 256 to a flush.
    pub write_256: Figure,
    /// Writes, one to a flush.
    pub write_1: Figure,
    /// Random reads of rows in the overlay.
    pub read_overlay: Figure,
    /// Random reads of rows in a table of a million.
    pub read_table: Figure,
    /// Random reads of rows that this table does not have.
    pub read_absent: Figure,
}

impl fmt::Display for RawFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, figure) in [
            ("write, 256 to a flush", &self.write_256),
            ("write, 1 to a flush", &self.write_1),
            ("read from the overlay", &self.read_overlay),
            ("read from the table", &self.read_table),
            ("read of an absent row", &self.read_absent),
        ] {
            let (per_s, cpu_us) = (figure.per_s(), figure.cpu_us());
            writeln!(f, "{name:22} {per_s:12.0} ops/s {cpu_us:8.2} CPU us/op")?;
        }
        Ok(())
    }
}

/// Measures in `dir`, which should be empty, for `seconds` in each of the five phases.
///
/// # Errors
/// Whatever the journal or the table report.
pub fn raw(dir: &Path, seconds: f64) -> Outcome<RawFigures> {
    let phase = Duration::from_secs_f64(seconds);
    let mut shard = EngineShard::open(&dir.join("writes"))?;
    let write_256 = measure(phase, || shard.write_batch(256))?;
    let write_1 = measure(phase, || shard.write_batch(1))?;
    shard.finish_checkpoint()?;
    drop(shard);

    let mut db = load(&dir.join("reads"))?;
    let mut rng = Rng::seeded(2);
    let read_table = reads(&db, phase, &mut || row_key(rng.below(TABLE_ROWS)), true)?;
    let read_absent = reads(&db, phase, &mut || row_key(TABLE_ROWS + rng.u64() / 2), false)?;
    (0..OVERLAY_ROWS).for_each(|n| db.put(&row_key(n), &row_value(n)));
    let read_overlay = reads(&db, phase, &mut || row_key(rng.below(OVERLAY_ROWS)), true)?;
    Ok(RawFigures { write_256, write_1, read_overlay, read_table, read_absent })
}

fn measure(phase: Duration, mut step: impl FnMut() -> Outcome<u64>) -> Outcome<Figure> {
    let (start, cpu) = (time::now(), time::process_cpu());
    let mut figure = Figure::default();
    while figure.time < phase {
        figure.ops += step()?;
        figure.time = time::now() - start;
    }
    figure.cpu = time::process_cpu() - cpu;
    Ok(figure)
}

fn reads(
    db: &Db,
    phase: Duration,
    key: &mut dyn FnMut() -> Vec<u8>,
    present: bool,
) -> Outcome<Figure> {
    // Twice, so that what is measured is what the caches keep.
    for measured in [false, true] {
        let figure = measure(if measured { phase } else { phase / 2 }, || {
            for _ in 0..100 {
                if db.get(&key())?.is_some() != present {
                    return Err("a row is not as it was written".into());
                }
            }
            Ok(100)
        })?;
        if measured {
            return Ok(figure);
        }
    }
    Ok(Figure::default())
}

/// Keys as inode rows have them: all over the table, 40 bytes long.
fn row_key(n: u64) -> Vec<u8> {
    let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = vec![b'i'];
    key.extend_from_slice(&hash.to_be_bytes());
    key.extend_from_slice(format!("name-of-a-file-{n:016x}").as_bytes());
    key
}

fn row_value(n: u64) -> Bytes {
    let mut value = vec![0; VALUE_BYTES];
    // Half of it does not compress.
    Rng::seeded(n).fill(&mut value[..VALUE_BYTES / 2]);
    value.into()
}

fn load(path: &Path) -> Outcome<Db> {
    let table = EmbeddedTable::open(path, &EmbeddedConfig::default())?;
    let mut db = Db::open(Arc::new(table))?;
    for n in 0..TABLE_ROWS {
        db.put(&row_key(n), &row_value(n));
        if db.overlay_bytes() > OVERLAY_BYTES_MAX || n + 1 == TABLE_ROWS {
            let checkpoint = db.checkpoint_begin(n);
            db.checkpoint_finish(checkpoint.run())?;
        }
    }
    Ok(db)
}

/// The part of a shard that uses the engine.
struct EngineShard {
    journal: Journal,
    db: Db,
    written: u64,
    segment: SegmentNo,
    /// Dropped first, so that the thread ends.
    to_thread: Option<Sender<Checkpoint>>,
    finished: Receiver<Result<(), TableError>>,
    thread: Option<JoinHandle<()>>,
    value: Bytes,
}

impl EngineShard {
    fn open(path: &Path) -> Outcome<EngineShard> {
        let table = EmbeddedTable::open(path.join("table"), &EmbeddedConfig::default())?;
        let dir = Arc::new(RealDir::open(path.join("journal"))?);
        let config = JournalConfig::new([0; 16], 0);
        let journal = Journal::open(dir, config, ReplayFrom::Oldest, &mut |_, _, _| Ok(()))?;
        let db = Db::open(Arc::new(table))?;
        let (to_thread, checkpoints) = channel::<Checkpoint>();
        let (results, finished) = channel();
        let thread = thread::spawn("checkpoint", move || {
            for checkpoint in checkpoints {
                if results.send(checkpoint.run()).is_err() {
                    break;
                }
            }
        })?;
        let (to_thread, thread) = (Some(to_thread), Some(thread));
        let value = row_value(0);
        Ok(EngineShard { journal, db, written: 0, segment: 0, to_thread, finished, thread, value })
    }

    fn write_batch(&mut self, rows: u64) -> Outcome<u64> {
        let first = self.written;
        self.written += rows;
        let (db, value) = (&mut self.db, &self.value);
        self.journal.append_with(JournalRecordKind::Changes, |record| {
            for n in first..first + rows {
                let key = row_key(n);
                record.extend_from_slice(&key);
                record.extend_from_slice(value);
                db.put(&key, value);
            }
        });
        self.journal.flush()?;
        if let Ok(result) = self.finished.try_recv() {
            self.db.checkpoint_finish(result)?;
            self.journal.trim(self.segment)?;
        }
        if self.db.overlay_bytes() > OVERLAY_BYTES_MAX * OVERLAYS_MAX {
            self.finish_checkpoint()?;
        }
        if self.db.overlay_bytes() > OVERLAY_BYTES_MAX && !self.db.checkpointing() {
            self.segment = self.journal.rotate(b"")?;
            let checkpoint = self.db.checkpoint_begin(self.segment);
            self.to_thread.as_ref().ok_or("closed")?.send(checkpoint)?;
        }
        Ok(rows)
    }

    fn finish_checkpoint(&mut self) -> Outcome<()> {
        if self.db.checkpointing() {
            self.db.checkpoint_finish(self.finished.recv()?)?;
            self.journal.trim(self.segment)?;
        }
        Ok(())
    }
}

impl Drop for EngineShard {
    fn drop(&mut self) {
        self.to_thread = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has already said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_shard_writes_what_can_be_read_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut shard = EngineShard::open(dir.path()).unwrap();
        assert_eq!(shard.write_batch(300).unwrap(), 300);
        shard.segment = shard.journal.rotate(b"").unwrap();
        let checkpoint = shard.db.checkpoint_begin(shard.segment);
        shard.to_thread.as_ref().unwrap().send(checkpoint).unwrap();
        shard.finish_checkpoint().unwrap();
        drop(shard);
        let table = EmbeddedTable::open(dir.path().join("table"), &EmbeddedConfig::default());
        let db = Db::open(Arc::new(table.unwrap())).unwrap();
        let figure = reads(&db, Duration::from_millis(20), &mut || row_key(299), true).unwrap();
        assert!(figure.ops >= 100 && figure.per_s() > 0.0 && figure.cpu_us() > 0.0);
        assert!(reads(&db, Duration::from_millis(20), &mut || row_key(300), true).is_err());
    }
}
