//! What is read, and by how many requests.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use saker_runtime::fs::{Dir as _, RealDir};
use saker_runtime::time;
use saker_types::Errno;
use saker_types::limits::{BLOCK_BYTES, CHUNK_BYTES};
use saker_types::wire::{ChunkPlace, Op};

use super::*;
use crate::fake::RequestFault;
use crate::fake::setup::{RW, pattern, setup, setup_with};
use crate::{ClientOptions, OpenFlags};

/// Somebody cuts a file, and perhaps writes to it, when its chunks are about to be read.
#[test]
fn who_reads_what_others_cut_gets_no_zeros() {
    let (size, cut) = (5 * CHUNK_BYTES as usize / 2, 50_000);
    for (at, len) in [(45_000, 20_000), (0, size - 10)] {
        for (rewrites, ahead) in [(false, 0), (false, 4 << 20), (true, 0), (true, 4 << 20)] {
            let t =
                setup_with(ClientOptions { read_ahead_bytes: ahead, ..ClientOptions::default() });
            let file = t.create("f");
            let old = pattern(size, 1);
            t.write(&file, 0, &old);
            t.flush(&file);
            t.fake.fault(
                Op::ChunkRead,
                RequestFault::Before(Box::new(move |model| {
                    let name = Bytes::from_static(b"f");
                    model.truncate(&name, if rewrites { 0 } else { cut as u64 });
                    if rewrites {
                        model.spill(&name);
                        model.add_to("f", |row| row.attr.size = 40_000);
                        let id = model.files[&name].attr.id;
                        (0..2).for_each(|n| _ = model.chunks.insert((n, id, 0), vec![7; 40_000]));
                    }
                })),
            );
            let new = if rewrites { vec![7; 40_000] } else { old[..cut].to_vec() };
            let got = t.read(&file, at as u64, len);
            let words = format!("{} of {len} bytes, rewritten: {rewrites}, {ahead}", got.len());
            assert!(got == new[at.min(new.len())..new.len().min(at + len)], "{words}");
            assert_eq!(file.cuts(), 1);
            assert!(t.read(&file, 0, size) == new, "{words}");
        }
    }
}

#[test]
fn an_open_small_file_is_asked_about_again_after_a_while() {
    let t = setup();
    t.fake.model().add("f", b"old");
    let file = t.open("f", RW);
    t.fake.model().add_to("f", |row| row.inline = Bytes::from_static(b"new"));
    assert_eq!(t.read(&file, 0, 3), "old", "close-to-open: what was there at the open");
    // Real time: for a second by the clock a client trusts what it was told.
    time::sleep(Duration::from_millis(1_050));
    t.fake.log();
    assert_eq!(t.read(&file, 0, 3), "new");
    assert_eq!(t.read(&file, 0, 9), "new");
    assert_eq!(t.fake.log(), ["getattr", "open"]);
}

#[test]
fn who_begins_a_small_file_gets_the_whole() {
    let t = setup();
    let data = pattern(600_000, 4);
    let file = t.create("f");
    t.write(&file, 0, &data);
    t.flush(&file);
    t.run(file.release());
    for (first, requests) in [(75_000, 1), (74_999, 2)] {
        let file = t.open("f", OpenFlags { write: false, ..RW });
        t.fake.log();
        assert!(t.read(&file, 0, first) == data[..first]);
        assert!(t.read(&file, first as u64, 600_000) == data[first..]);
        assert_eq!(t.fake.log(), vec!["chunk_read"; requests], "{first} bytes first");
        t.run(file.release());
    }
}

#[test]
fn what_is_read_ahead_of_many_files_is_bounded() {
    const TOTAL: usize = 1 << 20;
    const FIRST: usize = 75_000;
    let options = ClientOptions { read_ahead_total_bytes: TOTAL, ..ClientOptions::default() };
    let t = setup_with(options);
    let held = || t.gauge("saker_client_read_ahead_bytes");
    let names = ["a", "b", "c", "d", "e"];
    let data = pattern(600_000, 4);
    for name in names {
        let file = t.create(name);
        t.write(&file, 0, &data);
        t.flush(&file);
        t.run(file.release());
    }
    let files = names.map(|name| t.open(name, OpenFlags { write: false, ..RW }));
    for file in &files {
        assert!(t.read(file, 0, FIRST) == data[..FIRST]);
        assert!(held() <= (TOTAL + FIRST) as i64, "{} bytes", held());
    }
    assert!(held() >= TOTAL as i64);
    for file in &files {
        for at in (FIRST..data.len()).step_by(FIRST) {
            let end = data.len().min(at + FIRST);
            assert!(t.read(file, at as u64, FIRST) == data[at..end]);
            assert!(held() <= (TOTAL + FIRST) as i64, "{} bytes", held());
        }
    }
    for file in files {
        t.run(file.release());
    }
    assert_eq!(held(), 0);
}

#[test]
fn what_waits_to_be_written_out_is_not_read_ahead() {
    let t = setup();
    let file = t.create("f");
    let data = pattern(2_400_000, 9);
    let parts = || (0..).step_by(65_536).zip(data.chunks(65_536));
    parts().for_each(|(at, part)| t.write(&file, at, part));
    for (at, part) in parts() {
        assert!(t.read(&file, at, part.len()) == part, "at {at}");
    }
}

#[test]
fn an_open_reads_what_others_have_closed_under_unsaved_bytes() {
    let t = setup();
    t.fake.model().add("f", b"abcdef");
    let file = t.open("f", RW);
    t.write(&file, 1, b"X");
    t.fake.model().add_to("f", |row| {
        row.inline = Bytes::from_static(b"ABCDEFGHI");
        row.attr.size = 9;
    });
    let other = t.open("f", OpenFlags { write: false, ..RW });
    assert_eq!(t.read(&other, 0, 20), "AXCDEFGHI");
    t.write(&file, 2, b"Y");
    t.fake.model().add_to("f", |row| row.attr.size = 6_000);
    t.fake.model().spill(&Bytes::from_static(b"f"));
    let other = t.open("f", OpenFlags { write: false, ..RW });
    assert_eq!(t.read(&other, 0, 12), "AXYDEFGHI\0\0\0");
    assert_eq!(t.run(other.read(5_990, 100)).unwrap().len(), 10);
}

#[test]
fn reads_go_to_another_replica() {
    let t = setup();
    let file = t.create("f");
    let data = pattern(6_000, 4);
    t.write(&file, 0, &data);
    t.flush(&file);
    t.fake.fault(Op::ChunkRead, RequestFault::Answer(Errno::EIO.into()));
    assert!(t.read(&file, 0, 6_000) == data);
    t.fake.fault(Op::ChunkRead, RequestFault::Lost);
    assert!(t.read(&file, 1, 6_000) == data[1..]);
    for _ in 0..4 {
        t.fake.fault(Op::ChunkRead, RequestFault::Answer(Errno::EIO.into()));
    }
    assert_eq!(t.run(file.read(0, 6_000)).err().unwrap().errno(), Errno::EIO);
}

/// What a store has told the place of is read there; if something else is there the store is asked
/// for it, and the next reads ask it at once.
#[test]
fn data_is_read_where_the_store_says_that_it_is() {
    let t = setup_with(ClientOptions { local_reads: true, ..ClientOptions::default() });
    let file = t.create("f");
    let data = pattern(20_000, 4);
    t.write(&file, 0, &data);
    t.flush(&file);
    let scratch = tempfile::tempdir().unwrap();
    let dir = RealDir::open(scratch.path()).unwrap();
    dir.create("segment").unwrap().write_at(10, &data).unwrap();
    let place = ChunkPlace {
        file: "segment".into(),
        pos: 10,
        bytes: 20_000,
        sums: data.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect(),
        skip: 0,
        len: 20_000,
        ..ChunkPlace::default()
    };
    let told = dir.whereabouts().unwrap();
    t.fake.model().place = Some((told, place));
    let requests = || {
        t.fake.log();
        assert!(t.read(&file, 0, 20_000) == data);
        t.fake.log().iter().filter(|op| **op == Op::ChunkRead.name()).count()
    };
    // A thread opens the directory; until then the store is asked for the data, too.
    let is_open = |_| {
        // Real time: that thread's.
        time::sleep(Duration::from_millis(1));
        requests() == 1
    };
    assert!((0..10_000).any(is_open));
    // The stores' own copy is not what is read: nobody would see that it is damaged.
    let good = t.fake.model().chunks.clone();
    t.fake.model().chunks.values_mut().for_each(|chunk| chunk.fill(0));
    // The kernel may say of any read that it would wait, but not each time.
    assert!((0..100).any(|_| t.read(&file, 0, 20_000) == data));
    t.fake.model().chunks = good;
    dir.open("segment").unwrap().write_at(5_000, b"other").unwrap();
    assert_eq!(requests(), 2);
    assert!((0..100).any(|_| requests() == 1));
}

/// Its lease ended while nobody heard of this client, and its chunks were deleted.
#[test]
fn a_file_that_is_gone_is_no_hole() {
    let t = setup();
    let large = 3 << 20;
    for (len, first) in [(6_000, 0), (large, 0), (large, 100_000)] {
        let file = t.create("f");
        let data = pattern(len, 5);
        t.write(&file, 0, &data);
        t.flush(&file);
        // A sequential reader has more than it has asked for.
        assert!(t.read(&file, 0, first) == data[..first]);
        let mut model = t.fake.model();
        model.files.clear();
        model.chunks.clear();
        drop(model);
        let mut at = first;
        let error = loop {
            match t.run(file.read(at as u64, 100_000)) {
                Ok(part) => assert!(!part.is_empty() && part == data[at..at + part.len()]),
                Err(error) => break error,
            }
            at += 100_000;
        };
        assert_eq!(error.errno(), Errno::ESTALE, "{len} {first}");
    }
    // What comes late makes chunks anew, with a hole before it.
    let file = t.create("f");
    t.write(&file, 0, &pattern(6_000, 5));
    t.flush(&file);
    t.fake.model().files.clear();
    t.fake.model().chunks.values_mut().for_each(|chunk| chunk.fill(0));
    t.fake.model().holes = true;
    assert_eq!(t.run(file.read(0, 6_000)).unwrap_err().errno(), Errno::ESTALE);
}

#[test]
fn holes_read_as_zeros() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, CHUNK_BYTES + 10, b"far");
    t.flush(&file);
    let data = t.read(&file, CHUNK_BYTES - 5, 100);
    assert_eq!(data[..], [&[0; 15][..], b"far"].concat());
}

#[test]
fn small_files_end_in_zeros() {
    let data = Bytes::from_static(b"abc");
    assert_eq!(cut(&data, &(1..3)), &b"bc"[..]);
    assert_eq!(cut(&data, &(1..5)), &b"bc\0\0"[..]);
    assert_eq!(cut(&data, &(4..6)), &b"\0\0"[..]);
}
