//! Adding, removing and replacing entries (rename(2), unlink(2)).

use saker_types::wire::At;
use saker_types::{Access, Cred, Errno, Error, Inode, access};

use crate::namespace::dir::ResolvedDir;

/// May the caller add or remove entries of a directory (search was checked on the way)?
pub(crate) fn may_change(dir: &ResolvedDir, cred: &Cred) -> Result<(), Error> {
    dir.check(cred, Access::WX)
}

/// May the caller remove or replace an entry of a directory? True: only if it owns the inode,
/// which this shard cannot tell.
pub(crate) fn may_remove(
    dir: &ResolvedDir,
    victim_uid: Option<u32>,
    cred: &Cred,
) -> Result<bool, Error> {
    may_change(dir, cred)?;
    match victim_uid {
        Some(uid) => access::check_sticky(dir.mode, dir.uid, uid, cred).map(|()| false),
        None => Ok(access::check_sticky(dir.mode, dir.uid, access::NOBODY, cred).is_err()),
    }
}

/// rename(2): what may replace what.
pub(crate) fn check_replace(row: &Inode, there: &Inode, no_replace: bool) -> Result<(), Error> {
    if no_replace {
        return Err(Errno::EEXIST.into());
    }
    match (row.attr.is_dir(), there.attr.is_dir()) {
        (true, false) => Err(Errno::ENOTDIR.into()),
        (false, true) => Err(Errno::EISDIR.into()),
        _ => Ok(()),
    }
}

/// Refuses a target whose path goes through the source, which is no directory: resolving it
/// would wait for the source's own lock.
pub(crate) fn not_below(from: &At, to: &At) -> Result<(), Error> {
    let depth = from.path.len();
    let is_below =
        from.anchor == to.anchor && to.path.len() > depth && to.path.starts_with(&from.path);
    if !is_below {
        return Ok(());
    }
    Err(Error::at(Errno::ENOTDIR, depth.saturating_sub(1)).about_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{cred, dir, inode};
    use saker_types::{FileKind, Locator};

    fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> Errno {
        result.unwrap_err().errno()
    }

    #[test]
    fn who_writes_and_searches_a_directory_changes_it() {
        for (mode, is_allowed) in [(0o300, true), (0o200, false), (0o100, false), (0o033, false)] {
            assert_eq!(may_change(&dir(mode, 5, 6), &cred(5, 9)).is_ok(), is_allowed, "{mode:o}");
        }
        assert!(may_change(&dir(0, 5, 6), &cred(0, 0)).is_ok());
        assert!(may_change(&dir(0o030, 5, 6), &cred(7, 6)).is_ok());
    }

    #[test]
    fn in_sticky_directories_owners_remove() {
        let sticky = dir(0o1777, 5, 6);
        for (who, owner, expected) in [
            (0, Some(8), Ok(false)),
            (5, Some(8), Ok(false)),
            (8, Some(8), Ok(false)),
            (7, Some(8), Err(Errno::EPERM)),
            // Whose it is another shard knows.
            (5, None, Ok(false)),
            (7, None, Ok(true)),
        ] {
            let said = may_remove(&sticky, owner, &cred(who, 9)).map_err(|e| e.errno());
            assert_eq!(said, expected, "{who} {owner:?}");
        }
        assert!(!may_remove(&dir(0o777, 5, 6), Some(8), &cred(7, 9)).unwrap());
        assert_eq!(errno(may_remove(&dir(0o755, 5, 6), Some(7), &cred(7, 9))), Errno::EACCES);
    }

    #[test]
    fn a_directory_replaces_a_directory_and_a_file_a_file() {
        let (file, dir) = (inode(FileKind::Regular, 0o644), inode(FileKind::Directory, 0o755));
        assert!(check_replace(&file, &file, false).is_ok());
        assert!(check_replace(&dir, &dir, false).is_ok());
        assert_eq!(errno(check_replace(&dir, &file, false)), Errno::ENOTDIR);
        assert_eq!(errno(check_replace(&file, &dir, false)), Errno::EISDIR);
        assert_eq!(errno(check_replace(&file, &dir, true)), Errno::EEXIST);
    }

    #[test]
    fn nothing_is_moved_below_a_file() {
        let at = |path: &str| {
            let names = path.split('/').map(|name| name.as_bytes().to_vec().into());
            At::below(Locator::root(), names.collect())
        };
        assert!(not_below(&at("a/f"), &at("a/g")).is_ok());
        assert!(not_below(&at("a/f"), &at("a/f")).is_ok());
        assert!(not_below(&at("a/f"), &at("a")).is_ok());
        assert_eq!(errno(not_below(&at("a/f"), &at("a/f/e"))), Errno::ENOTDIR);
    }
}
