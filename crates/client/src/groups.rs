//! Supplementary groups of a process, read when a decision depends on them.

use saker_types::{Cred, limits};

use crate::{Caller, Groups};

// The kernel's word on a process, not a file of Saker's: nothing that a simulation holds.
#[allow(clippy::disallowed_methods)]
fn read_status(pid: u32) -> std::io::Result<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/status"))
}

/// What the server is told when it asks for groups.
pub(crate) fn full_cred(who: &Caller) -> Cred {
    let groups = match &who.groups {
        Groups::Known(groups) => groups.to_vec(),
        // A process that is gone has no groups: nobody waits for its answer.
        Groups::OfProcess(pid) => {
            read_status(*pid).map(|status| parse_status(&status)).unwrap_or_default()
        }
    };
    Cred { uid: who.uid, gid: who.gid, groups, groups_known: true }
}

/// The line `Groups:` of `/proc/PID/status` (proc_pid_status(5)).
fn parse_status(status: &[u8]) -> Vec<u32> {
    // The process's name in it may be cut in the middle of a character.
    let status = String::from_utf8_lossy(status);
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|g| g.parse().ok()).take(limits::GROUPS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_process() {
        let status = b"Name:\t\xd0\xb1\xd0\nGid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \nNStgid:\t7\n";
        assert_eq!(parse_status(status), [4, 24, 1000]);
        assert_eq!(parse_status(b"Name:\tx\nGroups:\t \n"), [0u32; 0]);
        let me = Caller { uid: 1, gid: 2, groups: Groups::OfProcess(std::process::id()), umask: 0 };
        let cred = full_cred(&me);
        assert!(cred.groups_known && cred.uid == 1 && cred.gid == 2);
    }
}
