//! The store: writes, reads, truncations and deletions of chunks.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use saker_engine::table::Table;
use saker_runtime::fs::Dir;
use saker_runtime::telemetry::Registry;
use saker_runtime::time::{self, Time, wall_ns};
use saker_types::limits::{CHUNK_BYTES, FILE_BYTES_MAX};
use saker_types::wire::{
    ChunkDeleteReq, ChunkInfo, ChunkListReply, ChunkListReq, ChunkQuarantineReply,
    ChunkQuarantineReq, ChunkReadReply, ChunkReadReq, ChunkSeekReply, ChunkSeekReq,
    ChunkTruncateReq, ChunkWriteReply, ChunkWriteReq, StoreStats,
};
use saker_types::{Class, Errno, Error, InodeId, Result, Unflushed};

use crate::attempts::Attempts;
use crate::epochs::Epochs;
use crate::extent::Extent;
use crate::fetches::Fetches;
use crate::format::{self, Identity, Kind, REPLICAS_MAX, Record};
use crate::index::{self, ChunkKey, Index, Piece};
use crate::log::{Draft, Log, Purpose, SpaceFn};
use crate::maintain::Maintenance;
use crate::metrics::Metrics;
use crate::quarantine::Quarantine;
use crate::read::{self, Fetch, ReadError};
use crate::recover;
use crate::segment::Segments;
use crate::wait::{Wait, locked, would_wait};

/// Most ids in one record of a deletion.
const DELETE_IDS_MAX: usize = 512;
/// A chunk of so many extents is written anew in the background; once more at each multiple.
const EXTENTS_MAX: usize = 256;
/// Chunks that wait for it; more are left to the next write of them.
const REWRITES_MAX: usize = 1024;
/// A store remembers so many inodes whose chunks were deleted, and refuses late writes to them.
pub const DELETED_MAX: u64 = 1 << 20;
/// Most chunks in one list.
pub(crate) const LIST_MAX: usize = 1024;
/// A read looks its data up so many times more if it is moved meanwhile.
const LOOKUPS_MAX: u32 = 10;
/// A write into the page cache that takes longer than this waits: the disk does not keep up.
const SLOW_WRITE: Duration = Duration::from_millis(10);
/// Then writes are not tried by who may not wait for so long.
const SLOW_WRITES_PAUSE: Duration = Duration::from_millis(100);
/// Chunks in a file of the largest size.
const INDEX_END: u64 = FILE_BYTES_MAX / CHUNK_BYTES;

/// Bounds and surroundings of a store.
#[derive(Clone)]
pub struct Options {
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Bytes of disk that the segments may take.
    pub capacity_bytes: u64,
    /// Bytes of index kept in memory.
    pub cache_bytes: usize,
    /// Deleted inodes that are remembered ([`DELETED_MAX`]).
    pub deleted_max: u64,
    /// The disk's space.
    pub space: SpaceFn,
    /// Number of the disk, the same for all stores that share it; 0: unknown.
    pub disk: u64,
    /// Changes when what was written and not flushed may be gone
    /// ([`RealDir::cached_since`](saker_runtime::fs::RealDir::cached_since)).
    pub cached_since: u64,
    /// Where metrics are declared.
    pub registry: Registry,
}

/// A store, open. Dropping it is as a kill: what was acknowledged is found again.
pub struct Store {
    pub(crate) segments: Arc<Segments>,
    pub(crate) log: Log,
    pub(crate) index: Index,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    pub(crate) maintenance: Arc<Maintenance>,
    pub(crate) attempts: Attempts,
    pub(crate) quarantine: Quarantine,
    /// Number of the epoch that lasts.
    epoch: u64,
    pub(crate) epochs: Mutex<Epochs>,
    /// The index holds what the start found.
    pub(crate) is_start_saved: AtomicBool,
    /// Chunks of many extents.
    pub(crate) rewrites: Mutex<BTreeSet<ChunkKey>>,
    /// What clients have fetched.
    fetches: OnceLock<Fetches>,
    /// Damaged places that reads met, for the log: each failing read is counted, few are logged.
    pub(crate) damage_logged: AtomicU64,
    /// Until when writes into the page cache are taken for slow, ns.
    slow_until_ns: AtomicU64,
    /// Kept, because it holds the lock.
    _dir: Arc<dyn Dir>,
}

thread_local! {
    static SUMS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// An error of a file, for the caller.
pub(crate) fn io_error(what: &str, error: &io::Error) -> Error {
    let errno = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Errno::ENOSPC,
        io::ErrorKind::InvalidInput => Errno::EINVAL,
        _ => Errno::EIO,
    };
    Error::new(errno).with_text(format!("{what}: {error}"))
}

/// Keeps other processes out of a data directory; the same handle may do so again.
pub(crate) fn lock(dir: &dyn Dir) -> Result<()> {
    dir.lock()
        .map_err(|e| Error::new(Errno::EBUSY).with_text(format!("{} is in use: {e}", dir.label())))
}

/// An error of a write, for the caller.
fn write_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => would_wait(),
        _ => io_error("write", error),
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(Errno::EINVAL).with_text(text)
}

/// Start and end of what a read wants of a chunk; `None` for nothing.
fn range_of(req: &ChunkReadReq) -> Option<(u32, u32)> {
    let end = req.offset.saturating_add(req.len).min(CHUNK_BYTES);
    (req.offset < end).then_some((req.offset as u32, end as u32))
}

impl Store {
    /// Opens the store in `dir` (its segments are in the sub-directory `segments`), with its
    /// index in `table`, and brings the index up to the end of the log.
    ///
    /// # Errors
    /// EBUSY when another process has it, EIO with words for all that is wrong on disk: foreign,
    /// newer, damaged.
    pub fn open(
        dir: Arc<dyn Dir>,
        table: Arc<dyn Table>,
        identity: Identity,
        options: Options,
    ) -> Result<Arc<Store>> {
        lock(&*dir)?;
        let segments = dir.sub_dir("segments").map_err(|e| io_error("segments", &e))?;
        let metrics = Metrics::new(&options.registry);
        let quarantine = Quarantine::open(dir.clone()).map_err(|e| io_error("quarantine", &e))?;
        let recovered = recover::recover(segments, table, identity, &options, &metrics)?;
        let store = Store {
            segments: recovered.segments,
            log: recovered.log,
            index: recovered.index,
            options,
            metrics,
            maintenance: Arc::default(),
            attempts: Attempts::default(),
            quarantine,
            epoch: recovered.epochs.current(),
            epochs: Mutex::new(recovered.epochs),
            is_start_saved: AtomicBool::new(recovered.is_saved),
            rewrites: Mutex::default(),
            fetches: OnceLock::new(),
            damage_logged: AtomicU64::new(0),
            slow_until_ns: AtomicU64::new(0),
            _dir: dir,
        };
        if !store.log.poisoned().is_empty()
            && let Err(error) = store.checkpoint()
        {
            // Tried again in the background; no flush succeeds until then.
            store.log_once(&error);
        }
        store.update_gauges();
        Ok(Arc::new(store))
    }

    /// Writes a payload into a chunk, or makes a hole there. On return it survives the death of the
    /// process, after the next [`Store::flush`] also the loss of power. Returns what [`Store::lost`]
    /// knows it by.
    ///
    /// # Errors
    /// ESTALE below a known truncation (rule 17) and for a deleted inode, ENOSPC, EINVAL for impossible ranges, EIO. With
    /// class Retry: the payload is not what the request's checksum says; nothing was done.
    /// EALREADY for an attempt that comes after a later one. EAGAIN.
    pub fn write(
        &self,
        req: &ChunkWriteReq,
        payload: &[u8],
        wait: Wait,
    ) -> Result<ChunkWriteReply> {
        if req.hole > 0 && !payload.is_empty() {
            return Err(invalid("a hole with a payload"));
        }
        let end = req.offset.saturating_add(req.hole.max(payload.len() as u64));
        if end > CHUNK_BYTES || req.index >= INDEX_END {
            return Err(invalid(format!("a write up to byte {end} of chunk {}", req.index)));
        }
        if req.replicas.len() > REPLICAS_MAX {
            return Err(invalid("too many replicas"));
        }
        if wait == Wait::Never && (req.hole > 0 || self.is_slow()) {
            return Err(would_wait());
        }
        self.limit_dirty(wait)?;
        self.quarantine.leave(req.id, wait)?;
        let _attempt = match req.writer {
            0 => None,
            writer => Some(self.attempts.begin((writer, req.seq), req.attempt, wait)?),
        };
        let seq = match req.hole {
            0 => self.write_data(req, payload, wait)?,
            _ => self.punch(req)?,
        };
        let written = |seq| ChunkWriteReply { epoch: self.epoch, seq };
        Ok(seq.map_or(ChunkWriteReply::default(), written))
    }

    /// Number of the record, if there was anything to write.
    fn write_data(&self, req: &ChunkWriteReq, payload: &[u8], wait: Wait) -> Result<Option<u64>> {
        let _writer = self.index.begin_write((req.id, req.index), req.truncate_gen, wait)?;
        let seq = SUMS.with_borrow_mut(|sums| {
            if format::block_sums(payload, sums) != req.crc {
                let error = Error::of_class(Class::Retry, Errno::EIO);
                return Err(error.with_text("the payload was damaged on its way"));
            }
            let data = (!payload.is_empty()).then_some(payload);
            data.map(|data| self.append_data(req, sums, data, wait)).transpose()
        })?;
        self.metrics.writes.inc();
        self.metrics.write_bytes.add(payload.len() as u64);
        Ok(seq)
    }

    /// Number of the record, if there was anything to clear.
    fn punch(&self, req: &ChunkWriteReq) -> Result<Option<u64>> {
        let _alone = self.index.begin_exclusive(req.id)?;
        index::check_gen(req.id, req.truncate_gen, self.index.truncate_gen(req.id)?)?;
        let key = (req.id, req.index);
        let (start, end) = (req.offset as u32, (req.offset + req.hole) as u32);
        // The record of the hole that is there already may have to be flushed.
        if self.log.is_durable() && self.index.lookup(key, start, end, Wait::May)?.0.is_empty() {
            return Ok(None);
        }
        let record = Record {
            kind: Kind::Hole,
            id: req.id,
            index: req.index,
            truncate_gen: req.truncate_gen,
            offset: start,
            version: req.hole,
            ..Record::EMPTY
        };
        let draft = Draft { record, replicas: &[], sums: &[], sum: 0, payload: &[] };
        let appended = self.log.append(&draft, Purpose::Control, Wait::May);
        let appended = appended.map_err(|e| io_error("hole", &e))?;
        self.index.punch(key, start, end)?;
        self.maintenance.wake();
        Ok(Some(appended.seq))
    }

    fn append_data(
        &self,
        req: &ChunkWriteReq,
        sums: &[u32],
        payload: &[u8],
        wait: Wait,
    ) -> Result<u64> {
        let mut replicas = [0u16; REPLICAS_MAX];
        for (to, from) in replicas.iter_mut().zip(&req.replicas) {
            *to = u16::try_from(*from).map_err(|_| invalid("a store's number"))?;
        }
        let key = (req.id, req.index);
        let record = Record {
            kind: Kind::Write,
            id: req.id,
            index: req.index,
            truncate_gen: req.truncate_gen,
            offset: req.offset as u32,
            ..Record::EMPTY
        };
        let replicas = &replicas[..req.replicas.len()];
        let draft = Draft { record, replicas, sums, sum: req.crc, payload };
        let (seq, extents) = self.append_write(key, &draft, Purpose::Data, wait)?;
        if extents > 0 && extents.is_multiple_of(EXTENTS_MAX) {
            let mut rewrites = locked(&self.rewrites);
            if rewrites.len() < REWRITES_MAX {
                rewrites.insert(key);
            }
        }
        Ok(seq)
    }

    /// Appends file data and puts it into the index; returns the record's number, and how many
    /// extents the chunk has.
    pub(crate) fn append_write(
        &self,
        key: ChunkKey,
        draft: &Draft<'_>,
        purpose: Purpose,
        wait: Wait,
    ) -> Result<(u64, usize)> {
        let begun = time::now();
        let appended = self.log.append(draft, purpose, wait).map_err(|e| {
            // If it is for want of space, compaction may find some.
            self.maintenance.wake();
            write_error(&e)
        })?;
        self.note_pace(begun);
        let half = self.options.segment_bytes / 2;
        let end = appended.place.pos + appended.head + draft.payload.len() as u32;
        if appended.place.pos < half && end >= half {
            // Time to make the next segment.
            self.maintenance.wake();
        }
        let len = draft.payload.len() as u32;
        let extent = Extent {
            off: draft.record.offset,
            len,
            segment: appended.place.segment,
            pos: appended.place.pos,
            head: appended.head,
            payload: len,
            skip: 0,
            seq: appended.seq,
            sum: Some(draft.sum),
        };
        let extents = self.index.insert(key, extent)?;
        Ok((appended.seq, extents))
    }

    /// Do writes into the page cache wait for the disk now?
    fn is_slow(&self) -> bool {
        let until_ns = self.slow_until_ns.load(Ordering::Relaxed);
        until_ns > 0 && time::now().as_ns() < until_ns
    }

    fn note_pace(&self, begun: Time) {
        let now = time::now();
        if now - begun > SLOW_WRITE {
            let until = now + SLOW_WRITES_PAUSE;
            self.slow_until_ns.store(until.as_ns(), Ordering::Relaxed);
        }
    }

    /// Where a file has data, of the chunks that are here.
    ///
    /// # Errors
    /// The index's.
    pub fn seek(&self, req: &ChunkSeekReq) -> Result<ChunkSeekReply> {
        self.quarantine.leave(req.id, Wait::May)?;
        let run = self.index.seek(req.id, req.offset)?;
        Ok(run.map_or(ChunkSeekReply::default(), |(start, end)| ChunkSeekReply { start, end }))
    }

    /// Reads a range of a chunk up to the last byte written; holes are zeros. Returns the data
    /// and what is to be said of it.
    ///
    /// # Errors
    /// EIO, naming file and offset, if any block that the range touches is damaged. EAGAIN.
    pub fn read(&self, req: &ChunkReadReq, wait: Wait) -> Result<(Bytes, ChunkReadReply)> {
        self.quarantine.leave(req.id, wait)?;
        let Some((start, end)) = range_of(req) else { return Ok(Default::default()) };
        let data = self.read_range((req.id, req.index), start, end, wait)?;
        self.metrics.reads.inc();
        self.metrics.read_bytes.add(data.bytes.len() as u64);
        let (crc, holes) = (data.sum, data.holes);
        Ok((data.bytes, ChunkReadReply { crc, holes, ..ChunkReadReply::default() }))
    }

    /// Where the data is that [`Store::read`] would return; `None` where others cannot read it, or
    /// better do not.
    ///
    /// # Errors
    /// As [`Store::read`], but for damage of the data itself: who reads it there must check it.
    pub fn locate(&self, req: &ChunkReadReq, wait: Wait) -> Result<Option<ChunkReadReply>> {
        let Some((start, end)) = range_of(req) else { return Ok(None) };
        self.quarantine.leave(req.id, wait)?;
        let key = (req.id, req.index);
        let fetch = match req.fetches {
            false => Fetch::Here,
            // Who has fetched it forgot it, or others want it, too: then it is worth its memory here.
            true if self.fetches().has(key, start) => Fetch::Both,
            true => Fetch::There,
        };
        let places = self.with_pieces(key, start, end, wait, |pieces, end| {
            read::locate(&self.segments, key, pieces, start, end, fetch, wait)
        })?;
        if fetch == Fetch::There {
            self.fetches().add(key, start);
        }
        if places.is_empty() {
            return Ok(None);
        }
        let bytes = places.iter().map(|place| u64::from(place.len)).sum();
        self.metrics.reads.inc();
        self.metrics.read_bytes.add(bytes);
        self.metrics.located_bytes.add(bytes);
        let dir = self.segments.local_dir().cloned();
        Ok(Some(ChunkReadReply { places, dir, ..ChunkReadReply::default() }))
    }

    fn fetches(&self) -> &Fetches {
        self.fetches.get_or_init(Fetches::default)
    }

    fn read_range(&self, key: ChunkKey, start: u32, end: u32, wait: Wait) -> Result<read::Data> {
        self.with_pieces(key, start, end, wait, |pieces, end| {
            read::read(&self.segments, key, pieces, start, end, wait)
        })
    }

    /// Calls `f` with the pieces of a range and where its data ends; again when they have moved.
    fn with_pieces<T>(
        &self,
        key: ChunkKey,
        start: u32,
        end: u32,
        wait: Wait,
        f: impl Fn(Vec<Piece>, u32) -> std::result::Result<T, ReadError>,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            let (pieces, chunk_end) = self.index.lookup(key, start, end, wait)?;
            match f(pieces, end.min(chunk_end).max(start)) {
                // The data moved or was dropped, and its segment removed, since it was looked up.
                Err(ReadError::Io(error, _))
                    if error.kind() == io::ErrorKind::NotFound && tries < LOOKUPS_MAX =>
                {
                    tries += 1;
                }
                result => return result.map_err(|e| self.report(e)),
            }
        }
    }

    /// Counts damage, and logs the first of it.
    pub(crate) fn report(&self, error: ReadError) -> Error {
        if let ReadError::Corrupt(read::Corrupt(text)) = &error {
            self.metrics.corrupt_blocks.inc();
            let logged = self.damage_logged.fetch_add(1, Ordering::Relaxed);
            if logged < 100 {
                tracing::error!("{}/{text}", self.segments.label());
            }
        }
        error.into()
    }

    /// After a flush: true if some of `unflushed` is lost, since power failed before this, or the
    /// disk did.
    pub fn lost(&self, unflushed: &[Unflushed]) -> bool {
        let (next_seq, epochs) = (self.log.next_seq(), locked(&self.epochs));
        unflushed.iter().any(|writes| epochs.lost(writes, next_seq))
    }

    /// Makes everything that was acknowledged before durable.
    ///
    /// # Errors
    /// EIO: some of it may be lost if power fails.
    pub fn flush(&self) -> Result<()> {
        self.log.sync().map_err(|e| io_error("flush", &e))
    }

    /// Cuts a file, and refuses writes of older generations from now on. Of an equal or older
    /// generation: no effect. Survives the loss of power after the next flush.
    ///
    /// # Errors
    /// EIO and ENOSPC; the outcome is unknown then, and a repetition is safe.
    pub fn truncate(&self, req: &ChunkTruncateReq) -> Result<()> {
        self.quarantine.leave(req.id, Wait::May)?;
        self.limit_dirty(Wait::May)?;
        {
            let _alone = self.index.begin_exclusive(req.id)?;
            if req.truncate_gen > self.index.truncate_gen(req.id)? {
                let record = Record {
                    kind: Kind::Truncate,
                    id: req.id,
                    index: req.cut,
                    truncate_gen: req.truncate_gen,
                    ..Record::EMPTY
                };
                let draft = Draft { record, replicas: &[], sums: &[], sum: 0, payload: &[] };
                let appended = self.log.append(&draft, Purpose::Control, Wait::May);
                let _appended = appended.map_err(|e| io_error("truncate", &e))?;
                self.index.truncate(req.id, req.truncate_gen, req.cut)?;
            }
        }
        self.maintenance.wake();
        Ok(())
    }

    /// Deletes all chunks of inodes, and refuses late writes to them. Survives the death of the
    /// process on return, the loss of power after the next flush.
    ///
    /// # Errors
    /// EIO and ENOSPC; some may be deleted then, and a repetition is safe.
    pub fn delete(&self, req: &ChunkDeleteReq) -> Result<()> {
        // In one order everywhere, so that two deletions cannot wait for each other.
        let ids: BTreeSet<InodeId> = req.ids.iter().copied().collect();
        let ids: Vec<InodeId> = ids.into_iter().collect();
        for ids in ids.chunks(DELETE_IDS_MAX) {
            self.limit_dirty(Wait::May)?;
            let alone = ids.iter().map(|id| self.index.begin_exclusive(*id));
            let _alone = alone.collect::<Result<Vec<_>>>()?;
            let payload: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let mut sums = Vec::new();
            let sum = format::block_sums(&payload, &mut sums);
            let record = Record { kind: Kind::Delete, ..Record::EMPTY };
            let draft = Draft { record, replicas: &[], sums: &sums, sum, payload: &payload };
            let appended = self.log.append(&draft, Purpose::Control, Wait::May);
            let appended = appended.map_err(|e| io_error("delete", &e))?;
            ids.iter().try_for_each(|id| self.index.delete(*id))?;
            self.index.remember_deleted(appended.seq, ids);
            ids.iter().try_for_each(|id| self.quarantine.leave(*id, Wait::May))?;
        }
        self.maintenance.wake();
        Ok(())
    }

    /// Sets the chunks of inodes that nobody seems to know aside, takes others back, and deletes
    /// those that were aside for long enough; returns their ids.
    ///
    /// # Errors
    /// ENOSPC when too many are aside, and those of a deletion; a repetition is safe.
    pub fn quarantine(&self, req: &ChunkQuarantineReq) -> Result<ChunkQuarantineReply> {
        self.quarantine_at(req, wall_ns())
    }

    pub(crate) fn quarantine_at(
        &self,
        req: &ChunkQuarantineReq,
        now_ns: i64,
    ) -> Result<ChunkQuarantineReply> {
        let deleted = self.quarantine.change(req, now_ns)?;
        if !deleted.is_empty() {
            self.delete(&ChunkDeleteReq { ids: deleted.clone() })?;
        }
        Ok(ChunkQuarantineReply { deleted })
    }

    /// Space and counts. What is free is what may be written before ENOSPC.
    ///
    /// # Errors
    /// statvfs's.
    pub fn stat(&self) -> Result<StoreStats> {
        let space = (self.options.space)().map_err(|e| io_error("statvfs", &e))?;
        Ok(StoreStats {
            capacity_bytes: self.options.capacity_bytes.min(space.capacity_bytes),
            free_bytes: self.log.room_bytes(&space),
            data_bytes: self.segments.live_bytes(),
            chunks: self.index.chunks(),
            segments: self.segments.count() as u64,
            disk: self.options.disk,
            disk_bytes: space.capacity_bytes,
            disk_free_bytes: space.free_bytes,
            unused_bytes: self.log.unused_bytes().min(space.unused_bytes),
            disk_unused_bytes: space.unused_bytes,
        })
    }

    /// Lists chunks in order; with `verify` reads each and says what is wrong with it.
    ///
    /// # Errors
    /// The index's.
    pub fn list(&self, req: &ChunkListReq) -> Result<ChunkListReply> {
        let limit = (req.limit as usize).clamp(1, LIST_MAX);
        let (found, end) = self.index.list((req.after_id, req.after_index), limit)?;
        let mut chunks = Vec::with_capacity(found.len());
        for ((id, index), len) in found {
            let mut problem = String::new();
            if req.verify
                && let Err(error) = self.read_range((id, index), 0, len, Wait::May)
            {
                problem = error.text;
            }
            let aside_ns = self.quarantine.since(id).unwrap_or_default();
            chunks.push(ChunkInfo { id, index, len: u64::from(len), problem, aside_ns });
        }
        Ok(ChunkListReply { chunks, end })
    }
}
