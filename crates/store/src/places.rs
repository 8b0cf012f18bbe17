//! Where the only records of chunks are, told to the clients of this machine through a
//! [place table](saker_types::places), so that they need not ask.
//!
//! A place is in the table only as long as the index has it: [`Index`](crate::index::Index) tells of each
//! change while nothing else can change that chunk, and before anybody hears that the change is done. So who
//! looks into the table learns what an answer would have said at that moment. A table that was
//! replaced, by a larger one or by the next process, is closed first.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{array, io};

use saker_runtime::fs::SharedMemory;
use saker_runtime::rand;
use saker_runtime::time::{self, Time};
use saker_types::places::{BELIEVED, Fetches, PlaceTable, RecordPlace};
use saker_types::wire::{LocalDir, LocalMemory};

use crate::extent::{Chunk, Extent};
use crate::index::ChunkKey;
use crate::segment::locked;

/// Names of tables in shared memory.
const PREFIX: &str = "saker-places-";
/// Slots of the first table (1.5 MiB with what is besides) and of the largest (64 MiB).
const SLOTS_MIN: usize = 1 << 15;
const SLOTS_MAX: usize = 1 << 21;
/// A table of which one slot in so many is taken gets too small.
const FULL: usize = 2;
const GROWTH: usize = 4;
/// Parts of a table that are written apart.
const STRIPES: usize = 64;

/// The place table of a store; none where no memory is shared, or nobody can open the files.
pub struct Places {
    /// Begins the names of this store's tables.
    own: String,
    table: RwLock<Option<Shared>>,
    /// Nothing larger can be had.
    is_last: AtomicBool,
    /// What was fetched, where there is no table.
    fetches: OnceLock<Box<[AtomicU64]>>,
    /// Reads and bytes that clients had counted when they were last asked for.
    counted: Mutex<(u64, u64)>,
    /// From when on nobody believes another process's table any more.
    alone_from: Time,
}

struct Shared {
    memory: SharedMemory,
    stripes: [Mutex<()>; STRIPES],
    used: AtomicUsize,
}

impl Shared {
    fn create(own: &str, slots: usize) -> io::Result<Shared> {
        let name = format!("{own}{:016x}", rand::u64());
        let memory = SharedMemory::create(&name, PlaceTable::bytes_of(slots))?;
        PlaceTable::create(memory.words());
        Ok(Shared {
            memory,
            stripes: array::from_fn(|_| Mutex::default()),
            used: AtomicUsize::new(0),
        })
    }

    fn table(&self) -> PlaceTable<'_> {
        PlaceTable::own(self.memory.words())
    }

    /// Calls `f` while nobody else writes the chunk's slot.
    fn alone<T>(&self, key: ChunkKey, f: impl FnOnce(PlaceTable<'_>) -> T) -> T {
        let table = self.table();
        let _alone = locked(&self.stripes[table.set_of(key) % STRIPES]);
        f(table)
    }

    fn is_crowded(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.table().slots() / FULL
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        PlaceTable::close(self.memory.words());
    }
}

impl Places {
    /// An empty table for the store whose segments are in `dir`. The one that an earlier process left does not
    /// count any more; `is_old`: there may have been one.
    pub fn new(dir: Option<&LocalDir>, is_old: bool) -> Places {
        let mut places = Places {
            own: String::new(),
            table: RwLock::default(),
            is_last: AtomicBool::new(false),
            fetches: OnceLock::new(),
            counted: Mutex::default(),
            alone_from: Time::ZERO,
        };
        let Some(dir) = dir else { return places };
        let own = format!("{PREFIX}{:x}-{:x}-", dir.dev, dir.ino);
        let last = |memory: &SharedMemory| PlaceTable::close(memory.words());
        let closed = SharedMemory::sweep(PREFIX, &own, last);
        if is_old && !matches!(closed, Ok(1..)) {
            // It was closed already, or cannot be found.
            places.alone_from = time::now() + BELIEVED;
        }
        match Shared::create(&own, SLOTS_MIN) {
            Ok(shared) => places.table = RwLock::new(Some(shared)),
            Err(error) => {
                tracing::info!("no memory is shared, clients ask for each place: {error}")
            }
        }
        Places { own, ..places }
    }

    /// Waits until nobody believes what an earlier process has told: before that nobody may hear of anything newer.
    pub fn wait_alone(&self) {
        if self.alone_from > Time::ZERO {
            let left = self.alone_from - time::now();
            if !left.is_zero() {
                time::sleep(left);
            }
        }
    }

    fn shared(&self) -> RwLockReadGuard<'_, Option<Shared>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared_alone(&self) -> RwLockWriteGuard<'_, Option<Shared>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where clients find the table.
    pub fn whereabouts(&self) -> Option<LocalMemory> {
        self.shared().as_ref()?.memory.whereabouts().cloned()
    }

    /// A chunk is so now. The caller keeps it from changing.
    pub fn set(&self, key: ChunkKey, chunk: &Chunk) {
        let Some(shared) = &*self.shared() else { return };
        let place = place_of(chunk);
        shared.alone(key, |table| match place {
            Some(place) => {
                shared.used.fetch_add(usize::from(table.put(key, place)), Ordering::Relaxed)
            }
            None => shared.used.fetch_sub(usize::from(table.remove(key)), Ordering::Relaxed),
        });
    }

    /// A chunk has no data any more.
    pub fn remove(&self, key: ChunkKey) {
        self.set(key, &Chunk::default());
    }

    /// Nobody finds a place any more.
    pub fn close(&self) {
        *self.shared_alone() = None;
    }

    /// Whether there is no table, or none that can take more without losing others.
    pub fn is_full(&self) -> bool {
        let is_last = self.is_last.load(Ordering::Relaxed);
        self.shared().as_ref().is_none_or(|shared| is_last && shared.is_crowded())
    }

    /// Whether a larger table is due.
    pub fn may_grow(&self) -> bool {
        !self.is_last.load(Ordering::Relaxed)
            && self.shared().as_ref().is_some_and(Shared::is_crowded)
    }

    /// Makes a larger table if one is due. Until then chunks lose their slots to others.
    pub fn grow_if_due(&self) {
        if !self.may_grow() {
            return;
        }
        let slots = self.shared().as_ref().map_or(SLOTS_MAX, |shared| shared.table().slots());
        if slots >= SLOTS_MAX {
            self.is_last.store(true, Ordering::Relaxed);
            return;
        }
        match Shared::create(&self.own, (slots * GROWTH).min(SLOTS_MAX)) {
            Ok(mut new) => {
                let mut guard = self.shared_alone();
                if let Some(old) = &*guard {
                    // What clients count from here on in the old one is lost.
                    *new.used.get_mut() = new.table().copy_from(old.table());
                    *guard = Some(new);
                }
            }
            Err(error) => {
                tracing::warn!("no memory for places of more than {slots} chunks: {error}");
                self.is_last.store(true, Ordering::Relaxed);
            }
        }
    }

    /// A segment was removed: clients close it.
    pub fn count_removed(&self) {
        if let Some(shared) = &*self.shared() {
            shared.table().count_removed();
        }
    }

    /// Somebody fetches a chunk from this byte on. Whether somebody did before, not long ago.
    pub fn fetched_again(&self, key: ChunkKey, start: u32) -> bool {
        if let Some(shared) = &*self.shared() {
            return shared.table().fetches().again(key, start);
        }
        let words = || (0..Fetches::WORDS).map(|_| AtomicU64::new(0)).collect();
        Fetches::new(self.fetches.get_or_init(words)).again(key, start)
    }

    /// What clients have read at places from the table since the last call: reads, and their bytes.
    pub fn take_counted(&self) -> (u64, u64) {
        let mut last = locked(&self.counted);
        let now = self.shared().as_ref().map_or(*last, |shared| shared.table().counted());
        let since = (now.0.saturating_sub(last.0), now.1.saturating_sub(last.1));
        *last = now;
        since
    }
}

/// The place of a chunk's only record, if it has one whose data begins the chunk.
fn place_of(chunk: &Chunk) -> Option<RecordPlace> {
    let [extent] = &chunk.extents[..] else { return None };
    let Extent { off: 0, len, segment, pos, head, .. } = *extent else { return None };
    Some(RecordPlace { segment, pos: pos.checked_add(head)?, len, sum: extent.whole_sum()? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::{Dir as _, RealDir};

    use super::*;

    fn chunk(n: u32) -> Chunk {
        let extent =
            Extent { len: 100, payload: 100, pos: n, head: 64, sum: Some(n), ..Extent::default() };
        Chunk { extents: vec![extent] }
    }

    fn get(memory: &SharedMemory, id: u64) -> Option<u32> {
        PlaceTable::open(memory.words()).unwrap().get((id, 0)).map(|place| place.sum)
    }

    #[test]
    fn a_table_grows_and_the_old_one_says_nothing() {
        let path = tempfile::tempdir().unwrap();
        let places = Places::new(RealDir::open(path.path()).unwrap().whereabouts().as_ref(), false);
        places.set((1, 0), &chunk(1));
        let first = SharedMemory::open(&places.whereabouts().unwrap()).unwrap();
        assert_eq!(get(&first, 1), Some(1));
        PlaceTable::open(first.words()).unwrap().count_read(50);
        assert_eq!(places.take_counted(), (1, 50));
        let many = (SLOTS_MIN * 3 / 4) as u32;
        (2..many).for_each(|n| places.set((u64::from(n), 0), &chunk(n)));
        places.grow_if_due();
        assert_eq!(get(&first, 1), None);
        let grown = SharedMemory::open(&places.whereabouts().unwrap()).unwrap();
        assert!(grown.words().len() > first.words().len());
        let known = (1..many).filter(|n| get(&grown, u64::from(*n)) == Some(*n)).count();
        assert!(known > many as usize * 9 / 10, "{known}");
        assert_eq!(places.take_counted(), (0, 0));
        places.grow_if_due();
        assert!(get(&grown, 2).is_some(), "it is large enough");
        places.remove((1, 0));
        assert_eq!(get(&grown, 1), None);
        let at = places.whereabouts().unwrap();
        places.close();
        assert_eq!(get(&grown, 2), None);
        assert!(SharedMemory::open(&at).is_err() && places.whereabouts().is_none());
        places.set((2, 0), &chunk(5));
        places.grow_if_due();
        assert!(places.whereabouts().is_none() && places.is_full());
    }

    /// As after a kill: the name is still there.
    #[test]
    fn the_next_process_closes_what_the_last_one_left() {
        let path = tempfile::tempdir().unwrap();
        let dir = RealDir::open(path.path()).unwrap().whereabouts().unwrap();
        let killed = Places::new(Some(&dir), false);
        killed.set((1, 0), &chunk(1));
        let left = SharedMemory::open(&killed.whereabouts().unwrap()).unwrap();
        std::mem::forget(killed);
        assert_eq!(get(&left, 1), Some(1));
        let next = Places::new(Some(&dir), true);
        assert_eq!(get(&left, 1), None);
        assert_eq!(next.alone_from, Time::ZERO, "nobody believes the old one");
        let found = SharedMemory::open(&next.whereabouts().unwrap()).unwrap();
        assert_eq!(get(&found, 1), None);
        let other = tempfile::tempdir().unwrap();
        let dir = RealDir::open(other.path()).unwrap().whereabouts().unwrap();
        let other = Places::new(Some(&dir), true);
        let begun = time::now();
        other.wait_alone();
        assert!(other.alone_from <= time::now() && time::now() - begun <= BELIEVED * 2);
        next.set((1, 0), &chunk(2));
        assert_eq!(get(&found, 1), Some(2), "others leave it alone");
        drop(other);
    }

    #[test]
    fn only_whole_records_at_the_start_have_a_place() {
        let with = |change: fn(&mut Extent)| {
            let mut chunk = chunk(1);
            change(&mut chunk.extents[0]);
            place_of(&chunk)
        };
        let place = RecordPlace { segment: 0, pos: 65, len: 100, sum: 1 };
        assert_eq!(with(|_| {}), Some(place));
        assert_eq!(with(|extent| extent.off = 1), None);
        assert_eq!(with(|extent| extent.len = 99), None);
        assert_eq!(with(|extent| extent.sum = None), None);
        let two = Chunk { extents: vec![chunk(1).extents[0]; 2] };
        assert_eq!((place_of(&two), place_of(&Chunk::default())), (None, None));
    }

    #[test]
    fn without_a_directory_there_is_none() {
        let places = Places::new(None, true);
        places.set((1, 0), &chunk(1));
        assert!(places.whereabouts().is_none() && places.is_full());
        assert!(!places.fetched_again((1, 0), 0) && places.fetched_again((1, 0), 0));
        assert_eq!(places.take_counted(), (0, 0));
    }
}
