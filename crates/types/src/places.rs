//! The place table: where the only records of chunks are, in memory that a store shares with the
//! clients of its machine. They read it without asking the store, and without a lock.
//!
//! ```text
//! words   0..16         head: what this is, whether it still counts, what clients have read
//! words  16..65552      what clients have fetched from the disk by themselves
//! words  65552..        sets of four slots of four words each; a chunk is in one set only
//! ```
//!
//! A slot is a sequence lock (Boehm, MSPC 2012): its last word is odd while the store writes it, and
//! never the same twice. Only the store writes slots; who writes the same slot at the same time must
//! be kept apart ([`PlaceTable::set_of`]).

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::InodeId;

/// "SAKERPL" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"SAKERPL\x01");
/// What all versions begin with.
const NAME_MASK: u64 = u64::MAX >> 8;
const HEAD_WORDS: usize = 16;
/// Fetches that are remembered, at most, a word each.
const FETCHES: usize = 1 << 16;
const SLOTS_AT: usize = HEAD_WORDS + FETCHES;
const SLOT_WORDS: usize = 4;
const SET_SLOTS: usize = 4;
const SET_WORDS: usize = SET_SLOTS * SLOT_WORDS;

/// Words of the head; the first two are the same in all versions.
const MAGIC_AT: usize = 0;
const CLOSED_AT: usize = 1;
const REMOVED_AT: usize = 2;
const READS_AT: usize = 8;
const READ_BYTES_AT: usize = 9;

/// A table is believed for so long after its store was asked for something that it answered: one that
/// does not serve any more is missed then.
pub const BELIEVED: Duration = Duration::from_secs(1);

/// Inode and index of a chunk.
pub type ChunkKey = (InodeId, u64);

/// Where the only record of a chunk is, which begins with the chunk's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// The segment's number.
    pub segment: u32,
    /// First byte of the payload in the segment's file.
    pub pos: u32,
    /// Bytes of the payload, at least 1.
    pub len: u32,
    /// CRC32C of the payload.
    pub sum: u32,
}

/// Name of a segment's file.
pub fn segment_name(no: u32) -> String {
    format!("seg-{no:08x}")
}

/// A place table in memory that others may see.
#[derive(Clone, Copy)]
pub struct PlaceTable<'a> {
    words: &'a [AtomicU64],
}

impl<'a> PlaceTable<'a> {
    /// Bytes of a table that has this many slots: a power of two, 4 at least.
    pub fn bytes_of(slots: usize) -> usize {
        (SLOTS_AT + slots * SLOT_WORDS) * size_of::<u64>()
    }

    /// Makes an empty table of memory that is all zeros, for [`PlaceTable::bytes_of`] some slots.
    pub fn create(words: &'a [AtomicU64]) -> PlaceTable<'a> {
        words[MAGIC_AT].store(MAGIC, Ordering::Release);
        PlaceTable::own(words)
    }

    /// The table in memory that the caller has made one of: it is not asked again what others may have written
    /// there since.
    ///
    /// # Panics
    /// If the memory is too small for any.
    pub fn own(words: &'a [AtomicU64]) -> PlaceTable<'a> {
        assert!(words.len() >= SLOTS_AT + SET_WORDS, "memory for a table");
        PlaceTable { words }
    }

    /// The table in this memory, if there is one.
    pub fn open(words: &'a [AtomicU64]) -> Option<PlaceTable<'a>> {
        let sets = words.len().checked_sub(SLOTS_AT)? / SET_WORDS;
        let whole = sets.is_power_of_two() && words.len() == SLOTS_AT + sets * SET_WORDS;
        (whole && words[MAGIC_AT].load(Ordering::Acquire) == MAGIC).then_some(PlaceTable { words })
    }

    /// Slots it has.
    pub fn slots(&self) -> usize {
        (self.words.len() - SLOTS_AT) / SLOT_WORDS
    }

    /// From now on nobody may believe the table in this memory, if there is one, of whatever version.
    pub fn close(words: &[AtomicU64]) {
        let is_table =
            |word: &AtomicU64| word.load(Ordering::Acquire) & NAME_MASK == MAGIC & NAME_MASK;
        if words.len() > CLOSED_AT && is_table(&words[MAGIC_AT]) {
            words[CLOSED_AT].store(1, Ordering::SeqCst);
        }
    }

    /// Whether nobody may believe it any more.
    pub fn is_closed(&self) -> bool {
        self.words[CLOSED_AT].load(Ordering::Acquire) != 0
    }

    /// Where a chunk is, if that is known.
    pub fn get(&self, key: ChunkKey) -> Option<RecordPlace> {
        if self.is_closed() {
            return None;
        }
        let found = self.set(key).find_map(|slot| read(slot).filter(|(found, _)| *found == key));
        found.map(|(_, place)| place)
    }

    /// The number of the set of slots that a chunk is in.
    pub fn set_of(&self, (id, index): ChunkKey) -> usize {
        let sets = self.slots() / SET_SLOTS;
        // The upper bits are the good ones.
        (mix(mix(1, id), index) >> 32) as usize & (sets - 1)
    }

    /// The chunk's only record is there now. Whether a free slot was taken for that; if there is none,
    /// another chunk loses its slot.
    pub fn put(&self, key: ChunkKey, place: RecordPlace) -> bool {
        debug_assert!(place.len > 0, "nothing has no place");
        let mut free = None;
        for slot in self.set(key) {
            match read(slot) {
                Some((found, known)) if found == key => {
                    if known != place {
                        write(slot, key, place);
                    }
                    return false;
                }
                Some(_) => {}
                None => free = free.or(Some(slot)),
            }
        }
        // Any of them, and not always the same.
        let other = (place.pos as usize / 4096 + place.sum as usize) % SET_SLOTS;
        match free.or_else(|| self.set(key).nth(other)) {
            Some(slot) if u32::try_from(key.1).is_ok() => write(slot, key, place),
            _ => return false,
        }
        free.is_some()
    }

    /// The chunk's only record, if there is one, is not known any more. Whether a slot was given back.
    pub fn remove(&self, key: ChunkKey) -> bool {
        let mut slots = self.set(key);
        let slot = slots.find(|slot| read(slot).is_some_and(|(found, _)| found == key));
        if let Some(slot) = slot {
            write(slot, (0, 0), RecordPlace { segment: 0, pos: 0, len: 0, sum: 0 });
        }
        slot.is_some()
    }

    /// Puts all that another table has into this one, which nobody sees yet; how many there are.
    pub fn copy_from(&self, other: PlaceTable<'_>) -> usize {
        for at in (HEAD_WORDS..SLOTS_AT).chain([READS_AT, READ_BYTES_AT]) {
            self.words[at].store(other.words[at].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let slots = other.words[SLOTS_AT..].chunks_exact(SLOT_WORDS);
        slots.filter_map(read).filter(|(key, place)| self.put(*key, *place)).count()
    }

    /// Segments that the store has removed: who has one open keeps its blocks from others.
    pub fn removed(&self) -> u64 {
        self.words[REMOVED_AT].load(Ordering::Relaxed)
    }

    /// The store has removed a segment.
    pub fn count_removed(&self) {
        self.words[REMOVED_AT].fetch_add(1, Ordering::Relaxed);
    }

    /// What clients fetch from the disk.
    pub fn fetches(&self) -> Fetches<'a> {
        Fetches(&self.words[HEAD_WORDS..SLOTS_AT])
    }

    /// A client has read so many bytes at a place that it found here.
    pub fn count_read(&self, bytes: u64) {
        self.words[READS_AT].fetch_add(1, Ordering::Relaxed);
        self.words[READ_BYTES_AT].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Reads that clients have counted, and their bytes.
    pub fn counted(&self) -> (u64, u64) {
        let count = |at: usize| self.words[at].load(Ordering::Relaxed);
        (count(READS_AT), count(READ_BYTES_AT))
    }

    fn set(&self, key: ChunkKey) -> std::slice::ChunksExact<'a, AtomicU64> {
        let start = SLOTS_AT + self.set_of(key) * SET_WORDS;
        self.words[start..start + SET_WORDS].chunks_exact(SLOT_WORDS)
    }
}

/// Which chunks were fetched from the disk of late, past the page cache: that is left to what is wanted more
/// than once (as by the ghost list of 2Q, VLDB 1994).
pub struct Fetches<'a>(&'a [AtomicU64]);

impl<'a> Fetches<'a> {
    /// Words of memory for them.
    pub const WORDS: usize = FETCHES;

    /// In memory that is all zeros, or was used for this before.
    ///
    /// # Panics
    /// If it has not [`Fetches::WORDS`] words.
    pub fn new(words: &'a [AtomicU64]) -> Fetches<'a> {
        assert_eq!(words.len(), Self::WORDS, "words for fetches");
        Fetches(words)
    }

    /// Somebody fetches a chunk from this byte on. Whether somebody did before, not long ago.
    pub fn again(&self, (id, index): ChunkKey, start: u32) -> bool {
        // Never 0, which is nobody's.
        let hash = mix(mix(mix(1, id), index), u64::from(start)) | 1;
        let place = &self.0[(hash >> 48) as usize % FETCHES];
        place.swap(hash, Ordering::Relaxed) == hash
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(32) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// What a slot has; nothing, also while it is written.
fn read(slot: &[AtomicU64]) -> Option<(ChunkKey, RecordPlace)> {
    let last = slot[3].load(Ordering::Acquire);
    let [id, chunk, range] = [0, 1, 2].map(|at| slot[at].load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    let same = slot[3].load(Ordering::Relaxed) == last;
    let (sum, version) = split(last);
    let ((index, segment), (pos, len)) = (split(chunk), split(range));
    let found = same && version.is_multiple_of(2) && len > 0;
    found.then_some(((id, u64::from(index)), RecordPlace { segment, pos, len, sum }))
}

/// Gives a slot to a chunk, whose index has 32 bits.
fn write(slot: &[AtomicU64], (id, index): ChunkKey, place: RecordPlace) {
    let RecordPlace { segment, pos, len, sum } = place;
    let (_, version) = split(slot[3].load(Ordering::Relaxed));
    let odd = version | 1;
    slot[3].store(join(sum, odd), Ordering::Relaxed);
    fence(Ordering::Release);
    let words = [id, join(index as u32, segment), join(pos, len)];
    slot.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
    slot[3].store(join(sum, odd.wrapping_add(1)), Ordering::Release);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn memory(slots: usize) -> Vec<AtomicU64> {
        (0..PlaceTable::bytes_of(slots) / 8).map(|_| AtomicU64::new(0)).collect()
    }

    fn place(n: u32) -> RecordPlace {
        RecordPlace { segment: n, pos: n * 4096, len: n + 1, sum: n ^ 0x5555 }
    }

    #[test]
    fn what_was_put_is_there_until_it_is_removed() {
        let memory = memory(1024);
        assert!(PlaceTable::open(&memory).is_none(), "nobody has made one there");
        let table = PlaceTable::create(&memory);
        let taken = (0..200).filter(|n| table.put((u64::from(*n), 7), place(*n))).count();
        assert!(
            (0..100).all(|n| !table.put((100 + n, 7), place(100 + n as u32))),
            "they have slots"
        );
        let seen = PlaceTable::open(&memory).unwrap();
        let known = (0..200).filter(|n| seen.get((u64::from(*n), 7)) == Some(place(*n))).count();
        // Of 1024 slots a set of four has seldom to serve five.
        assert!(taken >= 195 && known == taken, "{taken} and {known}");
        assert_eq!(seen.get((3, 8)), None);
        assert!(!table.put((3, 7), place(900)) && seen.get((3, 7)) == Some(place(900)));
        assert!(table.remove((3, 7)) && !table.remove((3, 7)));
        assert_eq!(seen.get((3, 7)), None);
        // An index that a slot has no room for.
        assert!(!table.put((3, 7 + (1 << 32)), place(1)) && seen.get((3, 7)).is_none());
        assert_eq!(seen.get((3, 7 + (1 << 32))), None);
        PlaceTable::close(&memory);
        assert!(seen.is_closed() && seen.get((5, 7)).is_none());
    }

    #[test]
    fn a_full_set_loses_one() {
        let memory = memory(SET_SLOTS);
        let table = PlaceTable::create(&memory);
        let taken = (0..100).filter(|n| table.put((u64::from(*n), 0), place(*n))).count();
        assert_eq!(taken, SET_SLOTS);
        assert_eq!(table.get((99, 0)), Some(place(99)));
        let left = (0..100).filter(|n| table.get((u64::from(*n), 0)) == Some(place(*n))).count();
        assert_eq!(left, SET_SLOTS);
    }

    #[test]
    fn a_larger_table_takes_all() {
        let (small, large) = (memory(256), memory(1024));
        let (small, large) = (PlaceTable::create(&small), PlaceTable::create(&large));
        (0..100).for_each(|n| _ = small.put((u64::from(n), 1), place(n)));
        small.count_read(4000);
        assert!(!small.fetches().again((7, 0), 0));
        let copied = large.copy_from(small);
        let known = (0..100).filter(|n| large.get((u64::from(*n), 1)) == Some(place(*n))).count();
        assert!(copied >= 95 && copied == known, "{copied} and {known}");
        assert!(large.fetches().again((7, 0), 0));
        assert_eq!(large.counted(), (1, 4000));
    }

    #[test]
    fn other_memory_is_no_table() {
        let whole = memory(64);
        PlaceTable::create(&whole);
        assert!(PlaceTable::open(&whole).is_some());
        assert!(PlaceTable::open(&whole[..whole.len() - 16]).is_none());
        assert!(PlaceTable::open(&whole[..100]).is_none() && PlaceTable::open(&[]).is_none());
        whole[0].store(MAGIC + (1 << 56), Ordering::Relaxed);
        assert!(PlaceTable::open(&whole).is_none(), "a later layout");
        PlaceTable::close(&whole);
        assert_eq!(whole[CLOSED_AT].load(Ordering::Relaxed), 1, "which can be closed");
        let other = memory(4);
        PlaceTable::close(&other);
        assert_eq!(other[CLOSED_AT].load(Ordering::Relaxed), 0);
    }

    /// Readers see a chunk's place as it was put, never half of one and half of another.
    #[test]
    fn who_reads_while_it_is_written_sees_all_or_nothing() {
        let memory = memory(SET_SLOTS);
        let table = PlaceTable::create(&memory);
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while seen.load(Ordering::Relaxed) < 200_000 {
                        for id in 0..6 {
                            let Some(found) = table.get((id, id)) else { continue };
                            assert_eq!(found, place(found.segment));
                            assert_eq!(u64::from(found.segment) % 6, id);
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let mut n = 0;
            while seen.load(Ordering::Relaxed) < 200_000 {
                n = (n + 1) % 600_000;
                let key = (u64::from(n % 6), u64::from(n % 6));
                table.put(key, place(n));
                if n % 5 == 0 {
                    table.remove(key);
                }
            }
        });
    }

    #[test]
    fn what_was_fetched_is_known_until_much_else_was() {
        let memory = memory(4);
        let table = PlaceTable::create(&memory);
        let fetches = table.fetches();
        assert!(!fetches.again((7, 0), 0));
        assert!(fetches.again((7, 0), 0) && fetches.again((7, 0), 0));
        assert!(
            !fetches.again((7, 1), 0) && !fetches.again((7, 0), 4096) && !fetches.again((8, 0), 0)
        );
        let known = (100..10_100).filter(|id| fetches.again((*id, 0), 0)).count();
        assert_eq!(known, 0, "strangers");
        let known = (100..10_100).filter(|id| fetches.again((*id, 0), 0)).count();
        assert!(known > 8_000, "{known}");
        (20_000..2_000_000).for_each(|id| _ = fetches.again((id, 0), 0));
        assert!(!fetches.again((7, 0), 0));
    }
}
