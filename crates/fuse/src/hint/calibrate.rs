//! Learning which bits of a walk's flags mean what: the kernel's `LOOKUP_*` are macros, unknown to
//! BTF, and have changed between versions.
//!
//! A thread of this process walks names in the mount, and what is noted of their LOOKUPs is
//! compared. Each is answered with an error, so that nothing else happens.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use saker_types::{Errno, ROOT};

use super::Lookup;
use super::slots::Slots;

/// The meaning of a walk's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    /// LOOKUP_PARENT: not the last component.
    pub(super) parent: u32,
    /// LOOKUP_OPEN.
    pub(super) open: u32,
    /// LOOKUP_CREATE: O_CREAT.
    pub(super) create: u32,
    /// LOOKUP_EXCL: O_EXCL.
    pub(super) exclusive: u32,
    /// LOOKUP_REVAL.
    pub(super) reval: u32,
}

/// Names that are walked, each for what it shows: [`PREFIX`] and one of these.
const PREFIX: &[u8] = b".saker-hint-";
const STAT: usize = 0;
const PARENT: usize = 1;
const OPEN: usize = 2;
const CREATE: usize = 3;
const EXCLUSIVE: usize = 4;
const AGAIN: usize = 5;
/// Seen last: the second walk to [`AGAIN`].
const REVAL: usize = 6;

/// Flags of the walk to each name.
pub(super) type Seen = [Option<u32>; 7];

/// The other end of [`walk`]: answers its LOOKUPs.
pub(super) struct Probing {
    slots: Arc<Slots>,
    tid: u32,
    pub(super) seen: Seen,
}

impl Probing {
    /// For LOOKUPs of the calling thread.
    pub(super) fn new(slots: Arc<Slots>) -> Probing {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        Probing { slots, tid, seen: Seen::default() }
    }

    /// The error to answer with, if it is one of the walks.
    pub(super) fn answer(&mut self, lookup: Lookup<'_>) -> Option<Errno> {
        let probe = probe_of(lookup.name)?;
        if lookup.tid != self.tid || lookup.nodeid != ROOT {
            return None;
        }
        let flags = self.slots.find(lookup).and_then(|slot| slot.walk(lookup.name));
        let second = probe == AGAIN && self.seen[AGAIN].is_some();
        self.seen[if second { REVAL } else { probe }] = flags.map(|(_, flags)| flags);
        // ESTALE makes the kernel walk again.
        Some(if probe == AGAIN && !second { Errno::ESTALE } else { Errno::EACCES })
    }
}

fn name_of(probe: usize) -> Vec<u8> {
    [PREFIX, probe.to_string().as_bytes()].concat()
}

fn probe_of(name: &[u8]) -> Option<usize> {
    (STAT..=AGAIN).find(|&probe| name == name_of(probe))
}

/// Walks to names in `mountpoint`; `seen` is what was seen of that so far.
///
/// # Errors
/// In words, when that does not tell the bits.
pub(super) fn walk(mountpoint: &Path, seen: impl Fn() -> Option<Seen>) -> Result<Bits, String> {
    let path = |probe| mountpoint.join(std::ffi::OsStr::from_bytes(&name_of(probe)));
    let missing = "it does not see the mount's LOOKUPs";
    // All fail, as they are answered.
    let _ = rustix::fs::stat(path(STAT));
    if seen().is_none_or(|seen| seen[STAT].is_none()) {
        // To go on would make files.
        return Err(missing.into());
    }
    let _ = rustix::fs::stat(path(PARENT).join("x"));
    let open = |probe, how| rustix::fs::open(path(probe), how | OFlags::CLOEXEC, Mode::empty());
    let _ = open(OPEN, OFlags::RDONLY);
    let _ = open(CREATE, OFlags::RDONLY | OFlags::CREATE);
    let _ = open(EXCLUSIVE, OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL);
    let _ = rustix::fs::stat(path(AGAIN));
    let all = |seen: Seen| {
        let (open, create) = (seen[OPEN]?, seen[CREATE]?);
        Some([seen[STAT]?, seen[PARENT]?, open, create, seen[EXCLUSIVE]?, seen[REVAL]?])
    };
    let seen = seen().and_then(all).ok_or(missing)?;
    bits(seen).ok_or_else(|| format!("the flags of walks are not understood: {seen:x?}"))
}

/// From the flags of the walks by stat, through a directory, by open, with O_CREAT, with O_EXCL, too,
/// and again.
fn bits([stat, through, open, create, exclusive, again]: [u32; 6]) -> Option<Bits> {
    let bits = Bits {
        parent: through & !stat,
        open: open & !stat,
        create: create & !open,
        exclusive: exclusive & !create,
        reval: again & !stat,
    };
    let all = [bits.parent, bits.open, bits.create, bits.exclusive, bits.reval];
    let distinct = all.iter().fold(0, |sum, bit| sum | bit).count_ones() as usize == all.len();
    (distinct && all.iter().all(|bit| bit.is_power_of_two())).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_two_kernels_are_learnt() {
        // Linux 6.12 and 6.18, with LOOKUP_FOLLOW.
        for [parent, open, create, exclusive, reval] in
            [[0x10, 0x100, 0x200, 0x400, 0x20], [0x400, 0x1_0000, 0x2_0000, 0x4_0000, 0x80]]
        {
            // O_EXCL does not follow.
            let seen =
                [1, 1 | parent, 1 | open, 1 | open | create, open | create | exclusive, 1 | reval];
            assert_eq!(bits(seen), Some(Bits { parent, open, create, exclusive, reval }));
        }
    }

    #[test]
    fn what_is_not_one_bit_each_is_refused() {
        let good = [1, 1 | 2, 1 | 4, 1 | 4 | 8, 4 | 8 | 16, 1 | 32];
        assert!(bits(good).is_some());
        for (at, flags) in
            [(1, 1), (1, 1 | 2 | 64), (1, 1 | 4), (2, 1), (3, 1 | 4), (4, 4 | 8), (5, 1 | 2)]
        {
            let mut bad = good;
            bad[at] = flags;
            assert_eq!(bits(bad), None, "{at} {flags}");
        }
    }

    #[test]
    fn only_names_of_walks_are_taken_for_them() {
        for probe in STAT..=AGAIN {
            assert_eq!(probe_of(&name_of(probe)), Some(probe));
        }
        for name in [&b".saker-hint-6"[..], b".saker-hint-", b"0", b""] {
            assert_eq!(probe_of(name), None);
        }
    }
}
