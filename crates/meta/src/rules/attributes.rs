//! Changes of mode, owner and times (chmod(2), chown(2), utimensat(2)).

use saker_types::time::later;
use saker_types::wire::SetattrReq;
use saker_types::{Access, Attr, Cred, Errno, Error, Inode, Stamp, access};

/// The next version of a file's data. Where a loss of power may take what was answered, none that is lost
/// may come again with other data: so it is not below the clock's milliseconds.
pub(crate) fn next_version(a: &Attr, now_ns: Stamp) -> u64 {
    (a.data_version + 1).max(now_ns / 1_000_000)
}

/// chmod(2) and chown(2): checks, and changes mode, owner and ctime.
pub(crate) fn apply_access(
    inode: &mut Inode,
    msg: &SetattrReq,
    now_ns: Stamp,
) -> Result<(), Error> {
    let cred = &msg.ctx.cred;
    let a = &mut inode.attr;
    let chowns = msg.uid.is_some() || msg.gid.is_some();
    if chowns {
        check_chown(a, msg, cred)?;
        // Set-id bits do not survive a change of owner, but the superuser's on directories.
        if !a.is_dir() {
            a.mode = access::mode_without_privilege(a, cred)?;
        }
        a.uid = msg.uid.unwrap_or(a.uid);
        a.gid = msg.gid.unwrap_or(a.gid);
    }
    if let Some(mode) = msg.mode {
        access::check_owner(a, cred)?;
        let mut bits = mode & 0o7777;
        if bits & 0o2000 != 0 && cred.uid != 0 && !cred.in_group(a.gid)? {
            bits &= !0o2000;
        }
        inode.set_mode_bits(bits)?;
    }
    inode.attr.ctime_ns = later(inode.attr.ctime_ns, now_ns);
    Ok(())
}

fn check_chown(a: &Attr, msg: &SetattrReq, cred: &Cred) -> Result<(), Error> {
    if cred.uid == 0 {
        return Ok(());
    }
    let uid_stays = msg.uid.is_none_or(|uid| uid == a.uid);
    if cred.uid != a.uid || !uid_stays {
        return Err(Errno::EPERM.into());
    }
    match msg.gid {
        Some(gid) if gid != a.gid && !cred.in_group(gid)? => Err(Errno::EPERM.into()),
        _ => Ok(()),
    }
}

/// utimensat(2): setting both to now needs write permission, anything else ownership. A
/// truncation brings its mtime along.
pub(crate) fn apply_times(
    inode: &mut Inode,
    msg: &SetattrReq,
    now_ns: Stamp,
) -> Result<bool, Error> {
    let cred = &msg.ctx.cred;
    if msg.atime_ns.is_some() || msg.mtime_ns.is_some() {
        access::check_owner(&inode.attr, cred)?;
    } else if msg.atime_now || msg.mtime_now {
        let owner = access::check_owner(&inode.attr, cred);
        if owner.is_err() && !msg.by_handle {
            let as_writer = (msg.atime_now && msg.mtime_now) || msg.size.is_some();
            if !as_writer {
                return owner.map(|()| false);
            }
            inode.check(cred, Access::W)?;
        }
    }
    let a = &mut inode.attr;
    if let Some(t) = msg.atime_ns.or(msg.atime_now.then_some(now_ns)) {
        a.atime_ns = t;
    }
    let mtime = msg.mtime_ns.or(msg.mtime_now.then_some(now_ns));
    if let Some(t) = mtime {
        a.mtime_ns = t;
    }
    Ok(mtime.is_some())
}

/// The mode of a file after this user changed its data.
pub(crate) fn mode_after_write(a: &Attr, cred: &Cred) -> Result<u32, Error> {
    if cred.uid == 0 { Ok(a.mode) } else { access::mode_without_privilege(a, cred) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{cred, inode};
    use saker_types::FileKind;
    use saker_types::wire::Ctx;

    fn request(who: Cred) -> SetattrReq {
        SetattrReq { ctx: Ctx { cred: who, ..Ctx::default() }, ..SetattrReq::default() }
    }

    fn apply(mode: u32, request: &SetattrReq) -> Result<(u32, u32, u32), Errno> {
        let mut file = inode(FileKind::Regular, mode);
        (file.attr.uid, file.attr.gid) = (5, 6);
        apply_access(&mut file, request, 9).map_err(|e| e.errno())?;
        assert_eq!(file.attr.ctime_ns, 9);
        Ok((file.attr.mode & 0o7777, file.attr.uid, file.attr.gid))
    }

    #[test]
    fn owners_change_the_mode() {
        let chmod = |who, mode| SetattrReq { mode: Some(mode), ..request(who) };
        assert_eq!(apply(0o644, &chmod(cred(5, 6), 0o4751)), Ok((0o4751, 5, 6)));
        assert_eq!(apply(0o644, &chmod(cred(7, 6), 0o600)), Err(Errno::EPERM));
        assert_eq!(apply(0o644, &chmod(cred(5, 9), 0o2755)), Ok((0o755, 5, 6)), "not of the group");
        assert_eq!(apply(0o644, &chmod(cred(0, 0), 0o2755)), Ok((0o2755, 5, 6)));
    }

    #[test]
    fn only_root_gives_files_away() {
        let chown = |who, uid, gid| SetattrReq { uid, gid, ..request(who) };
        assert_eq!(apply(0o6755, &chown(cred(0, 0), Some(8), None)), Ok((0o755, 8, 6)));
        assert_eq!(apply(0o644, &chown(cred(5, 6), Some(8), None)), Err(Errno::EPERM));
        assert_eq!(apply(0o644, &chown(cred(5, 9), None, Some(9))), Ok((0o644, 5, 9)));
        assert_eq!(apply(0o644, &chown(cred(5, 6), None, Some(9))), Err(Errno::EPERM));
        assert_eq!(apply(0o6755, &chown(cred(5, 6), Some(5), None)), Ok((0o755, 5, 6)));
    }

    #[test]
    fn writers_may_set_times_to_now() {
        let apply = |request: &SetattrReq| {
            let mut file = inode(FileKind::Regular, 0o662);
            (file.attr.uid, file.attr.gid) = (5, 6);
            let sets_mtime = apply_times(&mut file, request, 9).map_err(|e| e.errno())?;
            Ok((sets_mtime, file.attr.atime_ns, file.attr.mtime_ns))
        };
        let now = |who| SetattrReq { atime_now: true, mtime_now: true, ..request(who) };
        assert_eq!(apply(&now(cred(7, 8))), Ok((true, 9, 9)));
        let access_only = |who| SetattrReq { atime_now: true, ..request(who) };
        assert_eq!(apply(&access_only(cred(5, 6))), Ok((false, 9, 0)));
        assert_eq!(apply(&access_only(cred(7, 8))), Err(Errno::EPERM));
        let to = |who| SetattrReq { mtime_ns: Some(4), ..request(who) };
        assert_eq!(apply(&to(cred(5, 6))), Ok((true, 0, 4)));
        assert_eq!(apply(&to(cred(7, 8))), Err(Errno::EPERM));
    }

    #[test]
    fn who_writes_takes_privileges_away() {
        let file = inode(FileKind::Regular, 0o6755);
        assert_eq!(mode_after_write(&file.attr, &cred(0, 0)).unwrap() & 0o7777, 0o6755);
        assert_eq!(mode_after_write(&file.attr, &cred(5, 6)).unwrap() & 0o7777, 0o755);
    }
}
