//! A shard's use of the engine on real files, killed with SIGKILL over and over.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;

use saker_engine::{
    Checkpoint, Db, EmbeddedConfig, EmbeddedTable, Journal, JournalConfig, Kind, TableError,
};
use saker_runtime::fs::RealDir;

const DIR_VARIABLE: &str = "SAKER_KILL_TEST_DIR";
const OVERLAY_BYTES_MAX: usize = 200_000;
const ROWS: u64 = 3000;
const KILLS: u64 = 8;

fn open(path: &Path) -> (Journal, Db) {
    let table = EmbeddedTable::open(path.join("table"), &EmbeddedConfig::default()).unwrap();
    let mut db = Db::open(Arc::new(table)).unwrap();
    let dir = Arc::new(RealDir::open(path.join("journal")).unwrap());
    let config = JournalConfig { segment_bytes: 1 << 20, ..JournalConfig::new([2; 16], 0) };
    let journal = Journal::open(dir, config, db.replay_from(), &mut |_, kind, payload| {
        if kind == Kind::Changes {
            apply(&mut db, u64::from_le_bytes(payload.try_into()?));
        }
        Ok(())
    });
    (journal.unwrap(), db)
}

/// Change number `n` touches three rows; what it does depends on `n` alone.
fn apply(db: &mut Db, n: u64) {
    db.put(&row_key(n), &row_value(n).into());
    if n.is_multiple_of(5) {
        db.delete(&row_key(n / 2));
    }
    db.put(b"count", &n.to_le_bytes().to_vec().into());
}

fn row_key(n: u64) -> Vec<u8> {
    format!("row {:05}", n.wrapping_mul(7919) % ROWS).into_bytes()
}

fn row_value(n: u64) -> Vec<u8> {
    format!("{n:0200}").into_bytes()
}

fn count(db: &Db) -> u64 {
    let value = db.get(b"count").unwrap();
    value.map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()))
}

#[test]
#[ignore = "the process that the other test kills"]
fn writes_until_killed() {
    let path = std::env::var(DIR_VARIABLE).unwrap();
    let (mut journal, mut db) = open(Path::new(&path));
    let (to_thread, checkpoints) = channel::<Checkpoint>();
    let (results, finished) = channel::<Result<(), TableError>>();
    std::thread::spawn(move || {
        for checkpoint in checkpoints {
            results.send(checkpoint.run()).unwrap();
        }
    });
    let mut segment = 0;
    let mut n = count(&db);
    loop {
        for _ in 0..20 {
            n += 1;
            journal.append(Kind::Changes, &n.to_le_bytes());
            apply(&mut db, n);
        }
        journal.flush().unwrap();
        // Past the test harness's capture.
        writeln!(std::io::stdout(), "{n}").unwrap();
        if let Ok(result) = finished.try_recv() {
            db.checkpoint_finish(result).unwrap();
            journal.trim(segment).unwrap();
        }
        if !db.checkpointing() && db.overlay_bytes() > OVERLAY_BYTES_MAX {
            segment = journal.rotate(b"").unwrap();
            to_thread.send(db.checkpoint_begin(segment)).unwrap();
        }
    }
}

/// Runs the writer for so many acknowledgements, kills it, and returns the last change that it
/// acknowledged.
fn run_and_kill(path: &Path, acknowledgements: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "writes_until_killed", "--nocapture"])
        .env(DIR_VARIABLE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut last, mut seen) = (0, 0);
    let mut killed = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Ok(n) = line.parse::<u64>() else { continue };
        (last, seen) = (n, seen + 1);
        if seen >= acknowledgements && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the writer ended by itself");
    last
}

fn check(db: &Db, acknowledged: u64, context: &str) {
    let count = count(db);
    assert!(count >= acknowledged, "{context}: {count} < {acknowledged}");
    let mut model = std::collections::BTreeMap::new();
    for n in 1..=count {
        model.insert(row_key(n), row_value(n));
        if n.is_multiple_of(5) {
            model.remove(&row_key(n / 2));
        }
    }
    let mut rows = model.iter();
    db.scan(b"row", b"rox", |key, value| {
        let (expected_key, expected) = rows.next().unwrap();
        assert_eq!((key, value), (&expected_key[..], &expected[..]), "{context}");
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(rows.next(), None, "{context}");
}

#[test]
fn nothing_acknowledged_is_lost_to_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut markers = std::collections::BTreeSet::new();
    let mut acknowledged = 0;
    for kill in 0..KILLS {
        acknowledged = acknowledged.max(run_and_kill(dir.path(), 100 + kill * 37));
        let (journal, db) = open(dir.path());
        check(&db, acknowledged, &format!("kill {kill}"));
        markers.insert(db.marker());
        acknowledged = count(&db);
        drop(journal);
    }
    assert!(markers.len() > 3, "checkpoints between kills: {markers:?}");
}
