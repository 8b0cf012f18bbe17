#![allow(clippy::unwrap_used)]
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use saker_engine::Engine;
use saker_engine::memory::MemoryStorage;
use saker_runtime::rand::Rng;
use saker_runtime::time::Time;
use saker_types::change::{Gone, StoredResult, What, entry_key, staged_key};
use saker_types::wire::{FileLock, FileLocks, StagedValue, Totals};
use saker_types::{FileKind, Inode, InodeId, Key, Locator, NodeId, ROOT, TxnId};

use super::*;
use crate::rows::new_attr;
use crate::testing::{map, open};

const SESSION: u64 = 9;

/// All rows but totals, and results; the inodes here.
#[derive(Debug, Default, PartialEq)]
struct Facts {
    rows: BTreeMap<Bytes, Bytes>,
    results: BTreeMap<(u64, u64), StoredResult>,
    inodes: i64,
    leases: usize,
}

fn facts(s: &Shard) -> Facts {
    let mut found = Facts { inodes: s.inode_count, leases: s.leases.len(), ..Facts::default() };
    s.engine
        .scan(&[0], &[0xFF], |key, value| {
            if key[0] != table::TOTALS {
                found.rows.insert(key.to_vec().into(), value.to_vec().into());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    let results = s.sessions.snapshot().filter(|result| result.seq > 0);
    found.results.extend(results.map(|result| ((result.session, result.seq), result)));
    found
}

/// What both have, which is nothing twice.
fn together(a: &Shard, b: &Shard) -> Facts {
    let (mut all, more) = (facts(a), facts(b));
    for (key, value) in more.rows {
        assert!(all.rows.insert(key.clone(), value).is_none(), "{key:?} is on both");
    }
    for (key, result) in more.results {
        assert!(all.results.insert(key, result).is_none(), "{key:?} is on both");
    }
    all.inodes += more.inodes;
    all.leases += more.leases;
    all
}

fn totals(s: &mut Shard, dirs: &[InodeId]) -> Vec<Totals> {
    dirs.iter().map(|dir| s.totals(*dir).unwrap()).collect()
}

fn new_file(s: &mut Shard, kind: FileKind) -> Inode {
    let id = s.new_id().unwrap();
    Inode { attr: new_attr(id, kind.bits() | 0o644, 0, 0, s.wall_ns()), ..Inode::default() }
}

fn key_of(s: &Shard, dir: InodeId, name: &str) -> (Key, Slot) {
    s.map.place(dir, name.as_bytes())
}

fn insert(s: &mut Shard, dir: InodeId, name: &str, inode: &Inode) -> Slot {
    let (key, slot) = key_of(s, dir, name);
    s.insert_entry(&key, inode.clone()).ok().unwrap();
    slot
}

/// Something of each kind, in random places. The directories.
fn fill(s: &mut Shard, seed: u64, things: usize) -> Vec<InodeId> {
    let mut rng = Rng::seeded(seed);
    let mut dirs = vec![ROOT];
    s.sessions.open(SESSION);
    s.log_change(What::SessionOpen(SESSION));
    for i in 0..things {
        let dir = dirs[rng.below(dirs.len() as u64) as usize];
        let name = format!("thing-{i}");
        let slot = s.map.slot_of(dir, name.as_bytes());
        let file = new_file(s, FileKind::Regular);
        let id = file.attr.id;
        let moved = Some(Locator::entry(dir, Bytes::from_static(b"x"), id));
        match rng.below(8) {
            0 => {
                let made = new_file(s, FileKind::Directory);
                insert(s, dir, &name, &made);
                dirs.push(made.attr.id);
            }
            1 => {
                let home = insert(s, dir, &name, &file);
                let reference = Inode { home_slot: Some(home.into()), ..file.clone() };
                s.update_entry(&key_of(s, dir, &name).0, reference.clone());
                s.put_attr_row(home, file);
                insert(s, dir, &format!("{name}-too"), &reference);
            }
            2 => s.put_orphan(slot, file),
            3 => s.put_gone(slot, id, &Gone { moved, ..Gone::default() }),
            4 => s.put_gone(slot, id, &Gone { moved, directory: true, ..Gone::default() }),
            5 => {
                let lock = FileLock { holder: 1 + id % 3, ..FileLock::default() };
                s.put_file_locks(id, &FileLocks { locks: vec![lock] });
                s.lock_leases.note(lock.holder, id, true, Time::ZERO);
            }
            6 => {
                let staged = StagedValue { row: Some(file), ..StagedValue::default() };
                let key = staged_key(7, 1, &entry_key(&key_of(s, dir, &name).0));
                s.put(key, staged.encode_to_vec().into());
            }
            _ => _ = insert(s, dir, &name, &file),
        }
        let body = Bytes::from(vec![i as u8; 1 + i % 90]);
        s.finish_mutation(SESSION, i as u64 + 1, Some(slot), Ok(body), Bytes::new());
        s.seal();
    }
    dirs
}

fn slots(s: &Shard) -> BTreeSet<Slot> {
    let all = facts(s);
    let of_row = |key: &[u8]| parse_staged_key(key).map_or(key.to_vec(), |(_, _, of)| of.to_vec());
    let of_key = |key: &Bytes| match parse_entry_key(&of_row(key)) {
        Some(key) => s.map.slot_of(key.pid, &key.name),
        None => parse_slot_key(key).unwrap().0,
    };
    let of_results = all.results.values().filter_map(|r| r.slot).map(Slot::from_wire);
    all.rows.keys().map(of_key).chain(of_results).collect()
}

/// Ships a slot; how many pieces that took. Each comes twice.
fn ship(a: &mut Shard, b: &mut Shard, slot: Slot) -> usize {
    let (mut from, mut pieces) = (Some(Cursor::start()), 0);
    while let Some(at) = from {
        let piece = a.export_slot(slot, &at).unwrap();
        b.import_slot(slot, &piece.changes).unwrap();
        b.import_slot(slot, &piece.changes).unwrap();
        b.seal();
        (from, pieces) = (piece.next, pieces + 1);
    }
    pieces
}

/// The switch, each side in one step.
fn switch(a: &mut Shard, b: &mut Shard, slot: Slot) {
    let map = Arc::new(a.map.with_slot_at(slot, 1));
    let shares = b.slot_shares(slot).unwrap();
    a.map = map.clone();
    a.give_up_slot(slot, &shares).unwrap();
    a.seal();
    b.map = map;
    b.adopt_slot(slot).unwrap();
    b.seal();
}

fn drop_all(s: &mut Shard, slot: Slot) {
    let mut from = Some(Cursor::start());
    while let Some(at) = from {
        from = s.drop_slot(slot, &at).unwrap();
        s.seal();
    }
}

#[test]
fn slots_are_the_same_where_they_have_gone_and_others_stay_as_they_were() {
    for seed in 0..3 {
        let (disk_a, disk_b) = (MemoryStorage::new(), MemoryStorage::new());
        let (a, b) = (open(0, &disk_a, &map()), open(1, &disk_b, &map()));
        let dirs = fill(&mut a.borrow_mut(), seed, 250);
        let before = facts(&a.borrow());
        let totals_before = totals(&mut a.borrow_mut(), &dirs);
        let all = slots(&a.borrow());
        for slot in all {
            let (mut a, mut b) = (a.borrow_mut(), b.borrow_mut());
            ship(&mut a, &mut b, slot);
            switch(&mut a, &mut b, slot);
            drop_all(&mut a, slot);
            assert_eq!(together(&a, &b), before, "slot {}", slot.0);
            let pairs = totals(&mut a, &dirs).into_iter().zip(totals(&mut b, &dirs));
            for ((a, b), before) in pairs.zip(&totals_before) {
                let (entries, subdirs) = (a.entries + b.entries, a.subdirs + b.subdirs);
                assert_eq!((entries, subdirs), (before.entries, before.subdirs));
                // The changes were made where they were made.
                assert_eq!((a.version, a.mtime_ns), (before.version, before.mtime_ns));
                assert_eq!((b.version, b.mtime_ns), (0, 0));
            }
        }
        assert_eq!(facts(&a.borrow()), Facts::default());
        assert!(a.borrow().lock_leases.next().is_none() && b.borrow().lock_leases.next().is_some());
        let map = b.borrow().map.clone();
        b.borrow_mut().engine.flush().unwrap();
        drop(b);
        assert_eq!(facts(&open(1, &disk_b, &map).borrow()), before, "after a restart");
    }
}

#[test]
fn a_large_slot_goes_in_pieces() {
    let (a, b) = (open(0, &MemoryStorage::new(), &map()), open(1, &MemoryStorage::new(), &map()));
    let (mut a, mut b) = (a.borrow_mut(), b.borrow_mut());
    let file = new_file(&mut a, FileKind::Regular);
    let slot = insert(&mut a, ROOT, "one of many", &file);
    for i in 0..LOOKED_AT_MAX + 10 {
        let file = new_file(&mut a, FileKind::Regular);
        insert(&mut a, ROOT, &format!("file-{i}"), &file);
    }
    a.sessions.open(SESSION);
    for seq in 1..=200 {
        a.finish_mutation(SESSION, seq, Some(slot), Ok(vec![1; 4096].into()), Bytes::new());
        let inline = Bytes::from(vec![2; 4096]);
        let linked = Inode { inline, ..new_file(&mut a, FileKind::Regular) };
        a.put_attr_row(slot, linked);
        a.count_inodes(1);
        a.seal();
    }
    let before = facts(&a);
    let in_results = 200 * 4096 / PIECE_BYTES;
    assert!(ship(&mut a, &mut b, slot) > 2 * in_results + 1);
    switch(&mut a, &mut b, slot);
    drop_all(&mut a, slot);
    assert_eq!(together(&a, &b), before);
    assert_eq!(facts(&b).results.len(), 200);
}

#[test]
fn what_has_come_and_is_not_taken_counts_for_nothing() {
    let (a, b) = (open(0, &MemoryStorage::new(), &map()), open(1, &MemoryStorage::new(), &map()));
    let (mut a, mut b) = (a.borrow_mut(), b.borrow_mut());
    let file = new_file(&mut a, FileKind::Regular);
    let slot = insert(&mut a, ROOT, "f", &file);
    let before = (facts(&b), b.totals(ROOT).unwrap());
    ship(&mut a, &mut b, slot);
    assert_eq!(b.totals(ROOT).unwrap(), Totals::default());
    assert_eq!(b.slot_shares(slot).unwrap().len(), 1);
    drop_all(&mut b, slot);
    assert_eq!((facts(&b), b.totals(ROOT).unwrap()), before);
}

#[test]
fn a_slot_in_use_is_not_shipped() {
    let (a, b) = (open(0, &MemoryStorage::new(), &map()), open(1, &MemoryStorage::new(), &map()));
    let (mut a, mut b) = (a.borrow_mut(), b.borrow_mut());
    let file = new_file(&mut a, FileKind::Regular);
    let slot = insert(&mut a, ROOT, "f", &file);
    let (key, _) = key_of(&a, ROOT, "f");
    let another = new_file(&mut a, FileKind::Regular);
    let other = insert(&mut a, ROOT, "g", &another);
    assert_ne!(slot, other);
    let errno = |e: Error| e.errno();
    let start = Cursor::start();
    let txn = TxnId { driver: NodeId::Coordinator, number: 4 };
    a.row_locks.lock_entry(&key, txn);
    assert_eq!(a.export_slot(slot, &start).map_err(errno), Err(Errno::EBUSY), "prepared");
    assert!(a.export_slot(other, &start).is_ok());
    a.row_locks.unlock_entry(&key);
    a.row_locks.lock_attr(slot, 5, txn);
    assert_eq!(a.export_slot(slot, &start).map_err(errno), Err(Errno::EBUSY));
    a.row_locks.unlock_attr(slot, 5);
    a.set_busy(file.attr.id);
    assert_eq!(a.export_slot(slot, &start).map_err(errno), Err(Errno::EBUSY), "held");
    a.clear_busy(file.attr.id);
    let piece = a.export_slot(slot, &start).unwrap();
    // What a shard owns is neither overwritten nor dropped.
    assert_eq!(a.import_slot(slot, &piece.changes).map_err(errno), Err(Errno::EBUSY));
    assert_eq!(a.drop_slot(slot, &start).map_err(errno), Err(Errno::EBUSY));
    assert_eq!(b.adopt_slot(slot).map_err(errno), Err(Errno::EBUSY));
    assert_eq!(b.import_slot(other, &piece.changes).map_err(errno), Err(Errno::EINVAL));
    assert_eq!(facts(&b), Facts::default());
}
