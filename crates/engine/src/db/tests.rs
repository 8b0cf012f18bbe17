#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use saker_runtime::fs::{Fault, FaultDir, FileOp, MemDir};
use saker_runtime::rand::Rng;

use super::*;
use crate::journal::{Journal, JournalConfig, JournalRecordKind, Lsn};
use crate::table::{EmbeddedConfig, EmbeddedTable, Table};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn rows(db: &Db, start: &[u8], end: &[u8], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    db.scan(start, end, |key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        if rows.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    rows
}

fn check(db: &Db, model: &Model, rng: &mut Rng) {
    let all: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_eq!(rows(db, b"\0", b"\xff\xff", usize::MAX), all);
    let (start, end) = (random_key(rng), random_key(rng));
    let limit = 1 + rng.below(20) as usize;
    let part = all.iter().filter(|(key, _)| (&start..&end).contains(&key)).take(limit);
    assert_eq!(rows(db, &start, &end, limit), part.cloned().collect::<Vec<_>>());
    for _ in 0..5 {
        let key = random_key(rng);
        assert_eq!(db.get(&key).unwrap().as_deref(), model.get(&key).map(|value| &value[..]));
    }
}

fn random_key(rng: &mut Rng) -> Vec<u8> {
    let len = 1 + rng.below(3) as usize;
    (0..len).map(|_| b'a' + rng.below(5) as u8).collect()
}

/// A few changes, made up anew each time. No value is ever used twice.
fn random_changes(rng: &mut Rng, serial: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let count = 1 + rng.below(6);
    let change = |n| (random_key(rng), rng.chance(2, 3).then(|| format!("{serial}.{n}").into()));
    (0..count).map(change).collect()
}

fn apply(db: &mut Db, changes: &[(Vec<u8>, Option<Vec<u8>>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => db.put(key, &value.clone().into()),
            None => db.delete(key),
        }
    }
}

fn apply_model(model: &mut Model, changes: &[(Vec<u8>, Option<Vec<u8>>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
}

fn against_a_model(table: Arc<dyn Table>, rounds: u64) {
    let mut db = Db::open(table.clone()).unwrap();
    let (mut model, mut rng, mut checkpoint) = (Model::new(), Rng::seeded(5), None);
    for round in 0..rounds {
        let changes = random_changes(&mut rng, round);
        apply(&mut db, &changes);
        apply_model(&mut model, &changes);
        match (rng.below(12), checkpoint.take()) {
            (0, None) => checkpoint = Some(db.checkpoint_begin(round)),
            (1, Some(running)) => {
                let result = Checkpoint::run(running);
                check(&db, &model, &mut rng);
                db.checkpoint_finish(result).unwrap();
            }
            (_, unfinished) => checkpoint = unfinished,
        }
        check(&db, &model, &mut rng);
    }
    if let Some(checkpoint) = checkpoint {
        db.checkpoint_finish(checkpoint.run()).unwrap();
    }
    let checkpoint = db.checkpoint_begin(rounds);
    db.checkpoint_finish(checkpoint.run()).unwrap();
    let db = Db::open(table).unwrap();
    assert_eq!(db.marker(), Some(rounds));
    check(&db, &model, &mut rng);
}

#[test]
fn reads_see_overlay_then_frozen_then_table() {
    against_a_model(open_table(&MemDir::new()).unwrap(), 2000);
    let dir = tempfile::tempdir().unwrap();
    let table = EmbeddedTable::open(dir.path(), &EmbeddedConfig::default()).unwrap();
    against_a_model(Arc::new(table), 300);
}

#[test]
fn overlay_bytes_follow_what_is_in_it() {
    let mut db = Db::open(open_table(&MemDir::new()).unwrap()).unwrap();
    assert_eq!((db.overlay_bytes(), db.marker()), (0, None));
    db.put(&[1; 10], &vec![0; 100].into());
    let one = db.overlay_bytes();
    assert!((110..=400).contains(&one), "{one}");
    db.put(&[1; 10], &vec![0; 200].into());
    // The first value lies among others, until the checkpoint.
    assert_eq!(db.overlay_bytes(), one + 200);
    db.delete(&[1; 10]);
    assert_eq!(db.overlay_bytes(), one);
    let checkpoint = db.checkpoint_begin(0);
    assert_eq!((db.overlay_bytes(), db.frozen_bytes()), (0, one));
    db.checkpoint_finish(checkpoint.run()).unwrap();
    assert_eq!((db.overlay_bytes(), db.frozen_bytes()), (0, 0));
}

#[test]
#[should_panic(expected = "the key")]
fn the_engines_own_keys_cannot_be_written() {
    Db::open(open_table(&MemDir::new()).unwrap())
        .unwrap()
        .put(MARKER_KEY, &Bytes::from_static(b"1"));
}

/// A machine that dies at a point: the journal's directory and the table count together.
#[derive(Clone)]
struct Death {
    calls: Arc<AtomicU64>,
    at: u64,
}

impl Death {
    /// Whether this call is the last to take effect, or comes too late.
    fn strikes(&self) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst) >= self.at
    }

    fn is_past(&self) -> bool {
        self.calls.load(Ordering::SeqCst) > self.at
    }

    fn dir(&self, disk: &MemDir) -> Arc<dyn saker_runtime::fs::Dir> {
        let death = self.clone();
        let script = move |op: &FileOp<'_>| match (death.is_past(), op.kind.mutates()) {
            (true, _) => Fault::Fail(5),
            (false, true) if death.strikes() => Fault::FailAfter(5),
            (false, _) => Fault::None,
        };
        Arc::new(FaultDir::new(Arc::new(disk.clone()), Box::new(script)))
    }
}

const CONFIG: JournalConfig = JournalConfig { uuid: [1; 16], shard: 0, segment_bytes: 8192 };
const OVERLAY_BYTES_MAX: usize = 6000;

/// A record: each change as key, 0 and, if the row is not deleted, the value, each change ended
/// by a newline.
fn encode(changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<u8> {
    let line = |(key, value): &(Vec<u8>, Option<Vec<u8>>)| match value {
        Some(value) => [&key[..], b"=", value, b"\n"].concat(),
        None => [&key[..], b"\n"].concat(),
    };
    changes.iter().flat_map(line).collect()
}

fn replay(db: &mut Db, record: &[u8]) {
    for line in record.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        match line.iter().position(|&byte| byte == b'=') {
            Some(at) => db.put(&line[..at], &Bytes::copy_from_slice(&line[at + 1..])),
            None => db.delete(line),
        }
    }
}

/// A shard as it uses the engine, with what an observer knows of it.
#[derive(Default)]
struct Observed {
    /// The model after each record, by the record's LSN.
    states: BTreeMap<Lsn, Model>,
    model: Model,
    acknowledged: Lsn,
    checkpoints: u64,
}

type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn open_table(disk: &dyn saker_runtime::fs::Dir) -> Result<Arc<EmbeddedTable>> {
    let config = EmbeddedConfig { merge_threads: 0, ..EmbeddedConfig::default() };
    Ok(Arc::new(EmbeddedTable::open_in(disk.sub_dir("table")?, &config)?))
}

fn open_shard(disk: &dyn saker_runtime::fs::Dir) -> Outcome<(Journal, Db)> {
    let mut db = Db::open(open_table(disk)?)?;
    let journal = disk.sub_dir("journal")?;
    let journal = Journal::open(journal, CONFIG, db.replay_from(), &mut |_, kind, payload| {
        if kind == JournalRecordKind::Changes {
            replay(&mut db, payload);
        }
        Ok(())
    })?;
    Ok((journal, db))
}

fn run_shard(disk: &dyn saker_runtime::fs::Dir, seen: &mut Observed) -> Outcome<()> {
    let (mut journal, mut db) = open_shard(disk)?;
    let mut rng = Rng::seeded(11);
    let mut running: Option<(Checkpoint, u64, u64)> = None;
    for round in 0..150 {
        let changes = random_changes(&mut rng, round);
        let lsn = journal.append(JournalRecordKind::Changes, &encode(&changes));
        apply(&mut db, &changes);
        apply_model(&mut seen.model, &changes);
        seen.states.insert(lsn, seen.model.clone());
        if rng.chance(1, 3) {
            continue; // Two batches in one flush.
        }
        journal.flush()?;
        seen.acknowledged = journal.durable();
        if running.is_none() && db.overlay_bytes() > OVERLAY_BYTES_MAX {
            // Its snapshot record is a place where a replay may end, too.
            let snapshot = [0; 16];
            let lsn = journal.appended() + snapshot.len() as u64 + 21;
            seen.states.insert(lsn, seen.model.clone());
            let segment = journal.rotate(&snapshot)?;
            running = Some((db.checkpoint_begin(segment), segment, round + 4));
        }
        if let Some((checkpoint, segment, _)) = running.take_if(|(_, _, until)| *until < round) {
            db.checkpoint_finish(checkpoint.run())?;
            journal.trim(segment)?;
            seen.checkpoints += 1;
        }
    }
    Ok(())
}

#[test]
fn a_crash_at_any_point_of_the_checkpoint_protocol_loses_nothing_acknowledged() {
    let mut rng = Rng::seeded(1);
    for at in 0.. {
        let disk = MemDir::new();
        let death = Death { calls: Arc::default(), at };
        let mut seen = Observed::default();
        seen.states.insert(0, Model::new());
        let survived = run_shard(&*death.dir(&disk), &mut seen).is_ok();
        for seed in 0..6 {
            let (journal, db) = open_shard(&disk.crash(seed)).unwrap();
            let context = format!("death at {at}, seed {seed}");
            assert!(journal.durable() >= seen.acknowledged, "{context}");
            let model = seen.states.get(&journal.durable());
            check(&db, model.unwrap_or_else(|| panic!("{context}")), &mut rng);
        }
        // Killed, started again, and then without power: what was replayed once stays.
        let durable = open_shard(&disk).unwrap().0.durable();
        for seed in 0..3 {
            let (journal, db) = open_shard(&disk.crash(seed)).unwrap();
            assert_eq!(journal.durable(), durable, "killed at {at}, power lost with seed {seed}");
            check(&db, &seen.states[&durable], &mut rng);
        }
        if survived {
            assert!(seen.checkpoints >= 3, "{}", seen.checkpoints);
            assert!(at > 300, "{at}");
            break;
        }
    }
}

#[test]
fn a_failed_checkpoint_keeps_the_rows_for_the_next() {
    let disk = MemDir::new();
    // The write of the rows fails: before it the file was made.
    let death = Death { calls: Arc::default(), at: 3 };
    let mut db = Db::open(open_table(&*death.dir(&disk)).unwrap()).unwrap();
    for n in 0..5 {
        db.put(&[n], &vec![0].into());
    }
    let checkpoint = db.checkpoint_begin(1);
    assert!(db.checkpointing());
    db.put(&[0], &vec![1].into());
    db.delete(&[1]);
    let result = checkpoint.run();
    db.checkpoint_finish(result).unwrap_err();
    assert!(!db.checkpointing());
    assert_eq!(db.marker(), None);
    assert_eq!(db.get(&[4]).unwrap().unwrap(), [0][..]);

    db.table = open_table(&disk.crash(0)).unwrap();
    let before = db.overlay_bytes() + db.frozen_bytes();
    let checkpoint = db.checkpoint_begin(2);
    assert!(db.frozen_bytes() < before && db.frozen_bytes() > before / 2);
    db.checkpoint_finish(checkpoint.run()).unwrap();
    let db = Db::open(db.table).unwrap();
    assert_eq!(db.marker(), Some(2));
    let expected: Vec<_> = [0, 2, 3, 4].map(|n| (vec![n], vec![u8::from(n == 0)])).into();
    assert_eq!(rows(&db, b"\0", b"\xff", 99), expected);
}
