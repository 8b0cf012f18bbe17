#![allow(clippy::unwrap_used)]
//! What every backend must do, whatever it keeps chunks in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use saker_runtime::rand::Rng;
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::{
    ChunkListReq, ChunkReadReq, ChunkSeekReq, ChunkTruncateReq, ChunkWriteReply, ChunkWriteReq,
};
use saker_types::{Class, Errno, InodeId, Result, Unflushed};

use super::ChunkBackend;
use crate::wait::{WaitPolicy, is_would_wait};

/// A backend under test, and what it keeps things in.
pub trait BackendUnderTest {
    /// Opens what is there. The backend that was open is dropped before.
    fn open(&self) -> Arc<dyn ChunkBackend>;

    /// There is no room for data from now on, or there is again.
    fn set_full(&self, is_full: bool);

    /// Damages what an inode has, which is this, where it is kept.
    fn damage(&self, id: InodeId, data: &[u8]);
}

/// Bytes that are used of a chunk.
const USED: u64 = 6_000;
const CHUNKS: u64 = 2;
const FILES: u64 = 4;
const SEEDS: u64 = 6;
const STEPS: usize = 300;

/// Checks a backend, of which `make` makes a new one.
pub fn check<S: BackendUnderTest>(make: impl Fn() -> S) {
    (0..SEEDS).for_each(|seed| random_calls(&make(), seed));
    what_is_impossible_is_refused(&*make().open());
    without_room(&make());
    damage_is_told(&make());
}

/// What chunks hold: each byte that was written.
#[derive(Default)]
struct Model {
    bytes: BTreeMap<(InodeId, u64), BTreeMap<u64, u8>>,
    gens: BTreeMap<InodeId, u64>,
    deleted: BTreeSet<InodeId>,
    /// Of each write what it is known by.
    written: Vec<ChunkWriteReply>,
}

fn write(
    backend: &dyn ChunkBackend,
    req: &ChunkWriteReq,
    data: &[u8],
    wait: WaitPolicy,
) -> Result<ChunkWriteReply> {
    let crc = crc32c::crc32c(data);
    match backend.write(&ChunkWriteReq { crc, ..req.clone() }, data, wait) {
        // Nothing was done.
        Err(error) if is_would_wait(&error) && wait == WaitPolicy::Never => {
            write(backend, req, data, WaitPolicy::May)
        }
        written => written,
    }
}

fn random_calls(subject: &impl BackendUnderTest, seed: u64) {
    let mut rng = Rng::seeded(seed);
    let mut model = Model::default();
    let mut backend = subject.open();
    for step in 0..STEPS as u64 {
        let (id, index) = (1 + rng.below(FILES) + step / 100, rng.below(CHUNKS));
        let offset = rng.below(USED);
        let len = 1 + rng.below(USED - offset);
        let known_gen = model.gens.get(&id).copied().unwrap_or_default();
        let wait = if rng.chance(1, 2) { WaitPolicy::Never } else { WaitPolicy::May };
        match rng.below(20) {
            0 => {
                drop(backend);
                backend = subject.open();
            }
            1 => {
                backend.flush().unwrap();
                let known = model.written.iter().map(|of| Unflushed {
                    store: 0,
                    epoch: of.epoch,
                    first: of.seq,
                    more: 0,
                });
                assert!(!backend.lost(&known.collect::<Vec<_>>()), "nothing was lost");
            }
            2 => {
                let is_older = rng.chance(1, 4);
                let truncate_gen = if is_older { known_gen } else { known_gen + 1 };
                let cut = rng.below(CHUNKS) * CHUNK_BYTES + rng.below(USED);
                let newest = backend.truncate(&ChunkTruncateReq { id, truncate_gen, cut }).unwrap();
                let is_deleted = model.deleted.contains(&id);
                assert_eq!(newest, if is_deleted { u64::MAX } else { truncate_gen });
                if truncate_gen > known_gen && !model.deleted.contains(&id) {
                    model.gens.insert(id, truncate_gen);
                    model.cut(id, cut);
                }
            }
            3 if rng.chance(1, 3) => {
                backend.delete(&[id]).unwrap();
                model.deleted.insert(id);
                model.cut(id, 0);
            }
            4 | 5 => {
                let truncate_gen = known_gen;
                let req = ChunkWriteReq {
                    id,
                    index,
                    offset,
                    hole: len,
                    truncate_gen,
                    ..Default::default()
                };
                let punched = write(&*backend, &req, &[], wait);
                assert_eq!(punched.is_ok(), !model.deleted.contains(&id), "{punched:?}");
                let chunk = model.bytes.entry((id, index)).or_default();
                chunk.retain(|at, _| !(offset..offset + len).contains(at));
            }
            6..12 => {
                let mut data = vec![0; len as usize];
                rng.fill(&mut data);
                let is_stale = known_gen > 0 && rng.chance(1, 5);
                let truncate_gen = known_gen - u64::from(is_stale);
                let req = ChunkWriteReq { id, index, offset, truncate_gen, ..Default::default() };
                let written = write(&*backend, &req, &data, wait);
                if is_stale || model.deleted.contains(&id) {
                    assert_eq!(written.unwrap_err().errno(), Errno::ESTALE);
                    continue;
                }
                model.written.push(written.unwrap());
                let chunk = model.bytes.entry((id, index)).or_default();
                chunk.extend((offset..).zip(data));
            }
            _ => model.compare_read(&*backend, (id, index), offset, len, wait),
        }
    }
    drop(backend);
    model.compare_all(&*subject.open(), STEPS as u64 / 100 + FILES);
}

impl Model {
    fn cut(&mut self, id: InodeId, cut: u64) {
        for ((_, index), chunk) in self.bytes.range_mut((id, 0)..=(id, u64::MAX)) {
            chunk.retain(|at, _| index * CHUNK_BYTES + at < cut);
        }
    }

    fn compare_read(
        &self,
        backend: &dyn ChunkBackend,
        (id, index): (InodeId, u64),
        offset: u64,
        len: u64,
        wait: WaitPolicy,
    ) {
        let req = ChunkReadReq { id, index, offset, len, ..ChunkReadReq::default() };
        let (data, reply) = match backend.read(&req, wait) {
            Err(error) if is_would_wait(&error) && wait == WaitPolicy::Never => {
                backend.read(&req, WaitPolicy::May)
            }
            read => read,
        }
        .unwrap();
        let chunk = self.bytes.get(&(id, index));
        let chunk_end = chunk.and_then(|chunk| chunk.last_key_value()).map_or(0, |(at, _)| at + 1);
        let end = (offset + len).min(chunk_end).max(offset);
        let byte = |at| chunk.and_then(|chunk| chunk.get(&at));
        let wanted: Vec<u8> = (offset..end).map(|at| byte(at).copied().unwrap_or(0)).collect();
        assert!(data == wanted, "bytes {offset}..{end} of chunk {index} of {id}");
        assert_eq!(reply.crc, crc32c::crc32c(&wanted));
        assert_eq!(reply.holes, (offset..end).any(|at| byte(at).is_none()));
    }

    fn compare_all(&self, backend: &dyn ChunkBackend, last_id: InodeId) {
        let mut listed = Vec::new();
        let mut after = (0, 0);
        loop {
            let (after_id, after_index) = after;
            let req = ChunkListReq { after_id, after_index, limit: 3, verify: true };
            let reply = backend.list(&req).unwrap();
            assert!(reply.chunks.iter().all(|chunk| chunk.problem.is_empty()));
            listed.extend(reply.chunks.iter().map(|chunk| (chunk.id, chunk.index, chunk.len)));
            if let Some(&(id, index, _)) = listed.last() {
                after = (id, index);
            }
            if reply.end {
                break;
            }
        }
        let there = self.bytes.iter().filter_map(|(&(id, index), chunk)| {
            chunk.last_key_value().map(|(at, _)| (id, index, at + 1))
        });
        assert_eq!(listed, there.collect::<Vec<_>>());
        let bytes: usize = self.bytes.values().map(BTreeMap::len).sum();
        let stat = backend.stat().unwrap();
        assert_eq!((stat.data_bytes, stat.chunks), (bytes as u64, listed.len() as u64));
        for id in 1..=last_id {
            (0..CHUNKS).for_each(|i| self.compare_read(backend, (id, i), 0, USED, WaitPolicy::May));
            self.compare_runs(backend, id);
        }
    }

    /// The runs of data that a seek finds are those that there are.
    fn compare_runs(&self, backend: &dyn ChunkBackend, id: InodeId) {
        let mut found = BTreeSet::new();
        let mut offset = 0;
        loop {
            let run = backend.seek(&ChunkSeekReq { id, offset }).unwrap();
            if run.end == 0 {
                break;
            }
            assert!(run.start >= offset && run.end > run.start, "{run:?} from {offset}");
            found.extend(run.start..run.end);
            offset = run.end;
        }
        let chunks = self.bytes.range((id, 0)..=(id, u64::MAX));
        let there = chunks
            .flat_map(|((_, index), chunk)| chunk.keys().map(move |at| index * CHUNK_BYTES + at));
        assert!(found.into_iter().eq(there), "inode {id}");
    }
}

fn what_is_impossible_is_refused(backend: &dyn ChunkBackend) {
    let errno = |req: ChunkWriteReq, data: &[u8]| {
        write(backend, &req, data, WaitPolicy::May).unwrap_err().errno()
    };
    let req = ChunkWriteReq { id: 1, ..ChunkWriteReq::default() };
    assert_eq!(errno(ChunkWriteReq { offset: CHUNK_BYTES, ..req.clone() }, b"x"), Errno::EINVAL);
    assert_eq!(errno(ChunkWriteReq { hole: CHUNK_BYTES + 1, ..req.clone() }, b""), Errno::EINVAL);
    assert_eq!(errno(ChunkWriteReq { hole: 1, ..req.clone() }, b"x"), Errno::EINVAL);
    assert_eq!(errno(ChunkWriteReq { index: u64::MAX, ..req.clone() }, b"x"), Errno::EINVAL);
    let damaged = ChunkWriteReq { crc: 1, ..req };
    let error = backend.write(&damaged, b"data", WaitPolicy::May).unwrap_err();
    assert!(error.is(Class::Retry), "{error}");
    let nothing = ChunkReadReq { id: 1, len: 10, ..ChunkReadReq::default() };
    assert!(backend.read(&nothing, WaitPolicy::May).unwrap().0.is_empty());
}

fn put(backend: &dyn ChunkBackend, id: InodeId, data: &[u8]) -> Result<()> {
    let req = ChunkWriteReq { id, ..ChunkWriteReq::default() };
    write(backend, &req, data, WaitPolicy::May).map(|_| ())
}

fn get(backend: &dyn ChunkBackend, id: InodeId) -> Result<Vec<u8>> {
    let req = ChunkReadReq { id, len: CHUNK_BYTES, ..ChunkReadReq::default() };
    backend.read(&req, WaitPolicy::May).map(|(data, _)| data.to_vec())
}

/// Bytes that no other inode has.
fn content(id: InodeId) -> Vec<u8> {
    let mut data = vec![0; USED as usize];
    Rng::seeded(id).fill(&mut data);
    data
}

fn without_room(subject: &impl BackendUnderTest) {
    let backend = subject.open();
    (1..3).for_each(|id| put(&*backend, id, &content(id)).unwrap());
    subject.set_full(true);
    let refused = (3..10_000).find(|id| match put(&*backend, *id, &content(*id)) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
            true
        }
    });
    let refused = refused.expect("it gets full");
    backend.truncate(&ChunkTruncateReq { id: 1, truncate_gen: 1, cut: 10 }).unwrap();
    backend.delete(&[2]).unwrap();
    backend.flush().unwrap();
    let is_whole = |id: InodeId| get(&*backend, id).unwrap() == content(id);
    assert!((3..refused).all(is_whole));
    assert_eq!(get(&*backend, 1).unwrap(), content(1)[..10]);
    assert!(get(&*backend, 2).unwrap().is_empty() && get(&*backend, refused).unwrap().is_empty());
    subject.set_full(false);
    put(&*backend, refused, &content(refused)).unwrap();
    assert!(is_whole(refused));
}

fn damage_is_told(subject: &impl BackendUnderTest) {
    let backend = subject.open();
    (1..4).for_each(|id| put(&*backend, id, &content(id)).unwrap());
    backend.flush().unwrap();
    subject.damage(2, &content(2));
    assert_eq!(get(&*backend, 2).unwrap_err().errno(), Errno::EIO);
    assert!([1, 3].into_iter().all(|id| get(&*backend, id).unwrap() == content(id)));
    let all = ChunkListReq { limit: 10, verify: true, ..ChunkListReq::default() };
    let listed = backend.list(&all).unwrap().chunks;
    let bad: Vec<InodeId> =
        listed.iter().filter(|chunk| !chunk.problem.is_empty()).map(|chunk| chunk.id).collect();
    assert_eq!((listed.len(), &bad[..]), (3, &[2][..]));
    put(&*backend, 2, &content(4)).unwrap();
    assert_eq!(get(&*backend, 2).unwrap(), content(4), "what is written anew is sound");
}
