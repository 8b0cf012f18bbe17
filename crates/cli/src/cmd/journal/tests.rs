//! A journal that an engine has written is read, copied and repaired.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use clap::Parser;
use saker_engine::embedded::{EmbeddedOptions, Sizes};
use saker_engine::{AnyEngine, Engine, EngineSource, Identity, Recovered};
use saker_runtime::fs::{Dir, RealDir};
use saker_types::change::{Change, Record, What, entry_key};
use saker_types::wire::Row;
use saker_types::{Inode, Key};

use super::{Args, run};

const CLUSTER: [u8; 16] = [9; 16];

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn journal(line: &[&str]) -> Result<u8, String> {
    let line = Line::try_parse_from([&["journal"], line].concat()).map_err(|e| e.to_string())?;
    run(&line.args).map_err(|failure| failure.to_string())
}

fn engine(dir: &Path, facts: &mut Vec<What>) -> Result<AnyEngine, String> {
    let dir: Arc<dyn Dir> = Arc::new(RealDir::open(dir).unwrap());
    let sizes = Sizes { overlay_bytes: 1 << 20, replay_bytes: 1 << 20, segment_bytes: 1 << 16 };
    let options = EmbeddedOptions { journal: dir, table: None, sizes };
    let identity = Identity { cluster: CLUSTER, shard: 1 };
    let opened = EngineSource::Embedded(options).open(identity, &mut |found| {
        if let Recovered::Fact(fact) = found {
            facts.push(fact);
        }
        Ok(())
    });
    opened.map_err(|e| e.to_string())
}

/// A journal with a record for each of these facts.
fn made(dir: &Path, counts: &[i64]) -> PathBuf {
    std::fs::create_dir(dir).unwrap();
    let mut engine = engine(dir, &mut Vec::new()).unwrap();
    for count in counts {
        let change = Change { what: Some(What::Inodes(*count)) };
        engine.commit(&Record { changes: vec![change] });
        engine.flush().unwrap();
    }
    dir.to_owned()
}

fn facts(dir: &Path) -> Result<Vec<i64>, String> {
    let mut facts = Vec::new();
    engine(dir, &mut facts)?;
    let count = |fact| match fact {
        What::Inodes(count) => count,
        other => panic!("{other:?}"),
    };
    Ok(facts.into_iter().map(count).collect())
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_copy_says_the_same() {
    let tmp = tempfile::tempdir().unwrap();
    let from = made(&tmp.path().join("from"), &[1, 2, 3]);
    let (lines, copy, again) =
        (tmp.path().join("lines"), tmp.path().join("copy"), tmp.path().join("again"));
    assert_eq!(journal(&["inspect", &text(&from)]), Ok(0));
    assert_eq!(journal(&["inspect", "--json", "--records", &text(&from)]), Ok(0));
    assert_eq!(journal(&["export", &text(&from), "-o", &text(&lines)]), Ok(0));
    assert_eq!(journal(&["import", &text(&lines), &text(&copy)]), Ok(0));
    assert_eq!(facts(&copy), Ok(vec![1, 2, 3]));
    assert_eq!(journal(&["erase", &text(&from), &text(&again)]), Ok(0));
    assert_eq!(facts(&again), Ok(vec![1, 2, 3]));
    let error = journal(&["erase", &text(&from), &text(&again)]).unwrap_err();
    assert!(error.contains("exists"), "{error}");
}

#[test]
fn what_is_damaged_is_told_and_left_out() {
    let tmp = tempfile::tempdir().unwrap();
    let from = made(&tmp.path().join("from"), &[1, 2, 3]);
    let file = from.join("wal-0000000000000000");
    let mut data = std::fs::read(&file).unwrap();
    // The second record's payload: behind a header of 128 bytes, and of 21 for each record.
    let second = 128 + 21 + u32::from_le_bytes(data[128..132].try_into().unwrap()) as usize;
    data[second + 21] ^= 0xFF;
    std::fs::write(&file, &data).unwrap();
    assert!(facts(&from).is_err(), "the server refuses it");
    assert_eq!(journal(&["inspect", &text(&from)]), Ok(3));
    assert_eq!(std::fs::read(&file).unwrap(), data, "it stays as it is");
    let copy = tmp.path().join("copy");
    assert_eq!(journal(&["erase", &text(&from), &text(&copy)]), Ok(0));
    assert_eq!(facts(&copy), Ok(vec![1, 3]));
}

#[test]
fn records_are_erased_by_position_and_changes_by_inode() {
    let tmp = tempfile::tempdir().unwrap();
    let from = made(&tmp.path().join("from"), &[1, 2]);
    let row = |pid, name: &str, id| {
        let key = Key { pid, order: 4, name: name.as_bytes().to_vec() };
        let mut inode = Inode::default();
        (inode.attr.id, inode.attr.mode) = (id, 0o100_644);
        let value = Bytes::from(prost::Message::encode_to_vec(&inode));
        Change { what: Some(What::Put(Row { key: entry_key(&key), value })) }
    };
    let lines = tmp.path().join("lines");
    {
        let mut engine = engine(&from, &mut Vec::new()).unwrap();
        let changes = vec![row(5, "a", 6), row(7, "b", 8), row(7, "c", 9)];
        engine.commit(&Record { changes });
        engine.flush().unwrap();
    }
    let (one, two) = (tmp.path().join("one"), tmp.path().join("two"));
    assert_eq!(
        journal(&["erase", "--inode", "6", "--inode", "8", &text(&from), &text(&one)]),
        Ok(0)
    );
    assert_eq!(journal(&["export", &text(&one), "-o", &text(&lines)]), Ok(0));
    let exported = std::fs::read_to_string(&lines).unwrap();
    let has = |name: &str| exported.contains(&format!("\"name\":\"{name}\""));
    assert_eq!(["a", "b", "c"].map(has), [false, false, true], "{exported}");
    assert_eq!(journal(&["erase", "--lsn", "1-40", &text(&from), &text(&two)]), Ok(0));
    assert!(journal(&["erase", "--lsn", "x", &text(&from), &text(&two)]).is_err());
}

#[test]
fn what_is_no_journal_is_refused() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = text(tmp.path());
    let error = journal(&["inspect", &dir]).unwrap_err();
    assert!(error.contains("no journal"), "{error}");
    std::fs::write(tmp.path().join("wal-0000000000000000"), "something else").unwrap();
    assert_eq!(journal(&["inspect", &dir]), Ok(3));
    let lines = tmp.path().join("lines");
    std::fs::write(&lines, "{\"record\": {}}\n").unwrap();
    let error = journal(&["import", &text(&lines), &text(&tmp.path().join("to"))]).unwrap_err();
    assert!(error.contains("lines:1"), "{error}");
}
