//! What losses of power took of what was acknowledged, and what failed disks did, so that a flush
//! that comes after one does not succeed for data from before it.
//!
//! An *epoch* lasts as long as the page cache does that writes go to: until the machine starts
//! again or the file system is mounted again; the death of the process does not end it. Each
//! write is acknowledged with its epoch and its sequence number, and who flushes says of which
//! writes that is to be (NFS has its write verifier for this, RFC 8881, 18.32). When an epoch
//! ends, the numbers whose records are not in the log are remembered with the index.

use saker_types::inode::Unflushed;

/// Epochs whose losses are remembered; of those before them everything counts as lost.
const EPOCHS_MAX: usize = 4096;
/// Runs of records that an epoch lost with its end, what is behind the last one counts as lost; and as
/// many of what was given up before.
const RUNS_MAX: usize = 256;
/// Epochs of which more than one run is remembered; of those before them what is behind the first.
const TORN_EPOCHS_MAX: usize = 16;

/// A run of sequence numbers whose records are lost.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Run {
    #[prost(uint64, tag = "1")]
    first: u64,
    /// The first number behind it.
    #[prost(uint64, tag = "2")]
    end: u64,
}

/// What became of the writes of an epoch that is over.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ended {
    /// By their first numbers. The last one has no end.
    #[prost(message, repeated, tag = "1")]
    lost: Vec<Run>,
}

/// The epochs of a store.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Epochs {
    /// What the epoch that lasts is told from others by
    /// ([`RealDir::cached_since`](saker_runtime::fs::RealDir::cached_since)).
    #[prost(fixed64, tag = "1")]
    boot: u64,
    /// Epochs before those of `ended`.
    #[prost(uint64, tag = "2")]
    forgotten: u64,
    #[prost(message, repeated, tag = "3")]
    ended: Vec<Ended>,
    /// Some epoch has begun.
    #[prost(bool, tag = "4")]
    begun: bool,
    /// Of the epoch that lasts: what a disk did not take and does not give back.
    #[prost(message, repeated, tag = "5")]
    given_up: Vec<Run>,
}

impl Epochs {
    /// Number of the epoch that lasts, from 1.
    pub fn current(&self) -> u64 {
        self.forgotten + self.ended.len() as u64 + 1
    }

    /// Does the epoch last that began with `boot`?
    pub fn lasts_since(&self, boot: u64) -> bool {
        self.begun && self.boot == boot
    }

    /// Begins another epoch if this is another `boot`. `there`: sequence numbers of the records
    /// that are in the log, in any order; those below `durable` are known to be. True if it did: the
    /// epochs must be saved then before anything is acknowledged.
    pub fn begin(&mut self, boot: u64, durable: u64, there: impl Iterator<Item = u64>) -> bool {
        if self.begun && self.boot == boot {
            return false;
        }
        if self.begun {
            let mut lost = std::mem::take(&mut self.given_up);
            lost.append(&mut missing(durable, there));
            lost.sort_by_key(|run| run.first);
            self.ended.push(Ended { lost });
        }
        let torn = self.ended.iter_mut().rev().filter(|epoch| epoch.lost.len() > 1);
        for epoch in torn.skip(TORN_EPOCHS_MAX) {
            epoch.lost.truncate(1);
            epoch.lost.iter_mut().for_each(|run| run.end = u64::MAX);
        }
        if self.ended.len() > EPOCHS_MAX {
            self.ended.remove(0);
            self.forgotten += 1;
        }
        (self.boot, self.begun) = (boot, true);
        true
    }

    /// These records of the epoch that lasts are lost: the disk failed to take them, and cannot be
    /// read there.
    pub fn give_up(&mut self, seqs: impl IntoIterator<Item = u64>) {
        for seq in seqs {
            if self.given_up.iter().any(|run| (run.first..run.end).contains(&seq)) {
                continue;
            }
            let is_full = self.given_up.len() == RUNS_MAX;
            match self.given_up.last_mut().filter(|_| is_full) {
                Some(last) => (last.first, last.end) = (last.first.min(seq), last.end.max(seq + 1)),
                None => self.given_up.push(Run { first: seq, end: seq + 1 }),
            }
        }
    }

    /// May a record be lost of those that were acknowledged so? `next_seq`: number of the next
    /// one. True as well for what this store never acknowledged.
    pub fn lost(&self, writes: &Unflushed, next_seq: u64) -> bool {
        let last = writes.first.saturating_add(writes.more);
        let meets =
            |runs: &[Run]| runs.iter().any(|run| writes.first < run.end && run.first <= last);
        if writes.epoch == self.current() {
            return last >= next_seq || meets(&self.given_up);
        }
        let at =
            writes.epoch.checked_sub(self.forgotten + 1).and_then(|at| usize::try_from(at).ok());
        let Some(epoch) = at.and_then(|at| self.ended.get(at)) else { return true };
        meets(&epoch.lost)
    }
}

/// The runs of numbers from `from` on that are not `there`.
fn missing(from: u64, there: impl Iterator<Item = u64>) -> Vec<Run> {
    let mut there: Vec<u64> = there.filter(|seq| *seq >= from).collect();
    there.sort_unstable();
    let (mut next, mut runs) = (from, Vec::new());
    for seq in there {
        if runs.len() + 1 == RUNS_MAX {
            break;
        }
        if seq > next {
            runs.push(Run { first: next, end: seq });
        }
        next = seq + 1;
    }
    runs.push(Run { first: next, end: u64::MAX });
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(epoch: u64, first: u64, last: u64) -> Unflushed {
        Unflushed { store: 0, epoch, first, more: last - first }
    }

    #[test]
    fn what_an_epoch_left_behind_is_told_from_what_it_lost() {
        let mut epochs = Epochs::default();
        assert!(epochs.begin(7, 0, [].into_iter()));
        assert!(!epochs.begin(7, 0, [].into_iter()), "the same");
        assert_eq!(epochs.current(), 1);
        assert!(!epochs.lost(&writes(1, 1, 9), 10));
        assert!(epochs.lost(&writes(1, 1, 10), 10), "not of this store");
        assert!(epochs.lost(&writes(2, 1, 1), 10), "of a later state of this store");
        // 5, 8 and all from 10 on are not there.
        assert!(epochs.begin(8, 4, [3, 4, 6, 7, 9].into_iter()));
        assert_eq!(epochs.current(), 2);
        let lost = |first, last| epochs.lost(&writes(1, first, last), 10);
        assert!(!lost(1, 4) && !lost(6, 7) && !lost(9, 9));
        assert!(
            lost(5, 5) && lost(1, 5) && lost(7, 8) && lost(8, 9) && lost(10, 10) && lost(50, 60)
        );
        assert!(!epochs.lost(&writes(2, 10, 10), 11));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut epochs = Epochs::default();
        epochs.begin(0, 0, [].into_iter());
        // Each second record is lost.
        epochs.begin(1, 0, (0..4_000).map(|n| 2 * n + 1));
        let lost = |epochs: &Epochs, n| epochs.lost(&writes(1, n, n), 1);
        assert!(lost(&epochs, 0) && !lost(&epochs, 1) && lost(&epochs, 400) && !lost(&epochs, 401));
        assert!(lost(&epochs, 7_001), "nobody knows any more");
        assert_eq!(epochs.ended[0].lost.len(), RUNS_MAX);
        let torn = |epochs: &mut Epochs, boots: std::ops::Range<u64>| {
            boots.for_each(|boot| _ = epochs.begin(boot, 0, [0, 2].into_iter()));
        };
        torn(&mut epochs, 2..17);
        assert!(!lost(&epochs, 1) && lost(&epochs, 2));
        torn(&mut epochs, 17..18);
        assert!(lost(&epochs, 1), "nobody knows any more");
        let of_second = |epochs: &Epochs, n| epochs.lost(&writes(2, n, n), 1);
        assert!(!of_second(&epochs, 0) && of_second(&epochs, 1) && !of_second(&epochs, 2));
        (18..5_000).for_each(|boot| _ = epochs.begin(boot, 9, [].into_iter()));
        assert_eq!((epochs.ended.len(), epochs.current()), (EPOCHS_MAX, 5_000));
        assert!(of_second(&epochs, 0), "nobody knows any more");
        assert!(!epochs.lost(&writes(4_000, 8, 8), 1) && epochs.lost(&writes(4_000, 9, 9), 1));
    }
}
