//! Where a range is, on real files: whoever reads there gets what the store would have sent.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use saker_runtime::rand::Rng;
use saker_types::limits::{BLOCK_BYTES, CHUNK_BYTES};
use saker_types::wire::{ChunkPlace, ChunkReadReq, ChunkTruncateReq, ChunkWriteReq};

use super::disk::{Machine, Now};
use super::stress::open;
use crate::backend::segments::SegmentStore;

const CHUNK_USED: u64 = 200_000;

fn write(store: &SegmentStore, id: u64, truncate_gen: u64, offset: u64, data: &[u8]) {
    let (replicas, crc) = (vec![0], crc32c::crc32c(data));
    let req = ChunkWriteReq { id, offset, truncate_gen, replicas, crc, ..Default::default() };
    store.write_now(&req, data).unwrap();
}

fn at_place(dir: &str, place: &ChunkPlace) -> Vec<u8> {
    let mut data = vec![0; place.bytes as usize];
    let file = File::open(Path::new(dir).join(&place.file)).unwrap();
    file.read_exact_at(&mut data, place.pos).unwrap();
    match place.sum {
        Some(sum) => assert!(crc32c::crc32c(&data) == sum && place.sums.is_empty()),
        None => {
            assert!(data.chunks(BLOCK_BYTES).map(crc32c::crc32c).eq(place.sums.iter().copied()))
        }
    }
    data[place.skip as usize..][..place.len as usize].to_vec()
}

#[test]
fn a_place_holds_what_a_read_returns() {
    let path = tempfile::tempdir().unwrap();
    let store = open(path.path());
    let mut holes = 0;
    let mut rng = Rng::seeded(1);
    let (mut told, mut several, mut whole, mut not) = (0, 0, 0, 0);
    for step in 0..3_000u64 {
        let (id, offset) = (1 + rng.below(4), rng.below(CHUNK_USED));
        let len = 1 + rng.below(CHUNK_USED - offset);
        match rng.below(20) {
            0 => {
                let req = ChunkTruncateReq { id, cut: offset, truncate_gen: step };
                // Older than what another step has set: refused, as it should be.
                let _ = store.truncate_now(&req);
            }
            1 => store.maintain(),
            2..8 => {
                // Some are all that there is of the chunk.
                let offset = if rng.chance(1, 6) { 0 } else { offset };
                let len = if offset == 0 { CHUNK_USED } else { len };
                let mut data = vec![0; len as usize];
                rng.fill(&mut data);
                write(&store, id, step, offset, &data);
            }
            _ => {
                let fetches = rng.chance(1, 2);
                let req = ChunkReadReq { id, index: 0, offset, len, machine: 1, fetches };
                let (data, reply) = store.read_now(&req).unwrap();
                holes += usize::from(reply.holes);
                assert!(!reply.holes || data.contains(&0));
                let Some(located) = store.locate_now(&req).unwrap() else {
                    not += 1;
                    continue;
                };
                assert!(!reply.holes, "step {step}");
                let dir = located.dir.unwrap().path;
                let there: Vec<u8> =
                    located.places.iter().flat_map(|place| at_place(&dir, place)).collect();
                assert!(there == data, "step {step}");
                told += 1;
                several += usize::from(located.places.len() > 1);
                whole += located.places.iter().filter(|place| place.sum.is_some()).count();
            }
        }
    }
    let enough = told > 100 && several > 100 && whole > 100 && not > 50 && holes > 50;
    assert!(enough, "{told} {several} {whole} {not} {holes}");
}

#[test]
fn what_nobody_else_can_open_has_no_place() {
    let store = Machine::new().open();
    write(&store, 1, 0, 0, &[7; 20_000]);
    let req =
        ChunkReadReq { id: 1, index: 0, offset: 0, len: CHUNK_BYTES, machine: 1, fetches: true };
    assert!(store.locate_now(&req).unwrap().is_none());
    assert_eq!(store.read_now(&req).unwrap().0.len(), 20_000);
}
