//! An agent's directory: for one agent and one user.

use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use saker_agent_api::{DATASETS, OUTPUT_SUFFIX, OUTPUTS, SOCKET};
use tokio::net::UnixListener;

use crate::error::{Error, Result};

/// Held by the agent that serves a directory.
const LOCK: &str = "agent.lock";
/// Longest name of a dataset, version included.
const NAME_BYTES_MAX: usize = 200;

/// A directory that this agent serves, until this is dropped.
pub(crate) struct Dir {
    path: PathBuf,
    _lock: File,
}

impl Dir {
    /// Makes the directory and locks it.
    ///
    /// # Errors
    /// EBUSY: another agent serves it. EPERM: it belongs to another user. Of the system.
    pub(crate) fn open(path: &Path) -> Result<Dir> {
        let path = std::path::absolute(path).map_err(|e| Error::file(path, e))?;
        make_own(&path)?;
        let lock = lock(&path)?;
        let datasets = path.join(DATASETS);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&datasets)
            .map_err(|e| Error::file(&datasets, e))?;
        Ok(Dir { path, _lock: lock })
    }

    /// Where staged datasets are.
    pub(crate) fn datasets(&self) -> PathBuf {
        self.path.join(DATASETS)
    }

    /// Where output files are.
    pub(crate) fn outputs(&self) -> PathBuf {
        self.path.join(OUTPUTS)
    }

    /// Listens for processes of the node.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn listen(&self) -> Result<UnixListener> {
        let path = self.path.join(SOCKET);
        // Of an agent that was killed: this one has the lock.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(|e| Error::file(&path, e))?;
        let set = std::fs::set_permissions(&path, Permissions::from_mode(0o600));
        set.map_err(|e| Error::file(&path, e))?;
        Ok(listener)
    }

    /// The socket goes with its agent.
    pub(crate) fn leave(&self) {
        let _ = std::fs::remove_file(self.path.join(SOCKET));
    }
}

/// Makes an agent's directory, for this user only. The default one is where every user may make
/// files: what another user has put there is refused before anything is changed or written in it, a
/// link to a directory of this user, too.
///
/// # Errors
/// EPERM: it belongs to another user. Of the system.
pub fn make_own(path: &Path) -> Result<()> {
    let about = |e: std::io::Error| Error::file(path, e);
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(about)?;
    let (named, meant) = (std::fs::symlink_metadata(path), std::fs::metadata(path));
    for owner in [named.map_err(about)?.uid(), meant.map_err(about)?.uid()] {
        if owner != rustix::process::geteuid().as_raw() {
            let what = format!("{}: belongs to another user ({owner})", path.display());
            return Err(Error::new(Errno::PERM, what));
        }
    }
    std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(about)
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|e| Error::file(&path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            let what = format!("{}: another agent serves it", dir.display());
            Err(Error::new(Errno::BUSY, what))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(Error::file(&path, error)),
    }
}

/// Refuses what is no NAME@VERSION, would lead out of the directory, or be taken for the outputs of
/// another dataset.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_part = |part: &str| {
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_plain)
    };
    let parts = name.split_once('@');
    if name.ends_with(OUTPUT_SUFFIX) {
        let what = format!("{name:?}: the end '{OUTPUT_SUFFIX}' is for outputs of datasets");
        return Err(Error::new(Errno::INVAL, what));
    }
    if name.len() <= NAME_BYTES_MAX && parts.is_some_and(|(a, b)| is_part(a) && is_part(b)) {
        return Ok(());
    }
    let what = format!("{name:?}: no NAME@VERSION of letters, digits, '.', '_' and '-'");
    Err(Error::new(Errno::INVAL, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for name in ["a@1", "imagenet-1k@2012.v2", "A_b@x"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = format!("{}@1", "n".repeat(NAME_BYTES_MAX));
        for name in [
            "", "a", "@", "a@", "@1", "../a@1", "a@..", "a/b@1", "a@1@2", "a b@1", "a@1.out", &long,
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_another_user_has_made_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let at = tempfile::tempdir().unwrap();
        let [own, foreign, link] = ["own", "foreign", "link"].map(|name| at.path().join(name));
        let refused = |path: &Path| {
            let error = Dir::open(path).err().unwrap();
            assert_eq!(error.errno, Errno::PERM.raw_os_error(), "{error}");
        };
        std::fs::create_dir(&foreign).unwrap();
        std::os::unix::fs::chown(&foreign, Some(12345), None).unwrap();
        refused(&foreign);
        assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 0);
        std::fs::create_dir(&own).unwrap();
        std::fs::set_permissions(&own, Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
        refused(&link);
        assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o777, 0o755);
        std::os::unix::fs::lchown(&link, Some(0), None).unwrap();
        Dir::open(&link).unwrap();
    }

    #[test]
    fn a_directory_has_one_agent() {
        let at = tempfile::tempdir().unwrap();
        let first = Dir::open(&at.path().join("a/b")).unwrap();
        let second = Dir::open(&at.path().join("a/b")).err().unwrap();
        assert!(second.to_string().contains("another agent"), "{second}");
        drop(first);
        Dir::open(&at.path().join("a/b")).unwrap();
        let mode = std::fs::metadata(at.path().join("a/b")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
