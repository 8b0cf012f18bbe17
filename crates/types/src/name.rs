//! Names and the keys of rows.
//!
//! The order of row keys is the order of readdir on every shard (docs/protocol.md, rule 19), so a
//! readdir cookie is a function of the name alone and survives restarts and migration.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::slot::Slot;
use crate::{Errno, InodeId, limits};

/// Hash of a name under the cluster's seed; gives both slot and order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameHash(pub u64);

impl NameHash {
    /// XXH3 (64 bits, seeded) of the name: a constant of the on-disk format.
    pub fn of(name: &[u8], seed: u64) -> NameHash {
        NameHash(xxh3_64_with_seed(name, seed))
    }

    /// The slot of the name, where names are routed by themselves; `ClusterMap` says where.
    pub(crate) fn slot(self) -> Slot {
        Slot(self.0 as u16)
    }

    /// The name's place in the order of readdir: 59 bits of hash, 4 zero bits that leave room for
    /// an index among names that collide, and a zero sign bit, so that it is a valid `off_t`.
    pub fn order(self) -> u64 {
        (self.0 >> 1) & !0xF
    }
}

/// Key of a directory entry: (parent id, order of the name, name).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The parent directory.
    pub pid: InodeId,
    /// [`NameHash::order`] of the name.
    pub order: u64,
    /// The name; empty only for the root's own row.
    pub name: Vec<u8>,
}

impl Key {
    /// The key of `name` in directory `pid`.
    pub fn new(pid: InodeId, name: &[u8], seed: u64) -> Key {
        Key { pid, order: NameHash::of(name, seed).order(), name: name.to_vec() }
    }
}

/// Refuses what can never be a name: empty, `.`, `..`, with `/` or NUL, over 255 bytes.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > limits::NAME_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| matches!(b, 0 | b'/'))
    {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_names_are_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        for good in [&b"a"[..], b"...", b" ", b"\xff\xfe", &[b'x'; 255]] {
            assert!(check_name(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn the_hash_is_a_constant_of_the_format() {
        // A change of these figures makes every existing cluster unreadable.
        assert_eq!(NameHash::of(b"saker", 0).0, xxh3_64_with_seed(b"saker", 0));
        assert_eq!(NameHash(0xFFFF_FFFF_FFFF_FFFF).order(), 0x7FFF_FFFF_FFFF_FFF0);
        assert_eq!(NameHash(0x1234_5678_9ABC_DEF0).slot(), Slot(0xDEF0));
    }
}
