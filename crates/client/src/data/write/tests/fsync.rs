//! What an fsync flushes, and what it says of losses of power.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use saker_types::wire::Op;
use saker_types::{Errno, Unflushed};

use crate::fake::setup::{RW, Setup, pattern, setup};
use crate::fake::{FakeModel, RequestFault};
use crate::{File, OpenFlags};

#[test]
fn fsync_flushes_the_stores_before_the_owner_hears() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"small");
    t.run(file.fsync()).unwrap();
    assert_eq!(t.fake.log(), ["create", "fsync"]);
    t.write(&file, 0, &pattern(6_000, 1));
    t.run(file.fsync()).unwrap();
    let log = t.fake.log();
    assert_eq!(log, ["spill", "chunk_write", "chunk_write", "chunk_sync", "chunk_sync", "fsync"]);
    assert_eq!(t.fake.model().synced, [0, 1]);
    t.write(&file, 0, b"x");
    t.flush(&file);
    t.fake.log();
    t.run(file.fsync()).unwrap();
    assert_eq!(t.fake.log(), ["getattr", "chunk_sync", "chunk_sync"]);
}

#[test]
fn fsync_flushes_what_others_have_written() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, &pattern(6_000, 1));
    t.flush(&file);
    t.run(file.release());
    t.fake.log();
    let other = t.open("f", OpenFlags { write: false, ..RW });
    t.run(other.fsync()).unwrap();
    assert_eq!(t.fake.log(), ["open", "getattr", "chunk_sync", "chunk_sync"]);
    assert_eq!(t.fake.model().synced, [0, 1]);
}

/// All stores lose power, and with it what was not flushed.
fn lose_power(model: &mut FakeModel) {
    model.lost_epochs.push(model.epoch);
    model.epoch += 1;
}

/// fsync(2) fails with EIO, once.
fn fails_once(t: &Setup, file: &File) {
    assert_eq!(t.run(file.fsync()).unwrap_err().errno(), Errno::EIO);
    t.run(file.fsync()).unwrap();
    let row = t.fake.model().entry(&Bytes::from_static(b"f"), false);
    assert_eq!(row.unflushed, [], "told, and not told again");
}

#[test]
fn fsync_fails_for_what_was_lost_before_it() {
    for closes in [false, true] {
        let t = setup();
        t.fake.model().epoch = 1;
        let file = t.create("f");
        t.write(&file, 0, &pattern(600_000, 1));
        if closes {
            t.flush(&file);
        }
        t.run(file.fsync()).unwrap();
        lose_power(&mut t.fake.model());
        t.run(file.fsync()).unwrap();
        t.write(&file, 0, &pattern(600_000, 2));
        if closes {
            t.flush(&file);
            lose_power(&mut t.fake.model());
        } else {
            t.fake.fault(Op::ChunkSync, RequestFault::Before(Box::new(lose_power)));
        }
        fails_once(&t, &file);
        t.write(&file, 0, &pattern(600_000, 3));
        t.run(file.fsync()).unwrap();
    }
}

#[test]
fn fsync_fails_for_what_others_have_lost() {
    for (dirty, reopens) in [(false, false), (true, false), (false, true)] {
        let t = setup();
        t.fake.model().epoch = 1;
        let mut file = t.create("f");
        t.write(&file, 0, &pattern(6_000, 1));
        t.flush(&file);
        if reopens {
            t.run(file.release());
            file = t.open("f", RW);
        } else {
            t.run(file.fsync()).unwrap();
            let unflushed = (0..2).map(|store| Unflushed { store, epoch: 1, first: 1, more: 0 });
            t.fake.model().add_to("f", |row| row.unflushed = unflushed.collect());
        }
        lose_power(&mut t.fake.model());
        if dirty {
            t.write(&file, 0, b"S");
        }
        fails_once(&t, &file);
    }
}

#[test]
fn a_row_does_not_name_ever_more_that_is_not_flushed() {
    let t = setup();
    let file = t.create("f");
    // Of four epochs of both stores, and then of a fifth.
    for epoch in 1..6 {
        t.fake.model().epoch = epoch;
        t.write(&file, 0, &pattern(6_000, epoch as u8));
        t.flush(&file);
        assert_eq!(t.fake.model().synced.is_empty(), epoch < 5, "epoch {epoch}");
    }
    let row = t.fake.model().entry(&Bytes::from_static(b"f"), false);
    assert_eq!(row.unflushed, []);
}

#[test]
fn what_is_written_during_an_fsync_stays_to_be_flushed() {
    let t = setup();
    t.fake.model().epoch = 1;
    let file = t.create("f");
    t.write(&file, 0, &pattern(6_000, 1));
    t.flush(&file);
    let others = Unflushed { store: 0, epoch: 1, first: 1, more: 0 };
    let close = move |model: &mut FakeModel| model.add_to("f", |row| row.unflushed = vec![others]);
    t.fake.fault(Op::Fsync, RequestFault::Before(Box::new(close)));
    t.run(file.fsync()).unwrap();
    let row = t.fake.model().entry(&Bytes::from_static(b"f"), false);
    assert_eq!(row.unflushed, []);
    assert_eq!(t.fake.model().synced, [0, 1, 0, 1], "again, with what the owner then knew");
}

#[test]
fn fsync_flushes_what_others_have_written_since_the_open() {
    for dirty in [false, true] {
        let t = setup();
        let file = t.create("f");
        t.write(&file, 0, b"small");
        t.flush(&file);
        // Somebody else makes it larger, and closes it.
        t.fake.model().spill(&Bytes::from_static(b"f"));
        t.fake.model().add_to("f", |row| row.attr.size = 6_000);
        if dirty {
            t.write(&file, 0, b"S");
        }
        t.run(file.fsync()).unwrap();
        assert_eq!(t.fake.model().synced, [0, 1], "dirty: {dirty}");
    }
}
