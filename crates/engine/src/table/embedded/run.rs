//! A run: a file of rows in order of keys, written once, with a hash table that finds each.
//!
//! ```text
//! run   = MAGIC row* bucket* step* foot
//! row   = crc32c of the rest:u32 bytes of key:u16 bytes of value:u32 key value
//!         (2^32 - 1 for the bytes of the value: the row is deleted)
//! bucket  = tag:20 bits, class:4 bits, offset of the row:40 bits; 0: empty
//! step  = offset:u64 bytes of key:u16 key
//!         (the first row of each STEP_BYTES; last the key of the last row, and where rows end)
//! foot  = version:u32, crc32c of the buckets:u32, of the steps:u32, of the foot:u32, rows:u64,
//!         end of the rows:u64, buckets:u64, bytes of steps:u64, MAGIC
//! ```
//!
//! All numbers are little-endian. A row is found by the hash of its key: the upper bits say at
//! which bucket to begin, the lower 20 are the tag. From there bucket by bucket, until an empty one,
//! those with the tag may be the row's. The class says how much to read, so that a row costs one
//! read. Buckets and steps are in memory while a run is open, 12 bytes and about 2 bytes for each
//! row; rows are read from the file, and its blocks that are looked at often are kept ([`RunBlocks`]).

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use saker_runtime::fs::{Dir, File};

use super::cache::RunBlocks;
use crate::table::{TableError, hash_of};

const MAGIC: [u8; 8] = *b"SAKERROW";
const FORMAT_VERSION: u32 = 1;
const FOOT_BYTES: usize = 56;
const ROW_HEAD_BYTES: usize = 10;
/// "Bytes of value" of a deleted row.
const DELETED: u32 = u32::MAX;

const TAG_MASK: u64 = (1 << 20) - 1;
const OFFSET_BITS: u32 = 40;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
/// A row of class 0 has at most so many bytes, of class n so many times 2^n. Of a row that is longer
/// than the last class says, the first part is read for nothing.
const CLASS_0_BYTES: usize = 64;
const CLASS_MAX: u32 = 15;
/// A row up to this is read without an allocation of its own.
const SMALL_ROW_BYTES: usize = 512;

/// A scan finds its start by reading at most this much before it.
const STEP_BYTES: u64 = 4096;
/// How much is written at once.
const WRITE_BYTES: usize = 1 << 20;
/// How much is written before a flush: behind it, on the same disk, flushes of the journal wait.
const FLUSH_BYTES: u64 = 4 << 20;
/// How much a scan reads at first, and at most.
const READ_BYTES: (usize, usize) = (8 << 10, 256 << 10);

type Result<T> = std::result::Result<T, TableError>;

/// A row as it lies in a file, its checksum verified.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    bytes: &'a [u8],
    key_bytes: usize,
    deleted: bool,
}

impl<'a> Row<'a> {
    /// How long the row is whose first bytes are given; `None`: that takes more bytes.
    fn bytes_of(head: &[u8]) -> Option<usize> {
        let key_bytes = u16::from_le_bytes(head.get(4..6)?.try_into().ok()?);
        let value_bytes = u32::from_le_bytes(head.get(6..ROW_HEAD_BYTES)?.try_into().ok()?);
        let value_bytes = if value_bytes == DELETED { 0 } else { value_bytes as usize };
        Some(ROW_HEAD_BYTES + usize::from(key_bytes) + value_bytes)
    }

    /// The row that `bytes` are; `None` if they are none.
    fn parse(bytes: &'a [u8]) -> Option<Row<'a>> {
        let (crc, rest) = bytes.split_at_checked(4)?;
        if Row::bytes_of(bytes)? != bytes.len() || crc32c::crc32c(rest).to_le_bytes() != crc {
            return None;
        }
        Row::parsed(bytes)
    }

    /// The row that `bytes` were found to be; `None` if there are none.
    fn parsed(bytes: &'a [u8]) -> Option<Row<'a>> {
        let key_bytes = usize::from(u16::from_le_bytes([*bytes.get(4)?, *bytes.get(5)?]));
        let deleted = bytes[6..ROW_HEAD_BYTES] == DELETED.to_le_bytes();
        Some(Row { bytes, key_bytes, deleted })
    }

    pub(super) fn key(&self) -> &'a [u8] {
        &self.bytes[ROW_HEAD_BYTES..][..self.key_bytes]
    }

    /// `None`: the row is deleted.
    pub(super) fn value(&self) -> Option<&'a [u8]> {
        (!self.deleted).then(|| &self.bytes[ROW_HEAD_BYTES + self.key_bytes..])
    }
}

fn class_of(row_bytes: usize) -> u32 {
    let units = row_bytes.div_ceil(CLASS_0_BYTES).next_power_of_two();
    units.trailing_zeros().min(CLASS_MAX)
}

/// The bucket to begin at, of so many.
fn first_bucket(hash: u64, buckets: usize) -> usize {
    ((u128::from(hash) * buckets as u128) >> 64) as usize
}

fn tag_of(bucket: u64) -> u64 {
    bucket >> (OFFSET_BITS + 4)
}

/// A look at a row.
pub(super) struct Look {
    /// It may wait for the disk, else it fails with `WouldBlock`.
    pub may_wait: bool,
    /// It has.
    pub waited: bool,
}

/// A run that is open.
pub(super) struct Run {
    name: String,
    /// What to call the directory in messages.
    dir: String,
    file: Arc<dyn File>,
    /// Of it what is kept in memory.
    blocks: RunBlocks,
    rows: u64,
    rows_end: u64,
    file_bytes: u64,
    buckets: Vec<u64>,
    steps: Steps,
}

/// The first key of each step, and the last key of all.
#[derive(Default)]
struct Steps {
    keys: Vec<u8>,
    /// Where the key ends in `keys`, and where the row begins in the file.
    ends: Vec<(usize, u64)>,
}

impl Steps {
    fn push(&mut self, key: &[u8], offset: u64) {
        self.keys.extend_from_slice(key);
        self.ends.push((self.keys.len(), offset));
    }

    fn key(&self, n: usize) -> &[u8] {
        let start = if n == 0 { 0 } else { self.ends[n - 1].0 };
        &self.keys[start..self.ends[n].0]
    }

    /// From where to look for the first row that is not before `start`.
    fn offset(&self, start: &[u8]) -> u64 {
        let Some((&(_, rows_end), steps)) = self.ends.split_last() else {
            return MAGIC.len() as u64;
        };
        if self.key(steps.len()) < start {
            return rows_end;
        }
        let (mut low, mut high) = (0, steps.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.key(middle) <= start { low = middle + 1 } else { high = middle }
        }
        steps.get(low.saturating_sub(1)).map_or(rows_end, |(_, offset)| *offset)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.keys.len() + self.ends.len() * 10);
        for (n, (_, offset)) in self.ends.iter().enumerate() {
            let key = self.key(n);
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&(key.len() as u16).to_le_bytes());
            out.extend_from_slice(key);
        }
        out
    }

    fn decode(mut bytes: &[u8]) -> Option<Steps> {
        let mut steps = Steps::default();
        while !bytes.is_empty() {
            let (offset, rest) = bytes.split_first_chunk()?;
            let (len, rest) = rest.split_first_chunk()?;
            let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
            steps.push(key, u64::from_le_bytes(*offset));
            bytes = rest;
        }
        Some(steps)
    }
}

struct Foot {
    buckets_crc: u32,
    steps_crc: u32,
    rows: u64,
    rows_end: u64,
    buckets: u64,
    steps_bytes: u64,
}

impl Foot {
    fn encode(&self) -> [u8; FOOT_BYTES] {
        let mut out = [0; FOOT_BYTES];
        out[..4].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[4..8].copy_from_slice(&self.buckets_crc.to_le_bytes());
        out[8..12].copy_from_slice(&self.steps_crc.to_le_bytes());
        let numbers = [self.rows, self.rows_end, self.buckets, self.steps_bytes];
        for (n, number) in numbers.into_iter().enumerate() {
            out[16 + n * 8..][..8].copy_from_slice(&number.to_le_bytes());
        }
        out[48..].copy_from_slice(&MAGIC);
        // The checksum's own place counts as zeros.
        let crc = crc32c::crc32c(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// # Errors
    /// What is wrong with it.
    fn decode(bytes: &[u8; FOOT_BYTES]) -> std::result::Result<Foot, String> {
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        let u64_at =
            |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|n| bytes[at + n]));
        if bytes[48..] != MAGIC {
            return Err("it does not end as such a file ends".into());
        }
        let mut without_crc = *bytes;
        without_crc[12..16].fill(0);
        if crc32c::crc32c(&without_crc) != u32_at(12) {
            return Err("the checksum of its end is wrong".into());
        }
        if u32_at(0) != FORMAT_VERSION {
            return Err(format!("format {}; this program knows {FORMAT_VERSION}", u32_at(0)));
        }
        Ok(Foot {
            buckets_crc: u32_at(4),
            steps_crc: u32_at(8),
            rows: u64_at(16),
            rows_end: u64_at(24),
            buckets: u64_at(32),
            steps_bytes: u64_at(40),
        })
    }
}

impl Run {
    /// Opens the run in the file `name`, and reads its buckets and steps.
    pub(super) fn open(dir: &dyn Dir, name: &str, blocks: RunBlocks) -> Result<Run> {
        let damaged = |what: &str| damaged(dir, name, what);
        let file = dir.open(name)?;
        let file_bytes = file.len()?;
        let mut foot = [0; FOOT_BYTES];
        let foot_at = file_bytes.checked_sub(FOOT_BYTES as u64).filter(|at| *at >= 8);
        let foot_at = foot_at.ok_or_else(|| damaged("it is cut off"))?;
        read_exactly(&*file, foot_at, &mut foot)?;
        let foot = Foot::decode(&foot).map_err(|what| damaged(&what))?;
        let buckets_bytes = foot.buckets.checked_mul(8);
        let whole = buckets_bytes
            .and_then(|buckets| foot.rows_end.checked_add(buckets)?.checked_add(foot.steps_bytes));
        let (Some(buckets_bytes), true) = (buckets_bytes, whole == Some(foot_at)) else {
            return Err(damaged("its parts are not as long as its end says"));
        };
        let buckets = read_buckets(&*file, foot.rows_end, foot.buckets as usize)?;
        let buckets = buckets.filter(|(_, crc)| *crc == foot.buckets_crc);
        let (buckets, _) =
            buckets.ok_or_else(|| damaged("the checksum of its hash table is wrong"))?;
        let mut steps = vec![0; foot.steps_bytes as usize];
        read_exactly(&*file, foot.rows_end + buckets_bytes, &mut steps)?;
        let steps = Some(steps).filter(|steps| crc32c::crc32c(steps) == foot.steps_crc);
        let steps = steps.and_then(|steps| Steps::decode(&steps));
        let steps = steps.ok_or_else(|| damaged("the checksum of its index is wrong"))?;
        file.expect_random_reads();
        Ok(Run {
            name: name.to_owned(),
            dir: dir.label(),
            file,
            blocks,
            rows: foot.rows,
            rows_end: foot.rows_end,
            file_bytes,
            buckets,
            steps,
        })
    }

    /// The file it is in.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Rows, deleted ones too.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The bucket where a search for this hash begins.
    pub(super) fn bucket(&self, hash: u64) -> u64 {
        self.buckets[first_bucket(hash, self.buckets.len())]
    }

    /// What it knows of a row: nothing, that it is deleted (`Some(None)`), or its value.
    /// `hash` is the key's.
    pub(super) fn get(
        &self,
        key: &[u8],
        hash: u64,
        look: &mut Look,
    ) -> Result<Option<Option<Bytes>>> {
        let mut at = first_bucket(hash, self.buckets.len());
        loop {
            let bucket = self.buckets[at];
            if bucket == 0 {
                return Ok(None);
            }
            if tag_of(bucket) == hash & TAG_MASK
                && let Some(value) = self.read(bucket, key, look)?
            {
                return Ok(Some(value));
            }
            at = if at + 1 == self.buckets.len() { 0 } else { at + 1 };
        }
    }

    /// Could it have the row, be it deleted, whose key has this hash? One in some 300,000 it has not.
    pub(super) fn may_have(&self, hash: u64) -> bool {
        self.bucket_of(hash).is_some()
    }

    /// The row whose key has this hash, if there may be one, is fetched if it is not in memory.
    /// Was there?
    pub(super) fn prefetch(&self, hash: u64) -> bool {
        let bucket = self.bucket_of(hash);
        if let Some((offset, bytes)) = bucket.map(|bucket| self.place(bucket))
            && !self.blocks.has(offset, bytes)
        {
            self.file.prefetch(offset, bytes as u64);
        }
        bucket.is_some()
    }

    /// The first bucket that may be of a key with this hash.
    fn bucket_of(&self, hash: u64) -> Option<u64> {
        let from = first_bucket(hash, self.buckets.len());
        let buckets = self.buckets[from..].iter().chain(&self.buckets[..from]).copied();
        buckets.take_while(|bucket| *bucket != 0).find(|bucket| tag_of(*bucket) == hash & TAG_MASK)
    }

    /// Where the row of a bucket is, and how much to read for it.
    fn place(&self, bucket: u64) -> (u64, usize) {
        let offset = bucket & OFFSET_MASK;
        let bytes = CLASS_0_BYTES << ((bucket >> OFFSET_BITS) & u64::from(CLASS_MAX));
        (offset, bytes.min(self.file_bytes.saturating_sub(offset) as usize))
    }

    /// Reads; `WouldBlock` if it would have to wait for the disk, and may not.
    fn read_at(&self, offset: u64, buf: &mut [u8], look: &mut Look) -> Result<usize> {
        if self.blocks.copy(offset, buf) {
            return Ok(buf.len());
        }
        let read = match self.file.read_cached(offset, buf)? {
            Some(read) => read,
            None if !look.may_wait => return Err(io::Error::from(io::ErrorKind::WouldBlock).into()),
            None => {
                look.waited = true;
                self.file.read_at(offset, buf)?
            }
        };
        self.blocks.was_read(&*self.file, offset, read)?;
        Ok(read)
    }

    /// The value of the row of a bucket, if it has this key.
    fn read(&self, bucket: u64, key: &[u8], look: &mut Look) -> Result<Option<Option<Bytes>>> {
        let (offset, bytes) = self.place(bucket);
        if bytes <= SMALL_ROW_BYTES {
            let mut row = [0; SMALL_ROW_BYTES];
            let read = self.read_at(offset, &mut row[..bytes], look)?;
            return self.value_in(offset, &row[..read], key);
        }
        let mut row = vec![0; bytes];
        let read = self.read_at(offset, &mut row, look)?;
        row.truncate(read);
        if let Some(len) = Row::bytes_of(&row).filter(|len| *len > read) {
            if offset + len as u64 > self.rows_end {
                return Err(self.damaged(offset));
            }
            row.resize(len, 0);
            if self.read_at(offset + read as u64, &mut row[read..], look)? < len - read {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        self.value_in(offset, &row, key)
    }

    fn value_in(&self, offset: u64, bytes: &[u8], key: &[u8]) -> Result<Option<Option<Bytes>>> {
        let row = Row::bytes_of(bytes).and_then(|len| Row::parse(bytes.get(..len)?));
        let row = row.ok_or_else(|| self.damaged(offset))?;
        // Copied: the buffer may be twice as long.
        Ok((row.key() == key).then(|| row.value().map(Bytes::copy_from_slice)))
    }

    fn damaged(&self, offset: u64) -> TableError {
        let what = format!("{}/{}: the row at byte {offset} is damaged", self.dir, self.name);
        TableError::Damaged(what)
    }
}

/// What is wrong with a file.
pub(super) fn damaged(dir: &dyn Dir, name: &str, what: &str) -> TableError {
    TableError::Damaged(format!("{}/{name}: {what}", dir.label()))
}

fn read_exactly(file: &dyn File, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    if file.read_at(offset, buf)? < buf.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Buckets and their checksum; `None` if there is no empty one, without which no search ends.
fn read_buckets(file: &dyn File, offset: u64, count: usize) -> io::Result<Option<(Vec<u64>, u32)>> {
    let mut buckets = Vec::with_capacity(count);
    let (mut crc, mut empty) = (0, false);
    let mut buf = vec![0; WRITE_BYTES.min(count * 8)];
    while buckets.len() < count {
        let take = buf.len().min((count - buckets.len()) * 8);
        let piece = &mut buf[..take];
        read_exactly(file, offset + buckets.len() as u64 * 8, piece)?;
        crc = crc32c::crc32c_append(crc, piece);
        for bucket in piece.chunks_exact(8) {
            let bucket = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|n| bucket[n]));
            empty |= bucket == 0;
            buckets.push(bucket);
        }
    }
    Ok(empty.then_some((buckets, crc)))
}

/// Writes a run. Until [`RunWriter::finish`] it has a name that nobody looks for.
pub(super) struct RunWriter<'a> {
    dir: &'a dyn Dir,
    /// What it may be called, until it is finished.
    names: Vec<String>,
    file: Arc<dyn File>,
    buf: Vec<u8>,
    /// What is in the file, and of it durable.
    written: u64,
    flushed: u64,
    /// Hash of the key, and class and offset as the bucket will have them.
    found_by: Vec<(u64, u64)>,
    steps: Steps,
    next_step: u64,
    last_key: Vec<u8>,
}

/// What ends the names of files that are being written.
pub(super) const TEMPORARY: &str = ".new";

impl<'a> RunWriter<'a> {
    pub(super) fn new(dir: &'a dyn Dir, name: &str) -> Result<RunWriter<'a>> {
        let temporary = format!("{name}{TEMPORARY}");
        // Of an attempt that failed.
        match dir.remove(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let file = dir.create(&temporary)?;
        Ok(RunWriter {
            dir,
            names: vec![temporary],
            file,
            buf: MAGIC.to_vec(),
            written: 0,
            flushed: 0,
            found_by: Vec::new(),
            steps: Steps::default(),
            next_step: 0,
            last_key: Vec::new(),
        })
    }

    /// Adds a row; `None`: it is deleted.
    ///
    /// # Panics
    /// If the key is not greater than the one before it.
    pub(super) fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let key_bytes = u16::try_from(key.len()).map_err(|_| TableError::TooLong)?;
        let value_bytes = match value.map(|value| u32::try_from(value.len())) {
            None => DELETED,
            Some(Ok(bytes)) if bytes != DELETED => bytes,
            Some(_) => return Err(TableError::TooLong),
        };
        let start = self.buf.len();
        self.buf.extend_from_slice(&[0; 4]);
        self.buf.extend_from_slice(&key_bytes.to_le_bytes());
        self.buf.extend_from_slice(&value_bytes.to_le_bytes());
        self.buf.extend_from_slice(key);
        self.buf.extend_from_slice(value.unwrap_or_default());
        let crc = crc32c::crc32c(&self.buf[start + 4..]);
        self.buf[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        self.pushed(start, key, hash_of(key))
    }

    /// Adds a row as another run has it. `hash` is its key's.
    ///
    /// # Panics
    /// As [`RunWriter::push`].
    pub(super) fn copy(&mut self, row: &Row<'_>, hash: u64) -> Result<()> {
        let start = self.buf.len();
        self.buf.extend_from_slice(row.bytes);
        self.pushed(start, row.key(), hash)
    }

    fn pushed(&mut self, start: usize, key: &[u8], hash: u64) -> Result<()> {
        assert!(self.last_key[..] < *key, "{key:?} comes after {:?}", self.last_key);
        let offset = self.written + start as u64;
        if offset > OFFSET_MASK {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        if offset >= self.next_step {
            self.steps.push(key, offset);
            self.next_step = offset + STEP_BYTES;
        }
        let class = class_of(self.buf.len() - start);
        self.found_by.push((hash, u64::from(class) << OFFSET_BITS | offset));
        if self.buf.len() >= WRITE_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        self.file.write_at(self.written, &self.buf)?;
        self.written += self.buf.len() as u64;
        self.buf.clear();
        if self.written - self.flushed >= FLUSH_BYTES {
            self.file.sync()?;
            self.flushed = self.written;
        }
        Ok(())
    }

    /// Writes what is missing, makes the run durable and only then gives it its name.
    pub(super) fn finish(mut self, name: &str, blocks: RunBlocks) -> Result<Run> {
        self.write_out()?;
        let rows_end = self.written;
        if !self.last_key.is_empty() {
            self.steps.push(&self.last_key, rows_end);
        }
        let buckets = buckets_of(&self.found_by);
        let mut buckets_crc = 0;
        for piece in buckets.chunks(WRITE_BYTES / 8) {
            piece.iter().for_each(|bucket| self.buf.extend_from_slice(&bucket.to_le_bytes()));
            buckets_crc = crc32c::crc32c_append(buckets_crc, &self.buf);
            self.write_out()?;
        }
        self.buf = self.steps.encode();
        let (steps_bytes, steps_crc) = (self.buf.len() as u64, crc32c::crc32c(&self.buf));
        let rows = self.found_by.len() as u64;
        let buckets_len = buckets.len() as u64;
        let foot =
            Foot { buckets_crc, steps_crc, rows, rows_end, buckets: buckets_len, steps_bytes };
        self.buf.extend_from_slice(&foot.encode());
        self.write_out()?;
        self.file.sync()?;
        self.names.push(name.to_owned());
        self.dir.rename(&self.names[0], name)?;
        self.dir.sync()?;
        self.names.clear();
        self.file.expect_random_reads();
        Ok(Run {
            name: name.to_owned(),
            dir: self.dir.label(),
            file: self.file.clone(),
            blocks,
            rows,
            rows_end,
            file_bytes: self.written,
            buckets,
            steps: std::mem::take(&mut self.steps),
        })
    }
}

impl Drop for RunWriter<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            // If it stays, opening the table removes it, or all of it counts.
            let _ = self.dir.remove(name);
        }
    }
}

/// The hash table of these rows. A third of it is empty, so that a search ends soon.
fn buckets_of(found_by: &[(u64, u64)]) -> Vec<u64> {
    let mut buckets = vec![0; found_by.len() + found_by.len() / 2 + 1];
    for (hash, place) in found_by {
        let mut at = first_bucket(*hash, buckets.len());
        while buckets[at] != 0 {
            at = if at + 1 == buckets.len() { 0 } else { at + 1 };
        }
        buckets[at] = (hash & TAG_MASK) << (OFFSET_BITS + 4) | place;
    }
    buckets
}

/// A place among a run's rows.
pub(super) struct Cursor {
    run: Arc<Run>,
    file: Arc<dyn File>,
    /// What was read of the file last, and where the file goes on.
    buf: Vec<u8>,
    read_to: u64,
    /// Where the row is in `buf`; empty at the end.
    row: std::ops::Range<usize>,
    read_bytes: usize,
}

impl Cursor {
    /// The first row whose key is not before `start`.
    pub(super) fn seek(run: &Arc<Run>, start: &[u8]) -> Result<Cursor> {
        let (file, offset) = (run.file.clone(), run.steps.offset(start));
        let mut cursor = Cursor::new(run, file, offset, READ_BYTES.0)?;
        while cursor.row().is_some_and(|row| row.key() < start) {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    /// The first row, for one who will read all of them.
    pub(super) fn all(run: &Arc<Run>, dir: &dyn Dir) -> Result<Cursor> {
        // Opened again: of this one the system may read ahead.
        Cursor::new(run, dir.open(&run.name)?, MAGIC.len() as u64, READ_BYTES.1)
    }

    fn new(run: &Arc<Run>, file: Arc<dyn File>, offset: u64, read_bytes: usize) -> Result<Cursor> {
        let run = run.clone();
        let mut cursor =
            Cursor { run, file, buf: Vec::new(), read_to: offset, row: 0..0, read_bytes };
        cursor.advance()?;
        Ok(cursor)
    }

    /// Are there no more rows?
    pub(super) fn is_at_end(&self) -> bool {
        self.row.is_empty()
    }

    /// The row here; `None` at the end.
    pub(super) fn row(&self) -> Option<Row<'_>> {
        Row::parsed(&self.buf[self.row.clone()])
    }

    /// Goes to the next row.
    pub(super) fn advance(&mut self) -> Result<()> {
        let start = self.row.end;
        if let Some(row) = self.whole_row_at(start) {
            self.row = row;
            return self.verify();
        }
        self.buf.drain(..start);
        self.row = 0..0;
        loop {
            if !self.read_more()? {
                return if self.buf.is_empty() { Ok(()) } else { Err(self.damaged()) };
            }
            if let Some(row) = self.whole_row_at(0) {
                self.row = row;
                return self.verify();
            }
        }
    }

    fn whole_row_at(&self, start: usize) -> Option<std::ops::Range<usize>> {
        let len = Row::bytes_of(&self.buf[start..])?;
        (start + len <= self.buf.len()).then_some(start..start + len)
    }

    fn verify(&self) -> Result<()> {
        match Row::parse(&self.buf[self.row.clone()]) {
            Some(_) => Ok(()),
            None => Err(self.damaged()),
        }
    }

    /// Reads on; `false` at the end of the rows.
    fn read_more(&mut self) -> Result<bool> {
        // A row that is not whole yet says how long it is.
        let wanted = Row::bytes_of(&self.buf).map_or(0, |len| len.saturating_sub(self.buf.len()));
        let left = self.run.rows_end.saturating_sub(self.read_to);
        if wanted as u64 > left {
            return Err(self.damaged());
        }
        let take = (self.read_bytes.max(wanted) as u64).min(left) as usize;
        self.read_bytes = (self.read_bytes * 2).min(READ_BYTES.1);
        let have = self.buf.len();
        self.buf.resize(have + take, 0);
        read_exactly(&*self.file, self.read_to, &mut self.buf[have..])?;
        self.read_to += take as u64;
        Ok(take > 0)
    }

    fn damaged(&self) -> TableError {
        let unread = self.buf.len() - self.row.start;
        self.run.damaged(self.read_to - unread as u64)
    }
}
