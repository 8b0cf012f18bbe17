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
use super::notes::LookupNotes;

/// The meaning of a walk's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    /// LOOKUP_PARENT: not the last component.
    pub(super) parent: u32,
    /// LOOKUP_OPEN.
    pub(super) open: u32,
    /// LOOKUP_REVAL.
    pub(super) reval: u32,
}

/// Names that are walked, each for what it shows: [`PREFIX`] and one of these.
const PREFIX: &[u8] = b".saker-hint-";
const STAT: usize = 0;
const PARENT: usize = 1;
const OPEN: usize = 2;
const AGAIN: usize = 3;
/// Seen last: the second walk to [`AGAIN`].
const REVAL: usize = 4;

/// Flags of the walk to each name.
pub(super) type Seen = [Option<u32>; 5];

/// The other end of [`walk`]: answers its LOOKUPs.
pub(super) struct Probing {
    notes: Arc<LookupNotes>,
    tid: u32,
    pub(super) seen: Seen,
}

impl Probing {
    /// For LOOKUPs of the calling thread.
    pub(super) fn new(notes: Arc<LookupNotes>) -> Probing {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        Probing { notes, tid, seen: Seen::default() }
    }

    /// The error to answer with, if it is one of the walks.
    pub(super) fn answer(&mut self, lookup: Lookup<'_>) -> Option<Errno> {
        let probe = probe_of(lookup.name)?;
        if lookup.tid != self.tid || lookup.nodeid != ROOT {
            return None;
        }
        let flags = self.notes.find(lookup).and_then(|note| note.walk(lookup.name));
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
    let _ = rustix::fs::open(path(OPEN), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let _ = rustix::fs::stat(path(AGAIN));
    let all = |seen: Seen| Some([seen[STAT]?, seen[PARENT]?, seen[OPEN]?, seen[REVAL]?]);
    let seen = seen().and_then(all).ok_or(missing)?;
    bits(seen).ok_or_else(|| format!("the flags of walks are not understood: {seen:x?}"))
}

/// From the flags of the walks by stat, through a directory, by open, and again.
fn bits([stat, through, open, again]: [u32; 4]) -> Option<Bits> {
    let bits = Bits { parent: through & !stat, open: open & !stat, reval: again & !stat };
    let all = [bits.parent, bits.open, bits.reval];
    let distinct = all.iter().fold(0, |sum, bit| sum | bit).count_ones() as usize == all.len();
    (distinct && all.iter().all(|bit| bit.is_power_of_two())).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_two_kernels_are_learnt() {
        // Linux 6.12 and 6.18, with LOOKUP_FOLLOW.
        for [parent, open, reval] in [[0x10, 0x100, 0x20], [0x400, 0x1_0000, 0x80]] {
            let seen = [1, 1 | parent, 1 | open, 1 | reval];
            assert_eq!(bits(seen), Some(Bits { parent, open, reval }));
        }
    }

    #[test]
    fn what_is_not_one_bit_each_is_refused() {
        let good = [1, 1 | 2, 1 | 4, 1 | 32];
        assert!(bits(good).is_some());
        for (at, flags) in [(1, 1), (1, 1 | 2 | 64), (1, 1 | 4), (2, 1), (3, 1 | 2)] {
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
        for name in [&b".saker-hint-4"[..], b".saker-hint-", b"0", b""] {
            assert_eq!(probe_of(name), None);
        }
    }
}
