//! A journal on a disk that others may fill ([decision 43](../../../docs/decisions/0043-full-disks.md)).
//!
//! A removal needs space, too: for the record that says so. So a part of the disk is
//! reserved by a file of no other use. When little is free besides, nothing new is taken any more; when
//! a journal must grow and nothing is free, it gets what the file reserved.

use std::sync::Arc;
use std::time::Duration;

use saker_runtime::fs::{Dir, File};
use saker_runtime::time::Time;

use crate::api::Level;
use crate::journal::Journal;

const RESERVE_NAME: &str = "reserve";
/// How often the disk is asked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A journal grows when it has less room than this, bytes; with three quarters of it nothing is
/// changed any more. A step appends less.
const JOURNAL_ROOM_BYTES: u64 = 48 << 20;

/// How much is reserved and wanted, bytes.
#[derive(Clone, Copy, Debug)]
pub struct RoomConfig {
    /// Held for the journal.
    pub reserve_bytes: u64,
    /// Nothing new is taken while less than this is free besides.
    pub free_bytes_min: u64,
    /// By how much the journal grows.
    pub segment_bytes: u64,
}

/// The space for a journal and what is made of it.
pub struct Room {
    config: RoomConfig,
    /// `None`: the disk has no end (one in memory).
    disk: Option<Disk>,
    level: Level,
    look_at: Time,
}

struct Disk {
    dir: Arc<dyn Dir>,
    reserve: Option<Arc<dyn File>>,
    /// The reserve has its blocks.
    reserved: bool,
}

impl Disk {
    /// Takes the blocks, if they are free.
    fn reserve(&mut self, bytes: u64) {
        let file = match &self.reserve {
            Some(file) => Ok(file.clone()),
            None => self.dir.open(RESERVE_NAME).or_else(|_| self.dir.create(RESERVE_NAME)),
        };
        let made = file.and_then(|file| file.preallocate(bytes).map(|()| file));
        self.reserved = made.is_ok();
        match made {
            Ok(file) => self.reserve = Some(file),
            Err(error) => tracing::debug!("{}: no reserve: {error}", self.dir.label()),
        }
    }

    /// Gives them up. Returns whether there were any.
    fn give(&mut self) -> bool {
        let file = self.reserve.as_ref().filter(|_| self.reserved);
        let given = file.is_some_and(|file| file.truncate(0).is_ok());
        self.reserved = self.reserved && !given;
        given
    }
}

impl Room {
    /// The room of the journal in `dir`.
    pub fn new(dir: Arc<dyn Dir>, config: RoomConfig) -> Room {
        let is_bounded = dir.free_bytes().is_ok_and(|free| free < u64::MAX);
        let mut disk = is_bounded.then_some(Disk { dir, reserve: None, reserved: false });
        if let Some(disk) = &mut disk {
            disk.reserve(config.reserve_bytes);
        }
        Room { config, disk, level: Level::Enough, look_at: Time::ZERO }
    }

    /// What may be written now.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Bytes that are free, those of the reserve not counted.
    fn free_bytes(&self) -> u64 {
        // An error will be met by whoever writes.
        self.disk.as_ref().map_or(u64::MAX, |disk| disk.dir.free_bytes().unwrap_or(u64::MAX))
    }

    /// Looks how much is free, now and then, and sees to it that the journal can go on. Returns
    /// the level if it has changed.
    pub fn look(&mut self, now: Time, journal: &mut Journal) -> Option<Level> {
        let is_low = journal.room_bytes() < self.journal_room();
        let is_soon = now < self.look_at && (!is_low || self.level == Level::Out);
        if self.disk.is_none() || is_soon {
            return None;
        }
        self.look_at = now + LOOK_EVERY;
        if is_low && !self.grow(journal) {
            return self.set(Level::Out);
        }
        let RoomConfig { reserve_bytes, free_bytes_min, .. } = self.config;
        // What is given back must be more than a little, or it would come and go.
        let enough = match self.level {
            Level::Enough => free_bytes_min,
            Level::Short | Level::Out => free_bytes_min + free_bytes_min / 4,
        };
        if let Some(disk) = &mut self.disk
            && !disk.reserved
            && disk.dir.free_bytes().is_ok_and(|free| free >= reserve_bytes + enough)
        {
            disk.reserve(reserve_bytes);
        }
        let reserved = self.disk.as_ref().is_none_or(|disk| disk.reserved);
        let is_enough = reserved && self.free_bytes() >= enough;
        self.set(if is_enough { Level::Enough } else { Level::Short })
    }

    fn set(&mut self, level: Level) -> Option<Level> {
        let before = std::mem::replace(&mut self.level, level);
        if before == level {
            return None;
        }
        let label = self.disk.as_ref().map_or_else(String::new, |disk| disk.dir.label());
        match level {
            Level::Enough => tracing::info!("{label}: the disk has room again"),
            Level::Short => tracing::warn!("{label}: the disk is full; nothing new is taken"),
            Level::Out => tracing::error!("{label}: the disk is full; nothing is changed any more"),
        }
        Some(level)
    }

    fn journal_room(&self) -> u64 {
        JOURNAL_ROOM_BYTES.min(self.config.segment_bytes / 2)
    }

    /// Makes the journal's file longer: by a segment, or by what there is.
    fn grow(&mut self, journal: &mut Journal) -> bool {
        let RoomConfig { reserve_bytes, segment_bytes, .. } = self.config;
        if journal.grow(segment_bytes).is_ok() {
            return true;
        }
        let given = self.disk.as_mut().is_some_and(Disk::give);
        // Others may take some of it first.
        let parts = [reserve_bytes, reserve_bytes / 2, reserve_bytes / 8];
        given && parts.into_iter().any(|bytes| journal.grow(bytes).is_ok())
            || journal.room_bytes() >= self.journal_room() / 4 * 3
    }

    /// Is there room for so many bytes besides the journal's? What is reserved is given for it, if it
    /// is enough then.
    pub fn has_room_for(&mut self, bytes: u64) -> bool {
        let free = self.free_bytes();
        let reserve = self.config.reserve_bytes;
        match &mut self.disk {
            Some(disk) if free < bytes => {
                let reserved = if disk.reserved { reserve } else { 0 };
                free.saturating_add(reserved) >= bytes && disk.give()
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use saker_runtime::fs::MemDir;

    use super::*;
    use crate::journal::{JournalConfig, JournalRecordKind, ReplayFrom};

    const SEGMENT: u64 = 64 << 10;

    /// A disk of which so much is free, but for what files of this directory take.
    struct Small {
        dir: MemDir,
        free: Arc<AtomicU64>,
    }

    struct Counted {
        file: Arc<dyn File>,
        free: Arc<AtomicU64>,
    }

    impl Counted {
        fn take(&self, to: u64) -> io::Result<()> {
            let more = to.saturating_sub(self.file.len()?);
            let taken = self.free.fetch_update(SeqCst, SeqCst, |free| free.checked_sub(more));
            taken.map(drop).map_err(|_| io::ErrorKind::StorageFull.into())
        }
    }

    impl File for Counted {
        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.take(offset + data.len() as u64)?;
            self.file.write_at(offset, data)
        }
        fn append(&self, data: &[u8]) -> io::Result<u64> {
            self.take(self.file.len()? + data.len() as u64)?;
            self.file.append(data)
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
            self.file.read_at(offset, buf)
        }
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }
        fn sync(&self) -> io::Result<()> {
            self.file.sync()
        }
        fn truncate(&self, len: u64) -> io::Result<()> {
            self.free.fetch_add(self.file.len()?.saturating_sub(len), SeqCst);
            self.file.truncate(len)
        }
        fn preallocate(&self, len: u64) -> io::Result<()> {
            self.take(len)?;
            self.file.preallocate(len)
        }
        fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
            self.file.punch(offset, len)
        }
    }

    impl Small {
        fn counted(&self, file: Arc<dyn File>) -> Arc<dyn File> {
            Arc::new(Counted { file, free: self.free.clone() })
        }
    }

    impl Dir for Small {
        fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
            Ok(self.counted(self.dir.open(name)?))
        }
        fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
            Ok(self.counted(self.dir.create(name)?))
        }
        fn list(&self) -> io::Result<Vec<String>> {
            self.dir.list()
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.free.fetch_add(self.dir.open(name)?.len()?, SeqCst);
            self.dir.remove(name)
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.dir.rename(from, to)
        }
        fn sync(&self) -> io::Result<()> {
            self.dir.sync()
        }
        fn sub_dir(&self, name: &str) -> io::Result<Arc<dyn Dir>> {
            self.dir.sub_dir(name)
        }
        fn lock(&self) -> io::Result<()> {
            self.dir.lock()
        }
        fn free_bytes(&self) -> io::Result<u64> {
            Ok(self.free.load(SeqCst))
        }
        fn label(&self) -> String {
            self.dir.label()
        }
    }

    fn small(free: u64) -> (Arc<dyn Dir>, Arc<AtomicU64>) {
        let free = Arc::new(AtomicU64::new(free));
        (Arc::new(Small { dir: MemDir::new(), free: free.clone() }), free)
    }

    fn open(dir: &Arc<dyn Dir>) -> (Journal, u64) {
        let config = JournalConfig { segment_bytes: SEGMENT, ..JournalConfig::new([1; 16], 0) };
        let mut records = 0;
        let journal = Journal::open(dir.clone(), config, ReplayFrom::Oldest, &mut |_, _, _| {
            records += 1;
            Ok(())
        });
        (journal.unwrap(), records)
    }

    const CONFIG: RoomConfig =
        RoomConfig { reserve_bytes: SEGMENT, free_bytes_min: SEGMENT, segment_bytes: SEGMENT };

    /// Appends until nothing may be changed any more; how many records.
    fn fill(room: &mut Room, journal: &mut Journal, mut now: Time) -> u64 {
        for n in 0.. {
            now += LOOK_EVERY;
            room.look(now, journal);
            if room.level() == Level::Out {
                return n;
            }
            journal.append(JournalRecordKind::Changes, &[7; 1000]);
            journal.flush().unwrap();
            assert!(n < 10_000);
        }
        0
    }

    #[test]
    fn a_full_disk_takes_removals_for_long_and_then_nothing_but_never_fails() {
        let (dir, free) = small(10 * SEGMENT);
        let (mut journal, _) = open(&dir);
        let mut room = Room::new(dir.clone(), CONFIG);
        let mut now = Time::ZERO;
        assert_eq!((room.look(now, &mut journal), room.level()), (None, Level::Enough));
        // Somebody else takes all.
        free.store(0, SeqCst);
        now += LOOK_EVERY;
        assert_eq!(room.look(now, &mut journal), Some(Level::Short));
        let taken = fill(&mut room, &mut journal, now);
        // What was left of the segment, and the reserve.
        assert!(taken > (SEGMENT + SEGMENT / 4) / 1024, "{taken}");
        // The next start finds no more, and all that was written.
        drop(journal);
        let (mut journal, records) = open(&dir);
        assert_eq!(records, taken);
        let mut room = Room::new(dir, CONFIG);
        assert_eq!(fill(&mut room, &mut journal, now), 0);
        // There is room again: the reserve comes back before anything new is taken.
        free.store(3 * SEGMENT, SeqCst);
        now += LOOK_EVERY * 100;
        room.look(now, &mut journal);
        assert_eq!(room.level(), Level::Short);
        free.store(10 * SEGMENT, SeqCst);
        now += LOOK_EVERY;
        assert_eq!(room.look(now, &mut journal), Some(Level::Enough));
        free.store(0, SeqCst);
        assert!(fill(&mut room, &mut journal, now) > 0);
    }

    #[test]
    fn a_segment_for_which_there_is_no_room_is_not_begun() {
        let (dir, free) = small(10 * SEGMENT);
        let (mut journal, _) = open(&dir);
        journal.append(JournalRecordKind::Changes, b"before");
        free.store(SEGMENT / 2, SeqCst);
        for _ in 0..3 {
            let error = journal.rotate(b"snapshot").unwrap_err();
            assert!(error.is_full(), "{error}");
        }
        journal.append(JournalRecordKind::Changes, b"after");
        journal.flush().unwrap();
        free.store(2 * SEGMENT, SeqCst);
        assert_eq!(journal.rotate(b"snapshot").unwrap(), 1);
        drop(journal);
        assert_eq!(open(&dir).1, 3);
    }

    #[test]
    fn the_reserve_is_given_if_it_is_enough() {
        let (dir, free) = small(10 * SEGMENT);
        let mut room = Room::new(dir, CONFIG);
        free.store(SEGMENT, SeqCst);
        assert!(room.has_room_for(SEGMENT) && free.load(SeqCst) == SEGMENT);
        assert!(!room.has_room_for(3 * SEGMENT) && free.load(SeqCst) == SEGMENT);
        assert!(room.has_room_for(2 * SEGMENT) && free.load(SeqCst) == 2 * SEGMENT);
    }
}
