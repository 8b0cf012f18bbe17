//! A mount that reads data of stores of its own machine from their files (`-o local_reads=on`). Needs root and
//! /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use saker_sim::cluster::{ClusterShape, OwnMount, RunningCluster, can_mount};

const STORES: u32 = 2;
/// In one chunk, in three chunks.
const SIZES: [usize; 2] = [100_000, (8 << 20) + 5];

/// A mount that does not, and one that does.
struct Local {
    mount: OwnMount,
    cluster: RunningCluster,
}

impl Local {
    /// `None` where nothing can be mounted.
    fn start(test: &str) -> Option<Local> {
        if !can_mount(test) {
            return None;
        }
        let cluster = RunningCluster::start(ClusterShape {
            mount: true,
            stores: STORES,
            mnodes: 2,
            ..ClusterShape::default()
        });
        let mount = cluster.own_mount("local", "local_reads=on");
        mount.said("transport: ");
        Some(Local { mount, cluster })
    }

    fn a(&self, name: &str) -> PathBuf {
        self.cluster.mount().join(name)
    }

    fn b(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3 + seed * 17 + 1) as u8).collect()
}

/// The first reads of files come too early: the stores' directories are opened meanwhile.
fn settle(mut is_local: impl FnMut(usize) -> bool) {
    let mut in_a_row = 0;
    let settled = (0..200).any(|n| {
        in_a_row = if is_local(n) { in_a_row + 1 } else { 0 };
        in_a_row == 20
    });
    assert!(settled);
}

/// Data on stores of this machine is read from their files, and from the stores if something else is
/// there.
#[test]
fn a_file_is_read_where_it_is() {
    let Some(t) = Local::start("a_file_is_read_where_it_is") else { return };
    let count = |name| t.cluster.metric_of("store", name);
    let (located, read) = ("saker_store_located_bytes_total", "saker_store_read_bytes_total");
    // Bytes that the stores told the place of, and those that they sent.
    let costs = |name: &str, data: &[u8]| {
        fs::write(t.a(name), data).unwrap();
        let before = (count(located), count(read));
        assert!(fs::read(t.b(name)).unwrap() == data);
        let told = count(located) - before.0;
        (told, count(read) - before.1 - told)
    };
    let data = bytes(100_000, 3);
    settle(|n| costs(&format!("early{n}"), &data).1 == 0.0);
    for size in SIZES {
        // For a small rest it is not worth it. And the kernel may say of any read that it would wait.
        let is_told = |n| {
            let (told, sent) = costs(&format!("f{size}-{n}"), &bytes(size, 3));
            told >= size as f64 - 5.0 && sent <= 5.0
        };
        assert!((0..20).any(is_told), "{size} bytes");
    }
    let mut segments = Vec::new();
    for n in 0..STORES {
        let dir = t.cluster.dir().join(format!("data/store-{n}/segments"));
        segments.extend(fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()));
    }
    fs::write(t.a("g"), &data).unwrap();
    for file in &segments {
        fs::rename(file, file.with_extension("away")).unwrap();
        fs::write(file, vec![1; 64 << 20]).unwrap();
    }
    let before = (count(located), count(read));
    assert!(fs::read(t.b("g")).unwrap() == data);
    assert_eq!(count(located) - before.0, 100_000.0, "they said where it was");
    assert_eq!(count(read) - before.1, 200_000.0, "and sent it");
    // Of each store that is found out once in five seconds; before, its directory has to be opened.
    let begin = std::time::Instant::now();
    let told = (0..20).map(|n| costs(&format!("h{n}"), &data).0).sum::<f64>();
    // Real time: the client's period.
    let times = 1 + begin.elapsed().as_secs() / 5;
    assert!(told <= 600_000.0 * times as f64, "asked {times} times where it is: {told} bytes");
    segments.iter().for_each(|file| fs::rename(file.with_extension("away"), file).unwrap());
}

/// Nothing of a file is in the page cache.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Data that is on the disk only is fetched by the mount, past the page cache; what is wanted again is kept
/// there by the store.
#[test]
fn what_is_read_once_leaves_the_page_cache_alone() {
    const FILES: usize = 50;
    let test = "what_is_read_once_leaves_the_page_cache_alone";
    let Some(t) = Local::start(test) else { return };
    // Bytes that a process has had fetched from a disk.
    let fetched = |pid: u32| {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: "));
        line.unwrap().parse::<usize>().unwrap()
    };
    let by_mount = || fetched(t.mount.process.id());
    let store = |n| t.cluster.pid(&format!("store-{n}")).unwrap() as u32;
    let by_stores = || (0..STORES).map(|n| fetched(store(n))).sum::<usize>();
    let segments = || {
        let dirs = (0..STORES).map(|n| t.cluster.dir().join(format!("data/store-{n}/segments")));
        dirs.flat_map(|dir| fs::read_dir(dir).unwrap()).map(|entry| entry.unwrap().path())
    };
    let sent = || t.cluster.metric_of("store", "saker_store_read_bytes_total");
    let told = || t.cluster.metric_of("store", "saker_store_located_bytes_total");
    let files: Vec<_> = (0..FILES).map(|n| (t.b(&format!("f{n}")), bytes(150_000, n))).collect();
    for (path, data) in &files {
        fs::write(path, data).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    settle(|n| {
        let path = t.b(&format!("early{n}"));
        fs::write(&path, &files[0].1).unwrap();
        forget(&path);
        let before = sent() - told();
        fs::read(&path).unwrap();
        sent() - told() == before
    });
    // The three ways in turn: by the mount, by the store, from the page cache.
    let all = FILES * 150_000;
    segments().for_each(|segment| forget(&segment));
    for (mount, store) in [(true, false), (false, true), (false, false)] {
        files.iter().for_each(|(path, _)| forget(path));
        let before = (by_mount(), by_stores(), sent() - told());
        files.iter().for_each(|(path, data)| assert!(&fs::read(path).unwrap() == data));
        let got = (by_mount() - before.0, by_stores() - before.1);
        // The kernel may say of any read that it would wait: then the store sends.
        let is = |bytes: usize, most: bool| {
            (bytes >= all * 9 / 10) == most && (most || bytes < all / 10)
        };
        assert!(is(got.0, mount) && is(got.1, store), "{got:?} of {all}");
        let sent = sent() - told() - before.2;
        assert!(sent < all as f64 / 10.0, "{sent} bytes sent, fetched by {:?}", (mount, store));
    }
}
