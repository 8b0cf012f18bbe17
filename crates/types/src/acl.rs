//! POSIX access control lists (acl(5)), in the form in which Linux's `system.posix_acl_access` and
//! `system.posix_acl_default` attributes hold them.

use bytes::{BufMut, Bytes, BytesMut};

use crate::access::{Access, Cred};
use crate::{Errno, Error};

/// Name of the attribute that holds the list of an inode.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute of a directory that holds the list which new entries get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";
/// Longest form taken, in bytes: a page, as the kernel's FUSE does.
pub const BYTES_MAX: usize = 4096;

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;

// Tags of entries, in the order in which they must come.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// Id of entries that need none.
const NO_ID: u32 = u32::MAX;

/// A valid list. Permissions are bits as in access(2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    owner: u32,
    users: Vec<(u32, u32)>,
    group: u32,
    groups: Vec<(u32, u32)>,
    mask: Option<u32>,
    other: u32,
}

/// Is it the name of one of the two attributes?
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

impl Acl {
    /// Reads the attribute's value; `None`: it holds no entries, which means no list.
    ///
    /// # Errors
    /// EOPNOTSUPP for another version, E2BIG, EINVAL for what acl_valid(3) refuses.
    pub fn parse(raw: &[u8]) -> Result<Option<Acl>, Errno> {
        if raw.is_empty() {
            return Ok(None);
        }
        if raw.len() > BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        let (version, entries) = raw.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        Acl::from_entries(entries).map(Some)
    }

    fn from_entries(entries: &[[u8; ENTRY_BYTES]]) -> Result<Acl, Errno> {
        let mut acl = Acl::default();
        let mut seen = 0;
        for [t0, t1, p0, p1, id @ ..] in entries {
            let (tag, bits) = (u16::from_le_bytes([*t0, *t1]), u16::from_le_bytes([*p0, *p1]));
            let id = u32::from_le_bytes(*id);
            let is_named = matches!(tag, USER | GROUP);
            // Each kind once, those with names any number of times, in order.
            let in_order = if is_named { seen <= tag } else { seen < tag };
            if bits > 7 || !in_order || (is_named && id == NO_ID) {
                return Err(Errno::EINVAL);
            }
            seen = tag;
            let bits = u32::from(bits);
            match tag {
                USER_OBJ => acl.owner = bits,
                USER => acl.users.push((id, bits)),
                GROUP_OBJ => acl.group = bits,
                GROUP => acl.groups.push((id, bits)),
                MASK => acl.mask = Some(bits),
                OTHER => acl.other = bits,
                _ => return Err(Errno::EINVAL),
            }
        }
        let has = |tag: u16| entries.iter().any(|e| u16::from_le_bytes([e[0], e[1]]) == tag);
        let whole = has(USER_OBJ) && has(GROUP_OBJ) && has(OTHER);
        let has_names = !acl.users.is_empty() || !acl.groups.is_empty();
        if !whole || (has_names && acl.mask.is_none()) {
            return Err(Errno::EINVAL);
        }
        Ok(acl)
    }

    /// The attribute's value.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u32_le(VERSION);
        let mut put = |tag, bits: u32, id| {
            out.put_u16_le(tag);
            out.put_u16_le(bits as u16);
            out.put_u32_le(id);
        };
        put(USER_OBJ, self.owner, NO_ID);
        self.users.iter().for_each(|(id, bits)| put(USER, *bits, *id));
        put(GROUP_OBJ, self.group, NO_ID);
        self.groups.iter().for_each(|(id, bits)| put(GROUP, *bits, *id));
        if let Some(mask) = self.mask {
            put(MASK, mask, NO_ID);
        }
        put(OTHER, self.other, NO_ID);
        out.freeze()
    }

    /// The permission bits of the mode that shows this list.
    pub fn mode(&self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.other
    }

    /// Does it say more than the permission bits of a mode do?
    pub fn is_extended(&self) -> bool {
        self.mask.is_some()
    }

    /// chmod(2) of an inode with this list: the group's bits go to the mask if there is one.
    pub fn set_mode(&mut self, mode: u32) {
        self.owner = mode >> 6 & 7;
        *self.mask.as_mut().unwrap_or(&mut self.group) = mode >> 3 & 7;
        self.other = mode & 7;
    }

    /// This default list for a new inode that is made with permission bits `mode`: its list holds
    /// no more than they do.
    pub fn inherited(&self, mode: u32) -> Acl {
        let mut acl = self.clone();
        acl.set_mode(self.mode() & mode);
        acl
    }

    /// May somebody who is neither the superuser nor the owner do `want`, to an inode of group
    /// `gid`? As in acl(5), "ACCESS CHECK ALGORITHM".
    pub fn permits(&self, gid: u32, cred: &Cred, want: Access) -> Result<bool, Error> {
        let mask = self.mask.unwrap_or(7);
        let grants = |bits: u32| bits & want.0 == want.0;
        if let Some((_, bits)) = self.users.iter().find(|(id, _)| *id == cred.uid) {
            return Ok(grants(bits & mask));
        }
        let owners = (gid, self.group);
        let groups = || std::iter::once(&owners).chain(&self.groups);
        let mut is_member = false;
        for (id, bits) in groups() {
            if cred.in_group(*id)? {
                is_member = true;
                if grants(*bits) {
                    return Ok(grants(bits & mask));
                }
            }
        }
        // Of whichever of them the caller is a member, that must not be why it is refused.
        let none_denies = || groups().all(|(_, bits)| grants(bits & mask));
        Ok(!is_member && grants(self.other) && (!cred.groups_hidden || none_denies()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn raw(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (tag, bits, id) in entries {
            out.extend(tag.to_le_bytes());
            out.extend(bits.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::parse(&raw(entries)).unwrap().unwrap()
    }

    const FULL: &[(u16, u16, u32)] = &[
        (USER_OBJ, 7, NO_ID),
        (USER, 6, 10),
        (USER, 7, 11),
        (GROUP_OBJ, 5, NO_ID),
        (GROUP, 2, 20),
        (GROUP, 4, 21),
        (MASK, 6, NO_ID),
        (OTHER, 1, NO_ID),
    ];

    #[test]
    fn a_list_is_written_as_it_was_read() {
        assert_eq!(acl(FULL).encode(), raw(FULL));
        let plain = &[(USER_OBJ, 6, NO_ID), (GROUP_OBJ, 4, NO_ID), (OTHER, 0, NO_ID)];
        assert_eq!(acl(plain).encode(), raw(plain));
        assert_eq!((acl(plain).mode(), acl(plain).is_extended()), (0o640, false));
        assert_eq!((acl(FULL).mode(), acl(FULL).is_extended()), (0o761, true));
        assert_eq!(Acl::parse(b""), Ok(None));
        assert_eq!(Acl::parse(&raw(&[])), Ok(None));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for cut in 1..raw(FULL).len() {
            let result = Acl::parse(&raw(FULL)[..cut]);
            assert!(cut == 4 || result == Err(Errno::EINVAL), "{cut}: {result:?}");
        }
        let other = [&3u32.to_le_bytes()[..], &raw(FULL)[4..]].concat();
        assert_eq!(Acl::parse(&other), Err(Errno::EOPNOTSUPP));
        assert_eq!(Acl::parse(&vec![0; BYTES_MAX + 1]), Err(Errno::E2BIG));
        for n in 0..FULL.len() {
            let mut twice = FULL.to_vec();
            twice.insert(n, FULL[n]);
            let named = matches!(FULL[n].0, USER | GROUP);
            assert_eq!(Acl::parse(&raw(&twice)).is_ok(), named, "entry {n} twice");
            let mut less = FULL.to_vec();
            less.remove(n);
            assert_eq!(Acl::parse(&raw(&less)).is_ok(), named, "without entry {n}");
            let mut odd = FULL.to_vec();
            odd[n].1 = 8;
            assert!(Acl::parse(&raw(&odd)).is_err());
        }
        let mut nobody = FULL.to_vec();
        nobody[1].2 = NO_ID;
        assert!(Acl::parse(&raw(&nobody)).is_err());
    }

    #[test]
    fn the_first_class_that_matches_decides() {
        let acl = acl(FULL);
        let can = |uid, groups: &[u32], want| {
            let groups = groups.to_vec();
            let cred = Cred { uid, gid: 99, groups, groups_known: true, groups_hidden: false };
            acl.permits(5, &cred, Access(want)).unwrap()
        };
        assert!(can(10, &[], 6) && !can(10, &[], 1));
        assert!(can(11, &[5], 6) && !can(11, &[], 7), "the mask bounds a named user");
        assert!(can(1, &[5], 4) && !can(1, &[5], 1), "and the group");
        assert!(can(1, &[20], 2) && !can(1, &[20], 4));
        assert!(!can(1, &[20, 21], 6), "no two entries together");
        assert!(can(1, &[5, 20], 2));
        assert!(can(1, &[], 1) && !can(1, &[], 4));
        let unread = Cred { uid: 1, gid: 99, ..Cred::default() };
        assert!(acl.permits(5, &unread, Access::R).is_err());
        assert!(acl.permits(5, &Cred { uid: 10, ..unread }, Access::R).unwrap());
    }

    #[test]
    fn hidden_groups_give_nothing_and_may_take_away() {
        let list = |group, named, mask| {
            let entries = [
                (USER_OBJ, 6, NO_ID),
                (USER, 4, 10),
                (GROUP_OBJ, group, NO_ID),
                (GROUP, named, 20),
                (MASK, mask, NO_ID),
                (OTHER, 4, NO_ID),
            ];
            acl(&entries)
        };
        let can = |list: &Acl, uid, gid| {
            let cred = Cred { uid, gid, groups_hidden: true, ..Cred::default() };
            list.permits(5, &cred, Access::R).unwrap()
        };
        assert!(can(&list(4, 4, 7), 1, 99));
        assert!(!can(&list(4, 0, 7), 1, 99), "a group that is shut out");
        assert!(!can(&list(0, 4, 7), 1, 99), "the file's own");
        assert!(!can(&list(4, 4, 2), 1, 99), "by the mask");
        assert!(can(&list(4, 0, 7), 1, 5) && !can(&list(0, 4, 7), 1, 5), "its group is known");
        assert!(can(&list(0, 0, 7), 10, 99), "and who is named");
    }

    #[test]
    fn modes_and_lists_follow_each_other() {
        let mut list = acl(FULL);
        list.set_mode(0o640);
        assert_eq!((list.mode(), list.group), (0o640, 5));
        assert_eq!(acl(FULL).inherited(0o640).mode(), 0o640);
        assert_eq!(acl(FULL).inherited(0o777).mode(), 0o761);
        assert_eq!(acl(FULL).inherited(0).users, acl(FULL).users);
    }
}
