//! Decoupled subtrees whose durability is global: what their client has saved in the cluster, and who goes on
//! with it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod client_support;

use std::collections::BTreeMap;
use std::path::Path;

use client_support::{Cluster, path};
use saker_client::{Caller, ClientOptions, Fs, GlobalDir, OpenFlags, SetAttr, journals_in};
use saker_runtime::fs::conformance;
use saker_sim::wait::until;
use saker_types::policy::Policy;
use saker_types::wire::At;
use saker_types::{Errno, Result};

const RW: OpenFlags = OpenFlags::READ_WRITE;
const STREAM: &str = "append_client_journal+stream";

/// A cluster with a directory `/sub` under a policy.
fn start(pairs: &[(&str, &str)]) -> (Cluster, u64) {
    let t = Cluster::start(2, 2);
    t.run(t.fs.mkdir(&t.root, &path("/sub"), 0o755)).unwrap();
    let policy = Policy::from_pairs(pairs.iter().copied()).unwrap();
    let policy = t.run(t.fs.set_policy(&t.root, &path("/sub"), &policy)).unwrap();
    (t, policy)
}

fn write(fs: &Fs, at: &str, data: &[u8]) -> Result<()> {
    let root = Caller::root();
    fs.block_on(async {
        let (file, _) = fs.create(&root, &path(at), 0o644, RW).await?;
        file.write(0, data).await?;
        file.flush().await?;
        file.release().await;
        Ok(())
    })
}

fn read(fs: &Fs, at: &str) -> Result<Vec<u8>> {
    let root = Caller::root();
    fs.block_on(async {
        let flags = OpenFlags { write: false, ..RW };
        let (file, entry) = fs.open(&root, &path(at), flags).await?;
        let data = file.read(0, entry.attr.size as usize + 1).await?;
        file.release().await;
        Ok(data.to_vec())
    })
}

/// What `saker policy sync` does.
fn sync(fs: &Fs, at: &str) -> Result<()> {
    let root = Caller::root();
    let dir = fs.block_on(fs.lookup(&root, &path(at)))?.loc;
    fs.block_on(fs.fsync_dir(&root, &dir))
}

fn names(fs: &Fs, at: &str) -> Vec<String> {
    tree(fs, at).unwrap().into_keys().collect()
}

/// Names below a directory, with kind, permissions, size and link count of each.
fn tree(fs: &Fs, at: &str) -> Result<BTreeMap<String, (u32, u64, u32)>> {
    let who = Caller::root();
    let root = fs.block_on(fs.lookup(&who, &path(at)))?.loc;
    let (mut found, mut todo) = (BTreeMap::new(), vec![(String::new(), root)]);
    while let Some((prefix, dir)) = todo.pop() {
        let mut listing = fs.readdir(&who, &dir, 0);
        while let Some(item) = fs.block_on(listing.next())? {
            let name = format!("{prefix}/{}", String::from_utf8_lossy(&item.name));
            let attr = fs.block_on(fs.getattr(&who, &At::handle(item.loc.clone())))?.attr;
            found.insert(name.clone(), (attr.mode, attr.size, attr.nlink));
            if attr.is_dir() {
                todo.push((name, item.loc));
            }
        }
    }
    Ok(found)
}

fn errno<T>(result: Result<T>) -> Errno {
    result.err().unwrap().errno()
}

/// What is saved of subtrees.
fn journals(fs: &Fs) -> Vec<String> {
    tree(fs, "/.saker/journals").map(|found| found.into_keys().collect()).unwrap_or_default()
}

/// Is this in a file below the directory?
fn is_saved(fs: &Fs, text: &str) -> bool {
    journals(fs).iter().any(|name| {
        let data = read(fs, &format!("/.saker/journals{name}")).unwrap_or_default();
        data.windows(text.len()).any(|part| part == text.as_bytes())
    })
}

#[test]
fn files_of_the_cluster_are_a_disk() {
    let t = Cluster::start(2, 2);
    t.run(t.fs.mkdir(&t.root, &path("/disk"), 0o700)).unwrap();
    conformance::run(&t.run(GlobalDir::at(&t.fs, &path("/disk"))).unwrap());
    // Also for a thread that runs futures.
    t.run(t.fs.mkdir(&t.root, &path("/other"), 0o700)).unwrap();
    t.run(async {
        conformance::run(&GlobalDir::at(&t.fs, &path("/other")).await.unwrap());
    });
}

#[test]
fn what_was_synced_outlives_its_client() {
    let (t, _) = start(&[("consistency", "weak"), ("durability", "global")]);
    let (first, other) = (t.connect(), t.connect());
    write(&first, "/sub/f", b"saved").unwrap();
    first.block_on(first.mkdir(&t.root, &path("/sub/d"), 0o750)).unwrap();
    first.block_on(first.mkdir(&t.root, &path("/sub/d/e"), 0o750)).unwrap();
    let big: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    write(&first, "/sub/d/big", &big).unwrap();
    first.block_on(first.rename(&t.root, &path("/sub/d/e"), &path("/sub/g"), false, &[])).unwrap();
    sync(&first, "/sub").unwrap();
    assert!(is_saved(&other, "big"));
    write(&first, "/sub/late", b"not saved").unwrap();
    assert!(!is_saved(&other, "late"));
    assert_eq!(names(&other, "/sub"), [""; 0], "nothing is merged");
    // As if it were killed.
    first.abandon();
    drop(first);
    assert_eq!(errno(other.block_on(other.reclaim(&t.root, &path("/sub"), false))), Errno::EBUSY);
    other.block_on(other.reclaim(&t.root, &path("/sub"), true)).unwrap();
    assert_eq!(names(&t.fs, "/sub"), ["/d", "/d/big", "/f", "/g"]);
    assert_eq!(read(&t.fs, "/sub/f").unwrap(), b"saved");
    assert!(read(&t.fs, "/sub/d/big").unwrap() == big);
    assert_eq!(journals(&t.fs), [""; 0], "what is merged is not kept");
    write(&other, "/sub/next", b"next").unwrap();
    other.close().unwrap();
    assert_eq!(read(&t.fs, "/sub/next").unwrap(), b"next");
    assert_eq!(journals(&t.fs), [""; 0]);
}

#[test]
fn another_client_goes_on_when_the_lease_has_ended() {
    let block = [("interfere_policy", "block")];
    let global = [("consistency", "invisible"), ("durability", "global")];
    let (t, _) = start(&[global[0], global[1], block[0]]);
    let for_all = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    t.run(t.fs.setattr(&t.root, &path("/sub"), &for_all)).unwrap();
    let first = t.connect();
    write(&first, "/sub/f", b"f").unwrap();
    first.block_on(first.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    write(&first, "/sub/g", b"g").unwrap();
    sync(&first, "/sub").unwrap();
    let id = |fs: &Fs, at| fs.block_on(fs.getattr(&t.root, &path(at))).unwrap().attr.id;
    // One whose number the next one must not give out again.
    write(&first, "/sub/lost", b"lost").unwrap();
    let lost = id(&first, "/sub/lost");
    first.abandon();
    drop(first);
    let second = t.connect();
    assert_eq!(errno(write(&second, "/sub/h", b"h")), Errno::EBUSY);
    // Real time: the lease of a hold ends. Whoever comes takes it over.
    let user = Caller { uid: 1000, gid: 1000, ..Caller::root() };
    until("the lease ends", || {
        second.block_on(second.mkdir(&user, &path("/sub/d"), 0o700)).is_ok()
    });
    write(&second, "/sub/h", b"h").unwrap();
    assert_eq!(names(&second, "/sub"), ["/d", "/f", "/g", "/h"]);
    assert!(id(&second, "/sub/h") > lost);
    assert_eq!(errno(read(&t.fs, "/sub/g")), Errno::EBUSY);
    second.close().unwrap();
    // Its end has saved it; the hold is there yet.
    let third = t.connect();
    third.block_on(third.reclaim(&t.root, &path("/sub"), true)).unwrap();
    assert_eq!(names(&t.fs, "/sub"), ["/d", "/f", "/g", "/h"]);
    assert_eq!(read(&t.fs, "/sub/h").unwrap(), b"h");
    third.close().unwrap();
}

#[test]
fn the_directory_of_a_subtree_is_removed_with_what_is_saved() {
    let (t, _) = start(&[("consistency", "invisible"), ("durability", "global")]);
    let other = t.connect();
    let rmdir = |fs: &Fs| fs.block_on(fs.rmdir(&t.root, &path("/sub")));
    write(&t.fs, "/sub/merged", b"x").unwrap();
    sync(&t.fs, "/sub").unwrap();
    t.run(t.fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    write(&t.fs, "/sub/new", b"y").unwrap();
    for name in ["/sub/merged", "/sub/new"] {
        t.run(t.fs.unlink(&t.root, &path(name))).unwrap();
    }
    assert_eq!(errno(rmdir(&other)), Errno::EBUSY, "somebody else holds it");
    rmdir(&t.fs).unwrap();
    assert_eq!(errno(other.block_on(other.lookup(&t.root, &path("/sub")))), Errno::ENOENT);
    assert_eq!(journals(&other), [""; 0]);
    other.close().unwrap();
}

#[test]
fn who_has_lost_its_hold_acknowledges_nothing() {
    let (t, _) = start(&[("consistency", "invisible"), ("durability", "global")]);
    let (first, second) = (t.connect(), t.connect());
    write(&first, "/sub/f", b"f").unwrap();
    write(&first, "/sub/large", &[1; 300_000]).unwrap();
    let [file, large] = ["/sub/f", "/sub/large"]
        .map(|at| first.block_on(first.open(&t.root, &path(at), RW)).unwrap().0);
    sync(&first, "/sub").unwrap();
    second.block_on(second.reclaim(&t.root, &path("/sub"), true)).unwrap();
    // It has not heard of that.
    let wrote = first.block_on(async {
        file.write(0, b"late").await?;
        file.fsync().await
    });
    assert!(wrote.is_err());
    assert!(sync(&first, "/sub").is_err());
    until("it hears of it", || errno(write(&first, "/sub/g", b"g")) == Errno::ESTALE);
    // Stores would take it.
    let wrote = first.block_on(async {
        large.write(100_000, &[2; 100_000]).await?;
        large.flush().await
    });
    assert_eq!(errno(wrote), Errno::ESTALE);
    assert_eq!(names(&t.fs, "/sub"), ["/f", "/large"]);
    assert_eq!(read(&t.fs, "/sub/f").unwrap(), b"f");
    assert!(read(&t.fs, "/sub/large").unwrap() == [1; 300_000]);
    second.close().unwrap();
}

#[test]
fn what_is_streamed_is_saved_as_it_goes() {
    let (t, _) = start(&[("consistency", STREAM)]);
    let (first, other) = (t.connect(), t.connect());
    for n in 0..200 {
        write(&first, &format!("/sub/file-{n}"), b"data").unwrap();
    }
    until("it is saved", || is_saved(&other, "file-199"));
    first.abandon();
    drop(first);
    other.block_on(other.reclaim(&t.root, &path("/sub"), true)).unwrap();
    assert_eq!(names(&t.fs, "/sub").len(), 200);
    other.close().unwrap();
}

#[test]
fn rows_that_do_not_stay_in_memory_are_in_tables_of_the_cluster() {
    let (t, _) = start(&[("consistency", "invisible"), ("durability", "global")]);
    let (first, other) = (t.connect(), t.connect());
    let data = [7; 3000];
    for n in 0..12_000 {
        write(&first, &format!("/sub/{n}"), &data).unwrap();
    }
    sync(&first, "/sub").unwrap();
    let is_table = |name: &String| name.ends_with(".run");
    until("a checkpoint ends", || journals(&other).iter().any(is_table));
    write(&first, "/sub/late", b"not saved").unwrap();
    first.abandon();
    drop(first);
    other.block_on(other.reclaim(&t.root, &path("/sub"), true)).unwrap();
    let found = tree(&t.fs, "/sub").unwrap();
    assert_eq!(found.len(), 12_000);
    assert!(found.values().all(|(_, size, _)| *size == 3000));
    other.close().unwrap();
}

#[test]
fn merges_make_the_same_with_a_journal_and_through_the_stores() {
    const STORED: &str = "append_client_journal+nonvolatile_apply";
    let mut trees = Vec::new();
    for (consistency, durability) in
        [("weak", "none"), ("weak", "global"), (STORED, "none"), (STORED, "global")]
    {
        let (t, _) = start(&[("consistency", consistency), ("durability", durability)]);
        let fs = t.connect();
        // More than one request for each shard has.
        for n in 0..600 {
            write(&fs, &format!("/sub/f{n}"), &[n as u8; 3500]).unwrap();
        }
        fs.block_on(async {
            let root = &t.root;
            fs.mkdir(root, &path("/sub/d"), 0o750).await.unwrap();
            fs.link(root, &path("/sub/f1"), &path("/sub/d/second")).await.unwrap();
            fs.rename(root, &path("/sub/f2"), &path("/sub/d/moved"), false, &[]).await.unwrap();
            fs.unlink(root, &path("/sub/f3")).await.unwrap();
            fs.merge_subtree(root, &path("/sub"), true).await.unwrap();
        });
        assert_eq!(names(&t.fs, "/sub"), [""; 0]);
        // Somebody else is in the way, too.
        write(&t.fs, "/sub/f7", b"theirs").unwrap();
        let report = fs.block_on(fs.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
        assert_eq!(report.conflicts.len(), 1);
        assert!(!journals(&t.fs).iter().any(|name| name.contains(".merge")));
        fs.block_on(fs.unlink(&t.root, &path("/sub/f4"))).unwrap();
        fs.close().unwrap();
        assert_eq!(read(&t.fs, "/sub/f300").unwrap(), [300_u32 as u8; 3500]);
        trees.push(tree(&t.fs, "/sub").unwrap());
        assert_eq!(journals(&t.fs), [""; 0]);
    }
    assert_eq!(trees[0].len(), 600);
    assert!(trees.iter().all(|tree| *tree == trees[0]));
}

#[test]
fn journals_are_in_no_subtree_that_somebody_has_for_itself() {
    let t = Cluster::start(2, 1);
    t.run(t.fs.mkdir(&t.root, &path("/sub"), 0o755)).unwrap();
    let policy = |durability| {
        Policy::from_pairs([("consistency", "weak"), ("durability", durability)]).unwrap()
    };
    let set = |at, durability| t.run(t.fs.set_policy(&t.root, &path(at), &policy(durability)));
    assert_eq!(errno(set("/", "global")), Errno::EINVAL);
    let stored = Policy::from_pairs([
        ("consistency", "append_client_journal+nonvolatile_apply"),
        ("durability", "none"),
    ]);
    let root = path("/");
    let set_stored = t.fs.set_policy(&t.root, &root, stored.as_ref().unwrap());
    assert_eq!(errno(t.run(set_stored)), Errno::EINVAL);
    set("/sub", "global").unwrap();
    set("/", "none").unwrap();
    assert_eq!(errno(write(&t.fs, "/sub/f", b"f")), Errno::EOPNOTSUPP);
    t.run(t.fs.clear_policy(&t.root, &path("/"))).unwrap();
    write(&t.fs, "/sub/f", b"f").unwrap();
}

#[test]
fn what_is_saved_stays_when_its_client_cannot_go_on() {
    let (t, _) = start(&[("consistency", "weak"), ("durability", "global")]);
    let tmp = tempfile::tempdir().unwrap();
    let connect = || {
        let journal_dir = Some(tmp.path().join("journals"));
        t.connect_with(ClientOptions { journal_dir, ..ClientOptions::default() })
    };
    let first = connect();
    write(&first, "/sub/f", b"saved").unwrap();
    sync(&first, "/sub").unwrap();
    first.abandon();
    drop(first);
    // The same client, who has the hold, and cannot get at what it has saved.
    let owner = |uid| {
        let change = SetAttr { uid: Some(uid), ..SetAttr::default() };
        t.run(t.fs.setattr(&t.root, &path("/.saker"), &change)).unwrap();
    };
    owner(1000);
    let again = connect();
    assert_eq!(errno(write(&again, "/sub/g", b"g")), Errno::EACCES);
    // Nor does it remove the directory, which is empty for all others.
    assert_eq!(errno(again.block_on(again.rmdir(&t.root, &path("/sub")))), Errno::EBUSY);
    owner(0);
    again.close().unwrap();
    drop(again);
    t.run(t.fs.reclaim(&t.root, &path("/sub"), true)).unwrap();
    assert_eq!(read(&t.fs, "/sub/f").unwrap(), b"saved");
}

#[test]
fn journals_are_in_no_directory_of_others() {
    let (t, _) = start(&[("consistency", "weak"), ("durability", "global")]);
    t.run(t.fs.mkdir(&t.root, &path("/.saker"), 0o755)).unwrap();
    let theirs = SetAttr { uid: Some(1000), ..SetAttr::default() };
    t.run(t.fs.setattr(&t.root, &path("/.saker"), &theirs)).unwrap();
    assert_eq!(errno(write(&t.fs, "/sub/f", b"f")), Errno::EACCES);
    let ours = SetAttr { uid: Some(0), ..SetAttr::default() };
    t.run(t.fs.setattr(&t.root, &path("/.saker"), &ours)).unwrap();
    write(&t.fs, "/sub/f", b"f").unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for found in std::fs::read_dir(from).unwrap() {
        let (found, to) = (found.as_ref().unwrap(), to.join(found.as_ref().unwrap().file_name()));
        match found.file_type().unwrap().is_dir() {
            true => copy(&found.path(), &to),
            false => _ = std::fs::copy(found.path(), to).unwrap(),
        }
    }
}

#[test]
fn journals_of_a_client_that_is_gone_are_applied() {
    let (t, _) = start(&[("consistency", "weak"), ("durability", "local")]);
    let tmp = tempfile::tempdir().unwrap();
    let connect = |dir: &Path| {
        let journal_dir = Some(dir.to_owned());
        t.connect_with(ClientOptions { journal_dir, ..ClientOptions::default() })
    };
    let (dir, copied) = (tmp.path().join("journals"), tmp.path().join("copy"));
    let first = connect(&dir);
    write(&first, "/sub/f", b"merged").unwrap();
    first.block_on(first.merge_subtree(&t.root, &path("/sub"), false)).unwrap();
    first.block_on(first.mkdir(&t.root, &path("/sub/d"), 0o755)).unwrap();
    write(&first, "/sub/d/g", b"g").unwrap();
    copy(&dir, &copied);
    let apply = |dir: &Path, dry_run| {
        let [of] = &journals_in(dir).unwrap()[..] else { panic!("there is one journal") };
        let fs = connect(dir);
        let applied = fs.block_on(fs.apply_journal(of, dry_run));
        fs.abandon();
        applied
    };
    assert_eq!(errno(apply(&copied, false)), Errno::EBUSY, "its client lives");
    first.abandon();
    drop(first);
    // Real time: both wait for the end of a lease.
    assert_eq!(apply(&dir, true).unwrap().names, 2);
    assert_eq!(names(&t.fs, "/sub"), ["/f"], "it was only asked");
    let applied = apply(&copied, false).unwrap();
    assert_eq!((applied.names, applied.conflicts.len()), (2, 0));
    assert_eq!(names(&t.fs, "/sub"), ["/d", "/d/g", "/f"]);
    assert_eq!(read(&t.fs, "/sub/d/g").unwrap(), b"g");
    assert_eq!(journals_in(&copied).unwrap(), [], "it is not kept");
    // The other copy is of a hold that has ended.
    assert_eq!(errno(apply(&dir, false)), Errno::ESTALE);
    assert_eq!(journals_in(&dir).unwrap().len(), 1, "it is not changed");
    // Another cluster does not take it.
    let other = Cluster::start(1, 1);
    let journal_dir = Some(dir.clone());
    let refused = other.try_connect(ClientOptions { journal_dir, ..ClientOptions::default() });
    assert_eq!(errno(refused), Errno::EINVAL);
}
