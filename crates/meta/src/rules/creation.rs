//! What a new inode is like (open(2), mkdir(2), mknod(2), inode(7), acl(5)).

use saker_types::acl::{self, Acl};
use saker_types::wire::{CreateReq, Op};
use saker_types::{Cred, Errno, Error, FileKind, Inode, limits};

use crate::namespace::dir::ResolvedDir;

pub(crate) fn check_kind(op: Op, kind: FileKind, msg: &CreateReq) -> Result<(), Error> {
    let ok = match op {
        Op::Create => kind == FileKind::Regular,
        Op::Mkdir => kind == FileKind::Directory,
        Op::Symlink => kind == FileKind::Symlink,
        _ => !matches!(kind, FileKind::Directory | FileKind::Symlink),
    };
    if !ok {
        return Err(Errno::EINVAL.into());
    }
    if kind == FileKind::Symlink {
        match msg.target.len() {
            0 => return Err(Errno::ENOENT.into()),
            n if n >= limits::PATH_BYTES_MAX => return Err(Errno::ENAMETOOLONG.into()),
            _ if msg.target.contains(&0) => return Err(Errno::EINVAL.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Mode and group of a new inode: a set-group-id directory gives its group, and to directories
/// the bit itself (inode(7)); a file loses the bit when its creator is not of the group.
pub(crate) fn inherit(
    mode: u32,
    kind: FileKind,
    parent: &ResolvedDir,
    cred: &Cred,
) -> Result<(u32, u32), Error> {
    // mkdir(2) knows neither set-user-id nor set-group-id.
    let allowed = if kind == FileKind::Directory { 0o1777 } else { 0o7777 };
    let mode = kind.bits() | (mode & allowed);
    let mode = if kind == FileKind::Symlink { kind.bits() | 0o777 } else { mode };
    if parent.mode & 0o2000 == 0 {
        return Ok((mode, cred.gid));
    }
    let gid = parent.gid;
    if kind == FileKind::Directory {
        return Ok((mode | 0o2000, gid));
    }
    let drops = mode & 0o2010 == 0o2010 && cred.uid != 0 && !cred.in_group(gid)?;
    Ok((if drops { mode & !0o2000 } else { mode }, gid))
}

/// The directory's default list takes the place of the umask (acl(5), "OBJECT CREATION").
pub(crate) fn inherit_acl(inode: &mut Inode, default: Option<&Acl>, umask: u32) {
    let Some(default) = default else {
        inode.attr.mode &= !(umask & 0o777);
        return;
    };
    let acl = default.inherited(inode.attr.mode & 0o777);
    inode.attr.mode = (inode.attr.mode & !0o777) | acl.mode();
    if acl.is_extended() {
        inode.set_xattr(acl::ACCESS, Some(acl.encode()));
    }
    if inode.attr.is_dir() {
        inode.set_xattr(acl::DEFAULT, Some(default.encode()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{cred, dir, inode};

    #[test]
    fn each_operation_makes_its_kind() {
        let request =
            |target: &'static [u8]| CreateReq { target: target.into(), ..Default::default() };
        let said = |op, kind, target| check_kind(op, kind, &request(target)).map_err(|e| e.errno());
        assert_eq!(said(Op::Create, FileKind::Regular, b""), Ok(()));
        assert_eq!(said(Op::Create, FileKind::Directory, b""), Err(Errno::EINVAL));
        assert_eq!(said(Op::Mkdir, FileKind::Directory, b""), Ok(()));
        assert_eq!(said(Op::Mknod, FileKind::Fifo, b""), Ok(()));
        assert_eq!(said(Op::Mknod, FileKind::Symlink, b"x"), Err(Errno::EINVAL));
        assert_eq!(said(Op::Symlink, FileKind::Symlink, b"x"), Ok(()));
        assert_eq!(said(Op::Symlink, FileKind::Symlink, b""), Err(Errno::ENOENT));
        assert_eq!(said(Op::Symlink, FileKind::Symlink, b"x\0"), Err(Errno::EINVAL));
        let long = Box::leak(vec![b'x'; limits::PATH_BYTES_MAX].into_boxed_slice());
        assert_eq!(said(Op::Symlink, FileKind::Symlink, long), Err(Errno::ENAMETOOLONG));
    }

    #[test]
    fn a_set_group_id_directory_gives_its_group() {
        let (plain, setgid) = (dir(0o777, 1, 20), dir(0o2777, 1, 20));
        let made = |mode, kind: FileKind, dir: &ResolvedDir, who: &Cred| {
            let (mode, gid) = inherit(mode, kind, dir, who).unwrap();
            assert_eq!(FileKind::of_mode(mode), Some(kind));
            (mode & 0o7777, gid)
        };
        let (regular, directory) = (FileKind::Regular, FileKind::Directory);
        let who = cred(7, 9);
        assert_eq!(made(0o6755, regular, &plain, &who), (0o6755, 9));
        assert_eq!(made(0o6755, directory, &plain, &who), (0o755, 9));
        assert_eq!(made(0o755, directory, &setgid, &who), (0o2755, 20));
        assert_eq!(made(0o2755, regular, &setgid, &who), (0o755, 20), "not of the group");
        assert_eq!(made(0o2755, regular, &setgid, &cred(7, 20)), (0o2755, 20));
        assert_eq!(made(0o2755, regular, &setgid, &cred(0, 0)), (0o2755, 20));
        assert_eq!(made(0, FileKind::Symlink, &plain, &who), (0o777, 9));
    }

    #[test]
    fn the_umask_counts_without_a_default_list() {
        let mut file = inode(FileKind::Regular, 0o666);
        inherit_acl(&mut file, None, 0o027);
        assert_eq!(file.attr.mode & 0o7777, 0o640);
        // Version, then tag, bits and id of owner, group and others.
        let mut raw = 2_u32.to_le_bytes().to_vec();
        for (tag, bits) in [(1_u16, 7_u16), (4, 5), (0x20, 0)] {
            raw.extend(tag.to_le_bytes());
            raw.extend(bits.to_le_bytes());
            raw.extend([0xff; 4]);
        }
        let default = Acl::parse(&raw).unwrap().unwrap();
        let mut file = inode(FileKind::Regular, 0o666);
        inherit_acl(&mut file, Some(&default), 0o077);
        assert_eq!((file.attr.mode & 0o7777, file.xattr(acl::DEFAULT)), (0o640, None));
        let mut below = inode(FileKind::Directory, 0o777);
        inherit_acl(&mut below, Some(&default), 0o077);
        assert_eq!(below.attr.mode & 0o7777, 0o750);
        assert!(below.xattr(acl::DEFAULT).is_some(), "a directory hands it on");
    }
}
