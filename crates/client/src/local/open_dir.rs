//! A store's directory, and what is open of it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use saker_runtime::fs::{DirectFile, ForeignDir, ForeignFile, SharedMemory};
use saker_runtime::time::{self, Time};
use saker_types::places::{PlaceTable, segment_name};
use saker_types::wire::LocalDir;

/// Segments of one directory that are kept open, each with up to two descriptors.
const SEGMENTS_MAX: usize = 64;

/// A store's directory.
pub(super) struct OpenDir {
    pub(super) at: LocalDir,
    pub(super) files: ForeignDir,
    /// Where its store tells places.
    table: Option<SharedMemory>,
    /// The system does not say what is in the page cache: only the store knows who has to wait.
    is_blind: AtomicBool,
    /// When it was last used, in nanoseconds.
    used: AtomicU64,
    kept: Mutex<Kept>,
}

/// Segments that are kept open, because their places are in the table.
#[derive(Default)]
pub(super) struct Kept {
    by_no: HashMap<u32, Arc<Segment>>,
    /// How many their store had removed before the first of them was opened.
    removed: u64,
}

/// A segment's file.
pub(super) struct Segment {
    pub(super) file: ForeignFile,
    /// For reads past the page cache; `None` if its file system cannot do that.
    direct: OnceLock<Option<DirectFile>>,
}

impl OpenDir {
    /// Opens it, which may take as long as its file system does.
    ///
    /// # Errors
    /// [`ForeignDir::open`]'s.
    pub(super) fn open(at: &LocalDir) -> io::Result<OpenDir> {
        let files = ForeignDir::open(at)?;
        let table = at.table.as_ref().and_then(|at| {
            let opened = SharedMemory::open(at);
            opened.inspect_err(|error| tracing::debug!("{}: {error}", at.name)).ok()
        });
        Ok(OpenDir {
            at: at.clone(),
            files,
            table,
            is_blind: AtomicBool::new(false),
            used: AtomicU64::new(time::now().as_ns()),
            kept: Mutex::default(),
        })
    }

    /// It is used now.
    pub(super) fn touch(&self, now: Time) {
        self.used.store(now.as_ns(), Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> Time {
        Time::from_ns(self.used.load(Ordering::Relaxed))
    }

    /// The store's table, unless it is of no use here.
    pub(super) fn places(&self) -> Option<PlaceTable<'_>> {
        let memory = self.table.as_ref().filter(|_| !self.is_blind.load(Ordering::Relaxed));
        PlaceTable::open(memory?.words())
    }

    /// From now on the store is asked for each place.
    pub(super) fn give_up_places(&self) {
        self.is_blind.store(true, Ordering::Relaxed);
    }

    /// A segment that the table names, unless one would have to wait for it.
    ///
    /// # Errors
    /// [`ForeignDir::file`]'s.
    pub(super) fn segment(&self, no: u32) -> io::Result<Option<Arc<Segment>>> {
        if let Some(segment) = self.kept().by_no.get(&no) {
            return Ok(Some(segment.clone()));
        }
        let removed = self.places().map_or(0, |table| table.removed());
        let Some(file) = self.files.file(&segment_name(no))? else { return Ok(None) };
        let segment = Arc::new(Segment { file, direct: OnceLock::new() });
        let mut kept = self.kept();
        if kept.by_no.is_empty() {
            kept.removed = removed;
        }
        if kept.by_no.len() < SEGMENTS_MAX {
            kept.by_no.insert(no, segment.clone());
        }
        Ok(Some(segment))
    }

    /// The same for reads past the page cache.
    ///
    /// # Errors
    /// As [`OpenDir::segment`].
    pub(super) fn direct(&self, no: u32, segment: &Segment) -> io::Result<Option<DirectFile>> {
        if let Some(direct) = segment.direct.get() {
            return Ok(direct.clone());
        }
        let Some(file) = self.files.file(&segment_name(no))? else { return Ok(None) };
        Ok(segment.direct.get_or_init(|| file.direct().ok()).clone())
    }

    /// Takes what is kept open if some of it may be removed, or others want its room: to be dropped where
    /// nobody waits for that.
    pub(super) fn take_stale(&self) -> Option<Kept> {
        let mut kept = self.kept();
        let removed = self.places().map_or(u64::MAX, |table| table.removed());
        let is_stale = kept.removed != removed || kept.by_no.len() >= SEGMENTS_MAX;
        is_stale.then(|| std::mem::take(&mut *kept))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
