//! One directory with many files: `million CLUSTER [FILES]` creates them through LibFS, 512 in
//! flight, and lists them through it. Memory of the servers: `grep VmHWM /proc/PID/status`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use saker_client::{Caller, ClientOptions, ClusterAddr, Fs, OpenFlags};
use saker_types::Locator;
use saker_types::wire::At;

const IN_FLIGHT: u64 = 512;

fn main() {
    let mut args = std::env::args().skip(1);
    let cluster = args.next().expect("usage: million CLUSTER [FILES]");
    let files: u64 = args.next().map_or(1_000_000, |n| n.parse().unwrap());
    let fs = Fs::connect(&ClusterAddr::parse(&cluster).unwrap(), ClientOptions::default()).unwrap();
    let who = Caller::root();
    fs.block_on(async {
        let dir = fs.mkdir(&who, &At::child(Locator::root(), b"million"), 0o755).await.unwrap().loc;
        let start = Instant::now();
        let first = (0..IN_FLIGHT.min(files)).map(|n| create(&fs, &who, &dir, n));
        let mut running: FuturesUnordered<_> = first.collect();
        for n in IN_FLIGHT..files {
            running.next().await;
            running.push(create(&fs, &who, &dir, n));
        }
        while running.next().await.is_some() {}
        println!("{files} created in {:.1} s", start.elapsed().as_secs_f64());
        let start = Instant::now();
        let (mut stream, mut listed) = (fs.readdir(&who, &dir, 0), 0u64);
        while stream.next().await.unwrap().is_some() {
            listed += 1;
        }
        println!("{listed} listed in {:.1} s", start.elapsed().as_secs_f64());
    });
    fs.close().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("client {peak}");
}

async fn create(fs: &Fs, who: &Caller, dir: &Locator, n: u64) {
    let at = At::child(dir.clone(), format!("file-{n:07}").as_bytes());
    let (file, _) = fs.create(who, &at, 0o644, OpenFlags::from_linux(1)).await.unwrap();
    file.release().await;
}
