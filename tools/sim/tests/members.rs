//! An MNode or store starts on the directory that it had, and on no other: on an empty one all that
//! it held would seem never to have been.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Signal;
use saker_client::{Caller, ClientOptions, ClusterAddr, Fs, OpenFlags};
use saker_sim::cluster::{ClusterShape, RunningCluster, binary, line_with};
use saker_sim::wait::until;
use saker_types::wire::At;
use saker_types::{Errno, Locator};

const FILES: usize = 12;
/// Too large for an inode row.
const SIZE: usize = 300_000;

fn at(file: usize) -> At {
    At::below(Locator::root(), vec![Bytes::from(format!("f{file}"))])
}

fn content(file: usize) -> Vec<u8> {
    (0..SIZE).map(|i| (i / 7 + file * 13) as u8).collect()
}

fn write_all(fs: &Fs) {
    let flags = OpenFlags::from_linux(2);
    for n in 0..FILES {
        fs.block_on(async {
            let (file, _) = fs.create(&Caller::root(), &at(n), 0o644, flags).await.unwrap();
            file.write(0, &content(n)).await.unwrap();
            file.fsync().await.unwrap();
            file.release().await;
        });
    }
}

/// A cluster with these files.
fn with_files(shape: ClusterShape) -> RunningCluster {
    let cluster = RunningCluster::start(shape);
    let fs = cluster.connect();
    write_all(&fs);
    fs.close().unwrap();
    cluster
}

/// How many files are read whole by a client that does not wait long. No other answer than an
/// error may come of the rest.
fn read_all(cluster: &RunningCluster) -> usize {
    let options = ClientOptions { timeout: Duration::from_millis(700), ..ClientOptions::default() };
    let fs = Fs::connect(&ClusterAddr::Dir(cluster.dir()), options).unwrap();
    let mut read = 0;
    for n in 0..FILES {
        let got = fs.block_on(async {
            let (file, _) = fs.open(&Caller::root(), &at(n), OpenFlags::from_linux(0)).await?;
            file.read(0, SIZE + 1).await
        });
        match got {
            Ok(data) => {
                assert!(data == content(n), "file {n}: {} bytes", data.len());
                read += 1;
            }
            Err(error) => assert_ne!(error.errno(), Errno::ENOENT, "file {n}"),
        }
    }
    fs.close().unwrap();
    read
}

/// `saker serve` as a service manager calls it.
fn words(cluster: &RunningCluster, role: &str) -> [OsString; 5] {
    let (kind, _) = role.split_once('-').unwrap();
    let config = cluster.dir().join(format!("etc/{role}.toml"));
    [binary().into(), "serve".into(), kind.into(), "--config".into(), config.into()]
}

/// What becomes of it; if it serves after all it is stopped.
fn serve(cluster: &RunningCluster, role: &str) -> Output {
    Command::new("timeout").arg("20").args(words(cluster, role)).output().unwrap()
}

fn data(cluster: &RunningCluster, role: &str) -> PathBuf {
    cluster.dir().join("data").join(role)
}

fn stop(cluster: &RunningCluster, role: &str) {
    cluster.signal(role, Signal::KILL);
    let pid = cluster.pid(role).unwrap();
    until("its end", || !PathBuf::from(format!("/proc/{pid}/exe")).exists());
}

/// `saker up` with nothing at a place where something was: what it says.
fn up_without(cluster: &RunningCluster, place: &Path, meanwhile: impl FnOnce()) -> String {
    let away = cluster.scratch().join("away");
    std::fs::rename(place, &away).unwrap();
    let words = cluster.up_words();
    let output = Command::new(&words[0]).args(&words[1..]).output().unwrap();
    assert!(!output.status.success());
    meanwhile();
    std::fs::remove_dir_all(place).unwrap();
    std::fs::rename(&away, place).unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_lost_disk_is_noticed() {
    let cluster = with_files(ClusterShape { mnodes: 2, stores: 2, ..ClusterShape::default() });
    assert_eq!(read_all(&cluster), FILES);
    for role in ["store-1", "mnode-1"] {
        stop(&cluster, role);
        let (place, away) = (data(&cluster, role), cluster.scratch().join(role));
        std::fs::rename(&place, &away).unwrap();
        // An empty mount point.
        std::fs::create_dir(&place).unwrap();
        for _ in 0..2 {
            let output = serve(&cluster, role);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("had its data in another directory"), "{said}");
        }
        assert!(read_all(&cluster) < FILES, "some of it was there");
        // Another member's.
        let other = data(&cluster, &role.replace('1', "0"));
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        std::fs::copy(other.join("MEMBER"), place.join("MEMBER")).unwrap();
        let output = serve(&cluster, role);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(" 0 of cluster"), "{said}");
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::rename(&away, &place).unwrap();
        cluster.up();
        assert_eq!(read_all(&cluster), FILES);
    }
    cluster.fsck();
}

#[test]
fn a_lost_cluster_is_noticed() {
    for supervise in [false, true] {
        let shape = ClusterShape { mnodes: 1, stores: 1, supervise, ..ClusterShape::default() };
        let cluster = with_files(shape);
        cluster.down();
        let said = up_without(&cluster, &cluster.dir().join("data"), || {
            assert!(cluster.roles().iter().all(|role| role.state == "down"));
        });
        assert!(said.contains("in another directory"), "{said}");
        cluster.up();
        assert_eq!(read_all(&cluster), FILES);
        cluster.fsck();
    }
}

/// The other copy is read, as when the store is dead.
#[test]
fn a_cluster_starts_without_a_lost_disk() {
    for supervise in [false, true] {
        let shape = ClusterShape {
            mnodes: 1,
            stores: 2,
            replicas: 2,
            supervise,
            ..ClusterShape::default()
        };
        let cluster = with_files(shape);
        cluster.down();
        let said = up_without(&cluster, &data(&cluster, "store-0"), || {
            assert_eq!(read_all(&cluster), FILES);
            cluster.down();
        });
        assert!(said.contains("store-0: it does not come up"), "{said}");
        cluster.up();
        cluster.fsck();
    }
}

#[test]
fn a_node_starts_on_its_directory_while_the_coordinator_is_down() {
    let cluster =
        RunningCluster::start(ClusterShape { mnodes: 1, stores: 1, ..ClusterShape::default() });
    let fs = cluster.connect();
    write_all(&fs);
    for role in ["coordinator-0", "store-0"] {
        stop(&cluster, role);
    }
    let log = cluster.scratch().join("log");
    let stderr = std::fs::File::create(&log).unwrap();
    let [program, args @ ..] = words(&cluster, "store-0");
    let mut store = Command::new(program).args(args).stderr(stderr).spawn().unwrap();
    line_with(&log, "starting with the last map");
    line_with(&log, "store 0 serves");
    let read = fs.block_on(async {
        let (file, _) = fs.open(&Caller::root(), &at(0), OpenFlags::from_linux(0)).await?;
        file.read(0, SIZE).await
    });
    assert!(read.unwrap() == content(0));
    fs.close().unwrap();
    store.kill().unwrap();
    store.wait().unwrap();
    cluster.up();
    assert_eq!(read_all(&cluster), FILES);
}

/// Writes a file and waits until it is safe.
fn write_one(cluster: &RunningCluster, name: &'static str) {
    let fs = cluster.connect();
    fs.block_on(async {
        let at = At::below(Locator::root(), vec![Bytes::from(name)]);
        let flags = OpenFlags::from_linux(2);
        let (file, _) = fs.create(&Caller::root(), &at, 0o644, flags).await.unwrap();
        file.write(0, &content(0)).await.unwrap();
        file.fsync().await.unwrap();
        file.release().await;
    });
    fs.close().unwrap();
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// An old copy of a directory lacks what was acknowledged since, and of an MNode's the ids that were
/// given out are free.
#[test]
fn a_directory_that_was_put_back_from_a_copy_is_noticed() {
    let cluster = with_files(ClusterShape { mnodes: 1, stores: 1, ..ClusterShape::default() });
    for role in ["store-0", "mnode-0"] {
        stop(&cluster, role);
        let (place, old) = (data(&cluster, role), cluster.scratch().join(format!("old-{role}")));
        copy(&place, &old);
        cluster.up();
        write_one(&cluster, if role == "store-0" { "a" } else { "b" });
        stop(&cluster, role);
        let away = cluster.scratch().join(role);
        std::fs::rename(&place, &away).unwrap();
        copy(&old, &place);
        for _ in 0..2 {
            let output = serve(&cluster, role);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("is older than it was"), "{said}");
        }
        let refused = &cluster.json(&["status"])["refused"];
        assert!(refused[0].as_str().unwrap().contains("put back from a copy"), "{refused}");
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::rename(&away, &place).unwrap();
        cluster.up();
        assert_eq!(read_all(&cluster), FILES);
        assert_eq!(cluster.json(&["status"])["refused"], serde_json::json!([]));
    }
    // The coordinator's own: the nodes know what they told it.
    cluster.down();
    let (place, old) = (data(&cluster, "coordinator-0"), cluster.scratch().join("old"));
    copy(&place, &old);
    cluster.up();
    cluster.down();
    let away = cluster.scratch().join("coordinator");
    std::fs::rename(&place, &away).unwrap();
    copy(&old, &place);
    let words = cluster.up_words();
    let output = Command::new(&words[0]).args(&words[1..]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the coordinator's directory"), "{said}");
    cluster.down();
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    cluster.up();
    assert_eq!(read_all(&cluster), FILES);
    cluster.fsck();
}
