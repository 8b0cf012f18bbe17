//! What each namespace does, asked through [`Fs`]; and that a place is served by the right one.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use saker_types::wire::{At, Entry, Op};
use saker_types::{Errno, FileKind, Locator, ROOT, Result};

use crate::fake::{RequestFault, start};
use crate::{Caller, ClientOptions, Fs, Groups, OpenFlags, SetAttr};

pub(crate) mod in_memory;

use in_memory::InMemory;

const POLICY: u64 = 7;
/// Names in the directory that a suite is given, and what is in these files.
const FILES: [(&str, &str); 3] = [("a", "alpha"), ("b", "0123456789"), ("empty", "")];

fn flags(read: bool, write: bool) -> OpenFlags {
    OpenFlags { read, write, ..OpenFlags::default() }
}

fn below(dir: &At, name: &str) -> At {
    let mut at = dir.clone();
    at.path.push(Bytes::copy_from_slice(name.as_bytes()));
    at
}

fn errno<T>(result: Result<T>) -> Errno {
    result.err().unwrap().errno()
}

/// What any namespace does with a directory that has [`FILES`] and is seen as `dir`.
async fn reads(fs: &Fs, dir: &At) {
    let root = Caller::root();
    for (name, data) in FILES {
        let at = below(dir, name);
        let entry = fs.lookup(&root, &at).await.unwrap();
        assert_eq!((entry.attr.kind(), entry.attr.size), (FileKind::Regular, data.len() as u64));
        assert_eq!(entry.loc.name, name);
        for same in [&at, &At::handle(entry.loc.clone())] {
            let again = fs.getattr(&root, same).await.unwrap();
            assert_eq!((again.attr.id, again.loc), (entry.attr.id, entry.loc.clone()));
            let (file, opened) = fs.open(&root, same, flags(true, false)).await.unwrap();
            assert_eq!((opened.attr.id, file.locator()), (entry.attr.id, entry.loc.clone()));
            assert_eq!(file.read(0, 100).await.unwrap(), data);
            let end = data.len().min(5);
            assert_eq!(file.read(2.min(end as u64), 3).await.unwrap(), data[2.min(end)..end]);
            assert_eq!(errno(file.write(0, b"x").await), Errno::EBADF);
            file.fsync().await.unwrap();
            file.release().await;
        }
    }
    let missing = fs.lookup(&root, &below(dir, "missing")).await.unwrap_err();
    assert_eq!((missing.errno(), missing.component), (Errno::ENOENT, Some(dir.path.len() as u32)));
    assert_eq!(
        errno(fs.open(&root, &below(dir, "missing"), flags(true, false)).await),
        Errno::ENOENT
    );
}

/// Lists a directory, from the start and from each entry on.
async fn lists(fs: &Fs, dir: &Locator) {
    let list = async |cookie| {
        let mut stream = fs.readdir(&Caller::root(), dir, cookie);
        let mut items = Vec::new();
        while let Some(item) = stream.next().await.unwrap() {
            items.push(item);
        }
        items
    };
    let all = list(0).await;
    let mut names: Vec<_> = all.iter().map(|item| item.name.clone()).collect();
    names.sort();
    assert!(FILES.iter().all(|(name, _)| names.iter().any(|listed| listed == name)), "{names:?}");
    for (i, item) in all.iter().enumerate() {
        let rest: Vec<_> = list(item.cookie).await.into_iter().map(|item| item.cookie).collect();
        let expected: Vec<_> = all[i + 1..].iter().map(|item| item.cookie).collect();
        assert_eq!(rest, expected, "after {:?}", item.name);
        let entry = fs.lookup(&Caller::root(), &At::handle(item.loc.clone())).await.unwrap();
        assert_eq!((entry.attr.id, &entry.loc), (item.attr.id, &item.loc));
    }
}

/// What a namespace does that nobody can change.
async fn refuses_changes(fs: &Fs, dir: &At) {
    let (root, new, old) = (Caller::root(), below(dir, "new"), below(dir, "a"));
    let (rw, erofs) = (flags(true, true), Errno::EROFS);
    assert_eq!(errno(fs.open(&root, &old, rw).await), erofs);
    assert_eq!(errno(fs.create(&root, &new, 0o644, rw).await), erofs);
    assert_eq!(errno(fs.create_warily(&root, &new, 0o644, rw).await), erofs);
    assert_eq!(errno(fs.tmpfile(&root, dir, 0o644, rw).await), erofs);
    assert_eq!(errno(fs.mkdir(&root, &new, 0o755).await), erofs);
    assert_eq!(errno(fs.mknod(&root, &new, 0o10_644, 0).await), erofs);
    assert_eq!(errno(fs.symlink(&root, &new, b"a").await), erofs);
    assert_eq!(errno(fs.unlink(&root, &old).await), erofs);
    assert_eq!(errno(fs.rmdir(&root, &old).await), erofs);
    assert_eq!(errno(fs.rename(&root, &old, &new, false, &[]).await), erofs);
    assert_eq!(errno(fs.exchange(&root, &old, &new, [&[], &[]]).await), erofs);
    assert_eq!(errno(fs.link(&root, &old, &new).await), erofs);
    assert_eq!(errno(fs.setattr(&root, &old, &SetAttr::default()).await), erofs);
    assert_eq!(errno(fs.setxattr(&root, &old, b"user.x", b"", 0).await), erofs);
    assert_eq!(errno(fs.removexattr(&root, &old, b"user.x").await), erofs);
    assert_eq!(errno(fs.access(&root, &old, 2).await), erofs);
    fs.access(&root, &old, 4).await.unwrap();
}

/// A client whose strict namespace has [`FILES`] in its root, with others at `/mem` and, under the
/// policy after that, at `/deep/er`. They have [`FILES`] in their roots, and a few things more.
fn setup() -> (std::sync::Arc<crate::fake::Fake>, Fs, Locator) {
    let (fake, fs) = start(ClientOptions::default());
    FILES.iter().for_each(|(name, data)| fake.model().add(name, data.as_bytes()));
    let roots = [(&["mem"][..], POLICY), (&["deep", "er"], POLICY + 1)].map(|(place, policy)| {
        let mut memory = InMemory::new(policy);
        let root = memory.root();
        FILES.iter().for_each(|(name, data)| _ = memory.file(root, name, data.as_bytes()));
        let sub = memory.dir(root, "sub", 0o755);
        memory.file(sub, "f", b"below");
        let private = memory.dir(root, "private", 0o700);
        memory.file(private, "f", b"hidden");
        memory.link(root, "link", "sub/f");
        memory.attach(&fs, place)
    });
    fake.log();
    let [root, _] = roots;
    (fake, fs, root)
}

fn named(path: &str) -> At {
    let names = path.split('/').map(|name| Bytes::copy_from_slice(name.as_bytes()));
    At::below(Locator::root(), names.filter(|name| !name.is_empty()).collect())
}

#[test]
fn every_namespace_reads_alike() {
    let (_, fs, root) = setup();
    fs.block_on(async {
        for dir in [named("/"), named("/mem"), named("/deep/er"), At::handle(root.clone())] {
            reads(&fs, &dir).await;
        }
        lists(&fs, &Locator::root()).await;
        lists(&fs, &root).await;
    });
}

#[test]
fn a_namespace_that_implements_no_change_refuses_all() {
    let (fake, fs, root) = setup();
    fs.block_on(async {
        for dir in [named("/mem"), named("/deep/er"), At::handle(root)] {
            refuses_changes(&fs, &dir).await;
        }
    });
    assert!(fake.log().is_empty(), "no server was asked");
}

#[test]
fn a_place_is_served_by_its_first_names_and_then_by_its_policy() {
    let (fake, fs, root) = setup();
    let (who, rdonly) = (Caller::root(), flags(true, false));
    fs.block_on(async {
        let entry = fs.lookup(&who, &named("/mem")).await.unwrap();
        assert_eq!((&entry.loc, entry.loc.policy), (&root, POLICY));
        let sub = fs.lookup(&who, &named("/mem/sub")).await.unwrap().loc;
        let (file, _) = fs.open(&who, &At::child(sub.clone(), b"f"), rdonly).await.unwrap();
        assert_eq!(file.read(0, 9).await.unwrap(), "below");
        // What is wrong is told as of the place that was named.
        let missing = fs.lookup(&who, &named("/deep/er/sub/x/y")).await.unwrap_err();
        assert_eq!((missing.errno(), missing.component), (Errno::ENOENT, Some(3)));
        let resolved = fs.resolve(&who, b"/mem/link", true).await.unwrap();
        assert_eq!(resolved.entry.unwrap().attr.size, 5, "a link is followed");
        let other = Caller { uid: 5, gid: 5, groups: Groups::Hidden, ..Caller::root() };
        assert_eq!(errno(fs.lookup(&other, &named("/mem/private/f")).await), Errno::EACCES);
        // A place that must be another directory.
        let mut at = named("/mem/a");
        at.expect = vec![root.id, 0];
        fs.lookup(&who, &at).await.unwrap();
        at.expect = vec![root.id + 1, 0];
        assert_eq!(errno(fs.lookup(&who, &at).await), Errno::ESTALE);
    });
    assert!(fake.log().is_empty(), "no server was asked");
    fs.block_on(async {
        // A name that only begins like a place.
        assert_eq!(errno(fs.lookup(&who, &named("/memo")).await), Errno::ENOENT);
        assert_eq!(errno(fs.lookup(&who, &named("/deep")).await), Errno::ENOENT);
        let entry: Entry = fs.lookup(&who, &named("/a")).await.unwrap();
        assert_eq!((entry.loc.pid, entry.loc.policy), (ROOT, 0));
    });
    assert_eq!(fake.log(), [Op::Lookup.name(); 3]);
}

#[test]
fn nothing_moves_between_namespaces() {
    let (fake, fs, root) = setup();
    let who = Caller::root();
    let (here, there, beyond) = (named("/a"), At::child(root, b"new"), named("/deep/er/new"));
    fs.block_on(async {
        for (from, to) in [(&here, &there), (&there, &here), (&there, &beyond), (&here, &beyond)] {
            assert_eq!(errno(fs.rename(&who, from, to, false, &[]).await), Errno::EXDEV);
            assert_eq!(errno(fs.exchange(&who, from, to, [&[], &[]]).await), Errno::EXDEV);
            assert_eq!(errno(fs.link(&who, from, to).await), Errno::EXDEV);
        }
    });
    assert!(fake.log().is_empty(), "no server was asked");
}

#[test]
fn a_policy_without_a_namespace_of_its_own_is_the_shards_business() {
    let (fake, fs, _) = setup();
    let (who, dir) = (Caller::root(), Locator::root().under(99));
    fs.block_on(async {
        let entry = fs.lookup(&who, &At::child(dir.clone(), b"a")).await.unwrap();
        assert_eq!(entry.attr.size, 5);
        for op in [Op::Unlink, Op::Link] {
            fake.fault(op, RequestFault::Answer(Errno::EXDEV.into()));
        }
        let (from, to) = (At::child(Locator::root(), b"a"), At::child(dir, b"new"));
        assert_eq!(errno(fs.unlink(&who, &to).await), Errno::EXDEV);
        // Whether something may move between policies, too.
        assert_eq!(errno(fs.link(&who, &from, &to).await), Errno::EXDEV);
    });
    let ops = [Op::Lookup, Op::Unlink, Op::Link];
    assert_eq!(fake.log(), ops.map(Op::name));
}
