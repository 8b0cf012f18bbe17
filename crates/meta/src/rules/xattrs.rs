//! Extended attributes and ACLs (xattr(7), acl(5)).

use saker_types::acl::{self, Acl};
use saker_types::{Access, Cred, Errno, Error, FileKind, Inode, access, limits};

/// Sets an ACL, or, with an empty one, removes it. The list of an inode shows in its mode, and one
/// that says no more than the mode is not kept (Linux's `posix_acl_update_mode`).
pub(crate) fn apply_acl(
    inode: &mut Inode,
    name: &[u8],
    raw: &[u8],
    cred: &Cred,
) -> Result<(), Error> {
    check_write(inode, name, cred)?;
    let list = Acl::parse(raw)?;
    if let (acl::ACCESS, Some(list)) = (name, &list) {
        let a = &mut inode.attr;
        a.mode = (a.mode & !0o777) | list.mode();
        if a.mode & 0o2000 != 0 && cred.uid != 0 && !cred.in_group(a.gid)? {
            a.mode &= !0o2000;
        }
    }
    let kept = list.filter(|list| name == acl::DEFAULT || list.is_extended());
    inode.set_xattr(name, kept.map(|list| list.encode()));
    check_room(inode)
}

/// A listing of all names must be possible, too: each takes a NUL there.
pub(crate) fn check_room(inode: &Inode) -> Result<(), Error> {
    let bytes: usize = inode.xattrs.iter().map(|x| x.name.len() + 1 + x.value.len()).sum();
    if bytes > limits::XATTRS_BYTES_MAX { Err(Errno::ENOSPC.into()) } else { Ok(()) }
}

enum Namespace {
    User,
    Trusted,
    Security,
    Acl,
}

/// The namespaces served (xattr(7)).
fn namespace(name: &[u8]) -> Result<Namespace, Error> {
    if name.len() > limits::NAME_BYTES_MAX || name.contains(&0) {
        return Err(Errno::ERANGE.into());
    }
    if acl::is_acl(name) {
        return Ok(Namespace::Acl);
    }
    for (prefix, namespace) in [
        (&b"user."[..], Namespace::User),
        (b"trusted.", Namespace::Trusted),
        (b"security.", Namespace::Security),
    ] {
        match name.strip_prefix(prefix) {
            Some([]) => return Err(Errno::EINVAL.into()),
            Some(_) => return Ok(namespace),
            None => {}
        }
    }
    Err(Errno::EOPNOTSUPP.into())
}

pub(crate) fn check_read(inode: &Inode, name: &[u8], cred: &Cred) -> Result<(), Error> {
    match namespace(name)? {
        Namespace::User => {
            if !matches!(inode.attr.kind(), FileKind::Regular | FileKind::Directory) {
                return Err(Errno::ENODATA.into());
            }
            inode.check(cred, Access::R)
        }
        Namespace::Trusted if cred.uid != 0 => Err(Errno::ENODATA.into()),
        Namespace::Acl if inode.attr.kind() == FileKind::Symlink => Err(Errno::EOPNOTSUPP.into()),
        _ => Ok(()),
    }
}

pub(crate) fn check_write(inode: &Inode, name: &[u8], cred: &Cred) -> Result<(), Error> {
    let a = &inode.attr;
    match namespace(name)? {
        Namespace::User => {
            let plain = matches!(a.kind(), FileKind::Regular | FileKind::Directory);
            let sticky =
                a.is_dir() && a.mode & access::S_ISVTX != 0 && cred.uid != 0 && cred.uid != a.uid;
            if !plain || sticky {
                return Err(Errno::EPERM.into());
            }
            inode.check(cred, Access::W)
        }
        Namespace::Acl if a.kind() == FileKind::Symlink => Err(Errno::EOPNOTSUPP.into()),
        Namespace::Acl if name == acl::DEFAULT && !a.is_dir() => Err(Errno::EACCES.into()),
        Namespace::Acl => access::check_owner(a, cred),
        _ if cred.uid != 0 => Err(Errno::EPERM.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{cred, inode};

    #[test]
    fn each_namespace_has_its_rules() {
        let (file, link) = (inode(FileKind::Regular, 0o644), inode(FileKind::Symlink, 0o777));
        let read =
            |inode, name, who: u32| check_read(inode, name, &cred(who, 9)).map_err(|e| e.errno());
        let write =
            |inode, name, who: u32| check_write(inode, name, &cred(who, 9)).map_err(|e| e.errno());
        assert_eq!(read(&file, b"user.a", 7), Ok(()));
        assert_eq!(write(&file, b"user.a", 7), Err(Errno::EACCES));
        assert_eq!(write(&file, b"user.a", 0), Ok(()));
        assert_eq!(read(&link, b"user.a", 0), Err(Errno::ENODATA));
        assert_eq!(write(&link, b"user.a", 0), Err(Errno::EPERM));
        assert_eq!(read(&file, b"trusted.a", 7), Err(Errno::ENODATA));
        assert_eq!(write(&file, b"security.a", 7), Err(Errno::EPERM));
        assert_eq!(write(&file, acl::DEFAULT, 0), Err(Errno::EACCES));
        assert_eq!(write(&link, acl::ACCESS, 0), Err(Errno::EOPNOTSUPP));
        for (name, errno) in [
            (&b"user."[..], Errno::EINVAL),
            (b"other.a", Errno::EOPNOTSUPP),
            (b"user.\0", Errno::ERANGE),
        ] {
            assert_eq!(read(&file, name, 0), Err(errno), "{name:?}");
        }
        let mut sticky = inode(FileKind::Directory, 0o1777);
        sticky.attr.uid = 5;
        assert_eq!(write(&sticky, b"user.a", 7), Err(Errno::EPERM));
        assert_eq!(write(&sticky, b"user.a", 5), Ok(()));
    }

    #[test]
    fn all_of_them_fit_into_a_listing() {
        let mut file = inode(FileKind::Regular, 0o644);
        file.set_xattr(b"user.a", Some(vec![0; limits::XATTRS_BYTES_MAX - 7].into()));
        assert!(check_room(&file).is_ok());
        file.set_xattr(b"user.b", Some(vec![].into()));
        assert_eq!(check_room(&file).unwrap_err().errno(), Errno::ENOSPC);
    }
}
