//! Times of inodes, as rows and messages hold them: 64 bits that reach as far as ext4's.

/// Nanoseconds since [`FIRST_S`]; later ones are larger.
pub type Stamp = u64;

/// The first second that a stamp can hold, since 1970: 1901-12-13T20:45:52Z, as in ext4.
pub const FIRST_S: i64 = i32::MIN as i64;
/// The last one, as in ext4: 2446-05-10T22:38:55Z.
pub const LAST_S: i64 = FIRST_S + (1 << 34) - 1;

const NS_PER_S: u64 = 1_000_000_000;
const LAST: Stamp = (LAST_S - FIRST_S) as u64 * NS_PER_S + NS_PER_S - 1;

/// The stamp of a time since 1970, or the nearest that there is.
pub fn stamp(seconds: i64, ns: u32) -> Stamp {
    if seconds < FIRST_S {
        return 0;
    }
    let seconds = (seconds.min(LAST_S) - FIRST_S) as u64;
    (seconds * NS_PER_S + u64::from(ns)).min(LAST)
}

/// The stamp of a time in nanoseconds since 1970.
pub fn stamp_of_unix_ns(ns: i64) -> Stamp {
    stamp(ns.div_euclid(NS_PER_S as i64), ns.rem_euclid(NS_PER_S as i64) as u32)
}

/// Seconds since 1970, negative before, and nanoseconds since then.
pub fn unix(stamp: Stamp) -> (i64, u32) {
    ((stamp / NS_PER_S) as i64 + FIRST_S, (stamp % NS_PER_S) as u32)
}

/// The same in nanoseconds.
pub fn unix_ns(stamp: Stamp) -> i128 {
    i128::from(stamp) + i128::from(FIRST_S) * i128::from(NS_PER_S)
}

/// The time of a change after one at `before`: two changes of an inode never have the same, whoever's clock
/// they have theirs from (docs/decisions/0048).
pub fn later(before: Stamp, now: Stamp) -> Stamp {
    now.max(before.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_reach_as_far_as_in_ext4() {
        for seconds in [FIRST_S, -1, 0, 1 << 31, 9_223_372_036, 10_413_792_000, 15_032_385_535] {
            for ns in [0, 1, 999_999_999] {
                assert_eq!(unix(stamp(seconds, ns)), (seconds, ns));
                let all = i128::from(seconds) * 1_000_000_000 + i128::from(ns);
                assert_eq!(unix_ns(stamp(seconds, ns)), all);
            }
        }
        assert_eq!(unix(stamp(i64::MIN, 5)), (FIRST_S, 0));
        assert_eq!(unix(stamp(FIRST_S - 1, 5)), (FIRST_S, 0));
        assert_eq!(unix(stamp(LAST_S + 1, 5)), (LAST_S, 5));
        assert_eq!(unix(stamp(i64::MAX, 999_999_999)), (LAST_S, 999_999_999));
    }

    #[test]
    fn later_stamps_are_larger() {
        let times = [i64::MIN, -1_000_000_000, -1, 0, 1, 1_700_000_000_123_456_789, i64::MAX];
        let stamps = times.map(stamp_of_unix_ns);
        assert!(stamps.is_sorted());
        assert_eq!(unix(stamps[2]), (-1, 999_999_999));
        assert_eq!(unix_ns(stamps[5]), 1_700_000_000_123_456_789);
    }
}
