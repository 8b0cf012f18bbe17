//! Rows in files: a log-structured merge tree for a table that is written in large, sorted
//! pieces and read row by row.
//!
//! Each write makes a [`run`], and a run is never changed. Threads make runs of about the same size
//! one, so that there are few. A run's hash table is in memory: to find a row costs a look into
//! the table of each run that is newer, mostly one cache miss, and then one read of the row.
//!
//! **Names say what counts.** Writes are numbered, and a run is called after the first and the
//! last write whose rows it holds: `FIRST-LAST.run`. A merged run gets its name when it is
//! durable, and counts from then on instead of those whose numbers lie in its own, which are then
//! removed. So one rename is all that has to be atomic, and there is no list of runs that could
//! contradict the files.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::fs::{Dir, RealDir};
use saker_runtime::thread::{self, JoinHandle};
use saker_runtime::time::sleep;

use super::{OnRow, RESERVED, Reads, RowWrite, Table, TableError, hash_of};
use cache::BlockCache;
use merge::{Merge, runs_to_merge};
use run::{Look, Run, RunWriter, TEMPORARY, damaged};

mod cache;
mod merge;
mod run;
#[cfg(test)]
mod tests;

type Result<T> = std::result::Result<T, TableError>;

/// With more runs than this a write waits for the threads that merge.
const RUNS_MAX: usize = 48;
const WAIT_MAX: Duration = Duration::from_secs(60);
/// What a merge leaves free on the disk, bytes: the journal beside it must go on.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// A merge of at most so many rows takes a second or two.
const SMALL_MERGE_ROWS: u64 = 4 << 20;
/// How often, and how many times, whoever removes runs looks whether others still read them.
const LAST_READER_STEP: Duration = Duration::from_millis(1);
const LAST_READER_STEPS: usize = 1000;
const SUFFIX: &str = ".run";
/// [`EmbeddedConfig::cache_bytes`], if nobody says otherwise.
const CACHE_BYTES: usize = 16 << 20;

/// How an [`EmbeddedTable`] works.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// Threads that merge runs, so that small runs need not wait for large ones. With none, a
    /// write does that itself before it returns.
    pub merge_threads: usize,
    /// Bytes of blocks of rows that are kept in memory; 0: none.
    pub cache_bytes: usize,
}

impl Default for EmbeddedConfig {
    fn default() -> EmbeddedConfig {
        EmbeddedConfig { merge_threads: 2, cache_bytes: CACHE_BYTES }
    }
}

/// A table in a directory of its own. A second process that opens it is refused.
pub struct EmbeddedTable {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    waits: AtomicU64,
}

struct Shared {
    dir: Arc<dyn Dir>,
    cache: Arc<BlockCache>,
    runs: Mutex<Runs>,
    changed: Condvar,
    /// Held by a write.
    writing: Mutex<()>,
    stop: AtomicBool,
}

struct Runs {
    /// Newest first; together they hold all writes from the first to the last.
    all: Arc<[Numbered]>,
    /// What is being merged.
    busy: Vec<Span>,
    failed: Vec<Failed>,
}

/// The oldest run of a merge that failed. It is left alone for some writes, so that newer ones are
/// merged all the same, and the disk is not kept busy with what fails again.
struct Failed {
    run: Span,
    times: u32,
    /// Until the table holds this write.
    until: u64,
}

/// The first and the last write whose rows a run holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: u64,
    last: u64,
}

#[derive(Clone)]
struct Numbered {
    span: Span,
    run: Arc<Run>,
}

impl Span {
    fn file_name(self) -> String {
        format!("{:016x}-{:016x}{SUFFIX}", self.first, self.last)
    }

    fn of_file_name(name: &str) -> Option<Span> {
        let (first, last) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let span = Span { first: number(first)?, last: number(last)? };
        let sound = span.first <= span.last && span.last < u64::MAX && span.file_name() == name;
        sound.then_some(span)
    }

    fn contains(self, other: Span) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

impl EmbeddedTable {
    /// Opens the table in `path`, making it if it is missing.
    ///
    /// # Errors
    /// I/O; damaged files, missing ones, or some that are no table's; a lock held by another
    /// process.
    pub fn open(path: impl AsRef<Path>, config: &EmbeddedConfig) -> Result<EmbeddedTable> {
        EmbeddedTable::open_in(Arc::new(RealDir::open(path)?), config)
    }

    /// The same in a directory that is open.
    ///
    /// # Errors
    /// As [`EmbeddedTable::open`].
    pub fn open_in(dir: Arc<dyn Dir>, config: &EmbeddedConfig) -> Result<EmbeddedTable> {
        dir.lock().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => TableError::InUse(dir.label()),
            _ => error.into(),
        })?;
        let cache = BlockCache::new(config.cache_bytes);
        let all = open_runs(&*dir, &cache)?;
        let shared = Arc::new(Shared {
            dir,
            cache,
            runs: Mutex::new(Runs { all, busy: Vec::new(), failed: Vec::new() }),
            changed: Condvar::new(),
            writing: Mutex::new(()),
            stop: AtomicBool::new(false),
        });
        let mut table = EmbeddedTable { shared, threads: Vec::new(), waits: AtomicU64::new(0) };
        for n in 0..config.merge_threads {
            let shared = table.shared.clone();
            // One that has time for small runs while another works for minutes.
            let rows_max = if n == 1 { SMALL_MERGE_ROWS } else { u64::MAX };
            let merge = move || shared.merge_all(rows_max);
            table.threads.push(thread::spawn(&format!("merge-{n}"), merge)?);
        }
        Ok(table)
    }
}

impl Drop for EmbeddedTable {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Under the lock, so that no thread is between its look at `stop` and its sleep.
        drop(self.shared.runs());
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic there has already said so.
            let _ = thread.join();
        }
    }
}

/// The runs that count, newest first. Removes what does not count.
fn open_runs(dir: &dyn Dir, cache: &Arc<BlockCache>) -> Result<Arc<[Numbered]>> {
    // Names may be those of a process that was killed before they were durable. From here on
    // what does not count without them goes, here and in the journal.
    dir.sync()?;
    let (mut spans, mut remove) = (Vec::new(), Vec::new());
    for name in dir.list()? {
        match Span::of_file_name(&name) {
            Some(span) => spans.push(span),
            None if name.ends_with(TEMPORARY) => remove.push(name),
            None => return Err(damaged(dir, &name, "no table of this version has such a file")),
        }
    }
    let count = spans_that_count(&mut spans).map_err(|missing| {
        let what = format!("the file of write {missing} is missing");
        TableError::Damaged(format!("{}: {what}", dir.label()))
    })?;
    let open = |span: &Span| {
        let run = Arc::new(Run::open(dir, &span.file_name(), cache.of_new_run())?);
        Ok(Numbered { span: *span, run })
    };
    let all = count.iter().rev().map(open).collect::<Result<_>>()?;
    let others = spans.iter().filter(|span| !count.contains(span));
    remove.extend(others.map(|span| span.file_name()));
    remove.iter().for_each(|name| remove_unused(dir, name));
    Ok(all)
}

/// Removes a file that does not count. If it stays it does no harm.
fn remove_unused(dir: &dyn Dir, name: &str) {
    if let Err(error) = dir.remove(name) {
        tracing::warn!("cannot remove {}/{name}: {error}", dir.label());
    }
}

/// Of these, some that hold each write once, oldest first: as few as can be.
///
/// # Errors
/// The first write that is in none of them, or that none begins with.
fn spans_that_count(spans: &mut [Span]) -> std::result::Result<Vec<Span>, u64> {
    spans.sort_unstable_by_key(|span| Reverse((span.first, span.last)));
    let end = spans.iter().map(|span| span.last + 1).max().unwrap_or(1);
    // From where on the rest is there, and by which run then: a longer one comes before.
    let mut from: BTreeMap<u64, Option<Span>> = BTreeMap::from([(end, None)]);
    for span in spans.iter() {
        if from.contains_key(&(span.last + 1)) {
            from.entry(span.first).or_insert(Some(*span));
        }
    }
    let mut at = 1;
    if !from.contains_key(&at) {
        // Oldest first.
        let reach =
            |at: u64, span: &Span| if span.first <= at { at.max(span.last + 1) } else { at };
        return Err(spans.iter().rev().fold(at, reach));
    }
    let mut count = Vec::new();
    while let Some(Some(span)) = from.get(&at) {
        count.push(*span);
        at = span.last + 1;
    }
    Ok(count)
}

impl Shared {
    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Arc<[Numbered]> {
        self.runs().all.clone()
    }

    /// Merges whenever there is something to, but no more than so many rows, until the table is
    /// dropped.
    fn merge_all(&self, rows_max: u64) {
        let mut runs = self.runs();
        while !self.stop.load(Ordering::Relaxed) {
            runs = match self.start_merge(&mut runs, rows_max) {
                Some(inputs) => {
                    drop(runs);
                    self.merge(&inputs);
                    self.wait_for_last_reader(inputs);
                    self.runs()
                }
                None => self.changed.wait(runs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Frees runs that were merged. Not before a reader has done with them: it takes long, and
    /// must not be a reader who does it. (Another merge may be one for minutes.)
    fn wait_for_last_reader(&self, merged: Vec<Numbered>) {
        let counts = self.all();
        let is_read = |input: &Numbered| {
            Arc::strong_count(&input.run) > 1
                && !counts.iter().any(|numbered| numbered.span == input.span)
        };
        for _ in 0..LAST_READER_STEPS {
            if self.stop.load(Ordering::Relaxed) || !merged.iter().any(is_read) {
                return;
            }
            sleep(LAST_READER_STEP);
        }
    }

    /// Which runs to make one, if any.
    fn to_merge(&self, runs: &Runs, rows_max: u64) -> Option<Range<usize>> {
        let newest = runs.all.first()?.span.last;
        let is_busy = |span: Span| {
            runs.busy.iter().any(|busy| busy.contains(span))
                || runs.failed.iter().any(|failed| failed.run == span && newest < failed.until)
        };
        let rows: Vec<u64> = runs.all.iter().map(|numbered| numbered.run.rows()).collect();
        let busy: Vec<bool> = runs.all.iter().map(|numbered| is_busy(numbered.span)).collect();
        runs_to_merge(&rows, &busy, rows_max)
    }

    /// Runs to make one, marked as busy.
    fn start_merge(&self, runs: &mut Runs, rows_max: u64) -> Option<Vec<Numbered>> {
        let inputs = runs.all[self.to_merge(runs, rows_max)?].to_vec();
        runs.busy.push(span_of(&inputs));
        Some(inputs)
    }

    /// Makes runs one.
    fn merge(&self, inputs: &[Numbered]) {
        let span = span_of(inputs);
        let merged = self.write_merged(inputs);
        let mut runs = self.runs();
        runs.busy.retain(|busy| *busy != span);
        let done = match merged {
            Ok(run) => {
                let newer = runs.all.iter().take_while(|numbered| !span.contains(numbered.span));
                let newer = newer.count();
                let mut all = runs.all.to_vec();
                all.splice(newer..newer + inputs.len(), [Numbered { span, run: Arc::new(run) }]);
                runs.all = all.into();
                runs.failed.retain(|failed| !span.contains(failed.run));
                true
            }
            Err(error) => {
                runs.add_failure(inputs);
                if !self.stop.load(Ordering::Relaxed) {
                    tracing::warn!("cannot merge runs of {}: {error}", self.dir.label());
                }
                false
            }
        };
        drop(runs);
        self.changed.notify_all();
        if done {
            inputs.iter().for_each(|input| remove_unused(&*self.dir, input.run.name()));
        }
    }

    fn write_merged(&self, inputs: &[Numbered]) -> Result<Run> {
        let span = span_of(inputs);
        let bytes: u64 = inputs.iter().map(|input| input.run.file_bytes()).sum();
        if self.dir.free_bytes()? < bytes + FREE_BYTES_MIN {
            return Err(io::Error::from(io::ErrorKind::StorageFull).into());
        }
        let name = span.file_name();
        let runs: Vec<_> = inputs.iter().map(|input| input.run.clone()).collect();
        let all = self.all();
        let older = || all.iter().filter(|numbered| numbered.span.last < span.first);
        let mut rows = Merge::all(&runs, &*self.dir)?;
        let mut writer = RunWriter::new(&*self.dir, &name)?;
        while let Some(row) = rows.next()? {
            // That a row is deleted nobody needs to know where nothing older has it.
            let hash = hash_of(row.key());
            if row.value().is_some() || older().any(|numbered| numbered.run.may_have(hash)) {
                writer.copy(&row, hash)?;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::from(io::ErrorKind::Interrupted).into());
            }
        }
        writer.finish(&name, self.cache.of_new_run())
    }

    /// Waits until there are few enough runs to add one.
    fn wait_for_merges(&self) {
        let too_many = |runs: &mut Runs| {
            let merging = !runs.busy.is_empty() || self.to_merge(runs, u64::MAX).is_some();
            runs.all.len() >= RUNS_MAX && merging
        };
        let waited = self.changed.wait_timeout_while(self.runs(), WAIT_MAX, too_many);
        let (runs, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if runs.all.len() >= RUNS_MAX {
            tracing::warn!(runs = runs.all.len(), "merging does not keep up");
        }
    }
}

impl Runs {
    fn add_failure(&mut self, inputs: &[Numbered]) {
        let (Some(newest), Some(oldest)) = (self.all.first(), inputs.last()) else { return };
        let (newest, run) = (newest.span.last, oldest.span);
        if !self.failed.iter().any(|failed| failed.run == run) {
            self.failed.push(Failed { run, times: 0, until: 0 });
        }
        for failed in self.failed.iter_mut().filter(|failed| failed.run == run) {
            failed.until = newest + (1 << failed.times.min(10));
            failed.times += 1;
        }
    }
}

/// From the oldest to the newest of some runs, newest first.
fn span_of(runs: &[Numbered]) -> Span {
    let first = runs.last().map_or(1, |oldest| oldest.span.first);
    Span { first, last: runs.first().map_or(0, |newest| newest.span.last) }
}

impl EmbeddedTable {
    fn look(&self, key: &[u8], look: &mut Look) -> Result<Option<Bytes>> {
        let hash = hash_of(key);
        let runs = self.shared.all();
        // Of all at once: while the processor waits for one it waits for the others, too.
        black_box(runs.iter().fold(0, |all, numbered| all ^ numbered.run.bucket(hash)));
        let mut found = None;
        for numbered in &*runs {
            found = numbered.run.get(key, hash, look)?;
            if found.is_some() {
                break;
            }
        }
        if look.waited {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(found.flatten())
    }
}

impl Table for EmbeddedTable {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.look(key, &mut Look { may_wait: true, waited: false })
    }

    fn get_cached(&self, key: &[u8]) -> Result<Option<Option<Bytes>>> {
        match self.look(key, &mut Look { may_wait: false, waited: false }) {
            Err(TableError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            found => found.map(Some),
        }
    }

    fn reads(&self) -> Reads {
        let (found, missed) = self.shared.cache.counts();
        Reads { found, missed, waited: self.waits.load(Ordering::Relaxed) }
    }

    fn prefetch(&self, key: &[u8]) {
        let hash = hash_of(key);
        for numbered in &*self.shared.all() {
            if numbered.run.prefetch(hash) {
                return;
            }
        }
    }

    fn scan(&self, start: &[u8], end: &[u8], f: &mut OnRow<'_>) -> Result<()> {
        let end = end.min(&[RESERVED]);
        if start >= end {
            return Ok(());
        }
        let runs: Vec<_> = self.shared.all().iter().map(|numbered| numbered.run.clone()).collect();
        let mut rows = Merge::seek(&runs, start)?;
        while let Some(row) = rows.next()?.filter(|row| row.key() < end) {
            if row.value().is_some_and(|value| f(row.key(), value).is_break()) {
                break;
            }
        }
        Ok(())
    }

    fn make_room(&self) {
        if !self.threads.is_empty() {
            self.shared.wait_for_merges();
        }
    }

    fn write(&self, rows: &mut dyn Iterator<Item = RowWrite>) -> Result<()> {
        let _writing = self.shared.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_room();
        let mut rows = rows.peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let no = self.shared.all().first().map_or(1, |newest| newest.span.last + 1);
        let span = Span { first: no, last: no };
        let name = span.file_name();
        let mut writer = RunWriter::new(&*self.shared.dir, &name)?;
        for (key, value) in rows {
            writer.push(&key, value.as_deref())?;
        }
        let run = Arc::new(writer.finish(&name, self.shared.cache.of_new_run())?);
        let mut runs = self.shared.runs();
        runs.all =
            std::iter::once(Numbered { span, run }).chain(runs.all.iter().cloned()).collect();
        self.shared.changed.notify_all();
        while self.threads.is_empty()
            && let Some(inputs) = self.shared.start_merge(&mut runs, u64::MAX)
        {
            drop(runs);
            self.shared.merge(&inputs);
            runs = self.shared.runs();
        }
        Ok(())
    }
}
