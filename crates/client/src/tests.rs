//! The client against a cluster in memory: which requests it sends, and what becomes of them
//! when some of them fail.
#![allow(clippy::unwrap_used)]

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use saker_runtime::fs::{Dir, RealDir};
use saker_runtime::time;
use saker_types::limits::{BLOCK_BYTES, CHUNK_BYTES, FILE_BYTES_MAX};
use saker_types::wire::*;
use saker_types::{Class, Errno, Error, Locator, Unflushed};

use crate::fake::{Fake, Fault, Model, start};
use crate::{
    Caller, ClientOptions, Fallocate, File, Fs, Lessee, Lock, OpenFlags, SetAttr, SetTime,
};

const RW: OpenFlags = OpenFlags {
    read: true,
    write: true,
    append: false,
    truncate: false,
    exclusive: false,
    execute: false,
};
const APPEND: OpenFlags = OpenFlags { append: true, ..RW };
const TRUNC: OpenFlags = OpenFlags { truncate: true, ..RW };

struct Setup {
    fake: Arc<Fake>,
    fs: Fs,
    root: Caller,
}

fn setup() -> Setup {
    setup_with(ClientOptions::default())
}

fn setup_with(options: ClientOptions) -> Setup {
    let (fake, fs) = start(options);
    fake.log();
    Setup { fake, fs, root: Caller::root() }
}

fn at(name: &'static str) -> At {
    At::child(Locator::root(), name.as_bytes())
}

impl Setup {
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.fs.block_on(future)
    }

    fn create(&self, name: &'static str) -> File {
        self.run(self.fs.create(&self.root, &at(name), 0o644, RW)).unwrap().0
    }

    fn open(&self, name: &'static str, flags: OpenFlags) -> File {
        self.run(self.fs.open(&self.root, &at(name), flags)).unwrap().0
    }

    fn write(&self, file: &File, offset: u64, data: &[u8]) {
        assert_eq!(self.run(file.write(offset, data)).unwrap(), offset);
    }

    fn read(&self, file: &File, offset: u64, len: usize) -> Bytes {
        self.run(file.read(offset, len)).unwrap()
    }

    fn gauge(&self, name: &'static str) -> i64 {
        self.fs.metrics().gauge(name, "").get()
    }

    fn flush(&self, file: &File) {
        self.run(file.flush()).unwrap();
    }

    /// What both stores hold must be the same.
    fn content(&self, name: &'static str) -> Vec<u8> {
        let model = self.fake.model();
        let content = model.content(name, 0);
        assert!(content == model.content(name, 1), "replicas differ");
        content
    }
}

/// Bytes that differ from their neighbours.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ (i as u8).wrapping_mul(31) ^ seed).collect()
}

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
fn replies_that_are_lost_are_asked_for_again_and_nothing_is_done_twice() {
    let t = setup();
    let file = t.create("f");
    let append = t.open("f", APPEND);
    for op in [Op::Append, Op::Close, Op::Create] {
        t.fake.fault(op, Fault::AnswerLost);
    }
    t.fake.fault(Op::Create, Fault::Lost);
    assert_eq!(t.run(append.write(0, b"abc")).unwrap(), 0);
    t.write(&file, 3, b"d");
    t.flush(&file);
    let exclusive = OpenFlags { exclusive: true, ..RW };
    let made = t.run(t.fs.create(&t.root, &at("g"), 0o600, exclusive));
    assert!(made.unwrap().1.created, "its own first attempt is no EEXIST");
    assert_eq!(t.content("f"), b"abcd");
    assert!(t.fs.stats().retries >= 4);
}

#[derive(Default)]
struct Mount(Mutex<Vec<KeptDir>>);

impl Lessee for Mount {
    fn lent(&self, dirs: &[KeptDir]) {
        self.0.lock().unwrap().extend(dirs);
    }
}

#[test]
fn who_asks_for_leases_hears_of_those_that_an_answer_gives() {
    let t = setup();
    t.create("f");
    let mount = Arc::new(Mount::default());
    let who = Caller { lessee: Some(mount.clone()), ..Caller::root() };
    let at = At { keep_ms: vec![100], ..at("f") };
    let lent = |trailer: &[u8]| {
        t.fake.model().trailer = Bytes::copy_from_slice(trailer);
        assert_eq!(t.run(t.fs.lookup(&who, &at)).unwrap().loc.name, "f");
        let of_result = std::mem::take(&mut *mount.0.lock().unwrap());
        t.fake.fault(Op::Lookup, Fault::Answer(Errno::ENOENT.into()));
        assert_eq!(t.run(t.fs.lookup(&who, &at)).unwrap_err().errno(), Errno::ENOENT);
        assert_eq!(std::mem::take(&mut *mount.0.lock().unwrap()), of_result);
        of_result
    };
    let dir = KeptDir { id: 7, keep_ms: 100, ..KeptDir::default() };
    let of = |dirs: Vec<KeptDir>| prost::Message::encode_to_vec(&KeptDirs { dirs });
    let good = of(vec![dir]);
    assert_eq!(lent(&good), [dir]);
    assert_eq!(lent(&[]), []);
    // What nobody has asked for, or can read, is no lease; the answer counts all the same.
    let longer = of(vec![KeptDir { keep_ms: 101, ..dir }]);
    for bad in [&good[..good.len() - 1], &of(vec![dir, dir]), &longer, &[0xff; 9], &[0; 1 << 20]] {
        assert_eq!(lent(bad), [], "{bad:?}");
    }
}

#[test]
fn the_watermark_lets_results_go() {
    let t = setup();
    for _ in 0..3 {
        t.run(t.fs.create(&t.root, &at("f"), 0o644, RW)).unwrap();
    }
    t.run(async {
        // Dropped before it is sent or answered: its number counts as answered.
        let place = at("f");
        let mut future = Box::pin(t.fs.unlink(&t.root, &place));
        t.fake.fault(Op::Unlink, Fault::Hang);
        std::future::poll_fn(|cx| {
            _ = future.as_mut().poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
    });
    let ticket = t.fs.core.cluster.sessions.begin().unwrap();
    assert_eq!(
        ticket.session.standing(saker_types::NodeId::Coordinator, saker_runtime::time::now()).0,
        ticket.seq
    );
}

#[test]
fn a_lost_session_is_opened_anew_unless_the_outcome_is_unknown() {
    let t = setup();
    let lost = || Error::of_class(Class::SessionLost, Errno::EIO);
    t.create("f");
    t.fake.fault(Op::Create, Fault::Answer(lost()));
    t.create("g");
    t.fake.fault(Op::Create, Fault::AnswerLost);
    t.fake.fault(Op::Create, Fault::Answer(lost()));
    let unknown = t.run(t.fs.create(&t.root, &at("h"), 0o644, RW));
    assert_eq!(unknown.err().unwrap().errno(), Errno::EIO);
    t.create("i");
}

#[test]
fn a_moved_file_is_followed_and_its_handle_learns() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"data");
    let mut model = t.fake.model();
    let row = model.files.remove(&b"f"[..]).unwrap();
    model.files.insert(Bytes::from_static(b"elsewhere"), row);
    drop(model);
    t.flush(&file);
    assert_eq!(t.content("elsewhere"), b"data");
    assert_eq!(file.locator().name, "elsewhere");
    t.fake.log();
    t.write(&file, 0, b"D");
    t.flush(&file);
    assert_eq!(t.fake.log(), ["close"]);
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
        let truncate = move |model: &mut crate::fake::Model| {
            model.truncate(&Bytes::from_static(b"f"), cut);
        };
        t.fake.fault(Op::ChunkWrite, Fault::Before(Box::new(truncate)));
        t.flush(&file);
        let mut expected = pattern(50_000, 3)[..cut as usize].to_vec();
        expected.resize(60_000, 0);
        expected.extend_from_slice(b"later");
        assert!(t.content("f") == expected, "cut to {cut}");
        assert_eq!(file.entry().attr.size, 60_005);
    }
}

#[test]
fn an_append_that_meets_a_truncation_goes_to_the_end() {
    for (cut, refused) in [(0, true), (100, true), (100, false)] {
        let t = setup();
        let file = t.create("f");
        t.write(&file, 0, &pattern(50_000, 3));
        t.flush(&file);
        let file = t.open("f", APPEND);
        // Somebody else truncates it, and appends.
        let truncate = move |model: &mut Model| {
            model.truncate(&Bytes::from_static(b"f"), cut);
            model.add_to("f", |row| row.attr.size += 10);
        };
        let line = pattern(6_000, 4);
        let mut expected = pattern(50_000, 3)[..cut as usize].to_vec();
        expected.resize(cut as usize + 10, 0);
        if refused {
            t.fake.fault(Op::ChunkWrite, Fault::Before(Box::new(truncate)));
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
        let truncate = |model: &mut Model| model.truncate(&Bytes::from_static(b"f"), 100);
        t.fake.fault(op, Fault::Before(Box::new(truncate)));
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
    t.fake.fault(Op::ChunkWrite, Fault::Answer(Errno::ENOSPC.into()));
    assert_eq!(t.run(file.write(0, &pattern(6_000, 4))).unwrap_err().errno(), Errno::ENOSPC);
    t.flush(&file);
    assert_eq!((t.content("f").len(), file.entry().attr.size), (6_000, 6_000));
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
fn setattr_comes_after_the_writes_and_close_leaves_its_times() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"abcdef");
    let handle = At::handle(file.locator());
    t.fake.log();
    let change = SetAttr { mtime: Some(SetTime::At(77)), ..SetAttr::default() };
    let entry = t.run(t.fs.setattr(&t.root, &handle, &change)).unwrap();
    assert_eq!(entry.attr.mtime_ns, 77);
    t.flush(&file);
    assert_eq!(t.fake.log(), ["close", "setattr"]);
    assert_eq!(t.run(t.fs.getattr(&t.root, &at("f"))).unwrap().attr.mtime_ns, 77);
    let cut = SetAttr { size: Some(3), ..SetAttr::default() };
    t.run(t.fs.setattr(&t.root, &handle, &cut)).unwrap();
    let grow = SetAttr { size: Some(5), ..SetAttr::default() };
    t.run(t.fs.setattr(&t.root, &handle, &grow)).unwrap();
    assert_eq!(t.read(&file, 0, 9), &b"abc\0\0"[..]);
}

#[test]
fn attributes_cover_what_was_written_here() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"abc");
    for entry in [
        t.run(t.fs.getattr(&t.root, &At::handle(file.locator()))).unwrap(),
        t.run(t.fs.lookup(&t.root, &at("f"))).unwrap(),
    ] {
        assert_eq!(entry.attr.size, 3);
    }
    t.write(&file, 3, b"d");
    assert_eq!(t.run(t.fs.lookup(&t.root, &at("f"))).unwrap().attr.size, 4);
    t.write(&file, 4, b"e");
    let mut listing = t.fs.readdir(&t.root, &Locator::root(), 0);
    assert_eq!(t.run(listing.next()).unwrap().unwrap().attr.size, 5);
    assert_eq!(t.content("f"), b"abcde");
}

#[test]
fn attributes_are_not_older_than_the_question() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"abc");
    let inode = t.fs.core.inodes.get(file.locator().id).unwrap();
    t.run(async {
        // Another call closes the file.
        let mut closing = inode.writer.lock().await;
        let by_handle = At::handle(file.locator());
        let mut asked = pin!(t.fs.getattr(&t.root, &by_handle));
        assert!(poll!(asked.as_mut()).is_pending());
        t.fs.core.write_back(&inode, &mut closing).await;
        // After what that is told, and before it has finished.
        t.fake.model().files.get_mut(&b"f"[..]).unwrap().attr.nlink = 2;
        drop(closing);
        assert_eq!(asked.await.unwrap().attr.nlink, 2);
    });
}

/// An open, or a lookup, is answered; then the owner hears of what had been written before it was sent; then the answer
/// arrives.
#[test]
fn no_answer_is_older_than_what_was_written_before_the_question() {
    for (closes, opens) in [(false, false), (false, true), (true, false), (true, true)] {
        let t = setup();
        let file = t.create("f");
        t.write(&file, 0, &pattern(20_000, 1));
        t.run(async {
            t.fake.fault(if opens { Op::Open } else { Op::Lookup }, Fault::Slow);
            let place = at("f");
            let mut asked = pin!(async {
                match opens {
                    true => t.fs.open(&t.root, &place, RW).await.map(|(f, entry)| (Some(f), entry)),
                    false => t.fs.lookup(&t.root, &place).await.map(|entry| (None, entry)),
                }
            });
            assert!(poll!(asked.as_mut()).is_pending());
            file.flush().await.unwrap();
            let _still_open = (!closes).then(|| file.clone());
            file.release().await;
            t.fake.deliver_answers();
            let (again, entry) = asked.await.unwrap();
            assert_eq!(entry.attr.size, 20_000, "closed: {closes}, opened: {opens}");
            if let Some(again) = again {
                assert!(again.read(0, 30_000).await.unwrap() == pattern(20_000, 1));
            }
        });
    }
}

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
                Fault::Before(Box::new(move |model| {
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

#[test]
fn an_open_small_file_is_asked_about_again_after_a_while() {
    let t = setup();
    t.fake.model().add("f", b"old");
    let file = t.open("f", RW);
    t.fake.model().add_to("f", |row| row.inline = Bytes::from_static(b"new"));
    assert_eq!(t.read(&file, 0, 3), "old", "close-to-open: what was there at the open");
    saker_runtime::time::sleep(std::time::Duration::from_millis(1_050));
    t.fake.log();
    assert_eq!(t.read(&file, 0, 3), "new");
    assert_eq!(t.read(&file, 0, 9), "new");
    assert_eq!(t.fake.log(), ["getattr", "open"]);
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
fn what_is_never_synced_is_written_out_when_its_writer_pauses() {
    let t = setup();
    let file = t.create("f");
    let inode = t.fs.core.inodes.get(file.locator().id).unwrap();
    let written_at = || inode.with(|s| s.written_at());
    let look = |after: Duration| t.run(t.fs.core.write_out_old(written_at() + after));
    for len in [10, 20_000, 30_000] {
        t.write(&file, 0, &pattern(len, 1));
        look(Duration::ZERO);
        assert!(t.fs.is_dirty(file.locator().id), "its writer may go on");
        look(Duration::from_secs(1));
        assert!(t.content("f") == pattern(len, 1));
        assert!(!t.fs.is_dirty(file.locator().id), "its owner knows");
    }
    t.fake.log();
    look(Duration::from_secs(1));
    assert!(t.fake.log().is_empty(), "once");
}

#[test]
fn what_is_never_synced_is_written_out_in_time_while_its_writer_goes_on() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"abc");
    let inode = t.fs.core.inodes.get(file.locator().id).unwrap();
    let (since, max) = (inode.with(|s| s.dirty_since()), t.fs.core.options.write_back);
    for (after, is_old) in [(max - Duration::from_secs(1), false), (max, true)] {
        let now = since + after;
        inode.with(|s| s.set_written_at(now));
        t.run(t.fs.core.write_out_old(now));
        assert_eq!(!t.fs.is_dirty(file.locator().id), is_old, "{after:?}");
    }
    assert_eq!(t.content("f"), b"abc");
}

fn lock(t: &Setup, file: &File) {
    let lock = Lock { exclusive: true, ..Lock::whole(7, true) };
    t.run(file.set_lock(&lock, Duration::ZERO)).unwrap();
}

#[test]
fn under_a_lock_that_is_lost_nothing_is_written() {
    // Heard of by a renewal, or by a write that comes when it is overdue.
    for overdue in [false, true] {
        for len in [100, 20_000] {
            let t = setup();
            let (file, other) = (t.create("f"), t.open("f", RW));
            let errno = |result: saker_types::Result<()>| result.unwrap_err().errno();
            lock(&t, &file);
            t.write(&file, 0, &pattern(len, 1));
            t.run(file.fsync()).unwrap();
            t.write(&file, 0, &pattern(len + 50, 2));
            t.fake.model().locked.clear();
            match overdue {
                true => t.fs.core.locks.forget_leases(),
                false => t.run(t.fs.core.locks.renew(&t.fs.core.cluster, &t.fs.core.inodes)),
            }
            t.fake.log();
            assert_eq!(errno(t.run(file.write(0, b"x")).map(drop)), Errno::EIO);
            assert_eq!(errno(t.run(file.fsync())), Errno::EIO);
            assert_eq!(errno(t.run(file.unlock(&Lock::whole(7, true)))), Errno::EIO);
            assert_eq!(
                errno(t.run(file.set_lock(&Lock::whole(7, true), Duration::ZERO))),
                Errno::EIO
            );
            assert_eq!(errno(t.run(other.fsync())), Errno::EIO, "it may have been its data");
            t.run(other.fsync()).unwrap();
            assert!(t.content("f") == pattern(len, 1), "{len} {overdue}");
            assert!(t.read(&other, 0, len + 50) == pattern(len, 1));
            // Who has relied on nothing goes on, and so does who begins anew.
            t.write(&other, 0, b"other");
            t.flush(&other);
            t.run(file.release());
            let again = t.open("f", RW);
            lock(&t, &again);
            t.write(&again, 5, b"again");
            t.run(again.unlock(&Lock::whole(7, true))).unwrap();
            assert_eq!(t.content("f")[..10], b"otheragain"[..]);
        }
    }
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
fn what_is_written_to_many_files_and_not_out_yet_is_bounded() {
    const TOTAL: usize = 1 << 20;
    const PART: usize = 50_000;
    let options = ClientOptions { write_buffer_total_bytes: TOTAL, ..ClientOptions::default() };
    let t = setup_with(options);
    let held = || t.gauge("saker_client_unwritten_bytes");
    let names = ["a", "b", "c", "d", "e", "f"];
    let files = names.map(|name| t.create(name));
    let data = pattern(500_000, 3);
    let mut most = 0;
    for (part, at) in data.chunks(PART).zip((0..).step_by(PART)) {
        for file in &files {
            t.write(file, at, part);
            most = most.max(held());
        }
    }
    assert!((TOTAL as i64 - PART as i64..=TOTAL as i64).contains(&most), "{most} bytes");
    assert!(held() > 0);
    for (file, name) in files.iter().zip(names) {
        t.flush(file);
        assert!(t.content(name) == data);
    }
    assert_eq!(held(), 0);
}

#[test]
fn what_a_truncation_drops_is_not_held() {
    let t = setup();
    let held = || t.gauge("saker_client_unwritten_bytes");
    let file = t.create("f");
    t.write(&file, 0, &pattern(300_000, 1));
    assert_eq!(held(), 300_000);
    let other = t.open("f", TRUNC);
    assert_eq!(held(), 0);
    assert_eq!(t.read(&other, 0, 10), "");
}

#[test]
fn who_writes_on_does_not_pay_for_files_that_are_idle() {
    const TOTAL: usize = 1 << 20;
    const IDLE: usize = 20;
    let options = ClientOptions { write_buffer_total_bytes: TOTAL, ..ClientOptions::default() };
    let t = setup_with(options);
    let held = || t.gauge("saker_client_unwritten_bytes");
    let names: [&'static str; IDLE] = std::array::from_fn(|n| &"abcdefghijklmnopqrst"[n..=n]);
    let idle = names.map(|name| t.create(name));
    let data = pattern(TOTAL / IDLE, 6);
    idle.iter().for_each(|file| t.write(file, 0, &data));
    assert!(held() > (TOTAL - IDLE) as i64 && held() <= TOTAL as i64);
    let file = t.create("busy");
    let sent = || t.fake.log().iter().filter(|op| **op == "chunk_write").count();
    sent();
    t.write(&file, 0, &pattern(5_000, 1));
    // To two stores each; whether its own comes after is a matter of when they answer.
    assert!((2 * IDLE..=2 * IDLE + 2).contains(&sent()));
    for n in 1..=100 {
        t.write(&file, n * 5_000, &pattern(5_000, 1));
    }
    assert_eq!(sent(), 0);
    for (file, name) in idle.iter().zip(names) {
        t.flush(file);
        assert!(t.content(name) == data);
    }
    t.flush(&file);
    assert!(t.content("busy") == pattern(5_000, 1).repeat(101));
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
fn lose_power(model: &mut Model) {
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
            t.fake.fault(Op::ChunkSync, Fault::Before(Box::new(lose_power)));
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
    let close = move |model: &mut Model| model.add_to("f", |row| row.unflushed = vec![others]);
    t.fake.fault(Op::Fsync, Fault::Before(Box::new(close)));
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
fn a_failed_write_is_reported_once_by_each_handle() {
    let t = setup();
    let (a, b) = (t.create("f"), t.open("f", RW));
    t.write(&a, 0, &pattern(6_000, 1));
    t.fake.fault(Op::ChunkWrite, Fault::Answer(Errno::ENOSPC.into()));
    assert_eq!(t.run(a.flush()).unwrap_err().errno(), Errno::ENOSPC);
    assert!(t.run(a.flush()).is_ok());
    assert_eq!(t.run(b.fsync()).unwrap_err().errno(), Errno::ENOSPC);
    assert!(t.run(b.fsync()).is_ok());
    let late = t.open("f", RW);
    assert!(t.run(late.flush()).is_ok(), "it was opened after the failure");
}

#[test]
fn reads_go_to_another_replica() {
    let t = setup();
    let file = t.create("f");
    let data = pattern(6_000, 4);
    t.write(&file, 0, &data);
    t.flush(&file);
    t.fake.fault(Op::ChunkRead, Fault::Answer(Errno::EIO.into()));
    assert!(t.read(&file, 0, 6_000) == data);
    t.fake.fault(Op::ChunkRead, Fault::Lost);
    assert!(t.read(&file, 1, 6_000) == data[1..]);
    for _ in 0..4 {
        t.fake.fault(Op::ChunkRead, Fault::Answer(Errno::EIO.into()));
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
fn a_listing_is_merged_and_can_be_resumed_everywhere() {
    let t = setup();
    let names: Vec<String> = (0..700).map(|i| format!("file-{i}")).collect();
    for name in &names {
        let place = At::child(Locator::root(), name.as_bytes());
        t.run(t.fs.create(&t.root, &place, 0o644, RW)).unwrap();
    }
    let list = |cookie| {
        let mut stream = t.fs.readdir(&t.root, &Locator::root(), cookie);
        let mut items = Vec::new();
        while let Some(item) = t.run(stream.next()).unwrap() {
            items.push((item.name, item.cookie));
        }
        items
    };
    let all = list(0);
    assert_eq!(all.len(), names.len());
    assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].1), "cookies ascend");
    for resume in [0, 1, 255, 256, 512, 698, 699] {
        assert_eq!(list(all[resume].1), all[resume + 1..], "after {resume}");
    }
    assert_eq!(list(2), all);
}

#[test]
fn a_dead_node_is_given_up_at_the_deadline() {
    let timeout = std::time::Duration::from_millis(60);
    let (fake, fs) = start(ClientOptions { timeout, ..ClientOptions::default() });
    for _ in 0..100_000 {
        fake.fault(Op::Lookup, Fault::Lost);
    }
    let error = fs.block_on(fs.lookup(&Caller::root(), &at("f"))).unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT);
    assert!(error.text.contains("lookup to shard"), "{error}");
    let answered = Fault::Answer(Error::retry("busy"));
    fake.model().clear_faults();
    fake.fault(Op::Lookup, answered);
    assert_eq!(
        fs.block_on(fs.lookup(&Caller::root(), &at("f"))).unwrap_err().errno(),
        Errno::ENOENT
    );
}

#[test]
fn requests_are_counted_by_receiver() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, &pattern(6_000, 1));
    t.flush(&file);
    let stats = t.fs.stats();
    let count = |op: &str, to: &str| {
        let found = stats.requests.iter().find(|(name, node, _)| *name == op && node == to);
        found.map_or(0, |(_, _, n)| *n)
    };
    assert_eq!(count("create", "shard-0") + count("create", "shard-1"), 1);
    assert_eq!((count("chunk_write", "store-0"), count("chunk_write", "store-1")), (1, 1));
    assert_eq!(count("map", "coordinator"), 1);
    let text = t.fs.metrics().encode();
    let line = "saker_client_requests_total{op=\"chunk_write\",to=\"store-1\"} 1";
    assert!(text.lines().any(|l| l == line), "{text}");
}

#[test]
fn closing_the_client_writes_out_and_ends_the_session() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"kept");
    drop(file);
    t.fs.close();
    assert_eq!(t.content("f"), b"kept");
    assert_eq!(t.fake.log(), ["create", "close", "renew", "close_session"]);
    t.create("g");
}

/// What a client has closed, by number of the last open, as its owner is told.
#[test]
fn owners_are_told_what_was_closed() {
    let t = setup();
    let told = || {
        t.run(t.fs.core.tell_closed());
        let renewals = std::mem::take(&mut t.fake.model().renewals);
        renewals.iter().for_each(|told| assert_eq!(told.hold.number, told.closed_below));
        renewals.into_iter().map(|told| (told.closed, told.closed_below)).collect::<Vec<_>>()
    };
    let (first, second) = (t.create("f"), t.open("f", RW));
    let id = first.locator().id;
    drop(first);
    assert_eq!(told(), [], "it is open");
    t.write(&second, 0, b"unsaved");
    drop(second);
    assert_eq!(told(), [], "something waits to be written");
    t.run(t.fs.getattr(&t.root, &at("f"))).unwrap();
    let again = t.open("f", RW);
    assert_eq!(told(), [], "it is open again");
    drop(again);
    assert_eq!(told(), [(vec![id], 4)]);
    assert_eq!(told(), []);
    // An open that is under way may be of the same file.
    t.fake.fault(Op::Open, Fault::Slow);
    let place = at("f");
    let mut slow = pin!(t.fs.open(&t.root, &place, RW));
    assert!(t.run(async { poll!(slow.as_mut()) }).is_pending());
    drop(t.open("f", RW));
    assert_eq!(told(), [], "it may be open");
    t.fake.deliver_answers();
    let opened = t.run(slow).unwrap().0;
    assert_eq!(told(), [], "it is open again");
    drop(opened);
    assert_eq!(told(), [(vec![id], 6)]);
}

/// Each of its shards says that a file is at the other: it was moved there and back.
#[test]
fn nobody_is_looked_for_in_a_circle() {
    let t = setup();
    let file = t.create("f");
    let here = file.locator();
    let there = Locator { name: b"elsewhere"[..].into(), ..here.clone() };
    drop(file);
    t.fake.model().elsewhere = [there, here].into_iter().cycle().take(20).collect();
    t.run(t.fs.core.tell_closed());
    assert!(t.fake.model().renewals.len() <= 3);
}

#[test]
fn futures_may_move_between_threads() {
    fn check<T: Send>(_: &T) {}
    let t = setup();
    let file = t.create("f");
    check(&file.read(0, 1));
    check(&file.write(0, b"x"));
    check(&file.flush());
    check(&t.fs.getattr(&t.root, &at("f")));
    check(&t.fs.resolve(&t.root, b"/f", true));
    check(&t.fs.statfs());
    check(&t.fs.readdir(&t.root, &Locator::root(), 0).next());
}

/// A store that stands still is not a full one.
#[test]
fn fallocate_waits_for_stores_that_do_not_answer() {
    let t = setup();
    let file = t.create("f");
    let stores = t.fs.core.cluster.routes().map.stores.len();
    let lose_all = || (0..stores).for_each(|_| t.fake.fault(Op::StoreStat, Fault::Lost));
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

/// A write that was sent twice is executed once more after later writes of the same bytes.
#[test]
fn a_late_attempt_of_a_write_changes_nothing() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, &pattern(5_000, 1));
    t.fake.fault(Op::ChunkWrite, Fault::Late);
    t.flush(&file);
    let new = pattern(5_000, 2);
    t.write(&file, 0, &new);
    t.flush(&file);
    assert_eq!(t.fake.deliver_late(), 1);
    assert!(t.content("f") == new);
    t.fake.fault(Op::ChunkWrite, Fault::Late);
    t.run(file.fallocate(Fallocate::Punch, 0, 5_000)).unwrap();
    t.write(&file, 0, &new);
    t.flush(&file);
    assert_eq!(t.fake.deliver_late(), 1);
    assert!(t.content("f") == new, "a late hole");
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
    let longer = |model: &mut crate::fake::Model| model.add_to("f", |row| row.attr.size = 9_000);
    t.fake.fault(Op::Close, Fault::Before(Box::new(longer)));
    t.run(file.fallocate(Fallocate::Grow, 0, 500)).unwrap();
    assert_eq!(t.content("f").len(), 9_000);
}
