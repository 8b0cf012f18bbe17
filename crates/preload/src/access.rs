//! Who may do what, by mode bits as the kernel has it.

use saker_types::access::{Access, Cred, check};

use crate::datasets::{Info, Node};
use crate::sys::Result;

/// Whose rights count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The effective user: as at all calls but access(2).
    Effective,
    /// The real user.
    Real,
}

/// Reading.
pub const READ: u32 = 4;
/// Writing.
pub const WRITE: u32 = 2;
/// Executing a file, searching a directory.
pub const EXECUTE: u32 = 1;

/// Says whether a node's mode bits let the caller do `want`.
///
/// # Errors
/// EACCES.
pub fn permit(node: Node, want: u32, who: Who) -> Result<()> {
    let mode = node.mode();
    // Who asks makes no difference.
    if mode & mode >> 3 & mode >> 6 & 7 & want == want {
        return Ok(());
    }
    let info = node.info();
    let allowed = check(mode, info.uid, info.gid, None, &cred(who), Access(want));
    allowed.map_err(|_| libc::EACCES)
}

/// The same of an output.
///
/// # Errors
/// EACCES.
pub fn permit_info(info: &Info, want: u32, who: Who) -> Result<()> {
    let allowed = check(info.mode, info.uid, info.gid, None, &cred(who), Access(want));
    allowed.map_err(|_| libc::EACCES)
}

fn cred(who: Who) -> Cred {
    let (uid, gid) = match who {
        Who::Effective => (libc::SYS_geteuid, libc::SYS_getegid),
        Who::Real => (libc::SYS_getuid, libc::SYS_getgid),
    };
    // SAFETY: they touch no memory.
    let (uid, gid) = unsafe { (libc::syscall(uid) as u32, libc::syscall(gid) as u32) };
    Cred { uid, gid, groups: groups(), groups_known: true, groups_hidden: false }
}

fn groups() -> Vec<u32> {
    // SAFETY: asks for their number only.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; count.max(0) as usize];
    // SAFETY: the buffer has room for so many.
    let got = unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
    groups.truncate(got.max(0) as usize);
    groups
}
