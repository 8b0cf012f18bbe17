//! Ranges of bytes that were written: sorted, disjoint, merged where they touch.

/// A set of byte offsets, kept as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds the bytes from `start` up to `end` (exclusive).
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        // All that touch the new range become one with it.
        let first = self.0.partition_point(|r| r.1 < start);
        let after = self.0.partition_point(|r| r.0 <= end);
        let touched = &self.0[first..after];
        let start = touched.first().map_or(start, |r| r.0.min(start));
        let end = touched.last().map_or(end, |r| r.1.max(end));
        self.0.splice(first..after, [(start, end)]);
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Is there no byte in it?
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The end of the last range; 0 when there is none.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |r| r.1)
    }

    /// The ranges, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }
}

/// `base` with the bytes of `ours` at `ranges` put over it; zeros where neither reaches.
pub(crate) fn overlay(base: &[u8], ours: &[u8], ranges: &Ranges) -> Vec<u8> {
    let mut out = base.to_vec();
    for (start, end) in ranges.iter() {
        let end = (end as usize).min(ours.len());
        let start = (start as usize).min(end);
        if out.len() < end {
            out.resize(end, 0);
        }
        out[start..end].copy_from_slice(&ours[start..end]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use saker_runtime::rand::Rng;

    fn of(ranges: &[(u64, u64)]) -> Ranges {
        let mut out = Ranges::default();
        ranges.iter().for_each(|r| out.add(r.0, r.1));
        out
    }

    #[test]
    fn touching_ranges_become_one() {
        assert_eq!(of(&[(0, 4), (8, 12), (4, 8)]), Ranges(vec![(0, 12)]));
        assert_eq!(of(&[(8, 12), (0, 4), (5, 7)]), Ranges(vec![(0, 4), (5, 7), (8, 12)]));
        assert_eq!(of(&[(3, 3)]), Ranges::default());
    }

    #[test]
    fn agrees_with_a_bitmap() {
        let mut rng = Rng::seeded(11);
        for _ in 0..500 {
            let (mut ranges, mut bits) = (Ranges::default(), [false; 64]);
            for _ in 0..12 {
                let start = rng.below(60);
                let end = start + rng.below(8).min(64 - start);
                ranges.add(start, end);
                bits[start as usize..end as usize].fill(true);
            }
            let mut expected = Ranges::default();
            let mut at = 0;
            while at < 64 {
                let run = bits[at..].iter().take_while(|b| **b).count();
                if run > 0 {
                    expected.0.push((at as u64, (at + run) as u64));
                }
                at += run.max(1);
            }
            assert_eq!(ranges, expected);
        }
    }

    #[test]
    fn our_bytes_go_over_the_base() {
        let ours = b"..XY....Z";
        assert_eq!(overlay(b"abcdef", ours, &of(&[(2, 4), (8, 9)])), b"abXYef\0\0Z");
        assert_eq!(overlay(b"", ours, &of(&[(2, 4)])), b"\0\0XY");
        assert_eq!(overlay(b"abc", b"", &of(&[(1, 2)])), b"abc");
    }
}
