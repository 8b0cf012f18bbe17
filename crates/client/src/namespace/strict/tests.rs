//! Names and attributes: whose word counts, and what is newer.
#![allow(clippy::unwrap_used)]

use std::pin::pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::poll;
use saker_types::wire::{At, KeptDir, KeptDirs, Op};
use saker_types::{Errno, Locator};

use super::*;
use crate::fake::RequestFault;
use crate::fake::setup::{RW, at, pattern, setup};
use crate::{Caller, Lessee, SetAttr, SetTime};

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
        t.fake.fault(Op::Lookup, RequestFault::Answer(Errno::ENOENT.into()));
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
            t.fake.fault(if opens { Op::Open } else { Op::Lookup }, RequestFault::Slow);
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
fn only_lengths_are_judged_here() {
    let long = vec![b'x'; limits::NAME_BYTES_MAX + 1];
    let mut at = At::child(Locator::root(), b"ok");
    assert!(check_place(&at).is_ok());
    at.path.push(long.into());
    let error = check_place(&at).unwrap_err();
    assert_eq!((error.errno(), error.component), (Errno::ENAMETOOLONG, Some(1)));
    at.path = vec![Bytes::from_static(b"x"); limits::COMPONENTS_MAX + 1];
    assert_eq!(check_place(&at).unwrap_err().errno(), Errno::ENAMETOOLONG);
}
