//! Lets those who call a mount run before it serves them.
//!
//! The kernel's scheduler shares a CPU among sessions first, then within each (`autogroup`,
//! sched(7)). So one mount has as large a share as all of its callers together, and whenever it
//! takes less than that, it runs as soon as any of them has asked something: one request at a
//! time. With a small share it runs when they all wait, finds many requests, and each costs less
//! (`docs/decisions/0026`). But beside programs that compute it would wait for those, too; then it
//! takes its share back.

use std::time::Duration;

use saker_runtime::{thread, time};

use crate::procfs::{self, OnCpu};

/// How often we look how long we wait for a CPU.
const PERIOD: Duration = Duration::from_millis(250);
/// The share of the mount, as nice(1) counts: a ninth of a session's.
const NICE: i32 = 10;
/// Who serves waits for those who call him no longer than their work takes, a few times his own
/// when they read files of 100 KiB. Behind a program that computes it was 7 to 24 times.
const WAITS_PER_RUN: u32 = 5;
/// Waiting for less in a period does not matter.
const WAIT_MIN: Duration = Duration::from_millis(10);
/// Periods for which the share is taken back; each time it was given up for nothing, twice as many.
const BACK_MIN: u32 = 40;
const BACK_MAX: u32 = 640;

/// Starts this for a process that has a session to itself, where there are such shares.
pub fn give() {
    let enabled = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    let grouped = enabled.is_ok_and(|enabled| enabled.trim() == "1");
    let alone = rustix::process::getsid(None).ok() == Some(rustix::process::getpid());
    if !grouped || !alone {
        return;
    }
    if let Err(error) = thread::spawn("turns", run) {
        tracing::warn!("callers get no turns of their own: {error}");
    }
}

fn run() {
    let mut judge = Judge::default();
    let mut nice = 0;
    let mut before = procfs::on_cpu();
    // Without these figures we would not notice that we starve.
    while let Some(then) = before {
        time::sleep(PERIOD);
        before = procfs::on_cpu();
        let Some(now) = before else { return };
        let wanted = judge.nice(now.since(then));
        if wanted == nice {
            continue;
        }
        match std::fs::write("/proc/self/autogroup", wanted.to_string()) {
            Ok(()) => nice = wanted,
            Err(error) => {
                tracing::debug!("autogroup: {error}");
                return;
            }
        }
    }
}

/// Decides, period by period, how large our share should be.
#[derive(Default)]
struct Judge {
    /// Periods for which we keep the whole share.
    back: u32,
    /// For how many it was the last time; 0 once giving it up did no harm for as long.
    last: u32,
    /// Periods since it was given up.
    given: u32,
}

impl Judge {
    /// The share for the next period, by what the threads did in this one.
    fn nice(&mut self, spent: OnCpu) -> i32 {
        if self.back > 0 {
            self.back -= 1;
            self.given = 0;
            return if self.back > 0 { 0 } else { NICE };
        }
        if spent.waiting > WAIT_MIN && spent.waiting > spent.running * WAITS_PER_RUN {
            self.last = (self.last * 2).clamp(BACK_MIN, BACK_MAX);
            self.back = self.last;
            return 0;
        }
        self.given = self.given.saturating_add(1);
        if self.given > self.last {
            self.last = 0;
        }
        NICE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(running_ms: u64, waiting_ms: u64) -> OnCpu {
        let [running, waiting] = [running_ms, waiting_ms].map(Duration::from_millis);
        OnCpu { running, waiting }
    }

    /// Periods until the share is given up again.
    fn back(judge: &mut Judge) -> u32 {
        let mut periods = 1;
        while judge.nice(spent(20, 0)) == 0 {
            periods += 1;
        }
        periods
    }

    #[test]
    fn callers_come_first() {
        let mut judge = Judge::default();
        assert_eq!(judge.nice(spent(0, 0)), NICE);
        assert_eq!(judge.nice(spent(100, 300)), NICE, "they read large files");
        assert_eq!(judge.nice(spent(1, 9)), NICE, "it is not worth while");
    }

    #[test]
    fn programs_that_compute_do_not() {
        let mut judge = Judge::default();
        assert_eq!(judge.nice(spent(10, 70)), 0);
        assert_eq!(back(&mut judge), BACK_MIN);
        // They still do.
        assert_eq!(judge.nice(spent(10, 70)), 0);
        assert_eq!(back(&mut judge), 2 * BACK_MIN);
        for _ in 0..8 {
            judge.nice(spent(10, 70));
            back(&mut judge);
        }
        assert_eq!(judge.nice(spent(10, 70)), 0);
        assert_eq!(back(&mut judge), BACK_MAX, "it is tried again every three minutes");
        for _ in 0..=BACK_MAX {
            assert_eq!(judge.nice(spent(100, 100)), NICE);
        }
        assert_eq!(judge.nice(spent(10, 70)), 0);
        assert_eq!(back(&mut judge), BACK_MIN, "long ago");
    }
}
