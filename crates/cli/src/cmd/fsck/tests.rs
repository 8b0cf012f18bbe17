//! The checks on made-up clusters: a sound one is found sound, each kind of damage is found.

use bytes::Bytes;
use prost::Message;
use saker_types::change::{Gone, entry_key, id_key, slot_key, staged_key, table};
use saker_types::placement::{ShardInfo, Slot, StoreInfo, initial_slots};
use saker_types::wire::{ChunkInfo, IdRange, Row, StagedValue, Totals};
use saker_types::{Attr, ClusterMap, Inode, InodeId, Locator, ROOT, ShardNo, StoreNo};

use super::check::{Look, check};
use super::chunks::{Chunks, Merge};
use super::problem::ProblemKind;
use super::rows::Rows;

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;

fn map() -> ClusterMap {
    ClusterMap {
        uuid: Bytes::from_static(&[7; 16]),
        hash_seed: 42,
        shards: vec![ShardInfo::default(); 3],
        stores: vec![StoreInfo::default(); 2],
        slots: initial_slots(3),
        replicas: 2,
        ..Default::default()
    }
}

fn attr(id: InodeId, mode: u32) -> Attr {
    Attr { id, mode, nlink: 1, ..Default::default() }
}

fn inode(attr: Attr) -> Inode {
    Inode { attr, ..Default::default() }
}

/// Rows by shard, and chunks.
struct World {
    map: ClusterMap,
    rows: Vec<Vec<Row>>,
    chunks: Vec<(StoreNo, ChunkInfo)>,
    given: Vec<IdRange>,
}

/// Key of a row of a slot; slot n is shard n's.
fn in_slot(table: u8, slot: u16, id: InodeId) -> Bytes {
    slot_key(table, Slot(slot), id)
}

impl World {
    fn put(&mut self, shard: ShardNo, key: Bytes, value: Vec<u8>) {
        let rows = &mut self.rows[usize::from(shard)];
        rows.retain(|row| row.key != key);
        rows.push(Row { key, value: value.into() });
        rows.sort_by(|a, b| a.key.cmp(&b.key));
    }

    fn entry(&mut self, pid: InodeId, name: &str, inode: &Inode) {
        let shard = self.map.owner(pid, name.as_bytes());
        let key = entry_key(&self.map.key(pid, name.as_bytes()));
        self.put(shard, key, inode.encode_to_vec());
        if pid != 0 {
            let key = id_key(table::TOTALS, pid);
            let rows = &self.rows[usize::from(shard)];
            let old = rows.iter().find(|row| row.key == key).map(|row| row.value.clone());
            let mut totals = Totals::decode(old.unwrap_or_default()).unwrap();
            totals.entries += 1;
            totals.subdirs += u64::from(inode.attr.is_dir());
            self.put(shard, key, totals.encode_to_vec());
        }
    }

    fn remove(&mut self, table: u8, id: InodeId) {
        for rows in &mut self.rows {
            rows.retain(|row| row.key[0] != table || !row.key.ends_with(&id.to_be_bytes()));
        }
    }

    fn chunk(&mut self, id: InodeId, index: u64) {
        for store in [0, 1] {
            let info = ChunkInfo { id, index, len: 9, ..ChunkInfo::default() };
            self.chunks.push((store, info));
        }
    }

    /// `/a` (10) with file `f` (11, 5 MiB in chunks), a file with two names (12), an orphan (13).
    fn sound() -> World {
        let (chunks, given) = (Vec::new(), Vec::new());
        let mut world = World { map: map(), rows: vec![Vec::new(); 3], chunks, given };
        world.entry(0, "", &inode(attr(ROOT, DIR)));
        world.entry(ROOT, "a", &inode(attr(10, DIR)));
        let file = Attr { size: 5 << 20, chunked: true, ..attr(11, FILE) };
        world.entry(10, "f", &inode(file));
        world.chunk(11, 0);
        world.chunk(11, 1);
        let slot = u32::from(world.map.slot_of(1, b"x"));
        let reference = Inode { home_slot: Some(slot), ..inode(attr(12, FILE)) };
        world.entry(10, "x", &reference);
        world.entry(ROOT, "y", &reference);
        let linked = inode(Attr { nlink: 2, ..attr(12, FILE) });
        world.put(
            world.map.shard_of_slot(Slot::from_wire(slot)),
            slot_key(table::ATTR, Slot::from_wire(slot), 12),
            linked.encode_to_vec(),
        );
        let orphan = Some(inode(Attr { chunked: true, ..attr(13, FILE) }));
        let gone = Gone { orphan, ..Gone::default() };
        world.put(0, in_slot(table::GONE, 0, 13), gone.encode_to_vec());
        world
    }

    fn look(&self, strict: bool) -> Look {
        let mut rows = Rows::default();
        for (shard, of_shard) in (0..).zip(&self.rows) {
            let mut part = Rows::default();
            of_shard.iter().for_each(|row| part.add(&self.map, shard, row));
            rows.append(part);
        }
        let mut merge = Merge::of([0, 1]);
        for store in [0, 1] {
            let mine = self.chunks.iter().filter(|(s, _)| *s == store);
            let mut mine: Vec<ChunkInfo> = mine.map(|(_, info)| info.clone()).collect();
            mine.sort_by_key(|info| (info.id, info.index));
            merge.feed(store, mine, true);
        }
        let mut chunks = Chunks::default();
        while let Some(copies) = merge.next() {
            chunks.add(&self.map, &copies);
        }
        check(&self.map, rows, chunks, &self.given, strict)
    }

    fn kinds(&self) -> Vec<ProblemKind> {
        let mut kinds: Vec<ProblemKind> =
            self.look(true).problems.list.iter().map(|problem| problem.kind).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    }
}

#[test]
fn a_sound_cluster_is_sound() {
    let world = World::sound();
    let look = world.look(true);
    assert_eq!(look.problems.list, []);
    assert_eq!((look.inodes, look.chunks, look.under_replicated), (4, 2, 0));
}

#[test]
fn each_damage_is_found() {
    type Break = fn(&mut World);
    let cases: [(Break, &[ProblemKind]); 17] = [
        (|w| w.entry(99, "lost", &inode(attr(20, FILE))), &[ProblemKind::MissingParent]),
        (|w| w.entry(ROOT, "again", &inode(attr(10, DIR))), &[ProblemKind::DuplicateDirectory]),
        (|w| w.entry(10, "twin", &inode(attr(11, FILE))), &[ProblemKind::DuplicateInode]),
        (
            |w| {
                w.entry(31, "p", &inode(attr(30, DIR)));
                w.entry(30, "q", &inode(attr(31, DIR)));
            },
            &[ProblemKind::Unreachable],
        ),
        (|w| w.remove(table::ATTR, 12), &[ProblemKind::MissingAttributes]),
        (
            |w| w.put(1, in_slot(table::ATTR, 1, 40), inode(attr(40, FILE)).encode_to_vec()),
            &[ProblemKind::StrayAttributes],
        ),
        (
            |w| {
                let reference = Inode { home_slot: Some(3), ..inode(attr(12, FILE)) };
                w.entry(10, "z", &reference);
            },
            &[ProblemKind::MissingAttributes],
        ),
        (
            |w| w.entry(ROOT, "two", &inode(Attr { nlink: 2, ..attr(21, FILE) })),
            &[ProblemKind::LinkCount],
        ),
        (|w| w.remove(table::TOTALS, 10), &[ProblemKind::WrongTotals]),
        (
            |w| {
                let totals = Totals { entries: 3, ..Default::default() };
                w.put(2, id_key(table::TOTALS, 77), totals.encode_to_vec());
            },
            &[ProblemKind::WrongTotals],
        ),
        (
            |w| {
                let row = inode(attr(11, FILE));
                let gone = Gone { orphan: Some(row), ..Gone::default() };
                w.put(0, in_slot(table::GONE, 0, 11), gone.encode_to_vec());
            },
            &[ProblemKind::LivingOrphan],
        ),
        (
            |w| w.put(0, in_slot(table::GONE, 0, 50), Gone::default().encode_to_vec()),
            &[ProblemKind::BadGoneRecord],
        ),
        (|w| w.chunk(60, 0), &[ProblemKind::LeakedChunks]),
        (|w| w.chunk(11, 2), &[ProblemKind::BeyondEnd]),
        (|w| w.chunks[0].1.problem = "checksum".into(), &[ProblemKind::BadChunk]),
        (|w| w.chunks[0].1.len = 8, &[ProblemKind::DifferentCopies]),
        (|w| w.put(0, Bytes::from_static(b"I12"), Vec::new()), &[ProblemKind::CorruptRow]),
    ];
    for (n, (damage, expected)) in cases.into_iter().enumerate() {
        let mut world = World::sound();
        damage(&mut world);
        assert_eq!(world.kinds(), expected, "case {n}");
    }
}

#[test]
fn a_row_on_the_wrong_shard_is_found() {
    let mut world = World::sound();
    let owner = world.map.owner(10, b"f");
    let key = entry_key(&world.map.key(10, b"f"));
    let rows = &mut world.rows[usize::from(owner)];
    let at = rows.iter().position(|row| row.key == key).unwrap();
    let row = rows.remove(at);
    world.put((owner + 1) % 3, row.key, row.value.to_vec());
    // Both shards' totals are wrong then, too.
    assert_eq!(world.kinds(), [ProblemKind::WrongShard, ProblemKind::WrongTotals]);
}

#[test]
fn a_missing_copy_is_counted_and_a_moved_one_told() {
    let mut world = World::sound();
    world.chunks.remove(0);
    assert_eq!(world.look(true).under_replicated, 1);
    world.map.replicas = 1;
    let kinds = world.kinds();
    assert_eq!(kinds, [ProblemKind::MisplacedChunk]);
}

#[test]
fn without_a_root_nothing_else_is_guessed() {
    let mut world = World::sound();
    for rows in &mut world.rows {
        rows.retain(|row| row.key != entry_key(&world.map.key(0, b"")));
    }
    assert_eq!(world.kinds(), [ProblemKind::NoRoot]);
}

#[test]
fn open_files_may_have_chunks_beyond_their_size() {
    let mut world = World::sound();
    world.chunk(11, 7);
    assert_eq!(world.look(false).problems.list, []);
}

#[test]
fn a_moved_record_is_no_problem() {
    let mut world = World::sound();
    let moved = Some(Locator::entry(10, Bytes::from_static(b"f"), 11));
    let gone = Gone { moved, ..Gone::default() };
    world.put(1, in_slot(table::GONE, 1, 11), gone.encode_to_vec());
    assert_eq!(world.kinds(), []);
}

#[test]
fn a_second_look_drops_what_it_does_not_see() {
    let mut world = World::sound();
    world.chunk(60, 0);
    let before = world.look(true).problems;
    world.chunk(61, 0);
    let mut after = world.look(true).problems;
    assert_eq!(after.list.len(), 2);
    after.keep_seen_before(&before);
    assert_eq!(after.list.len(), 1);
    let mut sound = World::sound().look(true).problems;
    sound.keep_seen_before(&before);
    assert_eq!(sound.list, []);
}

#[test]
fn lists_are_merged_in_order_as_they_come() {
    let info = |id, index| ChunkInfo { id, index, len: 1, ..ChunkInfo::default() };
    let mut merge = Merge::of([0, 1]);
    assert_eq!((merge.hungry(), merge.next()), (vec![0, 1], None));
    merge.feed(0, vec![info(1, 0), info(3, 0)], true);
    assert_eq!(merge.next(), None);
    merge.feed(1, vec![info(1, 0)], false);
    assert_eq!(merge.next().unwrap().len(), 2);
    assert_eq!(merge.hungry(), [1]);
    merge.feed(1, vec![info(2, 5)], true);
    let ids: Vec<InodeId> =
        std::iter::from_fn(|| merge.next()).map(|copies| copies[0].1.id).collect();
    assert_eq!(ids, [2, 3]);
}

#[test]
fn what_is_not_merged_yet_is_no_leak() {
    let mut world = World::sound();
    world.chunk(50, 0);
    world.chunk(60, 0);
    assert_eq!(world.kinds(), [ProblemKind::LeakedChunks]);
    // One is staged, the other one in the hands of the client that was given its number.
    let row = Some(inode(Attr { chunked: true, ..attr(50, FILE) }));
    let staged = StagedValue { row, ..StagedValue::default() };
    let key = entry_key(&world.map.key(10, b"new"));
    world.put(0, staged_key(7, 1, &key), staged.encode_to_vec());
    world.given = vec![IdRange { first: 55, count: 10 }];
    assert_eq!(world.kinds(), []);
    world.given = vec![IdRange { first: 61, count: 10 }];
    assert_eq!(world.kinds(), [ProblemKind::LeakedChunks]);
    world.put(0, Bytes::from_static(b"Mshort"), Vec::new());
    assert_eq!(world.kinds(), [ProblemKind::CorruptRow, ProblemKind::LeakedChunks]);
}
