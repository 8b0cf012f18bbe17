//! How many reads to have under way. A disk that is asked for more than it serves side by side takes
//! longer for each, and may give the data of many at once: who waits for it does nothing until then,
//! and has too much to do afterwards.

use std::ops::RangeInclusive;
use std::time::Duration;

use saker_runtime::time::Time;

/// Reads under way, at least and at most.
const READS: RangeInclusive<f32> = 4.0..=64.0;
/// Of those so many may be waiting within the disk: if fewer do there is room for more reads.
const QUEUED: RangeInclusive<f32> = 2.0..=4.0;
/// After so long it is learned anew how quick the disk is.
const LEARN_EVERY: Duration = Duration::from_secs(10);
/// Reads are alike if their sizes have the same logarithm.
const SIZES: usize = usize::BITS as usize;

/// Learns from how long reads take how many the disk serves side by side, as TCP Vegas learns about a
/// path (Brakmo and Peterson, IEEE JSAC 13(8), 1995).
pub(super) struct Window {
    reads: f32,
    /// What a read has taken at least, by its size.
    quickest: [Duration; SIZES],
    /// Since when.
    learned: Time,
}

impl Window {
    pub(super) fn new(now: Time) -> Window {
        Window { reads: *READS.start(), quickest: [Duration::MAX; SIZES], learned: now }
    }

    /// Another read may begin beside so many.
    pub(super) fn has_room(&self, under_way: usize) -> bool {
        under_way < self.reads as usize
    }

    /// A read of so many bytes that began beside so many others has ended.
    pub(super) fn ended(&mut self, bytes: usize, beside: usize, begun: Time, now: Time) {
        if now.since(self.learned) >= LEARN_EVERY {
            *self = Window::new(now);
        }
        if begun < self.learned {
            return;
        }
        let took = now.since(begun).max(Duration::from_nanos(1));
        let quickest = &mut self.quickest[bytes.max(1).ilog2() as usize];
        *quickest = took.min(*quickest);
        if (beside + 1) as f32 * 2.0 <= self.reads {
            // There could have been more.
            return;
        }
        // Little's law: those under way are served for a part of their time, and wait for the rest.
        let queued = self.reads * (1.0 - quickest.as_secs_f32() / took.as_secs_f32());
        let step = 1.0 / self.reads;
        if queued < *QUEUED.start() {
            self.reads = (self.reads + step).min(*READS.end());
        } else if queued > *QUEUED.end() {
            self.reads = (self.reads - step).max(*READS.start());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const START: Time = Time::from_ns(1 << 40);

    fn room(window: &Window) -> usize {
        (1..).find(|n| !window.has_room(*n)).unwrap_or_default()
    }

    /// Has as many reads under way as there may be, each taking what `took` says of so many. How many there
    /// may be then.
    fn used(
        window: &mut Window,
        now: &mut Time,
        reads: u32,
        took: impl Fn(u32) -> Duration,
    ) -> usize {
        for _ in 0..reads {
            let count = room(window);
            let took = took(count as u32);
            let begun = *now;
            *now = begun + took / count as u32;
            window.ended(64 << 10, count - 1, begun, begun + took);
        }
        room(window)
    }

    #[test]
    fn a_disk_has_as_many_reads_as_it_serves() {
        let side_by_side = |width: u32| move |count: u32| 100 * US * count.div_ceil(width);
        for (width, wanted) in [(1, 4..=6), (8, 8..=16), (1000, 64..=64)] {
            let (mut window, mut now) = (Window::new(START), START);
            assert_eq!(room(&window), 4);
            // One alone says how quick the disk is.
            window.ended(64 << 10, 0, now, now + 100 * US);
            let count = used(&mut window, &mut now, 10_000, side_by_side(width));
            assert!(wanted.contains(&count), "{count} reads for {width}");
        }
    }

    #[test]
    fn large_reads_may_take_longer() {
        let mut window = Window::new(START);
        for _ in 0..10_000 {
            let beside = room(&window) - 1;
            window.ended(4096, beside, START, START + 100 * US);
            window.ended(1 << 20, beside, START, START + 1000 * US);
        }
        assert_eq!(room(&window), 64);
    }

    #[test]
    fn a_disk_that_has_become_slower_is_learned_anew() {
        let (mut window, mut now) = (Window::new(START), START);
        assert_eq!(used(&mut window, &mut now, 5000, |_| 100 * US), 64);
        assert_eq!(used(&mut window, &mut now, 3000, |_| 5000 * US), 4);
        now += LEARN_EVERY;
        // What began before says nothing.
        window.ended(64 << 10, 3, START, now);
        assert_eq!(used(&mut window, &mut now, 3000, |_| 5000 * US), 64);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut window = Window::new(START);
        for beside in [0, 1].repeat(1000) {
            window.ended(4096, beside, START, START + 100 * US);
        }
        assert_eq!(room(&window), 4);
    }
}
