//! The directory of this machine in which journals of decoupled subtrees are kept (Cudele section 3.1,
//! "Local Persist").
//!
//! ```text
//! holder             the number by which whoever uses this directory holds subtrees, in hexadecimal
//! POLICY/            private servers of a subtree, by the number of its policy, in hexadecimal
//! ```
//!
//! So a client that is started again with the directory goes on with what the one before it held.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use saker_runtime::fs::{Dir, RealDir, read_all};
use saker_runtime::rand;
use saker_types::{Errno, Error, Result};

const HOLDER: &str = "holder";
const HOLDER_NEW: &str = "holder.new";

/// An open directory; nobody else uses it meanwhile.
pub(crate) struct JournalDir {
    path: PathBuf,
    pub(crate) holder: u64,
    _locked: RealDir,
}

impl JournalDir {
    /// Opens it; it is made if it is missing.
    ///
    /// # Errors
    /// EBUSY: another client uses it. EINVAL: it is none. EIO.
    pub(crate) fn open(path: &Path) -> Result<JournalDir> {
        let refused = |e: io::Error| {
            let (errno, why) = match e.kind() {
                io::ErrorKind::WouldBlock => (Errno::EBUSY, "another client uses it".to_owned()),
                io::ErrorKind::InvalidData => (Errno::EINVAL, e.to_string()),
                _ => (Errno::EIO, e.to_string()),
            };
            Error::new(errno).with_text(format!("journal directory {}: {why}", path.display()))
        };
        let dir = RealDir::open(path).map_err(refused)?;
        dir.lock().map_err(refused)?;
        let holder = holder_of(&dir).map_err(refused)?;
        Ok(JournalDir { path: path.to_owned(), holder, _locked: dir })
    }

    /// Where the subtree of a policy is kept.
    pub(crate) fn of_policy(&self, policy: u64) -> PathBuf {
        self.path.join(format!("{policy:016x}"))
    }

    /// Is there a journal of the subtree of a policy?
    #[allow(clippy::disallowed_methods, reason = "a directory of this machine")]
    pub(crate) fn has(&self, policy: u64) -> bool {
        self.of_policy(policy).exists()
    }

    /// A subtree was merged and released: its journal has nothing that is not merged.
    #[allow(clippy::disallowed_methods, reason = "a whole directory of this machine goes")]
    pub(crate) fn remove(&self, policy: u64) {
        let path = self.of_policy(policy);
        if let Err(error) = std::fs::remove_dir_all(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: {error}", path.display());
        }
    }
}

/// Reads the number, or draws it.
fn holder_of(dir: &RealDir) -> io::Result<u64> {
    if dir.list()?.iter().any(|name| name == HOLDER) {
        let text = read_all(&*dir.open(HOLDER)?)?;
        let number = std::str::from_utf8(&text).ok();
        let number = number.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "its file holder is damaged");
        return number.filter(|holder| *holder != 0).ok_or_else(broken);
    }
    let holder = rand::u64().max(1);
    if dir.list()?.iter().any(|name| name == HOLDER_NEW) {
        dir.remove(HOLDER_NEW)?;
    }
    let file: Arc<dyn saker_runtime::fs::File> = dir.create(HOLDER_NEW)?;
    file.write_at(0, format!("{holder:016x}\n").as_bytes())?;
    file.sync()?;
    dir.rename(HOLDER_NEW, HOLDER)?;
    dir.sync()?;
    Ok(holder)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn whoever_uses_the_directory_next_has_the_same_number() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("journals");
        let first = JournalDir::open(&path).unwrap();
        assert_eq!(JournalDir::open(&path).err().unwrap().errno(), Errno::EBUSY);
        let holder = first.holder;
        drop(first);
        let again = JournalDir::open(&path).unwrap();
        assert!(holder != 0 && again.holder == holder);
        std::fs::create_dir_all(again.of_policy(7).join("shard")).unwrap();
        again.remove(7);
        again.remove(7);
        assert!(!again.of_policy(7).exists());
        drop(again);
        std::fs::write(path.join(HOLDER), "nonsense").unwrap();
        assert_eq!(JournalDir::open(&path).err().unwrap().errno(), Errno::EINVAL);
    }
}
