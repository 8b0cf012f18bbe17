//! Loss of power: what a process had not flushed is gone.
//!
//! The data of each process is a file system of its own on a loop device. Power is lost by
//! shutting that file system down without its log being flushed (what `xfs_io -x -c shutdown`
//! does; dirty pages never reach the disk) and killing the process; then the file system is
//! mounted again, which replays its log, and the process starts. `kill -9` alone proves nothing
//! about flushes: the page cache survives it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::disk::{self, TormentDisk};
use super::{Game, TormentReport, look_back, settle, up};
use crate::generate::Random;

/// Every so manieth time the power of all fails at once.
const ALL_EVERY: usize = 4;

/// Lets the power fail `rounds` times while clients work, which flush what they write.
pub fn lose_power(seed: u64, rounds: usize, think: Duration) -> TormentReport {
    let (cluster, mut shell, disks, second) = disk::start();
    let (first, other) = (cluster.mount(), second.point().to_path_buf());
    let mut game = Game::start(&[&first, &other], seed, true, think);
    let mut rng = Random::new(seed);
    let mut report = TormentReport::default();
    for round in 0..rounds {
        sleep(Duration::from_millis(500 + rng.below(2_000) as u64));
        let all = round % ALL_EVERY == ALL_EVERY - 1;
        let one = rng.below(disks.len());
        let dark: Vec<&TormentDisk> =
            disks.iter().enumerate().filter(|(n, _)| all || *n == one).map(|(_, d)| d).collect();
        let start = Instant::now();
        dark.iter().for_each(|dark| dark.disk.cut());
        for disk in &dark {
            // It may have given up already: it cannot flush any more.
            if let Some(pid) = cluster.pid(disk.role).and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        for disk in &dark {
            disk.disk.unmount();
            disk.disk.mount(&mut shell);
        }
        let mounted = start.elapsed();
        up(&cluster, &mut shell);
        report.faults += 1;
        let who = if all { "all" } else { dark[0].role };
        let served = start.elapsed();
        eprintln!(
            "round {round}: power of {who} lost, disks after {mounted:.1?}, all after {served:.1?}"
        );
    }
    // Something must happen after the last time, too.
    sleep(Duration::from_millis(500));
    settle(&cluster, &[&first, &other]);
    game.stop();
    look_back(&cluster, second, &game, &mut report);
    let each = report.mutations >= 50 * rounds as u64;
    report.demand(each, format!("only {} acknowledged changes", report.mutations));
    cluster.down();
    drop(disks);
    report
}
