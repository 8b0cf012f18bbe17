//! The locks on one file: which stand in the way of which, and what becomes of an owner's ranges
//! when it sets or ends one (fcntl(2)). flock(2) is the same with one range, the whole file.

use saker_types::wire::FileLock;

pub(crate) fn same_owner(a: &FileLock, b: &FileLock) -> bool {
    (a.holder, a.owner, a.flock) == (b.holder, b.owner, b.flock)
}

fn overlap(a: &FileLock, b: &FileLock) -> bool {
    a.start <= b.end && b.start <= a.end
}

/// What stands in the way of `wanted`; of several, the one that begins first.
pub(crate) fn conflict<'a>(locks: &'a [FileLock], wanted: &FileLock) -> Option<&'a FileLock> {
    locks
        .iter()
        .filter(|lock| lock.flock == wanted.flock && !same_owner(lock, wanted))
        .filter(|lock| overlap(lock, wanted) && (lock.exclusive || wanted.exclusive))
        .min_by_key(|lock| lock.start)
}

/// The owner of `range` holds nothing there any more; what it holds around it stays.
pub(crate) fn clear(locks: &mut Vec<FileLock>, range: &FileLock) {
    let mut around = Vec::new();
    locks.retain(|lock| {
        if !same_owner(lock, range) || !overlap(lock, range) {
            return true;
        }
        if lock.start < range.start {
            around.push(FileLock { end: range.start - 1, ..*lock });
        }
        if lock.end > range.end {
            around.push(FileLock { start: range.end + 1, ..*lock });
        }
        false
    });
    locks.extend(around);
}

/// The owner of `lock` holds it in place of what it held there. What touches it and is alike
/// becomes one with it. Nothing may stand in its way.
pub(crate) fn set(locks: &mut Vec<FileLock>, lock: &FileLock) {
    clear(locks, lock);
    let mut whole = *lock;
    locks.retain(|other| {
        let touches = other.end.checked_add(1) == Some(lock.start)
            || lock.end.checked_add(1) == Some(other.start);
        let joins = touches && same_owner(other, lock) && other.exclusive == lock.exclusive;
        if joins {
            whole.start = whole.start.min(other.start);
            whole.end = whole.end.max(other.end);
        }
        !joins
    });
    locks.push(whole);
}

#[cfg(test)]
mod tests {
    use super::*;
    use saker_runtime::rand::Rng;

    const BYTES: u64 = 24;
    const OWNERS: u64 = 3;

    /// Byte by byte: 0 nothing, 1 shared, 2 exclusive, of each owner; one more for all that comes.
    type Naive = [[u8; BYTES as usize + 1]; OWNERS as usize];

    fn bytes(lock: &FileLock) -> std::ops::RangeInclusive<usize> {
        lock.start as usize..=lock.end.min(BYTES) as usize
    }

    fn naive_conflict(naive: &Naive, wanted: &FileLock) -> bool {
        let others = naive.iter().enumerate().filter(|(n, _)| *n as u64 != wanted.owner);
        let bar = if wanted.exclusive { 1 } else { 2 };
        others.into_iter().any(|(_, held)| held[bytes(wanted)].iter().any(|byte| *byte >= bar))
    }

    fn check(locks: &[FileLock], naive: &Naive) {
        let mut found = Naive::default();
        for lock in locks {
            assert!(lock.start <= lock.end);
            for byte in &mut found[lock.owner as usize][bytes(lock)] {
                assert_eq!(*byte, 0, "two locks of one owner on one byte: {locks:?}");
                *byte = 1 + u8::from(lock.exclusive);
            }
        }
        assert_eq!(found, *naive, "{locks:?}");
        // What is alike and touches is one.
        for (a, b) in locks.iter().flat_map(|a| locks.iter().map(move |b| (a, b))) {
            let touch = a.end.checked_add(1) == Some(b.start);
            assert!(!(touch && same_owner(a, b) && a.exclusive == b.exclusive), "{a:?} {b:?}");
        }
    }

    #[test]
    fn agrees_with_a_model_of_single_bytes() {
        let mut rng = Rng::seeded(5);
        let (mut refused, mut granted) = (0, 0);
        for _ in 0..200 {
            let (mut locks, mut naive) = (Vec::new(), Naive::default());
            for _ in 0..60 {
                let start = rng.below(BYTES);
                let end = match rng.below(8) {
                    0 => u64::MAX,
                    _ => (start + rng.below(6)).min(BYTES - 1),
                };
                let (owner, exclusive) = (rng.below(OWNERS), rng.below(2) == 0);
                let wanted = FileLock { owner, start, end, exclusive, ..FileLock::default() };
                let mut value = 1 + u8::from(exclusive);
                if rng.below(3) == 0 {
                    clear(&mut locks, &wanted);
                    value = 0;
                } else if let Some(lock) = conflict(&locks, &wanted) {
                    assert!(naive_conflict(&naive, &wanted));
                    assert!(overlap(lock, &wanted) && lock.owner != owner);
                    refused += 1;
                    continue;
                } else {
                    assert!(!naive_conflict(&naive, &wanted));
                    set(&mut locks, &wanted);
                    granted += 1;
                }
                naive[owner as usize][bytes(&wanted)].fill(value);
                check(&locks, &naive);
            }
        }
        assert!(refused > 1_000 && granted > 1_000, "{refused} {granted}");
    }

    #[test]
    fn flock_and_fcntl_do_not_meet() {
        let whole = FileLock { end: u64::MAX, exclusive: true, ..FileLock::default() };
        let flock = FileLock { flock: true, owner: 1, ..whole };
        let mut locks = Vec::new();
        set(&mut locks, &whole);
        assert_eq!(conflict(&locks, &flock), None);
        set(&mut locks, &flock);
        assert_eq!(conflict(&locks, &FileLock { owner: 2, ..flock }), Some(&flock));
        assert_eq!(conflict(&locks, &FileLock { holder: 2, ..whole }), Some(&whole));
        clear(&mut locks, &FileLock { owner: 0, ..flock });
        assert_eq!(locks.len(), 2, "an owner's flock is not its fcntl lock");
    }
}
