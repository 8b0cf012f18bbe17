//! The load is spread, requests go where they belong, and the coordinator is not on their path.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use bytes::Bytes;
use rustix::process::Signal;
use saker_client::{Caller, Fs, OpenFlags};
use saker_sim::cluster::{ClusterShape, RunningCluster};
use saker_types::Locator;
use saker_types::wire::At;

const DIRS: usize = 40;
const FILES_A_DIR: usize = 75;

fn at(path: &[String]) -> At {
    At::below(Locator::root(), path.iter().map(|name| Bytes::from(name.clone())).collect())
}

async fn write(fs: &Fs, place: &At, data: &[u8]) {
    let flags = OpenFlags::from_linux(0o102);
    let (file, _) = fs.create(&Caller::root(), place, 0o644, flags).await.unwrap();
    file.write(0, data).await.unwrap();
    file.flush().await.unwrap();
    file.release().await;
}

fn requests(cluster: &RunningCluster, metric: &str) -> f64 {
    cluster.metric_of("mnode", metric)
}

#[test]
fn inodes_and_requests_are_spread() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let fs = cluster.connect();
    fs.block_on(async {
        for dir in 0..DIRS {
            let name = format!("class-{dir:03}");
            fs.mkdir(&Caller::root(), &at(std::slice::from_ref(&name)), 0o755).await.unwrap();
            for file in 0..FILES_A_DIR {
                let image = format!("image-{dir}-{file}.jpg");
                write(&fs, &at(&[name.clone(), image]), &[1; 100]).await;
            }
        }
    });
    let status = cluster.json(&["status"]);
    let shares: Vec<f64> = status["mnodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["share"].as_f64().unwrap())
        .collect();
    assert_eq!(shares.len(), 4);
    assert!(shares.iter().all(|share| (0.2..=0.3).contains(share)), "{shares:?}");
    assert!(status["inodes"].as_u64().unwrap() >= (DIRS * FILES_A_DIR + DIRS) as u64);
    let forwards = requests(&cluster, "saker_mnode_forwards_total");
    let all = requests(&cluster, "saker_mnode_requests_total");
    eprintln!("shares {shares:?}, {forwards} forwards of {all} requests");
    assert!(all >= (DIRS * FILES_A_DIR) as f64);
    assert!(forwards < all / 100.0, "{forwards} of {all} requests were forwarded");
    fs.close().unwrap();
}

#[test]
fn ordinary_operations_need_no_coordinator() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let fs = cluster.connect();
    let who = Caller::root();
    let dir = "data".to_owned();
    let file = |n: usize| at(&["data".to_owned(), format!("file-{n}")]);
    fs.block_on(async {
        fs.mkdir(&who, &at(std::slice::from_ref(&dir)), 0o755).await.unwrap();
        // Every shard has seen the directory, and the client every shard.
        for n in 0..40 {
            write(&fs, &file(n), &[2; 100]).await;
        }
    });
    let coordinator = |metric| cluster.metric_of("coordinator", metric);
    let before = coordinator("saker_coordinator_requests_total");
    cluster.signal("coordinator-0", Signal::STOP);
    let sizes = [0, 100, 5000, 100_000];
    fs.block_on(async {
        for n in 100..200 {
            let data = vec![n as u8; sizes[n % sizes.len()]];
            write(&fs, &file(n), &data).await;
            let (opened, _) = fs.open(&who, &file(n), OpenFlags::from_linux(0)).await.unwrap();
            assert_eq!(opened.read(0, 200_000).await.unwrap(), data);
            opened.release().await;
            fs.getattr(&who, &file(n)).await.unwrap();
            fs.rename(&who, &file(n), &file(n + 1000), false, &[]).await.unwrap();
            if n % 2 == 0 {
                fs.unlink(&who, &file(n + 1000)).await.unwrap();
            }
        }
    });
    cluster.signal("coordinator-0", Signal::CONT);
    let after = coordinator("saker_coordinator_requests_total");
    eprintln!("coordinator: {before} requests before, {after} after");
    // Reading the status asks for the map once or twice.
    assert!(after - before <= 4.0, "{} requests reached the coordinator", after - before);
    fs.close().unwrap();
    cluster.fsck();
}
