//! What a store must answer: for each byte the values that it may have after a kill, and after a
//! loss of power.

use saker_types::wire::{ChunkReadReq, ChunkSeekReq, ChunkTruncateReq, ChunkWriteReq};
use saker_types::{Errno, Result};

use super::disk::{Now, audit};
use crate::backend::segments::SegmentStore;
use crate::backend::segments::index::DELETED;

pub const CHUNK_BYTES: u64 = 4 << 20;
/// Files have this many chunks, of which so many bytes are used.
pub const CHUNKS: u64 = 2;
pub const CHUNK_USED: usize = 10_000;

/// Values of a byte: the first is the newest.
#[derive(Clone, Default)]
struct Bytes {
    /// May be there if the process dies; just one if all calls were answered.
    kill: Vec<Vec<u8>>,
    /// May be there if power fails.
    power: Vec<Vec<u8>>,
}

fn add(values: &mut Vec<u8>, value: u8) {
    if !values.contains(&value) {
        values.push(value);
    }
}

impl Bytes {
    fn new() -> Bytes {
        Bytes { kill: vec![vec![0]; CHUNK_USED], power: vec![vec![0]; CHUNK_USED] }
    }

    fn put(&mut self, at: usize, value: u8, answered: bool) {
        add(&mut self.power[at], value);
        if answered {
            self.kill[at] = vec![value];
        } else {
            add(&mut self.kill[at], value);
        }
    }
}

/// A file.
#[derive(Clone)]
struct File {
    /// Another one after each deletion.
    id: u64,
    chunks: Vec<Bytes>,
    /// Possible newest truncations; as with bytes.
    gen_kill: Vec<u64>,
    gen_power: Vec<u64>,
}

impl File {
    fn new(id: u64) -> File {
        let chunks = vec![Bytes::new(); CHUNKS as usize];
        File { id, chunks, gen_kill: vec![0], gen_power: vec![0] }
    }
}

/// All files of a store.
#[derive(Clone)]
pub struct Model {
    files: Vec<File>,
    /// Inodes that were deleted: whatever crashes, and unless power fails.
    deleted: Vec<u64>,
    deleted_unsynced: Vec<u64>,
    next_id: u64,
    /// Grows with each truncation, over all files.
    pub truncate_gen: u64,
}

/// Which crash came before a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Kill,
    Power,
}

impl Model {
    pub fn new(files: usize) -> Model {
        let next_id = files as u64 + 1;
        let files = (1..next_id).map(File::new).collect();
        let (deleted, deleted_unsynced) = (Vec::new(), Vec::new());
        Model { files, deleted, deleted_unsynced, next_id, truncate_gen: 0 }
    }

    fn fresh(&mut self) -> File {
        self.next_id += 1;
        File::new(self.next_id - 1)
    }

    /// The generation to write with.
    fn newest_gen(&self, file: usize) -> u64 {
        self.files[file].gen_kill.iter().copied().max().unwrap()
    }

    pub fn write(
        &mut self,
        store: &SegmentStore,
        (file, index): (usize, u64),
        offset: usize,
        data: &[u8],
        sync: bool,
    ) -> Result<()> {
        let req = ChunkWriteReq {
            id: self.files[file].id,
            index,
            offset: offset as u64,
            truncate_gen: self.newest_gen(file),
            replicas: vec![2, 0],
            sync,
            crc: crc32c::crc32c(data),
            ..ChunkWriteReq::default()
        };
        let result = store.write_now(&req, data);
        let chunk = &mut self.files[file].chunks[index as usize];
        for (i, byte) in data.iter().enumerate() {
            chunk.put(offset + i, *byte, result.is_ok());
        }
        if sync && result.is_ok() {
            self.synced();
        }
        result.map(|_| ())
    }

    pub fn punch(
        &mut self,
        store: &SegmentStore,
        (file, index): (usize, u64),
        offset: usize,
        len: usize,
    ) -> Result<()> {
        let req = ChunkWriteReq {
            id: self.files[file].id,
            index,
            offset: offset as u64,
            truncate_gen: self.newest_gen(file),
            hole: len as u64,
            ..ChunkWriteReq::default()
        };
        let result = store.write_now(&req, &[]);
        let chunk = &mut self.files[file].chunks[index as usize];
        (offset..offset + len).for_each(|at| chunk.put(at, 0, result.is_ok()));
        if result.is_ok() {
            let req = ChunkSeekReq { id: req.id, offset: index * CHUNK_BYTES + req.offset };
            let next = store.seek(&req)?;
            let end = req.offset + len as u64;
            assert!(next.end == 0 || next.start >= end, "{next:?} in a hole up to {end}");
        }
        result.map(|_| ())
    }

    pub fn sync(&mut self, store: &SegmentStore) -> Result<()> {
        store.sync(&[])?;
        self.synced();
        Ok(())
    }

    /// Everything answered is durable.
    fn synced(&mut self) {
        self.deleted.append(&mut self.deleted_unsynced);
        for file in &mut self.files {
            file.gen_power.clone_from(&file.gen_kill);
            for chunk in &mut file.chunks {
                chunk.power.clone_from(&chunk.kill);
            }
        }
    }

    pub fn truncate(&mut self, store: &SegmentStore, file: usize, cut: u64) -> Result<()> {
        self.truncate_gen += 1;
        let truncate_gen = self.truncate_gen;
        let id = self.files[file].id;
        let result = store.truncate_now(&ChunkTruncateReq { id, truncate_gen, cut });
        let answered = result.is_ok();
        let file = &mut self.files[file];
        for (index, chunk) in file.chunks.iter_mut().enumerate() {
            let start = index as u64 * CHUNK_BYTES;
            let from = cut.saturating_sub(start).min(CHUNK_USED as u64) as usize;
            (from..CHUNK_USED).for_each(|at| chunk.put(at, 0, answered));
        }
        if answered {
            file.gen_kill = vec![truncate_gen];
            self.synced();
        } else {
            file.gen_kill.push(truncate_gen);
            file.gen_power.push(truncate_gen);
        }
        result
    }

    pub fn delete(&mut self, store: &SegmentStore, files: &[usize]) -> Result<()> {
        let ids: Vec<u64> = files.iter().map(|file| self.files[*file].id).collect();
        let result = store.delete(&ids);
        for (file, id) in files.iter().zip(ids) {
            if result.is_ok() {
                self.deleted_unsynced.push(id);
                self.files[*file] = self.fresh();
                continue;
            }
            let file = &mut self.files[*file];
            for chunk in &mut file.chunks {
                (0..CHUNK_USED).for_each(|at| chunk.put(at, 0, false));
            }
            file.gen_kill.push(DELETED);
            file.gen_power.push(DELETED);
        }
        result
    }

    /// Compares a range after calls that were all answered.
    pub fn read(&self, store: &SegmentStore, (file, index): (usize, u64), from: usize, to: usize) {
        let chunk = &self.files[file].chunks[index as usize];
        let got = read(store, self.files[file].id, index, from, to);
        for (at, byte) in got.iter().enumerate() {
            assert_eq!([*byte], chunk.kill[from + at][..], "{file}/{index} at {}", from + at);
        }
    }

    /// Compares everything, and takes what the store says for what is.
    pub fn check(&mut self, store: &SegmentStore, crash: Crash) {
        audit(store);
        if crash == Crash::Power {
            self.deleted_unsynced.clear();
        }
        for id in self.deleted.iter().chain(&self.deleted_unsynced) {
            check_deleted(store, *id);
        }
        for (number, file) in self.files.iter_mut().enumerate() {
            let truncate_gen = store.index.truncate_gen(file.id).unwrap();
            let gens = if crash == Crash::Kill { &file.gen_kill } else { &file.gen_power };
            assert!(gens.contains(&truncate_gen), "{crash:?}: {truncate_gen} is not in {gens:?}");
            file.gen_kill = vec![truncate_gen];
            if crash == Crash::Power {
                file.gen_power = vec![truncate_gen];
            }
            for (index, chunk) in file.chunks.iter_mut().enumerate() {
                let got = read(store, file.id, index as u64, 0, CHUNK_USED);
                for (at, byte) in got.into_iter().enumerate() {
                    let values =
                        if crash == Crash::Kill { &chunk.kill[at] } else { &chunk.power[at] };
                    assert!(
                        values.contains(&byte),
                        "{crash:?}: byte {at} of chunk {index} of file {number} is {byte}, not \
                         one of {values:?}"
                    );
                    chunk.kill[at] = vec![byte];
                    if crash == Crash::Power {
                        chunk.power[at] = vec![byte];
                    }
                }
            }
        }
        for number in 0..self.files.len() {
            if self.files[number].gen_kill == [DELETED] {
                check_deleted(store, self.files[number].id);
                self.files[number] = self.fresh();
            }
        }
    }
}

/// A late write does not bring an inode back.
fn check_deleted(store: &SegmentStore, id: u64) {
    assert_eq!(store.index.truncate_gen(id).unwrap(), DELETED, "inode {id}");
    assert_eq!(
        store.index.list((id, 0), 1).unwrap().0.first().filter(|(key, _)| key.0 == id),
        None
    );
    let req = ChunkWriteReq { id, crc: crc32c::crc32c(&[1]), ..ChunkWriteReq::default() };
    let newest = ChunkWriteReq { truncate_gen: u64::MAX, ..req.clone() };
    let hole = ChunkWriteReq { hole: 1, ..ChunkWriteReq::default() };
    for (req, data) in [(&req, &[1][..]), (&newest, &[1]), (&ChunkWriteReq { id, ..hole }, &[])] {
        assert_eq!(store.write_now(req, data).unwrap_err().errno(), Errno::ESTALE);
    }
}

fn read(store: &SegmentStore, id: u64, index: u64, from: usize, to: usize) -> Vec<u8> {
    let (offset, len) = (from as u64, (to - from) as u64);
    let req = ChunkReadReq { id, index, offset, len, ..Default::default() };
    let (data, reply) = store.read_now(&req).unwrap();
    assert_eq!(crc32c::crc32c(&data), reply.crc);
    assert!(data.len() <= to - from);
    let mut data = data.to_vec();
    data.resize(to - from, 0);
    data
}

/// A call that may meet the death of the machine, but must say so.
pub fn may_die(result: Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.errno(), Errno::EIO, "{error}");
            false
        }
    }
}
