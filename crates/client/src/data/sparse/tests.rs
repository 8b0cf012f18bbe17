//! Holes, and room that is made.
#![allow(clippy::unwrap_used)]

use saker_types::Errno;
use saker_types::limits::FILE_BYTES_MAX;
use saker_types::wire::Op;

use crate::fake::RequestFault;
use crate::fake::setup::{RW, pattern, setup};
use crate::{Fallocate, OpenFlags};

/// A store that stands still is not a full one.
#[test]
fn fallocate_waits_for_stores_that_do_not_answer() {
    let t = setup();
    let file = t.create("f");
    let stores = t.fs.core.cluster.routes().map.stores.len();
    let lose_all = || (0..stores).for_each(|_| t.fake.fault(Op::StoreStat, RequestFault::Lost));
    let asked = || t.fake.log().iter().filter(|op| **op == "store_stat").count();
    asked();
    lose_all();
    t.run(file.fallocate(Fallocate::Grow, 0, 1 << 20)).unwrap();
    assert_eq!(asked(), 2 * stores);
    // What they said last counts.
    lose_all();
    t.run(file.fallocate(Fallocate::Grow, 0, 2 << 20)).unwrap();
    assert_eq!(asked(), stores);
    assert!(t.run(t.fs.statfs()).unwrap().capacity_bytes > 0);
    let too_much = file.fallocate(Fallocate::Grow, 0, FILE_BYTES_MAX);
    assert_eq!(t.run(too_much).unwrap_err().errno(), Errno::ENOSPC);
}

#[test]
fn ranges_are_cleared_in_rows_and_in_chunks() {
    let t = setup();
    let file = t.create("f");
    for len in [3_000, 9_000] {
        let mut model = pattern(len, 1);
        t.write(&file, 0, &model);
        let clear = |how, from: usize, len| {
            t.run(file.fallocate(how, from as u64, len as u64)).unwrap();
        };
        clear(Fallocate::Punch, 100, 50);
        model[100..150].fill(0);
        clear(Fallocate::ZeroKeepSize, len - 10, 20);
        model[len - 10..].fill(0);
        assert!(t.content("f") == model);
        clear(Fallocate::Zero, len - 20, 50);
        model[len - 20..].fill(0);
        model.resize(len + 30, 0);
        clear(Fallocate::Reserve, 0, len + 500);
        clear(Fallocate::Grow, 10, len + 90);
        model.resize(len + 100, 0);
        clear(Fallocate::Grow, 10, 10);
        assert!(t.content("f") == model);
        assert!(t.read(&file, 0, 20_000) == model);
    }
    let read_only = t.open("f", OpenFlags { write: false, ..RW });
    let refused = t.run(read_only.fallocate(Fallocate::Grow, 0, 10));
    assert_eq!(refused.unwrap_err().errno(), Errno::EBADF);
    let far = t.run(file.fallocate(Fallocate::Grow, 10, u64::MAX));
    assert_eq!(far.unwrap_err().errno(), Errno::EFBIG);
}

/// Somebody else grows the file while room is made: the larger size stays.
#[test]
fn making_room_never_cuts() {
    let t = setup();
    let file = t.create("f");
    let longer =
        |model: &mut crate::fake::FakeModel| model.add_to("f", |row| row.attr.size = 9_000);
    t.fake.fault(Op::Close, RequestFault::Before(Box::new(longer)));
    t.run(file.fallocate(Fallocate::Grow, 0, 500)).unwrap();
    assert_eq!(t.content("f").len(), 9_000);
}
