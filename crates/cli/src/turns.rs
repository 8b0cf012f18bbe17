//! Lets those who call a mount run before it serves them.
//!
//! The kernel's scheduler shares a CPU among sessions first, then within each (`autogroup`,
//! sched(7)). So one mount has as large a share as all of its callers together, and whenever it
//! takes less than that, it runs as soon as any of them has asked something: one request at a
//! time. With a small share it runs when they all wait, finds many requests, and each costs less
//! (`docs/decisions/0026`). But beside programs that compute it would wait for those, too. So it
//! tries now and then which share serves more.

use std::io;
use std::time::Duration;

use saker_runtime::{thread, time};

use crate::procfs::{self, OnCpu};

const AUTOGROUP: &str = "/proc/self/autogroup";
/// How often the share is looked at.
const PERIOD: Duration = Duration::from_millis(250);
/// A small share, as nice(1) counts: a ninth of a session's.
const NICE: i32 = 10;
/// A mount whose threads want less than this of a period has nothing to gather.
const BUSY: Duration = Duration::from_millis(25);
/// After so many periods of that it has the whole share.
const QUIET: u32 = 8;
/// After a try that found the small share to be right there is none for so many periods; a period in
/// which the threads waited for `STARVING` times as long as they ran counts as so many.
const TRUST: u32 = 20;
const STARVING: u32 = 5;
/// Periods with the whole share after it has served more; each time in a row twice as many.
const KEEP_MIN: u32 = 40;
const KEEP_MAX: u32 = 640;

/// Starts this for a process that leads its session, where sessions have shares. `served` counts
/// what the process has done so far, for whoever calls it.
pub fn give(served: impl Fn() -> u64 + Send + 'static) {
    let enabled = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    let shared = enabled.is_ok_and(|enabled| enabled.trim() == "1");
    let me = std::process::id();
    let leads = procfs::stat(me).is_some_and(|stat| stat.session == u64::from(me));
    // Another share than the usual one is somebody's will.
    let usual = std::fs::read_to_string(AUTOGROUP).is_ok_and(|text| text.ends_with(" nice 0\n"));
    // Without these figures it would not notice that it starves.
    let counted = procfs::on_cpu().is_some();
    if !(shared && leads && usual && counted) {
        return;
    }
    if let Err(error) = thread::spawn("turns", move || run(&served)) {
        tracing::warn!("callers get no turns of their own: {error}");
    }
}

fn run(served: &impl Fn() -> u64) {
    let mut judge = Judge::default();
    let (mut nice, mut wanted) = (0, 0);
    let mut before = (procfs::on_cpu(), served());
    loop {
        time::sleep(PERIOD);
        let now = (procfs::on_cpu(), served());
        match (before.0, now.0) {
            // Nothing is learned from a period with another share than was wanted.
            _ if nice != wanted => {}
            (Some(then), Some(on_cpu)) => {
                wanted = judge.nice(on_cpu.since(then), now.1 - before.1);
            }
            // No descriptor is left, say.
            _ => (judge, wanted) = (Judge::default(), 0),
        }
        before = now;
        if nice == wanted {
            continue;
        }
        match std::fs::write(AUTOGROUP, wanted.to_string()) {
            Ok(()) => nice = wanted,
            // Who is not root may do it if nobody on this machine has for 100 ms: next time.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::debug!("{AUTOGROUP}: {error}"),
        }
    }
}

/// Decides, period by period, how large the share should be.
#[derive(Default)]
struct Judge {
    share: Share,
    /// Periods for which the whole share was kept the last time; 0 after a try that found the
    /// small one to be right.
    kept: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Share {
    /// The whole one: there is little to do.
    #[default]
    Idle,
    /// The small one, for `quiet` periods with little to do; in the next `trusted` ones without a
    /// try.
    Small { quiet: u32, trusted: u32 },
    /// The whole one for a period, after one with the small share that has served so much.
    Try { before: u64 },
    /// The small one again, to compare: another load may have come with the try.
    Compare { before: u64, tried: u64 },
    /// The whole one for so many periods: it has served more.
    Whole { left: u32 },
}

impl Judge {
    /// The share for the next period, by what the threads did in this one, and how much they
    /// served.
    fn nice(&mut self, spent: OnCpu, served: u64) -> i32 {
        self.share = self.next(spent, served);
        match self.share {
            Share::Idle | Share::Try { .. } | Share::Whole { .. } => 0,
            Share::Small { .. } | Share::Compare { .. } => NICE,
        }
    }

    fn next(&mut self, spent: OnCpu, served: u64) -> Share {
        let busy = spent.running + spent.waiting >= BUSY;
        match self.share {
            Share::Idle if !busy => Share::Idle,
            Share::Idle => Share::Small { quiet: 0, trusted: 0 },
            Share::Small { quiet, .. } if !busy && quiet + 1 >= QUIET => Share::Idle,
            Share::Small { quiet, trusted } if !busy => Share::Small { quiet: quiet + 1, trusted },
            // Callers keep it waiting, too, while they read what they were given.
            Share::Small { trusted: 0, .. } if spent.waiting > spent.running => {
                Share::Try { before: served }
            }
            Share::Small { trusted, .. } => {
                let starving = spent.waiting > spent.running * STARVING;
                let passed = if starving { STARVING } else { 1 };
                Share::Small { quiet: 0, trusted: trusted.saturating_sub(passed) }
            }
            Share::Try { before } if is_more(served, before) => {
                Share::Compare { before, tried: served }
            }
            Share::Compare { before, tried } if is_more(tried, before.max(served)) => {
                self.kept = (self.kept * 2).clamp(KEEP_MIN, KEEP_MAX);
                Share::Whole { left: self.kept }
            }
            Share::Try { .. } | Share::Compare { .. } => {
                self.kept = 0;
                Share::Small { quiet: 0, trusted: TRUST }
            }
            Share::Whole { left } if left > 1 => Share::Whole { left: left - 1 },
            Share::Whole { .. } => Share::Small { quiet: 0, trusted: 0 },
        }
    }
}

/// By a quarter.
fn is_more(served: u64, than: u64) -> bool {
    served > than + than / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(running_ms: u64, waiting_ms: u64) -> OnCpu {
        let [running, waiting] = [running_ms, waiting_ms].map(Duration::from_millis);
        OnCpu { running, waiting }
    }

    /// Periods with each share while the mount waits for others, and serves so much with either.
    fn shares(judge: &mut Judge, periods: u32, whole: u64, small: u64) -> [u32; 2] {
        let mut count = [0, 0];
        let mut nice = judge.nice(spent(0, 0), 0);
        for _ in 0..periods {
            count[usize::from(nice == NICE)] += 1;
            let served = if nice == NICE { small } else { whole };
            nice = judge.nice(spent(60, 120), served);
        }
        count
    }

    #[test]
    fn who_has_little_to_do_has_its_share() {
        let mut judge = Judge::default();
        assert_eq!(judge.nice(spent(10, 5), 100), 0);
        assert_eq!(judge.nice(spent(100, 20), 10_000), NICE);
        assert_eq!(judge.nice(spent(100, 20), 10_000), NICE);
        for _ in 1..QUIET {
            assert_eq!(judge.nice(spent(0, 1), 0), NICE, "between two bursts");
        }
        assert_eq!(judge.nice(spent(0, 1), 0), 0);
    }

    #[test]
    fn callers_come_first() {
        let mut judge = Judge::default();
        let [whole, small] = shares(&mut judge, 400, 25_000, 35_000);
        assert!(whole <= 1 + 400 / TRUST && small > 370, "{whole} {small}");
        // They read such large files that it makes no difference.
        let [whole, small] = shares(&mut judge, 400, 5_000, 5_000);
        assert!(whole <= 400 / TRUST && small > 370, "{whole} {small}");
    }

    #[test]
    fn programs_that_compute_do_not() {
        let mut judge = Judge::default();
        let [whole, small] = shares(&mut judge, 1000, 30_000, 6_000);
        assert!(small <= 12 && whole > 980, "{whole} {small}");
        // When they are gone that is noticed within three minutes.
        let [_, small] = shares(&mut judge, KEEP_MAX + 100, 25_000, 35_000);
        assert!(small > 80, "{small}");
        // And their next coming is noticed sooner, and the first time believed for ten seconds.
        let mut until_whole = 0;
        while !matches!(judge.share, Share::Whole { .. }) {
            until_whole += 1;
            let served = if matches!(judge.share, Share::Try { .. }) { 30_000 } else { 6_000 };
            judge.nice(spent(10, 200), served);
        }
        assert!(until_whole <= TRUST / STARVING + 5, "{until_whole}");
        assert_eq!(judge.share, Share::Whole { left: KEEP_MIN });
    }

    #[test]
    fn a_load_that_comes_with_a_try_decides_nothing() {
        let mut judge = Judge::default();
        judge.nice(spent(100, 200), 1_000);
        assert_eq!(judge.nice(spent(100, 200), 1_000), 0, "a try");
        assert_eq!(judge.nice(spent(100, 200), 9_000), NICE, "more was served");
        assert_eq!(judge.nice(spent(100, 200), 12_000), NICE, "but still more with the small one");
        assert_eq!(judge.share, Share::Small { quiet: 0, trusted: TRUST });
    }
}
