//! A disk in memory that keeps apart what was written and what was synced.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Dir, File, check_name};

/// What a disk writes or does not write as one: old ones, new ones. A torn write keeps some
/// sectors of it.
const SECTOR_BYTES: [u64; 2] = [512, 4096];

/// A directory in memory. Clones name the same directory.
///
/// [`MemDir::crash`] gives the disk as a machine finds it when power is back; the crashed
/// directory itself stays as it was, so that one state can be crashed in many ways.
#[derive(Clone, Default)]
pub struct MemDir {
    name: String,
    node: Arc<Mutex<DirNode>>,
}

#[derive(Clone)]
enum Entry {
    File(Arc<Mutex<FileNode>>),
    Dir(MemDir),
}

#[derive(Default)]
struct DirNode {
    current: BTreeMap<String, Entry>,
    synced: BTreeMap<String, Entry>,
    pending: Vec<DirChange>,
}

/// A change to a directory that is not durable yet.
#[derive(Clone)]
enum DirChange {
    Link(String, Entry),
    Unlink(String, Entry),
    Rename(String, String, Entry),
}

#[derive(Default)]
struct FileNode {
    current: Vec<u8>,
    synced: Vec<u8>,
    pending: Vec<FileChange>,
}

/// A change to a file that is not durable yet.
#[derive(Clone)]
enum FileChange {
    Write(u64, Vec<u8>),
    Truncate(u64),
    Extend(u64),
    Punch(u64, u64),
}

impl MemDir {
    /// An empty disk.
    pub fn new() -> MemDir {
        MemDir::default()
    }

    /// The disk after power was lost now: what was synced, and of each change that was not,
    /// decided by `seed`, all, nothing, or (of a write) some of its sectors of 512 bytes or 4 KiB.
    #[must_use]
    pub fn crash(&self, seed: u64) -> MemDir {
        self.survive(&mut Dice { state: seed, flips: false })
    }

    /// The same, but that a bit of what was being written may be wrong.
    #[must_use]
    pub fn crash_flipping(&self, seed: u64) -> MemDir {
        self.survive(&mut Dice { state: seed, flips: true })
    }

    fn survive(&self, dice: &mut Dice) -> MemDir {
        let node = locked(&self.node);
        let mut entries = node.synced.clone();
        for change in &node.pending {
            if dice.roll(2) == 0 {
                change.apply(&mut entries);
            }
        }
        let mut survived = BTreeMap::new();
        for (name, entry) in entries {
            let entry = match entry {
                Entry::File(file) => Entry::File(Arc::new(Mutex::new(locked(&file).survive(dice)))),
                Entry::Dir(dir) => Entry::Dir(dir.survive(dice)),
            };
            survived.insert(name, entry);
        }
        let node = DirNode { current: survived.clone(), synced: survived, pending: Vec::new() };
        MemDir { name: self.name.clone(), node: Arc::new(Mutex::new(node)) }
    }
}

impl Entry {
    fn is(&self, other: &Entry) -> bool {
        match (self, other) {
            (Entry::File(a), Entry::File(b)) => Arc::ptr_eq(a, b),
            (Entry::Dir(a), Entry::Dir(b)) => Arc::ptr_eq(&a.node, &b.node),
            _ => false,
        }
    }

    fn file(&self) -> io::Result<Arc<Mutex<FileNode>>> {
        match self {
            Entry::File(file) => Ok(file.clone()),
            Entry::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }
}

impl DirChange {
    fn apply(&self, entries: &mut BTreeMap<String, Entry>) {
        let mut unlink = |name: &String, entry: &Entry| {
            if entries.get(name).is_some_and(|found| found.is(entry)) {
                entries.remove(name);
            }
        };
        match self {
            DirChange::Link(name, entry) => {
                entries.insert(name.clone(), entry.clone());
            }
            DirChange::Unlink(name, entry) => unlink(name, entry),
            DirChange::Rename(from, to, entry) => {
                unlink(from, entry);
                entries.insert(to.clone(), entry.clone());
            }
        }
    }
}

impl DirNode {
    fn change(&mut self, change: DirChange) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    fn find(&self, name: &str) -> io::Result<Entry> {
        check_name(name)?;
        let entry = self.current.get(name).cloned();
        entry.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))
    }
}

impl Dir for MemDir {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(MemFile(locked(&self.node).find(name)?.file()?)))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        check_name(name)?;
        let mut node = locked(&self.node);
        if node.current.contains_key(name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, name.to_owned()));
        }
        let file = Arc::new(Mutex::new(FileNode::default()));
        node.change(DirChange::Link(name.to_owned(), Entry::File(file.clone())));
        Ok(Arc::new(MemFile(file)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(locked(&self.node).current.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut node = locked(&self.node);
        let entry = node.find(name)?;
        entry.file()?;
        node.change(DirChange::Unlink(name.to_owned(), entry));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(to)?;
        let mut node = locked(&self.node);
        let entry = node.find(from)?;
        entry.file()?;
        if let Some(replaced) = node.current.get(to) {
            replaced.file()?;
        }
        node.change(DirChange::Rename(from.to_owned(), to.to_owned(), entry));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut node = locked(&self.node);
        for change in std::mem::take(&mut node.pending) {
            change.apply(&mut node.synced);
        }
        Ok(())
    }

    fn sub_dir(&self, name: &str) -> io::Result<Arc<dyn Dir>> {
        check_name(name)?;
        let mut node = locked(&self.node);
        match node.current.get(name) {
            Some(Entry::Dir(dir)) => return Ok(Arc::new(dir.clone())),
            Some(Entry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
            None => {}
        }
        let dir = MemDir { name: format!("{}/{name}", self.name), ..MemDir::default() };
        node.current.insert(name.to_owned(), Entry::Dir(dir.clone()));
        node.synced.insert(name.to_owned(), Entry::Dir(dir.clone()));
        Ok(Arc::new(dir))
    }

    fn lock(&self) -> io::Result<()> {
        // Only one simulated machine has this disk.
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn label(&self) -> String {
        format!("memory:{}", self.name)
    }
}

impl FileChange {
    fn apply(&self, data: &mut Vec<u8>) {
        match self {
            FileChange::Write(offset, bytes) => put(data, *offset, bytes),
            FileChange::Truncate(len) => data.resize(to_index(*len), 0),
            FileChange::Extend(len) => data.resize(data.len().max(to_index(*len)), 0),
            FileChange::Punch(offset, len) => {
                let end = to_index(offset.saturating_add(*len)).min(data.len());
                let start = to_index(*offset).min(end);
                data[start..end].fill(0);
            }
        }
    }

    /// Does what a crash leaves of this change.
    fn survive(&self, data: &mut Vec<u8>, dice: &mut Dice) {
        match (dice.roll(3), self) {
            (0, _) => {}
            (1, FileChange::Write(offset, bytes)) => tear(data, *offset, bytes, dice),
            _ => self.apply(data),
        }
        if let (true, FileChange::Write(offset, bytes)) = (dice.flips, self)
            && dice.roll(4) == 0
        {
            let bit = dice.roll(bytes.len() as u64 * 8);
            if let Some(byte) = data.get_mut(to_index(offset + bit / 8)) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }
}

impl FileNode {
    fn change(&mut self, change: FileChange) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    fn survive(&self, dice: &mut Dice) -> FileNode {
        let mut data = self.synced.clone();
        for change in &self.pending {
            change.survive(&mut data, dice);
        }
        FileNode { current: data.clone(), synced: data, pending: Vec::new() }
    }
}

struct MemFile(Arc<Mutex<FileNode>>);

impl File for MemFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if !data.is_empty() {
            locked(&self.0).change(FileChange::Write(offset, data.to_vec()));
        }
        Ok(())
    }

    fn append(&self, data: &[u8]) -> io::Result<u64> {
        let mut node = locked(&self.0);
        let end = node.current.len() as u64;
        if !data.is_empty() {
            node.change(FileChange::Write(end, data.to_vec()));
        }
        Ok(end)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(copy(&locked(&self.0).current, offset, buf))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(locked(&self.0).current.len() as u64)
    }

    fn sync(&self) -> io::Result<()> {
        let mut node = locked(&self.0);
        for change in std::mem::take(&mut node.pending) {
            change.apply(&mut node.synced);
        }
        Ok(())
    }

    fn read_durable(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(copy(&locked(&self.0).synced, offset, buf))
    }

    fn lose_unsynced(&self) {
        // Data; what the file system does it logs.
        locked(&self.0).pending.retain(|change| !matches!(change, FileChange::Write(..)));
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        locked(&self.0).change(FileChange::Truncate(len));
        Ok(())
    }

    fn preallocate(&self, len: u64) -> io::Result<()> {
        locked(&self.0).change(FileChange::Extend(len));
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        locked(&self.0).change(FileChange::Punch(offset, len));
        Ok(())
    }
}

/// Fills `buf` with what is at `offset`, as far as there is something.
fn copy(data: &[u8], offset: u64, buf: &mut [u8]) -> usize {
    let start = to_index(offset).min(data.len());
    let read = buf.len().min(data.len() - start);
    buf[..read].copy_from_slice(&data[start..start + read]);
    read
}

/// Writes some sectors.
fn tear(data: &mut Vec<u8>, offset: u64, bytes: &[u8], dice: &mut Dice) {
    let sector_bytes = SECTOR_BYTES[dice.roll(2) as usize];
    let mut at = 0;
    while at < bytes.len() {
        let start = offset + at as u64;
        let sector_end = (start / sector_bytes + 1) * sector_bytes;
        let end = bytes.len().min(at + to_index(sector_end - start));
        if dice.roll(2) == 0 {
            put(data, start, &bytes[at..end]);
        }
        at = end;
    }
}

fn put(data: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = to_index(offset);
    let end = start + bytes.len();
    if data.len() < end {
        data.resize(end, 0);
    }
    data[start..end].copy_from_slice(bytes);
}

/// Offsets of a file in memory fit in memory.
fn to_index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SplitMix64: what survives must be the same for the same seed on every version of every crate.
struct Dice {
    state: u64,
    flips: bool,
}

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}
