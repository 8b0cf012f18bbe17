//! A shard's use of the engine on real files, killed with SIGKILL over and over.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};

use saker_engine::embedded::{Embedded, EmbeddedOptions, Sizes};
use saker_engine::{Engine, Identity};
use saker_runtime::fs::RealDir;
use saker_runtime::time;
use saker_types::change::{Change, Record, What};
use saker_types::wire::Row;

const DIR_VARIABLE: &str = "SAKER_KILL_TEST_DIR";
const SIZES: Sizes =
    Sizes { overlay_bytes: 200_000, replay_bytes: 800_000, segment_bytes: 1 << 20 };
const ROWS: u64 = 3000;
const KILLS: u64 = 8;

/// Opens the engine; the number of the last change in it.
fn open(path: &Path) -> (Embedded, u64) {
    let home = EmbeddedOptions::in_dir(&RealDir::open(path).unwrap(), SIZES, 0).unwrap();
    let identity = Identity { cluster: [2; 16], shard: 0 };
    let engine = Embedded::open(home, identity, &mut |_| Ok(())).unwrap();
    let count = engine.load(b"count").unwrap();
    let count = count.map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
    (engine, count)
}

/// Change number `n` touches three rows; what it does depends on `n` alone.
fn change(engine: &mut Embedded, n: u64) {
    let put =
        |key: Vec<u8>, value: Vec<u8>| What::Put(Row { key: key.into(), value: value.into() });
    let mut changes = vec![put(row_key(n), row_value(n))];
    if n.is_multiple_of(5) {
        changes.push(What::Delete(row_key(n / 2).into()));
    }
    changes.push(put(b"count".to_vec(), n.to_le_bytes().to_vec()));
    for what in &changes {
        match what {
            What::Put(row) => engine.put(&row.key, &row.value),
            What::Delete(key) => engine.delete(key),
            _ => {}
        }
    }
    let changes = changes.into_iter().map(|what| Change { what: Some(what) }).collect();
    engine.commit(&Record { changes });
}

fn row_key(n: u64) -> Vec<u8> {
    format!("row {:05}", n.wrapping_mul(7919) % ROWS).into_bytes()
}

fn row_value(n: u64) -> Vec<u8> {
    format!("{n:0200}").into_bytes()
}

#[test]
#[ignore = "the process that the other test kills"]
fn writes_until_killed() {
    let path = std::env::var(DIR_VARIABLE).unwrap();
    let (mut engine, mut n) = open(Path::new(&path));
    loop {
        engine.begin_step(time::now());
        for _ in 0..20 {
            n += 1;
            change(&mut engine, n);
        }
        engine.flush().unwrap();
        // Past the test harness's capture.
        writeln!(std::io::stdout(), "{n}").unwrap();
        engine.end_step(time::now(), std::iter::empty).unwrap();
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

fn check(engine: &Embedded, count: u64, acknowledged: u64, context: &str) {
    assert!(count >= acknowledged, "{context}: {count} < {acknowledged}");
    let mut model = std::collections::BTreeMap::new();
    for n in 1..=count {
        model.insert(row_key(n), row_value(n));
        if n.is_multiple_of(5) {
            model.remove(&row_key(n / 2));
        }
    }
    let mut rows = model.iter();
    let each = |key: &[u8], value: &[u8]| {
        let (expected_key, expected) = rows.next().unwrap();
        assert_eq!((key, value), (&expected_key[..], &expected[..]), "{context}");
        ControlFlow::Continue(())
    };
    engine.scan(b"row", b"rox", each).unwrap();
    assert_eq!(rows.next(), None, "{context}");
}

/// The oldest segment of the journal: later after each checkpoint.
fn oldest_segment(path: &Path) -> String {
    let names = std::fs::read_dir(path.join("journal")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("wal-")).min().unwrap()
}

#[test]
fn nothing_acknowledged_is_lost_to_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut segments = std::collections::BTreeSet::new();
    let mut acknowledged = 0;
    for kill in 0..KILLS {
        acknowledged = acknowledged.max(run_and_kill(dir.path(), 100 + kill * 37));
        let (engine, count) = open(dir.path());
        check(&engine, count, acknowledged, &format!("kill {kill}"));
        segments.insert(oldest_segment(dir.path()));
        acknowledged = count;
    }
    assert!(segments.len() > 3, "checkpoints between kills: {segments:?}");
}
