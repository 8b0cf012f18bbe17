//! Decoupled subtrees on a real cluster: what their client sees, what others see, and what a merge
//! makes of both.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod client_support;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use client_support::{Cluster, path};
use saker_client::{Caller, ClientOptions, Fs, OpenFlags, SetAttr, SetTime};
use saker_sim::wait::until;
use saker_types::policy::Policy;
use saker_types::wire::{At, Entry};
use saker_types::{Errno, FileKind, Locator, Result};

const RW: OpenFlags = OpenFlags::READ_WRITE;

/// A cluster with a directory `/sub` under a policy, and a client that works in it.
struct Subtree {
    t: Cluster,
    policy: u64,
}

impl Subtree {
    /// `prepare` fills the directory before it gets the policy.
    fn start(pairs: &[(&str, &str)], prepare: impl FnOnce(&Cluster)) -> Subtree {
        let t = Cluster::start(3, 2);
        t.run(t.fs.mkdir(&t.root, &path("/sub"), 0o755)).unwrap();
        prepare(&t);
        // All of it can be done through files in the stores, too.
        let apply = std::env::var("SAKER_TEST_APPLY").unwrap_or_default();
        let stored = format!("append_client_journal+{apply}");
        let pairs = pairs.iter().map(|pair| match pair {
            ("consistency", "weak") if !apply.is_empty() => ("consistency", &*stored),
            pair => *pair,
        });
        let policy = Policy::from_pairs(pairs).unwrap();
        let policy = t.run(t.fs.set_policy(&t.root, &path("/sub"), &policy)).unwrap();
        Subtree { t, policy }
    }

    fn merge(&self) -> u64 {
        let report = self.t.run(self.t.fs.merge_subtree(&self.t.root, &path("/sub"), false));
        let report = report.unwrap();
        assert_eq!(report.conflicts, []);
        report.names
    }
}

fn write(fs: &Fs, t: &Cluster, at: &str, data: &[u8]) -> Result<Entry> {
    fs.block_on(async {
        let (file, _) = fs.create(&t.root, &path(at), 0o644, RW).await?;
        file.write(0, data).await?;
        file.flush().await?;
        file.release().await;
        fs.getattr(&t.root, &path(at)).await
    })
}

fn read(fs: &Fs, t: &Cluster, at: &str) -> Result<Vec<u8>> {
    fs.block_on(async {
        let flags = OpenFlags { write: false, ..RW };
        let (file, entry) = fs.open(&t.root, &path(at), flags).await?;
        let data = file.read(0, entry.attr.size as usize + 1).await?;
        file.release().await;
        Ok(data.to_vec())
    })
}

/// Names below a directory, with kind, permissions, size, link count and mtime of each.
fn tree(fs: &Fs, t: &Cluster, at: &str) -> Result<BTreeMap<String, (u32, u64, u32, u64)>> {
    let root = fs.block_on(fs.lookup(&t.root, &path(at)))?.loc;
    let (mut found, mut todo) = (BTreeMap::new(), vec![(String::new(), root)]);
    while let Some((prefix, dir)) = todo.pop() {
        let mut listing = fs.readdir(&t.root, &dir, 0);
        while let Some(item) = fs.block_on(listing.next())? {
            let name = format!("{prefix}/{}", String::from_utf8_lossy(&item.name));
            let attr = fs.block_on(fs.getattr(&t.root, &At::handle(item.loc.clone())))?.attr;
            found.insert(name.clone(), (attr.mode, attr.size, attr.nlink, attr.mtime_ns));
            if attr.is_dir() {
                todo.push((name, item.loc));
            }
        }
    }
    Ok(found)
}

/// A client that keeps journals of subtrees in the directory.
fn journalling(t: &Cluster) -> (Fs, tempfile::TempDir) {
    let tmp = tempfile::tempdir().unwrap();
    (connect_in(t, tmp.path()), tmp)
}

fn connect_in(t: &Cluster, dir: &Path) -> Fs {
    let journal_dir = Some(dir.join("journals"));
    t.connect_with(ClientOptions { journal_dir, ..ClientOptions::default() })
}

fn errno<T>(result: Result<T>) -> Errno {
    result.err().unwrap().errno()
}

#[test]
fn others_see_all_at_once_when_it_is_merged() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |_| ());
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    t.run(fs.mkdir(&t.root, &path("/sub/d"), 0o750)).unwrap();
    t.run(fs.mkdir(&t.root, &path("/sub/d/e"), 0o700)).unwrap();
    let big: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    for n in 0..50 {
        write(fs, t, &format!("/sub/d/f{n}"), format!("file {n}").as_bytes()).unwrap();
    }
    write(fs, t, "/sub/d/e/big", &big).unwrap();
    write(fs, t, "/sub/top", b"at the top").unwrap();
    t.run(fs.symlink(&t.root, &path("/sub/link"), b"d/f1")).unwrap();
    t.run(fs.link(&t.root, &path("/sub/d/f2"), &path("/sub/d/second"))).unwrap();
    t.run(fs.rename(&t.root, &path("/sub/d/f3"), &path("/sub/moved"), false, &[])).unwrap();
    t.run(fs.unlink(&t.root, &path("/sub/d/f4"))).unwrap();
    let stamp =
        SetAttr { mtime: Some(SetTime::At(4_000_000_000_000_000_000)), ..SetAttr::default() };
    t.run(fs.setattr(&t.root, &path("/sub/d"), &stamp)).unwrap();
    t.run(fs.setxattr(&t.root, &path("/sub/top"), b"user.colour", b"red", 0)).unwrap();
    let mine = tree(fs, t, "/sub").unwrap();
    assert_eq!(mine.len(), 50 + 2 + 2 + 1 + 1 - 1);
    assert_eq!(tree(&other, t, "/sub").unwrap(), BTreeMap::new(), "nothing is merged yet");
    assert_eq!(s.merge(), mine.len() as u64);
    assert_eq!(tree(&other, t, "/sub").unwrap(), mine);
    assert_eq!(tree(fs, t, "/sub").unwrap(), mine);
    assert!(read(&other, t, "/sub/d/e/big").unwrap() == big);
    assert_eq!(read(&other, t, "/sub/moved").unwrap(), b"file 3");
    let value = other.block_on(other.getxattr(&t.root, &path("/sub/top"), b"user.colour"));
    assert_eq!(&value.unwrap()[..], b"red");
    assert_eq!(s.merge(), 0, "nothing has changed since");
    // It goes on.
    write(fs, t, "/sub/d/later", b"later").unwrap();
    t.run(fs.unlink(&t.root, &path("/sub/d/f5"))).unwrap();
    write(fs, t, "/sub/d/f6", b"changed, and longer than before").unwrap();
    assert_eq!(errno(read(&other, t, "/sub/d/later")), Errno::ENOENT);
    assert_eq!(s.merge(), 3);
    assert_eq!(read(&other, t, "/sub/d/later").unwrap(), b"later");
    assert_eq!(errno(read(&other, t, "/sub/d/f5")), Errno::ENOENT);
    assert_eq!(read(&other, t, "/sub/d/f6").unwrap(), b"changed, and longer than before");
    assert_eq!(tree(&other, t, "/sub").unwrap(), tree(fs, t, "/sub").unwrap());
    other.close().unwrap();
}

#[test]
fn times_of_directories_that_are_set_back_are_merged() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
        for name in ["old", "old/gone", "old/gone/below"] {
            t.run(t.fs.mkdir(&t.root, &path(&format!("/sub/{name}")), 0o755)).unwrap();
        }
    });
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    // As tar(1) does: what is in a directory first, then its time.
    let set_back = |at: &str, seconds: u64| {
        let mtime = Some(SetTime::At(seconds * 1_000_000_000));
        let stamp = SetAttr { mtime, ..SetAttr::default() };
        t.run(fs.setattr(&t.root, &path(at), &stamp)).unwrap();
    };
    for (name, seconds) in [("new", 1_000), ("new/below", 2_000)] {
        let at = format!("/sub/{name}");
        t.run(fs.mkdir(&t.root, &path(&at), 0o755)).unwrap();
        write(fs, t, &format!("{at}/f"), b"f").unwrap();
        set_back(&at, seconds);
    }
    set_back("/sub/new", 1_000);
    for name in ["old/gone/below", "old/gone"] {
        t.run(fs.rmdir(&t.root, &path(&format!("/sub/{name}")))).unwrap();
    }
    write(fs, t, "/sub/old/f", b"f").unwrap();
    set_back("/sub/old", 3_000);
    let mine = tree(fs, t, "/sub").unwrap();
    for (name, seconds) in [("/new", 1_000), ("/new/below", 2_000), ("/old", 3_000)] {
        assert_eq!(mine[name].3, seconds * 1_000_000_000);
    }
    s.merge();
    assert_eq!(tree(&other, t, "/sub").unwrap(), mine);
    assert_eq!(tree(fs, t, "/sub").unwrap(), mine);
    // What is made in one later changes its time again.
    write(fs, t, "/sub/new/g", b"g").unwrap();
    s.merge();
    let theirs = tree(&other, t, "/sub").unwrap();
    assert!(theirs["/new"].3 > 1_000_000_000_000 && theirs["/new/below"] == mine["/new/below"]);
    other.close().unwrap();
}

#[test]
fn what_a_dead_client_wrote_to_stores_does_not_meet_what_others_write() {
    let s = Subtree::start(&[("consistency", "invisible"), ("durability", "none")], |t| {
        write(&t.fs, t, "/sub/small", b"small").unwrap();
        write(&t.fs, t, "/sub/empty", b"").unwrap();
        write(&t.fs, t, "/sub/large", &[1; 200_000]).unwrap();
    });
    let t = &s.t;
    let other = t.connect();
    for life in 0..3_u8 {
        if life > 0 {
            t.run(t.fs.reclaim(&t.root, &path("/sub"), true)).unwrap();
        }
        let dead = t.connect();
        for name in ["small", "empty"] {
            write(&dead, t, &format!("/sub/{name}"), &vec![7 + life; 300_000]).unwrap();
        }
        let cut = SetAttr { size: Some(10), ..SetAttr::default() };
        dead.block_on(dead.setattr(&t.root, &path("/sub/large"), &cut)).unwrap();
        dead.abandon();
        drop(dead);
        assert_eq!(read(&other, t, "/sub/empty").unwrap(), b"", "nothing was merged");
    }
    // The last one holds the subtree still, and others are let in.
    assert_eq!(read(&other, t, "/sub/small").unwrap(), b"small");
    write(&other, t, "/sub/small", b"their").unwrap();
    // Now it grows, and both have holes.
    let (mut small, mut empty) = (vec![0; 200_000], vec![0; 200_000]);
    for (name, at, all) in [("small", 150_000, &mut small), ("empty", 199_000, &mut empty)] {
        let data = vec![b'n'; 200_000 - at];
        all[at..].copy_from_slice(&data);
        other.block_on(async {
            let at_path = path(&format!("/sub/{name}"));
            let file = other.open(&t.root, &at_path, RW).await.unwrap().0;
            file.write(at as u64, &data).await.unwrap();
            file.flush().await.unwrap();
            file.release().await;
        });
    }
    small[..5].copy_from_slice(b"their");
    let (cut, large) =
        (SetAttr { size: Some(5), ..SetAttr::default() }, b"12345 and more".repeat(9_000));
    other.block_on(other.setattr(&t.root, &path("/sub/large"), &cut)).unwrap();
    write(&other, t, "/sub/large", &large).unwrap();
    let last = t.connect();
    for (name, data) in [("small", small), ("empty", empty), ("large", large)] {
        let found = read(&last, t, &format!("/sub/{name}")).unwrap();
        let differs = found.iter().zip(&data).position(|(a, b)| a != b);
        assert_eq!((found.len(), differs), (data.len(), None), "{name}");
    }
    last.close().unwrap();
    other.close().unwrap();
}

#[test]
fn a_listing_goes_on_when_its_directory_is_held_meanwhile() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
        t.run(t.fs.mkdir(&t.root, &path("/sub/d"), 0o755)).unwrap();
        for n in 0..1_500 {
            let at = path(&format!("/sub/d/f{n}"));
            let file = t.run(t.fs.create(&t.root, &at, 0o644, RW)).unwrap().0;
            t.run(file.release());
        }
    });
    let (t, fs) = (&s.t, &s.t.fs);
    let dir = t.run(fs.lookup(&t.root, &path("/sub/d"))).unwrap().loc;
    let mut listing = fs.readdir(&t.root, &dir, 0);
    let mut listed = Vec::new();
    // As rm -r does.
    while let Some(item) = t.run(listing.next()).unwrap() {
        t.run(fs.unlink(&t.root, &At::child(dir.clone(), &item.name))).unwrap();
        listed.push(item.name);
    }
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), 1_500);
    t.run(fs.rmdir(&t.root, &path("/sub/d"))).unwrap();
    t.run(fs.rmdir(&t.root, &path("/sub"))).unwrap();
}

#[test]
fn files_with_several_names_get_others() {
    let s = Subtree::start(&[("consistency", "invisible"), ("durability", "none")], |t| {
        write(&t.fs, t, "/sub/large", &[7; 200_000]).unwrap();
        for name in ["a", "p", "q"] {
            write(&t.fs, t, &format!("/sub/{name}"), name.as_bytes()).unwrap();
            let (from, to) = (format!("/sub/{name}"), format!("/sub/{name}2"));
            t.run(t.fs.link(&t.root, &path(&from), &path(&to))).unwrap();
        }
    });
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    let rename = |from: &str, to: &str| {
        t.run(fs.rename(&t.root, &path(from), &path(to), false, &[])).unwrap();
    };
    let unlink = |at: &str| {
        t.run(fs.unlink(&t.root, &path(at))).unwrap();
    };
    let agree = || {
        s.merge();
        let seen_by = |fs: &Fs| {
            let mut all = tree(fs, t, "/sub").unwrap();
            // Its time is that of the merge.
            all.get_mut("/d").unwrap().3 = 0;
            all
        };
        let mine = seen_by(fs);
        assert_eq!(seen_by(&other), mine);
        mine.into_iter().map(|(name, (_, _, nlink, _))| (name, nlink)).collect::<Vec<_>>()
    };
    let is = |name: &str, nlink: u32| (name.to_owned(), nlink);
    // None of the names that there were is left of one; two others have each other's.
    t.run(fs.mkdir(&t.root, &path("/sub/d"), 0o755)).unwrap();
    t.run(fs.link(&t.root, &path("/sub/a"), &path("/sub/d/c"))).unwrap();
    rename("/sub/a2", "/sub/b");
    unlink("/sub/a");
    for name in ["p2", "q2"] {
        unlink(&format!("/sub/{name}"));
    }
    rename("/sub/p", "/sub/r");
    rename("/sub/q", "/sub/p");
    rename("/sub/r", "/sub/q");
    assert_eq!(
        agree(),
        [is("/b", 2), is("/d", 2), is("/d/c", 2), is("/large", 1), is("/p", 1), is("/q", 1)]
    );
    // One gets the name of a file that has another one now, and keeps its data.
    rename("/sub/large", "/sub/d/large");
    rename("/sub/b", "/sub/large");
    agree();
    assert!(read(&other, t, "/sub/d/large").unwrap() == [7; 200_000]);
    assert_eq!(read(&other, t, "/sub/large").unwrap(), b"a");
    unlink("/sub/d/large");
    rename("/sub/large", "/sub/b");
    // One name of it is left, and is replaced; one replaces something of before.
    unlink("/sub/b");
    rename("/sub/p", "/sub/q");
    rename("/sub/d/c", "/sub/p");
    assert_eq!(agree(), [is("/d", 2), is("/p", 1), is("/q", 1)]);
    assert_eq!(read(&other, t, "/sub/p").unwrap(), b"a");
    assert_eq!(read(&other, t, "/sub/q").unwrap(), b"q");
    // Of what was made here, too.
    write(fs, t, "/sub/x", b"x").unwrap();
    t.run(fs.link(&t.root, &path("/sub/x"), &path("/sub/y"))).unwrap();
    agree();
    rename("/sub/x", "/sub/d/x");
    assert_eq!(agree(), [is("/d", 2), is("/d/x", 2), is("/p", 1), is("/q", 1), is("/y", 2)]);
    other.close().unwrap();
}

#[test]
fn what_was_there_is_seen_and_changed() {
    let s = Subtree::start(&[("consistency", "invisible"), ("durability", "none")], |t| {
        t.run(t.fs.mkdir(&t.root, &path("/sub/old"), 0o755)).unwrap();
        t.run(t.fs.mkdir(&t.root, &path("/sub/empty"), 0o755)).unwrap();
        t.run(t.fs.mkdir(&t.root, &path("/sub/old/deep"), 0o755)).unwrap();
        for name in ["a", "b", "c", "old/x", "old/y", "old/deep/z"] {
            write(&t.fs, t, &format!("/sub/{name}"), name.as_bytes()).unwrap();
        }
        t.run(t.fs.link(&t.root, &path("/sub/old/y"), &path("/sub/also"))).unwrap();
    });
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    let before = tree(&other, t, "/sub").unwrap();
    write(fs, t, "/sub/new", b"new").unwrap();
    let mut expected = before.clone();
    let made = t.run(fs.getattr(&t.root, &path("/sub/new"))).unwrap().attr;
    expected.insert("/new".to_owned(), (made.mode, made.size, made.nlink, made.mtime_ns));
    assert_eq!(tree(fs, t, "/sub").unwrap(), expected, "what was there is there");
    assert_eq!(read(fs, t, "/sub/old/deep/z").unwrap(), b"old/deep/z");
    // Remove, replace, change and move files, also out of directories that were there.
    t.run(fs.unlink(&t.root, &path("/sub/a"))).unwrap();
    t.run(fs.rename(&t.root, &path("/sub/b"), &path("/sub/c"), false, &[])).unwrap();
    t.run(fs.rename(&t.root, &path("/sub/old/x"), &path("/sub/old/deep/x"), false, &[])).unwrap();
    write(fs, t, "/sub/old/deep/z", b"written again, and longer").unwrap();
    t.run(fs.rmdir(&t.root, &path("/sub/empty"))).unwrap();
    t.run(fs.unlink(&t.root, &path("/sub/also"))).unwrap();
    let private = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    t.run(fs.setattr(&t.root, &path("/sub/old"), &private)).unwrap();
    t.run(fs.mkdir(&t.root, &path("/sub/old/made"), 0o755)).unwrap();
    write(fs, t, "/sub/old/made/f", b"f").unwrap();
    assert_eq!(tree(&other, t, "/sub").unwrap(), before);
    s.merge();
    let (mine, theirs) = (tree(fs, t, "/sub").unwrap(), tree(&other, t, "/sub").unwrap());
    let kinds = |tree: &BTreeMap<String, (u32, u64, u32, u64)>| -> Vec<_> {
        tree.iter()
            .map(|(name, (mode, size, nlink, _))| (name.clone(), *mode, *size, *nlink))
            .collect()
    };
    assert_eq!(kinds(&theirs), kinds(&mine));
    assert_eq!(read(&other, t, "/sub/c").unwrap(), b"b");
    assert_eq!(read(&other, t, "/sub/old/deep/z").unwrap(), b"written again, and longer");
    other.close().unwrap();
}

#[test]
fn a_directory_that_was_there_gives_its_name_to_something_else() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
        t.run(t.fs.mkdir(&t.root, &path("/sub/d"), 0o755)).unwrap();
        write(&t.fs, t, "/sub/d/f", b"f").unwrap();
    });
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    t.run(fs.unlink(&t.root, &path("/sub/d/f"))).unwrap();
    t.run(fs.rmdir(&t.root, &path("/sub/d"))).unwrap();
    write(fs, t, "/sub/d", b"a file now").unwrap();
    let dry = t.run(fs.merge_subtree(&t.root, &path("/sub"), true)).unwrap();
    assert_eq!(dry.conflicts, []);
    s.merge();
    assert_eq!(read(&other, t, "/sub/d").unwrap(), b"a file now");
    assert_eq!(tree(&other, t, "/sub").unwrap().len(), 1);
    other.close().unwrap();
}

#[test]
fn others_are_kept_out_if_the_policy_says_so() {
    let block = [("consistency", "weak"), ("durability", "none"), ("interfere_policy", "block")];
    let s = Subtree::start(&block, |_| ());
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    assert_eq!(tree(&other, t, "/sub").unwrap(), BTreeMap::new(), "nobody works there yet");
    write(fs, t, "/sub/f", b"mine").unwrap();
    assert_eq!(errno(write(&other, t, "/sub/g", b"theirs")), Errno::EBUSY);
    assert_eq!(errno(tree(&other, t, "/sub")), Errno::EBUSY);
    let held = other.block_on(other.policies()).unwrap();
    assert_eq!(held[0].id, s.policy);
    assert!(held[0].hold.is_some());
    // Its end merges.
    fs.close().unwrap();
    assert_eq!(read(&other, t, "/sub/f").unwrap(), b"mine");
    write(&other, t, "/sub/g", b"theirs").unwrap();
    assert_eq!(errno(read(fs, t, "/sub/g")), Errno::EBUSY);
    other.close().unwrap();
    assert_eq!(read(fs, t, "/sub/g").unwrap(), b"theirs");
}

#[test]
fn what_this_client_did_counts_where_others_have_changed_the_same() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
        for name in ["removed", "changed", "kept"] {
            write(&t.fs, t, &format!("/sub/{name}"), b"before").unwrap();
        }
    });
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    for name in ["f", "g"] {
        write(fs, t, &format!("/sub/{name}"), b"mine").unwrap();
    }
    t.run(fs.mkdir(&t.root, &path("/sub/d"), 0o755)).unwrap();
    write(fs, t, "/sub/d/x", b"mine").unwrap();
    write(fs, t, "/sub/changed", b"changed by me").unwrap();
    t.run(fs.unlink(&t.root, &path("/sub/removed"))).unwrap();
    // The other one has done something else.
    write(&other, t, "/sub/f", b"theirs").unwrap();
    write(&other, t, "/sub/only", b"theirs").unwrap();
    other.block_on(other.mkdir(&t.root, &path("/sub/g"), 0o755)).unwrap();
    write(&other, t, "/sub/g/inside", b"theirs").unwrap();
    other.block_on(other.mkdir(&t.root, &path("/sub/d"), 0o755)).unwrap();
    other.block_on(other.unlink(&t.root, &path("/sub/changed"))).unwrap();
    let names = |conflicts: &[saker_types::wire::MergeConflict]| {
        let name = |c: &saker_types::wire::MergeConflict| {
            String::from_utf8_lossy(&c.entry.name).into_owned()
        };
        let mut names: Vec<String> = conflicts.iter().map(name).collect();
        names.sort();
        names
    };
    let dry = t.run(fs.merge_subtree(&t.root, &path("/sub"), true)).unwrap();
    assert_eq!(names(&dry.conflicts), ["changed", "d", "f", "g"]);
    assert_eq!(read(&other, t, "/sub/f").unwrap(), b"theirs", "it was only asked");
    let merged = t.run(fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    assert_eq!(names(&merged.conflicts), names(&dry.conflicts));
    for (name, data) in [
        ("f", "mine"),
        ("g", "mine"),
        ("d/x", "mine"),
        ("changed", "changed by me"),
        ("only", "theirs"),
    ] {
        assert_eq!(read(&other, t, &format!("/sub/{name}")).unwrap(), data.as_bytes(), "{name}");
    }
    assert_eq!(errno(read(&other, t, "/sub/removed")), Errno::ENOENT);
    // Their directories have another name.
    let all = tree(&other, t, "/sub").unwrap();
    let aside: Vec<&String> = all.keys().filter(|name| name.contains(".conflict-")).collect();
    assert_eq!(aside.len(), 3, "{all:?}");
    assert!(aside.iter().any(|name| name.ends_with("/inside")));
    other.close().unwrap();
}

#[test]
fn a_client_that_is_started_again_goes_on() {
    let local = [("consistency", "weak"), ("durability", "local")];
    let s = Subtree::start(&local, |t| {
        write(&t.fs, t, "/sub/there", b"there").unwrap();
    });
    let t = &s.t;
    let tmp = tempfile::tempdir().unwrap();
    let connect = || connect_in(t, tmp.path());
    assert_eq!(errno(write(&t.fs, t, "/sub/f", b"x")), Errno::EOPNOTSUPP, "it has no journals");
    let first = connect();
    write(&first, t, "/sub/f", b"f").unwrap();
    first.block_on(first.mkdir(&t.root, &path("/sub/d"), 0o755)).unwrap();
    write(&first, t, "/sub/d/g", b"g").unwrap();
    first.block_on(first.unlink(&t.root, &path("/sub/there"))).unwrap();
    // As if it were killed: nothing is merged or released.
    first.abandon();
    drop(first);
    let other = t.connect();
    assert_eq!(errno(read(&other, t, "/sub/f")), Errno::ENOENT);
    write(&other, t, "/sub/new", b"x").unwrap();
    let again = connect();
    again.block_on(again.resume_subtrees());
    // Before anything below it was asked for.
    assert!(tree(&again, t, "/sub").unwrap().contains_key("/d/g"));
    assert_eq!(read(&again, t, "/sub/d/g").unwrap(), b"g");
    assert_eq!(errno(read(&again, t, "/sub/there")), Errno::ENOENT);
    write(&again, t, "/sub/d/h", b"h").unwrap();
    again.close().unwrap();
    for (name, data) in [("f", "f"), ("d/g", "g"), ("d/h", "h"), ("new", "x")] {
        assert_eq!(read(&other, t, &format!("/sub/{name}")).unwrap(), data.as_bytes());
    }
    assert_eq!(errno(read(&other, t, "/sub/there")), Errno::ENOENT);
    let entry = other.block_on(other.lookup(&t.root, &path("/sub/d"))).unwrap();
    assert_eq!(entry.attr.kind(), FileKind::Directory);
    other.close().unwrap();
    let _: Locator = entry.loc;
}

#[test]
fn a_journal_of_a_hold_that_has_ended_is_not_merged() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "local")], |_| ());
    let t = &s.t;
    let (first, tmp) = journalling(t);
    write(&first, t, "/sub/f", b"merged").unwrap();
    first.block_on(first.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    write(&first, t, "/sub/g", b"given up").unwrap();
    first.abandon();
    drop(first);
    t.run(t.fs.reclaim(&t.root, &path("/sub"), true)).unwrap();
    let other = t.connect();
    assert_eq!(read(&other, t, "/sub/f").unwrap(), b"merged");
    let again = connect_in(t, tmp.path());
    write(&again, t, "/sub/h", b"h").unwrap();
    assert_eq!(errno(read(&again, t, "/sub/g")), Errno::ENOENT);
    let aside = tmp.path().join("journals").join(format!("{:016x}.old-1", s.policy));
    assert!(aside.join("shard").exists(), "it is kept");
    // The same hold goes on, also after merges.
    again.block_on(again.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    write(&again, t, "/sub/i", b"i").unwrap();
    again.abandon();
    drop(again);
    let last = connect_in(t, tmp.path());
    assert_eq!(read(&last, t, "/sub/i").unwrap(), b"i");
    last.close().unwrap();
    let names: Vec<String> = tree(&other, t, "/sub").unwrap().into_keys().collect();
    assert_eq!(names, ["/f", "/h", "/i"]);
    assert!(aside.exists());
    other.close().unwrap();
}

/// Polls a future so many times at most.
async fn polled<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|cx| match left {
        0 => Poll::Ready(None),
        _ => {
            left -= 1;
            future.as_mut().poll(cx).map(Some)
        }
    })
    .await
}

#[test]
fn whenever_a_client_is_killed_while_it_merges_each_name_is_there_once() {
    let t = Cluster::start(3, 1);
    let local = [("consistency", "weak"), ("durability", "local")];
    let other = t.connect();
    for times in 0.. {
        let sub = format!("/sub{times}");
        let at = |name: &str| format!("{sub}/{name}");
        t.run(t.fs.mkdir(&t.root, &path(&sub), 0o755)).unwrap();
        for name in ["changed", "removed"] {
            write(&t.fs, &t, &at(name), b"before").unwrap();
        }
        let policy = Policy::from_pairs(local).unwrap();
        t.run(t.fs.set_policy(&t.root, &path(&sub), &policy)).unwrap();
        let (fs, tmp) = journalling(&t);
        fs.block_on(fs.mkdir(&t.root, &path(&at("d")), 0o755)).unwrap();
        for name in ["a", "b", "c", "d/e", "changed"] {
            write(&fs, &t, &at(name), name.as_bytes()).unwrap();
        }
        fs.block_on(fs.unlink(&t.root, &path(&at("removed")))).unwrap();
        let sub_path = path(&sub);
        let merge = fs.merge_subtree(&t.root, &sub_path, false);
        let merged = fs.block_on(polled(merge, times));
        fs.abandon();
        drop(fs);
        let again = connect_in(&t, tmp.path());
        for (from, to) in [("a", "moved"), ("d/e", "e"), ("changed", "d/changed")] {
            let (from, to) = (path(&at(from)), path(&at(to)));
            again.block_on(again.rename(&t.root, &from, &to, false, &[])).unwrap();
        }
        again.block_on(again.unlink(&t.root, &path(&at("b")))).unwrap();
        again.close().unwrap();
        let names: Vec<String> = tree(&other, &t, &sub).unwrap().into_keys().collect();
        assert_eq!(names, ["/c", "/d", "/d/changed", "/e", "/moved"], "{times} polls");
        assert_eq!(read(&other, &t, &at("d/changed")).unwrap(), b"changed");
        if let Some(merged) = merged {
            assert!(merged.is_ok() && times > 5);
            break;
        }
    }
    other.close().unwrap();
}

/// Inodes below a directory, by name; none of them has two names.
fn inodes(fs: &Fs, t: &Cluster, at: &str) -> BTreeMap<String, u64> {
    let names = tree(fs, t, at).unwrap().into_keys();
    let id = |name: &String| {
        let entry = fs.block_on(fs.lookup(&t.root, &path(&format!("{at}{name}")))).unwrap();
        entry.attr.id
    };
    let all: BTreeMap<String, u64> = names.map(|name| (name.clone(), id(&name))).collect();
    let ids: std::collections::BTreeSet<u64> = all.values().copied().collect();
    assert_eq!(ids.len(), all.len(), "each has a number of its own: {all:?}");
    all
}

#[test]
fn what_others_have_renamed_is_changed_where_it_is() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
        t.run(t.fs.mkdir(&t.root, &path("/sub/d"), 0o755)).unwrap();
        for name in ["a", "b", "c", "open", "d/e"] {
            write(&t.fs, t, &format!("/sub/{name}"), b"old").unwrap();
        }
    });
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    for name in ["a", "b", "c", "d/e", "d/new"] {
        write(fs, t, &format!("/sub/{name}"), b"mine").unwrap();
    }
    let open = t.run(fs.open(&t.root, &path("/sub/open"), RW)).unwrap().0;
    t.run(open.write(0, b"mine!!")).unwrap();
    let rename = |from: &str, to: &str| {
        let (from, to) = (path(from), path(to));
        other.block_on(other.rename(&t.root, &from, &to, false, &[])).unwrap();
    };
    other.block_on(other.mkdir(&t.root, &path("/sub/theirs"), 0o755)).unwrap();
    rename("/sub/a", "/sub/a2");
    // There this client does not know its way.
    rename("/sub/b", "/sub/theirs/b");
    rename("/sub/open", "/sub/theirs/open");
    other.block_on(other.unlink(&t.root, &path("/sub/c"))).unwrap();
    write(&other, t, "/sub/c", b"theirs").unwrap();
    rename("/sub/d", "/sub/d2");
    let report = t.run(fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    assert_eq!(report.kept_back, 1, "{:?}", report.conflicts);
    let names = |fs: &Fs| inodes(fs, t, "/sub").into_keys().collect::<Vec<_>>();
    let expected =
        ["/a2", "/b", "/c", "/d2", "/d2/e", "/d2/new", "/theirs", "/theirs/b", "/theirs/open"];
    assert_eq!(names(&other), expected);
    let said =
        |name: &str| String::from_utf8(read(&other, t, &format!("/sub{name}")).unwrap()).unwrap();
    let mine = ["/a2", "/b", "/c", "/d2/e", "/d2/new"].map(said);
    assert_eq!(mine, ["mine"; 5]);
    assert_eq!(["/theirs/b", "/theirs/open"].map(said), ["old"; 2]);
    // What was open is merged when it is closed; what was made again goes on.
    t.run(open.write(0, b"mine, too")).unwrap();
    t.run(open.flush()).unwrap();
    t.run(open.release());
    write(fs, t, "/sub/b", b"again").unwrap();
    write(fs, t, "/sub/d/new2", b"mine").unwrap();
    let report = t.run(fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    assert_eq!(report.kept_back, 0);
    assert_eq!(["/open", "/b", "/d2/new2"].map(said), ["mine, too", "again", "mine"]);
    inodes(&other, t, "/sub");
    fs.close().unwrap();
    assert_eq!(["/open", "/b", "/a2"].map(said), ["mine, too", "again", "mine"]);
    other.close().unwrap();
}

#[test]
fn what_is_in_a_directory_that_others_have_removed_is_not_lost() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
        for dir in ["d", "d/e", "empty"] {
            t.run(t.fs.mkdir(&t.root, &path(&format!("/sub/{dir}")), 0o755)).unwrap();
        }
        write(&t.fs, t, "/sub/d/e/old", b"old").unwrap();
        write(&t.fs, t, "/sub/empty/f", b"old").unwrap();
    });
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    for (name, data) in [("top", "top"), ("d/e/old", "mine"), ("d/e/new", "new"), ("d/f", "f")] {
        write(fs, t, &format!("/sub/{name}"), data.as_bytes()).unwrap();
    }
    t.run(fs.mkdir(&t.root, &path("/sub/d/made"), 0o755)).unwrap();
    write(fs, t, "/sub/d/made/g", b"g").unwrap();
    write(fs, t, "/sub/moved", b"moved").unwrap();
    t.run(fs.rename(&t.root, &path("/sub/moved"), &path("/sub/d/moved"), false, &[])).unwrap();
    t.run(fs.unlink(&t.root, &path("/sub/empty/f"))).unwrap();
    for name in ["/sub/d/e/old", "/sub/empty/f"] {
        other.block_on(other.unlink(&t.root, &path(name))).unwrap();
    }
    for name in ["/sub/d/e", "/sub/d", "/sub/empty"] {
        other.block_on(other.rmdir(&t.root, &path(name))).unwrap();
    }
    let report = t.run(fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    assert!(report.kept_back >= 5, "{report:?}");
    let names = || inodes(&other, t, "/sub").into_keys().collect::<Vec<_>>();
    assert_eq!(names(), ["/top"], "the rest is merged");
    assert_eq!(read(fs, t, "/sub/d/f").unwrap(), b"f", "and it is there for its holder");
    // When its holder ends they are made again.
    fs.close().unwrap();
    let expected =
        ["/d", "/d/e", "/d/e/new", "/d/e/old", "/d/f", "/d/made", "/d/made/g", "/d/moved", "/top"];
    assert_eq!(names(), expected);
    for (name, data) in [("d/e/old", "mine"), ("d/made/g", "g"), ("d/moved", "moved")] {
        assert_eq!(read(&other, t, &format!("/sub/{name}")).unwrap(), data.as_bytes());
    }
    write(&other, t, "/sub/d/after", b"nobody holds it").unwrap();
    other.close().unwrap();
}

#[test]
fn handles_from_before_the_hold_lead_into_it() {
    for first in ["create", "list", "chmod", "write"] {
        let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
            for dir in ["a", "a/b", "a/b/c"] {
                t.run(t.fs.mkdir(&t.root, &path(&format!("/sub/{dir}")), 0o755)).unwrap();
            }
            write(&t.fs, t, "/sub/a/b/c/f", b"before").unwrap();
            write(&t.fs, t, "/sub/a/b/c/g", b"before").unwrap();
            let (from, to) = (path("/sub/a/b/c/g"), path("/sub/a/h"));
            t.run(t.fs.link(&t.root, &from, &to)).unwrap();
        });
        let (t, fs) = (&s.t, &s.t.fs);
        let other = t.connect();
        let find = |name: &str| t.run(fs.lookup(&t.root, &path(name))).unwrap().loc;
        let (deep, file) = (find("/sub/a/b/c"), find("/sub/a/b/c/f"));
        let linked = find("/sub/a/b/c/g");
        let private = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        match first {
            "create" => {
                drop(t.run(fs.mkdir(&t.root, &At::child(deep.clone(), b"made"), 0o700)).unwrap())
            }
            "chmod" => {
                drop(t.run(fs.setattr(&t.root, &At::handle(file.clone()), &private)).unwrap())
            }
            "write" => {
                let (file, _) = t.run(fs.open(&t.root, &At::handle(linked.clone()), RW)).unwrap();
                t.run(file.release());
            }
            // By another name; then the directory is listed by its handle.
            _ => drop(t.run(fs.mkdir(&t.root, &path("/sub/top"), 0o700)).unwrap()),
        }
        let mut listing = fs.readdir(&t.root, &deep, 0);
        let mut names = Vec::new();
        while let Some(item) = t.run(listing.next()).unwrap() {
            names.push(item.name);
        }
        names.sort();
        let expected: &[&str] = if first == "create" { &["f", "g", "made"] } else { &["f", "g"] };
        assert_eq!(names, expected, "{first}");
        t.run(fs.setattr(&t.root, &At::handle(file), &private)).unwrap();
        t.run(fs.getattr(&t.root, &At::handle(linked))).unwrap();
        write(fs, t, "/sub/a/b/c/new", b"new").unwrap();
        let mine = tree(fs, t, "/sub").unwrap();
        assert_eq!(read(&other, t, "/sub/a/b/c/new").err().map(|e| e.errno()), Some(Errno::ENOENT));
        s.merge();
        let kinds = |tree: BTreeMap<String, (u32, u64, u32, u64)>| -> Vec<_> {
            tree.into_iter().map(|(name, (mode, size, ..))| (name, mode, size)).collect()
        };
        assert_eq!(kinds(tree(&other, t, "/sub").unwrap()), kinds(mine), "{first}");
        other.close().unwrap();
    }
}

#[test]
fn only_who_may_change_a_subtree_holds_it_and_its_owner_merges_it() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "local")], |t| {
        t.run(t.fs.mkdir(&t.root, &path("/sub/open"), 0o777)).unwrap();
        let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        t.run(t.fs.setattr(&t.root, &path("/sub/open"), &open)).unwrap();
        write(&t.fs, t, "/sub/f", b"before").unwrap();
    });
    let t = &s.t;
    let (fs, _tmp) = journalling(t);
    let user = Caller { uid: 1000, gid: 1000, ..Caller::root() };
    let is_held = || t.run(t.fs.policies()).unwrap()[0].hold.is_some();
    let refused = [
        errno(fs.block_on(fs.mkdir(&user, &path("/sub/d"), 0o755))),
        errno(fs.block_on(fs.unlink(&user, &path("/sub/f")))),
        errno(fs.block_on(fs.rename(&user, &path("/sub/f"), &path("/sub/g"), false, &[]))),
        errno(fs.block_on(fs.open(&user, &path("/sub/f"), RW))),
    ];
    assert_eq!((refused, is_held()), ([Errno::EACCES; 4], false));
    fs.block_on(fs.mkdir(&user, &path("/sub/open/d"), 0o755)).unwrap();
    assert!(is_held());
    for dry_run in [true, false] {
        let merged = fs.block_on(fs.merge_subtree(&user, &path("/sub"), dry_run));
        assert_eq!(errno(merged), Errno::EPERM);
    }
    assert_eq!(
        errno(fs.block_on(fs.getxattr(&user, &path("/sub"), b"user.saker.policy.merge"))),
        Errno::EPERM
    );
    assert_eq!(errno(t.run(t.fs.reclaim(&user, &path("/sub"), false))), Errno::EPERM);
    // Its owner may.
    let owner = SetAttr { uid: Some(1000), ..SetAttr::default() };
    fs.block_on(fs.setattr(&t.root, &path("/sub"), &owner)).unwrap();
    fs.block_on(fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    fs.block_on(fs.merge_subtree(&user, &path("/sub"), false)).unwrap();
    assert_eq!(errno(t.run(t.fs.reclaim(&user, &path("/sub"), false))), Errno::EBUSY);
    fs.close().unwrap();
}

#[test]
fn what_is_answered_while_a_client_ends_is_merged() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |_| ());
    let (t, fs) = (&s.t, &s.t.fs);
    let made = AtomicUsize::new(0);
    let names: Vec<String> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..2)
            .map(|maker| {
                let made = &made;
                scope.spawn(move || {
                    let mut names = Vec::new();
                    for n in 0.. {
                        let name = format!("{maker}-{n}");
                        let at = path(&format!("/sub/{name}"));
                        match fs.block_on(fs.mkdir(&t.root, &at, 0o755)) {
                            Ok(_) => names.push(format!("/{name}")),
                            Err(error) => {
                                assert_eq!(error.errno(), Errno::ESTALE, "{error}");
                                return names;
                            }
                        }
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                    names
                })
            })
            .collect();
        // Until each has met an end: what comes after one begins anew.
        while makers.iter().any(|maker| !maker.is_finished()) {
            let before = made.load(Ordering::Relaxed);
            until("something is made", || {
                made.load(Ordering::Relaxed) > before + 20
                    || makers.iter().any(|maker| maker.is_finished())
            });
            fs.close().unwrap();
        }
        makers.into_iter().flat_map(|maker| maker.join().unwrap()).collect()
    });
    fs.close().unwrap();
    let other = t.connect();
    let there = tree(&other, t, "/sub").unwrap();
    let lost: Vec<_> = names.iter().filter(|name| !there.contains_key(*name)).collect();
    assert!(lost.is_empty() && there.len() >= names.len(), "{lost:?}");
    other.close().unwrap();
}

#[test]
fn what_is_open_and_removed_keeps_its_data_after_a_merge() {
    let big: Vec<u8> = (0..300_000_u32).map(|n| (n % 249) as u8).collect();
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
        write(&t.fs, t, "/sub/big", &big).unwrap();
    });
    let (t, fs) = (&s.t, &s.t.fs);
    write(fs, t, "/sub/first", b"takes the hold").unwrap();
    let (file, _) = t.run(fs.open(&t.root, &path("/sub/big"), RW)).unwrap();
    t.run(fs.unlink(&t.root, &path("/sub/big"))).unwrap();
    s.merge();
    let other = t.connect();
    assert_eq!(errno(read(&other, t, "/sub/big")), Errno::ENOENT);
    for _ in 0..20 {
        // What was to be deleted would be by now: each merge asks all servers.
        write(fs, t, "/sub/first", b"again").unwrap();
        s.merge();
        assert!(t.run(file.read(0, big.len())).unwrap() == big);
    }
    t.run(file.release());
    other.close().unwrap();
}

/// Not run with the others: it takes minutes. Says what memory and time a large merge takes.
#[test]
#[ignore = "a million names"]
fn a_million_names_are_merged() {
    let names: usize = std::env::var("NAMES").map_or(1_000_000, |n| n.parse().unwrap());
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "local")], |_| ());
    let t = &s.t;
    let (fs, _tmp) = journalling(t);
    let memory = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = |key| status.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        format!("{} {}", line("VmHWM"), line("VmRSS"))
    };
    // Real time: it is what is told.
    let begun = std::time::Instant::now();
    fs.block_on(async {
        for n in 0..names {
            if n % 1000 == 0 {
                let dir = path(&format!("/sub/{}", n / 1000));
                fs.mkdir(&t.root, &dir, 0o755).await.unwrap();
            }
            let at = path(&format!("/sub/{}/{n}", n / 1000));
            fs.mknod(&t.root, &at, FileKind::Regular.bits() | 0o644, 0).await.unwrap();
        }
    });
    // Real time: it is what is told.
    println!("made in {:?}: {}", begun.elapsed(), memory());
    // Real time: it is what is told.
    let begun = std::time::Instant::now();
    let report = fs.block_on(fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    println!("merged in {:?}: {}", begun.elapsed(), memory());
    assert_eq!(report.names as usize, names + names.div_ceil(1000));
    let again = fs.block_on(fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    assert_eq!(again.names, 0);
    fs.close().unwrap();
    let other = t.connect();
    assert_eq!(tree(&other, t, "/sub/0").unwrap().len(), names.min(1000));
    other.close().unwrap();
}

#[test]
fn a_directory_of_others_is_not_removed_in_place_of_one_of_before() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
        t.run(t.fs.mkdir(&t.root, &path("/sub/d"), 0o755)).unwrap();
    });
    let (t, fs) = (&s.t, &s.t.fs);
    let other = t.connect();
    t.run(fs.rmdir(&t.root, &path("/sub/d"))).unwrap();
    other.block_on(other.rmdir(&t.root, &path("/sub/d"))).unwrap();
    other.block_on(other.mkdir(&t.root, &path("/sub/d"), 0o711)).unwrap();
    s.merge();
    assert_eq!(tree(&other, t, "/sub").unwrap()["/d"].0 & 0o777, 0o711);
    other.close().unwrap();
}

#[test]
fn fsync_in_a_subtree_waits_for_its_journal() {
    let local = [("consistency", "invisible"), ("durability", "local")];
    let s = Subtree::start(&local, |_| ());
    let t = &s.t;
    let (fs, _tmp) = journalling(t);
    write(&fs, t, "/sub/f", b"f").unwrap();
    let dir = fs.block_on(fs.lookup(&t.root, &path("/sub"))).unwrap().loc;
    let file = fs.block_on(fs.open(&t.root, &path("/sub/f"), RW)).unwrap().0;
    fs.block_on(fs.fsync_dir(&t.root, &dir)).unwrap();
    fs.block_on(fs.sync()).unwrap();
    fs.block_on(file.write(0, b"g")).unwrap();
    fs.block_on(file.fsync()).unwrap();
    fs.block_on(file.release());
    // Whoever fsyncs hears that the hold is lost.
    t.run(t.fs.reclaim(&t.root, &path("/sub"), true)).unwrap();
    until("the client hears that its hold has ended", || {
        fs.block_on(fs.fsync_dir(&t.root, &dir)).is_err()
    });
    assert_eq!(errno(fs.block_on(fs.fsync_dir(&t.root, &dir))), Errno::ESTALE);
    fs.abandon();
}

#[test]
fn the_directory_of_a_subtree_is_removed_by_who_holds_it() {
    let weak = [("consistency", "weak"), ("durability", "none")];
    let s = Subtree::start(&weak, |t| drop(write(&t.fs, t, "/sub/before", b"x").unwrap()));
    let t = &s.t;
    let rmdir = |fs: &Fs| fs.block_on(fs.rmdir(&t.root, &path("/sub")));
    let other = t.connect();
    write(&t.fs, t, "/sub/new", b"y").unwrap();
    assert_eq!(errno(rmdir(&t.fs)), Errno::ENOTEMPTY);
    t.run(t.fs.unlink(&t.root, &path("/sub/new"))).unwrap();
    t.run(t.fs.unlink(&t.root, &path("/sub/before"))).unwrap();
    assert_eq!(read(&other, t, "/sub/before").unwrap(), b"x", "nothing was merged");
    assert_eq!(errno(rmdir(&other)), Errno::EBUSY, "somebody else holds it");
    rmdir(&t.fs).unwrap();
    assert_eq!(errno(other.block_on(other.lookup(&t.root, &path("/sub")))), Errno::ENOENT);
    // Its name is free, and what comes there has no policy.
    other.block_on(other.mkdir(&t.root, &path("/sub"), 0o755)).unwrap();
    write(&other, t, "/sub/file", b"z").unwrap();
    assert_eq!(read(&t.fs, t, "/sub/file").unwrap(), b"z");
    // Held because it blocks others, and not decoupled.
    let blocks = Policy::from_pairs([("interfere_policy", "block")]).unwrap();
    t.run(t.fs.set_policy(&t.root, &path("/sub"), &blocks)).unwrap();
    t.run(t.fs.unlink(&t.root, &path("/sub/file"))).unwrap();
    assert_eq!(errno(rmdir(&other)), Errno::EBUSY);
    rmdir(&t.fs).unwrap();
}

/// Does steps in a directory: `mkdir a`, `rmdir a`, `write a`, `rm a`, `mv a b`, `swap a b`.
fn do_steps(fs: &Fs, t: &Cluster, top: &str, steps: &[&str]) {
    let root = &t.root;
    for step in steps {
        let words: Vec<&str> = step.split(' ').collect();
        let at = |n: usize| path(&format!("{top}/{}", words[n]));
        let done = match words[0] {
            "mkdir" => fs.block_on(fs.mkdir(root, &at(1), 0o755)).map(drop),
            "rmdir" => fs.block_on(fs.rmdir(root, &at(1))).map(drop),
            "write" => write(fs, t, &format!("{top}/{}", words[1]), step.as_bytes()).map(drop),
            "rm" => fs.block_on(fs.unlink(root, &at(1))).map(drop),
            "mv" => fs.block_on(fs.rename(root, &at(1), &at(2), false, &[])).map(drop),
            "swap" => fs.block_on(fs.exchange(root, &at(1), &at(2), [&[], &[]])).map(drop),
            other => panic!("{other}"),
        };
        done.unwrap_or_else(|error| panic!("{step}: {error}"));
    }
}

/// Names below a directory with mode, size, link count and inode.
fn all_there(fs: &Fs, t: &Cluster, at: &str) -> BTreeMap<String, (u32, u64, u32, u64)> {
    let names = tree(fs, t, at).unwrap().into_iter();
    let id = |name: &str| {
        let place = path(&format!("{at}{name}"));
        fs.block_on(fs.lookup(&t.root, &place)).unwrap_or_else(|e| panic!("{name}: {e}")).attr.id
    };
    names
        .map(|(name, (mode, size, nlink, _))| {
            let inode = id(&name);
            (name, (mode, size, nlink, inode))
        })
        .collect()
}

/// What is there before the subtree has its policy.
const BEFORE: [&str; 11] = [
    "mkdir a",
    "mkdir a/b",
    "mkdir a/b/c",
    "mkdir d",
    "mkdir d/e",
    "mkdir empty",
    "write a/f",
    "write a/b/g",
    "write a/b/c/h",
    "write d/i",
    "write file",
];

/// What is done with directories that are there.
const MOVES: [(&str, &[&str]); 22] = [
    ("another name", &["mv a x"]),
    ("back again", &["mv a x", "mv x a"]),
    ("elsewhere", &["mv a/b d/b2", "write d/b2/new"]),
    ("with something new", &["mv a x", "write x/new", "mkdir x/made", "write x/made/g", "rm x/f"]),
    ("into a new one", &["mkdir n", "mkdir n/m", "mv a n/m/a", "write n/m/a/b/new"]),
    ("swapped", &["swap a d", "write a/new"]),
    ("swapped with a new one", &["mkdir n", "write n/x", "swap a n", "write n/new"]),
    ("swapped with a file", &["swap a file"]),
    ("swapped with one in another", &["swap a/b d/e"]),
    ("its name is a file", &["mv a d/a", "write a"]),
    ("its name is a new directory", &["mv a d/a", "mkdir a", "write a/f"]),
    ("its name is another one", &["mv a d/a", "mv empty a", "write a/f"]),
    ("a chain", &["mv a x", "mv d a", "mv empty d", "write d/new"]),
    ("three in a ring", &["mv a x", "mv d a", "mv empty d", "mv x empty", "write d/new"]),
    ("out of one that is removed", &["mv a/b b", "rm a/f", "rmdir a"]),
    ("out of one whose name is a file", &["mv a/b b", "rm a/f", "rmdir a", "write a"]),
    ("upside down", &["mv a/b b", "mv a b/a"]),
    ("upside down by name", &["mv a/b x", "mv a x/b", "mv x a", "write a/new"]),
    ("over an empty one", &["mv a/b empty"]),
    (
        "over an empty one that comes from elsewhere",
        &["mv empty d/e2", "mv a/b/c empty2", "mv d/e2 empty2/x"],
    ),
    ("over a file", &["rm file", "mv a file"]),
    ("over a file that has moved", &["mv file a/file", "mv d file", "mv a/b file/b"]),
];

/// What is there, a policy, and then these steps; others see what their client sees.
fn renamed_and_merged(t: &Cluster, other: &Fs, top: &str, (what, steps): (&str, &[&str])) {
    let policy = Policy::from_pairs([("consistency", "weak"), ("durability", "none")]).unwrap();
    t.run(t.fs.mkdir(&t.root, &path(top), 0o755)).unwrap();
    do_steps(&t.fs, t, top, &BEFORE);
    t.run(t.fs.set_policy(&t.root, &path(top), &policy)).unwrap();
    let before = all_there(other, t, top);
    do_steps(&t.fs, t, top, steps);
    let mine = all_there(&t.fs, t, top);
    assert_eq!(all_there(other, t, top), before, "{what}: nothing is merged");
    let merge = || t.run(t.fs.merge_subtree(&t.root, &path(top), false)).unwrap();
    let report = merge();
    assert_eq!((report.conflicts, report.kept_back), (vec![], 0), "{what}");
    assert_eq!(all_there(other, t, top), mine, "{what}");
    assert_eq!(all_there(&t.fs, t, top), mine, "{what}");
    assert_eq!(merge().names, 0, "{what}: nothing has changed since");
    // What the holder has made and merged is renamed, too.
    do_steps(&t.fs, t, top, &["mkdir step.tmp", "write step.tmp/a"]);
    merge();
    do_steps(&t.fs, t, top, &["write step.tmp/b", "mv step.tmp step", "write step/c"]);
    assert_eq!(merge().conflicts, []);
    let mine = all_there(&t.fs, t, top);
    assert_eq!(all_there(other, t, top), mine, "{what}, and once more");
    for name in ["a", "b", "c"] {
        assert!(mine.contains_key(&format!("/step/{name}")), "{what}");
    }
}

#[test]
fn directories_that_were_there_are_renamed() {
    let t = Cluster::start(3, 1);
    let other = t.connect();
    // At once: each waits until others have forgotten the names.
    std::thread::scope(|scope| {
        for (n, moves) in MOVES.into_iter().enumerate() {
            let (t, other) = (&t, &other);
            scope.spawn(move || renamed_and_merged(t, other, &format!("/s{n}"), moves));
        }
    });
    other.close().unwrap();
}

/// A client is killed when its merge was polled so many times, and the next one goes on. True: it was merged
/// before.
fn killed_and_renamed(t: &Cluster, other: &Fs, times: usize) -> bool {
    let policy = Policy::from_pairs([("consistency", "weak"), ("durability", "local")]).unwrap();
    let steps = [
        "mkdir n",
        "mv a/b n/b",
        "write a/b",
        "swap a d",
        "write d/new",
        "mv empty x",
        "write empty",
        "write n/b/new",
        "mv n/b/c c",
    ];
    // Since the merge that was killed.
    let more = ["mv n/b b", "write b/more", "mv d empty2"];
    let top = format!("/k{times}");
    t.run(t.fs.mkdir(&t.root, &path(&top), 0o755)).unwrap();
    do_steps(&t.fs, t, &top, &BEFORE);
    t.run(t.fs.set_policy(&t.root, &path(&top), &policy)).unwrap();
    let (fs, tmp) = journalling(t);
    do_steps(&fs, t, &top, &steps);
    let top_path = path(&top);
    let mine = all_there(&fs, t, &top);
    let merged = fs.block_on(polled(fs.merge_subtree(&t.root, &top_path, false), times));
    fs.abandon();
    drop(fs);
    let again = connect_in(t, tmp.path());
    again.block_on(again.resume_subtrees());
    assert_eq!(all_there(&again, t, &top), mine, "{times} polls");
    if times % 2 == 1 {
        do_steps(&again, t, &top, &more);
    }
    let mine = all_there(&again, t, &top);
    again.close().unwrap();
    assert_eq!(all_there(other, t, &top), mine, "{times} polls");
    merged.is_some_and(|merged| merged.is_ok())
}

#[test]
fn whenever_a_client_is_killed_its_directories_are_renamed_by_the_next() {
    const AT_ONCE: usize = 8;
    let t = Cluster::start(3, 1);
    let other = t.connect();
    for some in 0.. {
        let merged = std::thread::scope(|scope| {
            let (t, other) = (&t, &other);
            // Ever further apart.
            let times = (0..AT_ONCE).map(|n| (some * AT_ONCE + n) * (some + 1));
            let killed =
                times.map(|times| scope.spawn(move || killed_and_renamed(t, other, times)));
            let killed: Vec<_> = killed.collect();
            killed.into_iter().map(|killed| killed.join().unwrap()).collect::<Vec<bool>>()
        });
        assert!(some > 0 || !merged[AT_ONCE - 1], "it was polled more often");
        if merged[AT_ONCE - 1] {
            break;
        }
    }
    other.close().unwrap();
}

#[test]
fn a_directory_of_before_is_read_also_when_its_new_name_is_all_that_is_known() {
    let s = Subtree::start(&[("consistency", "weak"), ("durability", "local")], |t| {
        do_steps(&t.fs, t, "/sub", &BEFORE);
    });
    let t = &s.t;
    let (first, tmp) = journalling(t);
    // Nothing in it was read.
    do_steps(&first, t, "/sub", &["mv a/b b", "mv b/c c"]);
    first.abandon();
    drop(first);
    let again = connect_in(t, tmp.path());
    again.block_on(again.resume_subtrees());
    for name in ["c/h", "b/g", "a/f"] {
        assert!(read(&again, t, &format!("/sub/{name}")).is_ok(), "{name}");
    }
    // Nor before a merge.
    again.abandon();
    drop(again);
    let last = connect_in(t, tmp.path());
    last.block_on(last.resume_subtrees());
    last.block_on(last.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    assert!(read(&last, t, "/sub/c/h").is_ok());
    let mine = all_there(&last, t, "/sub");
    last.close().unwrap();
    let other = t.connect();
    assert_eq!(all_there(&other, t, "/sub"), mine);
    other.close().unwrap();
}

#[test]
fn directories_that_others_have_changed_meanwhile_are_renamed_as_far_as_they_can_be() {
    // What the holder does, what others do, and what is there then.
    let cases: [(&str, [&[&str]; 3]); 8] = [
        ("renamed", [&["mv a x"], &["mv a y"], &["x", "x/b", "x/b/c", "x/b/c/h", "x/b/g", "x/f"]]),
        (
            "put elsewhere",
            [&["mv d x", "write x/new"], &["mv d a/b/d"], &["x", "x/e", "x/i", "x/new"]],
        ),
        ("removed", [&["mv empty x"], &["rmdir empty"], &[]]),
        (
            "removed with what is new in it",
            [&["mv empty x", "write x/new"], &["rmdir empty"], &["x", "x/new"]],
        ),
        ("a file has the name", [&["mv a x"], &["write x"], &["x", "x/b", "x/f"]]),
        (
            "a directory has the name",
            [&["mv a x"], &["mkdir x", "write x/y"], &["x", "x/b", "x/f"]],
        ),
        (
            "where it goes is removed",
            [&["mv a empty/a"], &["rmdir empty"], &["empty", "empty/a", "empty/a/f"]],
        ),
        ("renamed, and removed here", [&["rmdir empty"], &["mv empty d/x"], &[]]),
    ];
    for (what, [mine, theirs, wanted]) in cases {
        let s = Subtree::start(&[("consistency", "weak"), ("durability", "none")], |t| {
            do_steps(&t.fs, t, "/sub", &BEFORE);
        });
        let (t, fs) = (&s.t, &s.t.fs);
        let other = t.connect();
        do_steps(fs, t, "/sub", mine);
        do_steps(&other, t, "/sub", theirs);
        t.run(fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
        let here = tree(fs, t, "/sub").unwrap();
        fs.close().unwrap();
        let there = all_there(&other, t, "/sub");
        for name in wanted {
            assert!(there.contains_key(&format!("/{name}")), "{what}: {name} of {there:#?}");
        }
        let is_gone = what != "renamed, and removed here" || !there.contains_key("/d/x");
        assert!(is_gone, "{what}: {there:#?}");
        let ids: std::collections::BTreeSet<u64> = there.values().map(|(.., id)| *id).collect();
        assert_eq!(ids.len(), there.len(), "{what}: {there:#?}, {here:#?}");
        other.close().unwrap();
    }
}
