//! The log: all records of a store in one order, in the active segment, and its flushes.
//!
//! A record gets its place and its sequence number under a short lock and is written outside of
//! it, so records are written in any order; the scan after a crash skips the gaps. A record is
//! *in flight* until its effect is in the index, too: [`Log::low_water`] is where a scan must
//! start so that it misses no record whose effect a checkpoint may lack.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use saker_runtime::telemetry::Counter;
use saker_runtime::time;

use super::format::{
    self, RECORD_ALIGN_BYTES, RecordHeader, RecordLocation, SEGMENT_HEADER_BYTES, Seal,
};
use super::segment::{Segment, Segments};
use crate::wait::{WaitPolicy, locked, would_block};

mod flush;
mod pace;
mod room;

use flush::Flush;
use pace::Pace;

/// The end of each segment that only truncations and deletions may use.
const CONTROL_BYTES: u32 = 16 << 10;
/// Capacity of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of the file system.
    pub capacity_bytes: u64,
    /// Bytes that can be written.
    pub free_bytes: u64,
    /// Bytes that nothing takes: also what the file system keeps for root.
    pub unused_bytes: u64,
}

/// Asks the file system of the data directory (statvfs).
pub type SpaceFn = Arc<dyn Fn() -> io::Result<Space> + Send + Sync>;

/// What a record is for decides how much room must be left after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// New file data: a segment's room stays free, for compaction and deletion.
    Data,
    /// A copy made by compaction, which frees more than it takes.
    Copy,
    /// A truncation or deletion.
    Control,
}

/// Bounds of the log.
#[derive(Clone)]
pub struct LogConfig {
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Bytes that all segments may take.
    pub capacity_bytes: u64,
    /// The disk's space.
    pub space: SpaceFn,
}

/// The log of a store.
pub struct Log {
    segments: Arc<Segments>,
    config: LogConfig,
    state: Mutex<State>,
    /// A segment was made, or could not be.
    made: Condvar,
    flush: Mutex<Flush>,
    flushed: Condvar,
    /// Held by whoever flushes segments.
    flushing: Mutex<()>,
    /// Held by whoever may wait while it writes: the file system lets one write at a time, and the
    /// others would spin.
    writing: Mutex<()>,
    pace: Pace,
    /// Segments with records that may not be durable.
    unsynced: Mutex<BTreeMap<u32, Arc<Segment>>>,
    /// Every record below is durable.
    durable_seq: AtomicU64,
    /// Poisoned segments whose data is not safe elsewhere yet.
    poisoned: Mutex<Vec<u32>>,
    /// The active segment is the last: no new data.
    low: AtomicBool,
    flushes: Counter,
}

struct State {
    active: Option<Arc<Segment>>,
    /// Where the next record goes.
    tail: u32,
    next_seq: u64,
    next_segment: u32,
    inflight: BTreeMap<u64, RecordLocation>,
    /// The next active segment, made in advance.
    spare: Option<Arc<Segment>>,
    /// Number of the segment that is being made.
    making: Option<u32>,
    /// Since the last [`Log::low_water`].
    bytes: u64,
    records: u64,
}

/// Where the log stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    /// Every record before it has had its effect on the index.
    pub place: RecordLocation,
    /// Sequence number of the next record.
    pub next_seq: u64,
    /// Every record that was acknowledged with a lower number is before it.
    pub durable_seq: u64,
}

/// A written record, in flight until this is dropped.
pub struct Appended<'a> {
    log: &'a Log,
    #[allow(missing_docs)]
    pub place: RecordLocation,
    #[allow(missing_docs)]
    pub seq: u64,
    /// Bytes before the payload.
    pub head: u32,
}

impl Drop for Appended<'_> {
    fn drop(&mut self) {
        self.log.state().inflight.remove(&self.seq);
    }
}

/// A record to append; sequence numbers and place are filled in.
pub struct Draft<'a> {
    #[allow(missing_docs)]
    pub record: RecordHeader,
    #[allow(missing_docs)]
    pub replicas: &'a [u16],
    /// Of the payload's blocks.
    pub sums: &'a [u32],
    /// Of the payload.
    pub sum: u32,
    #[allow(missing_docs)]
    pub payload: &'a [u8],
}

thread_local! {
    /// Header and payload of the record being written; kept, for its memory.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Log {
    /// A log that goes on in a new segment, numbered from `next_segment`.
    pub fn new(
        segments: Arc<Segments>,
        config: LogConfig,
        next_segment: u32,
        next_seq: u64,
        flushes: Counter,
    ) -> Log {
        let state = State {
            active: None,
            tail: 0,
            next_seq,
            next_segment,
            inflight: BTreeMap::new(),
            spare: None,
            making: None,
            bytes: 0,
            records: 0,
        };
        Log {
            segments,
            config,
            state: Mutex::new(state),
            made: Condvar::new(),
            flush: Mutex::default(),
            flushing: Mutex::default(),
            flushed: Condvar::new(),
            writing: Mutex::default(),
            pace: Pace::default(),
            unsynced: Mutex::default(),
            durable_seq: AtomicU64::new(0),
            poisoned: Mutex::default(),
            low: AtomicBool::new(false),
            flushes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Longest record.
    pub fn record_bytes_max(&self) -> u32 {
        self.config.segment_bytes - SEGMENT_HEADER_BYTES - CONTROL_BYTES
    }

    /// Writes a record: into the page cache, not further.
    ///
    /// # Errors
    /// ENOSPC, when no segment can be made; nothing is written then, nor with `WouldBlock`, when
    /// one must be made. Any other error poisons the segment.
    pub fn append(
        &self,
        draft: &Draft<'_>,
        purpose: Purpose,
        wait: WaitPolicy,
    ) -> io::Result<Appended<'_>> {
        BUFFER.with_borrow_mut(|buffer| {
            format::encode(buffer, &draft.record, draft.replicas, draft.sums, draft.payload);
            let (segment, place, seq) = self.reserve(buffer.len() as u32, purpose, wait)?;
            // In flight from here on, whatever happens.
            let head = format::head_bytes(draft.payload.len(), draft.replicas.len()) as u32;
            let appended = Appended { log: self, place, seq, head };
            let written = self.segments.open(&segment, WaitPolicy::May).and_then(|(file, salt)| {
                let durable_seq = self.durable_seq.load(Ordering::Acquire);
                let version = if draft.record.version == 0 { seq } else { draft.record.version };
                format::seal(buffer, &Seal { seq, durable_seq, version, place, salt });
                let _turn = (wait == WaitPolicy::May).then(|| locked(&self.writing));
                let begun = time::now();
                let written = file.write_at(u64::from(place.pos), buffer);
                self.pace.note(begun);
                written
            });
            if let Err(error) = &written {
                self.poison(&segment, "write", error);
            }
            segment.written.fetch_add(1, Ordering::Release);
            written.map(|()| appended)
        })
    }

    /// Is there a place for a record with so much data, without making a segment?
    pub fn has_place(&self, payload: usize, replicas: usize) -> bool {
        let bytes = format::head_bytes(payload, replicas) + payload;
        let need = (bytes as u32).next_multiple_of(RECORD_ALIGN_BYTES) + CONTROL_BYTES;
        let state = self.state();
        let fits = state.active.is_some() && state.tail + need <= self.config.segment_bytes;
        fits || state.spare.is_some()
    }

    fn reserve(
        &self,
        len: u32,
        purpose: Purpose,
        wait: WaitPolicy,
    ) -> io::Result<(Arc<Segment>, RecordLocation, u64)> {
        let need = len.next_multiple_of(RECORD_ALIGN_BYTES);
        let kept = if purpose == Purpose::Control { 0 } else { CONTROL_BYTES };
        if need > self.record_bytes_max() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "larger than a segment"));
        }
        if purpose == Purpose::Data && self.low.load(Ordering::Acquire) {
            self.check_room(1)?;
            self.low.store(false, Ordering::Release);
        }
        let mut state = self.state();
        loop {
            if let Some(active) = &state.active
                && !active.poisoned.load(Ordering::Acquire)
                && state.tail + need + kept <= self.config.segment_bytes
            {
                let segment = active.clone();
                return Ok(take(&mut state, segment, need));
            }
            if let Some(spare) = state.spare.take() {
                self.activate(&mut state, spare);
            } else if wait == WaitPolicy::Never {
                return Err(would_block());
            } else if state.making.is_some() {
                state = self.made.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state = self.make_spare(state, purpose)?;
            }
        }
    }

    fn activate(&self, state: &mut State, spare: Arc<Segment>) {
        locked(&self.unsynced).insert(spare.no, spare.clone());
        if let Some(full) = state.active.replace(spare) {
            full.end.store(state.tail, Ordering::Release);
            full.sealed.store(true, Ordering::Release);
            self.segments.sealed(&full);
        }
        state.tail = SEGMENT_HEADER_BYTES;
    }

    /// Makes a segment outside of the lock.
    fn make_spare<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        purpose: Purpose,
    ) -> io::Result<MutexGuard<'a, State>> {
        let no = state.next_segment;
        state.next_segment += 1;
        state.making = Some(no);
        drop(state);
        let rooms = if purpose == Purpose::Data { 2 } else { 1 };
        let made = self
            .check_room(rooms)
            .and_then(|()| self.segments.create(no, self.config.segment_bytes));
        if made.is_ok() && purpose != Purpose::Data && self.check_room(1).is_err() {
            self.low.store(true, Ordering::Release);
        }
        let mut state = self.state();
        state.making = None;
        self.made.notify_all();
        state.spare = Some(made?);
        Ok(state)
    }

    /// Makes the next segment in advance once the active one is half full.
    pub fn prepare(&self) {
        let state = self.state();
        let half_full = state.tail > self.config.segment_bytes / 2;
        if half_full && state.active.is_some() && state.spare.is_none() && state.making.is_none() {
            // A write that needs the segment will meet the same error, and return it.
            drop(self.make_spare(state, Purpose::Data));
        }
    }

    /// Where a scan must start, now. Bytes and records are counted from here.
    pub fn low_water(&self) -> LogPosition {
        let mut state = self.state();
        (state.bytes, state.records) = (0, 0);
        let low = state.low_water();
        LogPosition {
            place: low.place,
            next_seq: state.next_seq,
            durable_seq: low.next_seq_durable,
        }
    }

    /// Did recent writes into the page cache wait for the disk?
    pub fn is_slow(&self) -> bool {
        self.pace.is_slow()
    }

    /// Is every record flushed?
    pub fn is_durable(&self) -> bool {
        self.durable_seq.load(Ordering::Acquire) >= self.next_seq()
    }

    /// Sequence number of the next record.
    pub fn next_seq(&self) -> u64 {
        self.state().next_seq
    }

    /// Bytes and records since the last [`Log::low_water`].
    pub fn since_low_water(&self) -> (u64, u64) {
        let state = self.state();
        (state.bytes, state.records)
    }

    /// The segment that is written to, if any.
    pub fn active(&self) -> Option<u32> {
        self.state().active.as_ref().map(|s| s.no)
    }
}

struct LowWater {
    place: RecordLocation,
    /// Every record below has been written.
    next_seq_durable: u64,
}

impl State {
    fn low_water(&self) -> LowWater {
        match self.inflight.first_key_value() {
            Some((seq, place)) => LowWater { place: *place, next_seq_durable: *seq },
            None => {
                let next = self.spare.as_ref().map(|s| s.no).or(self.making);
                let (segment, pos) = match &self.active {
                    Some(active) => (active.no, self.tail),
                    None => (next.unwrap_or(self.next_segment), SEGMENT_HEADER_BYTES),
                };
                LowWater { place: RecordLocation { segment, pos }, next_seq_durable: self.next_seq }
            }
        }
    }
}

fn take(
    state: &mut State,
    segment: Arc<Segment>,
    need: u32,
) -> (Arc<Segment>, RecordLocation, u64) {
    let place = RecordLocation { segment: segment.no, pos: state.tail };
    let seq = state.next_seq;
    state.next_seq += 1;
    state.tail += need;
    state.bytes += u64::from(need);
    state.records += 1;
    state.inflight.insert(seq, place);
    segment.reserved.fetch_add(1, Ordering::AcqRel);
    (segment, place, seq)
}
