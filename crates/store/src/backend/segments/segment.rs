//! Segment files: made whole before they get a name that counts, opened when they are needed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use saker_runtime::fs::{Dir, File};
use saker_runtime::rand;
use saker_types::wire::LocalDir;

use super::format::{SEGMENT_HEADER_BYTES, SegmentHeader, StoreIdentity};
use crate::wait::{WaitPolicy, locked, would_block};

/// Most segment files kept open besides those that are written.
const OPEN_FILES_MAX: usize = 512;
/// Segments that are being made have this name and a number.
const UNFINISHED: &str = "new-";

/// An open segment file and the salt of its records.
pub type OpenSegment = (Arc<dyn File>, u32);

/// A segment.
pub struct Segment {
    /// Numbers ascend in the order of use.
    pub no: u32,
    open: Mutex<Option<OpenSegment>>,
    /// Bytes of file data that the index refers to.
    live: AtomicI64,
    /// Records that have a place in it, and those of them that are written.
    pub reserved: AtomicU64,
    #[allow(missing_docs)]
    pub written: AtomicU64,
    /// Of the written records, how many were when the last good flush began.
    pub synced: AtomicU64,
    /// End of the last record; while it is written to, the whole segment.
    pub end: AtomicU32,
    /// A write or a flush of it failed: it takes no more records.
    pub poisoned: AtomicBool,
    /// It takes no more records.
    pub sealed: AtomicBool,
    /// What was allocated behind its last record is given back.
    pub trimmed: AtomicBool,
    /// Compaction met damaged data in it, or cannot gain anything: it is left alone.
    pub stuck: AtomicBool,
}

impl Segment {
    fn new(no: u32, live: i64, end: u32, open: Option<OpenSegment>) -> Segment {
        Segment {
            no,
            open: Mutex::new(open),
            live: AtomicI64::new(live),
            reserved: AtomicU64::new(0),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            end: AtomicU32::new(end),
            poisoned: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            trimmed: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
        }
    }

    /// Bytes of file data that the index refers to.
    pub fn live_bytes(&self) -> u64 {
        self.live.load(Ordering::Relaxed).max(0) as u64
    }

    /// Whether every record that has a place in it is written.
    pub fn is_quiet(&self) -> bool {
        self.written.load(Ordering::Acquire) == self.reserved.load(Ordering::Acquire)
    }

    /// Whether it takes no more records.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Takes no more records. Returns whether it was not poisoned before.
    pub fn poison(&self) -> bool {
        !self.poisoned.swap(true, Ordering::AcqRel)
    }

    /// Name of its file.
    pub fn name(&self) -> String {
        name_of(self.no)
    }
}

/// Name of a segment's file.
pub fn name_of(no: u32) -> String {
    format!("seg-{no:08x}")
}

/// The number in a segment's file name.
fn number_in(name: &str) -> Option<u32> {
    let (_, digits) = name.rsplit_once('-')?;
    u32::from_str_radix(digits, 16).ok().filter(|no| name_of(*no) == name)
}

/// All segments of a store.
pub struct Segments {
    dir: Arc<dyn Dir>,
    local_dir: Option<LocalDir>,
    identity: StoreIdentity,
    map: RwLock<BTreeMap<u32, Arc<Segment>>>,
    /// Segments with open files that may be closed, oldest first.
    opened: Mutex<VecDeque<Arc<Segment>>>,
    live: AtomicI64,
    missed: AtomicBool,
}

impl Segments {
    /// No segments yet, in `dir`.
    pub fn new(dir: Arc<dyn Dir>, identity: StoreIdentity) -> Segments {
        Segments {
            local_dir: dir.whereabouts(),
            dir,
            identity,
            map: RwLock::default(),
            opened: Mutex::default(),
            live: AtomicI64::new(0),
            missed: AtomicBool::new(false),
        }
    }

    /// Numbers of the segments on disk, ascending. Removes what was never finished.
    ///
    /// # Errors
    /// The directory's.
    pub fn list_files(&self) -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for name in self.dir.list()? {
            if name.starts_with(UNFINISHED) {
                self.dir.remove(&name)?;
            }
            numbers.extend(number_in(&name));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Makes segment `no`, `bytes` long, durable and with its blocks allocated.
    ///
    /// # Errors
    /// The file system's, also ENOSPC; nothing is left behind then, if it can be removed.
    pub fn create(&self, no: u32, bytes: u32) -> io::Result<Arc<Segment>> {
        let temporary = format!("{UNFINISHED}{no:08x}");
        let made = self.fill(&temporary, no, bytes);
        let (file, salt) = match made {
            Ok(made) => made,
            Err(error) => {
                // The next start removes it if this cannot.
                let _ = self.dir.remove(&temporary);
                return Err(error);
            }
        };
        let segment = Arc::new(Segment::new(no, 0, bytes, Some((file, salt))));
        self.map().insert(no, segment.clone());
        Ok(segment)
    }

    fn fill(&self, temporary: &str, no: u32, bytes: u32) -> io::Result<OpenSegment> {
        let salt = rand::u64() as u32;
        let file = self.dir.create(temporary)?;
        file.expect_random_reads();
        let header = SegmentHeader { identity: self.identity, segment: no, salt };
        file.preallocate(u64::from(bytes))?;
        file.write_at(0, &header.encode())?;
        file.sync()?;
        self.dir.rename(temporary, &name_of(no))?;
        self.dir.sync()?;
        Ok((file, salt))
    }

    /// Adds a segment of an earlier run: sealed, of so many live bytes, ending at `end`.
    pub fn adopt(&self, no: u32, live: i64, end: u32) -> Arc<Segment> {
        let segment = Arc::new(Segment::new(no, live, end, None));
        segment.sealed.store(true, Ordering::Release);
        self.live.fetch_add(live, Ordering::Relaxed);
        self.map().insert(no, segment.clone());
        segment
    }

    /// The segment of this number.
    pub fn get(&self, no: u32) -> Option<Arc<Segment>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).get(&no).cloned()
    }

    /// All of them, ascending.
    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.map.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Bytes that they take on disk.
    pub fn disk_bytes(&self) -> u64 {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.values().map(|s| u64::from(s.end.load(Ordering::Relaxed))).sum()
    }

    /// Bytes of file data in all of them.
    pub fn live_bytes(&self) -> u64 {
        self.live.load(Ordering::Relaxed).max(0) as u64
    }

    /// Counts bytes of file data that the index refers to now, or (negative) does no more.
    pub fn adjust(&self, no: u32, delta: i64) {
        self.live.fetch_add(delta, Ordering::Relaxed);
        if let Some(segment) = self.get(no) {
            segment.live.fetch_add(delta, Ordering::Relaxed);
        }
    }

    /// The file of a segment, opened and its header checked if it was not open.
    ///
    /// # Errors
    /// The file system's; `InvalidData` with a [`FormatError`](super::format::FormatError);
    /// `WouldBlock` if it is not open, and opening it may wait.
    pub fn open(&self, segment: &Arc<Segment>, wait: WaitPolicy) -> io::Result<OpenSegment> {
        let mut open = wait.lock(&segment.open).map_err(|_| would_block())?;
        if let Some(opened) = &*open {
            return Ok(opened.clone());
        }
        if wait == WaitPolicy::Never {
            return Err(would_block());
        }
        let file = self.dir.open(&segment.name())?;
        // Chunks of many files lie here in the order they were written.
        file.expect_random_reads();
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        let read = file.read_at(0, &mut header)?;
        let header = SegmentHeader::decode(&header[..read], &self.identity, segment.no)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        *open = Some((file.clone(), header.salt));
        drop(open);
        self.close_oldest(segment.clone());
        Ok((file, header.salt))
    }

    /// Whether the last read that was tried did not find its data in the page cache.
    pub fn missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    /// A read was tried.
    pub fn set_missed(&self, missed: bool) {
        if self.missed() != missed {
            self.missed.store(missed, Ordering::Relaxed);
        }
    }

    /// Lets the oldest open file go when a newer one is over the bound.
    fn close_oldest(&self, newest: Arc<Segment>) {
        let mut opened = locked(&self.opened);
        opened.push_back(newest);
        if opened.len() > OPEN_FILES_MAX
            && let Some(oldest) = opened.pop_front()
        {
            drop(opened);
            *locked(&oldest.open) = None;
        }
    }

    /// A segment that was written takes no more records; its file may be closed from now on.
    pub fn sealed(&self, segment: &Arc<Segment>) {
        self.close_oldest(segment.clone());
    }

    /// Removes a segment and its file. Readers that have it open may finish.
    ///
    /// # Errors
    /// The directory's; the segment stays then.
    pub fn remove(&self, no: u32) -> io::Result<()> {
        match self.dir.remove(&name_of(no)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.map().remove(&no);
        let mut opened = locked(&self.opened);
        if let Some(at) = opened.iter().position(|s| s.no == no) {
            let segment = opened.remove(at);
            drop(opened);
            if let Some(segment) = segment {
                *locked(&segment.open) = None;
            }
        }
        Ok(())
    }

    /// Where clients of this machine find the segments' files; `None` if they cannot.
    pub fn local_dir(&self) -> Option<&LocalDir> {
        self.local_dir.as_ref()
    }

    /// Where the segments are, for messages.
    pub fn label(&self) -> String {
        self.dir.label()
    }

    fn map(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u32, Arc<Segment>>> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}
