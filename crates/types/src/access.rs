//! Permission checks, as in path_resolution(7) and inode(7). Pure; the server calls them under
//! the guard of a batch.

use crate::acl::Acl;
use crate::inode::{Attr, S_IFMT};
use crate::{Class, Errno, Error};

/// Bits asked for, as in access(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    /// Read.
    pub const R: Access = Access(4);
    /// Write.
    pub const W: Access = Access(2);
    /// Execute, or search a directory.
    pub const X: Access = Access(1);
    /// Write and search: what changing a directory needs.
    pub const WX: Access = Access(3);
}

/// Who asks. On the wire with every request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Cred {
    /// File-system user id.
    #[prost(uint32, tag = "1")]
    pub uid: u32,
    /// File-system group id.
    #[prost(uint32, tag = "2")]
    pub gid: u32,
    /// Supplementary groups, when `groups_known`.
    #[prost(uint32, repeated, tag = "3")]
    pub groups: Vec<u32>,
    /// The groups were read; else a decision that depends on them answers `NeedGroups`.
    #[prost(bool, tag = "4")]
    pub groups_known: bool,
    /// Nobody can read the groups: the caller may be in any where that takes a right away, and is in
    /// none where it would give one.
    #[prost(bool, tag = "5")]
    pub groups_hidden: bool,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Cred {
        Cred { groups_known: true, ..Cred::default() }
    }

    /// Could the groups still be read?
    pub fn groups_are_unread(&self) -> bool {
        !self.groups_known && !self.groups_hidden
    }

    /// Does it have what membership of the group gives? `Err(NeedGroups)` where only the unread
    /// groups can tell.
    pub fn in_group(&self, gid: u32) -> Result<bool, Error> {
        if self.gid == gid || self.groups.contains(&gid) {
            Ok(true)
        } else if self.groups_are_unread() {
            Err(Error::of_class(Class::NeedGroups, Errno::EACCES))
        } else {
            Ok(false)
        }
    }
}

/// May everybody search a directory with this mode? A list could say otherwise.
pub fn is_open(mode: u32, has_acl: bool) -> bool {
    mode & 0o111 == 0o111 && !has_acl
}

/// May `cred` do `want` to an inode with this mode, owner and list?
pub fn check(
    mode: u32,
    uid: u32,
    gid: u32,
    acl: Option<&Acl>,
    cred: &Cred,
    want: Access,
) -> Result<(), Error> {
    let is_dir = mode & S_IFMT == 0o040_000;
    if cred.uid == 0 {
        // The superuser may do all but execute a file that nobody may execute.
        let ok = is_dir || want.0 & 1 == 0 || mode & 0o111 != 0;
        return if ok { Ok(()) } else { Err(Errno::EACCES.into()) };
    }
    // As Linux does it, a list whose mask grants nothing is not looked at.
    if let Some(acl) = acl.filter(|_| cred.uid != uid && mode & 0o070 != 0) {
        return if acl.permits(gid, cred, want)? { Ok(()) } else { Err(Errno::EACCES.into()) };
    }
    let group = (mode >> 3) & 7;
    let other = mode & 7;
    let granted = if cred.uid == uid {
        (mode >> 6) & 7
    } else if group & want.0 == other & want.0 {
        // Whether the caller is in the group makes no difference: do not ask for its groups.
        other
    } else if cred.in_group(gid)? {
        group
    } else if cred.groups_hidden {
        group & other
    } else {
        other
    };
    if granted & want.0 == want.0 { Ok(()) } else { Err(Errno::EACCES.into()) }
}

/// No user's id (`(uid_t) -1`).
pub const NOBODY: u32 = u32::MAX;

/// The sticky bit of a mode (inode(7)).
pub const S_ISVTX: u32 = 0o1000;

/// May `cred` remove or rename the entry of `victim` in a directory with `dir_mode`/`dir_uid`?
/// The sticky bit reserves it to the owners of either (inode(7)).
pub fn check_sticky(
    dir_mode: u32,
    dir_uid: u32,
    victim_uid: u32,
    cred: &Cred,
) -> Result<(), Error> {
    let free = dir_mode & S_ISVTX == 0;
    if free || cred.uid == 0 || cred.uid == dir_uid || cred.uid == victim_uid {
        Ok(())
    } else {
        Err(Errno::EPERM.into())
    }
}

/// Mode bits of a file that remain after `cred` changed its owner, or, unless it is the superuser,
/// its data: set-user-id goes; set-group-id goes where the group may execute, and where the caller
/// is not of the group (inode(7), Linux's `setattr_should_drop_suidgid`).
pub fn mode_without_privilege(attr: &Attr, cred: &Cred) -> Result<u32, Error> {
    let mode = attr.mode & !0o4000;
    let stays =
        mode & 0o2000 == 0 || (mode & 0o010 == 0 && (cred.uid == 0 || cred.in_group(attr.gid)?));
    Ok(if stays { mode } else { mode & !0o2000 })
}

/// May `cred` change times, mode or xattrs reserved to the owner?
pub fn check_owner(attr: &Attr, cred: &Cred) -> Result<(), Error> {
    if cred.uid == 0 || cred.uid == attr.uid { Ok(()) } else { Err(Errno::EPERM.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cred(uid: u32, gid: u32, groups: Option<&[u32]>) -> Cred {
        let groups_known = groups.is_some();
        let groups = groups.unwrap_or_default().to_vec();
        Cred { uid, gid, groups, groups_known, groups_hidden: false }
    }

    #[test]
    fn the_first_class_that_matches_decides() {
        let mode = 0o100_047; // owner nothing, group read, others all
        assert!(check(mode, 7, 8, None, &cred(7, 8, Some(&[])), Access::R).is_err());
        assert!(check(mode, 7, 8, None, &cred(9, 8, Some(&[])), Access::R).is_ok());
        assert!(check(mode, 7, 8, None, &cred(9, 8, Some(&[])), Access::W).is_err());
        assert!(check(mode, 7, 8, None, &cred(9, 1, Some(&[8])), Access::W).is_err());
        assert!(check(mode, 7, 8, None, &cred(9, 1, Some(&[])), Access::WX).is_ok());
    }

    #[test]
    fn groups_are_asked_for_only_when_they_decide() {
        let unread = cred(9, 1, None);
        assert!(check(0o100_044, 7, 8, None, &unread, Access::R).is_ok());
        let e = check(0o100_040, 7, 8, None, &unread, Access::R).unwrap_err();
        assert!(e.is(Class::NeedGroups));
    }

    #[test]
    fn hidden_groups_give_nothing_and_may_take_away() {
        let hidden = Cred { groups_hidden: true, ..cred(9, 1, None) };
        let can = |mode, gid, want| check(mode, 7, gid, None, &hidden, want).is_ok();
        assert!(!can(0o100_604, 8, Access::R), "a group that is shut out");
        assert!(!can(0o100_640, 8, Access::R), "a group that is let in");
        assert!(can(0o100_644, 8, Access::R) && can(0o100_657, 8, Access::R));
        assert!(!can(0o100_657, 8, Access::W));
        assert!(can(0o100_640, 1, Access::R), "its own group is known");
        assert!(!can(0o100_604, 1, Access::R));
        assert!(!hidden.in_group(8).unwrap() && hidden.in_group(1).unwrap());
        let file = Attr { mode: 0o102_745, gid: 8, ..Attr::default() };
        assert_eq!(mode_without_privilege(&file, &hidden).unwrap(), 0o100_745);
    }

    #[test]
    fn root_needs_some_execute_bit() {
        assert!(check(0o100_644, 7, 8, None, &Cred::root(), Access::X).is_err());
        assert!(check(0o100_601, 7, 8, None, &Cred::root(), Access::X).is_ok());
        assert!(check(0o040_000, 7, 8, None, &Cred::root(), Access::WX).is_ok());
    }

    #[test]
    fn privilege_goes_with_a_change() {
        let file = |mode| Attr { mode, gid: 8, ..Attr::default() };
        let after = |mode, c: &Cred| mode_without_privilege(&file(mode), c).unwrap();
        let (member, stranger) = (cred(5, 8, Some(&[])), cred(5, 5, Some(&[])));
        assert_eq!(after(0o106_755, &member), 0o100_755);
        assert_eq!(after(0o106_745, &member), 0o102_745);
        assert_eq!(after(0o106_745, &stranger), 0o100_745);
        assert_eq!(after(0o106_745, &Cred::root()), 0o102_745);
        assert!(mode_without_privilege(&file(0o102_745), &cred(5, 5, None)).is_err());
        assert!(mode_without_privilege(&file(0o100_745), &cred(5, 5, None)).is_ok());
    }

    #[test]
    fn sticky_reserves_to_owners() {
        let c = cred(5, 5, Some(&[]));
        assert!(check_sticky(0o041_777, 1, 2, &c).is_err());
        assert!(check_sticky(0o041_777, 5, 2, &c).is_ok());
        assert!(check_sticky(0o041_777, 1, 5, &c).is_ok());
        assert!(check_sticky(0o040_777, 1, 2, &c).is_ok());
    }
}
