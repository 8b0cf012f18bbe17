//! Appends.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use saker_types::Errno;
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::Op;

use crate::fake::setup::{APPEND, Setup, at, pattern, setup};
use crate::fake::{FakeModel, RequestFault};

#[test]
fn an_append_that_meets_a_truncation_goes_to_the_end() {
    for (cut, refused) in [(0, true), (100, true), (100, false)] {
        let t = setup();
        let file = t.create("f");
        t.write(&file, 0, &pattern(50_000, 3));
        t.flush(&file);
        let file = t.open("f", APPEND);
        // Somebody else truncates it, and appends.
        let truncate = move |model: &mut FakeModel| {
            model.truncate(&Bytes::from_static(b"f"), cut);
            model.add_to("f", |row| row.attr.size += 10);
        };
        let line = pattern(6_000, 4);
        let mut expected = pattern(50_000, 3)[..cut as usize].to_vec();
        expected.resize(cut as usize + 10, 0);
        if refused {
            t.fake.fault(Op::ChunkWrite, RequestFault::Before(Box::new(truncate)));
            assert_eq!(t.run(file.write(0, &line)).unwrap(), cut + 10);
            expected.extend_from_slice(&line);
        } else {
            // It is there before the truncation, which takes it away.
            assert_eq!(t.run(file.write(0, &line)).unwrap(), 50_000);
            truncate(&mut t.fake.model());
        }
        t.flush(&file);
        assert!(t.content("f") == expected, "cut to {cut}");
        assert_eq!(file.entry().attr.size, expected.len() as u64);
    }
}

#[test]
fn an_append_to_many_chunks_that_is_cut_leaves_no_gap() {
    for refused in [true, false] {
        let t = setup();
        let file = t.create("f");
        let start = CHUNK_BYTES - 1_000;
        t.write(&file, start - 10, &pattern(10, 3));
        t.flush(&file);
        let file = t.open("f", APPEND);
        // Cut before the first piece is taken, or when all are.
        let op = if refused { Op::ChunkWrite } else { Op::Getattr };
        let truncate = |model: &mut FakeModel| model.truncate(&Bytes::from_static(b"f"), 100);
        t.fake.fault(op, RequestFault::Before(Box::new(truncate)));
        // Three pieces, of which the last lands before the second.
        let line = pattern(CHUNK_BYTES as usize + 2_000, 4);
        let offset = t.run(file.write(0, &line)).unwrap();
        assert_eq!(offset, if refused { 100 } else { start });
        t.run(t.fs.getattr(&t.root, &at("f"))).unwrap();
        let offset = t.run(file.write(0, b"more")).unwrap();
        assert_eq!(offset, if refused { 100 + line.len() as u64 } else { 100 });
        t.flush(&file);
        assert_eq!(t.content("f").len() as u64, offset + 4, "refused: {refused}");
        assert_eq!(file.entry().attr.size, offset + 4);
    }
}

#[test]
fn an_append_that_fails_leaves_no_gap() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, &pattern(6_000, 3));
    t.flush(&file);
    let file = t.open("f", APPEND);
    t.fake.fault(Op::ChunkWrite, RequestFault::Answer(Errno::ENOSPC.into()));
    assert_eq!(t.run(file.write(0, &pattern(6_000, 4))).unwrap_err().errno(), Errno::ENOSPC);
    t.flush(&file);
    assert_eq!((t.content("f").len(), file.entry().attr.size), (6_000, 6_000));
}

#[test]
fn appends_go_where_the_owner_says() {
    let t = setup();
    let (a, b) = (t.create("f"), t.open("f", APPEND));
    t.write(&a, 0, b"abc");
    assert_eq!(t.run(b.write(0, b"def")).unwrap(), 3);
    assert_eq!(t.read(&a, 0, 10), "abcdef");
    t.fake.model().add_to("f", |row| {
        row.inline = Bytes::from_static(b"abcdef--");
        row.attr.size = 8;
    });
    assert_eq!(t.run(b.write(0, b"gh")).unwrap(), 8);
    assert_eq!(t.read(&a, 0, 20), "abcdef--gh");
    assert_eq!(t.run(b.write(0, &pattern(9_000, 1))).unwrap(), 10);
    assert_eq!(t.run(b.write(0, b"end")).unwrap(), 9_010);
    let mut expected = b"abcdef--gh".to_vec();
    expected.extend_from_slice(&pattern(9_000, 1));
    expected.extend_from_slice(b"end");
    t.fake.log();
    t.flush(&a);
    assert!(t.content("f") == expected);
    assert_eq!(t.fake.log(), ["close"]);
    t.flush(&a);
    assert!(t.fake.log().is_empty(), "the owner knows all");
    assert!(t.read(&a, 0, 20_000) == expected);
}

/// Others see the size of an append when its data is there.
#[test]
fn an_append_grows_the_file_after_its_data() {
    let t = setup();
    t.create("f");
    let file = t.open("f", APPEND);
    t.run(file.write(0, &pattern(5_000, 1))).unwrap();
    let size = |t: &Setup| t.fake.model().files[&b"f"[..]].attr.size;
    assert_eq!(size(&t), 0);
    assert_eq!(file.entry().attr.size, 5_000, "its own writer knows");
    t.fake.log();
    t.run(file.write(0, b"more")).unwrap();
    assert_eq!(t.fake.log(), ["append", "chunk_write", "chunk_write"], "no more requests");
    assert_eq!(size(&t), 5_000, "the next append says so");
    t.flush(&file);
    assert_eq!(size(&t), 5_004);
    assert_eq!(t.content("f")[5_000..], b"more"[..]);
}
