//! Who may do what, and what becomes of an inode: rules that touch no state of a shard.

pub(crate) mod attributes;
pub(crate) mod creation;
pub(crate) mod names;
pub(crate) mod xattrs;

#[cfg(test)]
mod tests {
    use saker_types::{Attr, Cred, FileKind, Inode};

    use crate::namespace::dir::ResolvedDir;

    /// A user with one group.
    pub(super) fn cred(uid: u32, gid: u32) -> Cred {
        Cred { uid, gid, groups_known: true, ..Cred::default() }
    }

    pub(super) fn dir(mode: u32, uid: u32, gid: u32) -> ResolvedDir {
        ResolvedDir {
            id: 2,
            mode: FileKind::Directory.bits() | mode,
            uid,
            gid,
            policy: 0,
            acls: None,
        }
    }

    /// Of the superuser.
    pub(super) fn inode(kind: FileKind, mode: u32) -> Inode {
        let attr = Attr { mode: kind.bits() | mode, nlink: 1, ..Attr::default() };
        Inode { attr, ..Inode::default() }
    }
}
