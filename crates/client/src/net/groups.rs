//! Supplementary groups of a process, read when a decision depends on them.

use saker_types::{Cred, limits};

use crate::{Caller, Groups};

// The kernel's word on a process, not a file of Saker's: nothing that a simulation holds.
#[allow(clippy::disallowed_methods)]
fn read_status(pid: u32) -> std::io::Result<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/status"))
}

/// What the server is told when it asks for groups. Those of a process that is gone, or that asks in
/// another user's name, are not to be known.
pub(crate) fn full_cred(who: &Caller) -> Cred {
    let cred = who.cred();
    let Groups::OfProcess(pid) = who.groups else { return cred };
    match read_status(pid).ok().and_then(|status| parse_status(&status, who.uid)) {
        Some(groups) => Cred { groups, groups_known: true, ..cred },
        None => Cred { groups_hidden: true, ..cred },
    }
}

/// The line `Groups:` of `/proc/PID/status` (proc_pid_status(5)), if the process works in this user's
/// name.
fn parse_status(status: &[u8], uid: u32) -> Option<Vec<u32>> {
    // The process's name in it may be cut in the middle of a character.
    let status = String::from_utf8_lossy(status);
    let numbers = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().filter_map(|number| number.parse().ok()))
    };
    // Real, effective, saved, and that for files.
    let works_for: u32 = numbers("Uid:")?.nth(3)?;
    let groups = numbers("Groups:")?;
    (works_for == uid).then(|| groups.take(limits::GROUPS_MAX).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn groups_of_a_process() {
        let status =
            b"Name:\t\xd0\xb1\xd0\nUid:\t0\t0\t0\t9\nGid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \n";
        assert_eq!(parse_status(status, 9).unwrap(), [4, 24, 1000]);
        assert_eq!(parse_status(status, 0), None, "works in another user's name");
        assert_eq!(parse_status(b"Uid:\t1\t1\t1\t1\nGroups:\t \n", 1).unwrap(), [0u32; 0]);
        assert_eq!(parse_status(b"Name:\tx\n", 0), None);
        let me = std::process::id();
        let status = String::from_utf8(read_status(me).unwrap()).unwrap();
        let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        let uid = line.split_whitespace().last().unwrap().parse().unwrap();
        let me = Caller { uid, gid: 2, groups: Groups::OfProcess(me), ..Caller::root() };
        assert!(full_cred(&me).groups_known);
        let other = full_cred(&Caller { uid: uid + 1, ..me.clone() });
        assert!(other.groups_hidden && !other.groups_known);
        let gone = full_cred(&Caller { groups: Groups::OfProcess(u32::MAX), ..me });
        assert!(gone.groups_hidden && !gone.groups_known && gone.gid == 2);
    }
}
