//! Directories, as path resolution needs them.

use std::rc::Rc;

use saker_types::acl::Acl;
use saker_types::wire::Dentry;
use saker_types::{Access, Cred, Errno, Error, InodeId, access};

/// A directory, as path resolution needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedDir {
    /// Its inode.
    pub id: InodeId,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Its own policy, 0 inherits.
    pub policy: u64,
    /// Its own ACLs; few directories have any.
    pub acls: Option<Rc<Acls>>,
}

/// ACLs of a directory.
#[derive(Debug, PartialEq)]
pub struct Acls {
    /// Who may do what to it.
    pub access: Option<Acl>,
    /// What new entries get.
    pub default: Option<Acl>,
}

impl ResolvedDir {
    /// From the owner's answer, if it is a directory.
    ///
    /// # Errors
    /// EIO when an ACL is none.
    pub fn of(d: &Dentry) -> Result<Option<ResolvedDir>, Error> {
        let dir = saker_types::FileKind::Directory.bits();
        if d.id == 0 || d.mode & saker_types::inode::S_IFMT != dir {
            return Ok(None);
        }
        let acls = if d.acl.is_empty() && d.default_acl.is_empty() {
            None
        } else {
            let parse = |raw| Acl::parse(raw).map_err(|_| Errno::EIO);
            Some(Rc::new(Acls { access: parse(&d.acl)?, default: parse(&d.default_acl)? }))
        };
        let Dentry { id, mode, uid, gid, policy, .. } = *d;
        Ok(Some(ResolvedDir { id, mode, uid, gid, policy, acls }))
    }

    /// May `cred` do `want` to it?
    ///
    /// # Errors
    /// EACCES; NeedGroups.
    pub fn check(&self, cred: &Cred, want: Access) -> Result<(), Error> {
        let acl = self.acls.as_ref().and_then(|acls| acls.access.as_ref());
        access::check(self.mode, self.uid, self.gid, acl, cred, want)
    }

    /// The ACL that new entries get.
    pub fn default_acl(&self) -> Option<&Acl> {
        self.acls.as_ref().and_then(|acls| acls.default.as_ref())
    }

    /// Everybody may search it.
    pub fn is_open(&self) -> bool {
        let has_acl = self.acls.as_ref().is_some_and(|acls| acls.access.is_some());
        access::is_open(self.mode, has_acl)
    }
}

/// Policy in force in a directory on the way, component `at` of the path with this policy of its own or
/// none, and the component that has it: below those of the directory above.
pub(super) fn in_force_below(
    above: (u64, Option<usize>),
    own: u64,
    at: usize,
) -> (u64, Option<usize>) {
    if own == 0 { above } else { (own, Some(at)) }
}

/// Policy in force at what has this one of its own, or none, below a directory where that other one is.
pub(super) fn in_force(own: u64, above: u64) -> u64 {
    if own == 0 { above } else { own }
}
