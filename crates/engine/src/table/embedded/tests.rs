#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use saker_runtime::fs::{Fault, FaultDir, MemDir, OpKind, fail_from, read_all};
use saker_runtime::rand::Rng;

use super::*;

type Model = BTreeMap<Bytes, Bytes>;

/// With a cache so small that blocks take the place of others.
const INLINE: EmbeddedConfig = EmbeddedConfig { merge_threads: 0, cache_bytes: 16 << 10 };
const KEYS: u64 = 400;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn open(dir: &MemDir) -> Result<EmbeddedTable> {
    EmbeddedTable::open_in(Arc::new(dir.clone()), &INLINE)
}

fn key(n: u64) -> Bytes {
    format!("{:03}{}", n / 2, if n.is_multiple_of(2) { "" } else { "/and more" }).into()
}

/// Some changes in order of keys: small rows, and now and then one of up to `bytes_max`.
fn changes(rng: &mut Rng, bytes_max: u64) -> Vec<RowWrite> {
    let share = 1 + rng.below(20);
    let chosen: Vec<u64> = (0..KEYS).filter(|_| rng.chance(1, share)).collect();
    let change = |n: u64| {
        let bytes = match rng.below(40) {
            0..3 => rng.below(bytes_max),
            5..15 => return (key(n), None),
            _ => rng.below(120),
        };
        let mut value = vec![0; bytes as usize];
        rng.fill(&mut value);
        (key(n), Some(value.into()))
    };
    let mut changes: Vec<RowWrite> = chosen.into_iter().map(change).collect();
    changes.sort();
    changes
}

fn apply(model: &mut Model, changes: &[RowWrite]) {
    for (key, value) in changes.iter().cloned() {
        match value {
            Some(value) => model.insert(key, value),
            None => model.remove(&key),
        };
    }
}

fn all_rows(table: &EmbeddedTable) -> Model {
    let mut rows = Model::new();
    table
        .scan(b"\0", b"\xff", &mut |key, value| {
            let row = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            assert!(rows.last_key_value().is_none_or(|(last, _)| *last < row.0));
            rows.insert(row.0, row.1);
            ControlFlow::Continue(())
        })
        .unwrap();
    rows
}

fn check(table: &EmbeddedTable, model: &Model, context: &str) {
    assert!(all_rows(table) == *model, "{context}");
    for n in 0..KEYS {
        assert!(table.get(&key(n)).unwrap() == model.get(&key(n)).cloned(), "{context}: {n}");
    }
    assert_eq!(table.get(b"000/and less").unwrap(), None);
    assert_eq!(table.get(b"zzz").unwrap(), None);
}

#[test]
fn a_table_is_as_a_map_through_merges_and_restarts() {
    let (dir, mut model) = (MemDir::new(), Model::new());
    for seed in 0..150 {
        let mut rng = Rng::seeded(seed);
        let table = open(&dir).unwrap();
        for _ in 0..1 + rng.below(3) {
            // Some longer than the last class of a bucket says.
            let bytes_max = if rng.chance(1, 10) { 5_000_000 } else { 9000 };
            let changes = changes(&mut rng, bytes_max);
            table.write(&mut changes.iter().cloned()).unwrap();
            apply(&mut model, &changes);
        }
        check(&table, &model, &format!("seed {seed}"));
        let (from, to) = (key(rng.below(KEYS)), key(rng.below(KEYS)));
        let mut seen = 0;
        table
            .scan(&from, &to, &mut |key, value| {
                assert!(from <= key && key < &to[..] && model[key] == value);
                seen += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        let expected = model.iter().filter(|(key, _)| (&from..&to).contains(key));
        assert_eq!(seen, expected.count());
        assert!(table.shared.all().len() < 12);
    }
}

#[test]
fn threads_that_merge_change_nothing() {
    let (dir, mut model) = (tempfile::tempdir().unwrap(), Model::new());
    let mut rng = Rng::seeded(3);
    let mut fewest = usize::MAX;
    for round in 0..10 {
        let table = EmbeddedTable::open(dir.path(), &EmbeddedConfig::default()).unwrap();
        for _ in 0..20 {
            let changes = changes(&mut rng, 9000);
            table.write(&mut changes.iter().cloned()).unwrap();
            apply(&mut model, &changes);
            let n = rng.below(KEYS);
            assert!(table.get(&key(n)).unwrap() == model.get(&key(n)).cloned());
        }
        check(&table, &model, &format!("round {round}"));
        fewest = fewest.min(table.shared.all().len());
    }
    assert!(fewest < 20, "nothing was merged: {fewest} runs");
}

/// Writes until something fails. Returns the model of what was acknowledged, and the changes
/// under way if one failed.
fn write_until_it_fails(dir: Arc<dyn Dir>) -> (Model, Option<Vec<RowWrite>>) {
    let mut model = Model::new();
    let mut rng = Rng::seeded(5);
    for restart in 0..3 {
        let Ok(table) = EmbeddedTable::open_in(dir.clone(), &INLINE) else {
            assert!(restart > 0 || model.is_empty());
            return (model, Some(Vec::new()));
        };
        for _ in 0..9 {
            let changes = changes(&mut rng, 9000);
            if table.write(&mut changes.iter().cloned()).is_err() {
                return (model, Some(changes));
            }
            apply(&mut model, &changes);
        }
    }
    (model, None)
}

#[test]
fn a_crash_at_any_point_keeps_what_was_acknowledged_and_all_or_nothing_of_the_last_write() {
    let mut outcomes = [0, 0];
    for count in 0.. {
        let disk = MemDir::new();
        let faults = FaultDir::new(Arc::new(disk.clone()), fail_from(count));
        let (model, under_way) = write_until_it_fails(Arc::new(faults));
        for seed in 0..4 {
            let disk = if seed < 2 { disk.crash(seed) } else { disk.crash_flipping(seed) };
            let context = format!("death at {count}, seed {seed}");
            let table = open(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
            let found = all_rows(&table);
            let mut other = model.clone();
            apply(&mut other, under_way.as_deref().unwrap_or_default());
            let is_other = found != model;
            outcomes[usize::from(is_other)] += 1;
            check(&table, if is_other { &other } else { &model }, &context);
            // What it left is no obstacle.
            let mut model = found;
            let mut rng = Rng::seeded(count);
            for _ in 0..5 {
                let changes = changes(&mut rng, 9000);
                table.write(&mut changes.iter().cloned()).unwrap();
                apply(&mut model, &changes);
            }
            drop(table);
            check(&open(&disk).unwrap(), &model, &context);
        }
        // Killed, started again, and then without power: what was seen once stays.
        let found = all_rows(&open(&disk).unwrap());
        for seed in 0..4 {
            let table = open(&disk.crash(seed));
            let table = table.unwrap_or_else(|error| panic!("death at {count}, {seed}: {error}"));
            check(&table, &found, &format!("killed at {count}, power lost with seed {seed}"));
        }
        if under_way.is_none() {
            assert!(count > 100, "{count} changes of the disk");
            break;
        }
    }
    assert!(outcomes.iter().all(|times| *times > 20), "{outcomes:?}");
}

/// A disk that fails now and then, in any way, and a table that goes on.
#[test]
fn errors_of_the_disk_change_nothing_that_was_acknowledged() {
    let mut failures = 0;
    for seed in 0..60 {
        let (disk, mut rng) = (MemDir::new(), Rng::seeded(seed));
        let mut faults = Rng::seeded(seed + 1000);
        let script = move |op: &saker_runtime::fs::FileOp<'_>| match faults.below(60) {
            0 if op.kind.mutates() => Fault::Fail(EIO),
            1 if op.kind.mutates() => Fault::FailAfter(EIO),
            2 if op.kind == OpKind::Write => Fault::Short(op.len / 2, ENOSPC),
            _ => Fault::None,
        };
        let faulty: Arc<dyn Dir> =
            Arc::new(FaultDir::new(Arc::new(disk.clone()), Box::new(script)));
        let mut model = Model::new();
        let mut last_failed = Vec::new();
        for life in 0..4 {
            let Ok(table) = EmbeddedTable::open_in(faulty.clone(), &INLINE) else { continue };
            let context = format!("seed {seed}, life {life}");
            let found = all_rows(&table);
            if found != model {
                // The last write before it failed, and yet was done.
                apply(&mut model, &last_failed);
            }
            check(&table, &model, &context);
            for _ in 0..12 {
                let changes = changes(&mut rng, 900);
                if table.write(&mut changes.iter().cloned()).is_ok() {
                    apply(&mut model, &changes);
                    last_failed.clear();
                } else {
                    last_failed = changes;
                    failures += 1;
                }
                check(&table, &model, &context);
            }
        }
        let mut other = model.clone();
        apply(&mut other, &last_failed);
        let table = open(&disk.crash(seed)).unwrap();
        let found = all_rows(&table);
        let expected = if found == model { &model } else { &other };
        check(&table, expected, &format!("seed {seed}, at the end"));
    }
    assert!(failures > 100, "{failures}");
}

#[test]
fn a_full_disk_stops_merging_but_not_the_table() {
    let disk = MemDir::new();
    let full = Arc::new(AtomicBool::new(true));
    let script_full = full.clone();
    // Of merged runs the names have two numbers.
    let script = move |op: &saker_runtime::fs::FileOp<'_>| {
        let merged = op.name.get(..16) != op.name.get(17..33);
        let fails = op.kind == OpKind::Write && merged && script_full.load(Ordering::Relaxed);
        if fails { Fault::Fail(ENOSPC) } else { Fault::None }
    };
    let dir = FaultDir::new(Arc::new(disk.clone()), Box::new(script));
    let table = EmbeddedTable::open_in(Arc::new(dir), &INLINE).unwrap();
    let (mut model, mut rng) = (Model::new(), Rng::seeded(8));
    for round in 0..40 {
        let changes = changes(&mut rng, 9000);
        table.write(&mut changes.iter().cloned()).unwrap();
        apply(&mut model, &changes);
        check(&table, &model, &format!("round {round}"));
        let runs = table.shared.all().len();
        if round == 9 {
            assert_eq!(runs, 10);
            full.store(false, Ordering::Relaxed);
        }
    }
    assert!(table.shared.all().len() < 8, "{} runs", table.shared.all().len());
    let names = disk.list().unwrap();
    assert_eq!(names.len(), table.shared.all().len(), "{names:?}");
}

fn copy_of(dir: &MemDir, flip: Option<(&str, u64)>) -> MemDir {
    let copy = MemDir::new();
    for name in dir.list().unwrap() {
        let mut bytes = read_all(&*dir.open(&name).unwrap()).unwrap();
        if let Some((_, at)) = flip.filter(|(flipped, _)| *flipped == name) {
            bytes[(at / 8) as usize] ^= 1 << (at % 8);
        }
        copy.create(&name).unwrap().write_at(0, &bytes).unwrap();
    }
    copy
}

/// Reads everything in order, or says why it cannot.
fn scan_everything(dir: &MemDir) -> Result<Model> {
    let mut rows = Model::new();
    open(dir)?.scan(b"\0", b"\xff", &mut |key, value| {
        rows.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        ControlFlow::Continue(())
    })?;
    Ok(rows)
}

/// Reads every row by its key, or says why it cannot.
fn get_everything(dir: &MemDir) -> Result<Model> {
    let table = open(dir)?;
    let mut rows = Model::new();
    for n in 0..20 {
        rows.extend(table.get(&key(n))?.map(|value| (key(n), value)));
    }
    Ok(rows)
}

#[test]
fn each_flipped_bit_is_noticed() {
    let dir = MemDir::new();
    let table = open(&dir).unwrap();
    let changes = (0..20).map(|n| (key(n), (n != 7).then(|| Bytes::from(vec![n as u8; 9]))));
    table.write(&mut changes.collect::<BTreeMap<_, _>>().into_iter()).unwrap();
    drop(table);
    let rows = scan_everything(&dir).unwrap();
    assert_eq!(rows.len(), 19);
    assert_eq!(get_everything(&dir).unwrap(), rows);
    let name = &dir.list().unwrap()[0];
    let file = dir.open(name).unwrap();
    // The first 8 bytes tell programs what it is; nothing is read from them.
    for bit in 64..file.len().unwrap() * 8 {
        let copy = copy_of(&dir, Some((name, bit)));
        for read in [scan_everything, get_everything] {
            match read(&copy) {
                Err(TableError::Damaged(what)) => assert!(what.contains(&name[..]), "{what}"),
                other => panic!("bit {bit}: {other:?}"),
            }
        }
    }
    for len in 0..file.len().unwrap() {
        let copy = copy_of(&dir, None);
        copy.open(name).unwrap().truncate(len).unwrap();
        assert!(matches!(open(&copy), Err(TableError::Damaged(_))), "{len} bytes");
    }
}

#[test]
fn what_is_no_table_or_only_a_part_of_one_is_refused() {
    let dir = MemDir::new();
    let table = open(&dir).unwrap();
    for n in 0..3 {
        table.write(&mut std::iter::once((key(n), Some(Bytes::new())))).unwrap();
    }
    drop(table);
    let names = dir.list().unwrap();
    assert_eq!(names.len(), 3);
    let why = |dir: &MemDir| open(dir).err().unwrap().to_string();
    for (name, missing) in [(&names[0], 1), (&names[1], 2)] {
        let copy = copy_of(&dir, None);
        copy.remove(name).unwrap();
        let expected = format!("the file of write {missing} is missing");
        assert!(why(&copy).ends_with(&expected), "{}", why(&copy));
    }
    let copy = copy_of(&dir, None);
    copy.create("0.jnl").unwrap();
    assert!(why(&copy).contains("/0.jnl: no table of this version"), "{}", why(&copy));
    open(&dir).unwrap();
}

#[test]
fn the_longest_key_is_taken_and_no_longer_one() {
    let dir = MemDir::new();
    let table = open(&dir).unwrap();
    let write =
        |bytes| table.write(&mut std::iter::once((vec![1; bytes].into(), Some("1".into()))));
    write(65_535).unwrap();
    assert!(matches!(write(65_536), Err(TableError::TooLong)));
    drop(table);
    let table = open(&dir).unwrap();
    assert_eq!(table.get(&[1; 65_535]).unwrap().unwrap(), "1");
    assert_eq!(table.get(&[1; 65_536]).unwrap(), None);
    assert_eq!(all_rows(&table).len(), 1);
    assert_eq!(dir.list().unwrap().len(), 1);
}

#[test]
fn what_no_older_run_has_need_not_be_known_to_be_deleted() {
    let table = open(&MemDir::new()).unwrap();
    let rows = |from: u64, value: Option<&'static str>| {
        let rows =
            (from..from + 100).map(move |n| (format!("{n:05}").into(), value.map(Bytes::from)));
        rows.collect::<Vec<RowWrite>>().into_iter()
    };
    // A large run that no merge takes along, and then rows that come and go, and one of it.
    let large = (0..20).flat_map(|n| rows(n * 100, Some("kept")));
    table.write(&mut large.collect::<Vec<_>>().into_iter()).unwrap();
    for n in 0..2 {
        table.write(&mut rows(5000 + n * 100, Some("going"))).unwrap();
        let gone = std::iter::once(("00007".into(), None)).chain(rows(5000 + n * 100, None));
        table.write(&mut gone.collect::<Vec<_>>().into_iter()).unwrap();
    }
    let all: Vec<u64> = table.shared.all().iter().map(|numbered| numbered.run.rows()).collect();
    assert_eq!(all, [1, 2000]);
    assert_eq!(table.get(b"00007").unwrap(), None);
    assert_eq!(table.get(b"05007").unwrap(), None);
    assert_eq!(all_rows(&table).len(), 1999);
}

#[test]
fn a_table_has_one_user() {
    let dir = tempfile::tempdir().unwrap();
    let table = EmbeddedTable::open(dir.path(), &EmbeddedConfig::default()).unwrap();
    let again = EmbeddedTable::open(dir.path(), &EmbeddedConfig::default());
    assert!(matches!(again, Err(TableError::InUse(_))));
    drop(table);
    EmbeddedTable::open(dir.path(), &EmbeddedConfig::default()).unwrap();
}

#[test]
fn the_runs_that_count_hold_each_write_once() {
    let spans = |pairs: &[(u64, u64)]| -> Vec<Span> {
        pairs.iter().map(|&(first, last)| Span { first, last }).collect()
    };
    let count = |pairs: &[(u64, u64)]| spans_that_count(&mut spans(pairs));
    assert_eq!(count(&[]), Ok(vec![]));
    assert_eq!(count(&[(1, 1), (2, 2), (3, 3)]), Ok(spans(&[(1, 1), (2, 2), (3, 3)])));
    assert_eq!(count(&[(1, 1), (2, 2), (1, 2), (3, 3)]), Ok(spans(&[(1, 2), (3, 3)])));
    // A merge whose name was not durable as it seemed, and a later one of others.
    let overlapping = [(1, 4), (1, 1), (2, 2), (3, 6), (7, 7)];
    assert_eq!(count(&overlapping), Ok(spans(&[(1, 1), (2, 2), (3, 6), (7, 7)])));
    assert_eq!(count(&[(2, 2), (3, 3)]), Err(1));
    assert_eq!(count(&[(1, 1), (3, 3)]), Err(2));
}

const TMPFS_MAGIC: i64 = 0x0102_1994;

#[test]
fn what_a_look_waits_for_can_be_fetched_before() {
    let dir = tempfile::tempdir().unwrap();
    let no_cache = EmbeddedConfig { cache_bytes: 0, ..EmbeddedConfig::default() };
    let table = EmbeddedTable::open(dir.path(), &no_cache).unwrap();
    let rows: Vec<RowWrite> =
        (0..KEYS).map(|n| (key(n), Some(vec![n as u8; 500].into()))).collect();
    table.write(&mut rows.iter().cloned()).unwrap();
    let run = Span { first: 1, last: 1 }.file_name();
    let file = std::fs::File::open(dir.path().join(run)).unwrap();
    let evict = || rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let right = |n: u64| assert_eq!(table.get(&key(n)).unwrap().unwrap(), vec![n as u8; 500]);

    let waits = |n: u64| {
        let before = table.reads().waited;
        right(n);
        table.reads().waited - before
    };
    assert_eq!(waits(300), 0, "it was just written");
    table.prefetch(b"not there");
    let fetched = (0..100).any(|_| {
        evict();
        table.prefetch(&key(300));
        // Real time: the kernel fetches meanwhile; another look follows if it has not.
        std::thread::sleep(std::time::Duration::from_millis(20));
        waits(300) == 0
    });
    assert!(fetched);
    // A file system in memory cannot evict.
    if rustix::fs::fstatfs(&file).unwrap().f_type == TMPFS_MAGIC {
        return;
    }
    // Rows within a page and across two.
    for n in 300..316 {
        let once = (0..100).any(|_| {
            evict();
            waits(n) == 1
        });
        assert!(once, "row {n} is on the disk only");
    }
    let absent = (0..100).any(|_| {
        evict();
        table.get_cached(&key(350)).unwrap().is_none()
    });
    assert!(absent, "who may not wait gets nothing");
    let there = (0..100).any(|_| {
        right(350);
        table.get_cached(&key(350)).unwrap() == Some(Some(vec![350u64 as u8; 500].into()))
    });
    assert!(there);
    assert_eq!(table.get_cached(b"not there").unwrap(), Some(None));
}

/// As with a bad sector: the table says so, and whoever has it open lives.
#[test]
fn what_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let table = EmbeddedTable::open(dir.path(), &INLINE).unwrap();
    table.write(&mut (0..KEYS).map(|n| (key(n), Some(vec![n as u8; 50].into())))).unwrap();
    let run = dir.path().join(Span { first: 1, last: 1 }.file_name());
    let run = std::fs::OpenOptions::new().write(true).open(run).unwrap();
    run.set_len(4096).unwrap();
    assert_eq!(table.get(&key(0)).unwrap().unwrap(), vec![0; 50]);
    for n in 100..KEYS {
        assert!(matches!(table.get(&key(n)), Err(TableError::Damaged(_))), "row {n}");
    }
}
