//! Frozen datasets in a cluster: frozen from a directory, seen by mounts and by the library, shared
//! by versions, collected. The mount's half needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use saker_client::saker_types::{Errno, FileKind};
use saker_client::{Caller, Groups, OpenFlags, SetAttr};
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
