//! `saker fs`, `rmr`, `fsck`, `bench` and `mount` on a small cluster.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use common::{Cluster, can_mount, wait_for};
use prost::Message;
use saker_rpc::{Hello, NodeNumber, Reactor, RoleKind, Transport};
use saker_types::wire::{ChunkWriteReq, Op};

/// Names, kinds, modes, sizes, times and targets below a directory, sorted.
fn listing(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut stack = vec![root.to_owned()];
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let (size, content) = match meta.is_file() {
                true => (meta.len(), fs::read(&path).unwrap()),
                false => (0, Vec::new()),
            };
            let target = fs::read_link(&path).unwrap_or_default();
            // Times of symbolic links are not kept.
            let mtime = if meta.is_symlink() { 0 } else { meta.mtime_nsec() };
            let sum =
                content.iter().fold(0u64, |sum, b| sum.wrapping_mul(31).wrapping_add(*b as u64));
            all.push(format!("{name} {:o} {size} {mtime} {sum} {}", meta.mode(), target.display()));
            if meta.is_dir() {
                stack.push(path);
            }
        }
    }
    all.sort();
    all
}

fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("deep/er/est")).unwrap();
    for n in 0..300 {
        let content = vec![n as u8; n * n];
        fs::write(root.join(format!("deep/file-{n}")), content).unwrap();
    }
    // More than one chunk, and not a whole number of pieces.
    let large: Vec<u8> =
        (0..9_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(root.join("large"), large).unwrap();
    fs::write(root.join("deep/er/secret"), "x").unwrap();
    fs::set_permissions(root.join("deep/er/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("../deep/file-7", root.join("deep/link")).unwrap();
    fs::set_permissions(root.join("deep/er/est"), fs::Permissions::from_mode(0o750)).unwrap();
}

/// Links and extended attributes, where this machine's disk has them.
#[test]
fn preserving_copies_keep_links_and_attributes() {
    let cluster = Cluster::up(&[]);
    let (tree, back) = (cluster.path("tree"), cluster.path("back"));
    fs::create_dir_all(tree.join("dir")).unwrap();
    fs::write(tree.join("first"), vec![7; 10_000]).unwrap();
    fs::hard_link(tree.join("first"), tree.join("dir/second")).unwrap();
    fs::hard_link(tree.join("first"), tree.join("dir/third")).unwrap();
    let set = |path: &Path| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, "user.label", b"cat", flags).is_ok()
    };
    let has_xattrs = set(&tree.join("first")) && set(&tree.join("dir"));
    let (tree_arg, back_arg) = (tree.to_str().unwrap(), back.to_str().unwrap());
    cluster.succeed(&["fs", "mkdir", "/a"]);
    fs::create_dir(&back).unwrap();
    // Twice: over nothing, and over what is there.
    for _ in 0..2 {
        cluster.succeed(&["fs", "put", "-rp", tree_arg, "/a"]);
        cluster.succeed(&["fs", "get", "-rp", "/a/tree", back_arg]);
        let back = back.join("tree");
        assert_eq!(listing(&tree), listing(&back));
        let inodes = ["first", "dir/second", "dir/third"]
            .map(|name| fs::metadata(back.join(name)).unwrap().ino());
        assert_eq!(inodes, [inodes[0]; 3]);
        for name in ["first", "dir"].iter().filter(|_| has_xattrs) {
            let mut value = [0; 10];
            let got = rustix::fs::getxattr(back.join(name), "user.label", &mut value);
            assert_eq!(&value[..got.unwrap()], b"cat", "{name}");
        }
    }
    assert_eq!(cluster.json(&["fsck", "--strict"])["problems"], serde_json::json!([]));
}

#[test]
fn trees_go_in_and_come_back_equal() {
    let cluster = Cluster::up(&[]);
    let (tree, back) = (cluster.path("tree"), cluster.path("back"));
    make_tree(&tree);
    let (tree_arg, back_arg) = (tree.to_str().unwrap(), back.to_str().unwrap());
    cluster.succeed(&["fs", "mkdir", "-p", "/a/b"]);
    cluster.succeed(&["fs", "put", "-rp", tree_arg, "/a/b"]);
    cluster.succeed(&["fs", "get", "-rp", "/a/b/tree", back_arg]);
    assert_eq!(listing(&tree), listing(&back));
    let found = cluster.succeed(&["fs", "find", "/a", "--type", "f"]);
    assert_eq!(found.lines().count(), 302);
    let named = cluster.succeed(&["fs", "find", "/", "--name", "file-1?"]);
    assert_eq!(named.lines().count(), 10);
    let du = cluster.succeed(&["fs", "du", "/a/b/tree"]);
    let size: u64 =
        (0..300u64).map(|n| n * n).sum::<u64>() + 9_000_001 + 1 + "../deep/file-7".len() as u64;
    assert_eq!(du, format!("{size}\t307\t/a/b/tree\n"));
    let fsck = cluster.json(&["fsck", "--strict", "--verify"]);
    assert_eq!(fsck["problems"].as_array().unwrap().len(), 0, "{fsck}");
    assert!(fsck["chunks"].as_u64().unwrap() >= 3, "{fsck}");
    cluster.succeed(&["rmr", "/a"]);
    assert_eq!(cluster.succeed(&["fs", "ls", "/"]), "");
}

#[test]
fn single_files_are_handled_as_with_the_ordinary_tools() {
    let cluster = Cluster::up(&[]);
    let local = cluster.path("local");
    fs::write(&local, "hello\n").unwrap();
    cluster.succeed(&["fs", "put", local.to_str().unwrap(), "/one"]);
    assert_eq!(cluster.succeed(&["fs", "cat", "/one"]), "hello\n");
    cluster.succeed(&["fs", "ln", "/one", "/two"]);
    cluster.succeed(&["fs", "ln", "-s", "one", "/soft"]);
    assert_eq!(cluster.succeed(&["fs", "cat", "/soft"]), "hello\n");
    assert!(cluster.succeed(&["fs", "ls", "-l"]).contains("soft -> one"));
    assert!(cluster.succeed(&["fs", "stat", "/two"]).contains("Links: 2"));
    cluster.succeed(&["fs", "mkdir", "/dir"]);
    cluster.succeed(&["fs", "mv", "/one", "/two", "/dir"]);
    assert_eq!(cluster.succeed(&["fs", "ls", "/dir"]), "one\ntwo\n");
    cluster.succeed(&["fs", "mv", "/dir", "/moved"]);
    cluster.succeed(&["fs", "setfattr", "-n", "user.colour", "-v", "red", "/moved/one"]);
    let all = cluster.succeed(&["fs", "getfattr", "/moved/one"]);
    assert!(all.contains("user.colour=\"red\""), "{all}");
    cluster.succeed(&["fs", "setfattr", "-x", "user.colour", "/moved/one"]);
    assert_eq!(cluster.succeed(&["fs", "getfattr", "/moved/one"]), "");
    assert!(cluster.fail(&["fs", "rm", "/moved"], 1).contains("is a directory"));
    assert!(cluster.fail(&["fs", "cat", "/nothing"], 1).contains("no such file"));
    assert!(cluster.fail(&["fs", "mkdir", "/moved"], 1).contains("file exists"));
    cluster.succeed(&["fs", "rm", "-f", "/nothing"]);
    cluster.succeed(&["fs", "rm", "-r", "/moved", "/soft"]);
    assert_eq!(cluster.succeed(&["fs", "ls"]), "");
}

/// Writes a chunk that belongs to no inode, as a bug would.
fn leak_a_chunk(cluster: &Cluster, id: u64) {
    let status = cluster.json(&["status"]);
    let store = status["roles"].as_array().unwrap().iter().find(|role| role["role"] == "store");
    let addr = store.unwrap()["addr"].as_str().unwrap().parse().unwrap();
    let payload = Bytes::from_static(b"nobody's");
    let crc = crc32c::crc32c(&payload);
    let request = ChunkWriteReq { id, replicas: vec![0], crc, ..ChunkWriteReq::default() };
    let body = Bytes::from(request.encode_to_vec());
    let reactor = Reactor::new(Hello::new(RoleKind::Tool, NodeNumber::NONE, None)).unwrap();
    let within = std::time::Duration::from_secs(10);
    let call = reactor.call(addr, Op::ChunkWrite as u16, 0, body, payload, within);
    assert_eq!(reactor.block_on(call).unwrap().status, 0);
}

#[test]
fn fsck_sets_leaked_chunks_aside() {
    let cluster = Cluster::up(&[]);
    leak_a_chunk(&cluster, 0xFFFF_0000_0001);
    let output = cluster.saker(&["fsck", "--json"]);
    assert_eq!(output.status.code(), Some(4));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["problems"][0]["kind"], "leaked_chunks", "{said}");
    assert_eq!(said["problems"][0]["repaired"], false, "{said}");
    assert_eq!(cluster.saker(&["fsck", "--repair"]).status.code(), Some(1));
    let said = cluster.json(&["fsck"]);
    assert_eq!((&said["quarantined"], &said["deleted"]), (&1.into(), &0.into()), "{said}");
    assert_eq!((&said["problems"], &said["chunks"]), (&serde_json::json!([]), &1.into()));
    // Its day is not over.
    assert_eq!(cluster.saker(&["fsck", "--repair"]).status.code(), Some(0));
    assert_eq!(cluster.json(&["fsck"])["quarantined"], 1);
}

#[test]
fn benchmarks_report_what_the_contract_says() {
    let cluster = Cluster::up(&[]);
    let meta = cluster.json(&["bench", "meta", "--files", "200", "--inflight", "4"]);
    let names = |said: &serde_json::Value| {
        let phases = said["phases"].as_array().unwrap();
        let name = |phase: &serde_json::Value| phase["phase"].as_str().unwrap().to_owned();
        phases.iter().map(name).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(names(&meta), "mkdir; create; getattr; open; unlink; rmdir");
    for phase in meta["phases"].as_array().unwrap() {
        assert_eq!((&phase["ops"], &phase["errors"]), (&200.into(), &0.into()), "{phase}");
        for field in ["threads", "seconds", "ops_per_s", "mib_per_s", "mean_us", "p50_us", "p99_us"]
        {
            assert!(phase[field].is_number(), "{phase}");
        }
        let cpu = phase["cpu_us_per_op"].as_object().unwrap();
        assert!(cpu.contains_key("client") && cpu.contains_key("mnode-1"), "{phase}");
    }
    let small = cluster.json(&["bench", "small", "--files", "50", "--size", "10000"]);
    assert_eq!(names(&small), "write; read; read, again");
    assert_eq!(small["phases"][1]["ops"], 50);
    let again = cluster.json(&["bench", "meta", "--files", "30", "--again"]);
    let wanted = "mkdir; create; getattr, first; getattr; open, first; open; unlink; rmdir";
    assert_eq!(names(&again), wanted);
    assert_eq!(again["phases"][2]["ops"], 30);
    let path = cluster.path("elsewhere");
    fs::create_dir(&path).unwrap();
    let local = ["bench", "meta", "--files", "20", "--path", path.to_str().unwrap()];
    assert_eq!(cluster.json(&local)["phases"][1]["ops"], 20);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "the benchmark cleans up");
    assert_eq!(cluster.succeed(&["fs", "ls"]), "");
}

/// A tree that was left is read by one request for each file, from the stores when it is not small;
/// and it is not mistaken for another one.
#[test]
fn a_traversal_reads_the_tree_that_was_prepared() {
    let cluster = Cluster::up(&[]);
    let tree = |files, step| {
        let shape = ["bench", "traverse", "--depth", "2", "--fanout", "3", "--size", "5000"];
        [&shape[..], &["--files", files, step]].concat()
    };
    cluster.succeed(&tree("30", "--prepare"));
    let phase = &cluster.json(&tree("30", "--read"))["phases"][0];
    assert_eq!((&phase["ops"], &phase["errors"]), (&30.into(), &0.into()), "{phase}");
    assert_eq!(phase["requests_per_op"]["open"], 1.0, "{phase}");
    assert!(phase["store_read_bytes"].as_u64().unwrap() >= 30 * 5000, "{phase}");
    cluster.fail(&tree("31", "--read"), 1);
}

#[test]
fn one_directory_and_bursts_are_compared_with_others() {
    let cluster = Cluster::up(&[]);
    let shared = cluster.json(&["bench", "shared", "--files", "40"]);
    assert!(shared["ratios"]["create, shared / create, private"].is_number(), "{shared}");
    let bursts = ["bench", "burst", "--bursts", "1,4", "--dirs", "3", "--files", "20"];
    let burst = cluster.json(&bursts);
    let phases = burst["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 4, "{burst}");
    assert!(phases.iter().all(|p| p["ops"] == 20 && p["errors"] == 0), "{burst}");
    assert_eq!(cluster.succeed(&["fs", "ls"]), "", "the benchmarks clean up");
}

#[test]
fn mounts_come_and_go_by_command() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::up(&[]);
    let mnt = cluster.mnt();
    fs::create_dir(&mnt).unwrap();
    let (dir, point) = (cluster.dir(), mnt.to_str().unwrap().to_owned());
    cluster.succeed(&["mount", dir.to_str().unwrap(), &point, "-o", "noexec"]);
    assert!(line_of(&point).contains("nosuid,nodev,noexec"));
    fs::write(mnt.join("file"), "seen").unwrap();
    // A path below the mount names the file and its cluster.
    let below = format!("{point}/file");
    let elsewhere = Command::new(env!("CARGO_BIN_EXE_saker"))
        .args(["fs", "cat", &below])
        .env_remove("SAKER_CLUSTER")
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(common::text(&elsewhere.stdout), "seen", "{}", common::text(&elsewhere.stderr));
    cluster.succeed(&["umount", &point]);
    wait_for("the directory to be empty", || fs::read_dir(&mnt).unwrap().count() == 0);
    // As mount(8) calls it for an entry of fstab.
    let helper = cluster.path("mount.saker");
    symlink(env!("CARGO_BIN_EXE_saker"), &helper).unwrap();
    let mut mount = Command::new(&helper);
    mount.arg(&dir).arg(&mnt).args(["-v", "-o", "ro,_netdev,fsname=the-name"]);
    assert!(mount.status().unwrap().success());
    let line = line_of(&point);
    assert!(line.contains(" - fuse.saker the-name "), "{line}");
    // mount(8) does not tell its helpers of "dev" and "suid", which are its defaults.
    assert!(!line.contains("nosuid") && !line.contains("nodev"), "{line}");
    // As mount.fuse(8) calls it for the type fuse.saker.
    let remount = |how: &str| {
        let mut remount = Command::new(env!("CARGO_BIN_EXE_saker"));
        remount.arg("the-name").arg(&mnt).args(["-o", how]).status().unwrap().success()
    };
    assert!(remount("rw,remount"));
    fs::write(mnt.join("third"), "").unwrap();
    assert!(remount("remount,ro"));
    let error = fs::write(mnt.join("other"), "").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let line = line_of(&point);
    assert!(!line.contains("nosuid") && !line.contains("nodev"), "{line}");
    assert!(remount("remount,ro,nosuid,nodev"));
    assert!(line_of(&point).contains("nosuid,nodev"));
    cluster.succeed(&["umount", &point]);
    mount.args(["-o", "nosuid,nodev"]);
    assert!(mount.status().unwrap().success());
    assert!(line_of(&point).contains("nosuid,nodev"));
    cluster.succeed(&["umount", &point]);
    assert_eq!(mount.arg("-o").arg("nonsense").status().unwrap().code(), Some(1));
}

/// What the kernel's table says of a mount.
fn line_of(point: &str) -> String {
    let shown = fs::read_to_string("/proc/self/mountinfo").unwrap();
    shown.lines().find(|line| line.contains(point)).unwrap().to_owned()
}
