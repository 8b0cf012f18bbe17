//! The chunks of all stores, reduced to one entry for each inode.

use saker_types::wire::ChunkInfo;
use saker_types::{ClusterMap, InodeId, StoreNo};

use super::problem::{ProblemKind, Problems, Subject};

/// All chunks of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunked {
    pub id: InodeId,
    /// How many, copies counted once.
    pub chunks: u64,
    /// Index of the last one.
    pub last: u64,
    /// End of the last byte in the last one, within the chunk.
    pub last_len: u64,
    /// Every copy of each is set aside.
    pub aside: bool,
}

/// What was read of the stores.
#[derive(Debug, Default)]
pub struct Chunks {
    /// In order of their ids.
    pub inodes: Vec<Chunked>,
    /// Chunks, copies counted once.
    pub total: u64,
    /// Chunks with fewer copies than there should be.
    pub under_replicated: u64,
    pub problems: Problems,
}

impl Chunks {
    /// Takes all copies of one chunk. Chunks come in the order of (id, index).
    pub fn add(&mut self, map: &ClusterMap, copies: &[(StoreNo, ChunkInfo)]) {
        let Some((_, first)) = copies.first() else { return };
        let (id, index) = (first.id, first.index);
        let wanted = map.stores_of_chunk(id, index);
        let mut there = 0;
        for (store, copy) in copies {
            let subject = || Subject::Copy(*store, id, index);
            if wanted.contains(store) {
                there += 1;
            } else {
                let detail =
                    format!("store {store} has chunk {index}, which belongs to {wanted:?}");
                self.problems.add(ProblemKind::MisplacedChunk, subject(), detail);
            }
            if !copy.problem.is_empty() {
                let detail = format!("chunk {index} on store {store}: {}", copy.problem);
                self.problems.add(ProblemKind::BadChunk, subject(), detail);
            }
            if copy.len != first.len {
                let detail = format!(
                    "chunk {index} has {} bytes on store {store}, {} on store {}",
                    copy.len, first.len, copies[0].0
                );
                self.problems.add(ProblemKind::DifferentCopies, Subject::Chunk(id, index), detail);
            }
        }
        self.total += 1;
        self.under_replicated += u64::from(there < wanted.len());
        let aside = copies.iter().all(|(_, copy)| copy.aside_ns != 0);
        self.note(id, index, first.len, aside);
    }

    fn note(&mut self, id: InodeId, last: u64, last_len: u64, aside: bool) {
        match self.inodes.last_mut() {
            Some(inode) if inode.id == id => {
                let (chunks, aside) = (inode.chunks + 1, inode.aside && aside);
                *inode = Chunked { id, chunks, last, last_len, aside };
            }
            _ => self.inodes.push(Chunked { id, chunks: 1, last, last_len, aside }),
        }
    }
}

/// Brings the sorted lists of several stores together, chunk by chunk.
#[derive(Default)]
pub struct Merge {
    stores: Vec<ChunkList>,
}

struct ChunkList {
    store: StoreNo,
    waiting: std::collections::VecDeque<ChunkInfo>,
    ended: bool,
}

impl Merge {
    /// Of these stores.
    pub fn of(stores: impl IntoIterator<Item = StoreNo>) -> Merge {
        let source = |store| ChunkList { store, waiting: Default::default(), ended: false };
        Merge { stores: stores.into_iter().map(source).collect() }
    }

    /// The stores whose lists must be read on before the merge can go on.
    pub fn hungry(&self) -> Vec<StoreNo> {
        let hungry = |source: &&ChunkList| source.waiting.is_empty() && !source.ended;
        self.stores.iter().filter(hungry).map(|source| source.store).collect()
    }

    /// Takes the next part of a store's list.
    pub fn feed(&mut self, store: StoreNo, chunks: Vec<ChunkInfo>, end: bool) {
        if let Some(source) = self.stores.iter_mut().find(|source| source.store == store) {
            source.waiting.extend(chunks);
            source.ended = end;
        }
    }

    /// All copies of the next chunk; `None` when a store is hungry, or at the end.
    pub fn next(&mut self) -> Option<Vec<(StoreNo, ChunkInfo)>> {
        if !self.hungry().is_empty() {
            return None;
        }
        let place = |chunk: &ChunkInfo| (chunk.id, chunk.index);
        let least = self.stores.iter().filter_map(|s| s.waiting.front().map(place)).min()?;
        let take = |source: &mut ChunkList| {
            let chunk = source.waiting.pop_front_if(|chunk| place(chunk) == least)?;
            Some((source.store, chunk))
        };
        Some(self.stores.iter_mut().filter_map(take).collect())
    }
}
