//! Frozen datasets in a cluster: frozen from a directory, seen by mounts and by the library, shared
//! by versions, collected. The mount's half needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use saker_client::datasets::{FreezeName, FreezeProgress, FrozenDataset};
use saker_client::saker_types::{Errno, FileKind, Result};
use saker_client::{Caller, Fs, Groups, Lock, OpenFlags, SetAttr};
use saker_dataset::Dataset;
use saker_sim::cluster::{ClusterShape, RunningCluster, binary, can_mount};
use saker_sim::wait::until;

const SHAPE: ClusterShape =
    ClusterShape { mnodes: 2, stores: 2, replicas: 1, mount: false, supervise: false };

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 5 + i * i % 7 + seed * 31) as u8).collect()
}

/// Files of all sizes and kinds.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("train/cats")).unwrap();
    fs::create_dir_all(root.join("empty")).unwrap();
    for n in 0..40 {
        let dir = root.join(["train", "train/cats"][n % 2]);
        fs::write(dir.join(format!("{n}.jpg")), bytes(n * n * 173, n)).unwrap();
    }
    fs::write(root.join("large"), bytes((9 << 20) + 77, 3)).unwrap();
    symlink("train/cats", root.join("cats")).unwrap();
    symlink("/etc/hostname", root.join("outside")).unwrap();
    fs::hard_link(root.join("train/0.jpg"), root.join("same.jpg")).unwrap();
    let private = root.join("private");
    fs::create_dir(&private).unwrap();
    fs::write(private.join("f"), "hidden").unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    let large = root.join("large");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&large, "user.kind", b"tensor", flags).unwrap();
}

fn equal(a: &Path, b: &Path) {
    // `fs put` does not keep times of links.
    let mut rsync = Command::new("rsync");
    let output =
        rsync.args(["-anicHAXJ", "--delete"]).arg(a.join("")).arg(b.join("")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{} {}", a.display(), b.display());
}

fn said(cluster: &RunningCluster, args: &[&str]) -> String {
    let output = cluster.saker(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(cluster: &RunningCluster, args: &[&str]) -> String {
    let output = cluster.saker(args);
    assert!(!output.status.success(), "{args:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// A cluster with the tree at /data, and the tree.
fn start(shape: ClusterShape) -> (RunningCluster, std::path::PathBuf) {
    let cluster = RunningCluster::start(shape);
    let tree = cluster.scratch().join("tree");
    make_tree(&tree);
    said(&cluster, &["fs", "put", "-rp", tree.to_str().unwrap(), "/data"]);
    let fs = cluster.connect();
    // `put` carries no attributes.
    let at = fs.block_on(fs.resolve(&Caller::root(), b"/data/large", false)).unwrap().at;
    fs.block_on(fs.setxattr(&Caller::root(), &at, b"user.kind", b"tensor", 0)).unwrap();
    (cluster, tree)
}

#[test]
fn a_frozen_directory_is_read_by_the_library() {
    for (compress, partitions) in [("none", "1"), ("zstd", "5")] {
        let (cluster, tree) = start(SHAPE);
        let made = ["dataset", "freeze", "/data", "set@1", "-p", partitions, "-c", compress];
        assert!(said(&cluster, &made).contains("/.datasets/set@1"));
        let back = cluster.scratch().join("back");
        said(&cluster, &["fs", "get", "-rp", "/.datasets/set@1", back.to_str().unwrap()]);
        let mut diff = Command::new("diff");
        let output = diff.args(["-r", "--no-dereference"]).args([&tree, &back]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");

        let fs = cluster.connect();
        let root = Caller::root();
        let find = |path: &str| fs.block_on(fs.resolve(&root, path.as_bytes(), false)).unwrap();
        let large = find("/.datasets/set@1/large").entry.unwrap();
        assert_eq!(large.attr.size, (9 << 20) + 77);
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let at = find("/.datasets/set@1/large").at;
        let (file, _) = fs.block_on(fs.open(&root, &at, flags)).unwrap();
        let want = bytes((9 << 20) + 77, 3);
        // Across blocks, at the end, and behind it.
        for (offset, len) in [(0, 10), ((4 << 20) - 3, 7), (5 << 20, 3 << 20), (want.len() - 5, 99)]
        {
            let end = want.len().min(offset + len);
            let got = fs.block_on(file.read(offset as u64, len)).unwrap();
            assert!(got == want[offset..end], "{offset} {len}");
        }
        assert!(fs.block_on(file.read(want.len() as u64 + 5, 10)).unwrap().is_empty());
        assert_eq!(fs.block_on(fs.getxattr(&root, &at, b"user.kind")).unwrap(), "tensor");
        // Nobody but its owner goes into the private directory.
        let user = Caller { uid: 5, gid: 5, groups: Groups::Hidden, ..Caller::root() };
        let hidden = fs.block_on(fs.resolve(&user, b"/.datasets/set@1/private/f", false));
        assert_eq!(hidden.unwrap_err().errno(), Errno::EACCES);
        // A link out of the dataset is what it was.
        let outside = find("/.datasets/set@1/outside");
        assert_eq!(outside.entry.unwrap().attr.kind(), FileKind::Symlink);
        assert_eq!(fs.block_on(fs.readlink(&root, &outside.at)).unwrap(), "/etc/hostname");
        // Whoever has the table asks no MNode about names any more.
        let requests = || cluster.metric_of("mnode", "saker_mnode_requests_total");
        let read_all = || {
            for n in 0..40 {
                let path = format!("/.datasets/set@1/{}/{n}.jpg", ["train", "train/cats"][n % 2]);
                let at = find(&path).at;
                let (file, entry) = fs.block_on(fs.open(&root, &at, flags)).unwrap();
                let data = fs.block_on(file.read(0, entry.attr.size as usize)).unwrap();
                assert!(data == bytes(n * n * 173, n), "{path}");
            }
        };
        read_all();
        let before = requests();
        read_all();
        // Leases of the open partitions are renewed.
        assert!(requests() - before <= 4.0, "{} requests", requests() - before);
        // Nothing changes.
        let change = SetAttr::default();
        let errors = [
            fs.block_on(fs.unlink(&root, &find("/.datasets/set@1/train/0.jpg").at)).err(),
            fs.block_on(fs.setattr(&root, &at, &change)).err(),
            fs.block_on(fs.mkdir(&root, &find("/.datasets/new@1").at, 0o755)).err(),
            fs.block_on(fs.rename(&root, &at, &find("/stolen").at, false, &[])).err(),
        ];
        let errnos = errors.map(|error| error.unwrap().errno());
        assert_eq!(errnos, [Errno::EROFS, Errno::EROFS, Errno::EROFS, Errno::EXDEV]);
        cluster.fsck();
    }
}

#[test]
fn versions_share_what_has_not_changed_until_nobody_has_it() {
    let (cluster, tree) = start(SHAPE);
    let freeze = |name: &str| cluster.json(&["dataset", "freeze", "/data", name, "-p", "8"]);
    let first = freeze("set@1");
    // The same again is the same.
    assert_eq!(freeze("set@1"), first);
    let objects = || {
        let text = said(&cluster, &["fs", "ls", "/.saker/datasets/objects"]);
        text.lines().filter(|line| !line.is_empty()).count()
    };
    assert_eq!(objects(), 9, "eight partitions and a table");
    let changed = cluster.scratch().join("changed");
    fs::write(&changed, "other").unwrap();
    said(&cluster, &["fs", "put", changed.to_str().unwrap(), "/data/train/2.jpg"]);
    let text = refused(&cluster, &["dataset", "freeze", "/data", "set@1", "-p", "8"]);
    assert!(text.contains("already"), "{text}");
    let second = freeze("set@2");
    assert_ne!(second["manifest"]["digest"], first["manifest"]["digest"]);
    assert_eq!(objects(), 11, "one partition and a table more");
    let names: Vec<_> = cluster
        .json(&["dataset", "frozen"])
        .as_array()
        .unwrap()
        .iter()
        .map(|frozen| frozen["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["set@1", "set@2"]);

    let gc = || cluster.json(&["dataset", "gc"])["objects"].as_u64().unwrap();
    assert_eq!(gc(), 0);
    said(&cluster, &["dataset", "remove", "set@1"]);
    assert_eq!(gc(), 2);
    assert_eq!(said(&cluster, &["fs", "cat", "/.datasets/set@2/train/2.jpg"]), "other");
    let back = cluster.saker(&["fs", "cat", "/.datasets/set@2/train/4.jpg"]).stdout;
    assert!(back == fs::read(tree.join("train/4.jpg")).unwrap());
    refused(&cluster, &["fs", "cat", "/.datasets/set@1/train/4.jpg"]);
    refused(&cluster, &["dataset", "remove", "set@1"]);
    said(&cluster, &["dataset", "remove", "set@2"]);
    assert_eq!(gc(), 9);
    assert_eq!(objects(), 0);
    for bad in ["set", "set@", "a/b@1", "../x@1"] {
        refused(&cluster, &["dataset", "freeze", "/data", bad]);
    }
    refused(&cluster, &["dataset", "freeze", "/absent", "set@3"]);
    refused(&cluster, &["dataset", "freeze", "/data/large", "set@3"]);
    cluster.fsck();
}

/// Packs the tree on this machine.
fn packed(cluster: &RunningCluster, tree: &Path, name: &str) -> std::path::PathBuf {
    let to = cluster.scratch().join(name);
    let mut pack = Command::new(binary());
    let output = pack.args(["dataset", "pack", "-p", "2"]).arg(tree).arg("-o").arg(&to).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}

#[test]
fn freezing_removes_nothing_that_is_not_its_own() {
    let (cluster, _) = start(SHAPE);
    let scratch = cluster.scratch().join("mine");
    fs::create_dir(&scratch).unwrap();
    fs::write(scratch.join("precious"), "x").unwrap();
    let dir = scratch.to_str().unwrap();
    said(&cluster, &["dataset", "freeze", "/data", "set@1", "--scratch", dir]);
    let left: Vec<_> = fs::read_dir(&scratch).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["precious"]);
}

/// What is changed of a file.
type Change = (&'static str, fn(&mut Vec<u8>));

/// Freezes what was packed.
fn freeze(fs: &Fs, who: &Caller, packed: &Dataset, name: &str) -> Result<FrozenDataset> {
    let progress = FreezeProgress::default();
    fs.block_on(async {
        let name = FreezeName { name, at: None };
        fs.datasets().begin(who, name, &progress, || Ok(())).await?.freeze(packed).await
    })
}

#[test]
fn what_is_damaged_is_not_frozen() {
    let (cluster, tree) = start(SHAPE);
    let packed = packed(&cluster, &tree, "packed");
    let freeze = ["dataset", "freeze", "--packed", packed.to_str().unwrap(), "set@1"];
    // Data, which clients do not compare; the table; what the manifest says of all.
    let changes: [Change; 3] = [
        ("part-00000.saker", |bytes| bytes[5000] ^= 1),
        ("table.saker", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("dataset.json", |bytes| {
            let at = bytes.windows(9).position(|at| at == b"\"digest\":").unwrap() + 11;
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
        }),
    ];
    for (name, change) in changes {
        let file = packed.join(name);
        let was = fs::read(&file).unwrap();
        let mut bytes = was.clone();
        change(&mut bytes);
        fs::write(&file, bytes).unwrap();
        let text = refused(&cluster, &freeze);
        assert!(text.contains("damaged"), "{name}: {text}");
        fs::write(&file, was).unwrap();
    }
    assert_eq!(cluster.json(&["dataset", "frozen"]), serde_json::json!([]));
    said(&cluster, &freeze);
    let back = cluster.saker(&["fs", "cat", "/.datasets/set@1/large"]).stdout;
    assert!(back == fs::read(tree.join("large")).unwrap());
}

#[test]
fn what_only_the_superuser_may_make_counts_only_where_he_has_frozen_it() {
    let (cluster, tree) = start(SHAPE);
    let program = tree.join("program");
    fs::write(&program, "#!/bin/sh").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let is_root = rustix::fs::setxattr(&program, "trusted.x", b"1", flags).is_ok();
    rustix::fs::setxattr(&program, "user.x", b"1", flags).unwrap();
    let packed = Dataset::open(&packed(&cluster, &tree, "packed")).unwrap();
    let (fs, root) = (cluster.connect(), Caller::root());
    let user = Caller { uid: 5, gid: 5, groups: Groups::Hidden, ..Caller::root() };
    for (who, name, mode) in [(&root, "roots@1", 0o6755), (&user, "users@1", 0o755)] {
        freeze(&fs, who, &packed, name).unwrap();
        let path = format!("/.datasets/{name}/program");
        let found = fs.block_on(fs.resolve(&root, path.as_bytes(), false)).unwrap();
        assert_eq!(found.entry.unwrap().attr.mode & 0o7777, mode, "{name}");
        let names = fs.block_on(fs.listxattr(&root, &found.at)).unwrap();
        let is_trusted = names.windows(9).any(|at| at == b"trusted.x");
        assert_eq!(is_trusted, is_root && name == "roots@1", "{name}");
        assert!(names.windows(6).any(|at| at == b"user.x"));
    }
}

#[test]
fn who_freezes_is_alone_also_in_one_client() {
    let (cluster, tree) = start(SHAPE);
    let first = packed(&cluster, &tree, "first");
    fs::write(tree.join("more"), "x").unwrap();
    let both = [first, packed(&cluster, &tree, "second")].map(|dir| Dataset::open(&dir).unwrap());
    let fs = cluster.connect();
    let freeze = |packed: &Dataset, name: &str| freeze(&fs, &Caller::root(), packed, name);
    let at_once = |[a, b]: [&str; 2]| {
        std::thread::scope(|scope| {
            let (a, b) = (scope.spawn(|| freeze(&both[0], a)), scope.spawn(|| freeze(&both[1], b)));
            [a.join().unwrap(), b.join().unwrap()]
        })
    };
    let numbers = at_once(["a@1", "b@1"]).map(|frozen| frozen.unwrap().number);
    assert_ne!(numbers[0], numbers[1]);
    let frozen = at_once(["set@1", "set@1"]);
    let refused: Vec<_> = frozen.iter().filter_map(|frozen| frozen.as_ref().err()).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].errno(), Errno::EEXIST);
}

#[test]
fn what_a_dataset_has_lost_comes_back_when_it_is_frozen_again() {
    let (cluster, tree) = start(SHAPE);
    let packed = packed(&cluster, &tree, "packed");
    let freeze = ["dataset", "freeze", "--packed", packed.to_str().unwrap(), "set@1"];
    let frozen = cluster.json(&freeze);
    for part in frozen["manifest"]["partitions"].as_array().unwrap() {
        let digest = part["digest"].as_str().unwrap();
        said(&cluster, &["fs", "rm", &format!("/.saker/datasets/objects/{digest}")]);
    }
    refused(&cluster, &["fs", "cat", "/.datasets/set@1/large"]);
    assert_eq!(cluster.json(&freeze), frozen);
    let back = cluster.saker(&["fs", "cat", "/.datasets/set@1/large"]).stdout;
    assert!(back == fs::read(tree.join("large")).unwrap());
}

#[test]
fn a_mount_shows_what_was_frozen() {
    if !can_mount("a_mount_shows_what_was_frozen") {
        return;
    }
    let (cluster, tree) = start(ClusterShape { mount: true, ..SHAPE });
    said(&cluster, &["dataset", "freeze", "/data", "set@1", "-p", "3", "-c", "lz4"]);
    let all = cluster.mount().join(".datasets");
    let there = all.join("set@1");
    equal(&tree, &there);
    let names: Vec<_> = fs::read_dir(&all).unwrap().map(|item| item.unwrap().file_name()).collect();
    assert_eq!(names, ["set@1"]);
    // Through a link, and by a path that goes up.
    assert_eq!(fs::read(there.join("cats/3.jpg")).unwrap(), bytes(9 * 173, 3));
    assert_eq!(fs::read(there.join("train/../large")).unwrap().len(), (9 << 20) + 77);
    let [a, b] = ["train/0.jpg", "same.jpg"].map(|name| fs::metadata(there.join(name)).unwrap());
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    let erofs = i32::from(Errno::EROFS.0);
    assert_eq!(errno(fs::write(there.join("new"), "x")), erofs);
    assert_eq!(errno(fs::write(there.join("large"), "x")), erofs);
    assert_eq!(errno(fs::remove_file(there.join("large"))), erofs);
    assert_eq!(errno(fs::create_dir(there.join("dir"))), erofs);
    assert_eq!(errno(fs::create_dir(all.join("other@1"))), erofs);
    assert_eq!(errno(fs::rename(there.join("large"), there.join("l"))), erofs);
    let permissions = fs::Permissions::from_mode(0o777);
    assert_eq!(errno(fs::set_permissions(there.join("large"), permissions)), erofs);
    // Programs that lock what they read.
    let locked = fs::File::open(there.join("large")).unwrap();
    locked.try_lock_shared().unwrap();
    // Compressed data by a map.
    let script = "import mmap, sys; f = open(sys.argv[1], 'rb'); \
                  sys.stdout.buffer.write(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))";
    let mapped = Command::new("python3").args(["-c", script]).arg(there.join("large")).output();
    assert!(mapped.unwrap().stdout == fs::read(tree.join("large")).unwrap());
    // Programs that walk.
    let count = Command::new("find").arg(&there).arg("-type").arg("f").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&count.stdout).lines().count(), 43);
    cluster.fsck();
}

/// A freeze that is killed goes on: what is stored already is not stored again, and until the end
/// there is no dataset.
#[test]
fn a_killed_freeze_goes_on() {
    let (cluster, _) = start(SHAPE);
    let scratch = cluster.scratch().join("packing");
    let words = ["dataset", "freeze", "/data", "set@1", "-p", "30", "--scratch"];
    let words = [&words[..], &[scratch.to_str().unwrap()]].concat();
    let objects = || {
        let listed = cluster.saker(&["fs", "ls", "/.saker/datasets/objects"]).stdout;
        let text = String::from_utf8(listed).unwrap();
        text.lines().filter(|line| !line.is_empty() && !line.ends_with(".new")).count()
    };
    let mut freeze = Command::new(binary());
    freeze.args(&words).arg("--cluster").arg(cluster.dir());
    let mut child = freeze.stdout(Stdio::null()).spawn().unwrap();
    until("a partition is stored", || objects() > 0);
    child.kill().unwrap();
    let was_done = child.wait().unwrap().success();
    let frozen = cluster.json(&["dataset", "frozen"]);
    assert_eq!(frozen.as_array().unwrap().len(), usize::from(was_done));
    let again = said(&cluster, &words);
    assert!(!again.contains("(0 of it was there already)"), "{again}");
    assert_eq!(objects(), 31, "thirty partitions and a table");
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "it is tidy");
    // Without the notes on the machine: nothing is stored twice either.
    said(&cluster, &["dataset", "remove", "set@1"]);
    let again = cluster.json(&words);
    assert_eq!(again["name"], "set@1");
    assert_eq!(objects(), 31);
    cluster.fsck();
}

/// Whoever collects waits for those who freeze, and they for it; and they say so.
#[test]
fn freezing_and_collecting_take_turns() {
    let (cluster, _) = start(SHAPE);
    said(&cluster, &["dataset", "freeze", "/data", "set@1"]);
    let fs = cluster.connect();
    let root = Caller::root();
    let at = fs.block_on(fs.resolve(&root, b"/.saker/datasets/lock", true)).unwrap().at;
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    for (exclusive, words, waits_for) in [
        (true, &["dataset", "freeze", "/data", "set@2"][..], "waiting for saker dataset gc"),
        (false, &["dataset", "gc"], "waiting for saker dataset freeze"),
    ] {
        let (file, _) = fs.block_on(fs.open(&root, &at, flags)).unwrap();
        let lock = Lock { exclusive, ..Lock::whole(7, true) };
        fs.block_on(file.set_lock(&lock, Duration::from_secs(2))).unwrap();
        // Others that freeze are not waited for.
        if !exclusive {
            said(&cluster, &["dataset", "freeze", "/data", "set@3"]);
        }
        let mut command = Command::new(binary());
        command.args(words).arg("--cluster").arg(cluster.dir());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains(waits_for), "{line}");
        assert!(child.try_wait().unwrap().is_none(), "it waits");
        fs.block_on(file.unlock(&lock)).unwrap();
        fs.block_on(file.release());
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_link_leads_to_a_frozen_dataset() {
    let is_mounted = can_mount("a_link_leads_to_a_frozen_dataset");
    let (cluster, tree) = start(ClusterShape { mount: is_mounted, ..SHAPE });
    said(&cluster, &["fs", "mkdir", "/sets"]);
    let freeze = |name: &str, at: &str| {
        cluster.saker(&["dataset", "freeze", "/data", name, "-p", "2", "--at", at])
    };
    let failed = |output: std::process::Output, what: &str| {
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(what), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    };
    // Said before anything is packed.
    failed(freeze("set@1", "/data"), "file exists: /data");
    failed(freeze("set@1", "/absent/set"), "no such file or directory: /absent/set");
    failed(freeze("set@1", "/data/large/set"), "not a directory: /data/large/set");
    failed(freeze("set@1", "/.datasets/set"), "read-only file system: /.datasets/set");
    let none = cluster.saker(&["fs", "ls", "/.saker/datasets/objects"]);
    assert_eq!(String::from_utf8_lossy(&none.stdout), "");
    for (name, at, target) in
        [("set@1", "/sets/../sets/one", "../.datasets/set@1"), ("set@2", "/two", ".datasets/set@2")]
    {
        let output = freeze(name, at);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The same again is the same, and no other link.
        assert!(freeze(name, at).status.success());
        failed(freeze(name, "/sets/other"), "its link cannot be changed");
        let at = at.replace("/sets/..", "");
        let text = said(&cluster, &["fs", "ls", "-l", &at]);
        assert!(text.contains(&format!("-> {target}")), "{text}");
        assert!(said(&cluster, &["dataset", "frozen"]).contains(&format!("  {at}\n")));
        let back = cluster.saker(&["fs", "cat", &format!("{at}/train/4.jpg")]).stdout;
        assert!(back == fs::read(tree.join("train/4.jpg")).unwrap());
        if is_mounted {
            equal(&tree, &cluster.mount().join(&at[1..]));
        }
    }
    // A link that leads elsewhere by now stays.
    said(&cluster, &["fs", "rm", "/two"]);
    said(&cluster, &["fs", "ln", "-s", "data", "/two"]);
    said(&cluster, &["dataset", "remove", "set@1", "set@2"]);
    assert_eq!(said(&cluster, &["fs", "ls", "/sets"]), "");
    assert!(said(&cluster, &["fs", "ls", "/two"]).contains("large"));
    // One that a killed run has left is taken.
    said(&cluster, &["fs", "ln", "-s", "../.datasets/set@1", "/sets/one"]);
    assert!(freeze("set@1", "/sets/one").status.success());
    cluster.fsck();
}

/// Who lists the datasets reads no tables, only records.
#[test]
fn a_list_of_datasets_reads_records_only() {
    let (cluster, tree) = start(SHAPE);
    for name in ["set@1", "set@2"] {
        said(&cluster, &["dataset", "freeze", "/data", name, "-p", "2"]);
    }
    // A record as older versions wrote it.
    let place = "/.saker/datasets/names/set@2.json";
    let mut record: serde_json::Value =
        serde_json::from_str(&said(&cluster, &["fs", "cat", place])).unwrap();
    assert_eq!(record["root"]["mode"], fs::metadata(&tree).unwrap().mode());
    record.as_object_mut().unwrap().remove("root").unwrap();
    let old = cluster.scratch().join("old.json");
    fs::write(&old, record.to_string()).unwrap();
    said(&cluster, &["fs", "put", old.to_str().unwrap(), place]);
    let attrs = || {
        let fs = cluster.connect();
        let root = Caller::root();
        ["set@1", "set@2"].map(|name| {
            let path = format!("/.datasets/{name}");
            let found = fs.block_on(fs.resolve(&root, path.as_bytes(), false)).unwrap();
            let entry = found.entry.unwrap();
            let by_record = entry.attr.clone();
            // With the table it is the same.
            fs.block_on(fs.resolve(&root, format!("{path}/large").as_bytes(), false)).unwrap();
            let by_table = fs.block_on(fs.lookup(&root, &found.at)).unwrap().attr;
            assert_eq!(by_record, by_table);
            (by_table.mode, by_table.uid, by_table.nlink, by_table.mtime_ns)
        })
    };
    let [first, second] = attrs();
    assert_eq!(first, second);
    // Without the table of the first, it is listed all the same, and cannot be entered.
    let table = record["manifest"]["table_digest"].as_str().unwrap();
    said(&cluster, &["dataset", "remove", "set@2"]);
    said(&cluster, &["fs", "rm", &format!("/.saker/datasets/objects/{table}")]);
    let listed = said(&cluster, &["fs", "ls", "-l", "/.datasets"]);
    assert!(listed.contains("set@1"), "{listed}");
    refused(&cluster, &["fs", "ls", "/.datasets/set@1"]);
}

/// Agents of a job's nodes, killed when dropped.
struct Agents(Vec<Child>);

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }
}

/// A process is a client of a cluster, which renews leases.
fn is_client(process: &Child) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    // A thread may end meanwhile.
    let mut names = threads.filter_map(|t| fs::read_to_string(t.unwrap().path().join("comm")).ok());
    names.any(|name| name.trim() == "saker-leases")
}

/// From a directory of the cluster to programs on two nodes, which ask no MNode any more.
#[test]
fn a_job_reads_what_was_frozen_without_the_cluster() {
    let (cluster, tree) = start(SHAPE);
    said(&cluster, &["dataset", "freeze", "/data", "set@1", "-p", "6", "-c", "zstd"]);
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let nodes = held.map(|held| held.local_addr().unwrap().to_string());
    let dirs = [0, 1].map(|n| cluster.scratch().join(format!("node{n}")));
    let mut agents = Agents(Vec::new());
    for (node, dir) in nodes.iter().zip(&dirs) {
        let mut agent = Command::new(binary());
        agent.args(["serve", "agent", "--listen", node, "--dir"]).arg(dir);
        agents.0.push(agent.stderr(Stdio::null()).spawn().unwrap());
        until("the agent serves", || dir.join("agent.sock").exists());
    }
    let list = nodes.join(",");
    let dir = dirs[0].to_str().unwrap();
    said(&cluster, &["dataset", "stage", "set@1", "--nodes", &list, "--dir", dir]);
    until("the agents have left the cluster", || !agents.0.iter().any(is_client));
    let read = cluster.metric_of("store", "saker_store_read_bytes_total");
    let requests = || cluster.metric_of("mnode", "saker_mnode_requests_total");
    // `saker status`, which tells where metrics are, asks each MNode itself.
    let [first, before] = [requests(), requests()];
    let library = binary().with_file_name("libsaker_preload.so");
    for dir in &dirs {
        let mut diff = Command::new("diff");
        diff.args(["-r", "--no-dereference"]).arg(&tree).arg("/saker/set@1");
        let output = diff.env("LD_PRELOAD", &library).env("SAKER_AGENT_DIR", dir).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert!(output.status.success());
    }
    assert_eq!(requests() - before, before - first);
    // The cluster is the origin, and was read about once, when it was staged.
    assert_eq!(cluster.metric_of("store", "saker_store_read_bytes_total"), read);
    let absent = ["dataset", "stage", "absent@1", "--nodes", &list, "--dir", dir];
    assert!(refused(&cluster, &absent).contains("not there"));
}
