//! A shard's write-ahead log: opaque records in segment files, made durable one flush at a time.
//!
//! [`mod@format`] says what the bytes mean, `recover` how they are read back. A segment file gets
//! its name only once its header and first record are durable, so a crash at any point leaves
//! whole segments, of which only the last can end in a torn flush.
//!
//! Segments are preallocated, written with zeros some way ahead, and recycled: on ext4 an fdatasync
//! of 60 KB takes 190 us when the file grows, 175 us where it is only allocated (each time the
//! inode is written, too) and 100 us where it was written before. Past the page cache, in whole
//! blocks (`File::write_end`), the same takes a quarter less, and half of the CPU.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use saker_runtime::fs::{BLOCK_BYTES, Dir, File, is_full};

mod error;
mod flusher;
pub mod format;
mod recover;
pub mod salvage;
#[cfg(test)]
mod tests;

pub use error::{JournalError, ReplayError};
use flusher::{Flush, Flusher, Write};
pub use format::JournalRecordKind;
use format::{JournalSegmentHeader, SEGMENT_HEADER_BYTES, encode_record, segment_name};
pub use recover::{OnRecord, ReplayFrom, cluster_of};

/// A position in the log, in bytes: a record's LSN is the position just past it, so a record is
/// durable when [`Journal::durable`] has reached its LSN.
pub type Lsn = u64;
/// Segments count from 0.
pub type SegmentNo = u64;

type Result<T> = std::result::Result<T, JournalError>;

/// How far ahead of the records zeros are written.
const ZEROS_AHEAD: u64 = 256 << 10;

/// When more bytes than this are appended and not durable, [`Journal::keep_up`] waits.
pub const BEHIND_BYTES_MAX: u64 = 256 << 20;

/// A segment in the making, or an old one about to be overwritten.
const SPARE_NAME: &str = "spare";

/// Whose log it is, and how it is laid out.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// The cluster.
    pub uuid: [u8; 16],
    /// The shard within its MNode.
    pub shard: u32,
    /// How far a segment is preallocated, and by how much it grows where a flush would pass its
    /// end. Only [`Journal::rotate`] ends a segment.
    pub segment_bytes: u64,
}

impl JournalConfig {
    /// The journal of `shard` in the cluster `uuid`, with segments of 64 MiB.
    pub fn new(uuid: [u8; 16], shard: u32) -> JournalConfig {
        JournalConfig { uuid, shard, segment_bytes: 64 << 20 }
    }
}

/// A flush on the flusher's thread.
struct InFlight {
    /// Everything up to here is durable when it has ended.
    end: Lsn,
    is_past_cache: bool,
}

/// An open log. One owner; only the flush of [`Journal::flush_begin`] runs elsewhere.
pub struct Journal {
    dir: Arc<dyn Dir>,
    config: JournalConfig,
    oldest: SegmentNo,
    segment: SegmentNo,
    first_lsn: Lsn,
    file: Arc<dyn File>,
    file_bytes: u64,
    /// What was handed to flushes, or is in the file, from the last multiple of [`BLOCK_BYTES`] on.
    block: Vec<u8>,
    /// Up to here the file was written, be it with zeros or in an earlier life.
    written: u64,
    /// Appended, not handed to a flush. Starts at the log position `buffer_start`.
    buffer: Vec<u8>,
    buffer_start: Lsn,
    durable: Lsn,
    /// Up to here [`Journal::write`] has put records into the page cache. What of it is not durable only
    /// a sync of the file makes so.
    cached: Lsn,
    /// The buffer of the last flush, to be filled again.
    idle_buffer: Vec<u8>,
    flusher: Option<Flusher>,
    in_flight: Option<InFlight>,
    /// How far older segments were written, as far as that is known.
    older_written: BTreeMap<SegmentNo, u64>,
    /// A trimmed segment whose blocks the next one will use.
    recyclable: Option<SegmentNo>,
    poison: Option<String>,
}

impl Journal {
    /// Opens the log in `dir`, making an empty one if there is none, and hands every record of the
    /// segments that `replay_from` says on to `on_record`, in order. What was replayed is durable on
    /// return.
    ///
    /// A torn flush at the end is cut: nothing in it was ever reported durable. Damage there that
    /// nothing follows cannot be told from one.
    ///
    /// # Errors
    /// All but `Poisoned`; see [`JournalError`].
    pub fn open(
        dir: Arc<dyn Dir>,
        config: JournalConfig,
        replay_from: ReplayFrom,
        on_record: &mut OnRecord<'_>,
    ) -> Result<Journal> {
        dir.lock().map_err(|e| io_error(dir.label(), "lock", e))?;
        let stock = recover::take_stock(&*dir, replay_from)?;
        let Some((&last, before)) = stock.replay.split_last() else {
            remove(&*dir, &stock.garbage)?;
            return Journal::create(dir, config);
        };
        let mut end = None;
        for &segment in before {
            let replayed =
                recover::replay_segment(&*dir, &config, segment, end.as_ref(), false, on_record)?;
            end = Some(replayed);
        }
        let found = recover::replay_segment(&*dir, &config, last, end.as_ref(), true, on_record)?;
        remove(&*dir, &stock.garbage)?;
        let file = settle(&*dir, last, found.file_bytes(), found.torn)
            .map_err(|e| io_error(segment_path(&*dir, last), "cut the torn tail", e))?;
        let mut journal = Journal::at(dir, config, last, found.first_lsn, file)?;
        journal.oldest = before.first().copied().unwrap_or(last);
        journal.buffer_start = found.end;
        journal.durable = found.end;
        let read = journal.read_block(found.file_bytes());
        read.map_err(|e| io_error(segment_path(&*journal.dir, last), "read", e))?;
        Ok(journal)
    }

    fn create(dir: Arc<dyn Dir>, config: JournalConfig) -> Result<Journal> {
        let header = JournalSegmentHeader {
            uuid: config.uuid,
            shard: config.shard,
            segment: 0,
            first_lsn: 0,
        };
        let made = open_spare(&*dir, None, config.segment_bytes).and_then(|file| {
            file.write_at(0, &header.encode())?;
            file.sync()?;
            name_segment(&*dir, 0)?;
            Ok(file)
        });
        let file = made.map_err(|e| io_error(segment_path(&*dir, 0), "create", e))?;
        let mut journal = Journal::at(dir, config, 0, 0, file)?;
        journal.block = header.encode().to_vec();
        Ok(journal)
    }

    fn at(
        dir: Arc<dyn Dir>,
        config: JournalConfig,
        segment: SegmentNo,
        first_lsn: Lsn,
        file: Arc<dyn File>,
    ) -> Result<Journal> {
        let len = file.len();
        let file_bytes = len.map_err(|e| io_error(segment_path(&*dir, segment), "stat", e))?;
        Ok(Journal {
            dir,
            config,
            oldest: segment,
            segment,
            first_lsn,
            file,
            file_bytes,
            block: Vec::new(),
            written: 0,
            buffer: Vec::new(),
            buffer_start: first_lsn,
            durable: first_lsn,
            cached: first_lsn,
            idle_buffer: Vec::new(),
            flusher: None,
            in_flight: None,
            older_written: BTreeMap::new(),
            recyclable: None,
            poison: None,
        })
    }

    /// Reads what the file, whose records end at `end`, has in its last block.
    fn read_block(&mut self, end: u64) -> io::Result<()> {
        let len = (end % BLOCK_BYTES as u64) as usize;
        self.block.resize(len, 0);
        match self.file.read_at(end - len as u64, &mut self.block)? {
            read if read == len => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Appends a record to the buffer; no I/O. Returns its LSN. On a poisoned journal the record
    /// is dropped: no flush will ever report it durable.
    ///
    /// # Panics
    /// If the payload is over [`format::RECORD_BYTES_MAX`], or 4 GiB were appended without a flush.
    #[cfg(test)]
    pub fn append(&mut self, kind: JournalRecordKind, payload: &[u8]) -> Lsn {
        self.append_with(kind, |out| out.extend_from_slice(payload))
    }

    /// Appends a record whose payload `fill` encodes at the end of the buffer it gets.
    pub fn append_with(&mut self, kind: JournalRecordKind, fill: impl FnOnce(&mut Vec<u8>)) -> Lsn {
        let start = self.appended();
        let back = start - self.flush_start();
        assert!(back <= u64::from(u32::MAX), "{back} bytes were appended without a flush");
        let lsn = encode_record(&mut self.buffer, start, back as u32, kind, fill);
        if self.poison.is_some() {
            self.buffer_start = lsn;
            self.buffer.clear();
        }
        lsn
    }

    /// From here on a crash may leave holes before a record that is appended now. What was put into the
    /// page cache one piece after the other, and not synced, the disk may get in any order.
    fn flush_start(&self) -> Lsn {
        if self.cached > self.durable { self.durable } else { self.buffer_start }
    }

    /// The end of the log: the LSN of the record appended last.
    pub fn appended(&self) -> Lsn {
        self.buffer_start + self.buffer.len() as u64
    }

    /// Everything up to here survives a crash.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Everything up to here survives the death of the process, but what is not durable no loss of
    /// power.
    pub fn written(&self) -> Lsn {
        self.cached.max(self.durable)
    }

    /// Bytes appended to the current segment: what a replay would read of it.
    pub fn segment_bytes(&self) -> u64 {
        self.appended() - self.first_lsn
    }

    /// Bytes that can be appended and flushed before the file must grow.
    pub fn room_bytes(&self) -> u64 {
        let used = SEGMENT_HEADER_BYTES as u64 + self.segment_bytes();
        self.file_bytes.saturating_sub(used)
    }

    /// Makes the file longer by so many bytes, so that no flush has to. A failure is no harm.
    ///
    /// # Errors
    /// The system's.
    pub fn grow(&mut self, bytes: u64) -> io::Result<()> {
        let used = SEGMENT_HEADER_BYTES as u64 + self.segment_bytes();
        let to = self.file_bytes.max(used) + bytes;
        self.file.preallocate(to)?;
        self.file_bytes = to;
        Ok(())
    }

    /// The segment that is being written.
    #[cfg(test)]
    pub fn segment(&self) -> SegmentNo {
        self.segment
    }

    /// Makes everything appended durable, on this thread, after a background flush.
    ///
    /// # Errors
    /// `Io`, and from then on `Poisoned`.
    pub fn flush(&mut self) -> Result<()> {
        self.flush_finish()?;
        if self.durable == self.appended() {
            return Ok(());
        }
        let flush = self.take_flush()?;
        let (end, result) = (self.buffer_start, flush.run());
        self.flushed(end, flush.into_buffer(), result)
    }

    /// Puts everything appended into the page cache, where the death of the process does not reach it;
    /// waits for no disk. Does nothing while a flush past the page cache is under way: the two would
    /// write the same block.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn write(&mut self) -> Result<()> {
        self.check()?;
        let is_past_cache = self.in_flight.as_ref().is_some_and(|flight| flight.is_past_cache);
        if is_past_cache || self.buffer.is_empty() {
            return Ok(());
        }
        let write = self.take_write();
        let written = write.run_cached();
        self.guard("write", written)?;
        self.cached = self.buffer_start;
        self.reuse(write.data);
        Ok(())
    }

    /// Waits for a flush if one is far behind: what is appended is bounded, however slow the disk.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn keep_up(&mut self) -> Result<()> {
        if self.appended() - self.durable <= BEHIND_BYTES_MAX { Ok(()) } else { self.flush() }
    }

    /// Starts to make everything appended so far durable on the flusher thread, while more is
    /// appended. `notify` runs on that thread when [`Journal::flush_finish`] will not block.
    /// Returns false, having done nothing, if nothing was appended or a flush is under way.
    ///
    /// # Errors
    /// `Io` if the thread cannot be started, `Poisoned`.
    pub fn flush_begin(&mut self, notify: impl FnOnce() + Send + 'static) -> Result<bool> {
        self.check()?;
        if self.in_flight.is_some() || self.durable == self.appended() {
            return Ok(false);
        }
        if self.flusher.is_none() {
            let started = Flusher::start("journal");
            self.flusher = Some(self.guard("start the flusher", started)?);
        }
        let flush = self.take_flush()?;
        let is_past_cache = matches!(flush, Flush::Write(_));
        let submitted = match &self.flusher {
            Some(flusher) => flusher.submit(flush, Box::new(notify)),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        self.guard("flush", submitted)?;
        self.in_flight = Some(InFlight { end: self.buffer_start, is_past_cache });
        Ok(true)
    }

    /// Takes the result of the flush under way, waiting for it; nothing if there is none.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn flush_finish(&mut self) -> Result<()> {
        self.check()?;
        let (Some(flusher), Some(flight)) = (&self.flusher, &self.in_flight) else {
            return Ok(());
        };
        let (end, (buffer, result)) = (flight.end, flusher.wait());
        self.in_flight = None;
        self.flushed(end, buffer, result)
    }

    /// Whether a flush was begun and its result not taken yet.
    #[cfg(test)]
    pub fn flushing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// What makes everything appended durable. Where some is in the page cache, the rest follows it
    /// there: past the cache its pages must not be written while they are dirty.
    fn take_flush(&mut self) -> Result<Flush> {
        if self.cached <= self.durable {
            return Ok(Flush::Write(self.take_write()));
        }
        self.write()?;
        Ok(Flush::Sync(self.file.clone()))
    }

    fn take_write(&mut self) -> Write {
        let data = std::mem::replace(&mut self.buffer, std::mem::take(&mut self.idle_buffer));
        let offset = SEGMENT_HEADER_BYTES as u64 + self.buffer_start - self.first_lsn;
        self.buffer_start += data.len() as u64;
        let end = offset + data.len() as u64;
        let before = follow(&mut self.block, &data, end);
        let grow = (end > self.file_bytes).then(|| end + self.config.segment_bytes);
        self.file_bytes = grow.unwrap_or(self.file_bytes);
        let zeros_to = (end > self.written).then(|| (end + ZEROS_AHEAD).min(self.file_bytes));
        self.written = zeros_to.unwrap_or(self.written);
        Write { file: self.file.clone(), offset, before, data, preallocate: grow, zeros_to }
    }

    fn flushed(&mut self, end: Lsn, buffer: Vec<u8>, result: io::Result<()>) -> Result<()> {
        self.guard("flush", result)?;
        self.durable = end;
        self.reuse(buffer);
        Ok(())
    }

    fn reuse(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        // One huge batch must not keep its memory for ever.
        if (self.idle_buffer.capacity()..=4 << 20).contains(&buffer.capacity()) {
            self.idle_buffer = buffer;
        }
    }

    /// Flushes and starts a new segment whose first record is `snapshot`; both are durable on
    /// return. A crash in between leaves the log as it was, or with the new segment.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn rotate(&mut self, snapshot: &[u8]) -> Result<SegmentNo> {
        self.rotate_in_pieces([snapshot])
    }

    /// [`Journal::rotate`] with a snapshot of any size: its first piece is a record of kind
    /// [`JournalRecordKind::Snapshot`], and the others follow it as changes.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn rotate_in_pieces<P: AsRef<[u8]>>(
        &mut self,
        pieces: impl IntoIterator<Item = P>,
    ) -> Result<SegmentNo> {
        self.flush()?;
        let (segment, first_lsn) = (self.segment + 1, self.durable);
        let header = JournalSegmentHeader {
            uuid: self.config.uuid,
            shard: self.config.shard,
            segment,
            first_lsn,
        };
        let recycled = self.recyclable.take();
        let before = recycled.and_then(|old| self.older_written.remove(&old));
        let spare = open_spare(&*self.dir, recycled, self.config.segment_bytes).and_then(|file| {
            let begun = Begun::write(&*file, &header, &mut pieces.into_iter())?;
            file.sync()?;
            Ok((begun, file.len()?, file))
        });
        let spare = match spare {
            Err(source) if is_full(&source) => {
                // Nobody has seen it: the journal goes on in its old segment.
                discard_spare(&*self.dir);
                return Err(io_error(segment_path(&*self.dir, segment), "begin", source));
            }
            spare => self.guard("rotate", spare)?,
        };
        let (begun, file_bytes, file) = spare;
        let named = name_segment(&*self.dir, segment);
        self.guard("rotate", named)?;
        let Begun { bytes, block, end } = begun;
        (self.file, self.file_bytes, self.block) = (file, file_bytes, block);
        self.older_written.insert(self.segment, self.written);
        self.written = before.unwrap_or(0).max(bytes).min(self.file_bytes);
        (self.segment, self.first_lsn) = (segment, first_lsn);
        (self.buffer_start, self.durable) = (end, end);
        Ok(segment)
    }

    /// Forgets the segments before `before` (at most the current one): the rows have their
    /// effects. A crash may bring them back; [`Journal::open`] drops them again.
    ///
    /// # Errors
    /// `Io`; this one does not poison: a file too many is no harm.
    pub fn trim(&mut self, before: SegmentNo) -> Result<()> {
        self.check()?;
        let before = before.min(self.segment);
        for segment in self.oldest..before {
            // Also if removing fails: the file is not needed any more.
            self.oldest = segment + 1;
            if let Some(older) = self.recyclable.replace(segment) {
                self.older_written.remove(&older);
                remove(&*self.dir, &[segment_name(older)])?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match &self.poison {
            None => Ok(()),
            Some(cause) => Err(JournalError::Poisoned { cause: cause.clone() }),
        }
    }

    /// Poisons the journal on failure: after a failed fsync the kernel may have dropped the
    /// pages, and the next fsync would lie.
    fn guard<T>(&mut self, action: &'static str, result: io::Result<T>) -> Result<T> {
        result.map_err(|source| {
            let error = io_error(segment_path(&*self.dir, self.segment), action, source);
            self.poison = Some(error.to_string());
            error
        })
    }
}

/// Makes of the last block of a file what it is after `data`, which ends at `end`; returns what it
/// was.
fn follow(block: &mut Vec<u8>, data: &[u8], end: u64) -> Vec<u8> {
    let len = (end % BLOCK_BYTES as u64) as usize;
    let before = block.clone();
    if len <= data.len() {
        block.clear();
    }
    block.extend_from_slice(&data[data.len().saturating_sub(len)..]);
    before
}

/// How a new segment begins.
struct Begun {
    /// Bytes of the file up to the end of the snapshot.
    bytes: u64,
    /// Those after the last multiple of [`BLOCK_BYTES`].
    block: Vec<u8>,
    /// The snapshot's LSN.
    end: Lsn,
}

impl Begun {
    /// Writes header and snapshot, one piece after the other.
    fn write<P: AsRef<[u8]>>(
        file: &dyn File,
        header: &JournalSegmentHeader,
        pieces: &mut dyn Iterator<Item = P>,
    ) -> io::Result<Begun> {
        let mut data = header.encode().to_vec();
        let mut begun = Begun { bytes: 0, block: Vec::new(), end: header.first_lsn };
        let mut kind = JournalRecordKind::Snapshot;
        for piece in pieces {
            // Each counts as a flush of its own: nothing of them may be missing.
            begun.end = encode_record(&mut data, begun.end, 0, kind, |out| {
                out.extend_from_slice(piece.as_ref());
            });
            kind = JournalRecordKind::Changes;
            begun.put(file, &data)?;
            data.clear();
        }
        Ok(begun)
    }

    fn put(&mut self, file: &dyn File, data: &[u8]) -> io::Result<()> {
        file.write_at(self.bytes, data)?;
        self.bytes += data.len() as u64;
        follow(&mut self.block, data, self.bytes);
        Ok(())
    }
}

/// Removes what an attempt to make a segment may have left.
fn discard_spare(dir: &dyn Dir) {
    match dir.remove(SPARE_NAME) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("{}/{SPARE_NAME}: {error}", dir.label());
        }
        _ => {}
    }
}

/// A file for a new segment, out of `recycled` if there is one.
fn open_spare(dir: &dyn Dir, recycled: Option<SegmentNo>, bytes: u64) -> io::Result<Arc<dyn File>> {
    let file = if let Some(old) = recycled {
        dir.rename(&segment_name(old), SPARE_NAME)?;
        // Or a crash could bring the old name back with the new content.
        dir.sync()?;
        let file = dir.open(SPARE_NAME)?;
        if file.len()? > 2 * bytes {
            file.truncate(bytes)?;
        }
        file
    } else {
        discard_spare(dir);
        dir.create(SPARE_NAME)?
    };
    file.preallocate(bytes)?;
    Ok(file)
}

/// Makes a spare file, whose content is durable, a segment.
fn name_segment(dir: &dyn Dir, segment: SegmentNo) -> io::Result<()> {
    dir.rename(SPARE_NAME, &segment_name(segment))?;
    dir.sync()
}

/// Makes the last segment, found to hold `len` bytes of records, ready to be written on. What was
/// replayed from the page cache of a process that was killed becomes durable here.
fn settle(dir: &dyn Dir, segment: SegmentNo, len: u64, torn: bool) -> io::Result<Arc<dyn File>> {
    let file = dir.open(&segment_name(segment))?;
    if torn {
        let bytes = file.len()?;
        file.truncate(len)?;
        // Durable before the length grows again: else the torn records could be under the zeros.
        file.sync()?;
        match file.preallocate(bytes) {
            // It is shorter then, and grows when it must.
            Err(error) if is_full(&error) => {}
            allocated => allocated?,
        }
    }
    file.sync()?;
    dir.sync()?;
    Ok(file)
}

fn remove(dir: &dyn Dir, names: &[String]) -> Result<()> {
    for name in names {
        let removed = dir.remove(name);
        removed.map_err(|e| io_error(format!("{}/{name}", dir.label()), "remove", e))?;
    }
    Ok(())
}

fn segment_path(dir: &dyn Dir, segment: SegmentNo) -> String {
    format!("{}/{}", dir.label(), segment_name(segment))
}

fn io_error(file: String, action: &'static str, source: io::Error) -> JournalError {
    JournalError::Io { file, action, source }
}
