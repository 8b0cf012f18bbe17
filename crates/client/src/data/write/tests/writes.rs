//! What is written, by one or by many.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use saker_types::Errno;
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::Op;

use crate::fake::RequestFault;
use crate::fake::setup::{RW, TRUNC, pattern, setup};
use crate::{Fallocate, OpenFlags};

#[test]
fn a_small_file_costs_one_request_each() {
    let t = setup();
    let file = t.create("f");
    assert_eq!(t.fake.log(), ["create"]);
    t.flush(&file);
    assert_eq!(t.read(&file, 0, 10), "");
    assert!(t.fake.log().is_empty(), "nothing was written");
    t.write(&file, 0, b"hello");
    t.write(&file, 7, b"!");
    assert_eq!(t.read(&file, 0, 100), &b"hello\0\0!"[..]);
    t.flush(&file);
    t.flush(&file);
    assert_eq!(t.fake.log(), ["close"]);
    assert_eq!(t.content("f"), b"hello\0\0!");
    t.run(file.release());
    let file = t.open("f", RW);
    assert_eq!(t.read(&file, 5, 100), &b"\0\0!"[..]);
    assert_eq!(t.fake.log(), ["open"]);
}

#[test]
fn a_file_that_outgrows_its_row_goes_to_chunks() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"begin");
    let big = pattern(10_000, 1);
    t.write(&file, 5, &big);
    t.flush(&file);
    let mut expected = b"begin".to_vec();
    expected.extend_from_slice(&big);
    assert!(t.content("f") == expected);
    let log = t.fake.log();
    assert_eq!(log[..2], ["create", "spill"]);
    assert_eq!(log.last(), Some(&"close"));
    assert!(t.read(&file, 0, 20_000) == expected);
}

#[test]
fn a_large_sequential_write_reads_back_through_another_client() {
    let t = setup();
    let file = t.create("f");
    let data = pattern(2 * CHUNK_BYTES as usize + 12_345, 2);
    for (i, part) in data.chunks(100_000).enumerate() {
        t.write(&file, i as u64 * 100_000, part);
    }
    t.run(file.release());
    assert!(t.content("f") == data);
    let log = t.fake.log();
    let writes = log.iter().filter(|op| **op == "chunk_write").count();
    assert!(writes <= 2 * 12, "{writes} writes of about a megabyte to two stores");
    let file = t.open("f", RW);
    let mut at = 0;
    while at < data.len() {
        let part = t.read(&file, at as u64, 70_000);
        assert!(part == data[at..(at + 70_000).min(data.len())], "at {at}");
        at += part.len();
    }
    let reads = t.fake.log().iter().filter(|op| **op == "chunk_read").count();
    assert!(reads <= 16, "{reads} reads of about a megabyte");
    assert!(t.read(&file, 5, data.len()) == data[5..]);
}

#[test]
fn handles_of_one_file_see_each_other() {
    let t = setup();
    let (a, b) = (t.create("f"), t.open("f", RW));
    t.write(&a, 0, b"one");
    assert_eq!(t.read(&b, 0, 10), "one");
    t.write(&b, 5_000, b"two");
    assert_eq!(t.read(&a, 4_999, 10), &b"\0two"[..]);
    t.write(&a, 5_001, b"W");
    t.fake.log();
    assert_eq!(t.read(&b, 5_000, 3), "tWo");
    assert_eq!(t.fake.log(), ["chunk_write", "chunk_write", "chunk_read"]);
}

#[test]
fn a_conflict_keeps_the_writes_of_both() {
    let t = setup();
    t.fake.model().add("f", b"abcdef");
    let file = t.open("f", RW);
    t.write(&file, 1, b"X");
    t.fake.model().add_to("f", |row| row.inline = Bytes::from_static(b"ABCDEF"));
    t.flush(&file);
    assert_eq!(t.content("f"), b"AXCDEF");
    assert_eq!(t.read(&file, 0, 9), "AXCDEF");
    t.write(&file, 2, b"Y");
    t.fake.model().spill(&Bytes::from_static(b"f"));
    t.flush(&file);
    assert_eq!(t.content("f"), b"AXYDEF");
    assert_eq!(t.read(&file, 0, 9), "AXYDEF");
}

#[test]
fn a_write_that_meets_a_truncation_counts_as_later() {
    for cut in [0, 100] {
        let t = setup();
        let file = t.create("f");
        t.write(&file, 0, &pattern(50_000, 3));
        t.flush(&file);
        t.write(&file, 60_000, b"later");
        let truncate = move |model: &mut crate::fake::FakeModel| {
            model.truncate(&Bytes::from_static(b"f"), cut);
        };
        t.fake.fault(Op::ChunkWrite, RequestFault::Before(Box::new(truncate)));
        t.flush(&file);
        let mut expected = pattern(50_000, 3)[..cut as usize].to_vec();
        expected.resize(60_000, 0);
        expected.extend_from_slice(b"later");
        assert!(t.content("f") == expected, "cut to {cut}");
        assert_eq!(file.entry().attr.size, 60_005);
    }
}

#[test]
fn a_truncation_elsewhere_does_not_bring_old_sizes_back() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, &pattern(50_000, 3));
    // Accepted by the stores, not reported; then cut by somebody else.
    t.run(async {
        let inode = t.fs.core.inodes.get(file.entry().attr.id).unwrap();
        let mut writer = inode.writer.lock().await;
        t.fs.core.pump(&inode, &mut writer, true).await;
    });
    t.fake.model().add_to("f", |row| row.attr.size = 50_000);
    t.fake.model().truncate(&Bytes::from_static(b"f"), 10);
    t.flush(&file);
    assert_eq!(t.content("f").len(), 10);
    assert_eq!(file.entry().attr.size, 10);
}

#[test]
fn opening_with_truncation_drops_what_was_written_before() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, &pattern(20_000, 1));
    t.flush(&file);
    t.write(&file, 0, &pattern(20_000, 2));
    let other = t.open("f", TRUNC);
    assert_eq!(t.read(&other, 0, 10), "");
    t.flush(&file);
    assert_eq!(t.content("f"), b"");
    t.write(&file, 2, b"x");
    t.flush(&other);
    assert_eq!(t.content("f"), b"\0\0x");
}

#[test]
fn closing_a_reader_leaves_the_writers_data_alone() {
    let t = setup();
    let writer = t.create("f");
    let reader = t.open("f", OpenFlags { write: false, ..RW });
    t.write(&writer, 0, b"abc");
    t.fake.log();
    t.flush(&reader);
    t.run(reader.release());
    assert!(t.fake.log().is_empty());
    assert_eq!(t.run(t.open("f", RW).read(0, 9)).unwrap(), "abc");
}

#[test]
fn a_failed_write_is_reported_once_by_each_handle() {
    let t = setup();
    let (a, b) = (t.create("f"), t.open("f", RW));
    t.write(&a, 0, &pattern(6_000, 1));
    t.fake.fault(Op::ChunkWrite, RequestFault::Answer(Errno::ENOSPC.into()));
    assert_eq!(t.run(a.flush()).unwrap_err().errno(), Errno::ENOSPC);
    assert!(t.run(a.flush()).is_ok());
    assert_eq!(t.run(b.fsync()).unwrap_err().errno(), Errno::ENOSPC);
    assert!(t.run(b.fsync()).is_ok());
    let late = t.open("f", RW);
    assert!(t.run(late.flush()).is_ok(), "it was opened after the failure");
}

/// A write that was sent twice is executed once more after later writes of the same bytes.
#[test]
fn a_late_attempt_of_a_write_changes_nothing() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, &pattern(5_000, 1));
    t.fake.fault(Op::ChunkWrite, RequestFault::Late);
    t.flush(&file);
    let new = pattern(5_000, 2);
    t.write(&file, 0, &new);
    t.flush(&file);
    assert_eq!(t.fake.deliver_late(), 1);
    assert!(t.content("f") == new);
    t.fake.fault(Op::ChunkWrite, RequestFault::Late);
    t.run(file.fallocate(Fallocate::Punch, 0, 5_000)).unwrap();
    t.write(&file, 0, &new);
    t.flush(&file);
    assert_eq!(t.fake.deliver_late(), 1);
    assert!(t.content("f") == new, "a late hole");
}
