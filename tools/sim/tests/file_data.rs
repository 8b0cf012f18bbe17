//! File data between its row and the stores, with crashes, played by hand on the testbed.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use saker_sim::testbed::{Message, RequestResult, Testbed, at};
use saker_types::wire::*;
use saker_types::{Class, Errno, NodeId};

const SHARD: NodeId = NodeId::Shard(0);
const OLD: &[u8] = b"old bytes that nobody may see again";

/// Replaces a small file's content, as a close does.
fn save(b: &mut Testbed, entry: &Entry, data: &'static [u8]) -> CloseReply {
    let attr = b.stat(&at("f")).unwrap().attr;
    let request = CloseReq {
        ctx: b.ctx(),
        at: At::handle(entry.loc.clone()),
        size: data.len() as u64,
        truncate_gen: attr.truncate_gen,
        inline: Some(Bytes::from_static(data)),
        base_version: attr.data_version,
        ..CloseReq::default()
    };
    let reply: CloseReply = b.run(Op::Close, SHARD, &request).unwrap();
    assert!(!reply.conflict);
    reply
}

fn resize(b: &mut Testbed, size: u64) -> Entry {
    let ctx = b.ctx();
    b.setattr(&SetattrReq { ctx, at: at("f"), size: Some(size), ..SetattrReq::default() }).unwrap()
}

fn spill_req(b: &mut Testbed) -> EntryReq {
    EntryReq { ctx: b.ctx(), at: at("f"), full: false }
}

/// A file with data in its row, and a spill of it that has come to the point where `held` is on
/// the wire.
fn spilling(held: impl Fn(&Message) -> bool) -> (Testbed, Entry, EntryReq) {
    let mut b = Testbed::new(1);
    let entry = b.create("f").unwrap();
    save(&mut b, &entry, OLD);
    let request = spill_req(&mut b);
    b.ask(Op::Spill, SHARD, &request);
    b.settle_but(&held);
    assert!(b.wire().iter().any(held), "the spill has come so far");
    (b, entry, request)
}

/// Wherever its shard crashes, a spill takes place once, and what the file is truncated to later
/// is what it shows.
#[test]
fn bytes_of_a_spill_that_a_crash_cut_short_are_never_seen_again() {
    let points: [fn(&Message) -> bool; 4] = [
        |m| m.asks(Op::ChunkWrite),
        |m| m.answers(Op::ChunkWrite),
        |m| m.asks(Op::ChunkTruncate),
        |m| m.answers(Op::ChunkTruncate),
    ];
    for (n, point) in points.into_iter().enumerate() {
        let (mut b, entry, spill) = spilling(point);
        b.take(point);
        b.restart(SHARD);
        // Truncated to nothing, then made chunked: in both cases no store may be asked if the
        // spill had never begun.
        resize(&mut b, 0);
        let spilled: RequestResult<Entry> = b.run(Op::Spill, SHARD, &spill);
        assert!(spilled.unwrap().attr.chunked, "point {n}");
        assert_eq!(b.stat(&at("f")).unwrap().attr.size, 0, "point {n}");
        resize(&mut b, 100);
        assert_eq!(b.first_chunk(entry.attr.id), "", "point {n}: old bytes show");
        b.check();
    }
}

/// A store that has not cut would bring the bytes back, and take late writes.
#[test]
fn a_truncation_waits_for_a_store_that_refuses_to_cut() {
    let mut b = Testbed::new(1);
    let entry = b.create("f").unwrap();
    save(&mut b, &entry, OLD);
    let spill = spill_req(&mut b);
    let _: Entry = b.run(Op::Spill, SHARD, &spill).unwrap();
    let ctx = b.ctx();
    let shorter = SetattrReq { ctx, at: at("f"), size: Some(3), ..SetattrReq::default() };
    let call = b.ask(Op::Setattr, SHARD, &shorter);
    for errno in [Errno::EIO, Errno::ENOSPC] {
        b.settle_but(|m| m.asks(Op::ChunkTruncate));
        let refused = b.take(|m| m.asks(Op::ChunkTruncate)).into_iter();
        let refused: Vec<_> = refused.map(|asked| asked.refused(&errno.into())).collect();
        assert!(!refused.is_empty(), "asked again");
        b.put(refused);
        b.settle();
        assert!(b.answer::<Entry>(call).is_none(), "{errno:?}: not cut, and told that it is");
        assert_eq!(b.first_chunk(entry.attr.id), OLD);
        b.advance(Duration::from_secs(1));
    }
    b.settle();
    assert_eq!(b.answer::<Entry>(call).unwrap().unwrap().attr.size, 3);
    assert_eq!(b.first_chunk(entry.attr.id), OLD[..3]);
    b.check();
}

#[test]
fn a_spill_moves_the_data_wherever_its_shard_crashes() {
    let points: [fn(&Message) -> bool; 4] = [
        |m| m.asks(Op::ChunkWrite),
        |m| m.answers(Op::ChunkWrite),
        |m| m.asks(Op::ChunkTruncate),
        |m| m.answers(Op::ChunkTruncate),
    ];
    for (n, point) in points.into_iter().enumerate() {
        let (mut b, entry, spill) = spilling(point);
        b.take(point);
        b.restart(SHARD);
        let spilled: Entry = b.run(Op::Spill, SHARD, &spill).unwrap();
        assert!(spilled.attr.chunked && spilled.inline.is_empty(), "point {n}");
        assert_eq!(spilled.attr.size, OLD.len() as u64);
        assert_eq!(b.first_chunk(entry.attr.id), OLD, "point {n}");
        b.check();
    }
}

/// The write of a spill that was asked twice may be executed late: what a client has written since
/// stays.
#[test]
fn a_late_write_of_a_spill_is_refused() {
    let (mut b, entry, spill) = spilling(|m| m.asks(Op::ChunkWrite));
    let late = b.take(|m| m.asks(Op::ChunkWrite));
    b.pass(Duration::from_secs(6));
    let spilled: Entry = b.run(Op::Spill, SHARD, &spill).unwrap();
    let data = Bytes::from_static(b"new");
    let request = ChunkWriteReq {
        id: entry.attr.id,
        truncate_gen: spilled.attr.truncate_gen,
        crc: crc32c::crc32c(&data),
        replicas: vec![0],
        writer: 1,
        seq: 1,
        ..ChunkWriteReq::default()
    };
    let call = b.ask_with(Op::ChunkWrite, NodeId::Store(0), &request, data);
    b.settle();
    b.answer::<Empty>(call).unwrap().unwrap();
    b.put(late);
    b.settle();
    assert_eq!(b.first_chunk(entry.attr.id), [b"new", &OLD[3..]].concat());
}

/// A small file that grows beyond its row by an append: the same spill.
#[test]
fn an_append_that_spills_is_executed_once() {
    let mut b = Testbed::new(1);
    let entry = b.create("f").unwrap();
    save(&mut b, &entry, OLD);
    let request = AppendReq { ctx: b.ctx(), at: at("f"), len: 5_000, ..AppendReq::default() };
    let first = b.ask(Op::Append, SHARD, &request);
    b.settle_but(|m| m.answers(Op::ChunkWrite));
    b.take(|m| m.answers(Op::ChunkWrite));
    b.restart(SHARD);
    assert!(b.answer::<AppendReply>(first).unwrap().unwrap_err().is(Class::Retry));
    for _ in 0..2 {
        let reply: AppendReply = b.run(Op::Append, SHARD, &request).unwrap();
        assert_eq!((reply.offset, reply.stored), (OLD.len() as u64, false));
    }
    assert_eq!(b.first_chunk(entry.attr.id), OLD);
    b.check();
}

/// Two clients append, and the later place is filled first: who has read zeros in the earlier one
/// sees by the version that there is something else now.
#[test]
fn the_data_of_an_append_changes_the_version_also_where_the_file_does_not_grow() {
    let mut b = Testbed::new(1);
    b.create("f").unwrap();
    let append = |b: &mut Testbed, size| {
        let at = at("f");
        let request = AppendReq { ctx: b.ctx(), at, len: 5_000, size, ..AppendReq::default() };
        b.run::<AppendReply>(Op::Append, SHARD, &request).unwrap()
    };
    assert_eq!(append(&mut b, 0).offset, 0);
    assert_eq!(append(&mut b, 0).offset, 5_000);
    let later = append(&mut b, 10_000).entry.attr;
    assert_eq!(later.size, 10_000);
    let earlier = append(&mut b, 5_000).entry.attr;
    assert_eq!(earlier.size, 10_000);
    assert!(earlier.data_version > later.data_version);
    b.check();
}

/// A truncation comes after an append that has its place, also one that nobody was told of yet:
/// its bytes are cut, and the next one begins where the file ends.
#[test]
fn a_truncation_cuts_what_is_being_appended() {
    for size in [0, 100] {
        let mut b = Testbed::new(1);
        b.create("f").unwrap();
        let append = |b: &mut Testbed| {
            let request =
                AppendReq { ctx: b.ctx(), at: at("f"), len: 5_000, ..AppendReq::default() };
            b.run::<AppendReply>(Op::Append, SHARD, &request).unwrap()
        };
        let first = append(&mut b);
        assert_eq!((first.offset, first.entry.attr.size), (0, 0));
        let cut = resize(&mut b, size);
        assert!(cut.attr.truncate_gen > first.entry.attr.truncate_gen, "late bytes are refused");
        assert_eq!(append(&mut b).offset, size);
        b.check();
    }
}
